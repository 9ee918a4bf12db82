#include "http/parser.h"

#include <vector>

#include "base/rng.h"
#include "http/body_reader.h"
#include "test.h"

using namespace mc;
using namespace mc::http;

namespace {

using State = RequestParser::State;

/// Feeds `bytes` in pieces cut at random; returns how many were taken.
size_t feed_in_pieces(RequestParser& parser, std::string_view bytes, Rng& rng) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    const size_t piece = 1 + rng.below(std::min<size_t>(bytes.size() - taken, 1 + rng.below(64)));
    const size_t used = parser.feed(bytes.substr(taken, piece));
    taken += used;
    if (used < piece) break;
  }
  return taken;
}

std::string random_text(Rng& rng, size_t bytes) {
  std::string text(bytes, ' ');
  for (char& c : text) c = static_cast<char>(rng.next());
  return text;
}

}  // namespace

TEST_CASE("http/parser: a request reads the same whole, byte by byte and in random pieces") {
  Rng rng(test::seed());
  for (int round = 0; round < 300; ++round) {
    const std::string body = random_text(rng, rng.below(3000));
    const bool is_chunked = rng.below(2) == 0;
    std::string bytes = "POST /v1/x%20y?a=b HTTP/1.1\r\nHost: h\r\nX-Thing:  v  \r\n";
    if (is_chunked) {
      bytes += "Transfer-Encoding: chunked\r\n\r\n";
      for (size_t at = 0; at < body.size();) {
        const size_t count = 1 + rng.below(body.size() - at);
        append_chunk(bytes, std::string_view(body).substr(at, count));
        at += count;
      }
      bytes += "0\r\nTrailer: t\r\n\r\n";
    } else {
      bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    }
    const std::string next = "GET / HTTP/1.1\r\n";
    RequestParser parser;
    CHECK(feed_in_pieces(parser, bytes + next, rng) == bytes.size());
    REQUIRE(parser.state() == State::done);
    const Request request = parser.take();
    CHECK(request.method == Method::post);
    CHECK(request.path == "/v1/x y");
    CHECK(request.query == "a=b");
    CHECK(find_header(request.headers, "x-thing") == "v");
    CHECK(find_header(request.headers, "trailer").empty());
    CHECK(request.body == body);
  }
}

TEST_CASE("http/parser: exactly the request is taken, not a byte of the next") {
  for (const std::string bytes :
       {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"})
    for (size_t first = 0; first <= bytes.size(); ++first) {
      RequestParser parser;
      const std::string all = bytes + "GET /next";
      size_t taken = parser.feed(std::string_view(all).substr(0, first));
      if (parser.state() != State::done) taken += parser.feed(std::string_view(all).substr(first));
      CHECK(taken == bytes.size());
      CHECK(parser.state() == State::done);
    }
}

TEST_CASE("http/parser: a head of exactly the limit passes, one more byte fails") {
  const auto head_of = [](size_t bytes) {
    std::string head = "GET / HTTP/1.1\r\nHost: h\r\nA: ";
    head += std::string(bytes - head.size() - 4, 'a');
    return head + "\r\n\r\n";
  };
  RequestParser fits({.header_bytes = 1000}), over({.header_bytes = 1000});
  fits.feed(head_of(990));
  CHECK(fits.state() == State::done);
  over.feed(head_of(1020));
  CHECK(over.state() == State::failed);
  CHECK(over.failure().status == 431);
}

TEST_CASE("http/parser: a body of exactly the limit passes, one more byte fails, chunked or not") {
  for (const bool is_chunked : {false, true})
    for (const size_t bytes : {100u, 101u}) {
      std::string text = "POST / HTTP/1.1\r\nHost: h\r\n";
      text +=
          is_chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "Content-Length: " + std::to_string(bytes) + "\r\n\r\n";
      if (is_chunked) {
        append_chunk(text, std::string(60, 'x'));
        append_chunk(text, std::string(bytes - 60, 'x'));
        text += kLastChunk;
      } else {
        text += std::string(bytes, 'x');
      }
      RequestParser parser({.body_bytes = 100});
      parser.feed(text);
      CHECK((parser.state() == State::done) == (bytes == 100));
      if (bytes > 100) CHECK(parser.failure().status == 413);
    }
}

TEST_CASE("http/parser: a body takes 1 MiB or four times the memory of what arrived, in a few steps") {
  constexpr size_t kWhole = size_t{8} << 20;
  const std::string piece(size_t{64} << 10, 'x');
  std::string body;
  int moves = 0;
  for (size_t left = kWhole; left > 0; left -= piece.size()) {
    const size_t before = body.capacity();
    append_body(body, piece, left);
    moves += body.capacity() != before;
    CHECK_LE(body.capacity(), std::max(4 * body.size(), size_t{1} << 20));
  }
  CHECK_EQ(body.size(), kWhole);
  CHECK_LE(body.capacity(), 2 * kWhole);
  CHECK_LE(moves, 5);
  append_body(body, "more than was announced", 0);
  CHECK_EQ(body.size(), kWhole + 23);
}

TEST_CASE("http/parser: trailers without end are bounded") {
  RequestParser parser({.header_bytes = 1000});
  parser.feed("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
  for (int i = 0; i < 1000 && parser.state() == State::body; ++i) parser.feed("A: b\r\n");
  CHECK(parser.state() == State::failed);
}

TEST_CASE("http/parser: random bytes and damaged requests never do worse than fail") {
  Rng rng(test::seed() + 1);
  const std::string good =
      "POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4;x=\"y\"\r\nabcd\r\n0\r\nT: u\r\n\r\n";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (size_t i = 0, n = 1 + rng.below(4); i < n; ++i) {
      const size_t at = rng.below(bytes.size());
      switch (rng.below(3)) {
        case 0: bytes[at] = static_cast<char>(rng.next()); break;
        case 1: bytes.erase(at, 1 + rng.below(5)); break;
        default: bytes.insert(at, random_text(rng, 1 + rng.below(5)));
      }
      if (bytes.empty()) break;
    }
    RequestParser parser({.header_bytes = 200, .body_bytes = 50});
    (void)feed_in_pieces(parser, bytes, rng);
    CHECK(parser.body_bytes() <= 50);
    if (parser.state() == State::failed) CHECK(parser.failure().status >= 400);
  }
}

TEST_CASE("http/parser: an event stream reads the same in any pieces, with any line ends") {
  Rng rng(test::seed() + 2);
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const std::string stream = ": ping" + end + end + "data: {\"a\":1}" + end + end + "event: x" + end + "data:one" +
                               end + "data: two" + end + "id: 7" + end + end + end + "data" + end + end +
                               "data: [DONE]" + end + end + "data: never finished" + end;
    for (int round = 0; round < 100; ++round) {
      SseParser parser;
      std::vector<std::string> events;
      for (size_t at = 0; at < stream.size();) {
        const size_t count = 1 + rng.below(stream.size() - at);
        REQUIRE_OK(parser.feed(std::string_view(stream).substr(at, count),
                               [&](std::string_view data) { events.emplace_back(data); }));
        at += count;
      }
      CHECK(events == std::vector<std::string>{"{\"a\":1}", "one\ntwo", "", "[DONE]"});
    }
  }
}

TEST_CASE("http/parser: an event beyond its limit fails, in one line or in many") {
  const auto ignore = [](std::string_view) {};
  SseParser one(100), many(100);
  CHECK_FALSE(one.feed("data: " + std::string(200, 'x'), ignore));
  Result<void> result;
  for (int i = 0; i < 100 && result; ++i) result = many.feed("data: xxxxxxxx\n", ignore);
  CHECK_FALSE(result);
}

TEST_CASE("http/message: header values cannot start a new header, and request ids sort by time") {
  std::string out;
  append_response_head(out, 200, {{"A", "x\r\nEvil: 1"}}, Framing::length, 3, true);
  CHECK(out == "HTTP/1.1 200 OK\r\nA: x  Evil: 1\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
  std::string early = new_request_id();
  CHECK(early.size() == 32);
  CHECK(early.starts_with("req_"));
  for (int i = 0; i < 10000; ++i) {  // more than a millisecond's sequence holds
    const std::string late = new_request_id();
    CHECK(early < late);
    CHECK(early.substr(10) != late.substr(10));
    early = late;
  }
  CHECK(is_sane_request_id(early));
  CHECK_FALSE(is_sane_request_id(""));
  CHECK_FALSE(is_sane_request_id("a\tb"));
  CHECK_FALSE(is_sane_request_id(std::string(129, 'a')));
}

TEST_CASE("http/message: paths decode percent escapes and refuse bad ones, NUL and bytes that are not UTF-8") {
  CHECK(*decode_path("/a%2Fb%C3%A9%25") == "/a/b\xc3\xa9%");
  for (const char* bad : {"/%", "/%4", "/%g0", "/%00", "/%ff", "/%c3"}) {
    INFO(bad);
    CHECK_FALSE(decode_path(bad));
  }
}

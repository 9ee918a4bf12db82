#include "http/server.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/json.h"
#include "http/client.h"
#include "product/metric_names.h"
#include "test.h"
#include "unit/http/inbox.h"
#include "unit/http/raw_client.h"

namespace server_test {

using namespace mc;
using namespace mc::http;
using mc::test::Inbox;
using mc::test::Promise;
using mc::test::RawClient;

namespace {

std::unique_ptr<Server> open_server(Server::Handler handler, ServerOptions options = {}) {
  auto server = Server::open(options, std::move(handler));
  REQUIRE_OK(server);
  return std::move(*server);
}

void echo(Request request, Responder out) {
  out.respond({200, {{"Content-Type", "text/plain"}}, request.path + "|" + request.body});
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string body_of(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

/// The server's thread has finished what was queued so far.
void flush(Server& server) {
  auto done = std::make_shared<Promise<bool>>();
  server.post([done] { done->set(true); });
  done->get();
}

/// Waits until the statistics say so; each look is a round trip through the server's thread.
template <class Condition>
bool eventually(Server& server, Condition condition) {
  const TimePoint deadline = test::patience();
  while (SystemClock::instance().now() < deadline) {
    if (condition(server.stats())) return true;
    flush(server);
    std::this_thread::yield();
  }
  return false;
}

/// Raises the limit of open files as far as allowed; false when `count` do not fit.
bool files_allowed(rlim_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(count, limit.rlim_max));
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= count;
}

constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

}  // namespace

TEST_CASE("http/server: a request that its head refuses is answered before its body comes, which takes no room") {
  ServerOptions options;
  options.bodies_bytes_max = 3 << 19;  // large bodies may take three quarters of it
  options.refuse_head = [](const Request& head) -> std::optional<Response> {
    if (find_header(head.headers, "authorization").empty()) return Response{401, {}, "no"};
    return std::nullopt;
  };
  auto server = Server::open(options, [](Request request, Responder out) { out.respond({200, {}, request.body}); });
  REQUIRE_OK(server);
  const std::string head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n";
  const std::string most_of_it((1 << 20) - 100'000, 'x');
  RawClient stranger((*server)->port());
  stranger.send(head + "\r\n" + most_of_it);
  CHECK(stranger.read_response().starts_with("HTTP/1.1 401 "));
  RawClient second((*server)->port()), friendly((*server)->port());
  second.send(head + "\r\n" + most_of_it);
  friendly.send(head + "Authorization: x\r\n\r\n" + std::string(1'000'000, 'y'));
  CHECK(friendly.read_response().starts_with("HTTP/1.1 200 "));
  CHECK(second.read_response().starts_with("HTTP/1.1 401 "));
}

TEST_CASE("http/server: a web page's request is refused before its body comes") {
  ServerOptions options;
  options.site.checks_host = true;
  auto server = Server::open(options, [](Request, Responder out) { out.respond({200, {}, "fine"}); });
  REQUIRE_OK(server);
  RawClient page((*server)->port());
  page.send("POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x.example\r\nContent-Length: 1000\r\n\r\n");
  CHECK(page.read_response().starts_with("HTTP/1.1 403 "));
}

TEST_CASE("http/server: answers a request with its length and an x-request-id, and keeps the connection") {
  auto server = open_server(echo);
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    REQUIRE(client.send("POST /a%20b?q=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"));
    const std::string response = client.read_response();
    CHECK(response.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(contains(response, "\r\nContent-Length: 10\r\n"));
    CHECK(contains(response, "\r\nx-request-id: req_"));
    CHECK_FALSE(contains(response, "Connection: close"));
    CHECK(body_of(response) == "/a b|hello");
  }
  CHECK(server->stats().accepted == 1);
  CHECK(server->stats().requests == 3);
}

TEST_CASE("http/server: a sane x-request-id comes back, another is replaced") {
  auto server = open_server(echo);
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\nX-Request-ID: abc-123\r\n\r\n");
  CHECK(contains(client.read_response(), "\r\nx-request-id: abc-123\r\n"));
  client.send("GET / HTTP/1.1\r\nHost: x\r\nX-Request-ID: a b\r\n\r\n");
  CHECK(contains(client.read_response(), "\r\nx-request-id: req_"));
}

TEST_CASE("http/server: pipelined requests are handled one after another, in order") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient client(server->port());
  client.send(
      "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\nPOST /3 HTTP/1.1\r\nHost: x\r\n"
      "Content-Length: 3\r\n\r\nabcGET /4 HTTP/1.1\r\nHost: x\r\n\r\n");
  for (int i = 1; i <= 4; ++i) {
    auto item = inbox.pop();
    CHECK(item.request.path == "/" + std::to_string(i));
    flush(*server);
    CHECK(inbox.is_empty());
    item.out.respond({200, {}, item.request.path + item.request.body});
    CHECK(body_of(client.read_response()) == (i == 3 ? "/3abc" : "/" + std::to_string(i)));
  }
}

TEST_CASE("http/server: a thousand pipelined requests in one write use no stack") {
  auto server = open_server(echo);
  RawClient client(server->port());
  std::string all;
  for (int i = 0; i < 1000; ++i) all += kGet;
  REQUIRE(client.send(all));
  for (int i = 0; i < 1000; ++i) REQUIRE(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("http/server: a request that trickles in byte by byte is read like any other") {
  auto server = open_server(echo);
  RawClient client(server->port());
  for (const char c :
       std::string("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
    REQUIRE(client.send(std::string_view(&c, 1)));
  CHECK(body_of(client.read_response()) == "/x|abc");
}

TEST_CASE("http/server: Expect: 100-continue is granted before the body and refused when it is too large") {
  auto server = open_server(echo, {.limits = {.body_bytes = 100}});
  RawClient client(server->port());
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.read_through("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  CHECK(body_of(client.read_response()) == "/x|ok");
  client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.read_response().starts_with("HTTP/1.1 413 "));
}

TEST_CASE("http/server: Connection: close and HTTP/1.0 end the connection after the answer") {
  auto server = open_server(echo);
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string response = client.read_to_end();
  CHECK(contains(response, "\r\nConnection: close\r\n"));
  CHECK(body_of(response) == "/|");
  RawClient old(server->port());
  old.send("GET /old HTTP/1.0\r\n\r\n");
  CHECK(body_of(old.read_to_end()) == "/old|");
}

TEST_CASE("http/server: HEAD gets the head of the answer and no body") {
  auto server = open_server(echo);
  RawClient client(server->port());
  client.send("HEAD /x HTTP/1.1\r\nHost: x\r\n\r\nGET /y HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(contains(client.read_through("\r\n\r\n"), "Content-Length: 3\r\n"));
  CHECK(body_of(client.read_response()) == "/y|");
}

TEST_CASE("http/server: what is not HTTP gets 400 in OpenAI's shape and a closed connection") {
  auto server = open_server(echo);
  for (const std::string bad :
       {"hello\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "G\xc3T / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\r\nHost x\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n"}) {
    INFO(bad);
    RawClient client(server->port());
    REQUIRE(client.send(bad));
    client.half_close();
    const std::string response = client.read_to_end();
    CHECK(response.starts_with("HTTP/1.1 400 Bad Request\r\n"));
    const auto json = Json::parse(body_of(response));
    REQUIRE_OK(json);
    CHECK((*json)["error"]["code"].as_string() == "bad_request");
    CHECK((*json)["error"]["type"].as_string() == "invalid_request_error");
  }
  CHECK(server->stats().requests == 0);
}

TEST_CASE("http/server: a head beyond its limit gets 431, a body beyond its limit 413 while it is still being sent") {
  auto server = open_server(echo, {.limits = {.header_bytes = 16 << 10, .body_bytes = 1000}});
  {
    RawClient client(server->port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(20000, 'a'));
    CHECK(client.read_through("\r\n").starts_with("HTTP/1.1 431 "));
  }
  {
    RawClient client(server->port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
    const std::string response = client.read_response();
    CHECK(response.starts_with("HTTP/1.1 413 "));
    CHECK(contains(response, "exceeds 1000 bytes"));
    CHECK(client.send(std::string(1001, 'x')));  // discarded, so that the answer is not lost to a reset
  }
  {
    RawClient client(server->port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n258\r\n" + std::string(600, 'x') +
                "\r\n258\r\n" + std::string(600, 'x'));
    CHECK(client.read_through("\r\n").starts_with("HTTP/1.1 413 "));
  }
  {
    RawClient client(server->port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(20000, 'x'));
    CHECK(client.read_through("\r\n").starts_with("HTTP/1.1 431 "));
  }
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.closed_for(CloseReason::bad_request) == 4; }));
}

TEST_CASE("http/server: bodies of all connections together are bounded") {
  auto server = open_server(echo, {.bodies_bytes_max = 1000});
  RawClient first(server->port()), second(server->port());
  first.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + std::string(899, 'x'));
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 2; }));
  // The first body may not have been read yet; whichever comes second is refused.
  second.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + std::string(899, 'x'));
  // Until one is refused neither may end: the other would find its room free again.
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.closed_for(CloseReason::too_many) == 1; }));
  first.send("x");
  second.send("x");
  const std::string a = first.read_response(), b = second.read_response();
  CHECK((a.starts_with("HTTP/1.1 200 ") != b.starts_with("HTTP/1.1 200 ")));
  CHECK((a.starts_with("HTTP/1.1 429 ") != b.starts_with("HTTP/1.1 429 ")));
}

TEST_CASE("http/server: slow heads and bodies are answered 408 and closed, silent and idle connections closed") {
  auto server = open_server(echo, {.head_timeout = 1s, .body_timeout = 1s, .idle_timeout = 1s});
  RawClient silent(server->port()), head(server->port()), body(server->port()), idle(server->port());
  head.send("GET / HT");
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  idle.send(kGet);
  CHECK(idle.read_response().starts_with("HTTP/1.1 200"));
  CHECK(head.read_to_end().starts_with("HTTP/1.1 408 Request Timeout\r\n"));
  CHECK(body.read_to_end().starts_with("HTTP/1.1 408 Request Timeout\r\n"));
  CHECK(silent.read_to_end().empty());
  CHECK(idle.read_to_end().empty());
  head.close(), body.close();
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 0; }));
  CHECK(server->stats().closed_for(CloseReason::head_timeout) == 2);
  CHECK(server->stats().closed_for(CloseReason::body_timeout) == 1);
  CHECK(server->stats().closed_for(CloseReason::idle_timeout) == 1);
}

TEST_CASE("http/server: a connection beyond the limit is told 429 and closed") {
  auto server = open_server(echo, {.connections_max = 2});
  RawClient first(server->port()), second(server->port());
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 2; }));
  RawClient third(server->port());
  third.send(kGet);
  const std::string response = third.read_to_end();
  CHECK(response.starts_with("HTTP/1.1 429 "));
  CHECK(contains(response, "too many connections (2)"));
  third.close();
  first.close();
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 1; }));
  RawClient fourth(server->port());
  fourth.send(kGet);
  CHECK(fourth.read_response().starts_with("HTTP/1.1 200 "));
}

TEST_CASE("http/server: an event stream has exactly the promised headers, events and end") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient client(server->port());
  client.send("POST /s HTTP/1.1\r\nHost: x\r\nX-Request-Id: r1\r\nContent-Length: 0\r\n\r\n");
  auto item = inbox.pop();
  item.out.start_stream();
  CHECK(client.read_through("\r\n\r\n") ==
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
        "X-Accel-Buffering: no\r\nx-request-id: r1\r\nTransfer-Encoding: chunked\r\n\r\n");
  CHECK(item.out.send_event(R"({"n":1})") == Code::ok);
  CHECK(client.read_through("\n\n\r\n") == "f\r\ndata: {\"n\":1}\n\n\r\n");
  CHECK(item.out.send(kSseDone) == Code::ok);
  item.out.finish();
  CHECK(client.read_through("0\r\n\r\n") == "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  client.send("GET /next HTTP/1.1\r\nHost: x\r\n\r\n");  // the connection lives on
  CHECK(inbox.pop().request.path == "/next");
}

TEST_CASE("http/server: an error after the first byte ends the stream without its last chunk") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient client(server->port());
  client.send(kGet);
  auto item = inbox.pop();
  item.out.start_stream();
  item.out.fail_stream(error_body(err::kNodeFailed, "d0 is gone"));
  const std::string all = client.read_to_end();
  CHECK(contains(all, "data: {\"error\":{\"message\":\"d0 is gone\""));
  CHECK_FALSE(contains(all, "[DONE]"));
  CHECK_FALSE(all.ends_with("0\r\n\r\n"));
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.closed_for(CloseReason::aborted) == 1; }));
}

TEST_CASE("http/server: an HTTP/1.0 client gets a stream without chunks, ended by the connection") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient client(server->port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  auto item = inbox.pop();
  item.out.start_stream();
  item.out.send_event("1");
  item.out.finish();
  CHECK(body_of(client.read_to_end()) == "data: 1\n\n");
}

TEST_CASE("http/server: a silent stream gets pings") {
  Inbox inbox;
  auto server = open_server(inbox.handler(), {.ping_interval = 20ms});
  RawClient client(server->port());
  client.send(kGet);
  auto item = inbox.pop();
  item.out.start_stream();
  client.read_through("\r\n\r\n");
  CHECK(client.read_through("\n\n\r\n") == "8\r\n: ping\n\n\r\n");
  CHECK(client.read_through("\n\n\r\n") == "8\r\n: ping\n\n\r\n");
}

TEST_CASE("http/server: a stream that is no event stream is not pinged") {
  Inbox inbox;
  auto server = open_server(inbox.handler(), {.ping_interval = 5ms});
  RawClient pinged(server->port()), plain(server->port());
  plain.send(kGet);
  auto item = inbox.pop();
  item.out.start_stream({{"Content-Type", "text/plain"}});
  pinged.send(kGet);
  auto other = inbox.pop();
  other.out.start_stream();
  for (int i = 0; i < 3; ++i) REQUIRE_FALSE(pinged.read_through(": ping\n\n\r\n").empty());
  CHECK(item.out.send("x") == Code::ok);
  item.out.finish();
  CHECK(body_of(plain.read_through("0\r\n\r\n")) == "1\r\nx\r\n0\r\n\r\n");
}

TEST_CASE("http/server: a client that goes away is reported once, while queued and while streaming") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  for (const bool is_streaming : {false, true})
    for (const bool with_reset : {false, true}) {
      RawClient client(server->port());
      client.send(kGet);
      auto item = inbox.pop();
      Promise<CloseReason> closed;
      item.out.on_close([&](CloseReason reason) { closed.set(reason); });
      if (is_streaming) {
        item.out.start_stream();
        client.read_through("\r\n\r\n");
      }
      if (with_reset)
        client.reset();
      else
        client.close();
      CHECK(closed.get() == CloseReason::client_gone);
      CHECK_FALSE(item.out.is_open());
      CHECK(item.out.send_event("{}") == Code::cancelled);
      item.out.respond({200});
      item.out.finish();
      flush(*server);
      CHECK(closed.times() == 1);
    }
  CHECK(server->stats().streams == 0);
}

TEST_CASE("http/server: on_close after the client has gone is called, after a complete answer not") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  {
    RawClient client(server->port());
    client.send(kGet);
    auto item = inbox.pop();
    client.close();
    REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 0; }));
    Promise<CloseReason> closed;
    item.out.on_close([&](CloseReason reason) { closed.set(reason); });
    CHECK(closed.get() == CloseReason::client_gone);
  }
  {
    RawClient client(server->port());
    client.send(kGet);
    auto item = inbox.pop();
    item.out.respond({200});
    client.read_response();
    Promise<CloseReason> closed;
    item.out.on_close([&](CloseReason reason) { closed.set(reason); });
    client.close();
    REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 0; }));
    CHECK(closed.times() == 0);
  }
}

TEST_CASE("http/server: a request whose responders all vanish is answered 500") {
  auto server = open_server([](Request, Responder) {});
  RawClient client(server->port());
  client.send(kGet);
  CHECK(client.read_response().starts_with("HTTP/1.1 500 "));
}

TEST_CASE("http/server: a stream whose responders all vanish is cut, not ended") {
  auto server = open_server([](Request, Responder out) { out.start_stream(); });
  RawClient client(server->port());
  client.send(kGet);
  const std::string all = client.read_to_end();
  CHECK(all.starts_with("HTTP/1.1 200 "));
  CHECK_FALSE(all.ends_with("0\r\n\r\n"));
}

TEST_CASE("http/server: a reader too slow for its stream is closed, its handler told, others unharmed") {
  Inbox inbox;
  auto server = open_server(inbox.handler(), {.queue_bytes_max = 256 << 10});
  RawClient slow(server->port(), 4096), other(server->port());
  slow.send(kGet);
  auto item = inbox.pop();
  Promise<CloseReason> closed;
  item.out.on_close([&](CloseReason reason) { closed.set(reason); });
  item.out.start_stream();
  const std::string event(8000, 'x');
  Code code = Code::ok;
  size_t sent = 0;
  while (code == Code::ok && sent < (size_t{64} << 20)) {
    code = item.out.send_event(event);
    sent += event.size();
    if (sent % (32 * 8000) == 0) flush(*server);  // a producer that is not faster than the loop
  }
  CHECK(code == Code::busy);
  CHECK(closed.get() == CloseReason::slow_reader);
  CHECK(item.out.send_event(event) == Code::busy);
  other.send(kGet);
  inbox.pop().out.respond({200});
  CHECK(other.read_response().starts_with("HTTP/1.1 200 "));
}

TEST_CASE("http/server: a reader that takes nothing for too long is closed") {
  Inbox inbox;
  auto server = open_server(inbox.handler(), {.write_timeout = 50ms});
  RawClient slow(server->port(), 4096);
  slow.send(kGet);
  auto item = inbox.pop();
  item.out.respond({200, {}, std::string(16 << 20, 'x')});  // one answer may exceed the stream's bound
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.closed_for(CloseReason::slow_reader) == 1; }));
}

TEST_CASE("http/server: answers from several threads arrive whole and in order") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->send(kGet);
    threads.emplace_back([item = inbox.pop()] {
      item.out.start_stream();
      for (int i = 0; i < 1000; ++i) (void)item.out.send_event(std::to_string(i));
      item.out.finish();
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& client : clients) {
    const std::string all = client->read_through("0\r\n\r\n");
    size_t at = 0;
    for (int i = 0; i < 1000 && at != std::string::npos; ++i) at = all.find("data: " + std::to_string(i) + "\n\n", at);
    CHECK(at != std::string::npos);
  }
}

TEST_CASE("http/server: two thousand idle streams live on one thread and all get the next event") {
  const int count = files_allowed(4200) ? 2000 : 400;  // both ends are in this process
  Inbox inbox;
  auto server = open_server(inbox.handler());
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<Responder> streams;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->send(kGet);
    streams.push_back(inbox.pop().out);
    streams.back().start_stream();
  }
  for (auto& client : clients) REQUIRE(client->read_through("\r\n\r\n").starts_with("HTTP/1.1 200"));
  CHECK(server->stats().streams == static_cast<size_t>(count));
  for (auto& stream : streams) CHECK(stream.send_event("{}") == Code::ok);
  for (auto& client : clients) REQUIRE(client->read_through("{}\n\n\r\n") == "a\r\ndata: {}\n\n\r\n");
  clients.clear();
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.connections == 0; }));
}

TEST_CASE("http/server: draining closes idle connections, lets an answer finish, then refuses connections") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient idle(server->port()), busy(server->port());
  busy.send(kGet);
  auto item = inbox.pop();
  CHECK_FALSE(server->drain(0ms));  // the busy one is left
  CHECK(idle.read_to_end().empty());
  std::thread worker([&] { item.out.respond({200, {}, "late"}); });
  CHECK(server->drain(test::kPatience));
  worker.join();
  const std::string response = busy.read_to_end();
  CHECK(contains(response, "\r\nConnection: close\r\n"));
  CHECK(body_of(response) == "late");
}

TEST_CASE("http/server: stopping reports every open answer and leaves responders harmless") {
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient client(server->port());
  client.send(kGet);
  auto item = inbox.pop();
  Promise<CloseReason> closed;
  item.out.on_close([&](CloseReason reason) { closed.set(reason); });
  server->stop();
  CHECK(closed.get() == CloseReason::shutdown);
  server.reset();
  CHECK_FALSE(item.out.is_open());
  CHECK(item.out.send_event("{}") == Code::cancelled);
  item.out.respond({200});
  item.out.on_close([&](CloseReason reason) { closed.set(reason); });
  CHECK(closed.times() == 2);
}

TEST_CASE("http/server: a port in use is named with the next step; only a default port moves on") {
  auto server = open_server(echo);
  const auto refused = Server::open({.port = server->port()}, echo);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().mc == err::kPortInUse);
  CHECK(contains(refused.error().what, "127.0.0.1:" + std::to_string(server->port()) + " is in use"));
  const auto moved = Server::open({.port = server->port(), .port_tries = 100}, echo);
  REQUIRE_OK(moved);
  CHECK((*moved)->port() > server->port());
  CHECK((*moved)->port() <= server->port() + 99);
}

TEST_CASE("http/server: an address that is none, or not ours, is named") {
  const auto bad = Server::open({.address = "nowhere.example"}, echo);
  REQUIRE_FALSE(bad);
  CHECK(contains(bad.error().what, "\"nowhere.example\" is not an IP address"));
  const auto foreign = Server::open({.address = "192.0.2.1"}, echo);
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().mc == err::kCannotListen);
  CHECK(contains(foreign.error().what, "192.0.2.1"));
}

TEST_CASE("http/server: no socket of ours survives exec in a child") {
  // Through /proc: touching descriptors of the server's thread would be a race.
  const auto open_sockets = [] {
    std::set<std::string> sockets;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      if (std::filesystem::read_symlink(entry, error).string().starts_with("socket:"))
        sockets.insert(entry.path().filename().string());
    return sockets;
  };
  const std::set<std::string> before = open_sockets();
  Inbox inbox;
  auto server = open_server(inbox.handler());
  auto client = Client::open(server->url());
  REQUIRE_OK(client);
  (*client)->start({}, {.done = [](ClientOutcome&&) {}});
  std::thread other([&] { inbox.pop().out.respond({200}); });
  CHECK((*client)->run(test::patience()));
  other.join();
  int ours = 0;
  for (const std::string& fd : open_sockets()) {
    if (before.contains(fd)) continue;
    ++ours;
    std::ifstream info("/proc/self/fdinfo/" + fd);
    std::string key, flags;
    while (info >> key && key != "flags:") continue;
    info >> flags;
    CHECK((std::stoul(flags, nullptr, 8) & O_CLOEXEC) != 0);
  }
  CHECK(ours == 3);  // listener and both ends
}

TEST_CASE("http/server: connections, answers and reasons are counted in metrics") {
  Metrics metrics;
  auto server = open_server(echo, {.metrics = &metrics});
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  client.read_to_end();
  REQUIRE(eventually(*server, [](const ServerStats& s) { return s.closed_for(CloseReason::done) == 1; }));
  CHECK(metrics.counter(metric::kHttpResponses, {"2xx"}).value() == 1);
  CHECK(metrics.counter(metric::kHttpClosed, {"done"}).value() == 1);
}

}  // namespace server_test

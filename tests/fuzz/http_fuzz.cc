// links: http
// The first byte picks a parser, the second how the rest is cut into pieces. Limits must hold, and
// the pieces must not change what is read.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fuzz_target.h"
#include "http/openai.h"
#include "http/parser.h"
#include "http/route.h"

namespace mc::http_fuzz {
namespace {

using namespace mc::http;

constexpr ParserLimits kLimits{.header_bytes = 300, .body_bytes = 200};

/// The result of a request parser that reads the bytes in pieces of `piece`.
std::string read_request(std::string_view bytes, size_t piece) {
  RequestParser parser(kLimits);
  size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view part = bytes.substr(at, piece);
    const size_t used = parser.feed(part);
    if (used > part.size() || parser.body_bytes() > kLimits.body_bytes) std::abort();
    at += used;
    if (used < part.size()) break;
  }
  if (parser.state() == RequestParser::State::failed) return "failed";
  if (parser.state() != RequestParser::State::done) return "open";
  const Request request = parser.take();
  std::string text =
      std::string(to_string(request.method)) + request.target + "\n" + request.path + "\n" + request.body;
  for (const Header& header : request.headers) text += "\n" + header.name + ":" + header.value;
  (void)find_route(conductor_routes(), request.method, request.path);
  return text + "\n" + std::to_string(request.keep_alive);
}

void read_response(std::string_view bytes, size_t piece) {
  ResponseParser parser(kLimits, false);
  SseParser events(500);
  size_t total = 0;
  for (size_t at = 0; at < bytes.size() && !parser.done(); at += piece) {
    const auto used = parser.feed(bytes.substr(at, piece), [&](std::string_view body) {
      total += body.size();
      (void)events.feed(body, [](std::string_view event) {
        if (event.size() > 600) std::abort();
      });
    });
    if (!used) break;
  }
  if (total > bytes.size()) std::abort();
  (void)parser.finish();
}

template <class T>
void answer(const Result<T>& parsed) {
  if (!parsed && error_response(parsed.error()).status < 400) std::abort();
}

}  // namespace

FUZZ_TARGET(http) {
  if (size < 2) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 2), size - 2);
  const size_t piece = 1 + data[1] % 64;
  const ApiLimits limits{.vocab_size = data[1] % 2 ? 1000u : 0u, .has_logit_bias = true, .has_tools = true};
  switch (data[0] % 8) {
    case 0:
    case 1: {
      // A head longer than the limit may be seen to be so earlier or later; everything else is equal.
      const std::string whole = read_request(rest, rest.size()), cut = read_request(rest, piece);
      if (whole != cut && whole != "failed" && cut != "failed") std::abort();
      break;
    }
    case 2: read_response(rest, piece); break;
    case 3: (void)SseParser(100).feed(rest, [](std::string_view) {}); break;
    case 4: answer(parse_completion(rest, {{"x-mc-deadline-ms", std::string(rest.substr(0, 8))}}, limits)); break;
    case 5: answer(parse_chat(rest, {}, limits)); break;
    case 6: answer(parse_tokenize(rest, limits)); break;
    case 7: answer(parse_detokenize(rest, limits)); answer(parse_admin(rest, {}));
  }
  return 0;
}

}  // namespace mc::http_fuzz

// The fence around Beast's HTTP grammar, which reads the heads. An incomplete head is kept in `held` (bounded) and
// parsed again with the bytes that follow. BodyReader delimits bodies, because Beast 1.74 asserts on a final chunk that
// trickles in byte by byte. Some input that Beast accepts is refused here: transfer codings other than chunked, a
// missing or duplicate Host, targets that are not a path.
#include "http/parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <optional>

#include "base/assert.h"
#include "http/body_reader.h"

namespace mc::http {
namespace beast = boost::beast::http;
using boost::beast::error_code;
using BeastView = boost::beast::string_view;

namespace {

std::string_view view(BeastView text) {
  return {text.data(), text.size()};
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

/// The head of a message. Beast stops behind it (eager is off) and never sees the body.
template <bool is_request>
class Head : public beast::basic_parser<is_request> {
 public:
  Headers headers;
  Method method = Method::get;
  std::string target;
  int status = 0;
  bool http11 = true;
  bool bad_coding = false;

  void on_field_impl(beast::field field, BeastView name, BeastView value, error_code&) override {
    if (field == beast::field::transfer_encoding && !iequals(view(value), "chunked")) bad_coding = true;
    headers.push_back({lower_case(view(name)), std::string(view(value))});
  }
  void on_request_impl(beast::verb, BeastView method_text, BeastView target_text, int version, error_code&) override {
    http11 = version >= 11;
    method = method_of(view(method_text));
    target = std::string(view(target_text));
  }
  void on_response_impl(int code, BeastView, int, error_code&) override { status = code; }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(BeastView, error_code&) override { return 0; }
  void on_chunk_header_impl(std::uint64_t, BeastView, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView, error_code&) override { return 0; }
  void on_finish_impl(error_code&) override {}
};

/// Feeds the held bytes and then `bytes` until the head is complete. Returns the number of `bytes` used.
template <class Parser>
size_t put_head(Parser& parser, std::string& held, std::string_view bytes, error_code& error) {
  std::string_view rest = bytes;
  if (!held.empty()) rest = held.append(bytes);
  while (!rest.empty() && !parser.is_header_done()) {
    rest.remove_prefix(parser.put(boost::asio::const_buffer(rest.data(), rest.size()), error));
    if (error) break;
  }
  if (error == beast::error::need_more) error = {};
  if (error) return bytes.size();
  if (parser.is_header_done()) {
    MC_ASSERT_LE(rest.size(), bytes.size());  // the end of the head lies in the new bytes
    const size_t left = rest.size();
    held.clear();
    return bytes.size() - left;
  }
  if (held.empty())
    held.assign(rest);
  else
    held.erase(0, held.size() - rest.size());
  return bytes.size();
}

template <class Parser>
BodyReader body_reader(const Parser& parser, bool has_body, const ParserLimits& limits) {
  using Kind = BodyReader::Kind;
  if (!has_body) return {Kind::none, 0, limits};
  if (parser.chunked()) return {Kind::chunked, 0, limits};
  if (const auto length = parser.content_length()) return {Kind::length, *length, limits};
  return {parser.need_eof() ? Kind::until_close : Kind::none, 0, limits};
}

}  // namespace

struct RequestParser::Grammar {
  explicit Grammar(const ParserLimits& given) : limits(given) {
    head.header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    head.body_limit(limits.body_bytes);
  }
  void fail(err::Number number, std::string_view message) {
    state = State::failed;
    failure = error_response(number, message);
  }
  void fail(const error_code& error);
  void fail(BodyReader::Fault fault);
  void fail_too_long();
  void fail_too_large();
  /// Makes the checks that Beast does not make. True if the head is acceptable.
  bool check_head();

  ParserLimits limits;
  Head<true> head;
  std::string held;
  BodyReader reader;
  State state = State::empty;
  bool expect_continue = false;
  std::string path;
  std::string body;
  Response failure;
};

void RequestParser::Grammar::fail_too_long() {
  fail(err::kHeaderTooLarge, "request head or chunk header exceeds " + std::to_string(limits.header_bytes) + " bytes");
}

void RequestParser::Grammar::fail_too_large() {
  fail(err::kBodyTooLarge, "request body exceeds " + std::to_string(limits.body_bytes) + " bytes");
}

void RequestParser::Grammar::fail(const error_code& error) {
  if (error == beast::error::header_limit) return fail_too_long();
  if (error == beast::error::body_limit) return fail_too_large();
  fail(err::kBadRequest, "malformed HTTP request: " + error.message());
}

void RequestParser::Grammar::fail(BodyReader::Fault fault) {
  if (fault == BodyReader::Fault::line_too_long) return fail_too_long();
  if (fault == BodyReader::Fault::too_large) return fail_too_large();
  fail(err::kBadRequest, "malformed HTTP request: bad chunk");
}

bool RequestParser::Grammar::check_head() {
  const auto malformed = [&](std::string what) {
    fail(err::kBadRequest, "malformed HTTP request: " + std::move(what));
    return false;
  };
  if (head.bad_coding) return malformed("the only transfer coding is chunked");
  const auto hosts =
      std::count_if(head.headers.begin(), head.headers.end(), [](const Header& h) { return h.name == "host"; });
  if (hosts > 1 || (hosts == 0 && head.http11)) return malformed("exactly one Host header is needed");
  const std::string_view target = head.target;
  if (target.empty() || (target[0] != '/' && !(target == "*" && head.method == Method::options)))
    return malformed("the target must be a path");
  auto decoded = decode_path(target.substr(0, target.find('?')));
  if (!decoded) return malformed(decoded.error().what);
  path = std::move(*decoded);
  return true;
}

RequestParser::RequestParser(const ParserLimits& limits) : grammar_(std::make_unique<Grammar>(limits)) {}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

size_t RequestParser::feed(std::string_view bytes) {
  Grammar& g = *grammar_;
  if (g.state == State::done || g.state == State::failed || bytes.empty()) return 0;
  size_t used = 0;
  // RFC 9112 2.2: empty lines before a request are ignored (old clients end a body with one).
  if (g.state == State::empty)
    while (used < bytes.size() && (bytes[used] == '\r' || bytes[used] == '\n')) ++used;
  if (used == bytes.size()) return used;
  if (g.state != State::body) {
    g.state = State::head;
    error_code error;
    used += put_head(g.head, g.held, bytes.substr(used), error);
    if (error) {
      g.fail(error);
      return used;
    }
    if (!g.head.is_header_done() || !g.check_head()) return used;
    g.reader = body_reader(g.head, true, g.limits);
    g.state = State::body;
    g.expect_continue = !g.reader.is_done() && iequals(find_header(g.head.headers, "expect"), "100-continue");
  }
  used += g.reader.feed(bytes.substr(used),
                        [&](std::string_view piece) { append_body(g.body, piece, g.reader.left()); });
  if (g.reader.fault() != BodyReader::Fault::none)
    g.fail(g.reader.fault());
  else if (g.reader.is_done())
    g.state = State::done;
  if (g.state != State::body || !g.body.empty()) g.expect_continue = false;
  return used;
}

RequestParser::State RequestParser::state() const {
  return grammar_->state;
}
bool RequestParser::take_expect_continue() {
  return std::exchange(grammar_->expect_continue, false);
}
std::string_view RequestParser::header(std::string_view name) const {
  return find_header(grammar_->head.headers, name);
}
Request RequestParser::head() const {
  const Grammar& g = *grammar_;
  MC_ASSERT(g.state == State::body || g.state == State::done);
  Request request;
  request.method = g.head.method;
  request.target = g.head.target;
  request.path = g.path;
  request.headers = g.head.headers;
  request.keep_alive = g.head.keep_alive();
  request.http11 = g.head.http11;
  return request;
}
size_t RequestParser::body_bytes() const {
  return grammar_->body.size();
}
size_t RequestParser::body_memory() const {
  return grammar_->body.empty() ? 0 : grammar_->body.capacity();
}
const Response& RequestParser::failure() const {
  return grammar_->failure;
}

Request RequestParser::take() {
  Grammar& g = *grammar_;
  MC_ASSERT(g.state == State::done);
  Request request;
  request.method = g.head.method;
  request.target = std::move(g.head.target);
  request.path = std::move(g.path);
  if (const size_t mark = request.target.find('?'); mark != std::string::npos)
    request.query = request.target.substr(mark + 1);
  request.headers = std::move(g.head.headers);
  request.body = std::move(g.body);
  request.keep_alive = g.head.keep_alive();
  request.http11 = g.head.http11;
  return request;
}

struct ResponseParser::Grammar {
  Grammar(const ParserLimits& given, bool head_only_given) : limits(given), head_only(head_only_given) { restart(); }
  void restart() {
    parser.emplace();
    parser->header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    parser->body_limit(limits.body_bytes);
    if (head_only) parser->skip(true);
  }

  ParserLimits limits;
  bool head_only;
  std::optional<Head<false>> parser;
  std::string held;
  BodyReader reader;
  bool started = false;
  bool head_done = false;
  ResponseHead head;
};

ResponseParser::ResponseParser(const ParserLimits& limits, bool head_only)
    : grammar_(std::make_unique<Grammar>(limits, head_only)) {}
ResponseParser::~ResponseParser() = default;
ResponseParser::ResponseParser(ResponseParser&&) noexcept = default;
ResponseParser& ResponseParser::operator=(ResponseParser&&) noexcept = default;

Result<size_t> ResponseParser::feed(std::string_view bytes, const BodySink& body) {
  Grammar& g = *grammar_;
  size_t used = 0;
  while (used < bytes.size() && !g.head_done) {
    g.started = true;
    error_code error;
    used += put_head(*g.parser, g.held, bytes.substr(used), error);
    if (error) return {Code::invalid, "http: malformed response: " + error.message()};
    if (!g.parser->is_header_done()) return used;
    if (g.parser->status / 100 == 1) {
      if (g.parser->status == 101) return {Code::invalid, "http: the server switched protocols unasked"};
      g.restart();
      continue;
    }
    if (g.parser->bad_coding) return {Code::invalid, "http: the response uses a transfer coding other than chunked"};
    g.head_done = true;
    g.head = {g.parser->status, std::move(g.parser->headers), g.parser->keep_alive()};
    const bool has_body = !g.head_only && g.head.status != 204 && g.head.status != 304;
    g.reader = body_reader(*g.parser, has_body, g.limits);
  }
  used += g.reader.feed(bytes.substr(used), body);
  if (g.reader.fault() != BodyReader::Fault::none)
    return {Code::invalid, "http: malformed response: bad chunk, or more than the limit"};
  return used;
}

Result<void> ResponseParser::finish() {
  Grammar& g = *grammar_;
  if (done()) return {};
  if (!g.head_done) return {Code::peer_lost, "http: the server closed before a complete response head"};
  if (g.reader.kind() == BodyReader::Kind::until_close) return {};
  return {Code::peer_lost, "http: the server closed in the middle of the response body"};
}

bool ResponseParser::started() const {
  return grammar_->started;
}
bool ResponseParser::head_done() const {
  return grammar_->head_done;
}
bool ResponseParser::done() const {
  return grammar_->head_done && grammar_->reader.is_done();
}
uint64_t ResponseParser::body_left() const {
  return grammar_->reader.left();
}
const ResponseHead& ResponseParser::head() const {
  return grammar_->head;
}

}  // namespace mc::http

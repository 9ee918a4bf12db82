// The fence around Beast's HTTP grammar. Beast wants an incomplete line or head again together with
// the bytes that follow, so what it leaves is kept in `held` (bounded by the header limit).
// A few things Beast lets pass are refused here: transfer codings other than chunked, a missing or
// doubled Host, targets that are not a path.
#include "http/parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <optional>

#include "base/assert.h"

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

/// What both directions share: fields, and body bytes appended to `body` (the owner empties it).
template <bool is_request>
class Base : public beast::basic_parser<is_request> {
 public:
  Headers headers;
  std::string body;
  bool bad_coding = false;

  void on_field_impl(beast::field field, BeastView name, BeastView value, error_code&) override {
    if (this->is_header_done()) return;  // a trailer
    if (field == beast::field::transfer_encoding && !iequals(view(value), "chunked")) bad_coding = true;
    headers.push_back({lower_case(view(name)), std::string(view(value))});
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(BeastView bytes, error_code&) override {
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t, BeastView, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView bytes, error_code&) override {
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_finish_impl(error_code&) override {}
  void on_request_impl(beast::verb, BeastView method_text, BeastView target_text, int version, error_code&) override {
    http11 = version >= 11;
    method = method_of(view(method_text));
    target = std::string(view(target_text));
  }
  void on_response_impl(int code, BeastView, int, error_code&) override { status = code; }

  Method method = Method::get;
  std::string target;
  bool http11 = true;
  int status = 0;
};

/// Feeds `bytes` after what is held; returns how many of `bytes` were used. Stops when complete.
template <class Parser>
size_t put_all(Parser& parser, std::string& held, size_t held_max, std::string_view bytes, error_code& error) {
  std::string_view rest = bytes;
  if (!held.empty()) rest = held.append(bytes);
  const size_t total = rest.size();
  while (!rest.empty() && !parser.is_done()) {
    const size_t used = parser.put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    rest.remove_prefix(used);
    if (error && error != beast::error::need_more) return bytes.size();
    if (error == beast::error::need_more && used == 0) break;
  }
  error = {};
  if (parser.is_done()) {
    MC_ASSERT_LE(rest.size(), bytes.size());  // the end of the message lies in the new bytes
    const size_t left = rest.size();
    held.clear();
    return bytes.size() - left;
  }
  if (rest.size() > held_max) {
    error = beast::error::header_limit;
    return bytes.size();
  }
  if (held.empty())
    held.assign(rest);
  else
    held.erase(0, total - rest.size());
  return bytes.size();
}

}  // namespace

struct RequestParser::Grammar {
  explicit Grammar(const ParserLimits& given) : limits(given) {
    parser.eager(true);
    parser.header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    parser.body_limit(limits.body_bytes);
  }
  void fail(err::Number number, std::string_view message) {
    state = State::failed;
    failure = error_response(number, message);
  }
  void fail(const error_code& error);
  /// Checks what Beast does not; true if the head is acceptable.
  bool check_head();

  ParserLimits limits;
  Base<true> parser;
  std::string held;
  State state = State::empty;
  bool head_checked = false;
  bool expect_continue = false;
  std::string path;
  Response failure;
};

void RequestParser::Grammar::fail(const error_code& error) {
  if (error == beast::error::header_limit)
    return fail(err::kHeaderTooLarge,
                "request head or chunk header exceeds " + std::to_string(limits.header_bytes) + " bytes");
  if (error == beast::error::body_limit)
    return fail(err::kBodyTooLarge, "request body exceeds " + std::to_string(limits.body_bytes) + " bytes");
  fail(err::kBadRequest, "malformed HTTP request: " + error.message());
}

bool RequestParser::Grammar::check_head() {
  head_checked = true;
  if (parser.bad_coding) {
    fail(err::kBadRequest, "transfer coding is not supported: only chunked");
    return false;
  }
  const auto hosts =
      std::count_if(parser.headers.begin(), parser.headers.end(), [](const Header& h) { return h.name == "host"; });
  if (hosts > 1 || (hosts == 0 && parser.http11)) {
    fail(err::kBadRequest, "malformed HTTP request: exactly one Host header is needed");
    return false;
  }
  const std::string_view target = parser.target;
  if (target.empty() || (target[0] != '/' && !(target == "*" && parser.method == Method::options))) {
    fail(err::kBadRequest, "malformed HTTP request: the target must be a path");
    return false;
  }
  auto decoded = decode_path(target.substr(0, target.find('?')));
  if (!decoded) {
    fail(err::kBadRequest, "malformed HTTP request: " + decoded.error().what);
    return false;
  }
  path = std::move(*decoded);
  expect_continue = !parser.is_done() && iequals(find_header(parser.headers, "expect"), "100-continue");
  return true;
}

RequestParser::RequestParser(const ParserLimits& limits) : grammar_(std::make_unique<Grammar>(limits)) {}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

size_t RequestParser::feed(std::string_view bytes) {
  Grammar& g = *grammar_;
  if (g.state == State::done || g.state == State::failed || bytes.empty()) return 0;
  size_t skipped = 0;
  // RFC 9112 2.2: empty lines before a request are ignored (old clients end a body with one).
  if (g.state == State::empty)
    while (skipped < bytes.size() && (bytes[skipped] == '\r' || bytes[skipped] == '\n')) ++skipped;
  if (skipped == bytes.size()) return skipped;
  error_code error;
  const size_t used = skipped + put_all(g.parser, g.held, g.limits.header_bytes, bytes.substr(skipped), error);
  g.state = State::head;
  if (error) {
    g.fail(error);
    return used;
  }
  if (g.parser.is_header_done()) {
    if (!g.head_checked && !g.check_head()) return used;
    g.state = g.parser.is_done() ? State::done : State::body;
    if (g.state == State::done) g.expect_continue = false;
  }
  return used;
}

RequestParser::State RequestParser::state() const {
  return grammar_->state;
}
bool RequestParser::take_expect_continue() {
  return std::exchange(grammar_->expect_continue, false);
}
size_t RequestParser::body_bytes() const {
  return grammar_->parser.body.size();
}
const Response& RequestParser::failure() const {
  return grammar_->failure;
}

Request RequestParser::take() {
  Grammar& g = *grammar_;
  MC_ASSERT(g.state == State::done);
  Request request;
  request.method = g.parser.method;
  request.target = std::move(g.parser.target);
  request.path = std::move(g.path);
  if (const size_t mark = request.target.find('?'); mark != std::string::npos)
    request.query = request.target.substr(mark + 1);
  request.headers = std::move(g.parser.headers);
  request.body = std::move(g.parser.body);
  request.keep_alive = g.parser.keep_alive();
  request.http11 = g.parser.http11;
  return request;
}

struct ResponseParser::Grammar {
  Grammar(const ParserLimits& given, bool head_only_given) : limits(given), head_only(head_only_given) { restart(); }
  void restart() {
    parser.emplace();
    parser->eager(true);
    parser->header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    parser->body_limit(limits.body_bytes);
    if (head_only) parser->skip(true);
  }

  ParserLimits limits;
  bool head_only;
  std::optional<Base<false>> parser;
  std::string held;
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
  size_t taken = 0;
  while (taken < bytes.size() && !done()) {
    g.started = true;
    error_code error;
    taken += put_all(*g.parser, g.held, g.limits.header_bytes, bytes.substr(taken), error);
    if (error) return {Code::invalid, "http: malformed response: " + error.message()};
    if (g.parser->is_header_done() && !g.head_done) {
      if (g.parser->status / 100 == 1) {
        if (g.parser->status == 101) return {Code::invalid, "http: the server switched protocols unasked"};
        g.restart();
        continue;
      }
      if (g.parser->bad_coding) return {Code::invalid, "http: the response uses a transfer coding other than chunked"};
      g.head_done = true;
      g.head = {g.parser->status, std::move(g.parser->headers), g.parser->keep_alive()};
    }
    if (!g.parser->body.empty()) {
      body(g.parser->body);
      g.parser->body.clear();
    }
  }
  return taken;
}

Result<void> ResponseParser::finish() {
  Grammar& g = *grammar_;
  if (done()) return {};
  if (!g.head_done) return {Code::peer_lost, "http: the server closed before a complete response head"};
  error_code error;
  g.parser->put_eof(error);
  if (error) return {Code::peer_lost, "http: the server closed in the middle of the response body"};
  return {};
}

bool ResponseParser::started() const {
  return grammar_->started;
}
bool ResponseParser::head_done() const {
  return grammar_->head_done;
}
bool ResponseParser::done() const {
  return grammar_->head_done && grammar_->parser->is_done();
}
const ResponseHead& ResponseParser::head() const {
  return grammar_->head;
}

Result<void> SseParser::feed(std::string_view bytes, const EventSink& event) {
  while (!bytes.empty()) {
    if (std::exchange(skip_lf_, false) && bytes[0] == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      line_ += bytes;
      bytes = {};
    } else {
      skip_lf_ = bytes[end] == '\r';
      if (line_.empty()) {
        take_line(bytes.substr(0, end), event);
      } else {
        line_ += bytes.substr(0, end);
        take_line(line_, event);
        line_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
    if (line_.size() + data_.size() > event_bytes_max_)
      return {Code::invalid, "sse: one event exceeds " + std::to_string(event_bytes_max_) + " bytes"};
  }
  return {};
}

void SseParser::take_line(std::string_view line, const EventSink& event) {
  if (line.empty()) {
    if (std::exchange(has_data_, false)) event(data_);
    data_.clear();
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;  // a comment starts with the colon
  std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += value;
}

}  // namespace mc::http

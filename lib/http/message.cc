#include "http/message.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <utility>

#include "base/assert.h"
#include "base/json.h"

namespace mc::http {
namespace {

constexpr std::array<std::string_view, 8> kMethods = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "?"};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void append_number(std::string& out, size_t value, int base = 10) {
  char text[24];
  out.append(text, static_cast<size_t>(std::to_chars(text, text + sizeof text, value, base).ptr - text));
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) out += static_cast<uint8_t>(c) < 0x20 || c == 0x7f ? ' ' : c;
  out += "\r\n";
}

}  // namespace

std::string_view to_string(Method method) {
  return kMethods[static_cast<size_t>(method)];
}

Method method_of(std::string_view text) {
  const auto at = std::find(kMethods.begin(), kMethods.end() - 1, text);
  return static_cast<Method>(at - kMethods.begin());
}

bool iequals(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view find_header(const Headers& headers, std::string_view name, std::string_view fallback) {
  for (const Header& header : headers)
    if (iequals(header.name, name)) return header.value;
  return fallback;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 507: return "Insufficient Storage";
  }
  return "Status";
}

Result<std::string> decode_path(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      out += path[i];
      continue;
    }
    const int high = i + 2 < path.size() ? hex_digit(path[i + 1]) : -1;
    const int low = i + 2 < path.size() ? hex_digit(path[i + 2]) : -1;
    if (high < 0 || low < 0 || high + low == 0)
      return {Code::invalid, "path: bad percent escape at byte " + std::to_string(i)};
    out += static_cast<char>(high << 4 | low);
    i += 2;
  }
  if (const auto bad = find_invalid_utf8(out))
    return {Code::invalid, "path: invalid UTF-8 at byte " + std::to_string(*bad)};
  return out;
}

bool is_sane_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

void append_response_head(std::string& out, int status, const Headers& headers, Framing framing, size_t body_bytes,
                          bool close) {
  MC_ASSERT(status >= 100 && status <= 599);
  out += "HTTP/1.1 ";
  append_number(out, static_cast<size_t>(status));
  out += ' ';
  out += reason_phrase(status);
  out += "\r\n";
  for (const Header& header : headers) append_header(out, header.name, header.value);
  if (framing == Framing::length) {
    out += "Content-Length: ";
    append_number(out, body_bytes);
    out += "\r\n";
  } else if (framing == Framing::chunked) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  if (close) out += "Connection: close\r\n";
  out += "\r\n";
}

void append_request_head(std::string& out, Method method, std::string_view target, std::string_view host,
                         const Headers& headers, size_t body_bytes, bool keep_alive) {
  out += to_string(method);
  out += ' ';
  out += target;
  out += " HTTP/1.1\r\n";
  append_header(out, "Host", host);
  for (const Header& header : headers) append_header(out, header.name, header.value);
  if (body_bytes > 0 || method == Method::post || method == Method::put) {
    out += "Content-Length: ";
    append_number(out, body_bytes);
    out += "\r\n";
  }
  if (!keep_alive) out += "Connection: close\r\n";
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view bytes) {
  MC_ASSERT(!bytes.empty());
  append_number(out, bytes.size(), 16);
  out += "\r\n";
  out += bytes;
  out += "\r\n";
}

void append_sse_data(std::string& out, std::string_view json) {
  out += "data: ";
  out += json;
  out += "\n\n";
}

Headers sse_headers() {
  return {
      {"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
}

namespace {

/// `mc`: the number, which `mc-cache help` explains; 0: the error has none.
std::string error_json(int mc, std::string_view message, std::string_view type, std::string_view param,
                       std::string_view code, std::string_view next = {}) {
  Json error = Json::object(
      {{"message", message}, {"type", type}, {"param", param.empty() ? Json() : Json(param)}, {"code", code}});
  if (mc != 0) error.set("number", "MC" + std::to_string(mc));
  if (!next.empty()) error.set("next", next);
  return Json::object({{"error", std::move(error)}}).dump();
}

}  // namespace

std::string error_body(err::Number number, std::string_view message, std::string_view param) {
  const ErrorInfo* info = find_error(number);
  MC_ASSERT(info != nullptr);
  return error_json(number, message, info->openai_type, param, info->openai_code);
}

Response error_response(err::Number number, std::string_view message, std::string_view param) {
  const ErrorInfo* info = find_error(number);
  MC_ASSERT(info != nullptr && info->http_status != 0);
  return {info->http_status, {{"Content-Type", "application/json"}}, error_body(number, message, param)};
}

namespace {
std::string error_body(const Error& error, std::string_view next) {
  const ErrorInfo* info = find_error(error.mc);
  const bool is_about_field = error.mc == err::kInvalidField || error.mc == err::kUnsupportedField ||
                              error.mc == err::kContextLength || error.mc == err::kModelNotFound ||
                              error.mc == err::kInputNotUtf8 || error.mc == err::kSchemaUnsupported;
  std::string_view type = http_status_of(error) >= 500 ? "server_error" : "invalid_request_error";
  std::string_view code = to_string(error.code);
  if (info != nullptr && !info->openai_type.empty()) type = info->openai_type, code = info->openai_code;
  return error_json(error.mc, error.what, type, is_about_field ? std::string_view(error.where) : std::string_view(),
                    code, next);
}
}  // namespace

std::string error_body(const Error& error) {
  return error_body(error, "");
}

Response error_response(const Error& error) {
  return {http_status_of(error), {{"Content-Type", "application/json"}}, error_body(error)};
}

Response operators_error(const Error& error) {
  return {http_status_of(error), {{"Content-Type", "application/json"}}, error_body(error, error.next)};
}

std::string new_request_id() {
  static std::atomic<uint64_t> last{0};
  const auto clock = static_cast<uint64_t>(SystemClock::instance().unix_ms());
  // Relaxed, because only the growth of the value matters.
  uint64_t before = last.load(std::memory_order_relaxed), order;
  do {
    order = std::max(before + 1, clock);
  } while (!last.compare_exchange_weak(before, order, std::memory_order_relaxed));
  // A system call for each id would cost a twentieth of a small request.
  struct Pool {
    std::array<uint64_t, 32> words;  // 256 bytes, which getrandom(2) always gives whole
    size_t used = 32;
  };
  thread_local Pool pool;
  if (pool.used == pool.words.size()) {
    const ssize_t got = ::getrandom(pool.words.data(), sizeof pool.words, 0);
    MC_ASSERT_EQ(got, static_cast<ssize_t>(sizeof pool.words));
    pool.used = 0;
  }
  std::string id = "req_";
  id.reserve(4 + 28);
  const auto append = [&](uint64_t word, int digits) {
    static constexpr char kDigits[] = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
    for (int digit = digits - 1; digit >= 0; --digit) id += kDigits[word >> (6 * digit) & 63];
  };
  append(order, 6);
  for (int i = 0; i < 2; ++i) append(std::exchange(pool.words[pool.used++], 0), 11);  // 11 digits hold 64 bits
  return id;
}

}  // namespace mc::http

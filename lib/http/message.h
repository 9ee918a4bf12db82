// HTTP/1.1 messages as plain values: the requests and responses of server and client, and the exact bytes of heads,
// chunks and server-sent events. This file uses no sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/result.h"

namespace mc::http {

enum class Method : uint8_t { get, head, post, put, del, options, patch, other };
std::string_view to_string(Method method);
Method method_of(std::string_view text);

struct Header {
  std::string name;
  std::string value;
  bool operator==(const Header&) const = default;
};
using Headers = std::vector<Header>;

/// Value of the first header of this name (compared without case), or the fallback.
std::string_view find_header(const Headers& headers, std::string_view name, std::string_view fallback = {});
bool iequals(std::string_view a, std::string_view b);

/// One request, complete with its body.
struct Request {
  Method method = Method::get;
  std::string target;  // as sent: "/v1/models/a%2Fb?x=1"
  std::string path;    // percent-decoded, without the query: "/v1/models/a/b"
  std::string query;   // raw, without '?'
  Headers headers;     // names in lower case, values trimmed
  std::string body;
  bool keep_alive = true;
  bool http11 = true;  // false: HTTP/1.0, which has no chunked coding
  std::string id;      // unique id of the server: see new_request_id
  // the x-request-id of the answer: the client's when it is sane, otherwise `id`
  std::string request_id;
  std::string peer;          // "127.0.0.1:51234"
  bool over_socket = false;  // the request came over a Unix socket, so its sender is this process's user or root
  TimePoint received{};      // the time at which its first byte was read
};

/// An answer that fits one buffer.
struct Response {
  int status = 200;
  Headers headers;
  std::string body;
  size_t get_bytes = 0;  // Content-Length of an answer to HEAD whose body was left empty: the body that GET would have
  std::shared_ptr<const void> held = {};  // let go once the client has taken the whole answer, or is gone
  std::string_view lent = {};  // rest of the body, behind `body`: sent without a copy, so `held` keeps it alive
};

/// The reason phrase: "Not Found" for 404; "Status" for codes outside the table.
std::string_view reason_phrase(int status);
/// Decodes %XX. Code::invalid for a bad escape, an encoded NUL or a path that is not UTF-8.
Result<std::string> decode_path(std::string_view path);
/// Whether the id has 1 to 128 visible ASCII characters, so that it is safe in a header, a log line and a file name.
bool is_sane_request_id(std::string_view id);

/// How the body of a response is delimited.
enum class Framing : uint8_t { length, chunked, until_close, none };

/// Appends the status line and headers. Control characters in values become spaces, so a value can never start a new
/// header. Adds Content-Length or Transfer-Encoding and, if the connection closes, Connection.
void append_response_head(std::string& out, int status, const Headers& headers, Framing framing, size_t body_bytes,
                          bool close);
void append_request_head(std::string& out, Method method, std::string_view target, std::string_view host,
                         const Headers& headers, size_t body_bytes, bool keep_alive);
/// One chunk of a chunked body; `bytes` must not be empty (an empty chunk ends the body).
void append_chunk(std::string& out, std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// Server-sent events, as OpenAI clients expect them.
inline constexpr std::string_view kSsePing = ": ping\n\n";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
/// "data: <json>\n\n"; `json` has no line breaks.
void append_sse_data(std::string& out, std::string_view json);
/// Content-Type, Cache-Control, X-Accel-Buffering of an event stream.
Headers sse_headers();

// The body of an error in OpenAI's shape, {"error":{message,type,param,code}}, with status, type and code from the
// table of base/errors.h, and with `number`: "MC4001".
std::string error_body(err::Number number, std::string_view message, std::string_view param = {});
Response error_response(err::Number number, std::string_view message, std::string_view param = {});
/// The answer to an error. The error's number selects the status, or its code when it has no number. `param` is the
/// error's `where` if the number is about a field of the request.
Response error_response(const Error& error);
/// The same for the programs of operators: the body has the error's own next step too, as `next`.
Response operators_error(const Error& error);
/// The body of an error inside an event stream.
std::string error_body(const Error& error);

/// "req_" and 28 of the characters -0-9A-Z_a-z, which a notify's 32 bytes hold (wire/notify.h): 36 bits that grow with
/// every call in this process (milliseconds of the wall clock, which wrap after two years) and sort ids by arrival,
/// then 128 bits of the kernel's random numbers, so that a client cannot guess another client's id.
std::string new_request_id();

}  // namespace mc::http

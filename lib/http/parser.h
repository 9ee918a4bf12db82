// Incremental parsers for HTTP/1.1 messages and event streams: bytes in, messages out, without sockets. Every limit is
// enforced while bytes arrive. Framing follows RFC 9112. Input that can be read in two ways (Content-Length next to
// Transfer-Encoding, an unknown coding, bare line feeds) is refused. The grammar is Boost.Beast's, fenced in
// parser.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "http/message.h"

namespace mc::http {

struct ParserLimits {
  size_t header_bytes = size_t{16} << 10;  // request line and all fields; also the header of one chunk
  size_t body_bytes = size_t{16} << 20;
};

/// Reads one request. Each request needs a new parser.
class RequestParser {
 public:
  enum class State : uint8_t { empty, head, body, done, failed };

  explicit RequestParser(const ParserLimits& limits = {});
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  /// Takes bytes until the request is complete or wrong, and returns the number taken. The rest belongs to the next
  /// request.
  size_t feed(std::string_view bytes);
  State state() const;
  /// The client waits for "100 Continue" before it sends the body. True once, when the head is read.
  bool take_expect_continue();
  /// Value of a field of the head, once the head has been read.
  std::string_view header(std::string_view name) const;
  /// The request without its body, as take() gives it later. Valid once the head has been read.
  Request head() const;
  /// Bytes of body held so far.
  size_t body_bytes() const;
  /// Memory that the body takes. It is taken ahead of the bytes, in a few steps.
  size_t body_memory() const;
  /// The request, without peer, request_id and received. Valid when the parser is done.
  Request take();
  /// The answer to send before closing. Valid when the parser has failed.
  const Response& failure() const;

 private:
  struct Grammar;
  std::unique_ptr<Grammar> grammar_;
};

struct ResponseHead {
  int status = 0;
  Headers headers;  // names in lower case
  bool keep_alive = true;
};

/// Reads one response and hands its body on piece by piece. 1xx responses are skipped.
class ResponseParser {
 public:
  /// `head_only`: the response to a HEAD request.
  ResponseParser(const ParserLimits& limits, bool head_only);
  ~ResponseParser();
  ResponseParser(ResponseParser&&) noexcept;
  ResponseParser& operator=(ResponseParser&&) noexcept;

  using BodySink = std::function<void(std::string_view)>;
  /// Takes bytes until the response is complete; the error names the fault. `body` receives the decoded pieces, after
  /// head_done() has become true.
  Result<size_t> feed(std::string_view bytes, const BodySink& body);
  /// Ends the response when the peer has closed. invalid, unless the body ends with the connection.
  Result<void> finish();
  bool started() const;
  bool head_done() const;
  bool done() const;
  /// Bytes still to come of a body whose length was given, else 0. In a sink: with the piece that it gets.
  uint64_t body_left() const;
  const ResponseHead& head() const;

 private:
  struct Grammar;
  std::unique_ptr<Grammar> grammar_;
};

/// Splits an event stream into the `data` of its events. Comments and other fields are skipped;
/// several data lines of one event are joined by line feeds (WHATWG HTML, 9.2.6).
class SseParser {
 public:
  explicit SseParser(size_t event_bytes_max = size_t{4} << 20) : event_bytes_max_(event_bytes_max) {}
  using EventSink = std::function<void(std::string_view data)>;
  /// Code::invalid when one event exceeds the limit.
  Result<void> feed(std::string_view bytes, const EventSink& event);

 private:
  void take_line(std::string_view line, const EventSink& event);

  size_t event_bytes_max_;
  std::string line_;  // the unfinished line
  std::string data_;  // the data of the event that is being read
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last line ended in CR, so a following LF belongs to it
};

}  // namespace mc::http

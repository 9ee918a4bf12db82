// One accepted connection as a state machine without sockets (private to lib/http): bytes in, bytes
// out, deadlines. The loop owns the socket, asks want_read() and unsent(), and calls in on its
// thread only. That keeps the protocol rules testable and the Asio code short.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace mc::http::detail {

/// What a connection needs from its loop.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual TimePoint now() const = 0;
  virtual std::shared_ptr<Outbox> outbox() = 0;
  /// Counts, then gives the request to the handler.
  virtual void dispatch(Request request, Responder responder) = 0;
  enum class Room : uint8_t { taken, none, short_of_memory };
  /// Room for `more` bytes of a body that then has `whole`: none while all bodies together are at their limit.
  virtual Room reserve_body(size_t more, size_t whole) = 0;
  virtual void release_body(size_t bytes) = 0;
  /// The answer to a request that is refused before its body is read.
  virtual std::optional<Response> refuse_head(Request head) = 0;
  virtual void fill_ids(Request& request) = 0;
  virtual bool draining() const = 0;
  virtual void count_response(int status) = 0;
  /// The answer that dispatch() began is complete or given up.
  virtual void end_answer() = 0;
};

/// Base of the loop's connection with a socket (server.cc); close() before it is destroyed.
class Connection {
 public:
  enum class Phase : uint8_t {
    idle,  // kept alive, waiting for the first byte of a request
    head,
    body,
    answering,  // a handler has the request
    flushing,   // the answer is complete but not yet written
    refused,    // an error was written; input is discarded until the client closes
    closed,
  };

  Connection(ConnectionHost& host, const ServerOptions& options, std::string peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Bytes the client sent, the last of them so long ago.
  void on_bytes(std::string_view bytes, Duration age = {});
  /// The client closed its side. It may have closed the other one too: TCP does not say (RFC 9112, 9.6).
  void on_end_of_input();
  /// The socket failed, or the client closed both sides.
  void on_lost();
  /// `count` bytes of unsent() were written.
  void on_written(size_t count);
  /// Applies one command of this connection's current exchange.
  void apply(Command& command);
  /// Timeouts and pings; call a few times a second.
  void on_tick();
  /// Answers with an error and closes (the connection limit is reached).
  void refuse(err::Number number, std::string_view message, CloseReason reason);
  /// An exception said that there is no memory for what it asks: 503 while its request is read, else it ends now.
  void out_of_memory();
  /// Ends it now; reports to the handler if an answer was under way.
  void close(CloseReason reason);

  bool is_closed() const { return phase_ == Phase::closed; }
  bool want_read() const { return !is_closed() && !input_ended_ && ahead_.size() < kAheadMax; }
  std::string_view unsent() const { return std::string_view(out_).substr(out_done_); }
  /// Nothing more will come, and the answer is under way: only an error of the socket says that the client is gone.
  bool want_errors() const { return !is_closed() && input_ended_; }
  /// After the last unsent byte: half-close, then wait for the client's end (refused only).
  bool want_half_close() const { return phase_ == Phase::refused && unsent().empty(); }
  /// Nothing of a request has arrived: closing it costs nobody anything.
  bool is_waiting() const { return phase_ == Phase::idle || (phase_ == Phase::head && !parser_); }
  /// Bytes that come now cannot have come earlier: when the last answer was written, else long ago.
  TimePoint waiting_since() const { return waiting_since_; }
  CloseReason close_reason() const { return reason_; }

 protected:
  ~Connection();

 private:
  static constexpr size_t kAheadMax = size_t{64} << 10;  // of pipelined bytes; then TCP pushes back
  static constexpr size_t kKeepBytes = size_t{4} << 10;  // capacity that an idle connection keeps
  static constexpr Duration kLinger = 2s;
  static constexpr Duration kAskPause = 250ms;  // to the second ask_for_life(), then doubled

  void parse(std::string_view bytes, Duration age = {});
  void begin_body();
  void begin_answer();
  void refuse(const Response& response, CloseReason reason);
  void respond(Response response);
  void start_stream(Headers headers);
  void finish_stream();
  void end_answer();
  void append_head(int status, Headers headers, Framing framing, size_t body_bytes);
  void next_request();
  void ask_for_life();
  void release_link(bool is_lost);

  ConnectionHost& host_;
  const ServerOptions& options_;
  std::string peer_;
  Phase phase_ = Phase::head;
  CloseReason reason_ = CloseReason::done;
  std::unique_ptr<RequestParser> parser_;  // only while a request is read
  TimePoint received_{};
  TimePoint waiting_since_{};
  TimePoint deadline_ = kNever;  // of the phase
  TimePoint late_ = kNever;      // from then on the body comes too late for the request's own deadline
  size_t body_reserved_ = 0;
  bool input_ended_ = false;
  std::string ahead_;  // read but not parsed: the next, pipelined requests
  std::string out_;
  size_t out_done_ = 0;          // of out_ written
  TimePoint progress_{};         // when the client last took a byte, or had nothing to take
  TimePoint last_sent_{};        // when stream bytes were last queued
  TimePoint next_ask_ = kNever;  // of ask_for_life()
  Duration ask_pause_{};

  // The exchange under way.
  std::shared_ptr<Link> link_;
  std::function<void(CloseReason)> on_close_;
  std::string request_id_;
  bool http11_ = true;
  bool head_only_ = false;
  bool close_after_ = false;
  bool streaming_ = false;
  size_t head_begun_ = 0;         // bytes of kStatusLineBegin that went out before the answer was there
  bool is_event_stream_ = false;  // may be pinged
  CloseReason after_flush_ = CloseReason::done;
};

}  // namespace mc::http::detail

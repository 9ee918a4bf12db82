// One accepted connection as a state machine without sockets (private to lib/http): bytes in, bytes out, deadlines.
// The loop owns the socket, checks want_read() and unsent(), and calls the connection on its own thread only. So the
// protocol rules can be tested without sockets, and the Asio code stays short.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace mc::http::detail {

/// The services that a connection needs from its loop.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual TimePoint now() const = 0;
  virtual std::shared_ptr<Outbox> outbox() = 0;
  /// Counts the request and passes it to the handler.
  virtual void dispatch(Request request, Responder responder) = 0;
  enum class Room : uint8_t { taken, none, short_of_memory };
  /// Reserves `more` bytes of memory for a body that then has `whole` bytes. Fails while all bodies together are at
  /// their limit.
  virtual Room reserve_body(size_t more, size_t whole) = 0;
  virtual void release_body(size_t bytes) = 0;
  /// The answer to a request that is refused before its body is read.
  virtual std::optional<Response> refuse_head(Request head) = 0;
  virtual void fill_ids(Request& request) = 0;
  virtual bool draining() const = 0;
  virtual void count_response(int status) = 0;
  /// Called when the answer that dispatch() began is complete or given up.
  virtual void end_answer() = 0;
};

/// The base of the loop's connection with a socket (server.cc). It must be closed before it is destroyed.
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

  /// Takes bytes that the client sent; the last of them arrived `age` ago.
  void on_bytes(std::string_view bytes, Duration age = {});
  /// The client closed its sending side. TCP does not tell whether it closed its receiving side too (RFC 9112, section
  /// 9.6).
  void on_end_of_input();
  /// Called when the socket failed, or the client closed both sides.
  void on_lost();
  /// Called when `count` bytes of unsent() were written.
  void on_written(size_t count);
  /// Applies one command of this connection's current exchange.
  void apply(Command& command);
  /// Applies timeouts and sends pings. The loop calls it a few times a second.
  void on_tick();
  /// Answers with an error and closes (the connection limit is reached).
  void refuse(err::Number number, std::string_view message, CloseReason reason);
  /// Called when memory for the connection's work ran out. While a request is read it is answered 503, otherwise the
  /// connection ends.
  void out_of_memory();
  /// Ends the connection now, and reports to the handler if an answer was under way.
  void close(CloseReason reason);

  bool is_closed() const { return phase_ == Phase::closed; }
  bool want_read() const { return !is_closed() && !input_ended_ && ahead_.size() < kAheadMax; }
  std::string_view unsent() const { return std::string_view(out_).substr(out_done_); }
  /// Whether the loop must wait for an error of the socket: the input has ended, and nothing else shows that the
  /// client has left.
  bool want_errors() const { return !is_closed() && input_ended_; }
  /// Whether the loop half-closes the socket now, after the last unsent byte of a refusal. It then waits for the
  /// client's end.
  bool want_half_close() const { return phase_ == Phase::refused && unsent().empty(); }
  /// Whether no byte of a request has arrived, so that closing the connection loses nothing.
  bool is_waiting() const { return phase_ == Phase::idle || (phase_ == Phase::head && !parser_); }
  /// The earliest time at which bytes that are read now can have arrived: the end of the last answer, or long ago.
  TimePoint waiting_since() const { return waiting_since_; }
  CloseReason close_reason() const { return reason_; }

 protected:
  ~Connection();

 private:
  // the most pipelined bytes; beyond them TCP's flow control holds the client back
  static constexpr size_t kAheadMax = size_t{64} << 10;
  static constexpr size_t kKeepBytes = size_t{4} << 10;  // capacity that an idle connection keeps
  static constexpr Duration kLinger = 2s;
  static constexpr Duration kAskPause = 250ms;  // pause before the second ask_for_life(); it doubles each time

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
  TimePoint deadline_ = kNever;  // end of the phase
  TimePoint late_ = kNever;      // time after which the body is too late for the request's own deadline
  size_t body_reserved_ = 0;
  bool input_ended_ = false;
  std::string ahead_;  // read but not parsed: the next, pipelined requests
  std::string out_;
  size_t out_done_ = 0;          // bytes of out_ that are written
  TimePoint progress_{};         // the last time at which the client took a byte, or nothing was unsent
  TimePoint last_sent_{};        // the last time at which stream bytes were queued
  TimePoint next_ask_ = kNever;  // time of the next ask_for_life()
  Duration ask_pause_{};

  // The exchange under way.
  std::shared_ptr<Link> link_;
  std::function<void(CloseReason)> on_close_;
  std::string request_id_;
  bool http11_ = true;
  bool head_only_ = false;
  bool close_after_ = false;
  bool streaming_ = false;
  size_t head_begun_ = 0;         // bytes of kStatusLineBegin that were sent before the answer existed
  bool is_event_stream_ = false;  // may be pinged
  CloseReason after_flush_ = CloseReason::done;
};

}  // namespace mc::http::detail

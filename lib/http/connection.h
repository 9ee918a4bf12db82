// One accepted connection as a state machine without sockets (private to lib/http): bytes in, bytes out, deadlines.
// The loop owns the socket, checks want_read() and unsent(), and calls the connection on its own thread only. So the
// protocol rules can be tested without sockets, and the Asio code stays short. Its parts are the intake (the request
// that is read), the answer writer (the answer under way) and the output (bytes that wait for the client).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/answer_writer.h"
#include "http/connection_host.h"
#include "http/intake.h"
#include "http/output.h"

namespace mc::http::detail {

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
  std::string_view unsent() const { return output_.unsent(); }
  /// Whether the loop must wait for an error of the socket: the input has ended, and nothing else shows that the
  /// client has left.
  bool want_errors() const { return !is_closed() && input_ended_; }
  /// Whether the loop half-closes the socket now, after the last unsent byte of a refusal. It then waits for the
  /// client's end.
  bool want_half_close() const { return phase_ == Phase::refused && output_.is_empty(); }
  /// Whether no byte of a request has arrived, so that closing the connection loses nothing.
  bool is_waiting() const { return phase_ == Phase::idle || (phase_ == Phase::head && !intake_); }
  /// The earliest time at which bytes that are read now can have arrived: the end of the last answer, or long ago.
  TimePoint waiting_since() const { return waiting_since_; }
  CloseReason close_reason() const { return reason_; }

 protected:
  ~Connection();

 private:
  // the most pipelined bytes; beyond them TCP's flow control holds the client back
  static constexpr size_t kAheadMax = size_t{64} << 10;
  static constexpr Duration kLinger = 2s;

  bool is_reading() const { return phase_ == Phase::idle || phase_ == Phase::head || phase_ == Phase::body; }
  void parse(std::string_view bytes, Duration age = {});
  void begin_body();
  void begin_answer();
  void refuse(Response response, CloseReason reason);
  void end_answer();
  void end_phase(TimePoint now);
  void next_request();

  ConnectionHost& host_;
  const ServerOptions& options_;
  std::string peer_;
  Phase phase_ = Phase::head;
  TimePoint deadline_;  // end of the phase
  TimePoint waiting_since_{};
  bool input_ended_ = false;
  std::string ahead_;               // read but not parsed: the next, pipelined requests
  std::unique_ptr<Intake> intake_;  // the request that is read, from its first byte on
  Output output_;
  std::optional<AnswerWriter> answer_;             // in phase answering, and in no other
  std::optional<CloseReason> close_after_answer_;  // the connection ends once the answer is written
  CloseReason reason_ = CloseReason::done;         // why the connection was refused or closed
};

}  // namespace mc::http::detail

// The answer to one request: the handler's commands become bytes of the connection's output (private to lib/http).
// An answer writer exists from the moment the handler gets the request until the answer is complete or cut off, or the
// connection has ended. While the client only reads, pings and single bytes show whether it is still there.
#pragma once

#include "http/connection_host.h"
#include "http/output.h"

namespace mc::http::detail {

/// Appends the head of an answer to `output` and counts the answer. The first `begun` bytes of the status line were
/// sent earlier. Returns the number of bytes appended.
size_t append_answer_head(Output& output, ConnectionHost& host, int status, const Headers& headers, Framing framing,
                          size_t body_bytes, bool closes, size_t begun = 0);

class AnswerWriter {
 public:
  /// State of the answer after a command.
  enum class State : uint8_t {
    under_way,
    complete,  // the output holds the whole answer
    cut_off,   // the output holds a part; the connection then ends, so that the client cannot take it for complete
    too_slow,  // the client takes bytes more slowly than the handler makes them; the connection ends now
  };

  /// The link is the one that the handler's responder holds. The host, the options and the output outlive the writer.
  AnswerWriter(ConnectionHost& host, const ServerOptions& options, Output& output, const Request& request,
               std::shared_ptr<Link> link);

  bool takes(const Command& command) const { return command.link == link_; }
  State apply(Command& command);
  /// Whether the answer's head says that the connection closes.
  bool closes() const { return closes_; }
  /// `count` bytes of the output were written.
  void on_written(size_t count);
  /// Sends pings, and probes a client that has closed its sending side, while nothing waits for the client.
  void on_tick(bool input_ended);
  /// Sends one byte of the status line, whose first nine bytes are those of every answer, or a comment of the event
  /// stream. A client that closed only its sending side takes the byte. The kernel of a client that is gone answers
  /// with a reset. One byte is sent at a time, because a client may take the first and close afterwards. In the middle
  /// of a body that is no event stream, the next bytes of the body serve as the probe.
  void probe();
  /// Ends the link to the handler: the answer has ended.
  void release() { release(false, CloseReason::done); }
  /// Ends the link to the handler: the connection has ended first. Returns the handler's callback, or null.
  std::function<void(CloseReason)> lose(CloseReason reason);

 private:
  State respond(Response response);
  State start_stream(Headers headers);
  State finish_stream();
  void append_head(int status, Headers headers, Framing framing, size_t body_bytes);
  void append_counted(std::string_view bytes);
  void append_ping();
  void release(bool is_lost, CloseReason reason);

  ConnectionHost& host_;
  const ServerOptions& options_;
  Output& output_;
  std::shared_ptr<Link> link_;
  std::function<void(CloseReason)> on_close_;
  std::string request_id_;
  bool http11_;
  bool head_only_;
  bool closes_;
  bool is_stream_ = false;  // the head of a stream was sent
  bool may_ping_ = false;   // the stream is an event stream
  size_t head_begun_ = 0;   // bytes of the status line that were sent before the answer existed
  TimePoint last_sent_{};   // the last time at which stream bytes were queued
  Duration probe_pause_;
  TimePoint next_probe_;
};

}  // namespace mc::http::detail

// HTTP/1.1 server: one thread, thousands of idle event streams. Handlers run on the server's thread and must not block
// it. They answer at once, or keep the Responder and answer later from any thread. Everything that a client can do is
// bounded: head and body size, time to send them, the number of connections, bytes queued for a slow reader. The end of
// a client is noticed at once, even while it only reads, and reported through Responder::on_close.
//
//   Server::Handler handler = [&](Request request, Responder out) {
//     if (request.path == "/health") return out.respond({200});
//     out.start_stream();
//     out.on_close([id](CloseReason) { cancel(id); });
//     jobs.push({std::move(request), out});         // later, on any thread:
//   };                                              //   out.send_event(chunk_json); ... out.finish();
//   MC_TRY(server, Server::open({.port = 8000}, handler));
//
// States of a connection (one request at a time; pipelined ones wait, unparsed):
//   reading head -> reading body -> answering -> idle -> reading head ...
//                \-> refused (4xx written, input discarded for a moment so that it arrives) -> closed
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "http/message.h"
#include "http/parser.h"
#include "http/site.h"

namespace mc {
class Metrics;
}

namespace mc::http {

/// Why a connection ended; the label of mc_http_closed_total.
enum class CloseReason : uint8_t {
  done,          // Connection: close, after the answer
  client_gone,   // the client closed or reset, idle or not
  head_timeout,  // slow loris: the head arrived too slowly
  body_timeout,  // the body arrived too slowly
  idle_timeout,  // kept alive, but no further request
  slow_reader,   // too many bytes queued, or no byte taken for too long
  bad_request,   // refused with 4xx or 501 before a handler saw it
  too_many,      // the connection limit was reached
  aborted,       // Responder::abort
  shutdown,      // the server stopped
  no_memory,     // the process could not allocate what the connection needed
};
inline constexpr size_t kCloseReasonCount = 11;
std::string_view to_string(CloseReason reason);

struct ServerOptions {
  std::string address = "127.0.0.1";  // an IP address or "localhost"
  uint16_t port = 0;                  // 0: any free port
  int port_tries = 1;                 // number of ports to try, upwards from `port`
  std::string socket_path;            // a Unix socket of this user alone, instead of address and port
  SitePolicy site;                    // for a listening address; a browser cannot reach a Unix socket
  ParserLimits limits;
  /// Called on the server's thread when the head of a request has been read and its body has not. An answer refuses the
  /// request. Without an answer the handler gets the whole request.
  std::function<std::optional<Response>(const Request& head)> refuse_head;
  size_t bodies_bytes_max = size_t{256} << 20;  // bodies of all requests that are being read
  size_t queue_bytes_max = size_t{1} << 20;     // the most unsent stream bytes of one connection
  size_t connections_max = 10'000;
  Duration head_timeout = 10s;
  Duration body_timeout = 30s;
  std::string deadline_header;   // the header with a request's deadline in ms; a body that comes later is answered 504
  Duration idle_timeout = 75s;   // between requests of a kept-alive connection
  Duration write_timeout = 30s;  // time in which the client takes no byte
  size_t lent_bytes_min = size_t{2} << 20;  // of a lent body, the fewest bytes that the client takes in write_timeout
  Duration ping_interval = 10s;  // ": ping" into a silent event stream
  Metrics* metrics = nullptr;    // must outlive the server
};

/// A snapshot; counters only grow.
struct ServerStats {
  size_t connections = 0;  // open now
  size_t streams = 0;      // answers under way now
  uint64_t accepted = 0;
  uint64_t requests = 0;
  uint64_t accept_pauses = 0;  // pauses of accepting for want of descriptors or memory
  std::array<uint64_t, kCloseReasonCount> closed{};
  uint64_t closed_for(CloseReason reason) const { return closed[static_cast<size_t>(reason)]; }
};

namespace detail {
class Exchange;
}

/// The answer to one request. Copies share it (the handler's caller and a worker both hold one, hence a shared_ptr
/// inside). It may outlive the server. Thread-safe; calls by one thread keep their order. When the last copy is
/// destroyed without an answer, the client gets a 500, so no client waits for ever. After the client has left, every
/// call does nothing.
class Responder {
 public:
  Responder() = default;  // not bound to a request
  explicit Responder(std::shared_ptr<detail::Exchange> exchange);

  /// Sends the whole answer. Content-Length, x-request-id and Connection are added. The first answer counts.
  void respond(Response response) const;
  /// Starts an event stream (200 and the SSE headers, or others for another kind of stream).
  void start_stream(Headers extra = {}) const;
  /// Sends one server-sent event, `data: <json>`; `json` is one line. Code::cancelled: the client has left.
  /// Code::busy: it read too slowly and its connection was closed.
  Code send_event(std::string_view json) const;
  /// Sends bytes without framing them (several framed events, `data: [DONE]`, a comment).
  Code send(std::string_view bytes) const;
  /// Ends the stream and keeps the connection.
  void finish() const;
  /// Closes the connection without ending the body, so that the client cannot take it for complete.
  void abort() const;
  /// Sends `data: {"error":...}` and aborts: an error after the first byte.
  void fail_stream(std::string_view error_json) const;

  /// Sets the callback for a connection that ends before the answer is complete. It is called once, on the server's
  /// thread, and at once if the connection has already ended. It is not called after a complete answer.
  void on_close(std::function<void(CloseReason)> callback) const;
  bool is_open() const;
  /// Unsent bytes of the stream: a producer may slow down before it is cut off.
  size_t queued_bytes() const;
  /// The bytes that send() takes before the connection is closed as a slow reader's; 0 when the client has left.
  size_t room_bytes() const;
  explicit operator bool() const { return exchange_ != nullptr; }

 private:
  std::shared_ptr<detail::Exchange> exchange_;
};

class Server {
 public:
  using Handler = std::function<void(Request, Responder)>;

  /// Binds, listens and starts the thread. MC5001 port-in-use names the port. Other errors name the fault of the
  /// address.
  static Result<std::unique_ptr<Server>> open(const ServerOptions& options, Handler handler);
  /// Calls stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  /// "http://127.0.0.1:8000" or "unix:/run/user/1000/mct/conductor.http"
  std::string url() const;
  ServerStats stats() const;

  /// Runs `task` on the server's thread. Tests and loops use it.
  void post(std::function<void()> task);
  /// Stops accepting, closes idle connections, and waits up to `wait_max` for answers under way. True when none is
  /// left. Any thread but the server's may call it.
  bool drain(Duration wait_max);
  /// Closes everything (on_close is called with `shutdown`) and joins the thread. Idempotent.
  void stop();

 private:
  struct Loop;
  explicit Server(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace mc::http

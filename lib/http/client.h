// HTTP/1.1 client: an event loop for thousands of concurrent calls on the thread that runs it (load generation), and
// fetch(), one blocking call with a deadline (command-line verbs). Plain http only. Connections are kept and reused.
// Bodies and event streams are bounded. Every call ends exactly once through `done`, at its deadline at the latest.
//
//   MC_TRY(client, Client::open("http://127.0.0.1:8000"));
//   client->at(planned, [&] {
//     client->start({.method = Method::post, .target = "/v1/completions", .body = json, .deadline = planned + 60s},
//                   {.event = [&](std::string_view data, TimePoint now) { ... },
//                    .done = [&](ClientOutcome&& outcome) { ... }});
//   });
//   client->run();   // until nothing is left to do
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "http/message.h"
#include "http/parser.h"

namespace mc::http {

struct Url {
  std::string socket;  // path of a Unix socket, in place of host and port
  std::string host;    // without brackets
  uint16_t port = 80;
  std::string path;  // without a trailing slash; "" for the root
  /// "host:port" for the Host header.
  std::string authority() const;
  /// The authority or the socket, for messages.
  std::string place() const;
};
/// http:// or unix:/path/of/socket; "host:port" alone is taken as http too. The error names the fault of the text.
Result<Url> parse_url(std::string_view text);

struct ClientOptions {
  Duration connect_timeout = 5s;
  size_t header_bytes_max = size_t{64} << 10;
  size_t body_bytes_max = size_t{64} << 20;  // the largest answer that is no event stream
  size_t event_bytes_max = size_t{4} << 20;
  bool keep_alive = true;
};

struct ClientCall {
  Method method = Method::get;
  std::string target = "/";  // appended to the path of the base URL
  Headers headers;
  std::string body;
  TimePoint deadline = kNever;
  std::string_view lent = {};  // rest of the body, behind `body`: sent without a copy, so it lives until `done`
};

/// The times of a call by the steady clock; zero for steps that the call did not reach.
struct ClientTimes {
  TimePoint started;     // start()
  TimePoint connected;   // the connection stands (at once when one is reused)
  TimePoint sent;        // the last byte of the request was given to the kernel
  TimePoint first_byte;  // the answer's first byte
  TimePoint ended;
};

struct ClientOutcome {
  Result<void> status;  // the error of the transport; an HTTP error status is none
  int http_status = 0;
  Headers headers;
  std::string body;  // empty for event streams
  ClientTimes times;
  bool reused_connection = false;
};

struct ClientEvents {
  std::function<void(const ResponseHead&, TimePoint)> head;     // may be empty
  std::function<void(std::string_view data, TimePoint)> event;  // an event of text/event-stream; may be empty
  std::function<void(ClientOutcome&&)> done;                    // always called, once
};

/// All members but stop() belong to the thread that runs the loop. Callbacks run on that thread and may start and
/// cancel calls.
class Client {
 public:
  /// Resolves the name (blocking, with the system's resolver). MC2101 peer-unreachable if the name has no address.
  static Result<std::unique_ptr<Client>> open(std::string_view base_url, const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Returns the call's number. `done` is never called from inside start().
  uint64_t start(ClientCall call, ClientEvents events);
  /// Ends the call with Code::cancelled. Does nothing if it has ended.
  void cancel(uint64_t call);
  /// Runs `task` at `when`, or at once if that has passed. Tasks with equal times run in the order of their at() calls.
  void at(TimePoint when, std::function<void()> task);

  /// Runs the loop until no call and no task is left, or until stop(), or until the deadline. True when no call and no
  /// task is left.
  bool run(TimePoint deadline = kNever);
  /// Makes run() return soon. Any thread.
  void stop();

  size_t calls() const;        // calls that have not ended
  size_t connections() const;  // open connections, idle ones included

 private:
  struct Loop;
  explicit Client(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

/// Makes one call on a new connection. Code::timeout when the answer is not complete at the deadline. MC2101
/// peer-unreachable when nothing listens there, or no connection stands at the deadline. `base` and `target` are those
/// of Client::open and ClientCall.
Result<Response> fetch(Method method, std::string_view base, std::string_view target, const Headers& headers,
                       std::string body, TimePoint deadline);
/// Makes one call to an http:// URL, which holds base and target.
Result<Response> fetch(Method method, std::string_view url, const Headers& headers, std::string body,
                       TimePoint deadline);

}  // namespace mc::http

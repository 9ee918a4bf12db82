// The way of answers from any thread to the server's thread (private to lib/http).
//
//   Responder ---> Exchange (alive while a Responder is)      handler's side, any thread
//                     |
//                     v
//                   Link  (alive while any part refers to it)  flags and byte count, atomics
//                     ^
//   Command {link, what} --> Outbox (one mutex) --wake--> Loop: applies to link->connection
//
// The loop swaps the whole vector out and flushes each connection once for all its commands. So a decode step that
// feeds 64 streams costs one wake-up, and one write for each stream.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "http/server.h"

namespace mc::http::detail {

class Connection;
struct Outbox;

struct Link {
  std::shared_ptr<Outbox> outbox;
  bool chunked = true;     // stream bytes are sent as chunks; fixed when the head was read
  bool head_only = false;  // HEAD: no body is sent, even if the handler gives one
  size_t queue_bytes_max = 0;
  std::atomic<size_t> queued{0};    // bytes accepted and not yet taken by the kernel; a counter without ordering
  std::atomic<bool> closed{false};  // release by the loop, acquire by senders: no later command is sent
  std::atomic<bool> too_slow{false};
  // Used by the loop's thread only:
  Connection* connection = nullptr;  // null once the answer or connection ended
  bool is_lost = false;              // the connection ended before the answer was complete
  CloseReason lost_reason = CloseReason::done;
};

namespace command {
struct Respond {
  Response response;
};
struct Start {
  Headers headers;
};
struct Bytes {
  std::string framed;
};
struct Finish {};
struct Abort {
  CloseReason reason;
};
struct OnClose {
  std::function<void(CloseReason)> callback;
};
struct Dropped {};  // the last Responder was destroyed
struct Task {       // Server::post
  std::function<void()> run;
};
}  // namespace command

struct Command {
  std::shared_ptr<Link> link;
  std::variant<command::Respond, command::Start, command::Bytes, command::Finish, command::Abort, command::OnClose,
               command::Dropped, command::Task>
      what;
};

struct Outbox {
  std::mutex mutex;
  std::vector<Command> commands;  // protected by mutex
  std::function<void()> wake;     // protected by mutex; empty once the server stopped, and commands are then dropped

  void push(Command command);
};

class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Link& link() { return *link_; }
  void push(decltype(Command::what) what);

 private:
  std::shared_ptr<Link> link_;
};

}  // namespace mc::http::detail

// State that both threads of a hub share. The caller's side pushes commands and takes events. The loop does the rest.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/fd.h"
#include "base/ring.h"
#include "ctl/ctl.h"
#include "ctl/zmq_socket.h"

namespace mc::ctl {

inline constexpr std::string_view kPing = "ctl.ping";

struct ConnectCommand {
  LinkId link = 0;
  Uri uri;
};
struct DisconnectCommand {
  LinkId link = 0;
};
struct SendCommand {
  LinkId link = 0;
  uint64_t id = 0;
  TimePoint expires = kNever;  // deadline of a request
  Bytes envelope, body;
  size_t bytes() const { return envelope.size() + body.size(); }
};
struct KeysCommand {
  KeySet keys;
};
using Command = std::variant<std::monostate, ConnectCommand, DisconnectCommand, SendCommand, KeysCommand>;

/// Ids of requests are odd, so a reply that comes after its request has failed is recognised.
constexpr bool is_request(uint64_t id) {
  return (id & 1) != 0;
}

inline TimePoint hub_now() {
  return SystemClock::instance().now();
}

struct Shared {
  explicit Shared(HubOptions o) : options(std::move(o)), commands(options.ring), events(options.ring) {}

  const HubOptions options;
  MpscRing<Command> commands;
  SpscRing<Event> events;
  EventFd wake;         // commands are waiting
  EventFd event_ready;  // events are waiting
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> next_link{1};
  std::atomic<uint64_t> next_message{1};
  std::mutex mutex;  // guards name and stats
  NodeId name;
  HubStats stats;

  NodeId name_now() {
    const std::lock_guard lock(mutex);
    return name;
  }
};

}  // namespace mc::ctl

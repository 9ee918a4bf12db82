// Hubs for tests: short intervals, so that deaths are noticed in milliseconds, and waits that only a
// failing test sits out.
#pragma once

#include <unistd.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ctl/ctl.h"
#include "test.h"

namespace mc::ctl {

inline constexpr Duration kLimit = 30s;  // of a test that hangs

inline TimePoint limit() {
  return SystemClock::instance().now() + kLimit;
}

inline InstanceId instance(uint8_t fill) {
  InstanceId id;
  id.bytes.fill(fill);
  return id;
}

inline HubOptions options(uint8_t id, std::vector<std::string> listen = {}) {
  HubOptions o;
  o.name = "n" + std::to_string(id);
  o.instance = instance(id);
  o.epoch = id;
  o.heartbeat = 20ms;
  o.dead_after = 400ms;
  o.broken_grace = 60ms;
  o.handshake = 300ms;
  o.reconnect = 10ms;
  o.insecure = true;
  o.seed = test::seed();
  for (const std::string& uri : listen) o.listen.push_back(*parse_uri(uri));
  return o;
}

inline Hub must_open(HubOptions o) {
  auto hub = Hub::open(std::move(o));
  REQUIRE_OK(hub);
  return std::move(*hub);
}

/// The next event of kind T that satisfies `want`; others are dropped. nullopt at the limit.
template <class T>
std::optional<T> expect(
    Hub& hub, const std::function<bool(const T&)>& want = [](const T&) { return true; }, TimePoint end = limit()) {
  while (auto event = hub.wait(end))
    if (T* found = std::get_if<T>(&*event); found && want(*found)) return std::move(*found);
  return std::nullopt;
}

inline Bytes bytes(std::string_view text) {
  return Bytes(text.begin(), text.end());
}
inline std::string text(const Bytes& body) {
  return std::string(body.begin(), body.end());
}

inline std::string ipc_uri(std::string_view name) {
  return "ipc:///tmp/mct-ctl-" + std::to_string(::getpid()) + "-" + std::string(name);
}

}  // namespace mc::ctl

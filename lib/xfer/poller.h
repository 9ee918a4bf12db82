// The one epoll set of an engine, shared by its transports. A token names a registration and not a descriptor. Tokens
// are never reused, so an event of a socket that was closed earlier in the round finds nothing. The top byte of a token
// is the index of its transport.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace mc::xfer {

/// The clock of every deadline in the engine and its transports.
inline TimePoint now() {
  return SystemClock::instance().now();
}

class Poller {
 public:
  static constexpr uint64_t kWakeToken = 0;

  struct Ready {
    uint64_t token;
    uint32_t events;
  };

  static Result<Poller> open();
  /// Level-triggered. `owner` must be at least 1.
  Result<uint64_t> add(uint8_t owner, int fd, uint32_t events);
  Result<void> add_wake(int fd);
  void modify(uint64_t token, int fd, uint32_t events);
  void remove(int fd);
  /// Fills `out` and returns the number of entries. Waits until `deadline`; a deadline in the past means no wait.
  size_t wait(std::span<Ready> out, TimePoint now, TimePoint deadline);

  static uint8_t owner(uint64_t token) { return static_cast<uint8_t>(token >> 56); }

 private:
  Fd epoll_;
  uint64_t last_ = 0;
};

}  // namespace mc::xfer

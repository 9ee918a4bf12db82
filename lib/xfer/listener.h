// A listening socket of a transport, of any address family (internal). The socket is in the engine's epoll set, except
// while the process is out of descriptors or memory. In that state a waiting connection would keep the socket ready,
// and the loop would spin. Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <functional>

#include "base/fd.h"
#include "xfer/transport.h"

namespace mc::xfer {

class Listener {
 public:
  Listener(Services& services, uint8_t owner) : services_(services), owner_(owner) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { close(); }

  /// Watches a socket on which listen() was called.
  Result<void> open(Fd listening);
  bool is_open() const { return static_cast<bool>(fd_); }
  bool owns(uint64_t token) const { return is_open() && token == token_; }
  /// Hands over some of the waiting connections; the level-triggered epoll set reports the others again. Returns the
  /// time of the next tick().
  TimePoint accept(const std::function<void(Fd)>& take);
  /// Watches a paused listener again when it is time. Returns the time of the next tick().
  TimePoint tick(TimePoint at);
  void close();

 private:
  static constexpr int kAcceptMax = 16;  // connections accepted in one turn
  static constexpr Duration kPause = 100ms;

  Services& services_;
  const uint8_t owner_;
  Fd fd_;
  uint64_t token_ = 0;
  TimePoint again_ = kNever;  // end of the pause; kNever = not paused
};

}  // namespace mc::xfer

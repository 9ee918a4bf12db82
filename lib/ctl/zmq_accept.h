// A bound on the connections that a libzmq listener accepts. libzmq 4.3.4 has none: it accepts until the
// process has no descriptors left; then its ipc listener aborts the process (EMFILE is no error it expects) and
// its tcp listener spins. zmq_accept.cc therefore defines accept4(2), which the dynamic linker prefers to the C
// library's for libzmq too: for a listener with a gate it hands out at most `connections_max` connections and
// closes the rest at once, and it never reports that descriptors ran out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mc::ctl {

class AcceptGate {
 public:
  /// From now on accept4() on `listener` follows this gate.
  AcceptGate(int listener, size_t connections_max);
  ~AcceptGate();
  AcceptGate(const AcceptGate&) = delete;
  AcceptGate& operator=(const AcceptGate&) = delete;

  /// A connection that the listener accepted has ended, as the socket's monitor reported. Returns its other end:
  /// "10.0.0.7:51234", "[::1]:51234", or "process 4711" of an ipc connection; "" = unknown.
  std::string closed(int fd);
  size_t connections() const;
  /// Connections that were closed at once.
  uint64_t refused() const;

  struct State;

 private:
  int listener_;
  std::shared_ptr<State> state_;  // shared with an accept4() under way on libzmq's thread
};

}  // namespace mc::ctl

#include "ctl/zmq_accept.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/fd.h"

namespace mc::ctl {

struct AcceptGate::State {
  explicit State(size_t max) : connections_max(max) {}
  const size_t connections_max;
  std::atomic<size_t> connections{0};
  std::atomic<uint64_t> refused{0};
  std::mutex mutex;  // protects the other members
  // The other ends of the connections that had this descriptor and whose end was not reported yet, the oldest first.
  std::map<int, std::deque<std::string>> peers;
};

namespace {

struct Gates {
  std::mutex mutex;  // protects the other members
  std::map<int, std::shared_ptr<AcceptGate::State>> by_listener;
  // Closed for a moment to accept a connection that must be refused.
  Fd spare{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
};

// Never destroyed: libzmq's threads may accept while statics are torn down.
Gates& gates() {
  static Gates* const g = new Gates();
  return *g;
}

std::shared_ptr<AcceptGate::State> find_gate(int listener) {
  Gates& g = gates();
  const std::lock_guard lock(g.mutex);
  const auto at = g.by_listener.find(listener);
  return at == g.by_listener.end() ? nullptr : at->second;
}

int accept_now(int listener, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(::syscall(SYS_accept4, listener, address, size, flags));
}

/// Whether the other end has this user. libzmq closes an ipc connection of another user without a monitor event, so it
/// must not be counted.
bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  sockaddr_storage name{};
  socklen_t name_size = sizeof name;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &name_size) != 0) return false;
  if (name.ss_family != AF_UNIX) return true;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

/// The other end of a connection, as AcceptGate::closed() gives it.
std::string peer_text(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "";
  if (name.ss_family == AF_UNIX) {
    ucred peer{};
    size = sizeof peer;
    const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    return known ? "process " + std::to_string(peer.pid) : "";
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  return name.ss_family == AF_INET6 ? "[" + std::string(host) + "]:" + port : std::string(host) + ":" + port;
}

/// Refuses a connection when descriptors have run out: accepts it with the spare descriptor and closes it. It would
/// otherwise stay ready for ever.
void refuse_waiting(int listener) {
  Gates& g = gates();
  const std::lock_guard lock(g.mutex);
  g.spare.reset();
  const bool closed = static_cast<bool>(Fd(accept_now(listener, nullptr, nullptr, SOCK_CLOEXEC)));
  g.spare.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // Another thread took the spare descriptor first. The pause keeps libzmq, which retries at once, from spinning.
  if (!closed) (void)::poll(nullptr, 0, 10);
}

int accept_gated(AcceptGate::State& gate, int listener, sockaddr* address, socklen_t* size, int flags) {
  const int fd = accept_now(listener, address, size, flags);
  if (fd < 0 && errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return -1;
  if (fd < 0) {
    refuse_waiting(listener);
  } else if (gate.connections.load() < gate.connections_max && same_user(fd)) {
    ++gate.connections;  // only this listener's one accepting thread adds
    const std::lock_guard lock(gate.mutex);
    gate.peers[fd].push_back(peer_text(fd));
    return fd;
  } else {
    ::close(fd);
  }
  ++gate.refused;
  errno = ECONNABORTED;  // libzmq treats the connection as reset before it was accepted
  return -1;
}

}  // namespace

AcceptGate::AcceptGate(int listener, size_t connections_max)
    : listener_(listener), state_(std::make_shared<State>(connections_max)) {
  Gates& g = gates();
  const std::lock_guard lock(g.mutex);
  g.by_listener[listener] = state_;
}

AcceptGate::~AcceptGate() {
  Gates& g = gates();
  const std::lock_guard lock(g.mutex);
  const auto at = g.by_listener.find(listener_);
  if (at != g.by_listener.end() && at->second == state_) g.by_listener.erase(at);
}

std::string AcceptGate::closed(int fd) {
  size_t open = state_->connections.load();
  while (open > 0 && !state_->connections.compare_exchange_weak(open, open - 1)) {
  }
  const std::lock_guard lock(state_->mutex);
  const auto at = state_->peers.find(fd);
  if (at == state_->peers.end()) return "";
  std::string peer = std::move(at->second.front());
  at->second.pop_front();
  if (at->second.empty()) state_->peers.erase(at);
  return peer;
}

size_t AcceptGate::connections() const {
  return state_->connections.load();
}

uint64_t AcceptGate::refused() const {
  return state_->refused.load();
}

}  // namespace mc::ctl

extern "C" int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  if (const auto gate = mc::ctl::find_gate(fd)) return mc::ctl::accept_gated(*gate, fd, address, size, flags);
  return mc::ctl::accept_now(fd, address, size, flags);
}

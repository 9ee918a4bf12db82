#include "host/signals.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace mc::host {

namespace {

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

Result<Signals> Signals::open() {
  const sigset_t set = watched();
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return errno_error("pthread_sigmask");
  ::signal(SIGPIPE, SIG_IGN);
  Fd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd) return errno_error("signalfd");
  return Signals(std::move(fd));
}

void Signals::let_through() {
  const sigset_t set = watched();
  (void)pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<int> Signals::next() const {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void notify_service_manager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (!path || !*path) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = 0;
  Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  const timeval most{.tv_sec = 1, .tv_usec = 0};  // a receiver whose queue is full must not stop the control loop
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  (void)::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

void die_with_parent() {
  (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

}  // namespace mc::host

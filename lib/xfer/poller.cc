#include "xfer/poller.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/assert.h"

namespace mc::xfer {

Result<Poller> Poller::open() {
  Poller poller;
  poller.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!poller.epoll_) return errno_error("xfer: epoll_create1");
  return poller;
}

Result<uint64_t> Poller::add(uint8_t owner, int fd, uint32_t events) {
  MC_ASSERT(owner != 0);
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<uint64_t>(owner) << 56 | ++last_;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("xfer: epoll_ctl add");
  return uint64_t{event.data.u64};
}

Result<void> Poller::add_wake(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeToken;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("xfer: epoll_ctl add");
  return {};
}

void Poller::modify(uint64_t token, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  MC_ASSERT_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event), 0);
}

void Poller::remove(int fd) {
  MC_ASSERT_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr), 0);
}

size_t Poller::wait(std::span<Ready> out, TimePoint now, TimePoint deadline) {
  std::array<epoll_event, 64> events;
  int timeout = -1;
  if (deadline <= now) {
    timeout = 0;
  } else if (deadline != kNever) {
    // rounded up, because a wake-up slightly too early would spin until the timer is due
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
    timeout = static_cast<int>(std::min<int64_t>(ms, INT_MAX));
  }
  const int limit = static_cast<int>(std::min(out.size(), events.size()));
  const int count = ::epoll_wait(epoll_.get(), events.data(), limit, timeout);
  if (count < 0) {
    MC_ASSERT_EQ(errno, EINTR);
    return 0;
  }
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    out[static_cast<size_t>(i)] = {event.data.u64, event.events};
  }
  return static_cast<size_t>(count);
}

}  // namespace mc::xfer

#include "costed/paced_plane.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/clock.h"
#include "node/stage.h"

namespace mc::costed {
namespace {

TimePoint paced_now() {
  return SystemClock::instance().now();
}

}  // namespace

Result<std::unique_ptr<PacedPlane>> PacedPlane::open(node::KvPlane& plane, const Pace& pace) {
  Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return {Code::io, std::string("timerfd: ") + std::strerror(errno)};
  Fd wait(::epoll_create1(EPOLL_CLOEXEC));
  if (!wait) return {Code::io, std::string("epoll: ") + std::strerror(errno)};
  for (const int fd : {timer.get(), plane.event_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(wait.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return {Code::io, std::string("epoll_ctl: ") + std::strerror(errno)};
  }
  return std::unique_ptr<PacedPlane>(new PacedPlane(plane, pace, std::move(timer), std::move(wait)));
}

// Steady clock and CLOCK_MONOTONIC are the same on Linux, so due times are absolute timer values.
void PacedPlane::arm() {
  itimerspec spec{};
  if (!held_.empty()) {
    const auto ns = std::max<int64_t>(held_.begin()->first.time_since_epoch() / 1ns, 1);
    spec.it_value = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  MC_ASSERT_EQ(::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr), 0);
}

void PacedPlane::read(const node::Read& read, const node::PagePlace& place) {
  double bytes = 0;
  for (const auto& slice : read.slices) bytes += slice.bytes;
  const bool activations = read.pool == node::Stage::kSlotPool;  // a prefill or decode node has no other pool than 0
  const double s_per_byte = activations ? pace_.s_per_activation_byte : pace_.s_per_byte;
  link_.begin(read.read, from_seconds(bytes * s_per_byte), paced_now());
  plane_.read(read, place);
}

// The link is free for the reads behind it: those that have really arrived are told when it has carried them now.
void PacedPlane::end_read(uint64_t read) {
  link_.end(read, paced_now());
  std::multimap<TimePoint, node::ReadDone> held;
  held.swap(held_);
  for (auto& [when, done] : held) {
    const auto carried = link_.carried_at(done.read);
    held_.emplace(carried ? *carried + pace_.latency : when, std::move(done));
  }
  arm();
}

// A read that has arrived but is not carried yet ends now; one that has not arrived ends when the plane says so.
void PacedPlane::cancel(uint64_t read) {
  plane_.cancel(read);
  const auto held = std::ranges::find_if(held_, [&](const auto& entry) { return entry.second.read == read; });
  if (held != held_.end()) {
    held_.erase(held);
    held_.emplace(paced_now(), node::ReadDone{read, Code::cancelled, "cancelled"});
  }
  end_read(read);
}

std::optional<node::Event> PacedPlane::hold(node::Event event) {
  auto* done = std::get_if<node::ReadDone>(&event);
  const auto carried = done ? link_.carried_at(done->read) : std::nullopt;
  if (!carried) return event;
  const TimePoint when = *carried + pace_.latency;
  if (done->code != Code::ok || when <= paced_now()) {
    end_read(done->read);
    return event;
  }
  held_.emplace(when, std::move(*done));
  arm();
  return std::nullopt;
}

std::optional<node::Event> PacedPlane::next() {
  uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  if (!held_.empty() && held_.begin()->first <= paced_now()) {
    node::ReadDone done = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    link_.end(done.read, paced_now());  // carried: no read behind it gains
    arm();
    return done;
  }
  arm();
  while (auto event = plane_.next())
    if (auto told = hold(*std::move(event))) return told;
  return std::nullopt;
}

}  // namespace mc::costed

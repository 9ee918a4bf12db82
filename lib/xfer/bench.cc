#include "xfer/bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>

#include "base/fd.h"
#include "xfer/poller.h"

namespace mc::xfer {
namespace {

constexpr size_t kLatenciesMax = size_t{1} << 20;
constexpr size_t kBesideDepth = 2;  // bulk reads in flight beside the measured transfers

/// One run: `depth` batches are in flight, and each is replaced when it is done, until the time or the number is
/// reached. Bulk reads may run beside them to keep the path busy. The cookie of a batch is its slot; bulk reads use the
/// cookies after the slots.
class TransferRun {
 public:
  TransferRun(Engine& engine, PeerId peer, const BufferInfo& remote, std::span<std::byte> local, const BenchPlan& plan)
      : engine_(engine), peer_(peer), remote_(remote), plan_(plan), started_(plan.depth), target_(plan.depth) {
    const size_t beside = kBesideDepth * plan.beside_bytes;
    beside_place_ = local.last(beside);
    local_ = local.first(local.size() - beside);
    for (size_t i = 0; i < local_.size() / batch_bytes(); ++i) idle_targets_.push_back(i);
    requests_.resize(plan.batch_requests);
  }

  Result<BenchResult> run() {
    begin_ = at_ = now();
    for (; plan_.beside_bytes > 0 && flying_beside_ < kBesideDepth; ++flying_beside_)
      MC_CHECK(submit_beside(flying_beside_));
    for (; flying_ < plan_.depth && (plan_.transfers == 0 || submitted_ < plan_.transfers); ++flying_)
      MC_CHECK(submit(flying_));
    std::vector<Event> events;
    while (flying_ + flying_beside_ > 0) {
      events.clear();
      if (engine_.poll(events, at_ + 60s) == 0) return Error{Code::timeout, "xfer bench: no completion in a minute"};
      for (const Event& event : events) {
        if (event.kind != Event::Kind::batch_done) continue;
        const auto slot = static_cast<size_t>(event.cookie);
        at_ = now();
        MC_CHECK(slot < plan_.depth ? finish(event, slot) : finish_beside(event, slot - plan_.depth));
      }
    }
    result_.elapsed = now() - begin_;
    return std::move(result_);
  }

 private:
  size_t batch_bytes() const { return plan_.request_bytes * plan_.batch_requests; }

  Result<void> submit(size_t slot) {
    target_[slot] = idle_targets_.front();
    idle_targets_.pop_front();
    const uint64_t places = remote_.length / plan_.request_bytes;
    const auto into = local_.subspan(target_[slot] * batch_bytes(), batch_bytes());
    for (size_t i = 0; i < requests_.size(); ++i) {
      const uint64_t place = next_place_++ % places;
      requests_[i] = {.op = plan_.op,
                      .peer = peer_,
                      .local = into.subspan(i * plan_.request_bytes, plan_.request_bytes),
                      .buffer = remote_.id,
                      .offset = place * plan_.request_bytes,
                      .transfer_class = plan_.transfer_class};
      if (plan_.immediates) requests_[i].immediate = static_cast<uint32_t>(next_place_);
      if (!plan_.crc32c.empty()) requests_[i].crc32c = plan_.crc32c[place % plan_.crc32c.size()];
    }
    started_[slot] = at_;
    ++submitted_;
    MC_CHECK(engine_.submit(requests_, started_[slot] + 30s, slot));
    return {};
  }

  Result<void> submit_beside(size_t which) {
    const Request request{.op = plan_.op,
                          .peer = peer_,
                          .local = beside_place_.subspan(which * plan_.beside_bytes, plan_.beside_bytes),
                          .buffer = remote_.id};
    MC_CHECK(engine_.submit({&request, 1}, now() + 30s, plan_.depth + which));
    return {};
  }

  Result<void> finish(const Event& event, size_t slot) {
    idle_targets_.push_back(target_[slot]);
    ++result_.batches;
    if (event.code != Code::ok && event.code != Code::corrupt)
      return Error{event.code, "after " + std::to_string(result_.batches - 1) + " transfers: " + event.text};
    if (event.code != Code::ok)
      ++result_.failed;
    else
      result_.bytes += batch_bytes();
    if (result_.latencies.size() < kLatenciesMax) result_.latencies.push_back(at_ - started_[slot]);
    MC_CHECK(engine_.close(event.batch, at_ + 30s));
    --flying_;
    const bool more = plan_.transfers != 0 ? submitted_ < plan_.transfers : at_ - begin_ < plan_.duration;
    if (!more) return {};
    MC_CHECK(submit(slot));
    ++flying_;
    return {};
  }

  Result<void> finish_beside(const Event& event, size_t which) {
    if (event.code == Code::ok) result_.beside_bytes += plan_.beside_bytes;
    MC_CHECK(engine_.close(event.batch, at_ + 30s));
    if (flying_ > 0) return submit_beside(which);
    --flying_beside_;
    return {};
  }

  Engine& engine_;
  PeerId peer_;
  const BufferInfo& remote_;
  const BenchPlan& plan_;
  std::span<std::byte> local_, beside_place_;
  std::vector<TimePoint> started_;
  std::vector<size_t> target_;       // part of `local_` that each slot uses
  std::deque<size_t> idle_targets_;  // the longest unused part first, so that targets are as cold as sources
  std::vector<Request> requests_;
  uint64_t next_place_ = 0, submitted_ = 0;
  size_t flying_ = 0, flying_beside_ = 0;
  // At_: time of the latest completion, which is also the start of the batch that replaces it (one clock reading).
  TimePoint begin_, at_;
  BenchResult result_;
};

}  // namespace

Result<BenchResult> bench_transfer(Engine& engine, PeerId peer, uint32_t remote_buffer, std::span<std::byte> local,
                                   const BenchPlan& plan) {
  const auto descriptor = engine.descriptor(peer);
  const BufferInfo* remote = descriptor ? descriptor->find(remote_buffer) : nullptr;
  if (remote == nullptr)
    return Error{Code::not_found, "xfer bench: the peer offers no buffer " + std::to_string(remote_buffer)};
  const size_t batch_bytes = plan.request_bytes * plan.batch_requests;
  if (batch_bytes == 0 || plan.depth == 0 ||
      local.size() < batch_bytes * plan.depth + kBesideDepth * plan.beside_bytes ||
      remote->length < std::max(plan.request_bytes, plan.beside_bytes))
    return Error{Code::invalid, "xfer bench: " + std::to_string(plan.depth) + " batches of " +
                                    std::to_string(batch_bytes) + " bytes do not fit the buffers"};
  return TransferRun(engine, peer, *remote, local, plan).run();
}

Result<std::vector<Duration>> bench_notify(Engine& engine, PeerId peer, size_t bytes, uint64_t rounds) {
  const std::vector<std::byte> message(std::max<size_t>(bytes, 1));
  std::vector<Duration> times;
  times.reserve(rounds);
  std::vector<Event> events;
  for (uint64_t i = 0; i < rounds; ++i) {
    const TimePoint begin = now();
    if (const Code code = engine.notify(peer, message); code != Code::ok)
      return Error{code, "xfer bench: notify: " + std::string(to_string(code))};
    for (bool heard = false; !heard;) {
      events.clear();
      if (engine.poll(events, begin + 10s) == 0) return Error{Code::timeout, "xfer bench: no echo in 10 s"};
      for (const Event& event : events) {
        if (event.kind == Event::Kind::peer_lost) return Error{event.code, event.text};
        heard |= event.kind == Event::Kind::notify;
      }
    }
    times.push_back(now() - begin);
  }
  (void)engine.notify(peer, {});
  return times;
}

void bench_echo(Engine& engine, TimePoint deadline) {
  std::vector<Event> events;
  for (;;) {
    events.clear();
    if (engine.poll(events, deadline) == 0) return;
    for (const Event& event : events) {
      if (event.kind != Event::Kind::notify) continue;
      if (event.bytes.empty()) return;
      (void)engine.notify(event.peer, event.bytes);
    }
  }
}

Result<double> bench_raw_tcp(std::span<const std::byte> source, std::span<std::byte> target, size_t message_bytes,
                             Duration duration, size_t depth) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), raw, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), raw, &size) != 0)
    return errno_error("xfer bench: raw listener");
  const Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(client.get(), raw, size) != 0) return errno_error("xfer bench: raw connect");
  const Fd server(::accept(listener.get(), nullptr, nullptr));
  const int on = 1;
  ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(server.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int send_bytes = 256 << 10;  // the size of tune_bulk(); the kernel's choice makes a weaker yardstick
  ::setsockopt(server.get(), SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
  const size_t places = std::min(source.size(), target.size()) / message_bytes;
  if (places == 0) return Error{Code::invalid, "xfer bench: the message is larger than the buffers"};
  std::thread serving([&] {
    char asked[64];
    for (size_t place = 0;;) {
      const ssize_t n = ::recv(server.get(), asked, sizeof asked, 0);
      if (n <= 0) return;
      for (ssize_t i = 0; i < n; ++i, ++place) {
        auto message = source.subspan(place % places * message_bytes, message_bytes);
        while (!message.empty()) {
          const ssize_t sent = ::send(server.get(), message.data(), message.size(), MSG_NOSIGNAL);
          if (sent <= 0) return;
          message = message.subspan(static_cast<size_t>(sent));
        }
      }
    }
  });
  const TimePoint begin = now();
  uint64_t received = 0;
  bool broken = false;
  const std::string first(depth, 'x');
  broken |= ::send(client.get(), first.data(), depth, MSG_NOSIGNAL) != static_cast<ssize_t>(depth);
  TimePoint at = begin;
  for (size_t place = 0; !broken && at - begin < duration; ++place, at = now()) {
    size_t left = message_bytes;
    std::byte* to = target.data() + place % places * message_bytes;
    while (left > 0) {
      const ssize_t n = ::recv(client.get(), to, left, MSG_WAITALL);
      if (n <= 0) {
        broken = true;
        break;
      }
      to += n;
      left -= static_cast<size_t>(n);
    }
    received += message_bytes - left;
    broken |= ::send(client.get(), "x", 1, MSG_NOSIGNAL) != 1;
  }
  ::shutdown(client.get(), SHUT_RDWR);
  ::shutdown(server.get(), SHUT_RDWR);
  serving.join();
  if (broken) return Error{Code::io, "xfer bench: the raw connection broke"};
  return static_cast<double>(received) / to_seconds(at - begin);
}

double bench_memcpy(std::span<const std::byte> source, std::span<std::byte> target, size_t message_bytes,
                    Duration duration) {
  const size_t places = std::min(source.size(), target.size()) / message_bytes;
  uint64_t copied = 0;
  const TimePoint begin = now();
  TimePoint at = begin;
  for (size_t place = 0; places > 0 && at - begin < duration; ++place, at = now()) {
    std::memcpy(target.data() + place % places * message_bytes, source.data() + place % places * message_bytes,
                message_bytes);
    copied += message_bytes;
  }
  return copied == 0 ? 0 : static_cast<double>(copied) / to_seconds(at - begin);
}

}  // namespace mc::xfer

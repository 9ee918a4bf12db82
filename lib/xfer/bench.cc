#include "xfer/bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>

#include "base/fd.h"

namespace mc::xfer {
namespace {

constexpr size_t kLatenciesMax = size_t{1} << 20;
constexpr size_t kBesideDepth = 2;  // bulk reads that are kept in flight beside the measured ones

TimePoint now() {
  return SystemClock::instance().now();
}

}  // namespace

Result<BenchResult> bench_transfer(Engine& engine, PeerId peer, uint32_t remote_buffer, std::span<std::byte> local,
                                   const BenchPlan& plan) {
  const auto descriptor = engine.descriptor(peer);
  const BufferInfo* remote = descriptor ? descriptor->find(remote_buffer) : nullptr;
  const size_t batch_bytes = plan.request_bytes * plan.batch_requests;
  if (remote == nullptr)
    return Error{Code::not_found, "xfer bench: the peer offers no buffer " + std::to_string(remote_buffer)};
  const size_t beside = kBesideDepth * plan.beside_bytes;
  if (batch_bytes == 0 || plan.depth == 0 || local.size() < batch_bytes * plan.depth + beside ||
      remote->length < std::max(plan.request_bytes, plan.beside_bytes))
    return Error{Code::invalid, "xfer bench: " + std::to_string(plan.depth) + " batches of " +
                                    std::to_string(batch_bytes) + " bytes do not fit the buffers"};
  const auto beside_place = local.last(beside);
  local = local.first(local.size() - beside);
  const uint64_t places = remote->length / plan.request_bytes;
  BenchResult result;
  std::vector<TimePoint> started(plan.depth);
  std::vector<size_t> target(plan.depth);  // which part of `local` a slot uses
  std::deque<size_t> idle_targets;         // the longest unused first: targets are as cold as sources
  for (size_t i = 0; i < local.size() / batch_bytes; ++i) idle_targets.push_back(i);
  std::vector<Request> requests(plan.batch_requests);
  uint64_t next_place = 0;
  uint64_t submitted = 0;
  const TimePoint begin = now();
  TimePoint at = begin;  // of the latest completion: when the batch that replaces it starts. One reading for both
  const auto submit = [&](size_t slot) -> Result<void> {
    target[slot] = idle_targets.front();
    idle_targets.pop_front();
    const auto into = local.subspan(target[slot] * batch_bytes, batch_bytes);
    for (size_t i = 0; i < requests.size(); ++i) {
      const uint64_t place = next_place++ % places;
      requests[i] = {.op = plan.op,
                     .peer = peer,
                     .local = into.subspan(i * plan.request_bytes, plan.request_bytes),
                     .buffer = remote_buffer,
                     .offset = place * plan.request_bytes,
                     .transfer_class = plan.transfer_class};
      if (plan.immediates) requests[i].immediate = static_cast<uint32_t>(next_place);
      if (!plan.crc32c.empty()) requests[i].crc32c = plan.crc32c[place % plan.crc32c.size()];
    }
    started[slot] = at;
    ++submitted;
    MC_CHECK(engine.submit(requests, started[slot] + 30s, slot));
    return {};
  };
  const auto submit_beside = [&](size_t which) -> Result<void> {
    const Request request{.op = plan.op,
                          .peer = peer,
                          .local = beside_place.subspan(which * plan.beside_bytes, plan.beside_bytes),
                          .buffer = remote_buffer};
    MC_CHECK(engine.submit({&request, 1}, now() + 30s, plan.depth + which));
    return {};
  };
  size_t flying = 0, flying_beside = 0;
  for (; plan.beside_bytes > 0 && flying_beside < kBesideDepth; ++flying_beside) MC_CHECK(submit_beside(flying_beside));
  for (; flying < plan.depth && (plan.transfers == 0 || submitted < plan.transfers); ++flying) MC_CHECK(submit(flying));
  std::vector<Event> events;
  while (flying + flying_beside > 0) {
    events.clear();
    if (engine.poll(events, at + 60s) == 0) return Error{Code::timeout, "xfer bench: no completion in a minute"};
    for (const Event& event : events) {
      if (event.kind != Event::Kind::batch_done) continue;
      const auto slot = static_cast<size_t>(event.cookie);
      at = now();
      if (slot >= plan.depth) {
        if (event.code == Code::ok) result.beside_bytes += plan.beside_bytes;
        MC_CHECK(engine.close(event.batch, at + 30s));
        if (flying > 0)
          MC_CHECK(submit_beside(slot - plan.depth));
        else
          --flying_beside;
        continue;
      }
      idle_targets.push_back(target[slot]);
      ++result.batches;
      if (event.code != Code::ok)
        ++result.failed;
      else
        result.bytes += batch_bytes;
      if (result.latencies.size() < kLatenciesMax) result.latencies.push_back(at - started[slot]);
      MC_CHECK(engine.close(event.batch, at + 30s));
      --flying;
      const bool more = plan.transfers != 0 ? submitted < plan.transfers : at - begin < plan.duration;
      if (!more) continue;
      MC_CHECK(submit(slot));
      ++flying;
    }
  }
  result.elapsed = now() - begin;
  return result;
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
  const int send_bytes = 256 << 10;  // as ours, see tune_bulk(): the kernel's choice makes a weaker yardstick
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

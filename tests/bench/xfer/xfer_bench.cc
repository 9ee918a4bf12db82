// Prints the engine beside its yardsticks, interleaved, medians: numbers, never a verdict. The peer is
// a child process, so both sides have their own engine thread and address space.
//   bench-xfer [rounds] [MiB]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/fd.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "mem/mem.h"
#include "transports/transports.h"
#include "xfer/bench.h"

using namespace mc;
using namespace mc::xfer;

namespace {

TimePoint in(Duration d) {
  return SystemClock::instance().now() + d;
}

template <class T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "xfer-bench: %s\n", result.error().what.c_str());
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void serve(int to_parent, int from_parent, size_t bytes) {
  Parallel pool(1);
  auto engine = need(open_engine({.name = "holder", .insecure = true}));
  auto arena = need(mem::SharedBuffer::create(bytes, {.prefault = &pool}));
  for (size_t i = 0; i < bytes; ++i) arena.data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  need(engine->register_buffer(arena, {"kv", AccessClass::blocks}));
  const auto descriptor = engine->describe();
  (void)::write(to_parent, descriptor.data(), descriptor.size());
  ::close(to_parent);
  char byte;
  while (::read(from_parent, &byte, 1) == 1) bench_echo(*engine, in(600s));
  ::_exit(0);
}

double percentile(std::vector<Duration> times, double p) {
  std::sort(times.begin(), times.end());
  return to_seconds(times[static_cast<size_t>(static_cast<double>(times.size() - 1) * p)]) * 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const size_t bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 256) << 20;
  auto up = need(make_pipe());
  auto down = need(make_pipe());
  const pid_t child = ::fork();
  if (child == 0) {
    up.read_end.reset();
    down.write_end.reset();
    serve(up.write_end.release(), down.read_end.get(), bytes);
  }
  up.write_end.reset();
  const std::string descriptor = need(read_to_end(up.read_end.get(), 65536, in(60s)));
  const std::span<const std::byte> remote = std::as_bytes(std::span(descriptor));

  Parallel pool(1);
  auto local = need(mem::HostBuffer::allocate(bytes, {.prefault = &pool}));
  auto source = need(mem::HostBuffer::allocate(bytes, {.prefault = &pool}));
  for (size_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);

  const Duration each = 300ms;
  for (const std::string transport : {"tcp", "shm"}) {
    auto engine = need(open_engine({.name = "reader", .transport = transport, .insecure = true}));
    need(engine->register_buffer(local.bytes(), {"local"}));
    const PeerId peer = need(engine->connect(remote, in(10s)));
    std::vector<Event> events;
    while (engine->poll(events, in(10s)) > 0 && events.back().kind != Event::Kind::peer_up) {
    }
    std::printf("%s\n", events.back().text.c_str());
    const uint32_t kv = engine->descriptor(peer)->find("kv")->id;
    for (const auto& [size, batch] : {std::pair<size_t, size_t>{4096, 256},
                                      {size_t{64} << 10, 1},
                                      {size_t{64} << 10, 16},
                                      {size_t{1} << 20, 1},
                                      {size_t{16} << 20, 1}}) {
      std::vector<double> ours, checked, yard, ratio, ratio_checked;
      std::vector<uint32_t> sums;
      for (size_t at = 0; at + size <= bytes; at += size) sums.push_back(crc32c(source.bytes().subspan(at, size)));
      for (int round = 0; round < rounds; ++round) {
        BenchPlan plan{.request_bytes = size, .batch_requests = batch, .duration = each};
        ours.push_back(need(bench_transfer(*engine, peer, kv, local.bytes(), plan)).bytes_per_s());
        const size_t message = size * batch;
        yard.push_back(transport == "tcp" ? need(bench_raw_tcp(source.bytes(), local.bytes(), message, each))
                                          : bench_memcpy(source.bytes(), local.bytes(), message, each));
        plan.crc32c = sums;
        const auto with = need(bench_transfer(*engine, peer, kv, local.bytes(), plan));
        if (with.failed > 0) std::printf("%lu failed\n", with.failed);
        checked.push_back(with.bytes_per_s());
        ratio.push_back(ours.back() / yard.back());
        ratio_checked.push_back(checked.back() / yard.back());
      }
      std::printf("%s read %8zu B x %3zu: %6.2f GB/s  with crc %6.2f  yardstick %6.2f  ratio %.2f  with crc %.2f\n",
                  transport.c_str(), size, batch, median(ours) / 1e9, median(checked) / 1e9, median(yard) / 1e9,
                  median(ratio), median(ratio_checked));
    }
    (void)::write(down.write_end.get(), "e", 1);
    const auto trips = need(bench_notify(*engine, peer, 64, 20000));
    std::printf("%s notify round trip: p50 %.1f us  p90 %.1f  p99 %.1f\n", transport.c_str(), percentile(trips, 0.5),
                percentile(trips, 0.9), percentile(trips, 0.99));
    BenchPlan one{.request_bytes = 4096, .depth = 1, .transfers = 20000};
    const auto small = need(bench_transfer(*engine, peer, kv, local.bytes(), one));
    std::printf("%s read 4096 B latency: p50 %.1f us  p99 %.1f\n", transport.c_str(), percentile(small.latencies, 0.5),
                percentile(small.latencies, 0.99));
    if (transport == "shm") {
      std::vector<double> times;
      for (int i = 0; i < 10001; ++i) {
        const TimePoint begin = SystemClock::instance().now();
        const View view = need(engine->map(peer, kv, static_cast<uint64_t>(i) * 4096, 65536));
        times.push_back(to_seconds(SystemClock::instance().now() - begin) * 1e6);
        if (view.bytes().empty()) return 1;
      }
      std::printf("shm map of 64 KiB: p50 %.2f us\n", median(times));
    }
  }
  down.write_end.reset();
  ::waitpid(child, nullptr, 0);
}

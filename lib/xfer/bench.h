// Measurement of the transfer engine for `mc-bench xfer`, with yardsticks beside it. All code runs on the caller's
// thread and uses only the public interface, so every user measures what the tool measures. Interleave the runs and
// compare within one run, because single figures of a shared machine mean little.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "xfer/xfer.h"

namespace mc::xfer {

struct BenchPlan {
  Op op = Op::read;
  size_t request_bytes = size_t{1} << 20;
  size_t batch_requests = 1;
  size_t depth = 2;              // batches in flight
  Duration duration = 1s;        // no batch is submitted after this time
  uint64_t transfers = 0;        // limit of batches; 0 = no limit
  bool immediates = false;       // each write carries an immediate, which the owner of the peer must take as an event
  std::vector<uint32_t> crc32c;  // expected checksums of consecutive requests of the remote buffer; empty = unchecked
  TransferClass transfer_class = TransferClass::bulk;
  size_t beside_bytes = 0;  // size of two bulk requests that are kept in flight beside, at the end of `local`
};

struct BenchResult {
  uint64_t bytes = 0;
  uint64_t batches = 0;
  uint64_t failed = 0;  // batches with wrong bytes
  Duration elapsed{};
  uint64_t beside_bytes = 0;        // bytes moved by the bulk requests beside; not part of `bytes`
  std::vector<Duration> latencies;  // submit to batch_done of each batch, unsorted, at most 1 Mi
  double bytes_per_s() const { return elapsed.count() > 0 ? static_cast<double>(bytes) / to_seconds(elapsed) : 0; }
};

/// Moves consecutive ranges of the remote buffer into or out of consecutive ranges of `local`. Both wrap around.
/// `local` must be registered and hold depth * batch_requests requests. To measure memory, make both larger than the
/// caches. Other events of the engine are dropped. Any failure other than wrong bytes ends the run: Code::peer_lost,
/// timeout, ...
Result<BenchResult> bench_transfer(Engine& engine, PeerId peer, uint32_t remote_buffer, std::span<std::byte> local,
                                   const BenchPlan& plan);

/// Durations of round trips of a notify of `bytes` to a peer that runs bench_echo. For tests.
Result<std::vector<Duration>> bench_notify(Engine& engine, PeerId peer, size_t bytes, uint64_t rounds);
/// Returns every notify to its sender until `deadline` or an empty notify. For tests.
void bench_echo(Engine& engine, TimePoint deadline);

/// The first yardstick: a loop over one loopback TCP connection between two threads, as a hand-written program would
/// have it. Each message of `message_bytes` is sent from `source` and received into `target` (equal sizes), with one
/// request byte each and `depth` requests in flight. Bytes per second.
Result<double> bench_raw_tcp(std::span<const std::byte> source, std::span<std::byte> target, size_t message_bytes,
                             Duration duration, size_t depth = 2);
/// The second yardstick: memcpy of these ranges on one thread. Bytes per second.
double bench_memcpy(std::span<const std::byte> source, std::span<std::byte> target, size_t message_bytes,
                    Duration duration);

}  // namespace mc::xfer

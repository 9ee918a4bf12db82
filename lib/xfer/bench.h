// Measurement of the transfer engine, for `mc-bench xfer`, and yardsticks to compare it with.
// Everything runs on the caller's thread and uses only the public face, so a user gets the same numbers.
// Compare within one run and interleave; single figures of a shared machine mean little.
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
  Duration duration = 1s;        // stops submitting after this
  uint64_t transfers = 0;        // or after this many batches, when not zero
  bool immediates = false;       // writes carry a number each, which the peer's owner must take as events
  std::vector<uint32_t> crc32c;  // expected sums of consecutive requests of the remote buffer; empty = not checked
  TransferClass transfer_class = TransferClass::bulk;
  size_t beside_bytes = 0;  // two bulk requests of this size are kept in flight beside, with the end of `local`
};

struct BenchResult {
  uint64_t bytes = 0;
  uint64_t batches = 0;
  uint64_t failed = 0;  // batches whose bytes were wrong
  Duration elapsed{};
  uint64_t beside_bytes = 0;        // moved by what ran beside; not in `bytes`
  std::vector<Duration> latencies;  // of batches, submit to batch_done, unsorted; at most 1 Mi
  double bytes_per_s() const { return elapsed.count() > 0 ? static_cast<double>(bytes) / to_seconds(elapsed) : 0; }
};

/// Moves consecutive ranges of the remote buffer into or out of consecutive ranges of `local` (both
/// wrapping), which must be registered and hold depth * batch_requests requests: make both larger than
/// the caches to measure memory. The engine's other events are dropped. A batch that fails otherwise than by
/// wrong bytes ends the run: Code::peer_lost, timeout, ...
Result<BenchResult> bench_transfer(Engine& engine, PeerId peer, uint32_t remote_buffer, std::span<std::byte> local,
                                   const BenchPlan& plan);

/// Round trips of a notify of `bytes` to a peer that runs bench_echo; the durations of each. For tests.
Result<std::vector<Duration>> bench_notify(Engine& engine, PeerId peer, size_t bytes, uint64_t rounds);
/// Sends every notify back to where it came from until `deadline` or until an empty one arrives. For tests.
void bench_echo(Engine& engine, TimePoint deadline);

/// The yardsticks. A loop over one loopback TCP connection between two threads, each message sent from
/// `source` and received into `target` (equal sizes, cut into `message_bytes`), one request byte each,
/// `depth` requests in flight: what a hand-written program would do. Bytes per second.
Result<double> bench_raw_tcp(std::span<const std::byte> source, std::span<std::byte> target, size_t message_bytes,
                             Duration duration, size_t depth = 2);
/// memcpy of the same ranges on one thread. Bytes per second.
double bench_memcpy(std::span<const std::byte> source, std::span<std::byte> target, size_t message_bytes,
                    Duration duration);

}  // namespace mc::xfer

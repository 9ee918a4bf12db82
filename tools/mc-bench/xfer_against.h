// The references of `mc-bench xfer --against`: what another program moves on the same path, measured
// right beside ours, so that a noisy machine troubles both alike. Only the ratio of a pair means
// something.
//   memcpy, raw                          loops of ours (xfer/bench.h) over the same memory
//   iperf3                               a TCP stream of small cached buffers
//   ib_write_bw, ib_read_bw, ib_read_lat perftest
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/choice.h"
#include "base/clock.h"
#include "base/result.h"

namespace mc::bench {

enum class Reference : uint8_t { none, memcpy, raw, iperf3, ib_write_bw, ib_read_bw, ib_read_lat };
/// The words of --against. A program is called by its word.
inline constexpr FlagWord<Reference> kReferences[] = {{"none", Reference::none},
                                                      {"memcpy", Reference::memcpy},
                                                      {"raw", Reference::raw},
                                                      {"iperf3", Reference::iperf3},
                                                      {"ib_write_bw", Reference::ib_write_bw},
                                                      {"ib_read_bw", Reference::ib_read_bw},
                                                      {"ib_read_lat", Reference::ib_read_lat}};
std::string name_of(Reference reference);
/// A program of perftest, which needs an RDMA device.
bool is_perftest(Reference reference);

struct ReferencePlan {
  Reference reference = Reference::none;
  std::span<const std::byte> source;
  std::span<std::byte> target;
  size_t request_bytes = 0;
  size_t depth = 2;
  uint64_t streams = 1;
  Duration duration = 1s;
  uint64_t iterations = 1000;            // perftest counts instead of timing
  std::string host = "127.0.0.1";        // where the other side of a program is
  bool start_other_side = true;          // false: its server already runs on `host`
  std::string client_args, server_args;  // further arguments, separated by blanks: -d rxe0 -x 1
};

/// True when its result is a latency (lower is better), not a rate.
bool is_latency(Reference reference);
/// Bytes per second, or seconds of one round trip. A program that is not installed: MC8005.
Result<double> run_reference(const ReferencePlan& plan);

/// Reads the output of the programs; MC8008 for other text.
Result<double> parse_iperf3(const std::string& text);
Result<double> parse_perftest(const std::string& text, bool latency);

struct Ratio {
  double median = 0, low = 0, high = 0;  // quartiles
};
Ratio summarise(std::vector<double> ratios);

}  // namespace mc::bench

// The estimated speed of one path, and the amount of work that the path should hold (internal, pure).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace mc::xfer {

class PathSpeed {
 public:
  // A batch may end later by this time when the slowest path got the last slices. Completions are noticed far earlier
  // than a path with this much work runs dry. The time is well below the packet timeout (67 ms at rdma_timeout 14),
  // because a request that waits longer behind other requests of this process is sent again.
  static constexpr Duration kAheadTime = 45ms;
  static constexpr Duration kSliceTime = 10ms;
  static constexpr Duration kBurstTime = 1ms;
  // Used while the speed is unknown: 52 ms at 10 MB/s, and 25 GB/s over a round trip of 20 us.
  static constexpr uint64_t kFirstAhead = uint64_t{768} << 10;
  static constexpr uint64_t kFirstSlice = uint64_t{256} << 10;
  static constexpr uint64_t kLeastBurst = uint64_t{64} << 10;
  static constexpr uint64_t kLeastAhead = uint64_t{192} << 10;
  // Minimum amount of data for a sample.
  static constexpr uint64_t kSampleBytes = uint64_t{256} << 10;
  static constexpr Duration kSampleTime = 20ms;

  /// Work starts on an idle path.
  void started(TimePoint now) {
    since_ = now;
    bytes_ = 0;
  }
  /// `bytes` of the work have arrived.
  void moved(uint64_t bytes, TimePoint now) {
    bytes_ += bytes;
    if (bytes_ < kSampleBytes || now - since_ < kSampleTime) return;
    const double sample = static_cast<double>(bytes_) / seconds(now - since_);
    bytes_per_s_ = bytes_per_s_ == 0 ? sample : (bytes_per_s_ + sample) / 2;
    started(now);
  }
  double bytes_per_s() const { return bytes_per_s_; }  // 0 = unknown

  /// Bytes that the path moves in kAheadTime, so that a slow path does not hold work which a fast one could take.
  uint64_t allowance() const { return bytes_per_s_ == 0 ? kFirstAhead : std::max(kLeastAhead, in(kAheadTime)); }
  /// Bytes that the path moves in kSliceTime. Moderate while the speed is unknown.
  uint64_t slice_bytes() const { return bytes_per_s_ == 0 ? kFirstSlice : in(kSliceTime); }
  /// Bytes for one doorbell: those that the path moves in kBurstTime, but at most `most`. A software device processes
  /// all of them at once. It moves long work to a kernel thread, which competes with a polling caller.
  uint64_t burst(uint64_t most) const { return std::clamp(in(kBurstTime), kLeastBurst, most); }

 private:
  static double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }
  uint64_t in(Duration time) const { return static_cast<uint64_t>(bytes_per_s_ * seconds(time)); }

  double bytes_per_s_ = 0;
  TimePoint since_{};
  uint64_t bytes_ = 0;
};

}  // namespace mc::xfer

// Estimate of the speed of one path, and how much work the path should hold because of it (internal, pure).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace mc::xfer {

class PathSpeed {
 public:
  // A batch may end this much later than it could when the slowest path got the last slices; completions
  // are seen far sooner than they take to run dry. Well below the packet timeout (67 ms at rdma_timeout 14):
  // a request that waits longer than that behind our own requests is sent again.
  static constexpr Duration kAheadTime = 45ms;
  static constexpr Duration kSliceTime = 10ms;
  static constexpr Duration kBurstTime = 1ms;
  // While the speed is not known: 52 ms at 10 MB/s, and 25 GB/s over a round trip of 20 us.
  static constexpr uint64_t kFirstAhead = uint64_t{768} << 10;
  static constexpr uint64_t kFirstSlice = uint64_t{256} << 10;
  static constexpr uint64_t kLeastBurst = uint64_t{64} << 10;
  static constexpr uint64_t kLeastAhead = uint64_t{192} << 10;
  // A sample is taken over at least this much.
  static constexpr uint64_t kSampleBytes = uint64_t{256} << 10;
  static constexpr Duration kSampleTime = 20ms;

  /// Work starts on an idle path.
  void started(TimePoint now) {
    since_ = now;
    bytes_ = 0;
  }
  /// Bytes of it have arrived.
  void moved(uint64_t bytes, TimePoint now) {
    bytes_ += bytes;
    if (bytes_ < kSampleBytes || now - since_ < kSampleTime) return;
    const double sample = static_cast<double>(bytes_) / seconds(now - since_);
    bytes_per_s_ = bytes_per_s_ == 0 ? sample : (bytes_per_s_ + sample) / 2;
    started(now);
  }
  double bytes_per_s() const { return bytes_per_s_; }  // 0 = not known yet

  /// Bytes it moves in kAheadTime, so that a slow path does not hold work a fast one could take.
  uint64_t allowance() const { return bytes_per_s_ == 0 ? kFirstAhead : std::max(kLeastAhead, in(kAheadTime)); }
  /// Bytes it moves in kSliceTime; moderate until its speed is known.
  uint64_t slice_bytes() const { return bytes_per_s_ == 0 ? kFirstSlice : in(kSliceTime); }
  /// Bytes that one doorbell sets going: at most what it moves in kBurstTime, and at most `most`. A software device
  /// carries all of it in one go, and puts long work off to a kernel thread, which competes with a caller that polls.
  uint64_t burst(uint64_t most) const { return std::clamp(in(kBurstTime), kLeastBurst, most); }

 private:
  static double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }
  uint64_t in(Duration time) const { return static_cast<uint64_t>(bytes_per_s_ * seconds(time)); }

  double bytes_per_s_ = 0;
  TimePoint since_{};
  uint64_t bytes_ = 0;
};

}  // namespace mc::xfer

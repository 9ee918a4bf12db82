// Parcels are the transfers between the nodes of a simulated cluster with what they carry: parts of prefixes, KV for
// decode nodes, and copies of hot prefixes. Links (sim/links.h) finds the time at which each transfer is over.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/links.h"

namespace mc::sim {

struct Parcel {
  enum class Kind : uint8_t { fetch, handoff, copy } kind = Kind::fetch;
  uint32_t request = 0, attempt = 0;  // or the number of the copy
  uint32_t first_block = 0;           // of the part of a prefix (sim/prefix_parts.h)
};

class Parcels {
 public:
  static constexpr double kUncapped = 1e300;  // bytes/s

  Parcels(size_t ends, double bytes_per_s) : links_(ends, bytes_per_s) {}
  /// Sends the bytes at `cap` bytes/s or less.
  void send(double now_s, const Parcel& parcel, uint32_t from, uint32_t to, double bytes, double cap = kUncapped) {
    const uint32_t transfer = links_.start(now_s, from, to, bytes, cap);
    if (carried_.size() <= transfer) carried_.resize(transfer + 1);
    carried_[transfer] = parcel;
  }
  /// When the next parcel arrives; Links::kNever = none is on its way.
  double next_s() const { return links_.next_s(); }
  Parcel take_next() { return carried_[links_.finish_next()]; }
  /// Loses all parcels from and to this end.
  void stop(double now_s, uint32_t end) { links_.stop(now_s, end); }
  double moved_bytes() const { return links_.moved_bytes(); }

 private:
  Links links_;
  std::vector<Parcel> carried_;  // by each transfer
};

}  // namespace mc::sim

// The link into a costed worker: when the modelled network has carried each of its reads. It carries one at a time, in
// the order they began; one that is cancelled, or fails, gives the rest of its time to those behind it.
#pragma once

#include <cstdint>
#include <list>
#include <optional>

#include "base/clock.h"

namespace mc::costed {

class ModelledLink {
 public:
  /// A read that keeps the link busy for `length`. Numbers are not used twice.
  void begin(uint64_t read, Duration length, TimePoint now);
  /// When the link has carried it; nothing for a read that is not known or over.
  std::optional<TimePoint> carried_at(uint64_t read) const;
  /// It is over, carried whole or not: those behind it that have not started are carried as early as that allows.
  void end(uint64_t read, TimePoint now);

 private:
  struct Carried {
    uint64_t read;
    Duration length;
    TimePoint start{};
    TimePoint end() const { return start + length; }
  };
  std::list<Carried> reads_;  // in order of beginning, and so of start; none overlap
};

}  // namespace mc::costed

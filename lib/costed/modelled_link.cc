// The queue of modelled_link.h: reads in order of their beginning, each starting when the one before it is carried.
#include "costed/modelled_link.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"

namespace mc::costed {

void ModelledLink::begin(uint64_t read, Duration length, TimePoint now) {
  MC_ASSERT(length >= Duration(0) && !carried_at(read));
  const TimePoint start = reads_.empty() ? now : std::max(now, reads_.back().end());
  MC_ASSERT(reads_.empty() || reads_.back().start <= start);
  reads_.push_back({read, length, start});
}

std::optional<TimePoint> ModelledLink::carried_at(uint64_t read) const {
  const auto it = std::ranges::find(reads_, read, &Carried::read);
  if (it == reads_.end()) return std::nullopt;
  return it->end();
}

void ModelledLink::end(uint64_t read, TimePoint now) {
  const auto over = std::ranges::find(reads_, read, &Carried::read);
  if (over == reads_.end()) return;
  TimePoint free = over == reads_.begin() ? now : std::max(now, std::prev(over)->end());
  for (auto it = reads_.erase(over); it != reads_.end(); ++it) {
    if (it->start > now) it->start = free;
    free = std::max(now, it->end());
  }
}

}  // namespace mc::costed

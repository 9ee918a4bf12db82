#include "kv/events.h"

#include <algorithm>

#include "kv/block_table.h"

namespace mc::kv {

std::string_view to_string(Removal removal) {
  switch (removal) {
    case Removal::evicted: return "evicted";
    case Removal::dropped: return "dropped";
    case Removal::corrupt: return "corrupt";
    case Removal::demoted: return "demoted";
    case Removal::unreadable: return "unreadable";
  }
  return "?";
}

void EventLog::append(BlockEvent event) {
  event.seq = ++last_seq_;
  if (table_) table_->apply(event);
  events_.push_back(event);
  if (events_.size() > event_count_max_) {
    events_.pop_front();
    ++lost_count_;
  }
}

std::vector<BlockEvent> EventLog::drain(size_t count_max) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(count_max, events_.size()));
  std::vector<BlockEvent> out(events_.begin(), events_.begin() + count);
  events_.erase(events_.begin(), events_.begin() + count);
  return out;
}

}  // namespace mc::kv

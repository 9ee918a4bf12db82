#include "sim/disk_reads.h"

#include <algorithm>

namespace mc::sim {

double DiskReads::begin(const TieredCaches& caches, uint32_t node, std::span<const uint32_t> blocks, double bytes,
                        const sched::Path& path, double now_s) {
  if (now_s >= free_s_) read_at_s_.clear();
  if (bytes > 0) {
    free_s_ = std::max(now_s, free_s_) + path.seconds(bytes);
    for (const uint32_t block : blocks)
      if (caches.is_on_ssd(node, block)) read_at_s_[block] = free_s_;
  }
  double ready_s = now_s;
  if (read_at_s_.empty()) return ready_s;
  for (const uint32_t block : blocks)
    if (const auto read = read_at_s_.find(block); read != read_at_s_.end()) ready_s = std::max(ready_s, read->second);
  return ready_s;
}

}  // namespace mc::sim

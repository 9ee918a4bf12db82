// Recovery after a restart: every segment is read, and the index is what its entries say, oldest first. The log ends at
// the first group that is not whole; nothing behind that is looked at. Recovering twice gives the same as once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/segment_reader.h"
#include "store/segments.h"

namespace mc::store {

struct Recovered {
  std::optional<std::pair<Segment, SegmentContent>> active;  // the segment in which the log ends, if it has room
  uint64_t sequence = 0;                                     // highest of all segments
  uint64_t number = 0;                                       // of the last group
  uint64_t sealed = 0, walked = 0;                           // segments read by their tables, and from group to group
  uint64_t entries = 0;
  std::vector<std::string> damaged;  // one line for each thing that should have been there and was not
};

/// Fills `segments` and `index`, both empty before.
Result<Recovered> recover(const SegmentReader& reader, Segments& segments, Index& index);

}  // namespace mc::store

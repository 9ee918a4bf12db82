// Reads a segment back: what a restart and the reuse of space know about it. Every byte is hostile: each header and
// table is checked as lib/wire says, and values are checked against their CRC where nothing vouches for them.
#pragma once

#include "store/log.h"

namespace mc::store {

struct SegmentReader {
  Disk& disk;
  uint64_t store;  // first 8 bytes of the store's id
  uint64_t epoch;  // highest that can be
  uint32_t segment_pages;

  /// The first header alone. not_found: the segment is free. io: the file cannot be read.
  Result<wire::StoreGroup> head(const Segment& segment) const;

  /// All groups below number `end`, by the table or, without a good one, from group to group. Values of groups above
  /// number `durable` are checked, and the segment ends before the first group with a damaged value.
  Result<SegmentContent> read(const Segment& segment, uint64_t end, uint64_t durable) const;

 private:
  Result<SegmentContent> read_table(const Segment& segment) const;
  Result<SegmentContent> walk(const Segment& segment, uint64_t end, uint64_t durable) const;
  Result<bool> values_sound(const Segment& segment, std::span<const wire::StoreEntry> entries) const;
};

}  // namespace mc::store

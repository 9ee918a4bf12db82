// The end of the log: the segment that is being filled. A group is one write: a header page that names the values, and
// the values behind it, straight from the caller's memory where that is aligned. One flush then makes every group
// durable that was written before (group commit, DeWitt et al., SIGMOD 1984). One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "store/index.h"
#include "store/pages.h"

namespace mc::store {

struct Segment {
  std::string name;  // of its file
  FileId file = 0;
  uint64_t sequence = 0;      // 0 = free
  uint64_t end = UINT64_MAX;  // its groups have lower numbers
};

/// A segment that was read back. The log may go on behind its groups.
struct SegmentContent {
  uint64_t sequence = 0;
  uint64_t first = 0, last = 0;  // numbers of its groups
  uint64_t durable = 0;          // highest number that its headers call flushed
  bool sealed = false;           // it has a table, and nothing may be added
  std::vector<wire::StoreEntry> entries;
  uint32_t end_page = 0;  // behind the last group
  uint32_t last_crc = 0;  // of the last header
};

class Log {
 public:
  Log(Disk& disk, uint64_t store, uint64_t epoch, uint32_t segment_pages);

  /// Goes on in an empty segment. The one before it was sealed or is given up, with the groups that were not flushed.
  void begin(Segment segment);
  /// Goes on behind the groups of `content`, which are durable.
  void resume(Segment segment, SegmentContent content);
  /// Starts behind group `last`.
  void start_after(uint64_t last) { number_ = durable_ = last; }

  /// Whether one more group of these items has room. False after an error: nothing is tried twice on one file.
  bool fits(std::span<Item* const> items) const;
  /// Writes one group of at most kStoreGroupEntriesMax items; fits() holds. Sets page and file of each item.
  Result<void> append(std::span<Item* const> items);
  /// After a flush that failed: the last group is as if it had never been written, so that a restart does not find what
  /// the caller was told had failed. Its header is overwritten, and the next group, in another segment, gets its
  /// number.
  void take_back();
  /// Makes all groups of this segment durable.
  Result<void> flush();
  uint64_t unflushed() const { return number_ - durable_; }  // groups
  /// Flushes, and writes the table. Does nothing after an error: such a segment is read from group to group.
  Result<void> seal();

  const Segment& segment() const { return segment_; }
  uint64_t number() const { return number_; }

 private:
  /// The memory of the values as the disk takes it: whole pages, with zeros behind the last byte.
  void gather(std::span<Item* const> items);
  void wipe(uint32_t page);
  /// Writes parts_ at the offset, in pieces at once.
  Result<void> write_parts(uint64_t offset);

  Disk& disk_;
  const uint64_t store_, epoch_;
  const uint32_t segment_pages_;
  Segment segment_;
  uint32_t cursor_ = 0;  // page of the next group
  uint32_t begin_ = 0;   // page of the last group
  uint32_t last_crc_ = 0;
  bool closed_ = false;                // sealed, or a write or flush failed: nothing is added
  uint64_t first_ = 0;                 // number of the segment's first group
  uint64_t number_ = 0, durable_ = 0;  // of the last group; highest flushed
  std::vector<wire::StoreEntry> entries_, group_;
  std::vector<iovec> parts_, pieces_;  // of a group; cut for the disk
  PageBuffer header_, copies_, table_;
};

}  // namespace mc::store

// The segment files of a store: which are free, which are sealed and in what order they were filled. Space is reused
// oldest first, as in a circular log: a drop is always younger than the value that it drops, so the value's segment
// goes first and the value can never come back. One thread at a time.
#pragma once

#include <deque>
#include <vector>

#include "store/log.h"

namespace mc::store {

class Segments {
 public:
  Segments(Disk& disk, uint64_t segment_bytes, Access access)
      : disk_(disk), segment_bytes_(segment_bytes), access_(access) {}

  /// Opens every segment file of the disk. A file of another size is removed, unless only
  /// reading is allowed, and its name is in `damaged`.
  Result<std::vector<Segment>> open(std::vector<std::string>& damaged);
  void add_free(Segment segment);
  /// Sealed ones are added in the order of their sequence.
  void add_sealed(Segment segment);
  /// False: there is none.
  bool take_free(Segment& out);
  const Segment* oldest() const { return sealed_.empty() ? nullptr : &sealed_.front(); }

  /// A name that no segment has, counted as a file from now on. create() may run beside other calls; its result goes to
  /// add_free(), or its failure to give_up().
  std::string new_name();
  void give_up() { --total_; }
  Result<Segment> create(const std::string& name) const;
  /// Makes a segment free that has a header: it is gone for good before this returns, and cannot come back between
  /// newer segments after a restart. `keep` = false removes the file as well.
  /// With read_only the segment is left out, and its file stays.
  Result<void> erase(const Segment& segment, bool keep);
  /// The oldest sealed segment. Its blocks were forgotten or moved.
  Result<void> erase_oldest(bool keep);

  size_t free_count() const { return free_.size(); }
  /// All files, the one being filled included.
  size_t total() const { return total_; }

 private:
  Disk& disk_;
  const uint64_t segment_bytes_;
  const Access access_;
  std::deque<Segment> free_, sealed_;
  size_t total_ = 0;
  uint32_t next_name_ = 0;
};

}  // namespace mc::store

// Reads of cached blocks into the pages of a later pipeline stage, which the leader asks for (node/block_reads.h). The
// stage reads its layers alone, and the leader owns the pages until it has the answer.
//
// Chunks come from the stage before, and reads from the leader itself, so either may overtake the other. Their numbers
// show which is younger: of two that write one page, the older one belongs to a request that the leader has given up.
//   - A read is refused when a younger chunk has arrived, or while a chunk that writes its pages is here, or another
//     read that writes the same layers of them. The reads of one prefix from two stages of a holder write other layers.
//   - A chunk is refused when a younger read has taken one of its pages.
//   - A chunk waits while a read may still write its pages, because the leader's wait for an answer has a limit.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/extent.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/page_counts.h"

namespace mc::node {

class StageReads {
 public:
  static constexpr size_t kMax = 256;  // reads under way; more are refused as busy

  /// `numbers` must outlive the object. `layout` is that of the stage's pages.
  StageReads(Numbers& numbers, const ExtentLayout& layout, uint32_t page_count)
      : numbers_(numbers), layout_(layout), newest_(page_count), writes_(page_count) {}

  /// Why the read cannot be begun. Code::invalid: it does not fit this stage, so the members of the pipeline have
  /// different flags. Code::busy: it is too old, or too many are under way. `newest_run`: the leader's newest chunk
  /// here.
  Result<void> may_start(const wire::StageRead& asked, uint64_t newest_run) const;
  /// Begins a read that may_start().
  void start(const Received& event, const wire::StageRead& asked, Actions& out);
  static void refuse(const Received& event, const wire::StageRead& asked, Error why, Actions& out);
  /// Ends a read of this leader early.
  void cancel(const InstanceId& leader, uint64_t read, Actions& out) const;
  /// False when the read is none of these.
  bool on_read(const ReadDone& done, Actions& out);
  /// Cancels all reads, because the conductor is gone.
  void cancel_all(Actions& out) const;
  /// The leader is gone. The numbers of the next one begin anew.
  void forget_leader(Actions& out);
  /// Whether a read that is younger than the chunk `run` has taken one of the chunk's pages.
  bool is_younger(uint64_t run, std::span<const uint32_t> pages) const;
  /// Whether a read may still write one of the pages.
  bool writes(std::span<const uint32_t> pages) const { return writes_.any_used(pages); }
  bool idle() const { return reads_.empty(); }
  void check() const;

 private:
  struct Asked {
    uint64_t read;  // by the leader's count
    NodeId leader;
    InstanceId instance;
    std::vector<uint32_t> pages;  // ascending
    LayerRange layers;
  };

  bool writes(std::span<const uint32_t> pages, LayerRange layers) const;

  Numbers& numbers_;
  ExtentLayout layout_;
  std::vector<uint64_t> newest_;     // [page]: the leader's number of the newest read into it
  std::map<uint64_t, Asked> reads_;  // key: number of the read here
  PageCounts writes_;                // reads under way that write a page
};

}  // namespace mc::node

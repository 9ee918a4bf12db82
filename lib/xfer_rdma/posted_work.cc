#include "xfer_rdma/posted_work.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::xfer {

bool PostedWork::holds(uint64_t slice) const {
  for (size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].slice.id == slice) return true;
  return std::any_of(failed_.begin(), failed_.end(), [&](const Failed& failed) { return failed.slice.id == slice; });
}

size_t PostedWork::room(std::span<const Slice> slices, uint64_t window) const {
  size_t count = 0;
  uint64_t bytes = bytes_;
  for (const Slice& slice : slices) {
    bytes += slice.local.size();
    // at least two: the next request must be on its way while one is served
    if (pending_.size() + count >= 2 && bytes > window) break;
    ++count;
  }
  return count;
}

PostedWork::Pending& PostedWork::add(const Slice& slice, uint64_t last) {
  MC_ASSERT_LT(retired_, last);
  MC_ASSERT(pending_.empty() || pending_[pending_.size() - 1].last <= last);
  bytes_ += slice.local.size();
  Pending& pending = pending_.emplace_back();
  pending.slice = slice;
  pending.last = last;
  return pending;
}

void PostedWork::carry(const Slice& slice, uint64_t last) {
  Pending& pending = add(slice, last);
  pending.partial = false;
  pending.immediate = slice.immediate ? ++immediates_ : 0;
}

void PostedWork::carry_part(const Slice& slice, uint64_t last) {
  Pending& pending = add(slice, last);
  pending.partial = true;
  pending.immediate = 0;
}

void PostedWork::complete(uint64_t sequence, WorkStatus status, std::vector<Slice>& ok) {
  MC_ASSERT_LT(retired_, sequence);
  MC_ASSERT_LE(sequence, posted_);
  retired_ = sequence;
  while (!pending_.empty() && pending_.front().last <= sequence) {
    Pending& front = pending_.front();
    MC_ASSERT_LE(front.slice.local.size(), bytes_);
    bytes_ -= front.slice.local.size();
    // Requests complete in order, so those before the failed request have succeeded.
    const bool before = front.last < sequence && status != WorkStatus::flushed;
    if ((before || status == WorkStatus::ok) && !front.partial)
      ok.push_back(front.slice);
    else
      failed_.push_back({front.slice, front.partial ? WorkStatus::flushed : status, front.immediate});
    pending_.drop_front();
  }
  MC_ASSERT(!pending_.empty() || bytes_ == 0);
  MC_ASSERT(retired_ < posted_ || pending_.empty());
}

std::vector<PostedWork::Failed> PostedWork::take_failed() {
  for (size_t i = 0; i < pending_.size(); ++i)
    failed_.push_back({pending_[i].slice, WorkStatus::flushed, pending_[i].immediate});
  pending_.clear();
  bytes_ = 0;
  return std::exchange(failed_, {});
}

}  // namespace mc::xfer

#include "node/disk_writes.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "node/disk_block.h"

namespace mc::node {
namespace {
constexpr size_t kLeavesSearched = 64;  // coldest chains that are searched for a block to write
constexpr size_t kDepthSearched = 64;   // blocks of each that are looked at, from its end
constexpr Duration kLookEvery = 5ms;    // after a search that found nothing
constexpr uint64_t kSegmentsFree = 3;   // of the store: one being filled, and two that are free
}  // namespace

bool DiskWrites::may_spend(uint64_t bytes, TimePoint now) {
  if (options_.write_bytes_per_s <= 0) return true;
  const double most = std::max(options_.write_bytes_per_s, static_cast<double>(bytes));  // one second's worth
  spend_bytes_ = std::min(most, spend_bytes_ + to_seconds(now - spend_at_) * options_.write_bytes_per_s);
  spend_at_ = now;
  if (spend_bytes_ < static_cast<double>(bytes)) return false;
  spend_bytes_ -= static_cast<double>(bytes);
  return true;
}

// A block whose position contradicts its parent (from a peer of an older release) has no form on disk.
bool DiskWrites::wants(const Shelf& shelf, kv::PageIndex page) const {
  const kv::BlockMeta& meta = shelf.pool.meta(page);
  return !blocks_.has(meta.hash) && !writing_.contains(meta.hash) && !removed_.contains(meta.hash) &&
         meta.layer_crcs.size() == shelf.layout.layers && meta.parent.is_zero() == (meta.first_position == 0) &&
         meta.first_position % shelf.layout.block_tokens == 0;
}

bool DiskWrites::used_enough(const BlockHash& hash) const {
  return 1 + reuses_.of(hash) >= options_.uses_min;
}

void DiskWrites::hit(const BlockHash& hash) {
  removed_.erase(hash);
  if (options_.uses_min > 1) reuses_.used(hash);
}

void DiskWrites::evicted(const BlockHash& hash) {
  if (options_.uses_min <= 1) return;
  spared_ += !blocks_.has(hash) && !used_enough(hash);
  reuses_.left(hash);
}

void DiskWrites::write(Shelf& shelf, kv::PageIndex page, Actions& out) {
  const kv::BlockMeta& meta = shelf.pool.meta(page);
  Write write;
  write.shelf = &shelf, write.page = page;
  write.block = {meta.hash,    meta.parent,     meta.name_space, meta.first_position,
                 shelf.layout, meta.layer_crcs, meta.tokens};
  shelf.pool.pin(page);
  const uint64_t op = numbers_.next();
  out.push_back(DiskWrite{op, shelf.number, page, write.block});
  const bool fresh = writing_.insert(meta.hash).second;
  MC_ASSERT(fresh);
  writes_.emplace(op, std::move(write));
}

bool DiskWrites::fits(const Shelf& shelf) const {
  return fits_disk(shelf.layout) && disk_value_bytes(shelf.layout) <= options_.value_bytes_max;
}

/// The number of writes that may be under way while a block of this shelf is among them.
size_t DiskWrites::writes_most(const Shelf& shelf) const {
  // A page that is written cannot be evicted meanwhile, so most pages of a small pool are left alone.
  const size_t most = std::min<size_t>(options_.writes_max, std::max(1u, shelf.pool.counts().total / 4));
  // Running requests may need the others at once, and would be preempted for lack of them.
  const auto here = static_cast<size_t>(
      std::count_if(writes_.begin(), writes_.end(), [&](const auto& write) { return write.second.shelf == &shelf; }));
  const size_t spare = (shelf.pool.counts().evictable + here) / 2;
  return std::min(most, writes_.size() - here + spare);
}

// The victims of the next evictions: the coldest leaves, and after each leaf its ancestors.
void DiskWrites::write_cold(Shelf& shelf, TimePoint now, Actions& out) {
  const uint32_t over = shelf.pool.pages_over(options_.write_above);
  if (over == 0 || !fits(shelf)) return;
  const uint64_t bytes = disk_value_bytes(shelf.layout);
  const size_t most = writes_most(shelf);
  for (const kv::PageIndex leaf : shelf.pool.candidates(std::min<uint32_t>(over, kLeavesSearched))) {
    size_t depth = 0;
    for (kv::PageIndex page = leaf; page != kv::kNoPage && depth < kDepthSearched; ++depth) {
      const BlockHash parent = shelf.pool.meta(page).parent;
      if (wants(shelf, page) && used_enough(shelf.pool.meta(page).hash)) {
        if (writes_.size() >= most || !may_spend(bytes, now)) return;
        write(shelf, page, out);
      }
      page = parent.is_zero() ? kv::kNoPage : shelf.pool.find(parent);
    }
  }
}

void DiskWrites::ask(Shelf& shelf, std::span<const BlockHash> hashes) {
  if (stopped_) return;
  for (const BlockHash& hash : hashes) {
    removed_.erase(hash);
    if (has(hash) || waiting_[hash]++ > 0) continue;
    asked_.emplace_back(&shelf, hash);
    if (write_out_) (void)write_out_->spend(room_for(shelf));
  }
  look_at_ = TimePoint{};
}

void DiskWrites::unask(std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : hashes)
    if (const auto it = waiting_.find(hash); it != waiting_.end() && --it->second == 0) waiting_.erase(it);
  if (waiting_.empty()) asked_.clear();
}

/// False: blocks are left, because as many writes are under way as may be, or the write budget is spent.
bool DiskWrites::write_asked(TimePoint now, Actions& out) {
  while (!asked_.empty()) {
    Shelf& shelf = *asked_.front().first;
    const BlockHash hash = asked_.front().second;
    const kv::PageIndex page = shelf.pool.find(hash);
    const bool writes = waiting_.contains(hash) && page != kv::kNoPage && fits(shelf) && wants(shelf, page);
    if (writes && (writes_.size() >= options_.writes_max || !may_spend(disk_value_bytes(shelf.layout), now)))
      return false;
    asked_.pop_front(), waiting_.erase(hash);
    if (writes) write(shelf, page, out);
  }
  return true;
}

/// The store keeps segments free. A value lies in one segment, which is little more than the largest value.
uint64_t DiskWrites::usable_bytes() const {
  const uint64_t capacity = options_.capacity_bytes, segment = std::min(options_.value_bytes_max, capacity / 4);
  return capacity - std::min(kSegmentsFree * segment, capacity / 4 * 3);
}

/// The space of a segment that a block of this shelf takes.
uint64_t DiskWrites::room_for(const Shelf& shelf) const {
  const uint64_t bytes = disk_value_bytes(shelf.layout);
  const uint64_t segment = std::min(options_.value_bytes_max, options_.capacity_bytes / 4);
  return segment / std::max<uint64_t>(1, segment / bytes);
}

void DiskWrites::start_write_out() {
  if (write_out_) return;
  removed_.clear();  // nothing else saves these blocks
  look_at_ = TimePoint{};
  const uint64_t usable = usable_bytes();
  write_out_.emplace(std::max(usable - std::min(blocks_.bytes(), usable), usable / 2));
  for (const auto& [op, write] : writes_) (void)write_out_->spend(room_for(*write.shelf));
  for (const auto& [shelf, hash] : asked_) (void)write_out_->spend(room_for(*shelf));
}

void DiskWrites::write_rest(std::span<Shelf* const> shelves, TimePoint now, Actions& out) {
  const auto wanted = [&](const Shelf& shelf, kv::PageIndex page) { return fits(shelf) && wants(shelf, page); };
  while (const WriteOut::Place* place = write_out_->next(shelves, wanted, now)) {
    Shelf& shelf = *place->shelf;
    if (place->is_cached() && wanted(shelf, place->page)) {
      // Pages that an operator pinned cannot be evicted and are written all the same.
      if (writes_.size() >= std::max<size_t>(1, writes_most(shelf))) return;
      if (!may_spend(disk_value_bytes(shelf.layout), now)) return;
      if (!write_out_->spend(room_for(shelf))) continue;
      write(shelf, place->page, out);
    }
    write_out_->advance();
  }
}

void DiskWrites::tend(std::span<Shelf* const> shelves, TimePoint now, bool asked_alone, Actions& out) {
  if (options_.uses_min > 1) {
    size_t pages = 0;
    for (const Shelf* shelf : shelves) pages += shelf->pool.counts().total;
    reuses_.remember(2 * pages);
  }
  if (stopped_ || now < look_at_ || writes_.size() >= options_.writes_max) return;
  const size_t before = writes_.size();
  const bool may_write_others = write_asked(now, out) && !asked_alone;
  if (may_write_others && write_out_) write_rest(shelves, now, out);
  if (may_write_others && !write_out_)
    for (Shelf* shelf : shelves) write_cold(*shelf, now, out);
  const bool all_written = write_out_ && write_out_->is_done();  // a block that is published now is written at once
  if (writes_.size() == before && !all_written) look_at_ = now + kLookEvery;
}

void DiskWrites::removed_by_disk(const BlockHash& hash) {
  if (write_out_)
    write_out_->look_again();
  else
    removed_.insert(hash);
}

std::optional<DiskWrites::Write> DiskWrites::end(uint64_t op, Code code) {
  const auto it = writes_.find(op);
  if (it == writes_.end()) return std::nullopt;
  Write write = std::move(it->second);
  writes_.erase(it);
  const size_t erased = writing_.erase(write.block.hash);
  MC_ASSERT_EQ(erased, 1u);
  if (code != Code::ok && write_out_) write_out_->look_again();
  return write;
}

uint64_t DiskWrites::pins(const kv::Pool& pool) const {
  return static_cast<uint64_t>(std::count_if(writes_.begin(), writes_.end(),
                                             [&](const auto& write) { return &write.second.shelf->pool == &pool; }));
}

void DiskWrites::check() const {
  MC_ASSERT_EQ(writes_.size(), writing_.size());
  MC_ASSERT_LE(waiting_.size(), asked_.size());
  MC_ASSERT_LE(writes_.size(), options_.writes_max);
  for (const auto& [op, write] : writes_) MC_ASSERT_LT(0u, write.shelf->pool.pins(write.page));
}

}  // namespace mc::node

// The evictable leaves of a pool, ordered by the rank that the eviction policy gives them: a binary heap in which every
// page knows its slot, so that a page enters, leaves or changes its rank in O(log leaves). Ties go to the lower page
// number, so one history gives one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mc::kv {

using PageIndex = uint32_t;
inline constexpr PageIndex kNoPage = 0xffffffffu;

class LeafHeap {
 public:
  /// Pages up to `count` may enter from now on.
  void resize(size_t count);
  bool empty() const { return heap_.empty(); }
  bool contains(PageIndex page) const { return entries_[page].slot != kNoSlot; }
  /// The page of the least rank.
  PageIndex front() const { return heap_.front(); }
  /// `page` must not be inside.
  void push(PageIndex page, uint64_t rank);
  /// `page` must be inside.
  void erase(PageIndex page);
  void change(PageIndex page, uint64_t rank);
  /// Up to `count` pages by ascending rank.
  std::vector<PageIndex> least(uint32_t count) const;
  /// Aborts the process if the heap is out of order. O(pages).
  void check() const;

 private:
  static constexpr uint32_t kNoSlot = 0xffffffffu;
  struct Entry {
    uint64_t rank = 0;
    uint32_t slot = kNoSlot;
  };

  bool less(PageIndex a, PageIndex b) const;
  void up(uint32_t slot);
  void down(uint32_t slot);
  void set(uint32_t slot, PageIndex page);

  std::vector<PageIndex> heap_;  // least rank first
  std::vector<Entry> entries_;   // by page
};

}  // namespace mc::kv

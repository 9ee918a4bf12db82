#include "kv/leaf_heap.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::kv {

void LeafHeap::resize(size_t count) {
  MC_ASSERT_LE(entries_.size(), count);
  entries_.resize(count);
}

bool LeafHeap::less(PageIndex a, PageIndex b) const {
  const uint64_t rank_a = entries_[a].rank, rank_b = entries_[b].rank;
  return rank_a != rank_b ? rank_a < rank_b : a < b;
}

void LeafHeap::set(uint32_t slot, PageIndex page) {
  heap_[slot] = page;
  entries_[page].slot = slot;
}

void LeafHeap::up(uint32_t slot) {
  const PageIndex page = heap_[slot];
  while (slot > 0) {
    const uint32_t above = (slot - 1) / 2;
    if (!less(page, heap_[above])) break;
    set(slot, heap_[above]);
    slot = above;
  }
  set(slot, page);
}

void LeafHeap::down(uint32_t slot) {
  const PageIndex page = heap_[slot];
  for (;;) {
    uint32_t below = 2 * slot + 1;
    if (below >= heap_.size()) break;
    if (below + 1 < heap_.size() && less(heap_[below + 1], heap_[below])) ++below;
    if (!less(heap_[below], page)) break;
    set(slot, heap_[below]);
    slot = below;
  }
  set(slot, page);
}

void LeafHeap::push(PageIndex page, uint64_t rank) {
  MC_ASSERT_LT(page, entries_.size());
  MC_ASSERT(!contains(page));
  entries_[page].rank = rank;
  heap_.push_back(page);
  up(static_cast<uint32_t>(heap_.size() - 1));
}

void LeafHeap::erase(PageIndex page) {
  MC_ASSERT(contains(page));
  const uint32_t slot = entries_[page].slot;
  const PageIndex last = heap_.back();
  heap_.pop_back();
  entries_[page].slot = kNoSlot;
  if (last == page) return;
  set(slot, last);
  up(slot);
  down(entries_[last].slot);
}

void LeafHeap::change(PageIndex page, uint64_t rank) {
  MC_ASSERT(contains(page));
  entries_[page].rank = rank;
  up(entries_[page].slot);
  down(entries_[page].slot);
}

std::vector<PageIndex> LeafHeap::least(uint32_t count) const {
  // A best-first walk down the heap. The frontier holds slots whose parents were all taken.
  std::vector<PageIndex> out;
  auto later = [this](uint32_t a, uint32_t b) { return less(heap_[b], heap_[a]); };
  std::vector<uint32_t> frontier;
  if (!heap_.empty()) frontier.push_back(0);
  while (out.size() < count && !frontier.empty()) {
    std::pop_heap(frontier.begin(), frontier.end(), later);
    const uint32_t slot = frontier.back();
    frontier.pop_back();
    out.push_back(heap_[slot]);
    for (const uint32_t child : {2 * slot + 1, 2 * slot + 2}) {
      if (child >= heap_.size()) continue;
      frontier.push_back(child);
      std::push_heap(frontier.begin(), frontier.end(), later);
    }
  }
  return out;
}

void LeafHeap::check() const {
  size_t inside = 0;
  for (PageIndex page = 0; page < entries_.size(); ++page) {
    if (!contains(page)) continue;
    ++inside;
    const uint32_t slot = entries_[page].slot;
    MC_ASSERT_EQ(heap_.at(slot), page);
    if (slot > 0) MC_ASSERT(less(heap_[(slot - 1) / 2], page));
  }
  MC_ASSERT_EQ(inside, heap_.size());
}

}  // namespace mc::kv

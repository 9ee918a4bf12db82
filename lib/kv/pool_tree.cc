// The pool's two structures over cached blocks: the forest of chains (who is whose parent, which
// subtree is held) and the heap of evictable leaves; and check(), which recounts everything.
//
//   held(block) = pins + leases + held children > 0       a held block holds its ancestors
//   in heap     = cached, no resident child, not held
//   evictable   = cached and not held: reachable by evicting leaves one after the other
#include <algorithm>

#include "base/assert.h"
#include "kv/pool.h"

namespace mc::kv {

// Brings heap membership and the ancestors' counts in line after the holds or children of `page`
// changed; also ends draining.
void Pool::settle(PageIndex page) {
  if (Page& p = at(page); p.state != PageState::cached) {
    if (p.state == PageState::draining && p.pins + p.leases == 0) {
      --counts_.draining;
      to_free(page);
    }
    return;
  }
  while (page != kNoPage) {
    Page& p = pages_[page];
    const bool held = p.pins + p.leases + p.blocked > 0;
    const bool wanted = !held && p.first_child == kNoPage;
    if (wanted != (p.heap_slot != kNoPage)) wanted ? heap_push(page) : heap_erase(page);
    if (held == p.held) return;
    p.held = held;
    counts_.evictable += held ? -1 : 1;
    page = p.parent;
    if (page != kNoPage) pages_[page].blocked += held ? 1 : -1;
  }
}

// Enters a just indexed, not yet held block into the forest and adopts the children that came before it.
void Pool::link(PageIndex page) {
  Page& p = pages_[page];
  p.parent = p.meta.parent.is_zero() ? kNoPage : find(p.meta.parent);
  p.next_sibling = p.prev_sibling = p.first_child = kNoPage;
  p.blocked = 0;
  if (!p.meta.parent.is_zero()) {
    PageIndex& head =
        p.parent != kNoPage ? pages_[p.parent].first_child : orphans_.try_emplace(p.meta.parent, kNoPage).first->second;
    p.next_sibling = head;
    if (head != kNoPage) pages_[head].prev_sibling = page;
    head = page;
  }
  if (const auto it = orphans_.find(p.meta.hash); it != orphans_.end()) {
    p.first_child = it->second;
    orphans_.erase(it);
    for (PageIndex child = p.first_child; child != kNoPage; child = pages_[child].next_sibling) {
      pages_[child].parent = page;
      p.blocked += pages_[child].held ? 1 : 0;
    }
  }
  if (p.parent != kNoPage) settle(p.parent);  // no longer a leaf
  settle(page);
}

// Takes a block out of the forest; its children wait as orphans for the block to come back.
void Pool::unlink(PageIndex page) {
  Page& p = pages_[page];
  if (p.heap_slot != kNoPage) heap_erase(page);
  if (!p.held) --counts_.evictable;
  if (p.first_child != kNoPage) {
    orphans_.emplace(p.meta.hash, p.first_child);
    for (PageIndex child = p.first_child; child != kNoPage; child = pages_[child].next_sibling)
      pages_[child].parent = kNoPage;
  }
  if (!p.meta.parent.is_zero()) {
    if (p.prev_sibling != kNoPage) {
      pages_[p.prev_sibling].next_sibling = p.next_sibling;
    } else if (p.parent != kNoPage) {
      pages_[p.parent].first_child = p.next_sibling;
    } else if (p.next_sibling != kNoPage) {
      orphans_[p.meta.parent] = p.next_sibling;
    } else {
      orphans_.erase(p.meta.parent);
    }
    if (p.next_sibling != kNoPage) pages_[p.next_sibling].prev_sibling = p.prev_sibling;
  }
  const PageIndex parent = p.parent;
  const bool held = p.held;
  p.parent = p.first_child = p.next_sibling = p.prev_sibling = kNoPage;
  p.blocked = 0;
  p.held = false;
  if (parent != kNoPage) {
    pages_[parent].blocked -= held ? 1 : 0;
    settle(parent);
  }
}

// -- heap ---------------------------------------------------------------------------------------------

bool Pool::heap_less(PageIndex a, PageIndex b) const {
  return pages_[a].rank != pages_[b].rank ? pages_[a].rank < pages_[b].rank : a < b;
}

void Pool::heap_set(uint32_t slot, PageIndex page) {
  heap_[slot] = page;
  pages_[page].heap_slot = slot;
}

void Pool::heap_up(uint32_t slot) {
  const PageIndex page = heap_[slot];
  while (slot > 0) {
    const uint32_t above = (slot - 1) / 2;
    if (!heap_less(page, heap_[above])) break;
    heap_set(slot, heap_[above]);
    slot = above;
  }
  heap_set(slot, page);
}

void Pool::heap_down(uint32_t slot) {
  const PageIndex page = heap_[slot];
  for (;;) {
    uint32_t below = 2 * slot + 1;
    if (below >= heap_.size()) break;
    if (below + 1 < heap_.size() && heap_less(heap_[below + 1], heap_[below])) ++below;
    if (!heap_less(heap_[below], page)) break;
    heap_set(slot, heap_[below]);
    slot = below;
  }
  heap_set(slot, page);
}

void Pool::heap_push(PageIndex page) {
  heap_.push_back(page);
  heap_up(static_cast<uint32_t>(heap_.size() - 1));
}

void Pool::heap_erase(PageIndex page) {
  const uint32_t slot = pages_[page].heap_slot;
  const PageIndex last = heap_.back();
  heap_.pop_back();
  pages_[page].heap_slot = kNoPage;
  if (last == page) return;
  heap_set(slot, last);
  heap_up(slot);
  heap_down(pages_[last].heap_slot);
}

// -- audit --------------------------------------------------------------------------------------------

void Pool::check_page(PageIndex page) const {
  const Page& p = pages_[page];
  if (p.state != PageState::cached) {
    MC_ASSERT(p.heap_slot == kNoPage && p.first_child == kNoPage && p.parent == kNoPage && !p.held);
    if (p.state == PageState::owned) MC_ASSERT_EQ(p.pins, 0u);
    if (p.state == PageState::draining) MC_ASSERT_LT(0u, p.pins + p.leases);
    if (p.state == PageState::free || p.state == PageState::absent) MC_ASSERT_EQ(p.pins + p.leases, 0u);
    return;
  }
  MC_ASSERT_EQ(find(p.meta.hash), page);
  MC_ASSERT_EQ(p.parent, p.meta.parent.is_zero() ? kNoPage : find(p.meta.parent));
  uint32_t blocked = 0;
  PageIndex previous = kNoPage;
  for (PageIndex child = p.first_child; child != kNoPage; child = pages_[child].next_sibling) {
    MC_ASSERT_EQ(pages_[child].parent, page);
    MC_ASSERT_EQ(pages_[child].prev_sibling, previous);
    MC_ASSERT(pages_[child].meta.parent == p.meta.hash);
    blocked += pages_[child].held ? 1 : 0;
    previous = child;
  }
  MC_ASSERT_EQ(p.blocked, blocked);
  MC_ASSERT_EQ(p.held, p.pins + p.leases + p.blocked > 0);
  MC_ASSERT_EQ(p.heap_slot != kNoPage, !p.held && p.first_child == kNoPage);
  if (p.heap_slot != kNoPage) {
    MC_ASSERT_EQ(heap_.at(p.heap_slot), page);
    if (p.heap_slot > 0) MC_ASSERT(heap_less(heap_[(p.heap_slot - 1) / 2], page));
  }
}

void Pool::check() const {
  Counts seen;
  size_t with_parent = 0, as_child = 0;
  for (PageIndex page = 0; page < pages_.size(); ++page) {
    check_page(page);
    const Page& p = pages_[page];
    switch (p.state) {
      case PageState::free: ++seen.free; break;
      case PageState::owned: ++seen.owned; break;
      case PageState::cached: ++seen.cached; break;
      case PageState::draining: ++seen.draining; break;
      case PageState::absent: continue;
    }
    ++seen.total;
    seen.pinned += p.pins > 0 ? 1 : 0;
    seen.leased += p.leases > 0 ? 1 : 0;
    if (p.state != PageState::cached) continue;
    seen.evictable += p.held ? 0 : 1;
    with_parent += p.meta.parent.is_zero() ? 0 : 1;
    for (PageIndex child = p.first_child; child != kNoPage; child = pages_[child].next_sibling) ++as_child;
  }
  for (const auto& [hash, first] : orphans_) {
    MC_ASSERT_EQ(find(hash), kNoPage);
    MC_ASSERT(first != kNoPage);
    for (PageIndex child = first; child != kNoPage; child = pages_[child].next_sibling) {
      MC_ASSERT(pages_[child].meta.parent == hash);
      ++as_child;
    }
  }
  MC_ASSERT_EQ(with_parent, as_child);
  MC_ASSERT_EQ(seen.free + seen.owned + seen.cached + seen.draining, seen.total);
  MC_ASSERT_EQ(index_.size(), seen.cached);
  MC_ASSERT_EQ(free_.size(), seen.free);
  seen.stored_total = counts_.stored_total;
  seen.evicted_total = counts_.evicted_total;
  seen.removed_total = counts_.removed_total;
  seen.duplicate_total = counts_.duplicate_total;
  MC_ASSERT(seen == counts_);
  MC_ASSERT_EQ(counts_.stored_total, counts_.evicted_total + counts_.removed_total + counts_.cached);
}

}  // namespace mc::kv

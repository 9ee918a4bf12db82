#include "kv/pool.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/assert.h"

namespace mc::kv {

Pool::Pool(const Options& options, EventLog& log) : eviction_(options.eviction), tier_(options.tier), log_(log) {
  MC_ASSERT(eviction_ != nullptr);
  grow(options.page_count);
}

Pool::Page& Pool::at(PageIndex page) {
  MC_ASSERT_LT(page, pages_.size());
  return pages_[page];
}
const Pool::Page& Pool::at(PageIndex page) const {
  MC_ASSERT_LT(page, pages_.size());
  return pages_[page];
}

// -- owned pages ------------------------------------------------------------------------------------

Result<std::vector<PageIndex>> Pool::allocate(uint32_t count) {
  if (count > available()) return lacks(count);
  std::vector<PageIndex> out(count);
  MC_CHECK(allocate(out));
  return out;
}

Error Pool::lacks(size_t count) const {
  return Error{Code::busy, "kv: " + std::to_string(count) + " pages wanted, " + std::to_string(counts_.free) +
                               " free and " + std::to_string(counts_.evictable) + " evictable of " +
                               std::to_string(counts_.total)};
}

Result<void> Pool::allocate(std::span<PageIndex> out) {
  const auto count = static_cast<uint32_t>(out.size());
  if (count > available()) return lacks(count);
  while (counts_.free < count) {
    MC_ASSERT(!leaves_.empty());  // an unheld block always has an unheld leaf below it
    evict_leaf(leaves_.front(), Removal::evicted);
  }
  for (PageIndex& page : out) {
    page = free_.back();
    free_.pop_back();
    Page& p = at(page);
    MC_ASSERT(p.state == PageState::free);
    p.state = PageState::owned;
    ++p.generation;
  }
  counts_.free -= count;
  counts_.owned += count;
  return {};
}

void Pool::release(PageIndex page) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::owned);
  MC_ASSERT_EQ(p.pins, 0u);
  --counts_.owned;
  if (p.leases > 0) {
    p.state = PageState::draining;
    ++counts_.draining;
  } else {
    to_free(page);
  }
}

void Pool::release(std::span<const PageIndex> pages) {
  for (const PageIndex page : pages) release(page);
}

void Pool::to_free(PageIndex page) {
  Page& p = at(page);
  MC_ASSERT_EQ(p.pins + p.leases + p.blocked, 0u);
  p.state = PageState::free;
  p.trial = false;
  ++counts_.free;
  free_.push_back(page);
}

// Prevents a cycle of parents. Real chains form none, but metadata may come from a peer. A cycle can only close when
// the new block's parent descends from a child of the new block. The new block becomes a root in that case.
void Pool::cut_cycle(BlockMeta& meta) const {
  PageIndex ancestor = find(meta.parent);
  bool closes = meta.parent == meta.hash;
  if (ancestor != kNoPage && orphans_.contains(meta.hash)) {
    while (pages_[ancestor].parent != kNoPage) ancestor = pages_[ancestor].parent;
    closes = closes || pages_[ancestor].meta.parent == meta.hash;
  }
  if (closes) meta.parent = BlockHash{};
}

Pool::Published Pool::publish(PageIndex page, BlockMeta meta) {
  MC_ASSERT(at(page).state == PageState::owned);
  if (const PageIndex resident = find(meta.hash); resident != kNoPage) {
    ++counts_.duplicate_total;
    pin(resident);
    release(page);
    return {resident, true};
  }
  cut_cycle(meta);
  Page& p = at(page);
  p.meta = std::move(meta);
  p.state = PageState::cached;
  --counts_.owned;
  ++counts_.cached;
  ++counts_.evictable;  // settle() subtracts it again, because the caller's pin holds the block
  ++counts_.stored_total;
  const uint64_t now = ++stamp_;
  p.use = {.stored = now, .last_use = now, .use_count = 1, .first_position = p.meta.first_position};
  p.held = p.trial = false;
  index_.emplace(p.meta.hash, page);
  link(page);
  pin(page);
  log_.append({.kind = BlockEvent::Kind::stored,
               .tier = tier_,
               .hash = p.meta.hash,
               .parent = p.meta.parent,
               .first_position = p.meta.first_position});
  return {page, false};
}

// -- shared pages -----------------------------------------------------------------------------------

PageIndex Pool::find(const BlockHash& hash) const {
  const auto it = index_.find(hash);
  return it == index_.end() ? kNoPage : it->second;
}

uint32_t Pool::match(std::span<const BlockHash> hashes) const {
  uint32_t length = 0;
  while (length < hashes.size() && find(hashes[length]) != kNoPage) ++length;
  return length;
}

std::vector<PageIndex> Pool::pin_prefix(std::span<const BlockHash> hashes) {
  std::vector<PageIndex> pages;
  for (const BlockHash& hash : hashes) {
    const PageIndex page = find(hash);
    if (page == kNoPage) break;
    pin(page);
    pages.push_back(page);
  }
  return pages;
}

void Pool::pin(PageIndex page) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::cached);
  if (p.pins++ == 0) ++counts_.pinned;
  settle(page);
}

void Pool::unpin(PageIndex page) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::cached || p.state == PageState::draining);
  MC_ASSERT_LT(0u, p.pins);
  if (--p.pins == 0) --counts_.pinned;
  settle(page);
}

void Pool::unpin(std::span<const PageIndex> pages) {
  for (const PageIndex page : pages) unpin(page);
}

void Pool::add_lease(PageIndex page) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::owned || p.state == PageState::cached);
  if (p.leases++ == 0) ++counts_.leased;
  settle(page);
}

void Pool::drop_lease(PageIndex page) {
  Page& p = at(page);
  MC_ASSERT_LT(0u, p.leases);
  if (--p.leases == 0) --counts_.leased;
  settle(page);
}

void Pool::touch_page(PageIndex page) {
  Page& p = at(page);
  if (p.state != PageState::cached) return;
  p.use.last_use = ++stamp_;
  ++p.use.use_count;
  if (leaves_.contains(page)) leaves_.change(page, rank(p));
}

void Pool::set_trial(PageIndex page, bool on) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::cached);
  p.trial = on;
  if (leaves_.contains(page)) leaves_.change(page, rank(p));
}

void Pool::touch(std::span<const PageIndex> pages) {
  for (size_t i = 0; i < pages.size(); ++i) touch_page(pages[eviction_->head_first ? i : pages.size() - 1 - i]);
}

void Pool::touch(std::span<const BlockHash> hashes) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const PageIndex page = find(hashes[eviction_->head_first ? i : hashes.size() - 1 - i]);
    if (page != kNoPage) touch_page(page);
  }
}

const BlockMeta& Pool::meta(PageIndex page) const {
  const Page& p = at(page);
  MC_ASSERT(p.state == PageState::cached || p.state == PageState::draining);
  return p.meta;
}

// -- leaving the index ------------------------------------------------------------------------------

void Pool::unindex(PageIndex page, Removal reason) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::cached);
  unlink(page);
  index_.erase(p.meta.hash);
  --counts_.cached;
  ++(reason == Removal::evicted ? counts_.evicted_total : counts_.removed_total);
  log_.append({.kind = BlockEvent::Kind::removed,
               .tier = tier_,
               .reason = reason,
               .hash = p.meta.hash,
               .parent = p.meta.parent,
               .first_position = p.meta.first_position});
  if (p.pins + p.leases > 0) {
    p.state = PageState::draining;
    ++counts_.draining;
  } else {
    to_free(page);
  }
}

void Pool::evict_leaf(PageIndex page, Removal reason) {
  const Page& p = at(page);
  MC_ASSERT(p.first_child == kNoPage && p.pins + p.leases == 0);
  unindex(page, reason);
}

bool Pool::remove(const BlockHash& hash, Removal reason) {
  const PageIndex page = find(hash);
  if (page == kNoPage) return false;
  unindex(page, reason);
  return true;
}

// Preorder. A backward walk of the result therefore meets children before parents.
void Pool::collect_subtree(PageIndex root, std::vector<PageIndex>& out) const {
  size_t next = out.size();
  out.push_back(root);
  for (; next < out.size(); ++next)
    for (PageIndex child = at(out[next]).first_child; child != kNoPage; child = at(child).next_sibling)
      out.push_back(child);
}

uint32_t Pool::remove_subtree(const BlockHash& root, Removal reason) {
  std::vector<PageIndex> pages;
  if (const PageIndex page = find(root); page != kNoPage) {
    collect_subtree(page, pages);
  } else if (const auto it = orphans_.find(root); it != orphans_.end()) {
    for (PageIndex child = it->second; child != kNoPage; child = at(child).next_sibling) collect_subtree(child, pages);
  }
  uint32_t removed = 0;
  for (size_t i = pages.size(); i-- > 0;) {
    if (at(pages[i]).held) continue;
    evict_leaf(pages[i], reason);
    ++removed;
  }
  return removed;
}

// -- pressure -----------------------------------------------------------------------------------------

uint32_t Pool::pages_over(double share) const {
  const auto limit = static_cast<uint32_t>(std::floor(share * counts_.total));
  const uint32_t taken = counts_.total - counts_.free;
  return taken > limit ? taken - limit : 0;
}

std::vector<ResidentBlock> Pool::snapshot() const {
  auto by_hash = [this](PageIndex a, PageIndex b) { return pages_[a].meta.hash < pages_[b].meta.hash; };
  std::vector<PageIndex> level, next;
  for (PageIndex page = 0; page < pages_.size(); ++page)
    if (pages_[page].state == PageState::cached && pages_[page].parent == kNoPage) level.push_back(page);
  std::vector<ResidentBlock> out;
  out.reserve(counts_.cached);
  for (; !level.empty(); level.swap(next), next.clear()) {
    std::sort(level.begin(), level.end(), by_hash);
    for (const PageIndex page : level) {
      const Page& p = pages_[page];
      out.push_back({p.meta.hash, p.meta.parent, p.meta.first_position, tier_});
      for (PageIndex child = p.first_child; child != kNoPage; child = pages_[child].next_sibling) next.push_back(child);
    }
  }
  MC_ASSERT_EQ(out.size(), counts_.cached);
  return out;
}

// -- resizing ---------------------------------------------------------------------------------------

PageIndex Pool::grow(uint32_t count) {
  const auto first = static_cast<PageIndex>(pages_.size());
  MC_ASSERT_LT(count, kNoPage - first);
  pages_.resize(pages_.size() + count);
  leaves_.resize(pages_.size());
  for (PageIndex i = first; i < first + count; ++i) pages_[i].state = PageState::absent;
  restore(first, count);
  return first;
}

bool Pool::retire(PageIndex first, uint32_t count) {
  MC_ASSERT_LE(size_t{first} + count, pages_.size());
  for (PageIndex i = first; i < first + count; ++i) {
    const Page& p = pages_[i];
    if (p.state != PageState::free && !(p.state == PageState::cached && !p.held)) return false;
  }
  for (PageIndex i = first; i < first + count; ++i) {
    if (pages_[i].state == PageState::cached) {
      // No block below an unheld block is held, so the whole subtree can be removed, tails first.
      const uint32_t removed = remove_subtree(pages_[i].meta.hash, Removal::evicted);
      MC_ASSERT_LT(0u, removed);
    }
  }
  std::erase_if(free_, [&](PageIndex page) { return page >= first && page - first < count; });
  for (PageIndex i = first; i < first + count; ++i) pages_[i].state = PageState::absent;
  counts_.free -= count;
  counts_.total -= count;
  return true;
}

void Pool::restore(PageIndex first, uint32_t count) {
  for (PageIndex i = first + count; i-- > first;) {  // the lowest index is then taken first
    MC_ASSERT(at(i).state == PageState::absent);
    pages_[i].state = PageState::free;
    free_.push_back(i);
  }
  counts_.free += count;
  counts_.total += count;
}

// -- the forest of chains ------------------------------------------------------------------------------

// Updates heap membership and the ancestors' counts after the holds or children of `page` changed. Also ends draining.
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
    if (wanted && !leaves_.contains(page)) leaves_.push(page, rank(p));
    if (!wanted && leaves_.contains(page)) leaves_.erase(page);
    if (held == p.held) return;
    p.held = held;
    counts_.evictable += held ? -1 : 1;
    page = p.parent;
    if (page != kNoPage) pages_[page].blocked += held ? 1 : -1;
  }
}

// Links a block that was just indexed and is not held yet into the forest. Adopts its children that were stored before
// it.
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

// Unlinks a block from the forest. Its children become orphans until the block is stored again.
void Pool::unlink(PageIndex page) {
  Page& p = pages_[page];
  if (leaves_.contains(page)) leaves_.erase(page);
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

// -- audit --------------------------------------------------------------------------------------------

void Pool::check_page(PageIndex page) const {
  const Page& p = pages_[page];
  if (p.state != PageState::cached) {
    MC_ASSERT(!leaves_.contains(page) && p.first_child == kNoPage && p.parent == kNoPage && !p.held);
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
  MC_ASSERT_EQ(leaves_.contains(page), !p.held && p.first_child == kNoPage);
}

void Pool::check() const {
  leaves_.check();
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

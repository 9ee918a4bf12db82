#include "kv/pool.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/assert.h"

namespace mc::kv {
namespace {

Error lacks(const Pool::Counts& counts, size_t count) {
  return Error{Code::busy, "kv: " + std::to_string(count) + " pages wanted, " + std::to_string(counts.free) +
                               " free and " + std::to_string(counts.evictable) + " evictable of " +
                               std::to_string(counts.total)};
}

}  // namespace

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
  if (count > available()) return lacks(counts_, count);
  std::vector<PageIndex> out(count);
  MC_CHECK(allocate(out));
  return out;
}

Result<void> Pool::allocate(std::span<PageIndex> out) {
  const auto count = static_cast<uint32_t>(out.size());
  if (count > available()) return lacks(counts_, count);
  while (counts_.free < count) {
    unindex(chains_.first_leaf(), Removal::evicted);
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
  MC_ASSERT_EQ(p.pins + p.leases, 0u);
  p.state = PageState::free;
  p.trial = false;
  ++counts_.free;
  free_.push_back(page);
}

Pool::Published Pool::publish(PageIndex page, BlockMeta meta) {
  MC_ASSERT(at(page).state == PageState::owned);
  if (const PageIndex resident = find(meta.hash); resident != kNoPage) {
    ++counts_.duplicate_total;
    pin(resident);
    release(page);
    return {resident, true};
  }
  meta.parent = chains_.acyclic_parent(meta.hash, meta.parent);
  Page& p = at(page);
  p.meta = std::move(meta);
  p.state = PageState::cached;
  --counts_.owned;
  ++counts_.cached;
  ++counts_.stored_total;
  const uint64_t now = ++counts_.uses_total;
  p.use = {.stored = now, .last_use = now, .use_count = 1, .first_position = p.meta.first_position};
  p.trial = false;
  chains_.add(page, p.meta.hash, p.meta.parent, rank(p));
  pin(page);
  log_.append({.kind = BlockEvent::Kind::stored,
               .tier = tier_,
               .hash = p.meta.hash,
               .parent = p.meta.parent,
               .first_position = p.meta.first_position});
  return {page, false};
}

// -- shared pages -----------------------------------------------------------------------------------

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

// Tells the forest after the pins or leases of `page` changed. Also ends draining.
void Pool::settle(PageIndex page) {
  const Page& p = at(page);
  const bool used = p.pins + p.leases > 0;
  if (p.state == PageState::cached) {
    chains_.set_used(page, used);
    counts_.evictable = chains_.unheld();
  } else if (p.state == PageState::draining && !used) {
    --counts_.draining;
    to_free(page);
  }
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

void Pool::touch_page(PageIndex page, uint32_t uses) {
  Page& p = at(page);
  if (p.state != PageState::cached) return;
  p.use.last_use = ++counts_.uses_total;
  p.use.use_count += uses;
  chains_.set_rank(page, rank(p));
}

void Pool::set_trial(PageIndex page, bool on) {
  Page& p = at(page);
  MC_ASSERT(p.state == PageState::cached);
  p.trial = on;
  chains_.set_rank(page, rank(p));
}

void Pool::touch(std::span<const PageIndex> pages) {
  for (size_t i = 0; i < pages.size(); ++i) touch_page(pages[eviction_->head_first ? i : pages.size() - 1 - i], 1);
}

void Pool::touch(std::span<const BlockHash> hashes, uint32_t uses) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const PageIndex page = find(hashes[eviction_->head_first ? i : hashes.size() - 1 - i]);
    if (page != kNoPage) touch_page(page, uses);
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
  chains_.remove(page);
  counts_.evictable = chains_.unheld();
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

bool Pool::remove(const BlockHash& hash, Removal reason) {
  const PageIndex page = find(hash);
  if (page == kNoPage) return false;
  unindex(page, reason);
  return true;
}

PageIndex Pool::take_out(const BlockHash& hash, Removal reason) {
  const PageIndex page = find(hash);
  MC_ASSERT(page != kNoPage);
  Page& p = at(page);
  MC_ASSERT_EQ(p.pins + p.leases, 0u);
  unindex(page, reason);
  MC_ASSERT_EQ(free_.back(), page);
  free_.pop_back();
  p.state = PageState::owned;
  ++p.generation;
  --counts_.free;
  ++counts_.owned;
  return page;
}

uint32_t Pool::remove_subtree(const BlockHash& root, Removal reason) {
  const std::vector<PageIndex> pages = chains_.subtree(root);
  uint32_t removed = 0;
  for (size_t i = pages.size(); i-- > 0;) {  // children before their parents
    if (chains_.is_held(pages[i])) continue;
    MC_ASSERT(chains_.is_leaf(pages[i]));
    unindex(pages[i], reason);
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
  std::vector<ResidentBlock> out;
  out.reserve(counts_.cached);
  for (const PageIndex page : chains_.by_level()) {
    const BlockMeta& meta = pages_[page].meta;
    out.push_back({meta.hash, meta.parent, meta.first_position, tier_});
  }
  MC_ASSERT_EQ(out.size(), counts_.cached);
  return out;
}

// -- resizing ---------------------------------------------------------------------------------------

PageIndex Pool::grow(uint32_t count) {
  const auto first = static_cast<PageIndex>(pages_.size());
  MC_ASSERT_LT(count, kNoPage - first);
  pages_.resize(pages_.size() + count);
  chains_.resize(pages_.size());
  for (PageIndex i = first; i < first + count; ++i) pages_[i].state = PageState::absent;
  restore(first, count);
  return first;
}

bool Pool::retire(PageIndex first, uint32_t count) {
  MC_ASSERT_LE(size_t{first} + count, pages_.size());
  for (PageIndex i = first; i < first + count; ++i) {
    const Page& p = pages_[i];
    if (p.state != PageState::free && !(p.state == PageState::cached && !chains_.is_held(i))) return false;
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

// -- audit --------------------------------------------------------------------------------------------

void Pool::check() const {
  chains_.check();
  Counts seen;
  for (PageIndex page = 0; page < pages_.size(); ++page) {
    const Page& p = pages_[page];
    const uint32_t holds = p.pins + p.leases;
    MC_ASSERT_EQ(chains_.has(page), p.state == PageState::cached);
    if (p.state == PageState::free || p.state == PageState::absent) MC_ASSERT_EQ(holds, 0u);
    if (p.state == PageState::owned) MC_ASSERT_EQ(p.pins, 0u);
    if (p.state == PageState::draining) MC_ASSERT_LT(0u, holds);
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
    MC_ASSERT_EQ(find(p.meta.hash), page);
    MC_ASSERT_EQ(chains_.is_used(page), holds > 0);
    seen.evictable += chains_.is_held(page) ? 0 : 1;
  }
  MC_ASSERT_EQ(seen.free + seen.owned + seen.cached + seen.draining, seen.total);
  MC_ASSERT_EQ(chains_.size(), seen.cached);
  MC_ASSERT_EQ(free_.size(), seen.free);
  seen.stored_total = counts_.stored_total;
  seen.evicted_total = counts_.evicted_total;
  seen.removed_total = counts_.removed_total;
  seen.duplicate_total = counts_.duplicate_total;
  seen.uses_total = counts_.uses_total;
  MC_ASSERT(seen == counts_);
  MC_ASSERT_EQ(counts_.stored_total, counts_.evicted_total + counts_.removed_total + counts_.cached);
}

}  // namespace mc::kv

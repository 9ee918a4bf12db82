#include "node/write_out.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {
constexpr Duration kListEvery = 100ms;  // a list sorts all blocks in memory

std::vector<kv::PageIndex> latest_first(const Shelf& shelf, const WriteOut::Wanted& wanted) {
  const kv::Pool& pool = shelf.pool;
  std::vector<kv::PageIndex> pages;
  for (kv::PageIndex page = 0; page < pool.end_page(); ++page)
    if (pool.state(page) == kv::PageState::cached && wanted(shelf, page)) pages.push_back(page);
  std::stable_sort(pages.begin(), pages.end(),
                   [&](kv::PageIndex a, kv::PageIndex b) { return pool.use(a).last_use > pool.use(b).last_use; });
  return pages;
}

/// The same pages, each behind its parent where that is one of them.
std::vector<kv::PageIndex> parents_first(const kv::Pool& pool, std::span<const kv::PageIndex> pages) {
  std::vector<kv::PageIndex> order, chain;
  std::vector<bool> taken(pool.end_page(), true);
  for (const kv::PageIndex page : pages) taken[page] = false;
  for (const kv::PageIndex end : pages) {
    chain.clear();
    for (kv::PageIndex page = end; page != kv::kNoPage && !taken[page];) {
      taken[page] = true;
      chain.push_back(page);
      const BlockHash& parent = pool.meta(page).parent;
      page = parent.is_zero() ? kv::kNoPage : pool.find(parent);
    }
    order.insert(order.end(), chain.rbegin(), chain.rend());
  }
  return order;
}

uint64_t publications(std::span<Shelf* const> shelves) {
  uint64_t sum = 0;
  for (const Shelf* shelf : shelves) sum += shelf->pool.counts().stored_total;
  return sum;
}

/// The stamps of two pools cannot be compared, so the shelves take turns.
std::vector<WriteOut::Place> places_of(std::span<Shelf* const> shelves, const WriteOut::Wanted& wanted) {
  std::vector<std::vector<kv::PageIndex>> orders;
  size_t longest = 0;
  for (const Shelf* shelf : shelves) {
    orders.push_back(parents_first(shelf->pool, latest_first(*shelf, wanted)));
    longest = std::max(longest, orders.back().size());
  }
  std::vector<WriteOut::Place> places;
  for (size_t i = 0; i < longest; ++i)
    for (size_t s = 0; s < shelves.size(); ++s)
      if (i < orders[s].size()) places.push_back({shelves[s], orders[s][i], shelves[s]->pool.generation(orders[s][i])});
  return places;
}

}  // namespace

const WriteOut::Place* WriteOut::next(std::span<Shelf* const> shelves, const Wanted& wanted, TimePoint now) {
  const uint64_t stored = publications(shelves);
  const bool is_stale = bytes_left_ > 0 && listed_ != stored;
  if (left() == 0 && is_stale && now >= list_at_) {
    places_ = places_of(shelves, wanted);
    next_ = 0;
    listed_ = stored;
    list_at_ = now + kListEvery;
  }
  done_ = left() == 0 && (bytes_left_ == 0 || listed_ == stored);
  return left() == 0 ? nullptr : &places_[next_];
}

void WriteOut::advance() {
  MC_ASSERT_LT(next_, places_.size());
  ++next_;
}

bool WriteOut::spend(uint64_t bytes) {
  if (bytes <= bytes_left_) {
    bytes_left_ -= bytes;
    return true;
  }
  bytes_left_ = 0;
  places_.clear();
  next_ = 0;
  return false;
}

}  // namespace mc::node

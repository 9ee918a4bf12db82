// The pool against a model that recomputes everything from plain maps: who may be evicted, which
// block goes next, what is resident; and Pool::check() after every step.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/rng.h"
#include "kv/lease.h"
#include "test.h"

namespace pool {

using namespace mc;
using namespace mc::kv;

namespace {

BlockHash name(uint32_t n) {
  BlockHash hash;
  hash.bytes[0] = static_cast<uint8_t>(n * 37);
  hash.bytes[8] = static_cast<uint8_t>(n);
  hash.bytes[9] = static_cast<uint8_t>(n >> 8);
  hash.bytes[15] = 1;
  return hash;
}

// Blocks of a fixed random tree: block n at depth d has one parent at depth d - 1.
struct Tree {
  std::vector<int> parent;  // -1 = root
  std::vector<uint32_t> depth;
  Tree(Rng& rng, uint32_t count) {
    for (uint32_t n = 0; n < count; ++n) {
      parent.push_back(n == 0 || rng.chance(0.1) ? -1 : static_cast<int>(rng.below(n)));
      depth.push_back(parent[n] < 0 ? 0 : depth[static_cast<size_t>(parent[n])] + 1);
    }
  }
  std::vector<uint32_t> chain(uint32_t n) const {
    std::vector<uint32_t> out;
    for (int at = static_cast<int>(n); at >= 0; at = parent[static_cast<size_t>(at)])
      out.push_back(static_cast<uint32_t>(at));
    std::reverse(out.begin(), out.end());
    return out;
  }
  std::vector<BlockHash> hashes(uint32_t n) const {
    std::vector<BlockHash> out;
    for (const uint32_t block : chain(n)) out.push_back(name(block));
    return out;
  }
  BlockMeta meta(uint32_t n) const {
    return {.hash = name(n),
            .parent = parent[n] < 0 ? BlockHash{} : name(static_cast<uint32_t>(parent[n])),
            .first_position = 64 * depth[n]};
  }
};

struct Model {
  const Tree& tree;
  std::map<uint32_t, uint64_t> resident;  // block -> stamp of its last use
  uint64_t stamp = 0;

  uint32_t block_of(const BlockHash& hash) const {
    return static_cast<uint32_t>(hash.bytes[8]) | static_cast<uint32_t>(hash.bytes[9]) << 8;
  }
  bool has_child(uint32_t n) const {
    return std::any_of(resident.begin(), resident.end(),
                       [&](const auto& entry) { return tree.parent[entry.first] == static_cast<int>(n); });
  }
  // Everything below a held block's ancestors-in-residence is what eviction may not touch.
  std::set<uint32_t> protected_blocks(const Pool& pool) const {
    std::set<uint32_t> out;
    for (const auto& [n, unused] : resident) {
      const PageIndex page = pool.find(name(n));
      if (pool.pins(page) + pool.leases(page) == 0) continue;
      for (int at = static_cast<int>(n); at >= 0 && resident.contains(static_cast<uint32_t>(at));
           at = tree.parent[static_cast<size_t>(at)])
        out.insert(static_cast<uint32_t>(at));
    }
    return out;
  }
};

class Walk {
 public:
  Walk(uint64_t seed, uint32_t pages, uint32_t blocks)
      : rng_(seed), tree_(rng_, blocks), model_{tree_, {}, 0}, pool_({.page_count = pages}, log_), leases_(pool_) {}

  void step() {
    switch (rng_.below(9)) {
      case 0: allocate(); break;
      case 1: give_back(); break;
      case 2:
      case 3: publish(); break;
      case 4: pin(); break;
      case 5: unpin(); break;
      case 6: touch(); break;
      case 7: rng_.chance(0.2) ? remove() : lease(); break;
      case 8: expire(); break;
    }
    follow_events();
    audit();
  }

  void drain_everything() {
    for (const PageIndex page : owned_) pool_.release(page);
    for (const PageIndex page : pinned_) pool_.unpin(page);
    leases_.expire(kNever);
    CHECK(pool_.counts().owned + pool_.counts().draining + pool_.counts().pinned + pool_.counts().leased == 0);
    CHECK(pool_.available() == pool_.counts().total);
    REQUIRE_OK(pool_.allocate(pool_.counts().total));
    CHECK(pool_.counts().cached == 0);
    pool_.check();
  }

 private:
  void allocate() {
    const auto count = static_cast<uint32_t>(rng_.below(5));
    const std::set<uint32_t> kept = model_.protected_blocks(pool_);
    // The model's victims, one by one: the leaf used longest ago that nothing protects.
    Model copy = model_;
    std::vector<BlockHash> victims;
    const uint32_t free = pool_.counts().free;
    bool fits = true;
    for (uint32_t missing = count > free ? count - free : 0; missing > 0 && fits; --missing) {
      std::optional<uint32_t> victim;
      for (const auto& [n, used] : copy.resident)
        if (!kept.contains(n) && !copy.has_child(n) && (!victim || used < copy.resident.at(*victim))) victim = n;
      if ((fits = victim.has_value())) victims.push_back(name(*victim)), copy.resident.erase(*victim);
    }
    const auto pages = pool_.allocate(count);
    REQUIRE(pages.has_value() == fits);
    if (!fits) victims.clear();
    std::vector<BlockHash> gone;
    for (const BlockEvent& event : log_.drain()) {
      REQUIRE(event.kind == BlockEvent::Kind::removed);
      gone.push_back(event.hash);
      model_.resident.erase(model_.block_of(event.hash));
    }
    REQUIRE(gone == victims);
    if (fits) owned_.insert(owned_.end(), pages->begin(), pages->end());
  }

  void give_back() {
    if (const PageIndex page = take(owned_); page != kNoPage) pool_.release(page);
  }

  void publish() {
    const PageIndex page = take(owned_);
    if (page == kNoPage) return;
    const auto n = static_cast<uint32_t>(rng_.below(tree_.parent.size()));
    const auto published = pool_.publish(page, tree_.meta(n));
    REQUIRE(published.duplicate == model_.resident.contains(n));
    if (!published.duplicate) model_.resident[n] = ++model_.stamp;
    pinned_.push_back(published.page);
  }

  void pin() {
    const auto n = static_cast<uint32_t>(rng_.below(tree_.parent.size()));
    const auto hashes = tree_.hashes(n);
    const uint32_t matched = pool_.match(hashes);
    const auto pages = pool_.pin_prefix(hashes);
    REQUIRE(pages.size() == matched);
    pinned_.insert(pinned_.end(), pages.begin(), pages.end());
  }

  void unpin() {
    for (uint64_t i = rng_.below(4); i > 0; --i)
      if (const PageIndex page = take(pinned_); page != kNoPage) pool_.unpin(page);
  }

  void touch() {
    const auto n = static_cast<uint32_t>(rng_.below(tree_.parent.size()));
    const auto chain = tree_.chain(n);
    pool_.touch(tree_.hashes(n));
    for (size_t i = chain.size(); i-- > 0;)
      if (model_.resident.contains(chain[i])) model_.resident[chain[i]] = ++model_.stamp;
  }

  void remove() {
    const auto n = static_cast<uint32_t>(rng_.below(tree_.parent.size()));
    if (rng_.chance(0.3))
      pool_.remove_subtree(name(n), Removal::dropped);
    else
      REQUIRE(pool_.remove(name(n), Removal::corrupt) == model_.resident.contains(n));
  }

  void lease() {
    std::vector<PageIndex> pages;
    for (const auto& [n, unused] : model_.resident)
      if (rng_.chance(0.1)) pages.push_back(pool_.find(name(n)));
    if (!owned_.empty() && rng_.chance(0.5)) pages.push_back(owned_[rng_.below(owned_.size())]);
    REQUIRE_OK(leases_.grant("d" + std::to_string(rng_.below(3)), pages, now_ + Duration(rng_.below(20))));
  }

  void expire() {
    now_ += Duration(rng_.below(8));
    leases_.expire(now_);
  }

  void follow_events() {
    for (const BlockEvent& event : log_.drain())
      if (event.kind == BlockEvent::Kind::removed) model_.resident.erase(model_.block_of(event.hash));
  }

  void audit() {
    pool_.check();
    leases_.check();
    REQUIRE(pool_.counts().cached == model_.resident.size());
    for (const auto& [n, unused] : model_.resident) REQUIRE(pool_.find(name(n)) != kNoPage);
    const std::set<uint32_t> kept = model_.protected_blocks(pool_);
    REQUIRE(pool_.counts().evictable == model_.resident.size() - kept.size());
    std::vector<std::pair<uint64_t, uint32_t>> leaves;
    for (const auto& [n, used] : model_.resident)
      if (!kept.contains(n) && !model_.has_child(n)) leaves.emplace_back(used, n);
    std::sort(leaves.begin(), leaves.end());
    const auto candidates = pool_.candidates(3);
    REQUIRE(candidates.size() == std::min<size_t>(3, leaves.size()));
    for (size_t i = 0; i < candidates.size(); ++i) REQUIRE(pool_.meta(candidates[i]).hash == name(leaves[i].second));
  }

  PageIndex take(std::vector<PageIndex>& from) {
    if (from.empty()) return kNoPage;
    const size_t at = rng_.below(from.size());
    const PageIndex page = from[at];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
    return page;
  }

  Rng rng_;
  Tree tree_;
  Model model_;
  EventLog log_;
  Pool pool_;
  Leases leases_;
  TimePoint now_{};
  std::vector<PageIndex> owned_, pinned_;
};

}  // namespace

TEST_CASE("kv/pool: agrees with the plain model under random use") {
  INFO("seed ", test::seed());
  for (uint64_t round = 0; round < 40; ++round) {
    CAPTURE(round);
    Walk walk(test::seed() + round, 4 + static_cast<uint32_t>(round), 8 + 2 * static_cast<uint32_t>(round));
    for (int i = 0; i < 600; ++i) walk.step();
    walk.drain_everything();
  }
}

}  // namespace pool

// The prefix index against plain maps: nodes come and go, events arrive with gaps and repeats,
// snapshots replace, pending marks are set and settled.
#include "kv/index.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::kv;

namespace {

constexpr uint32_t kBlocks = 24;

BlockHash name(uint32_t n) {
  BlockHash hash;
  hash.bytes[0] = static_cast<uint8_t>(n);
  hash.bytes[15] = 1;
  return hash;
}

struct ModelNode {
  std::set<uint32_t> truth;  // what the node holds
  std::set<uint32_t> known;  // what the index was told
  std::map<uint32_t, int> pending;
  uint64_t seq = 0;     // of the node
  bool frozen = false;  // the index missed an event
  std::vector<BlockEvent> unsent;
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : rng_(seed) {}

  void step() {
    const NodeId id = "n" + std::to_string(rng_.below(6));
    switch (rng_.below(7)) {
      case 0: join(id); break;
      case 1: rng_.chance(0.1) ? leave(id) : change(id); break;
      case 2:
      case 3: change(id); break;
      case 4: deliver(id); break;
      case 5: snapshot(id); break;
      case 6: pending(id); break;
    }
    index_.check();
    compare();
  }

 private:
  void join(const NodeId& id) {
    if (nodes_.contains(id)) return;
    nodes_[id];
    index_.add_node(id);
  }
  void leave(const NodeId& id) {
    nodes_.erase(id);
    index_.remove_node(id);
  }
  void change(const NodeId& id) {
    const auto node = nodes_.find(id);
    if (node == nodes_.end()) return;
    const auto n = static_cast<uint32_t>(rng_.below(kBlocks));
    BlockEvent event{.seq = ++node->second.seq, .hash = name(n)};
    if (!node->second.truth.insert(n).second) {
      node->second.truth.erase(n);
      event.kind = BlockEvent::Kind::removed;
    }
    node->second.unsent.push_back(event);
    if (rng_.chance(0.05)) node->second.unsent.erase(node->second.unsent.begin());  // lost on its way
  }
  void deliver(const NodeId& id) {
    const auto node = nodes_.find(id);
    if (node == nodes_.end()) return;
    ModelNode& m = node->second;
    const NodeOrdinal ordinal = *index_.find_node(id);
    uint64_t expected = index_.seq(ordinal);
    for (const BlockEvent& event : m.unsent) {
      if (m.frozen || event.seq <= expected) continue;
      if (event.seq != expected + 1) {
        m.frozen = true;
        continue;
      }
      ++expected;
      const uint32_t n = event.hash.bytes[0];
      event.kind == BlockEvent::Kind::stored ? (void)m.known.insert(n) : (void)m.known.erase(n);
    }
    const auto applied = index_.apply(ordinal, m.unsent);
    REQUIRE((applied == PrefixIndex::Applied::need_snapshot) == m.frozen);
    if (rng_.chance(0.7)) m.unsent.clear();  // else the same events come again
  }
  void snapshot(const NodeId& id) {
    const auto node = nodes_.find(id);
    if (node == nodes_.end() || !rng_.chance(0.3)) return;
    std::vector<ResidentBlock> blocks;
    for (const uint32_t n : node->second.truth) blocks.push_back({.hash = name(n)});
    index_.replace(*index_.find_node(id), node->second.seq, blocks);
    node->second.known = node->second.truth;
    node->second.frozen = false;
  }
  void pending(const NodeId& id) {
    const auto node = nodes_.find(id);
    if (node == nodes_.end()) return;
    const auto n = static_cast<uint32_t>(rng_.below(kBlocks));
    const std::vector<BlockHash> one = {name(n)};
    int& count = node->second.pending[n];
    if (rng_.chance(0.6)) {
      ++count;
      index_.add_pending(*index_.find_node(id), one);
    } else if (count > 0) {
      --count;
      index_.settle_pending(*index_.find_node(id), one);
    }
  }

  void compare() {
    // A random chain: a run of block numbers in some order.
    std::vector<uint32_t> chain;
    for (uint64_t length = 1 + rng_.below(6), at = rng_.below(kBlocks); length > 0; --length, ++at)
      chain.push_back(static_cast<uint32_t>(at % kBlocks));
    std::vector<BlockHash> hashes;
    for (const uint32_t n : chain) hashes.push_back(name(n));
    std::map<NodeOrdinal, NodeMatch> found;
    const std::vector<NodeMatch> matches = index_.match(hashes);
    for (const NodeMatch& match : matches) found[match.node] = match;
    for_each_change(before_, matches, [&](const NodeMatch& m) {
      REQUIRE((m.expected != m.resident || shown_[m.node] != m));
      shown_[m.node] = m;
    });
    std::erase_if(shown_, [](const auto& shown) { return shown.second.expected == 0; });
    REQUIRE(shown_ == found);
    before_ = matches;
    for (const auto& [id, node] : nodes_) {
      uint32_t resident = 0, expected = 0;
      while (resident < chain.size() && node.known.contains(chain[resident])) ++resident;
      auto expects = [&](uint32_t n) {
        const auto marks = node.pending.find(n);
        return node.known.contains(n) || (marks != node.pending.end() && marks->second > 0);
      };
      while (expected < chain.size() && expects(chain[expected])) ++expected;
      const NodeOrdinal ordinal = *index_.find_node(id);
      REQUIRE(found.contains(ordinal) == (expected > 0));
      if (expected > 0) REQUIRE(found[ordinal] == NodeMatch{ordinal, resident, expected, 0, 0});
      REQUIRE(index_.resident_count(ordinal) == node.known.size());
    }
    compare_runs(chain, hashes);
  }

  void compare_runs(const std::vector<uint32_t>& chain, const std::vector<BlockHash>& hashes) {
    const auto first = static_cast<uint32_t>(rng_.below(chain.size() + 1));
    std::vector<NodeRun> found, expected;
    index_.runs(hashes, first, 1000, found);
    uint32_t reach = first;
    const auto held = [&](const ModelNode& node, uint32_t at) { return node.known.contains(chain[at]); };
    const auto by_any = [&] {
      return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& n) { return held(n.second, reach); });
    };
    while (reach < chain.size() && by_any()) ++reach;
    for (const auto& [id, node] : nodes_)
      for (uint32_t at = first; at < reach; ++at) {
        if (!held(node, at) || (at > first && held(node, at - 1))) continue;
        NodeRun run{*index_.find_node(id), at, at, 0};
        while (run.end < reach && held(node, run.end)) ++run.end;
        expected.push_back(run);
      }
    std::sort(expected.begin(), expected.end(),
              [](const NodeRun& a, const NodeRun& b) { return std::tie(a.first, a.node) < std::tie(b.first, b.node); });
    REQUIRE(found == expected);
    std::vector<NodeRun> few;
    index_.runs(hashes, first, 1, few);
    REQUIRE(few.size() == std::min<size_t>(1, found.size()));
  }

  Rng rng_;
  PrefixIndex index_;
  std::map<NodeId, ModelNode> nodes_;
  std::vector<NodeMatch> before_;             // of the last comparison
  std::map<NodeOrdinal, NodeMatch> shown_{};  // kept up to date by what changed
};

}  // namespace

TEST_CASE(
    "kv/index: agrees with plain maps under loss, repeats, snapshots and churn, and so does what changed between "
    "matches") {
  INFO("seed ", test::seed());
  for (uint64_t round = 0; round < 20; ++round) {
    CAPTURE(round);
    Walk walk(test::seed() + round);
    for (int i = 0; i < 1000; ++i) walk.step();
  }
}

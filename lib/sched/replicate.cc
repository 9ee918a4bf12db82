#include "sched/replicate.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace mc::sched {

double Popularity::faded(const Entry& e, double now_s) const {
  return e.load * std::exp2(-std::max(0.0, now_s - e.at_s) / options_.half_life_s);
}

double Popularity::order_of(double load, double now_s) const {
  return std::log2(std::max(load, 1e-300)) + now_s / options_.half_life_s;
}

void Popularity::count(std::span<const BlockHash> hashes, double work_s, double now_s) {
  if (!(work_s > 0)) return;
  // A load of one means work_s = 1 every second. The sum of the fading terms of that load is half_life / ln 2.
  const double share = work_s * std::log(2.0) / options_.half_life_s;
  for (uint32_t depth = 1; depth <= hashes.size(); depth = next_depth(depth)) {
    const BlockHash& hash = hashes[depth - 1];
    auto at = entries_.find(hash);
    if (at == entries_.end()) {
      if (entries_.size() >= options_.tracked) {
        const auto least = *by_load_.begin();
        // Every prefix in the table is more popular than the new one can be.
        if (least.first > order_of(share, now_s)) continue;
        entries_.erase(least.second);
        by_load_.erase(by_load_.begin());
      }
      at = entries_.emplace(hash, Entry{}).first;
    } else {
      by_load_.erase({at->second.order, hash});
    }
    Entry& e = at->second;
    e.load = faded(e, now_s) + share;
    e.at_s = std::max(e.at_s, now_s);
    e.order = order_of(e.load, e.at_s);
    by_load_.emplace(e.order, hash);
  }
  MC_ASSERT_EQ(by_load_.size(), entries_.size());
  MC_ASSERT_LE(entries_.size(), options_.tracked);
}

double Popularity::load(const BlockHash& hash, double now_s) const {
  const auto at = entries_.find(hash);
  return at == entries_.end() ? 0 : faded(at->second, now_s);
}

Popularity::Demand Popularity::demand(std::span<const BlockHash> hashes, double now_s) const {
  Demand out;
  for (uint32_t depth = 1; depth <= hashes.size(); depth = next_depth(depth)) {
    const double seen = load(hashes[depth - 1], now_s);
    const double nodes = std::ceil(seen / options_.node_share);
    if (depth < options_.blocks_min) continue;
    if (!(nodes > 1)) break;  // a longer prefix is requested no more often
    out = {depth, static_cast<uint32_t>(std::min(nodes, 1e6)), seen};
  }
  return out;
}

double Popularity::budget_bytes(double now_s) const {
  const double most = options_.bytes_per_s * options_.burst_s;
  if (!metered_) return most;
  return std::min(most, bucket_bytes_ + std::max(0.0, now_s - bucket_at_s_) * options_.bytes_per_s);
}

bool Popularity::pay(double bytes, double now_s) {
  MC_ASSERT(bytes >= 0);
  const double most = options_.bytes_per_s * options_.burst_s;
  bucket_bytes_ = budget_bytes(now_s);
  metered_ = true;
  bucket_at_s_ = std::max(bucket_at_s_, now_s);
  if (bucket_bytes_ <= 0 || (bytes > bucket_bytes_ && bucket_bytes_ < most)) return false;
  bucket_bytes_ -= bytes;
  return true;
}

void Popularity::refund(double bytes) {
  bucket_bytes_ = std::min(options_.bytes_per_s * options_.burst_s, bucket_bytes_ + bytes);
}

double load_beside_prefix_s(const Snapshot& s, const Candidate& chosen) {
  uint32_t best = chosen.local_blocks;
  for (const HolderView& h : s.holders) best = std::max({best, h.readable_blocks, h.pending_blocks});
  return s.prefill[chosen.node].cost.prefill(s.tokens, reused_tokens(s, best));
}

namespace {

constexpr size_t kCompared = 64;  // most takers, and most givers for each of them, whose times are predicted

/// The holders that have the run, as indexes. Of many those with the fewest leaving transfers, then the first ones.
std::vector<int> givers_of(const Snapshot& s, uint32_t blocks) {
  std::vector<int> out;
  for (size_t i = 0; i < s.holders.size(); ++i)
    if (s.holders[i].readable_blocks >= blocks) out.push_back(static_cast<int>(i));
  if (out.size() <= kCompared) return out;
  const auto order = [&](int i) { return std::pair(s.holders[static_cast<size_t>(i)].transfers_leaving, i); };
  std::ranges::nth_element(out, out.begin() + kCompared, {}, order);
  out.resize(kCompared);
  std::ranges::sort(out);
  return out;
}

struct Giver {
  int holder = -1;
  double seconds = 0;
};

/// The giver from which the blocks that the node lacks are here first. Ties go to the holder with fewer leaving
/// transfers, then to the first one.
Giver best_giver(const Snapshot& s, const PrefillView& taker, uint32_t blocks, std::span<const int> givers) {
  MC_ASSERT(taker.resident_blocks < blocks && !givers.empty());
  Giver best;
  uint32_t best_leaving = 0;
  for (const int holder : givers) {
    const uint32_t leaving = s.holders[static_cast<size_t>(holder)].transfers_leaving;
    const double seconds = fetch_seconds(s, reader_of(taker), holder, blocks - taker.resident_blocks);
    if (best.holder < 0 || std::pair(seconds, leaving) < std::pair(best.seconds, best_leaving))
      best = {holder, seconds}, best_leaving = leaving;
  }
  return best;
}

}  // namespace

std::optional<Copy> plan_copy(const Snapshot& s, const Popularity::Demand& demand, uint32_t replicas_max, int chosen,
                              std::span<const uint32_t> coming) {
  const auto will_have = [&](size_t i) {
    return static_cast<int>(i) == chosen || std::find(coming.begin(), coming.end(), i) != coming.end();
  };
  uint32_t replicas = 0;
  std::vector<size_t> takers;  // the least busy ones
  for (size_t i = 0; i < s.prefill.size(); ++i) {
    const PrefillView& node = s.prefill[i];
    if (will_have(i) || node.resident_blocks >= demand.blocks) {
      ++replicas;
    } else if (node.accepting && node.cost.read_bytes_per_s > 1) {
      if (!takers.empty() && node.queue_s < s.prefill[takers.front()].queue_s) takers.clear();
      if (takers.empty() || node.queue_s == s.prefill[takers.front()].queue_s) takers.push_back(i);
    }
  }
  if (takers.empty() || replicas >= std::min(demand.replicas, replicas_max)) return std::nullopt;
  const std::vector<int> givers = givers_of(s, demand.blocks);
  if (givers.empty()) return std::nullopt;
  // In an idle cluster all nodes are equally busy. Without a bound the plan would predict nodes x holders times.
  takers.resize(std::min(takers.size(), kCompared));
  size_t target = takers.front();
  Giver source;
  for (const size_t i : takers) {
    const Giver giver = best_giver(s, s.prefill[i], demand.blocks, givers);
    if (source.holder < 0 || giver.seconds < source.seconds) target = i, source = giver;
  }
  return Copy{static_cast<uint32_t>(target), static_cast<uint32_t>(source.holder), s.prefill[target].resident_blocks,
              demand.blocks};
}

}  // namespace mc::sched

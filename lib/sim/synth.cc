#include "sim/synth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "base/assert.h"

namespace mc::sim {
namespace {

uint64_t blocks_of(uint64_t tokens) {
  return (tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
}

/// An index of `count` from around `at`, a twentieth to each side.
size_t near(size_t at, size_t count, Rng& rng) {
  const size_t reach = std::max<size_t>(20, count / 20);
  const size_t low = at > reach ? at - reach : 0, high = std::min(count - 1, at + reach);
  return low + rng.below(high - low + 1);
}

/// Requests that no other request continues yet, by time.
class Leaves {
 public:
  struct Leaf {
    size_t request;
    uint32_t turn;
    double input_tokens;
  };
  void add(double at_ms, const Leaf& leaf) { leaves_.emplace(at_ms, leaf); }

  /// The leaf most like `wanted` within `slack_ms` of `at_ms`, unless its prompt is half or twice as long;
  /// it is a leaf no more. A doubled prompt weighs as much as four turns or twice the slack.
  std::optional<size_t> take(double at_ms, double slack_ms, const Leaf& wanted) {
    auto best = leaves_.end();
    double least = std::numeric_limits<double>::infinity();
    for (auto it = leaves_.lower_bound(at_ms - slack_ms); it != leaves_.end() && it->first <= at_ms + slack_ms; ++it) {
      const double doublings = std::abs(std::log2((it->second.input_tokens + 1) / (wanted.input_tokens + 1)));
      const double turns = std::abs(static_cast<double>(it->second.turn) - static_cast<double>(wanted.turn));
      const double cost = doublings + turns / 4 + std::abs(it->first - at_ms) / slack_ms / 2;
      if (doublings < 1 && cost < least) best = it, least = cost;
    }
    if (best == leaves_.end()) return std::nullopt;
    const size_t request = best->second.request;
    leaves_.erase(best);
    return request;
  }

 private:
  std::multimap<double, Leaf> leaves_;
};

}  // namespace

TraceModel::TraceModel(const std::vector<TraceRequest>& trace) {
  MC_ASSERT(!trace.empty());
  const TraceBlocks blocks(trace);
  const Sharing sharing = find_sharing(trace, blocks);
  common_blocks_ = sharing.common_blocks;
  std::vector<uint32_t> turn(trace.size(), 1);
  for (size_t r = 0; r < trace.size(); ++r) {
    const TraceRequest& request = trace[r];
    input_tokens_max_ = std::max(input_tokens_max_, request.input_tokens);
    if (r == 0 || request.timestamp_ms != trace[r - 1].timestamp_ms)
      instants_.push_back({r == 0 ? 0 : request.timestamp_ms - trace[r - 1].timestamp_ms, 0});
    ++instants_.back().requests;
    Turn t{.input_tokens = request.input_tokens, .output_tokens = request.output_tokens, .turn = 1};
    t.tenant = request.tenant, t.priority = request.priority;
    if (const size_t p = sharing.parents[r]; p != kNoParent) {
      const uint64_t whole = trace[p].input_tokens / kTraceBlockTokens;
      const uint32_t known = sharing.known_blocks[r];
      t.turn = turn[r] = turn[p] + 1;
      t.age_ms = request.timestamp_ms - trace[p].timestamp_ms;
      t.growth = static_cast<int64_t>(request.input_tokens) - static_cast<int64_t>(trace[p].input_tokens);
      t.shared =
          whole > common_blocks_
              ? std::min(1.0, static_cast<double>(known - common_blocks_) / static_cast<double>(whole - common_blocks_))
              : 1.0;
      t.exact_repeat = known == request.hash_ids.size();
    } else {
      first_turns_.push_back(r);
    }
    turns_.push_back(t);
    instant_of_.push_back(instants_.size() - 1);
  }
  if (instants_.size() > 1) instants_[0].gap_ms = instants_[1].gap_ms;  // it has none
}

std::vector<TraceRequest> TraceModel::generate(uint64_t count, Rng& rng) const {
  std::vector<TraceRequest> out;
  std::vector<uint32_t> turn;
  Leaves leaves;
  uint64_t next_id = common_blocks_;
  Instant instant{0, 0};
  double now_ms = 0;
  for (uint32_t here = 0; out.size() < count; ++here) {
    const size_t at = out.size() % turns_.size();
    if (here == instant.requests) {
      instant = instants_[near(instant_of_[at], instants_.size(), rng)];
      if (!out.empty()) now_ms += std::max(instant.gap_ms, 1.0);
      here = 0;
    }
    const Turn* t = &turns_[near(at, turns_.size(), rng)];
    std::optional<size_t> parent;
    if (t->turn > 1) {
      const double parent_tokens = static_cast<double>(t->input_tokens) - static_cast<double>(t->growth);
      parent = leaves.take(now_ms - t->age_ms, std::max(5000.0, t->age_ms / 4), {0, t->turn - 1, parent_tokens});
      if (!parent) {
        const auto first = std::lower_bound(first_turns_.begin(), first_turns_.end(), at);
        const size_t index =
            std::min<size_t>(static_cast<size_t>(first - first_turns_.begin()), first_turns_.size() - 1);
        t = &turns_[first_turns_[near(index, first_turns_.size(), rng)]];
      }
    }
    TraceRequest request{.timestamp_ms = now_ms, .input_tokens = t->input_tokens, .output_tokens = t->output_tokens};
    request.tenant = parent ? out[*parent].tenant : t->tenant;
    request.priority = t->priority;
    std::vector<uint64_t>& ids = request.hash_ids;
    if (parent) {
      const TraceRequest& p = out[*parent];
      const int64_t grown = static_cast<int64_t>(p.input_tokens) + (t->exact_repeat ? 0 : t->growth);
      request.input_tokens = std::min(static_cast<uint64_t>(std::max<int64_t>(1, grown)), input_tokens_max_);
      const uint64_t whole = std::max<uint64_t>(p.input_tokens / kTraceBlockTokens, common_blocks_);
      const double kept = std::ceil(t->shared * static_cast<double>(whole - common_blocks_) - 1e-9);
      const uint64_t shared = t->exact_repeat ? p.hash_ids.size() : common_blocks_ + static_cast<uint64_t>(kept);
      ids.assign(p.hash_ids.begin(), p.hash_ids.begin() + static_cast<ptrdiff_t>(std::min(shared, p.hash_ids.size())));
    }
    const uint64_t blocks = blocks_of(request.input_tokens);
    ids.resize(std::min<uint64_t>(ids.size(), blocks));
    for (uint64_t i = ids.size(); i < blocks; ++i) ids.push_back(i < common_blocks_ ? i : next_id++);
    turn.push_back(parent ? turn[*parent] + 1 : 1);
    leaves.add(now_ms, {out.size(), turn.back(), static_cast<double>(request.input_tokens)});
    out.push_back(std::move(request));
  }
  return out;
}

}  // namespace mc::sim

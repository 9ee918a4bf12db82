// The reference rules of the prefill simulation, after the policies of Mooncake (FAST'25, section 6):
// P nodes that serve one request at a time in order of arrival, an LRU of blocks on each, and seven ways to
// choose the node. Deterministic and without a clock: the caller says when a request comes.
//
//   w[i]  = max(0, free[i] - now)                     pl[i] = leading run of the prompt on node i; best = max pl
//   start = max(now, free[i]); end = start + x + T    T(n, p) = prefill seconds, x = seconds of the fetch
//   at dispatch all blocks of the prompt become the most recent of node i; ties go to the lowest node
//
// The arithmetic keeps the reference's order of operations: schedules hang on ties between doubles.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "sched/cost.h"
#include "sched/policy.h"
#include "sim/lru.h"

namespace mc::sim {

/// LLaMA3-70B on 8 x A800, the node of all reference simulations.
inline constexpr sched::Cost kPaperCost{.decode_s = 26.16e-3,
                                        .decode_s_per_row = .143e-3,
                                        .decode_s_per_kv_token = 3.47e-8,
                                        .prefill_s = .0428,
                                        .prefill_s_per_token = .11048e-3,
                                        .prefill_s_per_token2 = .7589e-9,
                                        .read_bytes_per_s = 87e9};
inline constexpr double kPaperTokenBytes = 327680;

/// The view that a rule has of one request.
struct PaperView {
  double tokens = 0;                     // n
  uint32_t best = 0;                     // blocks
  std::span<const uint32_t> matches;     // pl, blocks
  std::span<const double> waits;         // w, seconds
  std::span<const uint32_t> unfinished;  // requests with end > now
  double theta = 1, bytes_per_s = 87e9;
  std::mt19937_64* draws = nullptr;

  /// Tokens that k blocks save. At least one token is always computed.
  double reused(uint32_t blocks) const;
  double prefill_s(uint32_t blocks) const { return kPaperCost.prefill(tokens, reused(blocks)); }
  /// x: the tokens node i lacks of the best match, at the line rate.
  double fetch_s(size_t node) const;
};

struct PaperChoice {
  uint32_t node = 0;
  uint32_t blocks = 0;  // u: whose tokens are not computed
  double fetch_s = 0;   // x
};

struct PaperRule {
  std::string_view policy;                     // sched's name
  std::optional<sched::FetchRule> fetch_rule;  // nullopt: the policy fetches nothing, or has one rule
  std::string_view reference_name;             // the reference's
  PaperChoice (*choose)(const PaperView&);
};
std::span<const PaperRule> paper_rules();
/// nullptr when there is none of that name; fetch_rule matters to policies with several rules.
const PaperRule* find_paper_rule(std::string_view policy, sched::FetchRule fetch_rule);

struct PaperPrefillOptions {
  uint32_t nodes = 8;
  const PaperRule* rule = nullptr;
  double theta = 1;
  uint64_t cache_blocks = 5859;  // 3 M tokens; kUnlimitedBlocks never evicts
  double bytes_per_s = 87e9;
  uint64_t seed = 0;  // of the mt19937_64 that `random` draws from, once a request
};

struct PaperPlacement {
  uint32_t node = 0;
  double ttft_s = 0, end_s = 0;
  double prefill_s = 0, fetch_s = 0;
  uint64_t reused_tokens = 0;
  uint32_t local_blocks = 0, used_blocks = 0;
  bool fetched() const { return used_blocks > local_blocks; }
};

class PaperPrefill {
 public:
  PaperPrefill(const PaperPrefillOptions& options, uint32_t unique_blocks);
  /// Decides one request and books nothing. `now_s` never decreases; `blocks` are TraceBlocks' numbers.
  PaperPlacement plan(double now_s, uint64_t input_tokens, std::span<const uint32_t> blocks);
  /// Dispatches the request as plan() has just decided.
  void book(const PaperPlacement& placement, std::span<const uint32_t> blocks);
  PaperPlacement place(double now_s, uint64_t input_tokens, std::span<const uint32_t> blocks) {
    const PaperPlacement out = plan(now_s, input_tokens, blocks);
    book(out, blocks);
    return out;
  }

 private:
  PaperPrefillOptions options_;
  NodeCaches caches_;
  std::mt19937_64 draws_;
  std::vector<double> free_;
  std::vector<std::deque<double>> ends_;  // of requests not yet seen to have ended, per node
  std::vector<uint32_t> matches_, unfinished_;
  std::vector<double> waits_;
};

}  // namespace mc::sim

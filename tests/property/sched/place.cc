// The decision with everything that may be skipped skipped, against the plain loop over all candidates: the same
// nodes and the same numbers, for every policy, fetch rule and admission, on clusters full of ties.
#include <algorithm>
#include <array>
#include <tuple>

#include "base/rng.h"
#include "sched/sched.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

// Few different values, so that equal ranks, full prefixes and empty queues are common.
Snapshot cluster(Rng& rng, TransferCosts& links) {
  const auto few = [&](std::initializer_list<double> values) { return *(values.begin() + rng.below(values.size())); };
  Snapshot s;
  s.block_tokens = 64;
  s.tokens = static_cast<uint32_t>(few({1, 63, 64, 65, 640, 5000}));
  s.block_bytes = static_cast<uint64_t>(few({1, 1e5, 1e7}));
  const uint32_t blocks = (s.tokens - 1) / 64 + 2;  // one more than can be reused
  const uint64_t prefills = 1 + rng.below(rng.chance(0.2) ? 40 : rng.chance(0.05) ? 400 : 5);
  // The prompt is held in parts by some nodes, by all nodes (a first block, or all of it), or by none.
  enum { mixed, everybody, nobody } const held = std::array{mixed, mixed, everybody, nobody}[rng.below(4)];
  const uint32_t everywhere = rng.chance(0.5) ? std::min(1u, blocks - 1) : blocks - 1;
  const bool alike = rng.chance(0.3);     // one cost for all nodes
  const bool draining = rng.chance(0.1);  // nearly all of them
  Cost cost;
  for (uint64_t i = 0; i < prefills + rng.below(4); ++i) {
    HolderView h{.readable_blocks = static_cast<uint32_t>(rng.below(blocks))};
    if (held == nobody || rng.chance(0.5)) h.readable_blocks = 0;
    if (held == everybody) h.readable_blocks = std::max(h.readable_blocks, everywhere);
    h.pending_blocks = h.readable_blocks;
    if (held == mixed && rng.chance(0.3))
      h.pending_blocks += static_cast<uint32_t>(rng.below(blocks)), h.pending_s = few({0, 0.01, 1});
    h.transfers_leaving = static_cast<uint32_t>(rng.below(3));
    h.leaving_bytes = h.transfers_leaving > 0 ? few({0, 1e6}) : 0;
    s.add_holder((i < prefills ? "p" : "c") + std::to_string(i), h);
    if (i >= prefills) continue;
    PrefillView p;
    p.name = s.holder_names[i], p.holder = rng.chance(0.8) ? static_cast<int>(i) : -1;
    p.queue_s = few({0, 0, 0.5, 0.5 + 1e-12, 3});
    p.unfinished = static_cast<uint32_t>(rng.below(3));
    p.resident_blocks = h.pending_blocks;
    if (i == 0 || !alike)
      cost = {.prefill_s = few({0, 0.002}),
              .prefill_s_per_token = few({0, 1e-4}),
              .prefill_s_per_token2 = few({0, 1e-9}),
              .read_bytes_per_s = few({1, 1e8, 1e12})};
    p.cost = cost;
    p.accepting = rng.chance(draining ? 0.05 : 0.9);
    p.up_s = few({1e9, 0, 2});
    s.prefill.push_back(p);
  }
  if (rng.chance(0.4)) {
    std::vector<TransferCosts::Member> members;
    for (uint32_t i = 0; i < s.holders.size(); ++i) members.push_back({s.holders[i].slot = i, true, 1e-8});
    links.set_members(members);
    for (uint64_t i = rng.below(40); i > 0; --i)
      links.add(static_cast<uint32_t>(rng.below(members.size())), static_cast<uint32_t>(rng.below(members.size())),
                {1e6, few({1e-4, 1e-2, 1}), static_cast<uint32_t>(rng.below(3))}, s.now);
    if (!links.empty()) s.transfers = &links;
  }
  const uint64_t decodes = 1 + rng.below(rng.chance(0.2) ? 40 : 3);
  for (uint64_t i = 0; i < decodes; ++i) {
    DecodeView d;
    d.name = "d" + std::to_string(i), d.rows = static_cast<uint32_t>(rng.below(4)), d.kv_tokens = rng.below(3) * 1000;
    d.capacity_tokens = static_cast<uint64_t>(few({2000, 7000, 100000})), d.accepting = rng.chance(0.9);
    d.cost = {.decode_s = few({2e-3, 3e-3}), .decode_s_per_kv_token = few({0, 1e-7})};
    s.decode.push_back(d);
  }
  return s;
}

/// The rule as it reads: each node's best way, then the first of the best nodes.
int plain_choice(const Snapshot& s, const Placement& p) {
  int best = -1;
  double best_s = 0;
  for (size_t i = 0; i < p.candidates.size(); ++i) {
    Candidate local = p.candidates[i];
    local.holder = -1, local.fetch_blocks = 0, local.wait_s = 0;
    predict(s, local);
    double least_s = local.ttft_s;
    int source = -1;  // the readable run of most blocks, then the one with the fewest transfers
    for (size_t h = 0; h < s.holders.size(); ++h) {
      const HolderView& holder = s.holders[h];
      if (s.holder_names[h] == s.prefill[local.node].name || holder.readable_blocks == 0) continue;
      const HolderView* known = source < 0 ? nullptr : &s.holders[static_cast<size_t>(source)];
      if (known == nullptr || holder.readable_blocks > known->readable_blocks ||
          (holder.readable_blocks == known->readable_blocks && holder.transfers_leaving < known->transfers_leaving))
        source = static_cast<int>(h);
    }
    const auto with = [&](size_t h, uint32_t blocks, double wait_s) {
      Candidate c = local;
      c.holder = static_cast<int>(h), c.fetch_blocks = blocks - local.local_blocks, c.wait_s = wait_s;
      predict(s, c);
      least_s = std::min(least_s, c.ttft_s);
    };
    if (source >= 0 && s.holders[static_cast<size_t>(source)].readable_blocks > local.local_blocks)
      with(static_cast<size_t>(source), s.holders[static_cast<size_t>(source)].readable_blocks, 0);
    // Where links differ, the eight holders of the most blocks.
    std::vector<std::tuple<uint32_t, uint32_t, size_t>> others;
    for (size_t h = 0; s.transfers && h < s.holders.size(); ++h)
      if (s.holders[h].readable_blocks > 0)
        others.emplace_back(UINT32_MAX - s.holders[h].readable_blocks, s.holders[h].transfers_leaving, h);
    std::sort(others.begin(), others.end());
    others.resize(std::min<size_t>(others.size(), 8));
    for (const auto& [order, leaving, h] : others)
      if (s.holders[h].readable_blocks > local.local_blocks && s.holder_names[h] != s.prefill[local.node].name)
        with(h, s.holders[h].readable_blocks, 0);
    for (size_t h = 0; h < s.holders.size(); ++h) {
      const HolderView& holder = s.holders[h];
      if (s.holder_names[h] == s.prefill[local.node].name || holder.pending_blocks <= holder.readable_blocks ||
          holder.pending_blocks <= local.local_blocks)
        continue;
      with(h, holder.pending_blocks, holder.pending_s);
    }
    if (best < 0 || least_s + local.handicap_s < best_s)
      best = static_cast<int>(i), best_s = least_s + local.handicap_s;
  }
  return best;
}

/// The node with room whose next step is the shortest, or else the emptiest that could ever hold the request.
int plain_decode(const Snapshot& s) {
  std::vector<std::tuple<bool, double, int>> order;  // no room now, seconds or fill, which
  for (size_t i = 0; i < s.decode.size(); ++i) {
    const DecodeView& d = s.decode[i];
    if (!d.accepting || s.tokens + 1 > d.capacity_tokens) continue;
    const bool full = d.kv_tokens + s.tokens + 1 > d.capacity_tokens;
    const double fill = static_cast<double>(d.kv_tokens) / static_cast<double>(d.capacity_tokens);
    order.emplace_back(full, full ? fill : predict_tbt(s, d), static_cast<int>(i));
  }
  return order.empty() ? -1 : std::get<2>(*std::min_element(order.begin(), order.end()));
}

Options some_options(Rng& rng) {
  Options options;
  options.fetch_rule = rng.chance(0.8) ? FetchRule::cost : FetchRule::threshold;
  options.threshold = rng.chance(0.5) ? 1 : 4;
  options.slow_start_s = rng.chance(0.3) ? 3 : 0;
  options.ttft_slo_s = rng.chance(0.3) ? 0.5 : 0;
  options.admission = admissions()[rng.below(admissions().size())];
  if (rng.chance(0.2)) options.prefer = "p" + std::to_string(rng.below(4));
  return options;
}

/// The first thing in which a decision that may skip work differs from the complete one; "" where nothing does.
std::string difference(const Policy& policy, const Snapshot& snapshot, const Options& options, uint64_t seed) {
  Rng a(seed), b(seed);
  Options all = options;
  all.complete = true;
  const Placement skipping = place(snapshot, policy, options, a);
  const Placement complete = place(snapshot, policy, all, b);
  if (skipping.candidate != complete.candidate) return "candidate";
  if (skipping.decode != complete.decode) return "decode";
  if (skipping.reason != NoPlace::no_prefill && skipping.decode != plain_decode(snapshot)) return "plain decode";
  if (skipping.reason != complete.reason) return "reason";
  if (skipping.ttft_s != complete.ttft_s) return "ttft_s";
  if (skipping.candidates.size() != complete.candidates.size()) return "candidates";
  if (skipping.candidate < 0) return "";
  const auto at = static_cast<size_t>(skipping.candidate);
  if (skipping.candidates[at].holder != complete.candidates[at].holder) return "holder";
  if (skipping.candidates[at].fetch_blocks != complete.candidates[at].fetch_blocks) return "fetch_blocks";
  if (policy.name == "kv-centric" && options.fetch_rule == FetchRule::cost && options.prefer.empty() &&
      complete.candidate != plain_choice(snapshot, complete))
    return "plain choice";
  return "";
}

/// "policy: difference (seed)" of the first row of `table` that skips too much in one of `runs` clusters; "" = none.
std::string first_difference(std::span<const Policy* const> table, uint64_t runs) {
  for (uint64_t run = 0; run < runs; ++run) {
    Rng rng(test::seed() + run);
    TransferCosts links;
    const Snapshot snapshot = cluster(rng, links);
    const Options options = some_options(rng);
    for (const Policy* policy : table)
      if (const std::string found = difference(*policy, snapshot, options, run); !found.empty())
        return std::string(policy->name) + ": " + found + " (seed " + std::to_string(test::seed() + run) + ")";
  }
  return "";
}

/// A policy that is wrong on purpose: it takes the last candidate where work may be skipped, and the first elsewhere.
int choose_by_completeness(const Snapshot&, const Options& options, std::span<Candidate> candidates, Rng&) {
  return options.complete || candidates.empty() ? 0 : static_cast<int>(candidates.size()) - 1;
}
const Policy kHasty{.name = "hasty", .summary = "wrong on purpose", .choose = choose_by_completeness};

}  // namespace

TEST_CASE("sched/place: what a decision skips never changes it, for every policy, fetch rule and admission") {
  CHECK(first_difference(policies(), 4000) == "");
}

TEST_CASE("sched/place: a policy that joins the table joins the property, which finds it where it is wrong") {
  std::vector<const Policy*> rows(policies().begin(), policies().end());
  rows.push_back(&kHasty);
  CHECK(first_difference(rows, 50).starts_with("hasty: "));
}

TEST_CASE("sched/place: the best candidates are the chosen one and then those of least TTFT, first come first") {
  for (uint64_t run = 0; run < 500; ++run) {
    Rng rng(test::seed() + run);
    Placement p;
    const uint64_t count = rng.below(30);
    for (uint64_t i = 0; i < count; ++i) p.candidates.push_back({.ttft_s = static_cast<double>(rng.below(6))});
    p.candidate = count == 0 || rng.chance(0.2) ? -1 : static_cast<int>(rng.below(count));
    const size_t most = rng.below(10);
    std::vector<uint32_t> order, found;
    for (uint32_t i = 0; i < count; ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(static_cast<int>(a) != p.candidate, p.candidates[a].ttft_s) <
             std::pair(static_cast<int>(b) != p.candidate, p.candidates[b].ttft_s);
    });
    order.resize(std::min<size_t>(most, order.size()));
    best_candidates(p, most, found);
    CHECK(found == order);
  }
}

// Popularity against a plain list of everything that was counted, the budget against its definition, and the plan of
// a copy against its words.
#include "sched/replicate.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

BlockHash name(uint32_t stem, uint32_t depth) {
  BlockHash h;
  h.bytes[0] = static_cast<uint8_t>(stem), h.bytes[1] = static_cast<uint8_t>(stem >> 8);
  h.bytes[2] = static_cast<uint8_t>(depth), h.bytes[3] = 1;
  return h;
}

std::vector<BlockHash> chain(uint32_t stem, uint32_t blocks) {
  std::vector<BlockHash> out;
  for (uint32_t d = 0; d < blocks; ++d) out.push_back(name(stem, d));
  return out;
}

}  // namespace

TEST_CASE("sched/replicate: depths grow by at most a half") {
  uint32_t depth = 1;
  std::vector<uint32_t> seen;
  for (; depth < 4000; depth = Popularity::next_depth(depth)) seen.push_back(depth);
  CHECK(std::vector<uint32_t>(seen.begin(), seen.begin() + 9) == std::vector<uint32_t>{1, 2, 3, 4, 6, 8, 12, 16, 24});
  for (size_t i = 2; i < seen.size(); ++i) CHECK(2 * seen[i] <= 3 * seen[i - 1]);
}

TEST_CASE("sched/replicate: a load is the fading sum of what was counted, however the counts come") {
  for (uint64_t run = 0; run < 50; ++run) {
    Rng rng(test::seed() + run);
    Popularity popularity({.replicas_max = 8, .bytes_per_s = 1, .half_life_s = 10});
    std::vector<std::tuple<double, uint32_t, uint32_t, double>> all;  // time, stem, blocks, work
    double now = 1000;
    for (int i = 0; i < 300; ++i) {
      now += rng.chance(0.3) ? 0 : rng.uniform();
      const uint32_t stem = static_cast<uint32_t>(rng.below(5)), blocks = static_cast<uint32_t>(rng.below(20));
      const double work = 3 * rng.uniform();
      popularity.count(chain(stem, blocks), work, now);
      all.push_back({now, stem, blocks, work});
    }
    for (uint32_t stem = 0; stem < 5; ++stem)
      for (uint32_t depth = 1; depth <= 20; depth = Popularity::next_depth(depth)) {
        double sum = 0;
        for (const auto& [at, s, blocks, work] : all)
          if (s == stem && blocks >= depth) sum += work * std::exp2(-(now - at) / 10) * std::log(2.0) / 10;
        INFO("run " << run << " stem " << stem << " depth " << depth);
        CHECK(popularity.load(name(stem, depth - 1), now) == doctest::Approx(sum).epsilon(1e-9));
      }
  }
}

TEST_CASE("sched/replicate: a steady load is measured as itself, and asks for nodes in proportion") {
  Popularity popularity({.replicas_max = 8, .bytes_per_s = 1, .half_life_s = 20, .node_share = 0.25});
  const auto hot = chain(1, 10);
  double now = 0;
  for (int i = 0; i < 4000; ++i) popularity.count(hot, 0.08, now += 0.1);  // 0.8 of a node
  CHECK(popularity.load(hot[7], now) == doctest::Approx(0.8).epsilon(0.01));
  const auto demand = popularity.demand(hot, now);
  CHECK(demand.blocks == 8);
  CHECK(demand.replicas == 4);
  CHECK(popularity.demand(hot, now + 100).replicas == 1);  // five half-lives later nobody wants it
  CHECK(popularity.demand(chain(2, 10), now).blocks == 0);
}

TEST_CASE("sched/replicate: however many prefixes come, few are kept, the hot one among them") {
  for (uint64_t run = 0; run < 5; ++run) {
    Rng rng(test::seed() + run);
    Popularity popularity({.replicas_max = 8, .bytes_per_s = 1, .half_life_s = 30, .tracked = 64});
    double now = 0;
    for (uint32_t i = 0; i < 20000; ++i) {
      now += 0.01;
      popularity.count(chain(10 + static_cast<uint32_t>(rng.below(50000)), 4), 0.02 * rng.uniform(), now);
      if (i % 20 == 0) popularity.count(chain(1, 8), 0.1, now);
      REQUIRE(popularity.tracked() <= 64);
    }
    CHECK(popularity.load(name(1, 7), now) == doctest::Approx(0.5).epsilon(0.05));
  }
}

TEST_CASE("sched/replicate: copies never cost more than the budget and its burst") {
  for (uint64_t run = 0; run < 50; ++run) {
    Rng rng(test::seed() + run);
    const double rate = 1 + static_cast<double>(rng.below(1000)), burst = 1 + static_cast<double>(rng.below(5));
    Popularity popularity({.replicas_max = 2, .bytes_per_s = rate, .burst_s = burst});
    double now = 50, paid = 0;
    const double began = now;
    for (int i = 0; i < 500; ++i) {
      now += rng.uniform();
      const double bytes = static_cast<double>(rng.below(2000));
      if (popularity.pay(bytes, now)) paid += bytes;
      CHECK(paid <= std::max(rate * burst, 2000.0) + rate * (now - began) + 1e-6);
    }
    CHECK(paid > 0);
  }
  Popularity none({.replicas_max = 2, .bytes_per_s = 0});
  CHECK_FALSE(none.pay(1, 5));
}

TEST_CASE("sched/replicate: a copy goes to the least busy node that lacks the run, from a holder of all of it") {
  for (uint64_t run = 0; run < 2000; ++run) {
    Rng rng(test::seed() + run);
    Snapshot s;
    const uint64_t nodes = 1 + rng.below(6);
    for (uint64_t i = 0; i < nodes + rng.below(3); ++i) {
      HolderView h{.readable_blocks = static_cast<uint32_t>(rng.below(6))};
      h.transfers_leaving = static_cast<uint32_t>(rng.below(3));
      s.add_holder("n" + std::to_string(i), h);
      if (i >= nodes) continue;
      PrefillView p;
      p.name = s.holder_names[i], p.resident_blocks = h.readable_blocks + static_cast<uint32_t>(rng.below(2));
      p.queue_s = static_cast<double>(rng.below(3)), p.accepting = rng.chance(0.8);
      s.prefill.push_back(p);
    }
    const Popularity::Demand demand{1 + static_cast<uint32_t>(rng.below(5)), 1 + static_cast<uint32_t>(rng.below(4)),
                                    1};
    const uint32_t most = static_cast<uint32_t>(rng.below(5));
    const auto has = [&](const PrefillView& p) { return p.resident_blocks >= demand.blocks; };
    const auto replicas = static_cast<uint32_t>(std::count_if(s.prefill.begin(), s.prefill.end(), has));
    const auto copy = plan_copy(s, demand, most);
    INFO("run " << run);
    const bool takers =
        std::any_of(s.prefill.begin(), s.prefill.end(), [&](const auto& p) { return p.accepting && !has(p); });
    const bool givers = std::any_of(s.holders.begin(), s.holders.end(),
                                    [&](const auto& h) { return h.readable_blocks >= demand.blocks; });
    REQUIRE(copy.has_value() == (takers && givers && replicas < std::min(demand.replicas, most)));
    if (!copy) continue;
    const PrefillView& target = s.prefill[copy->target];
    CHECK((target.accepting && !has(target)));
    CHECK(copy->first_block == target.resident_blocks);
    CHECK(copy->end_block == demand.blocks);
    CHECK(s.holders[copy->source].readable_blocks >= demand.blocks);
    for (const auto& p : s.prefill)
      if (p.accepting && !has(p)) CHECK(target.queue_s <= p.queue_s);
  }
}

TEST_CASE("sched/replicate: a prefix larger than the whole burst is copied, and paid for before the next") {
  Popularity popularity({.replicas_max = 2, .bytes_per_s = 100, .burst_s = 4});
  CHECK(popularity.pay(1000, 10));  // 600 of debt
  CHECK_FALSE(popularity.pay(1, 15.9));
  CHECK(popularity.pay(1, 16.1));
  CHECK_FALSE(popularity.pay(1000, 17));  // only from a full one
  popularity.refund(1000);
  CHECK(popularity.pay(400, 17));
}

TEST_CASE(
    "sched/replicate: a copy takes the link that brings it first, by learnt costs, to the node it reaches first") {
  Snapshot s;
  s.block_bytes = 1'000'000;
  std::vector<TransferCosts::Member> members;
  for (uint32_t i = 0; i < 4; ++i) {
    const std::string name = "p" + std::to_string(i);
    s.add_holder(name, {.readable_blocks = i < 2 ? 8u : 0u, .slot = i});
    PrefillView p;
    p.name = name, p.holder = static_cast<int>(i), p.accepting = true, p.resident_blocks = i < 2 ? 8 : 0;
    p.cost.read_bytes_per_s = 1e9;
    s.prefill.push_back(p);
    members.push_back({i, true, 1e-9});
  }
  TransferCosts links;
  links.set_members(members);
  s.transfers = &links;
  s.now = TimePoint{} + 1s;
  const Popularity::Demand demand{8, 4, 1};
  const auto copy = [&] { return *plan_copy(s, demand, 4); };
  CHECK((copy().target == 2 && copy().source == 0));  // nothing is known of the links
  const auto learn = [&](uint32_t from, uint32_t to, double seconds) {
    for (int i = 0; i < 5; ++i) links.add(from, to, {8e6, seconds}, s.now);
  };
  learn(0, 2, .8), learn(1, 2, .08);
  CHECK((copy().target == 3 && copy().source == 0));  // all links to p2 are slower than what p3 announces
  s.prefill[3].queue_s = 1;
  CHECK((copy().target == 2 && copy().source == 1));
  s.holders[1].transfers_leaving = 20;
  CHECK(copy().source == 0);  // the quick link is shared with many
}

TEST_CASE("sched/replicate: of 1,000 idle nodes one gets a copy, from a holder with few leaving transfers") {
  Snapshot s;
  for (uint32_t i = 0; i < 1000; ++i) {
    const std::string name = "p" + std::to_string(i);
    s.add_holder(name, {.transfers_leaving = 1000 - i, .readable_blocks = i % 2 == 0 ? 8u : 0u});
    PrefillView p;
    p.name = name, p.holder = static_cast<int>(i), p.accepting = true, p.resident_blocks = i % 2 == 0 ? 8 : 0;
    p.queue_s = i < 500 ? 1 : 0;
    s.prefill.push_back(p);
  }
  const auto copy = plan_copy(s, {8, 1000, 1}, 1000);
  REQUIRE(copy.has_value());
  CHECK(copy->target == 501);  // the first of those that are least busy and lack the run
  CHECK(copy->source == 998);
  s.prefill[999].queue_s = -1;
  CHECK(plan_copy(s, {8, 1000, 1}, 1000)->target == 999);
  CHECK_FALSE(plan_copy(s, {8, 1000, 1}, 500).has_value());  // so many have it
}

TEST_CASE("sched/replicate: a copy that is on its way counts as a replica") {
  Snapshot s;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "p" + std::to_string(i);
    s.add_holder(name, {.readable_blocks = i == 0 ? 8u : 0u});
    PrefillView p;
    p.name = name, p.holder = i, p.accepting = true, p.resident_blocks = i == 0 ? 8 : 0;
    s.prefill.push_back(p);
  }
  const std::vector<uint32_t> one = {1}, two = {1, 2};
  CHECK(plan_copy(s, {8, 3, 1}, 3)->target == 1);
  CHECK(plan_copy(s, {8, 3, 1}, 3, -1, one)->target == 2);
  CHECK_FALSE(plan_copy(s, {8, 3, 1}, 3, -1, two));
}

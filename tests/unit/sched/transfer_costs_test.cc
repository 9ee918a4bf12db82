// The costs of reads between two nodes, learnt from reads that have ended.
#include "sched/transfer_costs.h"

#include <cmath>

#include "test.h"

namespace transfer_costs_test {

using namespace mc;
using namespace mc::sched;

namespace {

constexpr double kRate = 1e-9;  // announced seconds a byte
constexpr TimePoint kStart = TimePoint{} + 1000s;

/// Nodes 0 to 3.
struct Links {
  TransferCosts costs;
  TimePoint now = kStart;

  Links() { members(4); }
  void members(uint32_t count) {
    std::vector<TransferCosts::Member> out;
    for (uint32_t slot = 0; slot < count; ++slot) out.push_back({slot, true, kRate});
    costs.set_members(out);
  }
  /// Node 1 reads from node 0, `factor` times as slowly as it announced.
  void read(double factor, double bytes = 1e8, uint32_t leaving = 0) {
    costs.add(0, 1, {bytes, factor * bytes * kRate, leaving}, now);
    costs.check();
  }
  /// The time of such a read relative to the announced one.
  double factor(double bytes = 1e8, double leaving = 0) const {
    const auto cost = costs.find(0, 1, now);
    REQUIRE(cost.has_value());
    return cost->seconds(bytes, leaving) / (bytes * kRate);
  }
};

}  // namespace

TEST_CASE("sched/transfer_costs: a pair that was not read has no cost, and its reader the announced rate") {
  Links l;
  CHECK(l.costs.empty());
  CHECK_FALSE(l.costs.find(0, 1, l.now));
  CHECK(l.costs.s_per_byte(1, l.now) == kRate);
  l.read(10);
  CHECK_FALSE(l.costs.empty());
  CHECK_FALSE(l.costs.find(1, 0, l.now));
  CHECK_FALSE(l.costs.find(2, 1, l.now));
  CHECK(l.costs.s_per_byte(1, l.now) == doctest::Approx(kRate));  // one source says nothing of others
  CHECK(l.costs.s_per_byte(0, l.now) == kRate);
}

TEST_CASE("sched/transfer_costs: the second read that agrees with the first one is believed") {
  for (const double factor : {20.0, 0.05}) {
    CAPTURE(factor);
    Links l;
    l.read(factor);
    CHECK(l.factor() == doctest::Approx(std::sqrt(factor)));
    l.read(factor);
    CHECK(l.factor() == doctest::Approx(factor));
    CHECK(l.costs.find(0, 1, l.now)->reads == 2);
  }
}

TEST_CASE(
    "sched/transfer_costs: an outlier among five reads changes nothing, and a lasting change counts after three") {
  Links l;
  for (int i = 0; i < 5; ++i) l.read(2);
  l.read(1000);
  CHECK(l.factor() == doctest::Approx(2));
  for (int i = 0; i < 2; ++i) l.read(30);
  CHECK(l.factor() == doctest::Approx(30));
}

TEST_CASE("sched/transfer_costs: reads of different sizes tell the fixed part from the rate") {
  Links l;
  const auto seconds = [](double bytes) { return 0.02 + 3 * kRate * bytes; };
  for (const double bytes : {1e6, 4e6, 1.6e7, 6.4e7}) l.costs.add(0, 1, {bytes, seconds(bytes)}, l.now);
  const auto cost = l.costs.find(0, 1, l.now);
  REQUIRE(cost.has_value());
  CHECK(cost->fixed_s == doctest::Approx(0.02));
  CHECK(cost->s_per_byte == doctest::Approx(3 * kRate));
  for (const double bytes : {1e5, 1e9}) CHECK(cost->seconds(bytes, 0) == doctest::Approx(seconds(bytes)));
}

TEST_CASE("sched/transfer_costs: what was learnt fades to the announced rate, and a new read then outvotes old ones") {
  Links l;
  for (int i = 0; i < 5; ++i) l.read(16);
  l.now += TransferCosts::kHalfLife;
  CHECK(l.factor() == doctest::Approx(4));
  l.now += 10 * TransferCosts::kHalfLife;
  CHECK(l.factor() == doctest::Approx(1).epsilon(0.01));
  Links recovered = l, still_slow = l;
  recovered.read(1);
  CHECK(recovered.factor() == doctest::Approx(1));
  CHECK(recovered.costs.find(0, 1, l.now)->reads == 1);
  still_slow.read(16);
  CHECK(still_slow.factor() == doctest::Approx(16));
}

TEST_CASE("sched/transfer_costs: other transfers lengthen a read only when there are more of them than usual") {
  Links l;
  for (int i = 0; i < 3; ++i) l.read(3, 1e8, 2);
  CHECK(l.factor(1e8, 0) == doctest::Approx(3));
  CHECK(l.factor(1e8, 2) == doctest::Approx(3));
  CHECK(l.factor(1e8, 5) == doctest::Approx(6));
}

TEST_CASE("sched/transfer_costs: the middle of a reader's sources counts for sources that it has not read from") {
  Links l;
  l.members(6);
  for (uint32_t source = 2; source < 5; ++source)
    for (int i = 0; i < 3; ++i) l.costs.add(source, 1, {1e8, 0.1 * source}, l.now);
  CHECK(l.costs.s_per_byte(1, l.now) == doctest::Approx(2 * kRate));
  CHECK(l.costs.least_s_per_byte(1, l.now) == doctest::Approx(kRate));
  l.costs.add(5, 1, {1e8, 0.3}, l.now);
  CHECK(l.costs.s_per_byte(1, l.now) == doctest::Approx(2 * kRate));
  for (const auto& pair : l.costs.pairs(l.now)) CHECK(pair.usual_s_per_byte == l.costs.s_per_byte(1, l.now));
  for (int i = 0; i < 3; ++i) l.costs.add(0, 1, {1e8, 0.01}, l.now);
  CHECK(l.costs.least_s_per_byte(1, l.now) == doctest::Approx(0.1 * kRate));
}

TEST_CASE("sched/transfer_costs: reports without sense change nothing") {
  Links l;
  l.read(2), l.read(2), l.read(2);
  const double before = l.factor();
  for (const double wrong : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    l.costs.add(0, 1, {wrong, 1}, l.now);
    l.costs.add(0, 1, {1e8, wrong}, l.now);
  }
  l.costs.add(1, 1, {1e8, 1}, l.now);
  l.costs.add(9, 1, {1e8, 1}, l.now);
  l.costs.add(0, 9, {1e8, 1}, l.now);
  l.costs.check();
  CHECK(l.factor() == before);
  CHECK(l.costs.pairs(l.now).size() == 1);
  Links lies;
  for (int i = 0; i < 3; ++i) lies.costs.add(0, 1, {1, 1e300}, lies.now);
  CHECK(lies.factor() == doctest::Approx(TransferCosts::kFactorMax));
}

TEST_CASE("sched/transfer_costs: a reader keeps the sources that it read last, and no source that is gone") {
  Links l;
  const auto most = static_cast<uint32_t>(TransferCosts::kSourcesMax);
  l.members(most + 10);
  for (uint32_t source = 1; source < most + 6; ++source)
    l.costs.add(source, 0, {1e8, 1}, l.now + std::chrono::seconds(source == 1 ? 1000 : source));
  l.costs.check();
  CHECK(l.costs.pairs(l.now).size() == most);
  CHECK(l.costs.find(1, 0, l.now));  // it was read last
  CHECK_FALSE(l.costs.find(2, 0, l.now));
  CHECK(l.costs.find(most + 5, 0, l.now));
  l.members(3);
  l.costs.check();
  const auto pairs = l.costs.pairs(l.now);
  REQUIRE(pairs.size() == 1);
  CHECK((pairs[0].source == 1 && pairs[0].reader == 0));
}

TEST_CASE("sched/transfer_costs: a node that nobody can read keeps what was learnt and shows it when it is back") {
  Links l;
  l.read(8), l.read(8);
  std::vector<TransferCosts::Member> members = {{0, false, 1}, {1, true, kRate}};
  l.costs.set_members(members);
  CHECK_FALSE(l.costs.find(0, 1, l.now));
  members[1] = {1, false, 1};  // as sched/node_costs.h shows it
  l.costs.set_members(members);
  l.read(1);  // which ended when the node could still be read
  members[0] = {0, true, kRate}, members[1] = {1, true, kRate};
  l.costs.set_members(members);
  CHECK(l.factor() == doctest::Approx(8));
}

}  // namespace transfer_costs_test

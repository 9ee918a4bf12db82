// Random reports of reads: what is learnt stays bounded, close to the truth in spite of outliers, and free of what
// other readers report.
#include "sched/transfer_costs.h"

#include <cmath>

#include "base/rng.h"
#include "test.h"

namespace transfer_costs_test {

using namespace mc;
using namespace mc::sched;

namespace {

constexpr double kAnnounced = 1e-9;

std::vector<TransferCosts::Member> members(uint32_t count) {
  std::vector<TransferCosts::Member> out;
  for (uint32_t slot = 0; slot < count; ++slot) out.push_back({slot, true, kAnnounced});
  return out;
}

/// A number between the two, which are above 0; their logarithms are equally likely.
double between(Rng& rng, double least, double most) {
  return least * std::pow(most / least, static_cast<double>(rng.below(1 << 20)) / (1 << 20));
}

struct Report {
  uint32_t source, reader;
  FinishedRead read;
  TimePoint at;
};

/// Reports of any sense and none.
std::vector<Report> reports(Rng& rng, uint32_t nodes, size_t count) {
  static constexpr double kOdd[] = {0, -1, NAN, INFINITY, 1e-320, 1e308};
  std::vector<Report> out;
  TimePoint now = TimePoint{} + 1000s;
  const auto number = [&](double least, double most) {
    return rng.chance(0.05) ? kOdd[rng.below(std::size(kOdd))] : between(rng, least, most);
  };
  for (size_t i = 0; i < count; ++i) {
    now += Duration(rng.between(0, 60'000'000'000));
    out.push_back({static_cast<uint32_t>(rng.below(nodes + 2)),
                   static_cast<uint32_t>(rng.below(nodes + 2)),
                   {number(1, 1e12), number(1e-6, 1e4), static_cast<uint32_t>(rng.below(20))},
                   now});
  }
  return out;
}

bool equal(const std::vector<TransferCosts::Pair>& a, const std::vector<TransferCosts::Pair>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.source == y.source && x.reader == y.reader && x.age == y.age && x.cost.fixed_s == y.cost.fixed_s &&
           x.cost.s_per_byte == y.cost.s_per_byte && x.cost.leaving == y.cost.leaving && x.cost.reads == y.cost.reads;
  });
}

}  // namespace

TEST_CASE("sched/transfer_costs: whatever nodes report, costs are finite, memory is bounded, and all of it fades") {
  for (uint64_t run = 0; run < 60; ++run) {
    Rng rng(test::seed() + run);
    const uint32_t nodes = rng.chance(0.2) ? 150 : 2 + static_cast<uint32_t>(rng.below(8));
    TransferCosts costs;
    costs.set_members(members(nodes));
    TimePoint now{};
    for (const Report& r : reports(rng, nodes, 600)) {
      costs.add(r.source, r.reader, r.read, now = r.at);
      const auto cost = costs.find(r.source, r.reader, now);
      if (!cost) continue;
      CHECK((std::isfinite(cost->fixed_s) && cost->fixed_s >= 0));
      CHECK(cost->s_per_byte > kAnnounced / TransferCosts::kFactorMax / 20);
      CHECK(cost->s_per_byte < kAnnounced * TransferCosts::kFactorMax * 1.01);
      CHECK(cost->seconds(1e6, 3) >= cost->seconds(1e6, 0));
      CHECK(costs.least_s_per_byte(r.reader, now) <= costs.s_per_byte(r.reader, now));
    }
    costs.check();
    CHECK(costs.pairs(now).size() <= nodes * std::min<size_t>(nodes - 1, TransferCosts::kSourcesMax));
    now += 40 * TransferCosts::kHalfLife;
    for (const auto& pair : costs.pairs(now)) {
      CHECK(pair.cost.s_per_byte == doctest::Approx(kAnnounced).epsilon(1e-6));
      CHECK(costs.s_per_byte(pair.reader, now) == doctest::Approx(kAnnounced).epsilon(1e-6));
    }
    const uint32_t left = 1 + static_cast<uint32_t>(rng.below(nodes));
    costs.set_members(members(left));
    costs.check();
    for (const auto& pair : costs.pairs(now)) CHECK((pair.source < left && pair.reader < left));
  }
}

TEST_CASE("sched/transfer_costs: equal reports give equal costs, and those of other readers do not change them") {
  for (uint64_t run = 0; run < 60; ++run) {
    Rng rng(test::seed() + run);
    TransferCosts all, again, alone;
    for (TransferCosts* costs : {&all, &again, &alone}) costs->set_members(members(6));
    const auto told = reports(rng, 6, 300);
    for (const Report& r : told) {
      all.add(r.source, r.reader, r.read, r.at);
      again.add(r.source, r.reader, r.read, r.at);
      if (r.reader == 3) alone.add(r.source, r.reader, r.read, r.at);
    }
    const TimePoint now = told.back().at;
    CHECK(equal(all.pairs(now), again.pairs(now)));
    auto of_one = all.pairs(now);
    std::erase_if(of_one, [](const auto& pair) { return pair.reader != 3; });
    CHECK(equal(of_one, alone.pairs(now)));
  }
}

TEST_CASE("sched/transfer_costs: a link's true cost is found beside noise and one outlier in five reads") {
  size_t off = 0, all = 0;
  for (uint64_t run = 0; run < 400; ++run) {
    Rng rng(test::seed() + run);
    TransferCosts costs;
    costs.set_members(members(2));
    const double rate = between(rng, 1e-11, 1e-7), fixed_s = rng.chance(0.5) ? 0 : between(rng, 1e-4, 1e-2);
    const bool alike = rng.chance(0.3);  // reads of one size
    const double size = between(rng, 1e6, 1e9);
    const TimePoint now = TimePoint{} + 1000s;
    const size_t outlier = rng.below(5);
    std::vector<double> sizes;
    for (size_t i = 0; i < 5; ++i) {
      const double bytes = alike ? size : between(rng, 1e6, 1e9);
      double seconds = (fixed_s + rate * bytes) * between(rng, 0.9, 1.1);
      if (i == outlier) seconds *= between(rng, 0.01, 100);
      costs.add(0, 1, {bytes, seconds}, now);
      sizes.push_back(bytes);
    }
    const double bytes = sizes[rng.below(sizes.size())], truth = fixed_s + rate * bytes;
    const double found = costs.find(0, 1, now)->seconds(bytes, 0);
    ++all, off += found > 2 * truth || found < truth / 2;
  }
  CHECK(off <= all / 10);
}

}  // namespace transfer_costs_test

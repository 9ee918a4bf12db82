// Promises of the fair queue, on random tenants and requests: shares by weight while there is a backlog, no request
// that waits for ever, order within a tenant, and quotas as a bucket computed the plain way. A turn that could not be
// taken changes nothing.
#include "sched/fair.h"

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

FairQueue::Entry entry(uint64_t id, uint32_t tenant, double tokens, double arrived_s, int priority = 0) {
  return {std::to_string(id), tenant, priority, tokens, tokens * 1e-4, arrived_s, 0};
}

}  // namespace

TEST_CASE("sched/fair: tenants with a backlog get tokens by weight, within one request of each other") {
  for (uint64_t run = 0; run < 50; ++run) {
    Rng rng(test::seed() + run);
    const uint32_t count = 2 + static_cast<uint32_t>(rng.below(6));
    std::vector<Tenant> tenants;
    for (uint32_t i = 0; i < count; ++i)
      tenants.push_back({.name = "t" + std::to_string(i), .weight = 0.1 + 4 * rng.uniform()});
    FairQueue queue({.age_s = 1e9});
    queue.set_tenants(tenants);
    uint64_t id = 0;
    double largest = 0;
    std::map<uint32_t, double> served;
    const auto more = [&](uint32_t tenant) {
      const double tokens = 1 + static_cast<double>(rng.below(rng.chance(0.1) ? 20000 : 500));
      largest = std::max(largest, tokens);
      queue.push(entry(++id, tenant, tokens, 0));
    };
    for (uint32_t t = 1; t <= count; ++t) more(t), more(t);
    for (int i = 0; i < 2000; ++i) {
      const auto next = queue.pop(0);
      REQUIRE(next);
      if (rng.chance(0.2)) {  // no node for it just now
        queue.put_back(*next);
        continue;
      }
      served[next->tenant] += next->tokens;
      more(next->tenant);
    }
    for (uint32_t a = 1; a <= count; ++a)
      for (uint32_t b = 1; b <= count; ++b) {
        const double wa = queue.tenant(a).weight, wb = queue.tenant(b).weight;
        INFO("run " << run << " tenants " << a << " " << b);
        CHECK(std::abs(served[a] / wa - served[b] / wb) <= largest / wa + largest / wb + 1e-6);
      }
  }
}

TEST_CASE("sched/fair: a turn that is given back gives no new tenant the share of those that were served before") {
  for (uint64_t run = 0; run < 50; ++run) {
    Rng rng(test::seed() + run);
    FairQueue queue({.age_s = 1e9});
    const std::vector<Tenant> tenants = {
        {.name = "served", .weight = 0.1 + 4 * rng.uniform()}, {.name = "last", .priority = 1}, {.name = "new"}};
    queue.set_tenants(tenants);
    uint64_t id = 0;
    double largest = 0;
    const auto push = [&](uint32_t tenant) {
      const double tokens = 1 + static_cast<double>(rng.below(500));
      largest = std::max(largest, tokens);
      queue.push(entry(++id, tenant, tokens, 0));
    };
    push(2);
    for (uint64_t n = 100 + rng.below(100); n > 0; --n) {
      push(1);
      REQUIRE(queue.pop(0)->tenant == 1);
    }
    const auto refused = queue.pop(0);  // a tenant of a later class, which has had no turn yet
    REQUIRE(refused->tenant == 2);
    queue.put_back(*refused);
    std::map<uint32_t, double> served;
    for (int i = 0; i < 200; ++i) {
      while (queue.waiting(1) == 0) push(1);
      while (queue.waiting(3) == 0) push(3);
      const auto next = queue.pop(0);
      served[next->tenant] += next->tokens;
      const double share = served[3] - served[1] / queue.tenant(1).weight;
      INFO("run " << run << " turn " << i);
      REQUIRE(std::abs(share) <= 2 * (largest + largest / queue.tenant(1).weight));
    }
  }
}

TEST_CASE("sched/fair: whatever the classes and priorities, a request's turn comes in a bounded time") {
  for (uint64_t run = 0; run < 20; ++run) {
    Rng rng(test::seed() + run);
    FairQueue queue({.age_s = 1});
    const std::vector<Tenant> tenants = {{.name = "gold", .priority = -3}, {.name = "mean", .priority = 5}};
    queue.set_tenants(tenants);
    uint64_t id = 0;
    double now = 0;
    queue.push(entry(++id, 2, 100, now, FairQueue::kPriorityMax));
    queue.push(entry(++id, 1, 100, now, 7));
    std::map<std::string, double> turn;
    // More of the best comes than is served, for ever.
    while (now < 1000 && turn.size() < 2) {
      for (int i = 0; i < 2; ++i) queue.push(entry(++id, 1, 10 + static_cast<double>(rng.below(200)), now, -5));
      const auto next = queue.pop(now);
      REQUIRE(next);
      if (next->id == "1" || next->id == "2") turn[next->id] = now;
      now += 0.1;
    }
    INFO("run " << run);
    REQUIRE(turn.size() == 2);
    CHECK(turn["1"] <= 30);  // 8 steps to the best class, then by share
    CHECK(turn["2"] <=
          12 / 0.5 + 5);  // 12 steps of its tenant's own; the tenant is served at half the rate of arrivals
  }
}

TEST_CASE("sched/fair: within a tenant the earliest key goes first, and putting back keeps the order") {
  for (uint64_t run = 0; run < 100; ++run) {
    Rng rng(test::seed() + run);
    const FairOptions options{.age_s = 0.5 * static_cast<double>(1 + rng.below(8)), .stretch = run % 2 ? 10.0 : 0.0};
    FairQueue queue(options);
    queue.set_tenants({});
    std::vector<std::pair<double, uint64_t>> expected;
    for (uint64_t i = 1; i <= 60; ++i) {
      const auto e = entry(i, 0, 1 + static_cast<double>(rng.below(9000)), static_cast<double>(rng.below(10)),
                           static_cast<int>(rng.between(-150, 150)));
      queue.push(e);
      expected.push_back(
          {e.arrived_s + std::clamp(e.priority, -100, 100) * options.age_s + options.stretch * e.work_s, i});
    }
    for (int gone = 0; gone < 10; ++gone) {
      const size_t at = rng.below(expected.size());
      CHECK(queue.erase(std::to_string(expected[at].second)));
      CHECK_FALSE(queue.erase(std::to_string(expected[at].second)));
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::sort(expected.begin(), expected.end());
    size_t at = 0;
    while (!queue.empty()) {
      std::vector<FairQueue::Entry> taken;
      for (uint64_t n = 1 + rng.below(4); n > 0 && !queue.empty(); --n) taken.push_back(*queue.pop(10));
      const size_t keep = rng.below(taken.size() + 1);
      for (size_t i = 0; i < keep; ++i) {
        INFO("run " << run);
        REQUIRE(taken[i].id == std::to_string(expected[at++].second));
      }
      for (size_t i = taken.size(); i > keep; --i) {
        const std::string name = taken[i - 1].id;
        if (rng.chance(0.5)) {
          queue.put_back(taken[i - 1]);
          continue;
        }
        queue.set_aside(taken[i - 1]);
        queue.recall(name);
      }
    }
    CHECK(at == expected.size());
  }
}

TEST_CASE("sched/fair: a quota admits what a bucket of tokens would, and says when to come again") {
  for (uint64_t run = 0; run < 100; ++run) {
    Rng rng(test::seed() + run);
    const double rate = 1 + static_cast<double>(rng.below(1000)), burst = 1 + static_cast<double>(rng.below(5000));
    FairQueue queue;
    const std::vector<Tenant> tenants = {{.name = "a", .tokens_per_s = rate, .burst_tokens = burst, .requests_max = 5}};
    queue.set_tenants(tenants);
    const uint32_t a = queue.find("a");
    REQUIRE(a == 1);
    double bucket = burst, now = 100, paid = 0;
    uint32_t open = 0;
    for (int i = 0; i < 300; ++i) {
      const double passed = rng.chance(0.3) ? 0 : 3 * rng.uniform();
      now += passed, bucket = std::min(burst, bucket + passed * rate);
      if (open > 0 && rng.chance(0.5)) queue.leave(a), --open;
      const double made = static_cast<double>(rng.below(100));
      if (rng.chance(0.2)) queue.charge(a, made, now), bucket -= made, paid += made;
      const double tokens = static_cast<double>(rng.below(8000));
      const double needed = std::min(tokens, burst);
      const auto refused = queue.admit(a, tokens, now);
      INFO("run " << run << " step " << i);
      REQUIRE(bucket == doctest::Approx(queue.level(a, now) + (refused ? 0 : tokens)).epsilon(1e-9));
      if (open == 5) {
        REQUIRE(refused);
        CHECK(refused->why == FairQueue::Refusal::Why::requests);
      } else if (bucket < needed - 1e-6) {
        REQUIRE(refused);
        CHECK(refused->retry_s == doctest::Approx((needed - bucket) / rate));
        CHECK_FALSE(queue.refusal(a, tokens, now + refused->retry_s + 1e-6));  // its word holds
      } else if (bucket > needed + 1e-6) {
        REQUIRE_FALSE(refused);
      }
      if (!refused) ++open, bucket -= tokens, paid += tokens;
    }
    CHECK(queue.charged(a) == doctest::Approx(paid));
    CHECK(queue.unfinished(a) == open);
    CHECK_FALSE(queue.admit(0, 1e9, now));  // the default tenant has no quota here
  }
}

TEST_CASE("sched/fair: tenants that are read again keep their debts, and one left out its requests") {
  FairQueue queue;
  std::vector<Tenant> tenants = {{.name = "a", .tokens_per_s = 10, .burst_tokens = 100}, {.name = "b"}};
  queue.set_tenants(tenants);
  CHECK_FALSE(queue.admit(1, 100, 0));
  queue.charge(1, 50, 0);
  queue.push(entry(1, 2, 10, 0));
  tenants.pop_back();
  queue.set_tenants(tenants);
  CHECK(queue.level(1, 0) == doctest::Approx(-50));
  CHECK(queue.find("b") == 2);
  CHECK(queue.pop(0)->id == "1");
  CHECK(queue.find("nobody") == 0);
}

TEST_CASE("sched/fair: who has no quota owes nothing, and a new quota begins with a full bucket") {
  FairQueue queue;
  const std::vector<Tenant> unlimited = {{.name = "a"}};
  const std::vector<Tenant> limited = {{.name = "a", .tokens_per_s = 10, .burst_tokens = 100}};
  queue.set_tenants(unlimited);
  CHECK_FALSE(queue.admit(1, 1e9, 0));
  queue.charge(1, 1e9, 1);
  queue.set_tenants(limited);
  CHECK(queue.level(1, 2) == doctest::Approx(100));
  CHECK_FALSE(queue.admit(1, 90, 2));
  queue.set_tenants(unlimited);
  queue.refund(1, 1e9, 3);
  CHECK(queue.level(1, 3) == 0);
  CHECK(queue.charged(1) == doctest::Approx(1e9 + 90));
}

TEST_CASE("sched/fair: however often tenants change, numbers are reused, but not of one with something unfinished") {
  for (uint64_t run = 0; run < 20; ++run) {
    Rng rng(test::seed() + run);
    FairQueue queue;
    std::map<uint32_t, std::pair<std::string, uint32_t>> open;  // by number: who, and how many
    uint64_t id = 0;
    for (int round = 0; round < 300; ++round) {
      std::vector<Tenant> tenants;
      for (uint64_t i = rng.below(5); i > 0; --i)
        tenants.push_back({.name = "t" + std::to_string(rng.below(4) ? ++id : rng.below(id + 1))});
      queue.set_tenants(tenants);
      for (const auto& [number, who] : open) {
        REQUIRE(queue.tenant(number).name == who.first);
        REQUIRE(queue.unfinished(number) == who.second);
      }
      size_t named = 0;
      for (size_t i = 0; i < tenants.size(); ++i) {
        const uint32_t number = queue.find(tenants[i].name);
        REQUIRE(number > 0);
        named += std::none_of(tenants.begin(), tenants.begin() + static_cast<std::ptrdiff_t>(i),
                              [&](const Tenant& t) { return t.name == tenants[i].name; });
        if (!rng.chance(0.3)) continue;
        CHECK_FALSE(queue.admit(number, 10, round));
        open[number].first = tenants[i].name, ++open[number].second;
      }
      CHECK(queue.named_count() == named);
      while (open.size() > 5) {
        auto gone = open.begin();
        std::advance(gone, static_cast<std::ptrdiff_t>(rng.below(open.size())));
        for (; gone->second.second > 0; --gone->second.second) queue.leave(gone->first);
        open.erase(gone);
      }
      REQUIRE(queue.tenant_count() <= 20);
    }
  }
}

TEST_CASE("sched/fair: who is set aside holds up neither others nor its own tenant, and finds its place again") {
  FairQueue queue;
  const std::vector<Tenant> tenants = {{.name = "a"}, {.name = "b"}};
  queue.set_tenants(tenants);
  for (uint64_t i = 1; i <= 100; ++i) queue.push(entry(i, 1, 100, 0));
  queue.push(entry(200, 2, 100, 0));
  for (int i = 0; i < 99; ++i) {
    auto next = queue.pop(0);
    REQUIRE(next);
    CHECK(next->tenant == 1);
    queue.set_aside(*next);
  }
  CHECK(queue.size() == 101);
  CHECK(queue.aside() == 99);
  CHECK(queue.waiting(1) == 100);
  CHECK(queue.work_before(entry(300, 1, 100, 1), 1) == doctest::Approx(1.01));  // all of them, and b's
  for (int i = 99; i > 0; --i) queue.recall(std::to_string(i));
  queue.recall("200");  // it was not aside
  CHECK(queue.aside() == 0);
  CHECK(queue.pop(0)->id == "1");
  CHECK(queue.pop(0)->id == "200");
  CHECK(queue.size() == 99);
}

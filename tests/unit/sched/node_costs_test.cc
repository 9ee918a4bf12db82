#include "sched/node_costs.h"

#include <vector>

#include "test.h"

namespace node_costs_test {

using namespace mc;
using namespace mc::sched;

namespace {

Cost announced() {
  Cost cost;
  cost.prefill_s = 0, cost.prefill_s_per_token = 1e-3, cost.prefill_s_per_token2 = 0;
  cost.decode_s = 0, cost.decode_s_per_row = 1e-2, cost.decode_s_per_kv_token = 0;
  cost.read_bytes_per_s = 1e9;
  return cost;
}

NodeCosts::Member prefill(uint32_t slot) {
  return {slot, true, false, true, announced()};
}

/// The node reports 20 prompts of 1000 tokens that took `factor` times what it announced.
void serve(NodeCosts& costs, int slot, double factor) {
  for (int i = 0; i < 20; ++i) costs.prefilled(slot, 1000, 0, factor);
}

double prompt_s(const NodeCosts& costs, int slot) {
  return costs.cost(slot).prefill(1000, 0);
}

}  // namespace

TEST_CASE("sched/node_costs: a node that has not served costs what it announced, times the mean of those that have") {
  NodeCosts costs;
  costs.set_members(std::vector{prefill(0), prefill(1), prefill(5)});
  serve(costs, 0, 2);
  serve(costs, 5, 4);
  CHECK(prompt_s(costs, 1) == doctest::Approx(1));  // until the next refresh
  const auto changed = costs.refresh();
  CHECK(std::vector<uint32_t>(changed.begin(), changed.end()) == std::vector<uint32_t>{1});
  CHECK(prompt_s(costs, 1) == doctest::Approx(3).epsilon(0.1));
  CHECK(prompt_s(costs, 0) == doctest::Approx(2).epsilon(0.1));
  CHECK(costs.predictor(1).prefill_error().samples() == 0);
  CHECK(costs.refresh().empty());  // no report came since
}

TEST_CASE("sched/node_costs: a node that has not served is not assumed slower than the middle one that has") {
  NodeCosts costs;
  auto slow = prefill(2);
  slow.announced.prefill_s_per_token *= 3;
  costs.set_members(std::vector{prefill(0), prefill(1), slow});
  costs.refresh();
  CHECK(prompt_s(costs, 2) == doctest::Approx(3));  // nobody has served
  serve(costs, 0, 2);
  costs.refresh();
  CHECK(prompt_s(costs, 2) == doctest::Approx(2).epsilon(0.1));
  CHECK_FALSE(costs.has_prefilled(2));
  costs.prefilled(2, 1000, 0, 3);  // it is slow: its own report decides from now on
  CHECK(costs.has_prefilled(2));
  CHECK(prompt_s(costs, 2) == doctest::Approx(3).epsilon(0.1));
}

TEST_CASE("sched/node_costs: the step of a decode node that has not served is bounded likewise") {
  NodeCosts costs;
  NodeCosts::Member fast{0, false, true, true, announced()}, slow{1, false, true, true, announced()};
  slow.announced.decode_s_per_row *= 4;
  costs.set_members(std::vector{fast, slow});
  for (int i = 0; i < 20; ++i) costs.stepped(0, 1, 0, 0.01);
  costs.refresh();
  CHECK(costs.cost(1).step(100, 0) == doctest::Approx(1).epsilon(0.1));
}

TEST_CASE("sched/node_costs: nodes of another model say nothing about how slow a node is") {
  NodeCosts costs;
  auto small = prefill(0), large = prefill(1);
  small.model = "small", large.model = "large";
  large.announced.prefill_s_per_token *= 50;
  costs.set_members(std::vector{small, large});
  serve(costs, 0, 1);
  costs.refresh();
  CHECK(prompt_s(costs, 1) == doctest::Approx(50).epsilon(0.1));
}

TEST_CASE("sched/node_costs: a node that announced the usual cost keeps it to the last bit") {
  NodeCosts costs;
  costs.set_members(std::vector{prefill(0), prefill(1)});
  for (int i = 0; i < 20; ++i) costs.prefilled(0, 1000, 0, 1.0 / 3);
  costs.refresh();
  CHECK(prompt_s(costs, 1) == 1000 * (1e-3 * costs.predictor(0).prefill_factor()));
}

TEST_CASE("sched/node_costs: a node that has served follows its own reports alone") {
  NodeCosts costs;
  costs.set_members(std::vector{prefill(0), prefill(1)});
  serve(costs, 0, 2);
  serve(costs, 1, 1);
  CHECK(costs.refresh().empty());
  CHECK(prompt_s(costs, 1) == doctest::Approx(1).epsilon(0.1));
}

TEST_CASE("sched/node_costs: a node of both phases has served when it has done both kinds of work") {
  NodeCosts costs;
  costs.set_members(std::vector<NodeCosts::Member>{{0, true, true, true, announced()}, prefill(1)});
  serve(costs, 0, 2);
  serve(costs, 1, 2);
  const auto changed = costs.refresh();
  CHECK(std::vector<uint32_t>(changed.begin(), changed.end()) == std::vector<uint32_t>{0});
  for (int i = 0; i < 20; ++i) costs.stepped(0, 1, 0, 0.02);
  CHECK(costs.refresh().empty());
}

TEST_CASE("sched/node_costs: a slot that stays keeps its reports, and one that comes back begins anew") {
  NodeCosts costs;
  costs.set_members(std::vector{prefill(0), prefill(1)});
  serve(costs, 0, 2);
  serve(costs, 1, 3);
  costs.set_members(std::vector{prefill(1)});
  CHECK(costs.predictor(1).prefill_error().samples() == 20);
  costs.set_members(std::vector{prefill(0), prefill(1)});
  CHECK(costs.predictor(0).prefill_error().samples() == 0);
  CHECK(prompt_s(costs, 0) == doctest::Approx(3).epsilon(0.1));  // as slow as the node that has served
}

TEST_CASE("sched/node_costs: nothing is worth a fetch into a node whose blocks cannot be read") {
  NodeCosts costs;
  costs.set_members(std::vector<NodeCosts::Member>{{0, true, false, false, announced()}, prefill(1)});
  CHECK(costs.cost(0).read(1e6, 0) > 1e5);
  CHECK(costs.cost(1).read(1e6, 0) == doctest::Approx(1e-3));
}

}  // namespace node_costs_test

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
  for (int i = 0; i < 40; ++i) costs.read(1, 1e6, 1e-2);
  CHECK(costs.cost(1).read(1e6, 0) > 2e-3);
}

}  // namespace node_costs_test

// Outcomes of requests, as a simulation counts a conductor's answers.
#include "sim/machines.h"

#include "sim/world.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

Fate fate_by(node::Reason reason, sched::Bound bound = sched::Bound::none) {
  Outcome out;
  out.reason = reason, out.bound = bound;
  return fate_of(out);
}

}  // namespace

TEST_CASE("sim/machines: a predicted miss counts by its bound, at the conductor and at the decode node") {
  CHECK(fate_by(node::Reason::predicted_slo_miss, sched::Bound::ttft) == Fate::rejected_prefill);
  CHECK(fate_by(node::Reason::predicted_slo_miss, sched::Bound::tbt) == Fate::rejected_decode);
  CHECK(fate_by(node::Reason::predicted_slo_miss, sched::Bound::kv) == Fate::rejected_decode);
}

TEST_CASE("sim/machines: only a role without nodes counts as no node; what failed or ran out of time is unfinished") {
  using node::Reason;
  CHECK(fate_by(Reason::no_prefill) == Fate::rejected_node);
  CHECK(fate_by(Reason::no_decode) == Fate::rejected_node);
  CHECK(fate_by(Reason::tenant_quota) == Fate::rejected_quota);
  for (const Reason reason : {Reason::none, Reason::deadline_exceeded, Reason::internal, Reason::no_space,
                              Reason::queue_full, Reason::peer_lost}) {
    CAPTURE(to_string(reason));
    CHECK(fate_by(reason) == Fate::unfinished);
  }
  for (const auto& [finish, fate] : {std::pair{node::Finish::length, Fate::served},
                                     {node::Finish::stop, Fate::served},
                                     {node::Finish::abort, Fate::unfinished}}) {
    Outcome out;
    out.finish = finish;
    CHECK(fate_of(out) == fate);
  }
}

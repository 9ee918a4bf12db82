// What the answers of a conductor count as.
#include "sim/machines.h"

#include "sim/world.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

sched::Options bounds(double ttft_s, double tbt_s) {
  sched::Options out;
  out.ttft_slo_s = ttft_s, out.tbt_slo_s = tbt_s;
  return out;
}

/// As World makes it of a reply, whose bound is in milliseconds.
Outcome rejected(double allowed_s, Duration waited = {}, std::string stage = "route") {
  Outcome out;
  out.end = "predicted_slo_miss";
  out.stage = std::move(stage);
  out.ended = out.submitted + waited;
  out.allowed_s = allowed_s * 1e3 * 1e-3;
  return out;
}

}  // namespace

TEST_CASE("sim/machines: a miss of TTFT counts as one whatever its bound, and whatever a wait left of it") {
  for (int hundredths = 1; hundredths <= 4000; ++hundredths) {
    const double ttft_s = hundredths * 0.01;
    CAPTURE(ttft_s);
    CHECK(fate_of(rejected(ttft_s), bounds(ttft_s, 0.0625)) == Fate::rejected_prefill);
    const Duration waited = from_seconds(ttft_s * 0.37);
    CHECK(fate_of(rejected(ttft_s - to_seconds(waited), waited), bounds(ttft_s, 0.0625)) == Fate::rejected_prefill);
    CHECK(fate_of(rejected(ttft_s, waited), bounds(ttft_s, 0.0625)) == Fate::rejected_prefill);
  }
}

TEST_CASE("sim/machines: a miss of TBT counts as one, at the conductor and at the decode node") {
  CHECK(fate_of(rejected(0.06), bounds(30, 0.06)) == Fate::rejected_decode);
  CHECK(fate_of(rejected(0.06, 2s), bounds(30, 0.06)) == Fate::rejected_decode);
  CHECK(fate_of(rejected(0.06), bounds(0, 0.06)) == Fate::rejected_decode);
  CHECK(fate_of(rejected(0.35, {}, "accept"), bounds(0.35, 0.35)) == Fate::rejected_decode);
}

TEST_CASE("sim/machines: only a role without nodes counts as no node; what failed or ran out of time is unfinished") {
  const auto fate = [](const std::string& end) {
    Outcome outcome;
    outcome.end = end;
    return fate_of(outcome, bounds(30, 0.1));
  };
  CHECK(fate("length") == Fate::served);
  CHECK(fate("stop") == Fate::served);
  CHECK(fate("no_prefill") == Fate::rejected_node);
  CHECK(fate("no_decode") == Fate::rejected_node);
  for (const char* end : {"", "deadline_exceeded", "internal", "no_space", "abort", "closed", "peer_lost"}) {
    CAPTURE(std::string(end));
    CHECK(fate(end) == Fate::unfinished);
  }
}

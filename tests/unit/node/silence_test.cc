// The silence of a node at the conductor, beside a host that did not read its messages for a while (HostStalled).
#include "conductor_bench.h"

namespace conductor_test {

TEST_CASE("node/silence: time in which the host read no messages makes no node silent, and other time does") {
  Bench b;
  start(b);
  const size_t all = b.conductor.nodes(b.now).size();
  b.now += 1s;
  b.give(Received{"p0", instance(1), wire::Heartbeat{}});
  b.now += 60s;
  b.give(HostStalled{60s});
  CHECK(Bench::sent<wire::Refused>(b.hello(wire::Role::prefill, "p0", 7), "p0").size() == 1);  // p0 is alive
  b.give(Tick{});
  CHECK(b.conductor.nodes(b.now).size() == all);
  b.now += 2s;  // d0 was silent for 1 s before the stall
  b.give(Tick{});
  CHECK(b.conductor.nodes(b.now).size() == all);
  b.now += 2ms;
  b.give(Tick{});
  REQUIRE(b.conductor.nodes(b.now).size() == 1);
  CHECK(b.conductor.nodes(b.now)[0].name == "p0");
}

}  // namespace conductor_test

#include "sim/cluster_nodes.h"

#include "test.h"

namespace cluster_nodes_test {

using namespace mc;
using namespace mc::sim;

namespace {

struct Cluster {
  sched::Profile profile;
  ClusterOptions options;
  explicit Cluster(const char* shape, uint32_t pipeline = 1) {
    options.shape = parse_cluster(shape).value();
    options.profile = &profile;
    options.pipeline = pipeline;
    profile.cost.prefill_s_per_token = 8e-3;
  }
};

std::string names(const ClusterNodes& nodes) {
  std::string out;
  for (const auto& m : nodes.members()) out += m.name + "@" + std::to_string(m.slot) + " ";
  return out;
}

}  // namespace

TEST_CASE("sim/cluster_nodes: decode nodes have the slots behind those of the prefill nodes") {
  const Cluster c("2p2d");
  ClusterNodes nodes(c.options, 2);
  CHECK(names(nodes) == "p0@0 p1@1 d0@2 d1@3 ");
  for (uint32_t d = 0; d < 2; ++d) CHECK(nodes.decode_of_slot(static_cast<uint32_t>(nodes.slot_of_decode(d))) == d);
  const auto members = nodes.members();
  CHECK((members[0].prefill && !members[0].decode && members[0].readable));
  CHECK((!members[2].prefill && members[2].decode));
}

TEST_CASE("sim/cluster_nodes: a coupled node is one member of both phases, whose blocks no other node reads") {
  const Cluster c("3m");
  ClusterNodes nodes(c.options, 3);
  CHECK(names(nodes) == "m0@0 m1@1 m2@2 ");
  CHECK(nodes.slot_of_decode(2) == 2);
  const auto members = nodes.members();
  CHECK((members[1].prefill && members[1].decode && !members[1].readable));
  for (uint32_t n = 0; n < 3; ++n) nodes.set_up(n, false, 1);
  CHECK_FALSE(nodes.serves());
  nodes.set_up(1, true, 2);
  CHECK(nodes.serves());
}

TEST_CASE("sim/cluster_nodes: a cluster serves while a node of each phase is up") {
  const Cluster c("1p1d");
  ClusterNodes nodes(c.options, 1);
  CHECK(nodes.serves());
  nodes.set_decode_up(0, false);
  CHECK_FALSE(nodes.serves());
  CHECK(names(nodes) == "p0@0 ");
  nodes.set_decode_up(0, true);
  nodes.set_up(0, false, 3);
  CHECK_FALSE(nodes.serves());
}

TEST_CASE("sim/cluster_nodes: a node that comes back is new, and one that stays up keeps its age") {
  const Cluster c("2p1d");
  ClusterNodes nodes(c.options, 2);
  const TimePoint first = nodes.members()[1].since;
  nodes.set_up(0, false, 5);
  nodes.set_up(0, true, 9);
  nodes.set_up(1, true, 9);  // it is up already
  CHECK(nodes.members()[0].since == TimePoint{} + 9s);
  CHECK(nodes.members()[1].since == first);
}

TEST_CASE("sim/cluster_nodes: a node is up when as many of its outages have ended as have begun") {
  const Cluster c("2p1d");
  ClusterNodes nodes(c.options, 2);
  CHECK(nodes.set_up(0, false, 1));
  CHECK_FALSE(nodes.set_up(0, false, 2));
  CHECK_FALSE(nodes.set_up(0, true, 3));
  CHECK_FALSE(nodes.is_up(0));
  CHECK(nodes.set_up(0, true, 4));
  CHECK(nodes.is_up(0));
  CHECK(nodes.members()[0].since == TimePoint{} + 4s);
  CHECK_FALSE(nodes.set_up(0, true, 5));
  CHECK(nodes.set_up(0, false, 6));  // the end without an outage counts for nothing
  CHECK(nodes.set_decode_up(0, false));
  CHECK_FALSE(nodes.set_decode_up(0, false));
  CHECK_FALSE(nodes.set_decode_up(0, true));
  CHECK(nodes.set_decode_up(0, true));
}

TEST_CASE("sim/cluster_nodes: a group of prefill nodes announces the cost of a stage") {
  const Cluster c("1p1d", 4);
  const ClusterNodes nodes(c.options, 1);
  CHECK(nodes.members()[0].announced.prefill_s_per_token == 2e-3);
  CHECK(nodes.members()[1].announced.prefill_s_per_token == 8e-3);
}

}  // namespace cluster_nodes_test

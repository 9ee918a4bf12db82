#include "host/membership_log.h"

#include "test.h"

using namespace mc;
using namespace mc::host;

namespace {

using Change = MembershipLog::Change;
using Kind = MembershipLog::Kind;
using node::NodeState;

node::Conductor::NodeStatus status(const std::string& name, uint8_t instance, NodeState state = NodeState::ready) {
  node::Conductor::NodeStatus out;
  out.name = name;
  out.instance.bytes[0] = instance;
  out.state = state;
  out.control_uri = "tcp://10.0.0.2:1";
  return out;
}

}  // namespace

TEST_CASE("host/membership_log: each change of membership is one line") {
  constexpr auto kPrefill = wire::Role::prefill;
  MembershipLog log;
  CHECK(log.changes({}, {}).empty());
  CHECK(log.changes({status("p0", 1)}, {}) ==
        std::vector<Change>{{Kind::joined, "p0", kPrefill, NodeState::ready, "tcp://10.0.0.2:1"}});
  CHECK(log.changes({status("p0", 1)}, {}).empty());
  const auto drained = log.changes({status("p0", 1, NodeState::drain)}, {});
  CHECK(drained == std::vector<Change>{{Kind::state, "p0", kPrefill, NodeState::drain, ""}});
  CHECK(drained[0].event() == "node is drain");
  CHECK(log.changes({status("p0", 1)}, {}) == std::vector<Change>{{Kind::state, "p0", kPrefill, NodeState::ready, ""}});
  const node::Members::Lost lost{status("p0", 1).instance, "no heartbeat for 3000 ms"};
  CHECK(log.changes({}, {lost}) ==
        std::vector<Change>{{Kind::left, "p0", kPrefill, NodeState::ready, "no heartbeat for 3000 ms"}});
}

TEST_CASE("host/membership_log: a node that came back and is lost again is told with the newest reason") {
  MembershipLog log;
  (void)log.changes({status("p0", 1)}, {});
  const auto instance = status("p0", 1).instance;
  const auto changes = log.changes({}, {{instance, "silent for 2903 ms"}, {instance, "connection closed"}});
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].detail == "connection closed");
}

TEST_CASE("host/membership_log: a restarted node leaves and joins though its name is the same") {
  MembershipLog log;
  (void)log.changes({status("p0", 1)}, {});
  const auto changes = log.changes({status("p0", 2)}, {});
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].kind == Kind::joined);
  CHECK(changes[1].kind == Kind::left);
}

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

node::Members::RefusedNode refused(uint8_t instance, uint32_t mc = 2108) {
  node::Members::RefusedNode out;
  out.instance.bytes[0] = instance;
  out.why.mc = mc;
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

TEST_CASE("host/membership_log: a node that has more blocks than the index takes is told once") {
  MembershipLog log;
  auto full = status("p0", 1);
  (void)log.changes({full}, {});
  full.indexed = {4, true, 9};
  const auto changes = log.changes({full}, {});
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].detail == "4 blocks, 9 of all nodes");
  CHECK(changes[0].kind == Kind::index_full);
  CHECK(changes[0].node == "p0");
  CHECK(changes[0].event().starts_with("the index takes no more blocks"));
  CHECK(log.changes({full}, {}).empty());
  full.indexed = {3, false, 8};
  CHECK(log.changes({full}, {}).empty());
  full.indexed = {4, true, 9};
  CHECK(log.changes({full}, {}).empty());
}

TEST_CASE("host/membership_log: a restarted node leaves and joins though its name is the same") {
  MembershipLog log;
  (void)log.changes({status("p0", 1)}, {});
  const auto changes = log.changes({status("p0", 2)}, {});
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].kind == Kind::joined);
  CHECK(changes[1].kind == Kind::left);
}

TEST_CASE("host/membership_log: a process that is refused is one line a minute and cause, however often it asks") {
  RefusalLog log;
  const TimePoint start = TimePoint{} + 100s;
  CHECK(log.lines({{}, 0}, start).nodes.empty());
  CHECK(log.lines({{refused(1)}, 1}, start).nodes.size() == 1);
  CHECK(log.lines({{refused(1)}, 1}, start).nodes.empty());  // nothing came since
  CHECK(log.lines({{refused(1), refused(1)}, 2}, start + 500ms).nodes.empty());
  CHECK(log.lines({{refused(1), refused(1), refused(1, 2103)}, 3}, start + 1s).nodes.size() == 1);
  CHECK(log.lines({{refused(1), refused(1), refused(1, 2103), refused(1)}, 4}, start + 61s).nodes.size() == 1);
}

TEST_CASE("host/membership_log: strangers that are refused fill no log, and the next line counts them") {
  RefusalLog log;
  std::deque<node::Members::RefusedNode> last;
  TimePoint now = TimePoint{} + 100s;
  uint64_t count = 0;
  size_t lines = 0;
  for (; count < 200; now += 1ms) {
    last.push_back(refused(static_cast<uint8_t>(count)));
    if (last.size() > node::Members::kRefusedMax) last.pop_front();
    const auto due = log.lines({last, ++count}, now);
    lines += due.nodes.size();
    CHECK(due.left_out == 0);
  }
  CHECK(lines == RefusalLog::kLinesMax);
  count += 1000, now += 120s;  // more than are remembered
  const auto due = log.lines({last, count}, now);
  CHECK(due.nodes.size() == RefusalLog::kLinesMax);
  CHECK(due.left_out == 190 + 1000 - RefusalLog::kLinesMax);
}

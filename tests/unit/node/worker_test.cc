// Workers of every role: membership under one conductor and the next.

#include "bench.h"
#include "node/prefill.h"

namespace worker_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

struct WorkerBench : Bench<Prefill, PrefillOptions> {
  WorkerBench() : Bench(wire::Role::prefill, 4, PrefillOptions{}) {}
  /// The conductor dies and another one welcomes the worker.
  void change_conductor() {
    give(PeerLost{NodeId(kConductor), instance(kConductorNumber), "killed"});
    now += 1s;
    give(Tick{});
    give(Received{NodeId(kConductor), instance(98), wire::Welcome{"me", 200, 1000}});
    REQUIRE(machine.registration().is_member());
  }
  std::vector<std::string> wanted(const Actions& actions) {
    std::vector<std::string> names;
    for (const auto& set : all<SetPeers>(actions)) {
      names.clear();
      for (const auto& peer : set.peers) names.push_back(peer.name);
    }
    return names;
  }
  Actions hear_new(wire::Message message) {
    return give(Received{NodeId(kConductor), instance(98), std::move(message)});
  }
};

const wire::Peer kD0{"d0", instance(2), wire::Role::decode, "sim:d0", {}};
const wire::Peer kP0{"p0", instance(1), wire::Role::prefill, "sim:p0", {}};

}  // namespace

TEST_CASE("node/worker: a new conductor that does not know all peers yet costs no connection to them") {
  WorkerBench b;
  b.change_conductor();
  CHECK(b.wanted(b.hear_new(wire::Peers{1, {kD0}})) == std::vector<std::string>{"d0", "c0", "p0", "p1"});
  CHECK(b.machine.peers().all().size() == 1);  // known again is only who registered
  CHECK(b.wanted(b.hear_new(wire::Peers{2, {kD0, kP0}})) == std::vector<std::string>{"d0", "p0", "c0", "p1"});
  b.now += 1999ms;
  b.hear_new(wire::HeartbeatAck{true});
  CHECK(all<SetPeers>(b.give(Tick{})).empty());
  b.now += 2ms;
  CHECK(b.wanted(b.give(Tick{})) == std::vector<std::string>{"d0", "p0"});
}

TEST_CASE("node/worker: a worker tells the next conductor how long ago the first one welcomed it") {
  WorkerBench b;
  b.now += 30s;
  b.give(PeerLost{NodeId(kConductor), instance(kConductorNumber), "killed"});
  b.now += 1s;
  std::vector<wire::Hello> hellos;
  for (const auto& send : all<Send>(b.give(Tick{})))
    if (const auto* hello = std::get_if<wire::Hello>(&send.message)) hellos.push_back(*hello);
  REQUIRE(hellos.size() == 1);
  CHECK(hellos[0].member_ms == 31'000);
}

TEST_CASE("node/worker: time in which the host read no messages does not lose the conductor, and other time does") {
  WorkerBench b;
  b.now += 60s;
  b.give(HostStalled{60s});
  b.give(Tick{});
  CHECK(b.machine.registration().is_member());
  b.now += 1001ms;
  b.give(Tick{});
  CHECK_FALSE(b.machine.registration().is_member());
}

TEST_CASE("node/worker: a former peer that restarted, or whose connection broke, is let go at once") {
  WorkerBench b;
  b.change_conductor();
  b.give(PeerLost{"c0", instance(3), "connection closed"});
  wire::Peer again = kD0;
  again.instance = instance(77);
  const auto set = all<SetPeers>(b.hear_new(wire::Peers{1, {again}}));
  REQUIRE(set.size() == 1);
  REQUIRE(set[0].peers.size() == 3);
  CHECK(set[0].peers[0].instance == instance(77));
  CHECK(set[0].peers[1].name == "p0");
  CHECK(set[0].peers[2].name == "p1");
}

TEST_CASE("node/worker: peers that the same conductor no longer lists are let go at once") {
  WorkerBench b;
  CHECK(b.wanted(b.from_conductor(wire::Peers{2, {kD0}})) == std::vector<std::string>{"d0"});
}

TEST_CASE("node/worker: a welcome by a name that no node may have does not count") {
  WorkerBench b;
  const std::string longest(64, 'n');
  for (const std::string& name : {std::string(), longest + "n", std::string(70'000, 'x'), std::string("p 0"),
                                  std::string("p\0", 2), std::string("conductor"), std::string("#operators")}) {
    b.hear_new(wire::Welcome{name, 200, 1000});
    CHECK(b.machine.name() == "me");
    CHECK(b.machine.registration().conductor() == instance(kConductorNumber));
    CHECK(b.machine.load().last_error.find("that no node may have") != std::string::npos);
  }
  b.hear_new(wire::Welcome{longest, 200, 1000});
  CHECK(b.machine.name() == longest);
  CHECK(b.machine.registration().conductor() == instance(98));
}

TEST_CASE("node/worker: a node that leaves gives the conductor its reason, once") {
  WorkerBench b;
  Actions out;
  b.machine.leave("emu: uncorrectable ECC error", b.now, out);
  b.machine.leave("shutdown", b.now, out);
  std::vector<std::string> reasons;
  for (const auto& send : all<Send>(out))
    if (const auto* goodbye = std::get_if<wire::Goodbye>(&send.message)) reasons.push_back(goodbye->reason);
  CHECK(reasons == std::vector<std::string>{"emu: uncorrectable ECC error"});
  CHECK(b.machine.registration().has_left());
}

TEST_CASE("node/worker: a node that was told to stop drains whatever the conductor orders") {
  WorkerBench b;
  b.from_conductor(wire::Drain{true});
  CHECK(b.machine.draining());
  CHECK_FALSE(b.machine.load().leaving);
  b.from_conductor(wire::Drain{false});
  CHECK_FALSE(b.machine.draining());
  Actions out;
  b.machine.start_draining(b.now, out);
  b.from_conductor(wire::Drain{false});
  CHECK(b.machine.draining());
  CHECK(b.machine.load().leaving);
}

}  // namespace worker_test

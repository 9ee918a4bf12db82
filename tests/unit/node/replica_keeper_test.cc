#include "node/replica_keeper.h"

#include <algorithm>

#include "test.h"

using namespace mc;
using namespace mc::node;

namespace replica_keeper_test {

InstanceId instance(uint8_t number) {
  InstanceId id;
  id.bytes[0] = number;
  return id;
}

const ValueKey kKey{"t", "k"};

struct World {
  ReplicaKeeper keeper{ReplicaKeeper::Options{.grace = 30s, .interval = 60s, .again = 2s}};
  TimePoint now{};
  void members(const std::vector<std::string>& others) {
    std::vector<ReplicaKeeper::Node> nodes;
    for (const std::string& name : others) nodes.push_back({name, instance(1)});
    keeper.set_members("c0", nodes, now);
  }
  void round() {
    REQUIRE(keeper.wants_round(now));
    keeper.begin_round(now);
    keeper.end_round(now);
  }
  ReplicaKeeper::Work work(std::vector<std::string> holders, bool is_durable = true) {
    return keeper.work(kKey, {.version = 1, .copies = 2, .holders = std::move(holders)}, is_durable, now);
  }
};

TEST_CASE("node/replica_keeper: a node that leaves moves no replica of the nodes that stay") {
  const std::vector<std::string> nodes{"c0", "c1", "c2", "c3", "c4"};
  size_t first = 0;
  for (int i = 0; i < 200; ++i) {
    const ValueKey key{"t", "key" + std::to_string(i)};
    std::vector<std::string> order = replica_order(key, nodes);
    std::vector<std::string> reversed(nodes.rbegin(), nodes.rend());
    CHECK(replica_order(key, reversed) == order);
    first += order.front() == "c2";
    std::erase(order, "c2");
    CHECK(replica_order(key, {"c0", "c1", "c3", "c4"}) == order);
  }
  CHECK(first > 20);
  CHECK(first < 60);
}

TEST_CASE("node/replica_keeper: a holder asks those before it, which may have lost the value with their disks") {
  World w;
  w.members({"c1", "c2", "c3"});
  CHECK(w.work({"c1", "c2", "c0", "c3"}).confirm == std::vector<std::string>{"c1", "c2"});
  CHECK(w.work({"c1", "c2"}).confirm.empty());
}

TEST_CASE("node/replica_keeper: the first living holder keeps a value, and no other node does") {
  World w;
  w.members({"c1", "c2"});
  CHECK(w.work({"c0", "c1"}).is_keeper);
  CHECK(w.work({"c0", "c1"}).confirm == std::vector<std::string>{"c1"});
  CHECK(!w.work({"c1", "c0"}).is_keeper);
  CHECK(!w.work({"c1", "c2"}).is_keeper);
  w.members({"c2"});
  CHECK(w.work({"c1", "c0"}).is_keeper);
}

TEST_CASE("node/replica_keeper: another node takes the place of a holder that is away for the grace, and not before") {
  World w;
  w.members({"c1", "c2"});
  w.round();
  w.members({"c2"});
  w.now += 29s;
  CHECK(w.work({"c0", "c1"}).add.empty());
  CHECK(!w.keeper.wants_round(w.now));
  w.now += 1s;
  CHECK(w.keeper.wants_round(w.now));
  CHECK(w.work({"c0", "c1"}).add == std::vector<std::string>{"c2"});
  CHECK(w.work({"c0", "c1"}).drop.empty());
  CHECK(w.work({"c0", "c1"}, false).drop == std::vector<std::string>{"c1"});
  w.members({"c1", "c2"});
  CHECK(w.work({"c0", "c1"}).add.empty());
}

TEST_CASE("node/replica_keeper: with no node left nothing is added") {
  World w;
  w.members({"c1"});
  w.members({});
  w.now += 60s;
  const auto work = w.work({"c0", "c1"});
  CHECK(work.is_keeper);
  CHECK(work.add.empty());
}

TEST_CASE("node/replica_keeper: a new instance of a node asks for a round, and so does a round that failed") {
  World w;
  w.members({"c1"});
  w.round();
  CHECK(!w.keeper.wants_round(w.now));
  w.keeper.set_members("c0", {{"c1", instance(2)}}, w.now);
  w.round();
  CHECK(!w.keeper.wants_round(w.now + 1s));
  w.now += 60s;
  REQUIRE(w.keeper.wants_round(w.now));
  w.keeper.begin_round(w.now);
  w.keeper.fail("c1");
  CHECK(w.work({"c0", "c1"}).confirm.empty());
  w.keeper.end_round(w.now);
  CHECK(!w.keeper.wants_round(w.now + 1s));
  CHECK(w.keeper.wants_round(w.now + 2s));
}

}  // namespace replica_keeper_test

// Values with replicas on a cluster of cache nodes (door/replicas.h) under a virtual clock: simulated disks, a network
// that loses calls and answers, and nodes that are killed, come back, and lose their disks.
#include "door/replicas.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>

#include "base/rng.h"
#include "count.h"
#include "values_node.h"

using namespace mc;
using namespace mc::node;

namespace replicas_test {

class Network;

/// The clock of a node, whose wall clock differs from the true time.
struct NodeClock final : Clock {
  explicit NodeClock(const Clock& real) : real(real) {}
  TimePoint now() const override { return real.now(); }
  int64_t unix_ms() const override { return real.unix_ms() + ahead_ms; }
  const Clock& real;
  int64_t ahead_ms = 0;
};

/// A cache node. Its disk outlives its process.
struct Member {
  std::string name;
  uint8_t starts = 0;
  store::DiskImage disk;
  std::unique_ptr<test::ValuesNode> store;  // null: the process is dead
  std::unique_ptr<NodeClock> clock;
  std::unique_ptr<door::ReplicaLink> link;
  std::unique_ptr<door::Replicas> replicas;
};

class Network {
 public:
  explicit Network(size_t nodes, uint64_t seed = 1) : rng_(seed) {
    for (size_t i = 0; i < nodes; ++i) {
      members_.push_back(std::make_unique<Member>());
      members_.back()->name = "c" + std::to_string(i);
      members_.back()->clock = std::make_unique<NodeClock>(clock);
      start(i);
    }
  }
  ~Network() {
    for (auto& member : members_) member->replicas.reset();
  }

  void start(size_t at);
  /// kill -9: what flushes made durable stays on disk.
  void kill(size_t at) {
    Member& member = *members_[at];
    member.replicas.reset(), member.link.reset();
    member.disk = member.store->faults.cut();
    member.store.reset();
  }
  void lose_disk(size_t at) { members_[at]->disk = {}; }
  bool is_alive(size_t at) const { return members_[at]->store != nullptr; }
  Member& at(size_t i) { return *members_.at(i); }
  size_t size() const { return members_.size(); }

  Result<door::Replicas::PutResult> put(size_t at, const std::string& key, const std::string& bytes, ValueTerms terms) {
    return members_[at]->replicas->put({"t", key}, std::make_shared<const ValueBytes>(bytes), terms, kNever);
  }
  /// The bytes, or "MC" and the number of the error.
  std::string get(size_t at, const std::string& key) {
    auto found = members_[at]->store->values->get({"t", key}, {});
    if (!found) found = members_[at]->replicas->get({"t", key}, kNever);
    return found ? std::string(found->value->view()) : "MC" + std::to_string(static_cast<int>(found.error().mc));
  }
  /// Whether the node itself has the bytes.
  bool has(size_t at, const std::string& key) {
    return is_alive(at) && members_[at]->store->values->find({"t", key}).has_value();
  }
  std::vector<size_t> holders(const std::string& key) {
    std::vector<size_t> out;
    for (size_t i = 0; i < size(); ++i)
      if (has(i, key)) out.push_back(i);
    return out;
  }
  void run(Duration time) {
    for (const TimePoint end = clock.now() + time; clock.now() < end;) {
      clock.advance(1s);
      for (auto& member : members_)
        if (member->replicas) member->replicas->tend();
    }
  }

  VirtualClock clock;
  double loss = 0;  // of calls, and of answers
  /// The answer of a node to a call, in place of its own; nothing: its own.
  std::function<std::optional<Result<wire::ReplicaAnswer>>(const std::string& node, const wire::ReplicaCall&)> instead;

 private:
  friend class Wire;
  Rng rng_;
  std::vector<std::unique_ptr<Member>> members_;
};

/// Calls of one node, which go through the bytes of their messages.
class Wire final : public door::ReplicaLink {
 public:
  Wire(Network& network, Member& self) : network_(network), self_(self) {}
  Members members() const override {
    Members out{.self = self_.name, .others = {}};
    for (const auto& member : network_.members_)
      if (member->store && member.get() != &self_) out.others.push_back({member->name, id_of(*member)});
    return out;
  }
  Answers call_all(std::span<const Node> to, const wire::ReplicaCall& call, Duration,
                   const Suffices& suffices) override {
    Answers out(to.size(), user_error(err::kPeerUnreachable, "its answer was not waited for", "key"));
    for (size_t i = 0; i < to.size(); ++i) {
      out[i] = call_one(to[i], call);
      if (suffices && out[i] && suffices(*out[i])) break;
    }
    return out;
  }
  void serve(Handler) override {}

 private:
  Result<wire::ReplicaAnswer> call_one(const Node& to, const wire::ReplicaCall& call) {
    const auto is_lost = [&] { return network_.rng_.uniform() < network_.loss; };
    const Error silent = user_error(err::kPeerUnreachable, to.name + " did not answer", "key");
    for (const auto& member : network_.members_) {
      if (member->name != to.name || !member->replicas || id_of(*member) != to.instance) continue;
      if (is_lost()) return silent;
      if (network_.instead)
        if (const auto other = network_.instead(to.name, call)) return *other;
      const auto arrived = wire::parse_replica_call(wire::encode(call));
      REQUIRE_OK(arrived);
      const auto answer = wire::parse_replica_answer(wire::encode(member->replicas->answer(self_.name, *arrived)));
      if (is_lost()) return silent;
      return answer;
    }
    return silent;
  }
  static InstanceId id_of(const Member& member) {
    InstanceId id;
    id.bytes[0] = member.starts, id.bytes[1] = static_cast<uint8_t>(member.name.back());
    return id;
  }
  Network& network_;
  Member& self_;
};

void Network::start(size_t at) {
  Member& member = *members_[at];
  ++member.starts;
  member.store = std::make_unique<test::ValuesNode>(member.disk, 1 << 20, &clock);
  member.link = std::make_unique<Wire>(*this, member);
  member.replicas = std::make_unique<door::Replicas>(*member.store->values, *member.link, *member.clock,
                                                     ReplicaKeeper::Options{.grace = 10s, .interval = 20s}, 4 << 20);
}

const ValueTerms kTwo{.copies = 2}, kDurable{.durability = Durability::d3};

TEST_CASE("host/replicas: an acknowledged value is on as many nodes as it asked for, and any node gives it") {
  Network net(4);
  REQUIRE_OK(net.put(1, "k", "value", {.copies = 3}));
  CHECK(net.holders("k").size() == 3);
  CHECK(net.has(1, "k"));
  for (size_t i = 0; i < 4; ++i) CHECK(net.get(i, "k") == "value");
  CHECK(net.holders("k").size() == 3);
  const std::string large(3'000'000, 'x');
  REQUIRE_OK(net.put(2, "large", large, kDurable));
  CHECK(net.holders("large").size() == 2);
  for (size_t i = 0; i < 4; ++i) CHECK(net.get(i, "large") == large);
}

TEST_CASE("host/replicas: a get goes on with another holder when the first one does not give the bytes") {
  Network net(4);
  REQUIRE_OK(net.put(0, "k", "value", {.copies = 3}));
  size_t other = 0;
  while (net.has(other, "k")) ++other;
  for (const size_t silent : net.holders("k")) {
    CAPTURE(silent);
    net.instead = [&](const std::string& node, const wire::ReplicaCall& call) {
      const bool is_lost = node == net.at(silent).name && call.op == static_cast<uint32_t>(wire::ReplicaOp::read);
      return is_lost ? std::optional<Result<wire::ReplicaAnswer>>(user_error(err::kPeerUnreachable, "silent"))
                     : std::nullopt;
    };
    CHECK(net.get(other, "k") == "value");
  }
}

TEST_CASE("host/replicas: too few nodes are an error with the numbers, and leave nothing") {
  Network net(2);
  const auto refused = net.put(0, "k", "v", {.copies = 3});
  REQUIRE(!refused);
  CHECK(refused.error().mc == err::kNotDurable);
  CHECK(refused.error().what == "3 replicas need 3 cache nodes, and there are 2: c0, c1");
  CHECK(net.holders("k").empty());
  net.kill(1);
  CHECK(net.put(0, "k", "v", kDurable).error().mc == err::kNotDurable);
  CHECK(net.holders("k").empty());
}

TEST_CASE("host/replicas: a put that ends at its deadline leaves its value on no node") {
  int offers = 0;
  for (Duration time = 100ms; offers < 2; time *= 2) {  // a busy machine needs more to come to the second offer
    REQUIRE(time < 60s);
    offers = 0;
    Network net(3);
    const TimePoint until = SystemClock::instance().now() + time;
    net.instead = [&](const std::string&, const wire::ReplicaCall& call) -> std::optional<Result<wire::ReplicaAnswer>> {
      if (call.op != static_cast<uint32_t>(wire::ReplicaOp::offer) || ++offers < 2) return std::nullopt;
      std::promise<void>().get_future().wait_until(until);  // the node does not answer
      return user_error(err::kPeerUnreachable, "silent");
    };
    const auto value = std::make_shared<const ValueBytes>("value");
    CHECK_FALSE(net.at(0).replicas->put({"t", "k"}, value, {.copies = 3}, until).has_value());
    CHECK(net.holders("k").empty());
  }
}

TEST_CASE("host/replicas: a key that one node has with other bytes refuses the put on all") {
  Network net(2);
  REQUIRE_OK(net.at(1).store->put_in_memory("k", "other"));
  CHECK(net.put(0, "k", "v", kTwo).error().mc == err::kValueDiffers);
  CHECK(!net.has(0, "k"));
  CHECK(net.get(1, "k") == "other");
}

TEST_CASE("host/replicas: a node beyond eight holders that has a value of its own is told so") {
  Network net(9);
  REQUIRE_OK(net.put(0, "k", "value", {.copies = 8}));
  size_t ninth = 0;
  while (net.has(ninth, "k")) ++ninth;
  REQUIRE_OK(net.at(ninth).store->put_in_memory("k", "other"));
  const auto refused = net.put(ninth, "k", "new", {.replaces = true, .copies = 8});
  REQUIRE(!refused);
  CHECK(refused.error().mc == err::kValueDiffers);
  const std::string name = net.at(ninth).name;
  CHECK(refused.error().what ==
        "8 other nodes have the key's value, and " + name + " has another one without replicas");
  REQUIRE_OK(net.at(ninth).store->values->remove({"t", "k"}));
  REQUIRE_OK(net.put(ninth, "k", "new", {.replaces = true, .copies = 8}));
  for (size_t i = 0; i < 9; ++i) CHECK(net.get(i, "k") == "new");
}

TEST_CASE("host/replicas: a value of level d3 survives the loss of either node's disk, and is made twice again") {
  for (const size_t lost : {0, 1}) {
    CAPTURE(lost);
    Network net(2);
    REQUIRE_OK(net.put(0, "k", "value", kDurable));
    net.kill(lost);
    CHECK(net.get(1 - lost, "k") == "value");
    net.lose_disk(lost);
    net.start(lost);
    CHECK(net.get(lost, "k") == "value");
    net.run(5s);
    net.kill(1 - lost);
    CHECK(net.has(lost, "k"));
    net.kill(lost), net.start(lost);  // it is durable there
    CHECK(net.get(lost, "k") == "value");
  }
}

TEST_CASE("host/replicas: all nodes of a durable value may lose power at once") {
  Network net(3);
  REQUIRE_OK(net.put(0, "k", "value", kDurable));
  const auto holders = net.holders("k");
  for (size_t i = 0; i < 3; ++i) net.kill(i);
  for (size_t i = 0; i < 3; ++i) net.start(i);
  CHECK(net.holders("k") == holders);
  net.run(30s);
  CHECK(net.holders("k") == holders);
  for (size_t i = 0; i < 3; ++i) CHECK(net.get(i, "k") == "value");
}

TEST_CASE("host/replicas: a damaged replica is an error of its disk and the right bytes from another node") {
  Network net(2);
  REQUIRE_OK(net.put(0, "k", test::text(5000), kDurable));
  auto image = [&] {
    net.kill(0);
    store::DiskImage out = net.at(0).disk;
    for (auto& [name, bytes] : out) {
      const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const size_t found = text.find(test::text(5000).substr(0, 1000));
      if (found != std::string::npos) bytes[found + 500] ^= std::byte{1};
    }
    return out;
  }();
  net.at(0).disk = std::move(image);
  net.start(0);
  CHECK(net.at(0).store->get("k").starts_with("MC"));
  CHECK(net.get(0, "k") == test::text(5000));
  CHECK(net.has(0, "k"));  // it was stored again
}

TEST_CASE("host/replicas: a holder that stays away is replaced after the grace, and its late copy does no harm") {
  Network net(4);
  REQUIRE_OK(net.put(0, "k", "value", kDurable));
  const size_t other = net.holders("k")[1];
  net.run(1s);
  net.kill(other);
  net.run(5s);
  CHECK(net.holders("k").size() == 1);
  net.run(30s);
  CHECK(net.holders("k").size() == 2);
  const auto set = net.at(0).store->values->find({"t", "k"})->replicas;
  CHECK(set.holders.size() == 3);  // the one that is away may have its copy still
  CHECK(net.at(0).replicas->missing({"t", "k"}, set) == 0);
  const auto refused = net.at(0).replicas->remove({"t", "k"}, false, kNever);
  REQUIRE(!refused);
  CHECK(refused.error().what.find(net.at(other).name) != std::string::npos);
  net.start(other);
  net.run(30s);
  REQUIRE_OK(net.at(0).replicas->remove({"t", "k"}, false, kNever));
  CHECK(net.holders("k").empty());
  net.run(60s);
  for (size_t i = 0; i < 4; ++i) CHECK(net.get(i, "k") == "MC4007");
}

TEST_CASE("host/replicas: with no node to take it a lost replica is counted as missing") {
  Network net(2);
  REQUIRE_OK(net.put(0, "k", "value", kTwo));
  net.kill(1);
  net.run(40s);
  const auto info = net.at(0).store->values->find({"t", "k"});
  REQUIRE_OK(info);
  CHECK(net.at(0).replicas->missing({"t", "k"}, info->replicas) == 1);
  net.start(1);
  net.run(30s);
  CHECK(net.at(0).replicas->missing({"t", "k"}, net.at(0).store->values->find({"t", "k"})->replicas) == 0);
  CHECK(net.has(1, "k"));
}

TEST_CASE(
    "host/replicas: a replica that is missing is counted during the next round as well, and no longer than it is") {
  Network net(2);
  REQUIRE_OK(net.put(0, "a", "value", kTwo));
  REQUIRE_OK(net.put(0, "k", "value", kTwo));
  const auto missing = [&] {
    return net.at(0).replicas->missing({"t", "k"}, net.at(0).store->values->find({"t", "k"})->replicas);
  };
  REQUIRE_OK(net.at(1).store->values->remove({"t", "k"}));
  std::vector<uint32_t> seen;
  net.instead = [&](const std::string& node, const wire::ReplicaCall& call) {
    if (node == "c1" && call.name == "a") seen.push_back(missing());  // the round has begun, and is not at k
    const bool is_full = node == "c1" && call.name == "k" && call.transfer != 0;
    return is_full ? std::optional<Result<wire::ReplicaAnswer>>(
                         wire::ReplicaAnswer{.mc = err::kNotEnoughMemory, .what = "full"})
                   : std::nullopt;
  };
  net.run(25s);
  REQUIRE(seen.size() >= 2);
  seen.erase(seen.begin());
  CHECK(std::ranges::all_of(seen, [](uint32_t count) { return count == 1; }));
  CHECK(missing() == 1);
  net.instead = nullptr;
  net.run(25s);
  CHECK(missing() == 0);
  CHECK(net.has(1, "k"));
}

TEST_CASE("host/replicas: a forced removal leaves no copy on the nodes that are there, and a pin reaches all holders") {
  Network net(3);
  REQUIRE_OK(net.put(0, "k", "value", {.durability = Durability::d3, .copies = 3}));
  REQUIRE_OK(net.at(1).replicas->pin({"t", "k"}, 3600s, kNever));
  for (size_t i = 0; i < 3; ++i) CHECK(net.at(i).store->values->find({"t", "k"})->pin > 3500s);
  net.kill(2);
  CHECK(!net.at(0).replicas->remove({"t", "k"}, false, kNever));
  CHECK(net.holders("k").size() == 2);
  REQUIRE_OK(net.at(0).replicas->remove({"t", "k"}, true, kNever));
  CHECK(net.holders("k").empty());
}

TEST_CASE("host/replicas: a pin passes over a holder that has lost its replica, also where that is this node") {
  for (const size_t lost : {0, 1}) {
    CAPTURE(lost);
    Network net(2);
    REQUIRE_OK(net.put(0, "k", "value", kTwo));
    REQUIRE_OK(net.at(lost).store->values->remove({"t", "k"}));
    REQUIRE_OK(net.at(0).replicas->pin({"t", "k"}, 3600s, kNever));
    CHECK(net.at(1 - lost).store->values->find({"t", "k"})->pin > 3500s);
    net.run(60s);  // the upkeep makes the replica again
    CHECK(net.at(lost).store->values->find({"t", "k"})->pin > 3000s);
  }
}

TEST_CASE("host/replicas: a replacement keeps the holders, and a node that missed it takes the newer value") {
  Network net(2);
  REQUIRE_OK(net.put(0, "k", "old", kDurable));
  net.kill(1);
  CHECK(net.put(0, "k", "new", {.replaces = true}).error().mc == err::kPeerUnreachable);
  CHECK(net.get(0, "k") == "old");
  REQUIRE_OK(net.at(0).replicas->remove({"t", "k"}, true, kNever));
  net.start(1);
  net.kill(1), net.start(1);
  // The copy of the node that was away is back, and a put through another node replaces it there too.
  REQUIRE_OK(net.put(0, "k", "new", {.replaces = true, .copies = 2}));
  CHECK(net.get(1, "k") == "new");
  net.run(30s);
  CHECK(net.get(0, "k") == "new");
  CHECK(net.get(1, "k") == "new");
}

/// The call that asks a node to lend its value of a key.
wire::ReplicaCall loan_of(const std::string& key) {
  wire::ReplicaCall call;
  call.op = static_cast<uint32_t>(wire::ReplicaOp::find);
  call.tenant = "t", call.name = key, call.lend = true;
  return call;
}

TEST_CASE("host/replicas: a put lends its value until the last holder has it, however long the others take") {
  Network net(4);
  REQUIRE_OK(net.put(0, "other", "bytes", kTwo));
  int offers = 0;
  net.instead = [&](const std::string&, const wire::ReplicaCall& call) -> std::optional<Result<wire::ReplicaAnswer>> {
    if (call.op != static_cast<uint32_t>(wire::ReplicaOp::offer)) return std::nullopt;
    ++offers;
    net.clock.advance(door::LentValues::kLentFor);
    CHECK(net.at(0).replicas->answer("c3", loan_of("other")).mc == 0);  // ends the loans that are over
    return std::nullopt;
  };
  REQUIRE_OK(net.put(0, "k", "value", {.copies = 3}));
  CHECK(offers == 2);
  CHECK(net.holders("k").size() == 3);
}

TEST_CASE("host/replicas: a put is refused while other nodes read too many values, and only as long as they do") {
  Network net(3);
  const std::string large(500'000, 'x');
  REQUIRE_OK(net.put(0, "large", large, kTwo));
  uint64_t lent = 0;
  while (net.at(0).replicas->answer("c2", loan_of("large")).mc == 0) lent += large.size();
  CHECK(lent > door::LentValues::kBytesMax - large.size());
  CHECK(net.put(0, "k", large, kTwo).error().mc == err::kQueueFull);
  CHECK(net.holders("k").empty());
  net.clock.advance(door::LentValues::kLentFor);
  REQUIRE_OK(net.put(0, "k", large, kTwo));
}

TEST_CASE("host/replicas: of the removals the oldest one is forgotten first, and none before its time") {
  VirtualClock clock;
  door::RecentRemovals removals(clock);
  const auto key = [](size_t i) { return ValueKey{"t", "k" + std::to_string(i)}; };
  removals.note(key(70'000), 5);  // the first one, and not the first in the order of keys
  clock.advance(1ms);
  for (size_t i = 0; i < door::RecentRemovals::kMost; ++i) removals.note(key(i), 7);
  CHECK_FALSE(removals.has(key(70'000), 5));
  CHECK(removals.has(key(0), 7));
  CHECK_FALSE(removals.has(key(0), 8));
  removals.note(key(0), 9);
  removals.note(key(0), 4);
  CHECK(removals.version_of(key(0)) == 9);
  clock.advance(door::RecentRemovals::kKeptFor);
  CHECK(removals.version_of(key(0)) == 0);
}

TEST_CASE("host/replicas: a value may be put after its removal through a node whose clock is behind the first one's") {
  for (const size_t second : {1, 2}) {
    CAPTURE(second);
    Network net(3);
    net.at(0).clock->ahead_ms = 3'600'000;
    REQUIRE_OK(net.put(0, "k", "first", {.durability = Durability::d3, .copies = 3}));
    REQUIRE_OK(net.at(1).replicas->remove({"t", "k"}, false, kNever));
    net.kill(1), net.start(1);  // it has forgotten the removal
    REQUIRE_OK(net.put(second, "k", "second", {.durability = Durability::d3, .copies = 3}));
    for (size_t i = 0; i < 3; ++i) CHECK(net.get(i, "k") == "second");
  }
}

TEST_CASE("host/replicas: a put that names no number keeps the replicas, also through a node that has none of them") {
  Network net(3);
  REQUIRE_OK(net.put(0, "k", "old", kTwo));
  const auto holders = net.holders("k");
  size_t other = 0;
  while (net.has(other, "k")) ++other;
  CHECK(net.put(other, "k", "new", {}).error().mc == err::kValueDiffers);
  for (size_t i = 0; i < 3; ++i) CHECK(net.get(i, "k") == "old");
  REQUIRE_OK(net.put(other, "k", "new", {.replaces = true}));
  for (size_t i = 0; i < 3; ++i) CHECK(net.get(i, "k") == "new");
  CHECK(net.holders("k") == holders);
  REQUIRE_OK(net.put(other, "own", "value", {}));
  CHECK(net.holders("own") == std::vector<size_t>{other});
  net.kill(holders[1]);  // nodes that do not answer have no say in a put of one copy
  net.loss = 1;
  REQUIRE_OK(net.put(other, "later", "value", {}));
}

TEST_CASE(
    "host/replicas: nodes are asked while values with replicas are possible, and once a minute where there are none") {
  Network net(3);
  const auto asks = [&](size_t at) { return net.at(at).replicas->may_be_elsewhere(); };
  CHECK(asks(2));
  REQUIRE_OK(net.put(2, "own", "value", {}));
  CHECK_FALSE(asks(2));
  CHECK(asks(1));  // it has asked nobody
  net.clock.advance(door::ReplicaUse::kSureFor);
  CHECK(asks(2));
  REQUIRE_OK(net.put(2, "own", "value", {}));
  CHECK_FALSE(asks(2));
  net.kill(1), net.start(1);
  CHECK(asks(2));  // another process may have brought values from its disk
  REQUIRE_OK(net.put(2, "own", "value", {}));
  CHECK_FALSE(asks(2));
  REQUIRE_OK(net.put(0, "k", "value", kDurable));
  for (size_t i = 0; i < 3; ++i) CHECK(asks(i));
  net.clock.advance(door::ReplicaUse::kSureFor);
  for (size_t i = 0; i < 3; ++i) net.kill(i);
  for (size_t i = 0; i < 3; ++i) net.start(i);
  size_t other = 0;
  while (net.has(other, "k")) ++other;
  CHECK(net.get(other, "k") == "value");
  for (size_t i = 0; i < 3; ++i) CHECK(asks(i));
}

TEST_CASE("host/replicas: an error number that no release knows is an error of the other node") {
  Network net(2);
  net.instead = [](const std::string&, const wire::ReplicaCall&) {
    return Result<wire::ReplicaAnswer>(wire::ReplicaAnswer{.mc = 4'000'000'000, .what = "?"});
  };
  const auto refused = net.put(0, "k", "v", kTwo);
  REQUIRE(!refused);
  CHECK(refused.error().mc == err::kPeerGarbage);
  CHECK(!net.has(0, "k"));
}

TEST_CASE("host/replicas: a replacement through a node that has just come back reaches the holder in its place too") {
  Network net(3);
  REQUIRE_OK(net.put(0, "k", "old", kDurable));
  const size_t other = net.holders("k")[1];
  net.run(1s);
  net.kill(other);
  net.run(30s);
  CHECK(net.holders("k").size() == 2);
  net.start(other);
  REQUIRE_OK(net.put(other, "k", "new", {.replaces = true}));
  for (size_t i = 0; i < 3; ++i) CHECK(net.get(i, "k") == "new");
}

/// The link of a node whose calls to the other node get no answer until release().
class SilentLink final : public door::ReplicaLink {
 public:
  Members members() const override { return {.self = "c0", .others = {{"c1", {}}}}; }
  Answers call_all(std::span<const Node> to, const wire::ReplicaCall&, Duration, const Suffices&) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
    return Answers(to.size(), user_error(err::kPeerUnreachable, "c1 did not answer", "key"));
  }
  void serve(Handler taker) override { handler = std::move(taker); }
  bool await_waiting(size_t calls) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return waiting_ >= calls; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  Handler handler;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t waiting_ = 0;
  bool released_ = false;
};

TEST_CASE("host/replicas: calls are answered while offers wait for a node that does not give its values") {
  test::ValuesNode store;
  SilentLink link;
  door::Replicas replicas(*store.values, link, SystemClock::instance(), {}, 4 << 20);
  replicas.start();
  wire::ReplicaCall offer;
  offer.op = static_cast<uint32_t>(wire::ReplicaOp::offer);
  offer.tenant = "t", offer.transfer = 1;
  offer.value = {.bytes = 10, .crc = 1, .set = {.version = 1, .copies = 2, .holders = {"c1", "c0"}}};
  for (int i = 0; i < 20; ++i) {
    offer.name = "k" + std::to_string(i);
    link.handler("c1", offer, [](const wire::Bytes&) {});
  }
  REQUIRE(link.await_waiting(8));  // all threads for offers
  std::promise<wire::Bytes> told;
  wire::ReplicaCall find;
  find.op = static_cast<uint32_t>(wire::ReplicaOp::find);
  find.tenant = "t", find.name = "k0";
  link.handler("c1", find, [&](wire::Bytes bytes) { told.set_value(std::move(bytes)); });
  auto answer = told.get_future();
  const bool is_there = answer.wait_for(60s) == std::future_status::ready;
  link.release();
  replicas.stop();
  REQUIRE(is_there);
  const auto found = wire::parse_replica_answer(answer.get());
  REQUIRE_OK(found);
  CHECK(found->mc == err::kNotFound);
}

/// Results that a get may give; "MC4007" stands for no value.
using Allowed = std::set<std::string>;

void play(uint64_t seed) {
  CAPTURE(seed);
  Network net(4, seed);
  Rng rng(seed);
  std::map<std::string, Allowed> model;
  size_t down = net.size(), gets = 0, acked = 0;
  int written = 0;
  for (int step = 0; step < 200; ++step) {
    net.clock.advance(1ms);
    const std::string key = "k" + std::to_string(rng.below(6));
    size_t at = rng.below(net.size());
    if (at == down) at = (at + 1) % net.size();
    Allowed& allowed = model.try_emplace(key, Allowed{"MC4007"}).first->second;
    net.loss = rng.below(4) == 0 ? 0.1 : 0;
    switch (rng.below(8)) {
      case 0:
      case 1:
      case 2: {
        const std::string bytes = "value " + std::to_string(++written);
        const bool replaces = rng.below(2) == 0;
        const auto done = net.put(at, key, bytes, {.replaces = replaces, .durability = Durability::d3});
        if (done)
          allowed = {bytes}, ++acked;
        else
          allowed.insert(bytes);
        break;
      }
      case 3: {
        const auto done = net.at(at).replicas->remove({"t", key}, false, kNever);
        if (done)
          allowed = {"MC4007"}, ++acked;
        else
          allowed.insert("MC4007");
        break;
      }
      case 4: {
        if (down < net.size()) {
          if (rng.below(2) == 0) net.loss = 0, net.run(40s), net.lose_disk(down);
          net.start(down);
          down = net.size();
        } else {
          net.loss = 0, net.run(40s);
          down = at;
          net.kill(down);
        }
        break;
      }
      case 5: net.run(std::chrono::seconds(rng.below(15))); break;
      default: {
        net.loss = 0;
        const std::string got = net.get(at, key);
        CAPTURE(key);
        CAPTURE(got);
        CHECK(allowed.contains(got));
        ++gets;
      }
    }
  }
  CHECK(gets > 10);
  CHECK(acked > 10);
  net.loss = 0;
  if (down < net.size()) net.start(down);
  net.run(120s);
  for (const auto& [key, allowed] : model) {
    std::set<std::string> seen;
    for (size_t i = 0; i < net.size(); ++i) seen.insert(net.get(i, key));
    CAPTURE(key);
    CHECK(seen.size() == 1);  // all nodes agree
    CHECK(allowed.contains(*seen.begin()));
    if (*seen.begin() != "MC4007") CHECK(net.holders(key).size() >= 2);
  }
}

TEST_CASE("host/replicas: acknowledged values outlive kills and lost disks, under random calls and a lossy network") {
  for (uint64_t seed = 1; seed <= test::count<uint64_t>(10, 500); ++seed) play(seed);
}

}  // namespace replicas_test

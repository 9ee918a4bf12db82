// The time since each member joined, in the conductor's lists (node/slow_start.h uses it).
#include <algorithm>

#include "conductor_bench.h"

namespace conductor_test {

TEST_CASE("node/member_age: nodes learn how long each other one is a member, and one that was away keeps its time") {
  Bench b;
  start(b);
  const auto told = [&](const Actions& out, const std::string& about) {
    const auto lists = Bench::sent<wire::Peers>(out, "p0");
    REQUIRE(lists.size() == 1);
    const auto& peers = lists[0].peers;
    const auto it = std::ranges::find(peers, about, &wire::Peer::name);
    REQUIRE(it != peers.end());
    return it->member_ms;
  };
  b.now += 10s;
  b.give(HostStalled{10s});  // no member is silent
  CHECK(told(b.hello(wire::Role::cache, "c0", 8), "c0") == 1);
  b.now += 2s;
  CHECK(told(b.hello(wire::Role::cache, "c1", 9), "c0") == 2000);
  b.give(Received{"c0", instance(8), wire::Goodbye{"message lost"}});
  CHECK(told(b.hello(wire::Role::cache, "c0", 8), "c0") == 2000);
  b.give(Received{"c0", instance(8), wire::Goodbye{"a new process"}});
  CHECK(told(b.hello(wire::Role::cache, "c0", 10), "c0") == 1);
}

TEST_CASE("node/member_age: a node that an earlier conductor welcomed keeps its time, an hour at most") {
  Bench b;
  const auto age = [&](uint64_t claimed_ms, const std::string& name, uint8_t number) {
    wire::Hello hello;
    hello.role = wire::Role::cache, hello.name = name, hello.control_uri = "sim:" + name;
    hello.member_ms = claimed_ms;
    const auto lists = Bench::sent<wire::Peers>(b.give(Received{name, instance(number), hello}), name);
    REQUIRE(lists.size() == 1);
    return std::ranges::find(lists[0].peers, name, &wire::Peer::name)->member_ms;
  };
  CHECK(age(45'000, "c0", 8) == 45'000);
  CHECK(age(UINT64_MAX, "c1", 9) == 3'600'000);
  CHECK(age(0, "c2", 10) == 1);
}

}  // namespace conductor_test

#include <arpa/inet.h>

#include "test.h"
#include "xfer_rdma/gid.h"

using namespace mc;
using namespace mc::xfer;
using wire::Gid;
using wire::RdmaGid;
using wire::RdmaNic;

namespace {

Gid gid(const std::string& text) {
  Gid out{};
  if (text.find(':') == std::string::npos) {
    out[10] = out[11] = 0xff;
    REQUIRE(::inet_pton(AF_INET, text.c_str(), out.data() + 12) == 1);
  } else {
    REQUIRE(::inet_pton(AF_INET6, text.c_str(), out.data()) == 1);
  }
  return out;
}

GidEntry entry(uint32_t index, const std::string& address, GidType type = GidType::roce_v2,
               const std::string& netdev = "eth2") {
  return {.index = index,
          .gid = gid(address),
          .type = type,
          .netdev = netdev,
          .netdev_up = true,
          .assigned = true,
          .prefix = 120};
}

RdmaGid remote(const std::string& address, uint8_t prefix) {
  return {gid(address), prefix};
}

RdmaNic nic(std::vector<RdmaGid> gids) {
  return {.name = "n", .active = true, .mtu = 4096, .gids = std::move(gids)};
}

/// Indices of the usable entries in order of rank.
std::vector<uint32_t> ranked(const std::vector<GidEntry>& entries, int only = -1) {
  std::vector<uint32_t> out;
  for (const RankedGid& each : rank_gids(entries, only)) {
    CHECK(!each.reason.empty());
    if (each.usable) out.push_back(each.entry.index);
  }
  return out;
}

using Indices = std::vector<uint32_t>;

std::string pairs_text(const std::vector<NicPair>& pairs) {
  std::string out;
  for (const NicPair& pair : pairs) out += std::to_string(pair.local) + "-" + std::to_string(pair.remote) + " ";
  return out;
}

}  // namespace

TEST_CASE("xfer/rdma_gid: RoCE v1 is never used, even when it is all there is") {
  CHECK(ranked({entry(0, "10.0.0.1", GidType::roce_v1), entry(1, "10.0.0.1")}) == Indices{1});
  CHECK(ranked({entry(0, "10.0.0.1", GidType::roce_v1)}).empty());
}

TEST_CASE(
    "xfer/rdma_gid: IPv4 beats global IPv6 beats unique-local beats link-local, wherever they stand in the table") {
  const std::vector<GidEntry> table = {entry(0, "fe80::1"), entry(1, "fd00::1"), entry(2, "2001:db8::1"),
                                       entry(3, "192.168.7.1")};
  CHECK(ranked(table) == Indices{3, 2, 1, 0});
}

TEST_CASE("xfer/rdma_gid: private IPv4 networks are routable addresses") {
  for (const char* address : {"10.1.2.3", "192.168.1.1", "172.16.0.1"}) {
    CHECK(gid_scope(gid(address)) == GidScope::ipv4);
    CHECK(ranked({entry(0, "fe80::1"), entry(1, address)}) == Indices{1, 0});
  }
  CHECK(gid_scope(gid("169.254.3.4")) == GidScope::link_local);
}

TEST_CASE("xfer/rdma_gid: bridges, interfaces that are down and addresses that were removed are left out") {
  CHECK(ranked({entry(0, "172.17.0.1", GidType::roce_v2, "docker0"), entry(1, "10.0.0.1")}) == Indices{1});
  CHECK(ranked({entry(0, "172.18.0.1", GidType::roce_v2, "br-3f2a"), entry(1, "fe80::1")}) == Indices{1});
  GidEntry down = entry(0, "10.0.0.1");
  down.netdev_up = false;
  GidEntry removed = entry(1, "10.0.0.9");
  removed.assigned = false;
  GidEntry orphan = entry(2, "10.0.0.8");
  orphan.netdev.clear();
  const GidEntry empty{.index = 3, .netdev = "eth2", .netdev_up = true, .assigned = true};
  CHECK(ranked({down, removed, orphan, empty, entry(4, "127.0.0.1")}).empty());
  CHECK(ranked({down, removed, orphan, empty, entry(5, "10.0.0.2")}) == Indices{5});
}

TEST_CASE("xfer/rdma_gid: an InfiniBand entry needs no interface") {
  GidEntry ib = entry(0, "fe80::2:c903:1:2", GidType::infiniband, "");
  ib.netdev_up = ib.assigned = false;
  CHECK(ranked({ib}) == Indices{0});
}

TEST_CASE("xfer/rdma_gid: an index chosen by option is used though the rules speak against it") {
  const std::vector<GidEntry> table = {entry(0, "fe80::1"), entry(1, "10.0.0.1", GidType::roce_v1),
                                       entry(2, "10.0.0.1")};
  CHECK(ranked(table, 1) == Indices{1});
  CHECK(rank_gids(table, 1)[0].reason == "chosen by option, though RoCE v1");
  CHECK(ranked(table, 9).empty());
}

TEST_CASE("xfer/rdma_gid: a pair in a common subnet comes before better ranks without one") {
  const std::vector<RdmaGid> local = {remote("10.0.0.1", 120), remote("10.0.1.1", 120), remote("2001:db8:1::1", 64)};
  const std::vector<RdmaGid> other = {remote("10.9.0.2", 120), remote("10.0.1.2", 120), remote("2001:db8:1::2", 64)};
  const auto pairs = pair_gids(local, other);
  REQUIRE(pairs.size() == 5);  // 2 x 2 of IPv4 and 1 of IPv6: families do not mix
  CHECK(pairs[0].local == 1);
  CHECK(pairs[0].remote == 1);
  CHECK(pairs[0].common_subnet);
  CHECK(pairs[1].local == 2);
  CHECK(pairs[1].common_subnet);
  CHECK(pairs[2].local == 0);
  CHECK(pairs[2].remote == 0);
  CHECK(!pairs[2].common_subnet);
}

TEST_CASE("xfer/rdma_gid: both sides' idea of the subnet counts") {
  // 10.0.0.1/8 sees 10.1.0.2 beside it; 10.1.0.2/24 does not see 10.0.0.1
  CHECK(!pair_gids(std::vector{remote("10.0.0.1", 104)}, std::vector{remote("10.1.0.2", 120)})[0].common_subnet);
  CHECK(pair_gids(std::vector{remote("10.0.0.1", 104)}, std::vector{remote("10.1.0.2", 104)})[0].common_subnet);
  CHECK(pair_gids(std::vector{remote("10.0.0.1", 121)}, std::vector{remote("10.0.0.126", 121)})[0].common_subnet);
  CHECK(!pair_gids(std::vector{remote("10.0.0.1", 121)}, std::vector{remote("10.0.0.129", 121)})[0].common_subnet);
}

TEST_CASE("xfer/rdma_gid: link-local addresses are used only when both sides have nothing else in common") {
  const std::vector<RdmaGid> both = {remote("10.0.0.1", 120), remote("fe80::1", 64)};
  const std::vector<RdmaGid> only_local = {remote("fe80::2", 64)};
  const std::vector<RdmaGid> other = {remote("10.0.0.2", 120), remote("fe80::2", 64)};
  CHECK(pair_gids(both, other).size() == 1);
  REQUIRE(pair_gids(both, only_local).size() == 1);
  CHECK(pair_gids(both, only_local)[0].local == 1);
  CHECK(pair_gids(std::vector{remote("10.0.0.1", 120)}, only_local).empty());
  CHECK(pair_gids({}, other).empty());
}

TEST_CASE("xfer/rdma_gid: ports pair up by rail, and a port that is left over shares one") {
  const auto rail = [](int n, int host) {
    return nic({remote("10.0." + std::to_string(n) + "." + std::to_string(host), 120)});
  };
  const std::vector<RdmaNic> four = {rail(0, 1), rail(1, 1), rail(2, 1), rail(3, 1)};
  const std::vector<RdmaNic> shuffled = {rail(3, 2), rail(2, 2), rail(1, 2), rail(0, 2)};
  CHECK(pairs_text(pair_nics(four, shuffled, 16)) == "0-3 1-2 2-1 3-0 ");
  CHECK(pairs_text(pair_nics(four, shuffled, 2)).size() == 8);
  // one flat network: i-th with i-th
  std::vector<RdmaNic> flat, other;
  for (int i = 1; i <= 3; ++i) {
    flat.push_back(nic({remote("10.0.0." + std::to_string(i), 120)}));
    other.push_back(nic({remote("10.0.0." + std::to_string(100 + i), 120)}));
  }
  CHECK(pairs_text(pair_nics(flat, other, 16)) == "0-0 1-1 2-2 ");
  CHECK(pairs_text(pair_nics(flat, std::span(other).first(1), 16)) == "0-0 1-0 2-0 ");
  CHECK(pairs_text(pair_nics(std::span(flat).first(1), other, 16)) == "0-0 0-1 0-2 ");
  CHECK(pair_nics(flat, {}, 16).empty());
  CHECK(pair_nics(std::vector{nic({})}, other, 16).empty());
}

TEST_CASE("xfer/rdma_gid: the MTU is the smaller of both ports and of the cap") {
  CHECK(negotiate_mtu(4096, 1024, 0) == 1024);
  CHECK(negotiate_mtu(1024, 4096, 0) == 1024);
  CHECK(negotiate_mtu(4096, 4096, 2048) == 2048);
  CHECK(negotiate_mtu(1024, 1024, 4096) == 1024);
}

TEST_CASE("xfer/rdma_gid: addresses print as people write them") {
  CHECK(gid_text(gid("10.0.0.1")) == "10.0.0.1");
  CHECK(gid_text(gid("fe80::1")) == "fe80::1");
}

TEST_CASE("xfer/rdma_gid: choices made anew keep the pair in use while both sides have it, however many are better") {
  const auto v4 = [](uint8_t c, uint8_t d) {
    return RdmaGid{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, c, d}, 120};
  };
  const auto gid = [&](uint8_t c, uint8_t d) { return v4(c, d).gid; };
  const std::vector<RdmaGid> local = {v4(0, 1), v4(9, 1)};
  const std::vector<RdmaGid> remote = {v4(0, 2), v4(9, 2)};
  const auto all = gid_choices(local, remote, 4);
  REQUIRE(all.size() == 4);
  CHECK(all[0] == GidChoice{gid(0, 1), gid(0, 2)});
  CHECK(all[1] == GidChoice{gid(9, 1), gid(9, 2)});
  const GidChoice used{gid(9, 1), gid(9, 2)};
  CHECK(gid_choices(local, remote, 1) == std::vector<GidChoice>{all[0]});
  CHECK(gid_choices(local, remote, 1, &used) == std::vector<GidChoice>{used});
  // its address is gone: it is not kept
  CHECK(gid_choices(std::vector{v4(0, 1)}, remote, 4, &used) ==
        std::vector<GidChoice>{{gid(0, 1), gid(0, 2)}, {gid(0, 1), gid(9, 2)}});
  CHECK(gid_choices({}, remote, 4, &used).empty());
}

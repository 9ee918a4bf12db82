// The choice of addresses and ports by which two processes reach each other over RDMA: pure functions that need no
// device. A RoCE port has a table of GIDs, and most entries are unsuitable (RoCE v1, a docker bridge, a removed
// address, link-local). Indices move when addresses come and go. A wrong choice fails late or not at all. So both sides
// send their usable GIDs, and the dialler picks the best pair.
//
//   usable   RoCE v2 (or InfiniBand), its netdev up and no container bridge, the address assigned to it
//   better   IPv4 > global IPv6 > unique-local IPv6 > link-local (only when nothing else is there)
//   best     both in one subnet
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire/rdma_frame.h"

namespace mc::xfer {

enum class GidType : uint8_t { infiniband, roce_v1, roce_v2 };
enum class GidScope : uint8_t { ipv4, global_ipv6, unique_local_ipv6, link_local };
std::string_view to_string(GidType type);
std::string_view to_string(GidScope scope);

/// One row of a port's table, with the system's data about its address.
struct GidEntry {
  uint32_t index = 0;
  wire::Gid gid{};
  GidType type = GidType::roce_v2;
  std::string netdev;
  bool netdev_up = false;
  bool assigned = false;  // the address is assigned to the netdev now
  uint8_t prefix = 128;   // number of subnet bits; IPv4-mapped: 96 + the IPv4 prefix
};

struct RankedGid {
  GidEntry entry;
  bool usable = false;
  std::string reason;  // why the entry is usable, or why not
};

GidScope gid_scope(const wire::Gid& gid);
/// A text such as "10.0.0.1" or "fe80::1".
std::string gid_text(const wire::Gid& gid);
/// All entries with their reasons, usable ones first, best first. With `only_index` >= 0 that entry is used regardless
/// of the rules, and no other.
std::vector<RankedGid> rank_gids(std::span<const GidEntry> entries, int only_index = -1);

struct GidPair {
  size_t local = 0;  // indices into both lists
  size_t remote = 0;
  bool common_subnet = false;
};
/// Pairs that may work, in the order of trying. Link-local addresses are used only when no other exists.
std::vector<GidPair> pair_gids(std::span<const wire::RdmaGid> local, std::span<const wire::RdmaGid> remote);

/// The best pairs by address, at most `limit`, best first. `keep`: a pair in use, which stays in the list as long as it
/// may work, however many are better.
struct GidChoice {
  wire::Gid local{};
  wire::Gid remote{};
  bool operator==(const GidChoice&) const = default;
};
std::vector<GidChoice> gid_choices(std::span<const wire::RdmaGid> local, std::span<const wire::RdmaGid> remote,
                                   size_t limit, const GidChoice* keep = nullptr);

struct NicPair {
  size_t local = 0;
  size_t remote = 0;
  std::vector<GidPair> gids;  // never empty
};
/// Rail-aligned pairs: each port with the peer's port in its subnet, by position among equals. Ports that remain share
/// one. At most `limit` pairs.
std::vector<NicPair> pair_nics(std::span<const wire::RdmaNic> local, std::span<const wire::RdmaNic> remote,
                               size_t limit);

/// The smallest of both ports' active MTUs and of `cap`, unless that is 0. If each side used its own MTU, the first
/// large message would fail with a length error.
uint16_t negotiate_mtu(uint16_t local, uint16_t remote, uint16_t cap);

}  // namespace mc::xfer

#include "xfer_rdma/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace mc::xfer {
namespace {

using wire::Gid;
using wire::RdmaGid;
using wire::RdmaNic;

constexpr Gid kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_mapped(const Gid& gid) {
  return std::equal(gid.begin(), gid.begin() + 12, kMapped.begin());
}

/// Whether containers or overlays made the interface. Such addresses reach no host outside this one.
bool is_bridge(const std::string& netdev) {
  constexpr std::array<std::string_view, 10> kPrefixes = {"docker", "br-",    "cni",   "flannel", "virbr",
                                                          "cali",   "podman", "kube-", "vxlan",   "lxc"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](auto prefix) { return netdev.starts_with(prefix); });
}

/// Why the entry is unusable; empty when it is usable.
std::string refusal_of(const GidEntry& entry) {
  if (entry.gid == Gid{}) return "empty entry";
  if (entry.type == GidType::infiniband) return {};
  if (entry.type == GidType::roce_v1) return "RoCE v1";
  if (entry.netdev.empty()) return "no network interface behind it";
  if (is_bridge(entry.netdev)) return entry.netdev + " is a container or overlay bridge";
  if (!entry.netdev_up) return entry.netdev + " is down";
  if (is_mapped(entry.gid) && entry.gid[12] == 127) return "loopback address";
  if (!entry.assigned) return "the address is not assigned to " + entry.netdev + " any more";
  return {};
}

bool same_prefix(const Gid& a, const Gid& b, unsigned bits) {
  for (unsigned at = 0; at < bits; at += 8) {
    const unsigned in_byte = std::min(8u, bits - at);
    const auto mask = static_cast<uint8_t>(0xff << (8 - in_byte));
    if ((a[at / 8] & mask) != (b[at / 8] & mask)) return false;
  }
  return true;
}

/// Whether each address is in the subnet of the other.
bool in_common_subnet(const RdmaGid& a, const RdmaGid& b) {
  return is_mapped(a.gid) == is_mapped(b.gid) && same_prefix(a.gid, b.gid, std::max(a.prefix, b.prefix));
}

bool link_local(const RdmaGid& gid) {
  return gid_scope(gid.gid) == GidScope::link_local;
}

}  // namespace

std::string_view to_string(GidType type) {
  switch (type) {
    case GidType::infiniband: return "InfiniBand";
    case GidType::roce_v1: return "RoCE v1";
    case GidType::roce_v2: return "RoCE v2";
  }
  return "unknown";
}

std::string_view to_string(GidScope scope) {
  switch (scope) {
    case GidScope::ipv4: return "IPv4";
    case GidScope::global_ipv6: return "global IPv6";
    case GidScope::unique_local_ipv6: return "unique-local IPv6";
    case GidScope::link_local: return "link-local";
  }
  return "unknown";
}

GidScope gid_scope(const Gid& gid) {
  if (is_mapped(gid)) return gid[12] == 169 && gid[13] == 254 ? GidScope::link_local : GidScope::ipv4;
  if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80) return GidScope::link_local;
  if ((gid[0] & 0xfe) == 0xfc) return GidScope::unique_local_ipv6;
  return GidScope::global_ipv6;
}

std::string gid_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (is_mapped(gid))
    (void)::inet_ntop(AF_INET, gid.data() + 12, text, sizeof text);
  else
    (void)::inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

std::vector<RankedGid> rank_gids(std::span<const GidEntry> entries, int only_index) {
  std::vector<RankedGid> out;
  for (const GidEntry& entry : entries) {
    RankedGid ranked{.entry = entry};
    std::string refusal = refusal_of(entry);
    if (only_index >= 0) {
      ranked.usable = entry.index == static_cast<uint32_t>(only_index) && entry.gid != Gid{};
      ranked.reason = ranked.usable ? "chosen by option" + (refusal.empty() ? "" : ", though " + refusal)
                                    : "not the index chosen by option";
    } else {
      ranked.usable = refusal.empty();
      ranked.reason = refusal.empty() ? std::string(to_string(gid_scope(entry.gid))) + " on " +
                                            (entry.netdev.empty() ? "the port" : entry.netdev)
                                      : std::move(refusal);
    }
    out.push_back(std::move(ranked));
  }
  std::stable_sort(out.begin(), out.end(), [](const RankedGid& a, const RankedGid& b) {
    if (a.usable != b.usable) return a.usable;
    return gid_scope(a.entry.gid) < gid_scope(b.entry.gid);
  });
  return out;
}

std::vector<GidPair> pair_gids(std::span<const RdmaGid> local, std::span<const RdmaGid> remote) {
  std::vector<GidPair> out;
  const auto collect = [&](bool local_scope) {
    for (size_t i = 0; i < local.size(); ++i)
      for (size_t k = 0; k < remote.size(); ++k) {
        if (is_mapped(local[i].gid) != is_mapped(remote[k].gid)) continue;
        if (link_local(local[i]) != local_scope || link_local(remote[k]) != local_scope) continue;
        out.push_back({i, k, in_common_subnet(local[i], remote[k])});
      }
  };
  collect(false);
  if (out.empty()) collect(true);
  std::stable_sort(out.begin(), out.end(), [](const GidPair& a, const GidPair& b) {
    if (a.common_subnet != b.common_subnet) return a.common_subnet;
    return a.local + a.remote < b.local + b.remote;  // the lists are best first
  });
  return out;
}

std::vector<GidChoice> gid_choices(std::span<const RdmaGid> local, std::span<const RdmaGid> remote, size_t limit,
                                   const GidChoice* keep) {
  std::vector<GidChoice> out;
  for (const GidPair& pair : pair_gids(local, remote)) {
    const GidChoice choice{local[pair.local].gid, remote[pair.remote].gid};
    if (out.size() < limit)
      out.push_back(choice);
    else if (keep != nullptr && choice == *keep)
      out.back() = choice;
  }
  return out;
}

std::vector<NicPair> pair_nics(std::span<const RdmaNic> local, std::span<const RdmaNic> remote, size_t limit) {
  struct Candidate {
    NicPair pair;
    size_t distance;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < local.size(); ++i)
    for (size_t k = 0; k < remote.size(); ++k) {
      auto gids = pair_gids(local[i].gids, remote[k].gids);
      if (!gids.empty()) candidates.push_back({{i, k, std::move(gids)}, i > k ? i - k : k - i});
    }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    const bool a_near = a.pair.gids[0].common_subnet;
    const bool b_near = b.pair.gids[0].common_subnet;
    if (a_near != b_near) return a_near;
    return a.distance < b.distance;
  });
  std::vector<bool> local_used(local.size()), remote_used(remote.size());
  std::vector<NicPair> out;
  // First every port with a port of its own, then the remaining ports with a shared one, if it is near.
  for (const bool sharing : {false, true})
    for (const Candidate& candidate : candidates) {
      const size_t i = candidate.pair.local, k = candidate.pair.remote;
      if (out.size() >= limit) break;
      if (sharing && !candidate.pair.gids[0].common_subnet) continue;
      if (sharing ? local_used[i] && remote_used[k] : local_used[i] || remote_used[k]) continue;
      local_used[i] = remote_used[k] = true;
      out.push_back(candidate.pair);
    }
  std::sort(out.begin(), out.end(), [](const NicPair& a, const NicPair& b) {
    return a.local != b.local ? a.local < b.local : a.remote < b.remote;
  });
  return out;
}

uint16_t negotiate_mtu(uint16_t local, uint16_t remote, uint16_t cap) {
  const uint16_t both = std::min(local, remote);
  return cap == 0 ? both : std::min(both, cap);
}

}  // namespace mc::xfer

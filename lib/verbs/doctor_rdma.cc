// The doctor's findings about RDMA: every device, port and address with its reason and the next step.
#include "base/assert.h"
#include "base/units.h"
#include "verbs/doctor.h"
#include "xfer_rdma/gid.h"

namespace mc::verbs {

std::string_view link_name(const xfer::RdmaPortReport& port) {
  if (port.state.empty()) return "";
  return port.ethernet ? "Ethernet" : "InfiniBand";
}

namespace {

constexpr uint64_t kAnySize = uint64_t{1} << 60;  // devices without a limit report large numbers of all kinds

/// How to get a device where the machine has none that works.
std::string soft_roce(const HostFacts& host) {
  const std::string netdev = host.netdev.empty() ? "NETDEV" : host.netdev;
  return "for soft-RoCE, as root: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev " + netdev;
}

Finding no_device(const xfer::RdmaReport& rdma, const HostFacts& host, bool wanted) {
  MC_ASSERT(rdma.devices.empty() && !rdma.usable);
  Finding out{.area = Area::rdma, .name = "devices", .verdict = wanted ? Verdict::fix : Verdict::note};
  out.what = rdma.reason.empty() ? "no RDMA device" : rdma.reason;
  if (host.verbs_devices > 0 && host.verbs_readable == 0) {
    out.what += "; " + std::to_string(host.verbs_devices) + " device files that this user may not open";
    out.next = "ls -l /dev/infiniband; join the group that owns uverbs*, or pass them into the container";
    return out;
  }
  if (!wanted) out.what += ": tcp and shm are used";
  out.next = soft_roce(host) + (host.verbs_loaded ? "" : " (a NIC also needs its driver and rdma-core)");
  return out;
}

Finding device(const xfer::RdmaDeviceReport& device, const DoctorPlan& plan, bool any_usable, bool wanted) {
  Finding out{.area = Area::rdma, .name = device.name};
  if (device.ports.empty()) {
    out.verdict = !any_usable && wanted ? Verdict::fix : Verdict::note;
    out.what = device.reason;
    out.next = "ls -l /dev/infiniband; run as a user that may open uverbs*";
    return out;
  }
  const uint64_t most = device.mr_bytes_max;
  out.what = "regions of " + (most >= kAnySize ? std::string("any size") : "up to " + human_bytes(most)) + ", " +
             std::to_string(device.queue_pairs_max) + " queue pairs of " + std::to_string(device.work_requests_max) +
             " requests, " + std::to_string(device.gather_max) + " pieces each, " +
             std::to_string(device.read_depth_max) + " reads in flight" +
             (device.numa_node >= 0 ? ", NUMA node " + std::to_string(device.numa_node) : "") +
             (device.pci.empty() ? ", software" : "");
  if (most > 0 && most < plan.memory_bytes) out.what += "; larger pools are registered in parts";
  return out;
}

Finding port(const xfer::RdmaDeviceReport& device, const xfer::RdmaPortReport& port, bool any_usable, bool wanted) {
  Finding out{.area = Area::rdma, .name = device.name + ":" + std::to_string(port.port)};
  if (!port.usable) {
    out.verdict = any_usable || !wanted ? Verdict::note : Verdict::fix;
    out.what = port.reason;
    const std::string netdev = port.gids.empty() ? "" : port.gids[0].entry.netdev;
    const bool is_known = !port.state.empty();
    if (is_known && !port.active && !netdev.empty() && !port.gids[0].entry.netdev_up)
      out.next = "ip link set " + netdev + " up";
    else if (is_known && !port.active)
      out.next = "check cable, switch port and other end" + (netdev.empty() ? "" : " of " + netdev);
    else if (is_known)
      out.next = "ip addr add ADDRESS/PREFIX dev " + (netdev.empty() ? "NETDEV" : netdev);
    return out;
  }
  out.what = std::string(link_name(port)) + ", " + port.reason;
  if (port.gbits_per_s > 0) out.what += ", nominal " + std::to_string(static_cast<int>(port.gbits_per_s)) + " Gb/s";
  out.what += ", MTU " + std::to_string(port.mtu);
  // An RDMA packet has up to 84 bytes of headers, checksum and a VLAN tag around its payload.
  if (port.ethernet && port.mtu < port.mtu_max && port.mtu < 4096) {
    out.verdict = Verdict::note;
    out.what += " of " + std::to_string(port.mtu_max) + ": small packets cost bandwidth";
    const std::string netdev = port.gids.empty() ? "NETDEV" : port.gids[0].entry.netdev;
    out.next = "ip link set " + netdev + " mtu 4200 (9000 where the switches carry it), on both ends";
  }
  return out;
}

Finding gid(const std::string& where, const xfer::RankedGid& ranked, bool port_usable, bool best) {
  const xfer::GidEntry& entry = ranked.entry;
  Finding out{.area = Area::rdma, .name = where + " gid " + std::to_string(entry.index)};
  if (!ranked.usable || !port_usable) out.verdict = Verdict::unused;
  out.what = xfer::gid_text(entry.gid) + ": " + ranked.reason + (best ? ", first choice" : "");
  return out;
}

}  // namespace

std::vector<Finding> judge_rdma(const xfer::RdmaReport& rdma, const HostFacts& host, const DoctorPlan& plan) {
  // Under auto, a host that has a device gets the reason why the device is not used.
  const bool wanted = plan.wants("rdma") || (plan.options.transport == "auto" && !rdma.devices.empty());
  if (rdma.devices.empty()) return {no_device(rdma, host, wanted)};
  std::vector<Finding> out;
  for (const auto& one : rdma.devices) {
    out.push_back(device(one, plan, rdma.usable, wanted));
    for (const auto& each : one.ports) {
      out.push_back(port(one, each, rdma.usable, wanted));
      MC_ASSERT(!each.usable || one.usable);
      bool best = each.usable;
      for (const auto& ranked : each.gids) {
        out.push_back(gid(one.name + ":" + std::to_string(each.port), ranked, each.usable, best));
        best = false;
      }
    }
  }
  return out;
}

}  // namespace mc::verbs

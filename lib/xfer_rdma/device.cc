// Devices, ports and GIDs through libibverbs and the system's tables.
#include "xfer_rdma/device.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/fd.h"
#include "xfer_rdma/verbs.h"

namespace mc::xfer {
namespace {

struct DeviceList {
  int count = 0;
  ibv_device** devices = nullptr;
  int error = 0;
  DeviceList() {
    devices = ::ibv_get_device_list(&count);
    if (devices == nullptr) error = errno;
  }
  ~DeviceList() {
    if (devices != nullptr) ::ibv_free_device_list(devices);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
};

struct InterfaceAddress {
  std::string netdev;
  bool up = false;
  wire::Gid gid{};
  uint8_t prefix = 0;
};

uint8_t ones(const void* mask, size_t bytes) {
  unsigned count = 0;
  for (size_t i = 0; i < bytes; ++i)
    count += static_cast<unsigned>(std::popcount(static_cast<const uint8_t*>(mask)[i]));
  return static_cast<uint8_t>(count);
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return out;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    InterfaceAddress address{.netdev = at->ifa_name, .up = (at->ifa_flags & IFF_UP) != 0};
    if (at->ifa_addr != nullptr && at->ifa_netmask != nullptr && at->ifa_addr->sa_family == AF_INET) {
      address.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
      std::memcpy(address.gid.data() + 12, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, 4);
      address.prefix =
          static_cast<uint8_t>(96 + ones(&reinterpret_cast<const sockaddr_in*>(at->ifa_netmask)->sin_addr, 4));
    } else if (at->ifa_addr != nullptr && at->ifa_netmask != nullptr && at->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(address.gid.data(), &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr, 16);
      address.prefix = ones(&reinterpret_cast<const sockaddr_in6*>(at->ifa_netmask)->sin6_addr, 16);
    }
    out.push_back(std::move(address));
  }
  ::freeifaddrs(list);
  return out;
}

std::vector<GidEntry> query_gids(ibv_context* context, uint8_t port) {
  std::vector<ibv_gid_entry> table(1024);
  const ssize_t count = ::ibv_query_gid_table(context, table.data(), table.size(), 0);
  const auto addresses = interface_addresses();
  std::vector<GidEntry> out;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& row = table[static_cast<size_t>(i)];
    if (row.port_num != port) continue;
    GidEntry entry{.index = row.gid_index};
    std::memcpy(entry.gid.data(), row.gid.raw, entry.gid.size());
    entry.type = row.gid_type == IBV_GID_TYPE_IB        ? GidType::infiniband
                 : row.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::roce_v1
                                                        : GidType::roce_v2;
    if (entry.type == GidType::infiniband) entry.prefix = 64;
    char name[IF_NAMESIZE] = "";
    if (row.ndev_ifindex != 0 && ::if_indextoname(row.ndev_ifindex, name) != nullptr) entry.netdev = name;
    for (const auto& address : addresses) {
      if (address.netdev != entry.netdev) continue;
      entry.netdev_up = address.up;
      if (address.prefix == 0 || address.gid != entry.gid) continue;
      entry.assigned = true;
      entry.prefix = address.prefix;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

double gbits(const ibv_port_attr& attr) {
  constexpr std::array<std::pair<int, double>, 8> kLane = {
      {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}}};
  constexpr std::array<std::pair<int, int>, 5> kWidth = {{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}}};
  double lane = 0;
  for (const auto& [code, value] : kLane)
    if (code == attr.active_speed) lane = value;
  for (const auto& [code, value] : kWidth)
    if (code == attr.active_width) return lane * value;
  return 0;
}

/// Whether `wanted`, such as "mlx5_0,mlx5_1:1", names the port. An empty list names every port.
bool named(const std::string& wanted, const std::string& device, int port) {
  if (wanted.empty()) return true;
  std::string_view rest = wanted;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item == device || item == device + ":" + std::to_string(port)) return true;
  }
  return false;
}

RdmaPortReport report_port(ibv_context* context, const std::string& device, uint8_t number, const Options& options) {
  RdmaPortReport port{.port = number};
  ibv_port_attr attr{};
  if (const int rc = ::ibv_query_port(context, number, &attr); rc != 0) {
    port.reason = errno_error("query port", rc).what;
    return port;
  }
  port.state = ::ibv_port_state_str(attr.state);
  port.active = attr.state == IBV_PORT_ACTIVE;
  port.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.mtu = from_verbs_mtu(attr.active_mtu);
  port.mtu_max = from_verbs_mtu(attr.max_mtu);
  port.lid = attr.lid;
  port.gbits_per_s = gbits(attr);
  port.gids = rank_gids(query_gids(context, number), options.rdma_gid_index);
  if (!named(options.rdma_devices, device, number))
    port.reason = "not named by the rdma devices option";
  else if (!port.active)
    port.reason = "the port is " + port.state + ": check the link and its network interface";
  else if (port.gids.empty() || !port.gids[0].usable)
    port.reason = "no usable address" +
                  (port.gids.empty() ? std::string(": the GID table is empty")
                                     : ", e.g. " + gid_text(port.gids[0].entry.gid) + ": " + port.gids[0].reason);
  else
    port.usable = true;
  if (port.usable) port.reason = gid_text(port.gids[0].entry.gid) + ", " + port.gids[0].reason;
  return port;
}

void report_sysfs(RdmaDeviceReport& device) {
  DevicePlace place = place_of_rdma_device(device.name);
  device.pci = std::move(place.pci);
  device.numa_node = place.numa_node;
}

RdmaDeviceReport report_device(ibv_device* verbs, const Options& options) {
  RdmaDeviceReport device{.name = ::ibv_get_device_name(verbs)};
  report_sysfs(device);
  const Verbs<ibv_context> context(::ibv_open_device(verbs));
  if (!context) {
    device.reason =
        errno_error("open " + device.name).what + ": is /dev/infiniband/uverbs* there, and may this user open it?";
    return device;
  }
  ibv_device_attr limits{};
  if (const int rc = ::ibv_query_device(context.get(), &limits); rc != 0) {
    device.reason = errno_error("query " + device.name, rc).what;
    return device;
  }
  device.mr_bytes_max = limits.max_mr_size;
  device.queue_pairs_max = static_cast<uint32_t>(limits.max_qp);
  device.work_requests_max = static_cast<uint32_t>(limits.max_qp_wr);
  device.completions_max = static_cast<uint32_t>(limits.max_cqe);
  device.gather_max = static_cast<uint32_t>(limits.max_sge);
  device.read_depth_max = static_cast<uint32_t>(limits.max_qp_rd_atom);
  for (uint8_t number = 1; number <= limits.phys_port_cnt; ++number)
    device.ports.push_back(report_port(context.get(), device.name, number, options));
  for (const auto& port : device.ports) {
    device.usable |= port.usable;
    device.reason += (device.reason.empty() ? "port " : "; port ") + std::to_string(port.port) + ": " + port.reason;
  }
  return device;
}

GpuChoice report_gpu(const DeviceList& list) {
  GpuFacts facts = gpu_facts();
  facts.verbs_dmabuf = facts.devices > 0 && list.count > 0;
  for (int i = 0; i < list.count && facts.verbs_dmabuf; ++i) {
    const auto device = RdmaDevice::open(list.devices[i]);
    facts.verbs_dmabuf = device.has_value() && (*device)->takes_dmabuf();
  }
  return choose_gpu_path(facts);
}

/// Whether CAP_IPC_LOCK exempts this process from the limit.
bool exempt_from_memlock() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word)
    if (word == "CapEff:" && file >> word) return (std::strtoull(word.c_str(), nullptr, 16) >> 14 & 1) != 0;
  return false;
}

}  // namespace

void VerbsFree::operator()(ibv_context* object) const {
  (void)::ibv_close_device(object);
}
void VerbsFree::operator()(ibv_pd* object) const {
  (void)::ibv_dealloc_pd(object);
}
void VerbsFree::operator()(ibv_comp_channel* object) const {
  (void)::ibv_destroy_comp_channel(object);
}
void VerbsFree::operator()(ibv_mr* object) const {
  (void)::ibv_dereg_mr(object);
}
void VerbsFree::operator()(ibv_cq* object) const {
  (void)::ibv_destroy_cq(object);
}
void VerbsFree::operator()(ibv_qp* object) const {
  (void)::ibv_destroy_qp(object);
}

ibv_mtu to_verbs_mtu(uint16_t bytes) {
  return static_cast<ibv_mtu>(std::bit_width(bytes) - 8);  // 256 -> 1 ... 4096 -> 5
}
uint16_t from_verbs_mtu(ibv_mtu mtu) {
  return static_cast<uint16_t>(128u << mtu);
}

Result<std::unique_ptr<RdmaDevice>> RdmaDevice::open(ibv_device* verbs) {
  auto device = std::make_unique<RdmaDevice>();
  device->name_ = ::ibv_get_device_name(verbs);
  const auto failed = [&](const char* what, int error) {
    return errno_error("rdma: " + device->name_ + ": " + what, error);
  };
  device->context_.reset(::ibv_open_device(verbs));
  if (!device->context_) return failed("open", errno);
  if (const int rc = ::ibv_query_device(device->context(), &device->limits_); rc != 0) return failed("query", rc);
  device->domain_.reset(::ibv_alloc_pd(device->context()));
  if (!device->domain_) return failed("allocate a protection domain", errno);
  device->channel_.reset(::ibv_create_comp_channel(device->context()));
  if (!device->channel_) return failed("create a completion channel", errno);
  MC_CHECK(set_nonblocking(device->channel_->fd, true));
  MC_CHECK(set_nonblocking(device->context()->async_fd, true));
  return device;
}

Result<std::unique_ptr<RdmaDevice>> RdmaDevice::open(const std::string& name) {
  const DeviceList list;
  for (int i = 0; i < list.count; ++i)
    if (name == ::ibv_get_device_name(list.devices[i])) return open(list.devices[i]);
  return Error{Code::not_found, "rdma: there is no device " + name + " (any more)"};
}

bool RdmaDevice::takes_dmabuf() const {
  // Descriptor -1 is invalid. A driver that supports dma-bufs reports it, other drivers refuse the call.
  const Verbs<ibv_mr> none(::ibv_reg_dmabuf_mr(domain(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE));
  return none != nullptr || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT);
}

void RdmaPort::refresh(int only_gid) {
  ibv_port_attr attr{};
  active = false;
  if (device->failed || ::ibv_query_port(device->context(), number, &attr) != 0) return;
  ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  active = attr.state == IBV_PORT_ACTIVE;
  lid = attr.lid;
  mtu = from_verbs_mtu(attr.active_mtu);
  gids.clear();
  auto entries = query_gids(device->context(), number);
  // While the link is down, paths are planned with the addresses that it will probably come back with.
  if (!active)
    for (GidEntry& entry : entries) entry.netdev_up = true;
  for (const RankedGid& ranked : rank_gids(entries, only_gid))
    if (ranked.usable && gids.size() < wire::kRdmaGidsMax) gids.push_back(ranked.entry);
}

wire::RdmaNic RdmaPort::describe() const {
  wire::RdmaNic nic{.name = device->name(), .port = number, .active = active, .lid = lid, .mtu = mtu};
  nic.rd_atomic = static_cast<uint8_t>(std::clamp(device->limits().max_qp_rd_atom, 1, 16));
  for (const GidEntry& entry : gids) nic.gids.push_back({entry.gid, entry.prefix});
  return nic;
}

const GidEntry* RdmaPort::find(const wire::Gid& gid) const {
  for (const GidEntry& entry : gids)
    if (entry.gid == gid) return &entry;
  return nullptr;
}

Result<RdmaHardware> open_hardware(const Options& options) {
  (void)::ibv_fork_init();  // before any registration: a child must not share pinned pages copy-on-write
  RdmaHardware hardware;
  const DeviceList list;
  for (int i = 0; i < list.count; ++i) {
    const std::string name = ::ibv_get_device_name(list.devices[i]);
    auto opened = RdmaDevice::open(list.devices[i]);
    if (!opened) continue;                                    // the probe reported the reason
    std::shared_ptr<RdmaDevice> device = std::move(*opened);  // shared, see RdmaHardware
    bool wanted = false;
    for (uint8_t number = 1; number <= device->limits().phys_port_cnt; ++number) {
      if (!named(options.rdma_devices, name, number) || hardware.ports.size() >= wire::kRdmaNicsMax) continue;
      RdmaPort port{.device = device, .number = number, .place = place_of_rdma_device(name)};
      port.refresh(options.rdma_gid_index);
      if (port.mtu == 0) continue;
      hardware.ports.push_back(std::move(port));
      wanted = true;
    }
    if (wanted) hardware.devices.push_back(std::move(device));
  }
  if (hardware.ports.empty()) return Error{Code::unsupported, "rdma: no port could be opened"};
  return hardware;
}

RdmaReport rdma_report(const Options& options) {
  RdmaReport report;
  rlimit limit{};
  report.memlock_bytes =
      ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && !exempt_from_memlock()
          ? limit.rlim_cur
          : UINT64_MAX;
  const DeviceList list;
  report.gpu = report_gpu(list);
  if (list.devices == nullptr || list.count == 0) {
    report.reason = "no RDMA device" + (list.error == 0 || list.error == ENOSYS
                                            ? std::string(" on this machine")
                                            : ": " + errno_error("list devices", list.error).what);
    return report;
  }
  for (int i = 0; i < list.count; ++i) {
    report.devices.push_back(report_device(list.devices[i], options));
    const auto& device = report.devices.back();
    report.usable |= device.usable;
    report.reason += (report.reason.empty() ? "" : "; ") + device.name + ": " + device.reason;
  }
  return report;
}

}  // namespace mc::xfer

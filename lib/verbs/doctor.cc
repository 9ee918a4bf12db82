#include "verbs/doctor.h"

#include <algorithm>

#include "base/assert.h"
#include "base/table.h"
#include "transports/transports.h"
#include "xfer_rdma/gid.h"

namespace mc::verbs {

std::string_view to_string(Area area) {
  static constexpr std::string_view kNames[] = {"rdma", "limits", "memory", "gpu", "transport", "peer"};
  return kNames[static_cast<size_t>(area)];
}

namespace {

Json optional_number(const std::optional<uint64_t>& value) {
  return value && *value != UINT64_MAX ? Json(*value) : Json(nullptr);
}

Json to_json(const xfer::RdmaPortReport& port) {
  Json out = Json::object({{"port", port.port}, {"usable", port.usable}, {"reason", port.reason}});
  out.set("state", port.state).set("link", link_name(port)).set("mtu", port.mtu).set("mtu_max", port.mtu_max);
  out.set("gbits_per_s", port.gbits_per_s);
  Json gids = Json::array();
  for (const auto& ranked : port.gids) {
    const xfer::GidEntry& entry = ranked.entry;
    Json gid = Json::object({{"index", entry.index}, {"address", xfer::gid_text(entry.gid)}});
    gid.set("kind", xfer::to_string(entry.type)).set("scope", xfer::to_string(xfer::gid_scope(entry.gid)));
    gid.set("netdev", entry.netdev).set("usable", ranked.usable).set("reason", ranked.reason);
    gids.push(std::move(gid));
  }
  return std::move(out.set("gids", std::move(gids)));
}

Json to_json(const xfer::RdmaReport& report) {
  Json devices = Json::array();
  for (const auto& device : report.devices) {
    Json ports = Json::array();
    for (const auto& port : device.ports) ports.push(to_json(port));
    Json out = Json::object({{"device", device.name}, {"usable", device.usable}, {"reason", device.reason}});
    out.set("numa_node", device.numa_node >= 0 ? Json(device.numa_node) : Json(nullptr));
    out.set("mr_bytes_max", device.mr_bytes_max <= INT64_MAX ? Json(device.mr_bytes_max) : Json(nullptr))
        .set("queue_pairs_max", device.queue_pairs_max);
    out.set("work_requests_max", device.work_requests_max).set("ports", std::move(ports));
    devices.push(std::move(out));
  }
  return devices;
}

Json limits_json(const HostFacts& host) {
  Json out = Json::object({{"memlock_bytes", optional_number(host.memlock)}});
  out.set("memlock_applies", !host.lock_capable && host.memlock != UINT64_MAX);
  out.set("open_files", optional_number(host.open_files)).set("map_count_max", optional_number(host.map_count_max));
  out.set("memory_available_bytes", optional_number(host.memory_available));
  out.set("huge_page_bytes", host.huge_page_bytes).set("huge_pages", host.huge_pages);
  out.set("huge_pages_free", host.huge_pages_free).set("transparent_pages", host.transparent_pages);
  out.set("shared_pages", host.shared_pages).set("numa_nodes", host.numa_nodes);
  return std::move(out.set("kernel", host.kernel));
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::good: return "ok";
    case Verdict::unused: return "unused";
    case Verdict::note: return "note";
    case Verdict::fix: return "fix";
  }
  MC_ASSERT(false);
  return "";
}

bool DoctorPlan::wants(std::string_view scheme) const {
  std::string_view rest = options.transport;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    if (item == scheme) return true;
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
  }
  return false;
}

Diagnosis diagnose(const DoctorPlan& plan) {
  Diagnosis out;
  out.host = read_host();
  out.rdma = xfer::rdma_report(plan.options);
  for (const auto* entry : xfer::transports()) {
    const xfer::Reach reach = entry->probe(plan.options);
    out.transports.push_back({entry->scheme, reach.usable, reach.reason});
  }
  MC_ASSERT_EQ(out.transports.size(), xfer::transports().size());
  out.tcp_ios = xfer::tcp_io_report();
  MC_ASSERT(!out.tcp_ios.empty());
  for (const gpu::DeviceChoice& device : plan.devices)
    if (device.kind != gpu::DeviceKind::cpu) out.copies.push_back(measure_copies(device));
  for (const std::string& peer : plan.peers)
    for (PeerCheck& check : check_peer(peer, plan)) out.peers.push_back(std::move(check));
  const auto add = [&](std::vector<Finding> found) {
    for (Finding& finding : found) out.findings.push_back(std::move(finding));
  };
  add(judge_transports(out.transports, plan));
  add(judge_tcp_io(out.tcp_ios));
  add(judge_rdma(out.rdma, out.host, plan));
  add(judge_host(out.host, out.rdma, plan));
  add(judge_copies(out.copies, out.rdma));
  add(judge_peers(out.peers, plan));
  MC_ASSERT_LE(out.transports.size() + out.peers.size(), out.findings.size());
  return out;
}

std::vector<Finding> judge_transports(const std::vector<TransportCheck>& transports, const DoctorPlan& plan) {
  std::vector<Finding> out;
  for (const TransportCheck& check : transports) {
    Finding finding{.area = Area::transport, .name = check.transport, .what = check.reason};
    if (check.usable) {
      finding.what = check.reason.empty() ? "usable" : "usable: " + check.reason;
    } else {
      finding.verdict = plan.wants(check.transport) ? Verdict::fix : Verdict::unused;
      if (finding.verdict == Verdict::fix) finding.next = "the lines below say why; or leave it out of --transport";
    }
    out.push_back(std::move(finding));
  }
  return out;
}

/// The first is what every machine has and auto takes: nothing to say about it.
std::vector<Finding> judge_tcp_io(const std::vector<xfer::TcpIoReport>& ways) {
  std::vector<Finding> out;
  MC_ASSERT(ways.empty() || ways[0].trouble.empty());
  for (size_t i = 1; i < ways.size(); ++i) {
    const xfer::TcpIoReport& way = ways[i];
    Finding finding{.area = Area::transport, .name = "tcp over " + way.name};
    finding.verdict = way.trouble.empty() ? Verdict::good : Verdict::unused;
    finding.what =
        way.trouble.empty() ? "usable with --tcp-io " + way.name + "; auto takes " + ways[0].name : way.trouble;
    out.push_back(std::move(finding));
  }
  return out;
}

namespace {

/// The text in lines of at most 80 columns, all but the first behind `indent`.
std::string wrapped(std::string_view text, const std::string& indent) {
  std::string out, start;
  while (start.size() + text.size() > kTerminalColumns) {
    const size_t space = text.rfind(' ', kTerminalColumns - start.size());
    if (space == std::string_view::npos || space < (start.empty() ? indent.size() : 1)) break;
    out += start + std::string(text.substr(0, space)) + "\n";
    text.remove_prefix(space + 1);
    start = indent;
  }
  return out + start + std::string(text) + "\n";
}

}  // namespace

std::string findings_text(const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& finding : findings)
    width = std::max(width, to_string(finding.area).size() + 1 + finding.name.size());
  std::string out;
  for (const Finding& finding : findings) {
    std::string state(to_string(finding.verdict));
    std::string head = std::string(to_string(finding.area)) + " " + finding.name;
    state.resize(8, ' ');
    MC_ASSERT_LE(head.size(), width);
    MC_ASSERT(!finding.what.empty());
    head.resize(width + 2, ' ');
    out += wrapped(state + head + finding.what, std::string(8 + width + 2, ' '));
    // A command stays on one line: it is copied.
    if (!finding.next.empty()) out += std::string(8, ' ') + "-> " + finding.next + "\n";
  }
  return out;
}

Json to_json(const Finding& finding) {
  MC_ASSERT(!finding.name.empty());
  Json out = Json::object({{"type", "finding"}, {"area", to_string(finding.area)}, {"name", finding.name}});
  out.set("verdict", to_string(finding.verdict)).set("what", finding.what);
  return std::move(out.set("next", finding.next.empty() ? Json(nullptr) : Json(finding.next)));
}

void describe(const Diagnosis& diagnosis, Json& result) {
  Json transports = Json::array();
  for (const auto& check : diagnosis.transports) {
    Json transport = Json::object({{"transport", check.transport}, {"usable", check.usable}});
    transports.push(std::move(transport.set("reason", check.reason.empty() ? "usable" : check.reason)));
  }
  Json peers = Json::array();
  for (const auto& check : diagnosis.peers) {
    Json peer = Json::object({{"peer", check.peer}, {"uri", check.uri}, {"transport", check.transport}});
    peer.set("usable", check.usable).set("asked_for", !check.alternative).set("reason", check.reason);
    peers.push(std::move(peer.set("connect_ms", check.usable ? Json(check.connect_ms) : Json(nullptr))));
  }
  Json copies = Json::array();
  for (const CopyRates& rates : diagnosis.copies) {
    Json out = Json::object({{"device", rates.device}, {"emulated", rates.emulated}});
    out.set("out_bytes_per_s", rates.trouble ? Json(nullptr) : Json(rates.out_bytes_per_s));
    out.set("in_bytes_per_s", rates.trouble ? Json(nullptr) : Json(rates.in_bytes_per_s));
    copies.push(std::move(out.set("reason", rates.trouble ? Json(rates.trouble->what) : Json(nullptr))));
  }
  Json findings = Json::array();
  for (const Finding& finding : diagnosis.findings) findings.push(to_json(finding));
  const auto count = [&](Verdict verdict) {
    return std::count_if(diagnosis.findings.begin(), diagnosis.findings.end(),
                         [&](const Finding& finding) { return finding.verdict == verdict; });
  };
  result.set("transports", std::move(transports)).set("rdma", to_json(diagnosis.rdma));
  result.set("gpu_path", xfer::to_string(diagnosis.rdma.gpu.path)).set("gpu_reason", diagnosis.rdma.gpu.reason);
  result.set("limits", limits_json(diagnosis.host)).set("copies", std::move(copies));
  result.set("peers", std::move(peers));
  result.set("findings", std::move(findings)).set("notes", count(Verdict::note)).set("to_fix", count(Verdict::fix));
}

}  // namespace mc::verbs

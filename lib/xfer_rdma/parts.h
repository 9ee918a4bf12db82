// The state that the parts of the rdma transport share (internal). It belongs to the thread that has the loop's turn,
// except where a class says otherwise.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "xfer/poller.h"
#include "xfer_rdma/connector.h"
#include "xfer_rdma/endpoint.h"
#include "xfer_rdma/pool.h"
#include "xfer_rdma/reaper.h"

namespace mc::xfer {

struct RdmaParts {
  RdmaParts(Services& at, uint8_t number) : services(at), index(number), pool(at.options->rdma_pairs_max) {}

  /// Makes tick() due at that time or before.
  void due(TimePoint at) { due_at = std::min(due_at, at); }
  size_t row() const { return index - 1u; }
  RdmaEndpoint* find(EndpointId id) const {
    const auto at = endpoints.find(id);
    return at == endpoints.end() ? nullptr : at->second.get();
  }
  /// The ports of this process, as sent to peers.
  wire::RdmaNics nics() const {
    wire::RdmaNics nics;
    for (const RdmaPort& port : hardware.ports) nics.nics.push_back(port.describe());
    return nics;
  }
  size_t device_of(size_t port) const {
    const auto& device = hardware.ports[port].device;
    size_t index = 0;
    while (index < hardware.devices.size() && hardware.devices[index] != device) ++index;
    return index;
  }
  RdmaPort& port_of(const RdmaRail& rail) { return hardware.ports[rail.local]; }
  std::string name_of(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
    const auto& nics = endpoint.keyring.nics();
    return hardware.ports[rail.local].name() + "-" + (rail.remote < nics.size() ? nics[rail.remote].name : "?");
  }
  /// The number of paths that a connection with `lanes` lanes a path may have.
  size_t paths_max(size_t lanes) const {
    const size_t most = services.options->rdma_pairs_max / std::max<size_t>(lanes, 1);
    return std::max<size_t>(1, std::min(wire::kRdmaPathsMax, most));
  }
  /// Requests the paths of the connection. RdmaResting handles it in this turn or in the next.
  void want(RdmaEndpoint& endpoint) {
    endpoint.rest.wanted = true;
    due(now());
  }
  /// Whether the connection has queue pairs and keeps them.
  bool awake(const RdmaEndpoint& endpoint) const { return pool.holds(endpoint.id) && !endpoint.rest.resting; }

  Services& services;
  const uint8_t index;
  // Destroyed in reverse order: endpoints (lanes), then what is left of them, then memory, then devices.
  RdmaHardware hardware;
  RdmaMemory memory;
  RdmaReaper reaper;
  RdmaConnector connector;
  // Paths of closed connections, while their queue pairs are being connected.
  std::vector<std::unique_ptr<RdmaRail>> orphans;
  std::map<EndpointId, std::unique_ptr<RdmaEndpoint>> endpoints;
  RdmaPool pool;
  size_t strangers = 0;  // number of sockets that have not proven themselves
  TimePoint due_at = kNever;
  TimePoint round{};  // time of the latest tick or event, in which completions are found
};

}  // namespace mc::xfer

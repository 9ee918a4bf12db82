#include "transports/transports.h"

#include <array>

#include "xfer_rdma/xfer_rdma.h"
#include "xfer_shm/xfer_shm.h"
#include "xfer_tcp/xfer_tcp.h"

namespace mc::xfer {

namespace {

constexpr std::array kTransports = {
    &kTransportShm,
    &kTransportRdma,  // optional hardware would be an #if around its line
    &kTransportTcp,
};

}  // namespace

std::span<const TransportEntry* const> transports() {
  return kTransports;
}

Result<std::unique_ptr<Engine>> open_engine(const Options& options) {
  return Engine::open(options, transports());
}

}  // namespace mc::xfer

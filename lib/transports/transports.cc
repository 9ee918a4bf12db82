#include "transports/transports.h"

#include <array>

#include "xfer/rdma_transport.h"
#include "xfer/shm_transport.h"
#include "xfer/tcp_transport.h"

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

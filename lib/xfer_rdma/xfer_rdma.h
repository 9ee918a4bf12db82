// The rdma transport: one socket to each peer for set-up, and queue pairs for the bytes. transport.h describes it.
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

extern const TransportEntry kTransportRdma;

}  // namespace mc::xfer

// The tcp transport: several framed streams to each peer. transport.h describes it.
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

extern const TransportEntry kTransportTcp;

}  // namespace mc::xfer

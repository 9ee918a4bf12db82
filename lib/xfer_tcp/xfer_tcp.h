// The tcp transport. Several framed streams to each peer: transport.h draws it.
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

extern const TransportEntry kTransportTcp;

}  // namespace mc::xfer

// The shm transport: shared memory between processes of one host. transport.h describes it.
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

extern const TransportEntry kTransportShm;

}  // namespace mc::xfer

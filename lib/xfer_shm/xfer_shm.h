// The shm transport. Shared memory between processes of one host: transport.h draws it.
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

extern const TransportEntry kTransportShm;

}  // namespace mc::xfer

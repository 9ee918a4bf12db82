// The engine's services for its transports, and the descriptor that peers receive (internal).
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

/// Draws a random instance when the options have none. The referenced objects must outlive the result.
Services make_services(Options& options, Access& access, Tally& tally, Poller& poller);

/// The current snapshot of this process's buffers.
Descriptor build_descriptor(const Services& services);

}  // namespace mc::xfer

// What the engine gives to its transports, and the descriptor of this process that peers get (internal).
#pragma once

#include "xfer/transport.h"

namespace mc::xfer {

/// Draws an instance for options that have none. The references outlive the Home.
Home make_home(Options& options, Access& access, Tally& tally, Poller& poller);

/// The current snapshot of this process's buffers.
Descriptor build_descriptor(const Home& home);

}  // namespace mc::xfer

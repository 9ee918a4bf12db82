// The table of transports, and engines that use it. This is the only place that names transports: the engine
// (lib/xfer) gets the table when it is opened, and each transport is a folder of its own that exports one entry.
// To add a transport, write its folder and name its entry in transports.cc.
#pragma once

#include <memory>
#include <span>

#include "xfer/transport.h"
#include "xfer/xfer.h"

namespace mc::xfer {

/// In order of preference for Options::transport "auto".
std::span<const TransportEntry* const> transports();

/// Engine::open() with every transport of the table.
Result<std::unique_ptr<Engine>> open_engine(const Options& options);

}  // namespace mc::xfer

// Flags of the transfer engine, read once for the daemons and for mc-bench.
#pragma once

#include <string_view>

#include "base/cli.h"
#include "xfer/xfer.h"

namespace mc::run {

/// Sets what the flags that the program lists say: --transfer-spin, --tcp-io, --rdma-lanes and the other --rdma-*
/// but --rdma-devices, which mc-bench reads in its own way. Values were checked while parsing.
void apply_transfer_flags(const cli::Args& args, xfer::Options& options);

/// --transfer-faults: kinds with their probability per slice, from 0 to 1, separated by commas.
///   delay=P:T   a finished slice is reported T later     fail=P   it is reported as failed
///   corrupt=P   a byte of a read is flipped              lose=P   the connection is closed instead
Result<xfer::FaultPlan> parse_faults(std::string_view text);

}  // namespace mc::run

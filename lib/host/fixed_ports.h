// The ports of --ports: a firewall between hosts opens them, so they do not change with a restart.
#pragma once

#include <cstdint>
#include <string>

#include "base/cli.h"
#include "base/result.h"

namespace mc::host {

/// Ports of one worker on the address of --bind; 0 = any free one.
struct FixedPorts {
  uint16_t control = 0;
  uint16_t tcp = 0;
  uint16_t rdma = 0;  // where peers set rdma up; the data needs no port
};

/// The ports of --ports. MC5001 when another process has one of them. Without this check --transport auto would leave
/// out a transport that cannot listen.
Result<FixedPorts> fixed_ports(const cli::Args& args);

}  // namespace mc::host

// Flags of the transfer engine, read once for the daemons and for mc-bench.
#pragma once

#include <memory>
#include <string_view>

#include "base/cli.h"
#include "base/flag_list.h"
#include "product/flags.h"
#include "xfer/xfer.h"

namespace mc::flags {

inline constexpr Flag kTcpSeal{.name = "tcp-seal",
                               .kind = FlagKind::choice,
                               .value = "S",
                               .fallback = "auto",
                               .help = "encrypt tcp streams and the set-up of rdma; auto: off loopback only",
                               .table = xfer::seal_names,
                               .common = true};
inline constexpr Flag kLeaseBy{
    .name = "lease-by",
    .kind = FlagKind::choice,
    .value = "C",
    .fallback = "control",
    .help = "carrier of leases to other nodes; auto: channel over shm and rdma, else control",
    .choices = "auto|channel|control",
    .common = true};
/// --connect-timeout: 100ms to 30s, after which a node asks for its peer's address again.
Result<void> check_connect_timeout(std::string_view value);
inline constexpr Flag kConnectTimeout{.name = "connect-timeout",
                                      .kind = FlagKind::duration,
                                      .value = "T",
                                      .fallback = "5s",
                                      .help = "time of one attempt to reach a peer's data port, handshake included",
                                      .check = check_connect_timeout,
                                      .common = true};

}  // namespace mc::flags

namespace mc::host {

/// The flags that apply_transfer_flags() reads.
inline constexpr auto kTransferFlags =
    flags::list(&flags::kTransferSpin, &flags::kConnectTimeout, &flags::kTcpIo, &flags::kRdmaLanes,
                &flags::kRdmaPairsMax, &flags::kRdmaPace, &flags::kRdmaTrafficClass, &flags::kRdmaCooldown,
                &flags::kRdmaNoSends);

/// Sets what kTransferFlags say. --rdma-devices and --tcp-seal are none of them: mc-bench reads them in its own way.
/// Values were checked while parsing.
void apply_transfer_flags(const cli::Args& args, xfer::Options& options);

/// Opens an engine; what its options or this machine lack becomes an error that a user can look up.
Result<std::unique_ptr<xfer::Engine>> open_transfers(const xfer::Options& options);

/// --transfer-faults: kinds with their probability per slice, from 0 to 1, separated by commas.
///   delay=P:T   a finished slice is reported T later     fail=P   it is reported as failed
///   corrupt=P   a byte of a read is flipped              lose=P   the connection is closed instead
Result<xfer::FaultPlan> parse_faults(std::string_view text);

}  // namespace mc::host

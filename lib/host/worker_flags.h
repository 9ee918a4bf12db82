// The flags that workers share, in the order of their --help: a role's table joins them around its own.
#pragma once

#include "host/choice_flags.h"
#include "host/daemon_flags.h"
#include "host/transfer_flags.h"
#include "product/doors.h"

namespace mc::host {

/// Where a worker listens and how it moves KV.
inline constexpr auto kDataPlaneFlags =
    flags::join(flags::list(&flags::kBind, &flags::kPorts, &flags::kAuth, &flags::kAdminKeyFile, &flags::kInsecure,
                            &flags::kAllowedHost, &flags::kAllowedOrigin, &flags::kTransport, &flags::kRdmaDevices,
                            &flags::kTcpSeal, &flags::kLeaseBy),
                kTransferFlags);

/// Flags of the roles that run a model.
inline constexpr auto kModelFlags = flags::list(
    &flags::kDtype, &flags::kWeightDtype, &flags::kKvDtype, &flags::kBlockTokens, &flags::kKvMem, &flags::kDeviceMem,
    &flags::kAttention, &flags::kPrefillAttention, &flags::kDecodeAttention, &flags::kFetchTimeout);

/// Flags of every worker, listed behind its own.
inline constexpr auto kWorkerFlags =
    flags::list(&flags::kName, &flags::kLabel, &flags::kReadyFile, &flags::kDrainTimeout, &flags::kLeaseTime,
                &flags::kTransferFaults, &flags::kDieWithParent, &flags::kConfig, &flags::kSeed, &flags::kLogLevel,
                &flags::kLogFormat, &flags::kJson, &flags::kPrintConfig, &flags::kCheck);

}  // namespace mc::host

// The flags of a cache node's store of values.
#pragma once

#include "host/conductor_flags.h"

namespace mc::flags {

inline constexpr Flag kValues{.name = "values",
                              .kind = FlagKind::size,
                              .value = "SIZE",
                              .fallback = "10%",
                              .help = "part of --dram for values of the store API; 0B = none"};

inline constexpr Flag kValuesDisk{.name = "values-disk",
                                  .kind = FlagKind::size,
                                  .value = "SIZE",
                                  .fallback = "10%",
                                  .help = "part of --ssd for durable values, at least 16MiB; 0B = none"};

inline constexpr Flag kReplicaGrace{
    .name = "replica-grace",
    .kind = FlagKind::duration,
    .value = "T",
    .fallback = "30s",
    .help = "time that a holder of a value may be away before another node takes its place"};

}  // namespace mc::flags

namespace mc::host {

inline constexpr auto kStoreFlags =
    flags::list(&flags::kValues, &flags::kValuesDisk, &flags::kReplicaGrace, &flags::kApiKeys);

}  // namespace mc::host

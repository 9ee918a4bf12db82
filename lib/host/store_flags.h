// The flags of a cache node's store of values.
#pragma once

#include "host/conductor_flags.h"

namespace mc::flags {

inline constexpr Flag kValues{.name = "values",
                              .kind = FlagKind::size,
                              .value = "SIZE",
                              .fallback = "10%",
                              .help = "part of --dram for values of the store API; 0B = no such store"};

}  // namespace mc::flags

namespace mc::host {

inline constexpr auto kStoreFlags = flags::list(&flags::kValues, &flags::kApiKeys);

}  // namespace mc::host

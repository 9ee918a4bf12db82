// The entries that modes.cc lists, one a file (internal to lib/attn).
#pragma once

#include "attn/mode.h"

namespace mc::attn {

extern const ModeRow kModeFull;
extern const ModeRow kModeMoba;

}  // namespace mc::attn

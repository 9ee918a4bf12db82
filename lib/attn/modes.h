// The entries that modes.cc lists, one a file (internal to lib/attn).
#pragma once

#include "attn/mode.h"

namespace mc::attn {

extern const ModeRow kModeFull;
extern const ModeRow kModeMoba;
extern const ModeRow kModeWindow;

}  // namespace mc::attn

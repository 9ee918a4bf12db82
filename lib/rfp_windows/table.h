// The entries of the table of windows (internal), one file each.
#pragma once

#include "rfp_windows/rfp_windows.h"

namespace mc::rfp {

extern const WindowEntry kWindowShm, kWindowRdma, kWindowTcp;

}  // namespace mc::rfp

// The next step that MC7006 names.
#pragma once

#include <string_view>

#include "gpu/driver.h"

namespace mc::gpu {

/// Empty for the step of the table. An emulated GPU has such an error only where --device asked for one, and nvidia-smi
/// and the system log have no record of it.
inline std::string_view step_after_failure(DeviceKind device, Status status) {
  if (status != Status::ecc_uncorrectable || device != DeviceKind::emu) return {};
  return "this fault was asked for by --device emu:fault=N; leave it out";
}

}  // namespace mc::gpu

// The next step that MC7006 names.
#pragma once

#include <string_view>

#include "gpu/driver.h"

namespace mc::gpu {

/// Empty for the step of the table. An emulated GPU has such an error only where --device asked for one; neither
/// nvidia-smi nor the system log knows of it.
inline std::string_view step_after_failure(std::string_view device, Status status) {
  if (status != Status::ecc_uncorrectable || !device.starts_with("emu")) return {};
  return "this fault was asked for by --device emu:fault=N; leave it out";
}

}  // namespace mc::gpu

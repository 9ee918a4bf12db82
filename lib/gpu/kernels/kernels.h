// The kernels of this folder, which the build compiles twice: nvcc to PTX for a chip, which it puts into the program,
// and the host compiler for the emulator.
#pragma once

#include <span>
#include <string_view>

#include "gpu/emu/emu.h"
#include "gpu/ptx/fault.h"

namespace mc::gpu {

struct KernelText {
  std::string_view file;    // "attention_sm80"
  std::string_view target;  // "sm_80"
  std::string_view text;
  bool is_trial = false;  // tries single instructions and serves no request
};

/// Empty when the build did not find nvcc.
std::span<const KernelText> kernel_texts();

/// All kernels, for the emulator; in every build.
std::span<const emu::Kernel> emulated_kernels();

}  // namespace mc::gpu

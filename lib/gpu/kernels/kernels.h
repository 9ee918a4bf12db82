// The PTX of the kernels in this folder, which the build compiles with nvcc and puts into the program.
#pragma once

#include <span>
#include <string_view>

namespace mc::gpu {

struct KernelText {
  std::string_view file;    // "attention_sm80"
  std::string_view target;  // "sm_80"
  std::string_view text;
};

/// Empty when the build did not find nvcc.
std::span<const KernelText> kernel_texts();

}  // namespace mc::gpu

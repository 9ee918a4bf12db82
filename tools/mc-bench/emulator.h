// A device of the emulator with its driver, which a run gives seeds and asks for reports.
#pragma once

#include <memory>
#include <utility>

#include "base/result.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"

namespace mc::bench {

struct Emulator {
  std::shared_ptr<gpu::EmulatedDriver> driver = std::make_shared<gpu::EmulatedDriver>();
  std::unique_ptr<gpu::Device> device;

  static Result<Emulator> open() {
    Emulator out;
    MC_TRY(device, gpu::Device::open(out.driver, 0));
    out.device = std::move(device);
    return out;
  }
};

}  // namespace mc::bench

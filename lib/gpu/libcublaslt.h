// The host's cuBLASLt.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/cublaslt.h"

namespace mc::gpu {

/// The first of `files` that can be loaded; the toolkit's names when there are none. Loading needs no GPU and no
/// driver.
std::unique_ptr<CublasLt> host_cublaslt(std::vector<std::string> files = {});

}  // namespace mc::gpu

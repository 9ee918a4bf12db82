// The host's NCCL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/nccl.h"

namespace mc::gpu {

/// The first of `files` that can be loaded; the toolkit's names when there are none. Loading needs no GPU and no
/// driver.
std::unique_ptr<Nccl> host_nccl(std::vector<std::string> files = {});

}  // namespace mc::gpu

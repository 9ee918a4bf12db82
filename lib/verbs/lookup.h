// mc-cache lookup: which blocks a node has, without asking its control loop.
#pragma once

#include "base/cli.h"
#include "verbs/asked_prompt.h"
#include "verbs/block_verbs.h"

namespace mc::verbs {

inline constexpr const Flag* kLookupFlags[] = {&flags::kChainFile,  &flags::kChainChat,     &flags::kChainSystem,
                                               &flags::kChainModel, &flags::kBlocksTimeout, &flags::kAdminKeyFile,
                                               &flags::kApiKeyFile, &flags::kApiKey,        &flags::kJson};

/// Asks the node for the blocks HASH..., or for those of a prompt. Exit 1 when it lacks one.
Result<int> look_up_blocks(const cli::Args& args);

}  // namespace mc::verbs

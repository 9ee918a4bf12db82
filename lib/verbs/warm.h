// mc-cache warm: a prompt that is computed before anybody asks it, and kept on named nodes.
#pragma once

#include "base/cli.h"
#include "verbs/asked_prompt.h"
#include "verbs/block_verbs.h"

namespace mc::flags {

inline constexpr Flag kWarmPin{.name = "pin",
                               .kind = FlagKind::duration,
                               .value = "T",
                               .fallback = "none",
                               .help = "time in which the blocks are not evicted",
                               .choices = "none",
                               .check = check_time<30 * 24>,
                               .one_shot = true};
inline constexpr Flag kWarmCopies{.name = "copies",
                                  .kind = FlagKind::count,
                                  .value = "N",
                                  .fallback = "1",
                                  .help = "nodes that keep the blocks, NODE among them",
                                  .check = check_between<1, 64>,
                                  .one_shot = true};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kWarmFlags[] = {&flags::kChainFile,     &flags::kChainChat,     &flags::kChainSystem,
                                             &flags::kChainModel,    &flags::kWarmPin,       &flags::kWarmCopies,
                                             &flags::kPinDurability, &flags::kBlocksTimeout, &flags::kAdminKeyFile,
                                             &flags::kApiKeyFile,    &flags::kApiKey,        &flags::kJson};

/// Asks the conductor of this run directory for one token of the prompt, moves the blocks to the nodes that lack them,
/// and pins them. Exit 1 when a node had no room for all of them.
Result<int> warm_node(const cli::Args& args);

}  // namespace mc::verbs

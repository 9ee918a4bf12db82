// mc-cache fsck: reads every block in the directory of --ssd and checks all that protects it. No node runs on it
// meanwhile.
#pragma once

#include "base/cli.h"
#include "base/cli_flags.h"

namespace mc::flags {

inline constexpr Flag kRepair{
    .name = "repair",
    .kind = FlagKind::boolean,
    .help = "drop damaged blocks, which are computed again, and values that fail their checksum"};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kFsckFlags[] = {&flags::kRepair, &flags::kJson};

/// Exit 1 when a block is damaged and stays. MC6007 while a node uses the directory.
Result<int> fsck_store(const cli::Args& args);

}  // namespace mc::verbs

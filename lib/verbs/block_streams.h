// mc-cache export and import: the chain of KV blocks up to a block as a .mckv stream.
#pragma once

#include "base/cli.h"
#include "verbs/block_verbs.h"

namespace mc::flags {

inline constexpr Flag kExportPrefix{.name = "prefix",
                                    .value = "HASH",
                                    .help = "the last block of the chain; mc-cache ls prints the ids",
                                    .check = check_block_hash,
                                    .one_shot = true};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kExportFlags[] = {&flags::kExportPrefix, &flags::kBlocksTimeout, &flags::kAdminKeyFile,
                                               &flags::kApiKey};
inline constexpr const Flag* kImportFlags[] = {&flags::kBlocksTimeout, &flags::kAdminKeyFile, &flags::kApiKey,
                                               &flags::kJson};

/// Writes the chain from its root to --prefix to stdout, once all of it has arrived and was checked. Until then
/// nothing is written.
Result<int> export_blocks(const cli::Args& args);
/// Gives the full blocks of the stream on stdin to the node, once all of it was read and checked. Exit 1 when the node
/// had no room for the end of the chain. MC6001 for a damaged stream, MC6003 for one of another model.
Result<int> import_blocks(const cli::Args& args);

}  // namespace mc::verbs

// The verbs of mc-cache on the KV blocks of a node of any role: evict, and pin and unpin with --prefix.
#pragma once

#include "base/choice.h"
#include "base/cli_flags.h"
#include "product/doors.h"
#include "product/flags.h"
#include "verbs/client_key.h"
#include "verbs/store_verbs.h"

namespace mc::flags {

/// 32 hex digits.
Result<void> check_block_hash(std::string_view value);

inline constexpr Flag kEvictPrefix{.name = "prefix",
                                   .value = "HASH",
                                   .help = "the block HASH and the blocks of prompts that continue it",
                                   .check = check_block_hash,
                                   .one_shot = true};
inline constexpr Flag kChainPrefix{.name = "prefix",
                                   .value = "HASH",
                                   .help = "in place of keys: the KV blocks of a prompt up to the block HASH",
                                   .check = check_block_hash,
                                   .one_shot = true};
inline constexpr FlagWord<node::Durability> kPinDurabilities[] = {{"d0", node::Durability::d0},
                                                                  {"d2", node::Durability::d2}};
inline constexpr ChoiceFlag kPinDurability =
    with_choices<kPinDurabilities>({.name = "durability",
                                    .kind = FlagKind::choice,
                                    .value = "LEVEL",
                                    .fallback = "d0",
                                    .help = "of blocks: d0 = in memory, d2 = also on disk before the command ends",
                                    .one_shot = true});
inline constexpr Flag kEvictTenant{.name = "tenant", .value = "T", .help = "blocks of this tenant", .one_shot = true};
inline constexpr Flag kEvictModel{.name = "model",
                                  .value = "M",
                                  .help = "blocks of the model with this name, or with this digest of its weights",
                                  .one_shot = true};
inline constexpr Flag kEvictOlder{.name = "older",
                                  .kind = FlagKind::duration,
                                  .value = "T",
                                  .fallback = "none",
                                  .help = "blocks that were not used for T",
                                  .choices = "none",
                                  .check = check_time<366 * 24>,
                                  .one_shot = true};
inline constexpr Flag kEvictAll{.name = "all",
                                .kind = FlagKind::boolean,
                                .help = "all blocks; needed where nothing else selects",
                                .one_shot = true};
inline constexpr Flag kDryRun{.name = "dry-run",
                              .kind = FlagKind::boolean,
                              .help = "print what would be freed, and free nothing",
                              .one_shot = true};
inline constexpr Flag kBlocksTimeout{.name = "timeout",
                                     .kind = FlagKind::duration,
                                     .value = "T",
                                     .fallback = "1m",
                                     .help = "how long the node may take, at most 1h",
                                     .check = check_time<1>,
                                     .one_shot = true};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kEvictFlags[] = {
    &flags::kEvictPrefix, &flags::kEvictTenant,   &flags::kEvictModel,   &flags::kEvictOlder, &flags::kEvictAll,
    &flags::kDryRun,      &flags::kBlocksTimeout, &flags::kAdminKeyFile, &flags::kApiKey,     &flags::kJson};
/// pin and unpin take keys of values, or --prefix.
inline constexpr const Flag* kPinAnyFlags[] = {&flags::kPinFor,     &flags::kChainPrefix,   &flags::kPinDurability,
                                               &flags::kTenant,     &flags::kBlocksTimeout, &flags::kAdminKeyFile,
                                               &flags::kApiKeyFile, &flags::kApiKey,        &flags::kJson};
inline constexpr const Flag* kUnpinAnyFlags[] = {&flags::kChainPrefix,  &flags::kTenant,     &flags::kBlocksTimeout,
                                                 &flags::kAdminKeyFile, &flags::kApiKeyFile, &flags::kApiKey,
                                                 &flags::kJson};

/// --durability d2: the blocks of a pin are on disk before the command ends.
bool asks_for_disk(const cli::Args& args);
/// Prints what the node freed and what it did not, and why.
Result<int> evict_blocks(const cli::Args& args);
/// Pins the chain of --prefix, or the values of the keys. MC1001 for both and for neither.
Result<int> pin_any(const cli::Args& args);
Result<int> unpin_any(const cli::Args& args);

}  // namespace mc::verbs

// mc-prefill ask: one prompt to one live prefill node, without a conductor and without a decode node.
#pragma once

#include "base/cli.h"
#include "product/doors.h"
#include "product/flags.h"
#include "verbs/client_key.h"
#include "verbs/once_flags.h"

namespace mc::flags {

inline constexpr Flag kAskModel =
    with_default(kModel, "", "model whose tokenizer reads the prompt and writes the token; as on the node");
inline constexpr Flag kTopTokens = {.name = "logprobs",
                                    .kind = FlagKind::count,
                                    .value = "N",
                                    .fallback = "5",
                                    .help = "show the N most likely first tokens",
                                    .check = check_between<0, 20>};
inline constexpr Flag kNoCache{
    .name = "no-cache", .kind = FlagKind::boolean, .help = "use no cached blocks and leave none"};
/// A node takes no deadline beyond 1h.
Result<void> check_ask_timeout(std::string_view value);
inline constexpr Flag kAskTimeout{.name = "timeout",
                                  .kind = FlagKind::duration,
                                  .value = "T",
                                  .fallback = "30s",
                                  .help = "how long to wait, at most 1h",
                                  .check = check_ask_timeout};

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr const Flag* kPrefillAskFlags[] = {
    &flags::kPrompt,  &flags::kPromptFile, &flags::kPromptIds,    &flags::kAskModel, &flags::kTopTokens,
    &flags::kNoCache, &flags::kAskTimeout, &flags::kAdminKeyFile, &flags::kApiKey,   &flags::kJson};

/// Prints the first token, the cached and computed tokens, and the times. MC2101 when the node does not answer.
Result<int> prefill_ask(const cli::Args& args);

}  // namespace mc::verbs

// The prompt that a verb gets by -p TEXT, -f FILE or --prompt-ids IDS.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cli.h"
#include "text/text.h"

namespace mc::verbs {

/// The token ids of the prompt. MC1001 unless exactly one of the three flags is given. With --prompt-ids the ids are
/// below `vocab`, and `tokenizer` may be null.
Result<std::vector<uint32_t>> read_prompt(const cli::Args& args, const text::Tokenizer* tokenizer, uint32_t vocab);

}  // namespace mc::verbs

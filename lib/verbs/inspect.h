// `mc-cache inspect` and `mc-bench diff-kv`: what is in .mckv streams.
#pragma once

#include "base/cli.h"

namespace mc::verbs {

/// Positional FILE. Exit 1 when the stream is damaged (what came before is still shown).
Result<int> inspect_stream(const cli::Args& args);
/// Positionals LEFT and RIGHT. Exit 1 when they differ.
Result<int> diff_streams(const cli::Args& args);

}  // namespace mc::verbs

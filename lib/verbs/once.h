// The one-shot verbs: `mc-prefill once` and `mc-decode once`. One process, no cluster: the oracle that
// the cluster's answers are compared with, and KV as a byte stream that composes through pipes.
#pragma once

#include <span>

#include "base/cli.h"

namespace mc::verbs {

extern const std::span<const Flag* const> kPrefillOnceFlags;
extern const std::span<const Flag* const> kDecodeOnceFlags;

/// Prompt to text (and, with --kv-out, to a .mckv stream that stops at the first token).
Result<int> prefill_once(const cli::Args& args);
/// A .mckv stream to text.
Result<int> decode_once(const cli::Args& args);

}  // namespace mc::verbs

// Flags of the one-shot verbs.
#pragma once

#include "base/cli.h"

namespace mc::flags {

inline constexpr Flag kPrompt{.name = "prompt", .letter = 'p', .value = "TEXT", .help = "the prompt", .one_shot = true};
inline constexpr Flag kPromptFile{.name = "prompt-file",
                                  .letter = 'f',
                                  .value = "FILE",
                                  .help = "read the prompt from a file; - is stdin",
                                  .one_shot = true};
inline constexpr Flag kPromptIds{.name = "prompt-ids",
                                 .kind = FlagKind::list,
                                 .value = "IDS",
                                 .help = "the prompt as token ids: 5,17,9",
                                 .one_shot = true};
inline constexpr Flag kTokens{.name = "tokens",
                              .letter = 'n',
                              .kind = FlagKind::count,
                              .value = "N",
                              .fallback = "16",
                              .help = "largest number of tokens of the answer"};
inline constexpr Flag kKvOut{.name = "kv-out",
                             .value = "FILE",
                             .help = "write KV and the first token as .mckv and stop; - is stdout",
                             .one_shot = true};
inline constexpr Flag kKvIn{
    .name = "kv-in", .value = "FILE", .help = "continue this .mckv stream; - is stdin", .one_shot = true};
inline constexpr Flag kLogitsOut{
    .name = "logits-out", .value = "FILE", .help = "write the logits of the next token as .npy", .one_shot = true};
inline constexpr Flag kTemperature{
    .name = "temperature", .kind = FlagKind::number, .value = "X", .help = "0 is greedy; default is the model's own"};
inline constexpr Flag kTopK{
    .name = "top-k", .kind = FlagKind::count, .value = "N", .help = "draw from the N likeliest; 0 is off"};
inline constexpr Flag kTopP{
    .name = "top-p", .kind = FlagKind::number, .value = "X", .help = "draw from the likeliest tokens that sum to X"};
inline constexpr Flag kMinP{.name = "min-p",
                            .kind = FlagKind::number,
                            .value = "X",
                            .help = "drop tokens less likely than X times the likeliest"};
inline constexpr Flag kStop{
    .name = "stop", .kind = FlagKind::list, .value = "TEXT", .help = "end at this text; may be repeated"};
inline constexpr Flag kMinTokens{.name = "min-tokens",
                                 .kind = FlagKind::count,
                                 .value = "N",
                                 .fallback = "0",
                                 .help = "least number of tokens of the answer"};
inline constexpr Flag kIgnoreEos{
    .name = "ignore-eos", .kind = FlagKind::boolean, .help = "the end token does not end the answer"};
inline constexpr Flag kLogprobs{.name = "logprobs",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "off",
                                .help = "with --json: log-probability of each token and of the N likeliest",
                                .choices = "off"};

}  // namespace mc::flags

// Parts that the two readers of tokenizer.json share: errors that name the field and show the value, and scalar
// fields. Only the files spec*.cc include it.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "text/spec.h"

namespace mc::text {

/// The words of GPT-2, which a ByteLevel pre-tokenizer implies.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The words of Llama 3 and of Qwen.
inline constexpr const char* kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+)"
                                              R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kQwen2Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+)"
                                             R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// "tokenizer.json: ..."
Error bad(std::string what);
/// `value` as the file spells it, cut off when it is long.
std::string shown(const Json& value);
Error unsupported(const std::string& field, const Json& value, std::string_view supported);
Error wrong_kind(const std::string& field, const Json& value, std::string_view wanted);

Result<uint32_t> read_id(const std::string& field, const Json& value);
/// `fallback` where the key is absent or null.
Result<bool> read_flag(const std::string& parent, const Json& object, std::string_view key, bool fallback);

/// normalizer, pre_tokenizer, post_processor and decoder (spec_steps.cc).
Result<void> read_steps(const Json& root, TokenizerSpec& spec);

}  // namespace mc::text

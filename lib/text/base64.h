// Base64 (RFC 4648, the standard alphabet with padding), in which tokenizer files hold bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mc::text {

/// nullopt: another character, a wrong length, or bits behind the last byte that are not zero.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace mc::text

// The form of names that people give to nodes: they stand in logs, metrics, file names and addresses unquoted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace mc {

inline constexpr size_t kPlainNameMax = 64;

/// Whether the text is 1 to 64 letters, digits, '.', '_' and '-'.
inline bool is_plain_name(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !text.empty() && text.size() <= kPlainNameMax && std::all_of(text.begin(), text.end(), plain);
}

}  // namespace mc

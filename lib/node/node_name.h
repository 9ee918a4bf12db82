// The form of a node's name, which whoever gives one and whoever takes one checks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "node/registration.h"

namespace mc::node {

inline constexpr size_t kNodeNameMax = 64;

/// Whether a node may have this name: 1 to 64 letters, digits, '.', '_' and '-', and not that of the conductor.
inline bool is_node_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name.size() <= kNodeNameMax && name != kConductor &&
         std::all_of(name.begin(), name.end(), plain);
}

}  // namespace mc::node

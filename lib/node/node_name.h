// The form of a node's name, which whoever gives one and whoever takes one checks.
#pragma once

#include <string_view>

#include "base/plain_name.h"
#include "node/registration.h"

namespace mc::node {

/// Whether a node may have this name: a plain name, and not that of the conductor.
inline bool is_node_name(std::string_view name) {
  return is_plain_name(name) && name != kConductor;
}

}  // namespace mc::node

// JSON fields as tables show them.
#pragma once

#include <string>

#include "base/json.h"

namespace mc::verbs {

inline std::string text_of(const Json& value) {
  return std::string(value.as_string());
}

inline std::string count(const Json& value) {
  return std::to_string(value.as_int());
}

}  // namespace mc::verbs

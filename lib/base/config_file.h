// The --config file: TOML whose top-level keys are flag names. One file may serve several programs:
// a table named after a program ([mc-decode]) holds that program's keys and is skipped by others.
// Arrays become comma lists. What TOML is accepted: base/toml.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc {

struct ConfigEntry {
  std::string key;
  std::string value;
  int line = 0;
  bool operator==(const ConfigEntry&) const = default;
};

/// Entries in file order; a key in the program's table replaces the same top-level key. MC1003 with
/// `source` and the line for syntax errors, for tables that are no program, and for values that are
/// neither text, number, boolean nor a flat array of these.
Result<std::vector<ConfigEntry>> parse_config(std::string_view text, std::string_view source, std::string_view program);

}  // namespace mc

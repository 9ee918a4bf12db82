// TOML as a flat list: every key with the table it stands in, its value, and its line, in file order.
// Readers look keys up by that path and can name the line of what they refuse. tomlplusplus stays
// inside toml.cc. What is parsed is hostile: a text ends in a document or in an error that names the line.
//
//   version = 1            ->  {"", "version", 1, line 1}
//   [paths.net]
//   bytes_per_s = 87e9     ->  {"paths.net", "bytes_per_s", 8.7e10, line 3}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace mc {

struct TomlEntry {
  std::string table;  // "" = before any table; nested ones joined by dots
  std::string key;
  Json value;  // string, integer, real, boolean, or an array of these; null = the table itself
  int line = 0;
};

/// Also one entry with a null value and an empty key for each table header, so that an unknown or empty
/// table can be refused. MC1003 with `source` and the line: not TOML, dates, tables inside arrays, text
/// that is not UTF-8, control characters.
Result<std::vector<TomlEntry>> parse_toml(std::string_view text, std::string_view source);

/// MC1003 at `source`:`line`.
Error toml_error(std::string_view source, int line, std::string what);

}  // namespace mc

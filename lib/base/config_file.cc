#include "base/config_file.h"

#include <algorithm>

#include "base/toml.h"
#include "base/units.h"

namespace mc {
namespace {

constexpr std::string_view kPrograms[] = {"mc-conductor", "mc-prefill", "mc-decode", "mc-cache", "mc-bench"};

std::optional<std::string> scalar(const Json& value) {
  if (value.is_string()) return std::string(value.as_string());
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_number()) return format_f64(value.as_double());
  if (value.is_bool()) return std::string(value.as_bool() ? "true" : "false");
  return std::nullopt;
}

Result<std::string> flag_text(const TomlEntry& entry, std::string_view source) {
  const auto bad = [&] {
    return toml_error(source, entry.line, "key '" + entry.key + "' is neither text, number, true nor false");
  };
  if (!entry.value.is_array()) {
    const auto text = scalar(entry.value);
    if (!text) return bad();
    return *text;
  }
  std::string list;
  for (const Json& item : entry.value.items()) {
    const auto text = scalar(item);
    if (!text) return bad();
    if (text->find(',') != std::string::npos)
      return toml_error(source, entry.line, "a comma inside an element of '" + entry.key + "'");
    if (!list.empty()) list += ',';
    list += *text;
  }
  return list;
}

bool is_program(std::string_view table) {
  return std::find(std::begin(kPrograms), std::end(kPrograms), table) != std::end(kPrograms);
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config(std::string_view text, std::string_view source,
                                              std::string_view program) {
  MC_TRY(parsed, parse_toml(text, source));
  // The program's own table comes last, whatever its place in the file: its keys replace the common ones.
  std::stable_partition(parsed.begin(), parsed.end(), [](const TomlEntry& e) { return e.table.empty(); });
  std::vector<ConfigEntry> entries;
  for (const TomlEntry& entry : parsed) {
    const std::string_view top = std::string_view(entry.table).substr(0, entry.table.find('.'));
    if (!entry.table.empty() && !is_program(top))
      return toml_error(source, entry.line,
                        "'" + std::string(top) + "' is a table; only program names like [mc-decode] are");
    if (!entry.table.empty() && top != program) continue;
    if (entry.table.size() > top.size())
      return toml_error(source, entry.line, "'" + entry.table + "' is a table inside a program's table");
    if (entry.value.is_null()) continue;
    MC_TRY(value, flag_text(entry, source));
    const auto same = std::find_if(entries.begin(), entries.end(), [&](auto& e) { return e.key == entry.key; });
    ConfigEntry next{entry.key, std::move(value), entry.line};
    if (same != entries.end())
      *same = std::move(next);
    else
      entries.push_back(std::move(next));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const ConfigEntry& a, const ConfigEntry& b) { return a.line < b.line; });
  return entries;
}

}  // namespace mc

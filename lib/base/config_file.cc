// The tomlplusplus fence.
#define TOML_EXCEPTIONS 0
#include "base/config_file.h"

#include <toml++/toml.h>

#include <algorithm>

#include "base/errors.h"
#include "base/units.h"

namespace mc {
namespace {

constexpr std::string_view kPrograms[] = {"mc-conductor", "mc-prefill", "mc-decode", "mc-cache", "mc-bench"};

struct Reader {
  std::string_view source;
  std::vector<ConfigEntry> entries;

  Error bad(const toml::node& node, std::string what) const {
    return user_error(err::kConfigFile, std::move(what),
                      std::string(source) + ":" + std::to_string(node.source().begin.line));
  }

  Result<std::string> scalar(std::string_view key, const toml::node& node) const {
    if (const auto* s = node.as_string()) return s->get();
    if (const auto* i = node.as_integer()) return std::to_string(i->get());
    if (const auto* f = node.as_floating_point()) return format_f64(f->get());
    if (const auto* b = node.as_boolean()) return std::string(b->get() ? "true" : "false");
    return bad(node, "key '" + std::string(key) + "' is neither text, number, true nor false");
  }

  Result<void> add(std::string_view key, const toml::node& node) {
    std::string value;
    if (const auto* array = node.as_array()) {
      for (const toml::node& item : *array) {
        MC_TRY(text, scalar(key, item));
        if (text.find(',') != std::string::npos)
          return bad(item, "a comma inside an element of '" + std::string(key) + "'");
        if (!value.empty()) value += ',';
        value += text;
      }
    } else {
      MC_TRY(text, scalar(key, node));
      value = std::move(text);
    }
    const auto same = std::find_if(entries.begin(), entries.end(), [&](const ConfigEntry& e) { return e.key == key; });
    ConfigEntry entry{std::string(key), std::move(value), static_cast<int>(node.source().begin.line)};
    if (same != entries.end())
      *same = std::move(entry);
    else
      entries.push_back(std::move(entry));
    return {};
  }
};

}  // namespace

Result<std::vector<ConfigEntry>> parse_config(std::string_view text, std::string_view source,
                                              std::string_view program) {
  const toml::parse_result parsed = toml::parse(text, source);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return user_error(err::kConfigFile, std::string(error.description()),
                      std::string(source) + ":" + std::to_string(error.source().begin.line) + ":" +
                          std::to_string(error.source().begin.column));
  }
  Reader reader{source, {}};
  const toml::table& root = parsed.table();
  for (const auto& [key, node] : root)
    if (!node.is_table()) MC_CHECK(reader.add(key.str(), node));
  for (const auto& [key, node] : root) {
    const toml::table* table = node.as_table();
    if (table == nullptr) continue;
    if (std::find(std::begin(kPrograms), std::end(kPrograms), key.str()) == std::end(kPrograms))
      return reader.bad(node, "'" + std::string(key.str()) + "' is a table; only program names like [mc-decode] are");
    if (key.str() != program) continue;
    for (const auto& [inner, value] : *table) MC_CHECK(reader.add(inner.str(), value));
  }
  std::stable_sort(reader.entries.begin(), reader.entries.end(),
                   [](const ConfigEntry& a, const ConfigEntry& b) { return a.line < b.line; });
  return std::move(reader.entries);
}

}  // namespace mc

// The tomlplusplus fence. Its assertions are about its own parser, not about us: a hostile file must
// end in an error, never in abort().
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(expr) static_cast<void>(0)
#include "base/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>

#include "base/errors.h"
#include "base/json.h"
#include "base/units.h"

namespace mc {
namespace {

constexpr std::string_view kPrograms[] = {"mc-conductor", "mc-prefill", "mc-decode", "mc-cache", "mc-bench"};

Error at_line(std::string_view text, size_t offset, std::string_view source, std::string what) {
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(offset), '\n');
  return user_error(err::kConfigFile, std::move(what), std::string(source) + ":" + std::to_string(line));
}

/// One character of valid UTF-8 as the TOML escape \UXXXXXXXX; moves `i` to its last byte.
std::string escape_at(std::string_view text, size_t& i) {
  const auto lead = static_cast<unsigned char>(text[i]);
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  uint32_t value = lead & (0x3fu >> more);
  for (int k = 0; k < more; ++k) value = value << 6 | (static_cast<unsigned char>(text[++i]) & 0x3fu);
  char out[16];
  std::snprintf(out, sizeof out, "\\U%08x", value);
  return out;
}

/// The same TOML in ASCII without control characters: tomlplusplus 3.3 runs into undefined behaviour on
/// some others (found by tests/fuzz/config_file_fuzz.cc). Characters beyond ASCII become escapes in
/// double quotes and question marks in comments; anywhere else they are refused.
Result<std::string> to_ascii(std::string_view text, std::string_view source) {
  if (const auto at = find_invalid_utf8(text)) return at_line(text, *at, source, "text that is not UTF-8");
  enum class In { plain, comment, quotes } in = In::plain;
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < ' ' && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f)
      return at_line(text, i, source, "a control character");
    if (byte >= 0x80) {
      if (in == In::plain) return at_line(text, i, source, "a character outside ASCII that is not in double quotes");
      const std::string escape = escape_at(text, i);
      out += in == In::quotes ? escape : "?";
      continue;
    }
    out += c;
    if (c == '\n')
      in = In::plain;
    else if (in == In::plain && (c == '#' || c == '"'))
      in = c == '#' ? In::comment : In::quotes;
    else if (in == In::quotes && c == '"')
      in = In::plain;
    else if (in == In::quotes && c == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\'))
      out += text[++i];
  }
  return out;
}

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
  MC_TRY(ascii, to_ascii(text, source));
  const toml::parse_result parsed = toml::parse(ascii, source);
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

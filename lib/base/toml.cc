// The tomlplusplus fence. Its assertions are about its own parser, not about us: a hostile file must
// end in an error, never in abort().
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(expr) static_cast<void>(0)
#include "base/toml.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>

#include "base/errors.h"

namespace mc {
namespace {

Error at_line(std::string_view text, size_t offset, std::string_view source, std::string what) {
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(offset), '\n');
  return toml_error(source, static_cast<int>(line), std::move(what));
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

int line_of(const toml::node& node) {
  return static_cast<int>(node.source().begin.line);
}

struct Flattener {
  std::string_view source;
  std::vector<TomlEntry> entries;

  Result<Json> value_of(const std::string& path, const toml::node& node) const {
    if (const auto* s = node.as_string()) return Json(s->get());
    if (const auto* i = node.as_integer()) return Json(i->get());
    if (const auto* f = node.as_floating_point()) return Json(f->get());
    if (const auto* b = node.as_boolean()) return Json(b->get());
    if (const auto* array = node.as_array()) {
      Json out = Json::array();
      for (const toml::node& item : *array) {
        MC_TRY(value, value_of(path, item));
        out.push(std::move(value));
      }
      return out;
    }
    return toml_error(source, line_of(node), "key '" + path + "' is neither text, number, true, false nor an array");
  }

  // Nesting is bounded by the parser (256 levels).
  Result<void> add(const std::string& name, const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string path = name.empty() ? std::string(key.str()) : name + "." + std::string(key.str());
      if (const toml::table* inner = node.as_table()) {
        entries.push_back({path, "", Json(), line_of(node)});
        MC_CHECK(add(path, *inner));
        continue;
      }
      MC_TRY(value, value_of(path, node));
      entries.push_back({name, std::string(key.str()), std::move(value), line_of(node)});
    }
    return {};
  }
};

}  // namespace

Error toml_error(std::string_view source, int line, std::string what) {
  return user_error(err::kConfigFile, std::move(what), std::string(source) + ":" + std::to_string(line));
}

Result<std::vector<TomlEntry>> parse_toml(std::string_view text, std::string_view source) {
  MC_TRY(ascii, to_ascii(text, source));
  const toml::parse_result parsed = toml::parse(ascii, source);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return user_error(err::kConfigFile, std::string(error.description()),
                      std::string(source) + ":" + std::to_string(error.source().begin.line) + ":" +
                          std::to_string(error.source().begin.column));
  }
  Flattener flat{source, {}};
  MC_CHECK(flat.add("", parsed.table()));
  std::stable_sort(flat.entries.begin(), flat.entries.end(),
                   [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; });
  return std::move(flat.entries);
}

}  // namespace mc

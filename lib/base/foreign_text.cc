#include "base/foreign_text.h"

#include <unistd.h>

#include <cstdio>

#include "base/fd.h"
#include "base/json.h"

namespace mc {
namespace {

void append_escape(std::string& out, const char* format, unsigned value) {
  char escape[8];
  const int size = std::snprintf(escape, sizeof escape, format, value);
  out.append(escape, static_cast<size_t>(size));
}

/// `text` is UTF-8.
void append_shown(std::string& out, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0xC2 && static_cast<uint8_t>(text[i + 1]) < 0xA0)  // U+0080 to U+009F, the controls of ISO 6429
      append_escape(out, "\\u%04x", static_cast<uint8_t>(text[++i]));
    else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F)
      append_escape(out, "\\x%02x", byte);
    else
      out += text[i];
  }
}

}  // namespace

std::string show_controls(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t valid = find_invalid_utf8(text).value_or(text.size());
    append_shown(out, text.substr(0, valid));
    if (valid == text.size()) break;
    append_escape(out, "\\x%02x", static_cast<uint8_t>(text[valid]));
    text.remove_prefix(valid + 1);
  }
  return out;
}

Json show_controls_in(const Json& value) {
  if (value.is_string()) return show_controls(value.as_string());
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value.items()) out.push(show_controls_in(item));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  for (const JsonMember& member : value.members()) out.set(show_controls(member.key), show_controls_in(member.value));
  return out;
}

Result<void> write_foreign(int fd, std::string_view text) {
  if (::isatty(fd) != 1) return write_all(fd, text);
  return write_all(fd, show_controls(text));
}

}  // namespace mc

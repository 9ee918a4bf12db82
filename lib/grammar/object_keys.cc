#include "grammar/object_keys.h"

#include <algorithm>
#include <utility>

namespace mc::grammar {
namespace {

/// The character of an escape of one letter.
char unescaped(char c) {
  switch (c) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return c;  // a quote, a slash or a backslash
  }
}

uint16_t digit_of(char c) {
  return static_cast<uint16_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
}

}  // namespace

void ObjectKeys::Cursor::add(uint16_t character) {
  const auto byte = [&](int value) { key += static_cast<char>(value); };
  if (character < 0x80) return byte(character);
  if (character < 0x800) {
    byte(0xC0 | character >> 6);
  } else {
    byte(0xE0 | character >> 12);
    byte(0x80 | (character >> 6 & 0x3F));
  }
  byte(0x80 | (character & 0x3F));
}

ObjectKeys::Event ObjectKeys::Cursor::step(char c, bool in_object) {
  if (digits_left > 0) {
    unit = static_cast<uint16_t>(unit << 4 | digit_of(c));
    if (--digits_left == 0 && in_key) add(unit);
  } else if (is_escaped) {
    is_escaped = false;
    if (c == 'u')
      digits_left = 4, unit = 0;
    else if (in_key)
      key += unescaped(c);
  } else if (in_string) {
    is_escaped = c == '\\';
    in_string = c != '"';
    if (in_key && !in_string) {
      in_key = false;
      return Event::key;
    }
    if (in_key && !is_escaped) key += c;
  } else if (c == '"') {
    in_string = true;
    in_key = std::exchange(wants_key, false);
    key.clear();
  } else if (c == '{' || c == '[') {
    wants_key = c == '{';
    return c == '{' ? Event::object : Event::list;
  } else if (c == '}' || c == ']') {
    wants_key = false;
    return Event::closed;
  } else if (c == ',') {
    wants_key = in_object;
  }
  return Event::none;
}

void ObjectKeys::push(std::string_view bytes) {
  for (const char c : bytes) switch (cursor_.step(c, !open_.empty() && open_.back().is_object)) {
      case Event::none: break;
      case Event::object: open_.push_back({.is_object = true, .keys = {}}); break;
      case Event::list: open_.push_back({.is_object = false, .keys = {}}); break;
      case Event::closed:
        if (!open_.empty()) open_.pop_back();
        break;
      case Event::key: open_.back().keys.insert(std::move(cursor_.key)); break;
    }
}

bool ObjectKeys::repeats(std::string_view bytes) const {
  Cursor cursor = cursor_;
  size_t depth = open_.size();                        // the scopes of open_ that are open still
  std::vector<std::pair<size_t, std::string>> added;  // keys of these, by the number of scopes
  std::vector<Scope> opened;                          // scopes that the bytes open inside of these
  for (const char c : bytes) {
    const bool in_object = !opened.empty() ? opened.back().is_object : depth > 0 && open_[depth - 1].is_object;
    switch (cursor.step(c, in_object)) {
      case Event::none: break;
      case Event::object: opened.push_back({.is_object = true, .keys = {}}); break;
      case Event::list: opened.push_back({.is_object = false, .keys = {}}); break;
      case Event::closed:
        if (!opened.empty())
          opened.pop_back();
        else if (depth > 0)
          --depth;
        break;
      case Event::key: {
        if (!opened.empty()) {
          if (!opened.back().keys.insert(std::move(cursor.key)).second) return true;
          break;
        }
        std::pair entry(depth, std::move(cursor.key));
        if (open_[depth - 1].keys.contains(entry.second) || std::ranges::find(added, entry) != added.end()) return true;
        added.push_back(std::move(entry));
        break;
      }
    }
  }
  return false;
}

std::bitset<256> ObjectKeys::ways_to_repeat() const {
  std::bitset<256> out;
  if (!cursor_.in_key) return out;
  const auto& keys = open_.back().keys;
  const std::string& begun = cursor_.key;
  // Keys with one next byte stand together, so one of each group is looked at.
  for (auto at = keys.lower_bound(begun); at != keys.end() && at->starts_with(begun);) {
    if (at->size() == begun.size()) {
      out.set('"');
      ++at;
      continue;
    }
    const auto next = static_cast<uint8_t>((*at)[begun.size()]);
    out.set(next);
    if (next == UINT8_MAX) break;
    at = keys.lower_bound(begun + static_cast<char>(next + 1));
  }
  if (out.none()) return out;
  out.set('\\');
  return cursor_.is_escaped || cursor_.digits_left > 0 ? out.set() : out;
}

}  // namespace mc::grammar

// The keys of the JSON objects that an answer has open. A schema may leave keys free, and no automaton remembers which
// ones came. A key that comes twice in one object would make a document that parsers refuse, or read in two ways.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mc::grammar {

class ObjectKeys {
 public:
  /// Forgets the text so far. Call it for text that is no JSON.
  void clear() { *this = {}; }
  /// Goes on by bytes of JSON, which may end anywhere. Brackets that close nothing, and text between documents, have no
  /// meaning here.
  void push(std::string_view bytes);
  /// Whether some key would come twice in its object with these bytes.
  bool repeats(std::string_view bytes) const;
  /// The bytes that may follow now on the way to a repeated key: those of such keys, the quote behind one, and the
  /// backslash, which may stand for any character. None outside of a key, and while no key of the object begins so.
  std::bitset<256> ways_to_repeat() const;

 private:
  enum class Event : uint8_t { none, object, list, closed, key };
  /// The place of a text's end: in a string or not.
  struct Cursor {
    bool wants_key = false;  // the next string is a key
    bool in_string = false, in_key = false, is_escaped = false;
    uint8_t digits_left = 0;  // of \uXXXX
    uint16_t unit = 0;        // its digits so far
    std::string key;          // so far, without escapes
    Event step(char c, bool in_object);
    void add(uint16_t character);
  };
  struct Scope {
    bool is_object = false;
    std::set<std::string, std::less<>> keys;
  };

  Cursor cursor_;
  std::vector<Scope> open_;  // objects and lists, the outermost first
};

}  // namespace mc::grammar

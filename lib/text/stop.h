// The matcher of stop strings in text that arrives in pieces. It passes on only text that can no longer be part of a
// stop string. The stop string that is complete first ends the text, and the longest one where several end at the same
// byte. So the result depends on the text alone, not on its division into tokens. An Aho-Corasick automaton over
// bytes: constant work per byte, whatever the stops are. Its depth is exactly the number of bytes that must be held
// back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mc::text {

class StopMatcher {
 public:
  static constexpr size_t kStopsMax = 64;
  static constexpr size_t kStopBytesMax = 4096;

  /// A matcher without stop strings, which passes all text on.
  StopMatcher();
  /// `include` keeps the stop string in the text (include_stop_str_in_output).
  /// invalid: an empty stop, one that is not UTF-8, too many or too long ones; the text names its index.
  static Result<StopMatcher> build(std::vector<std::string> stops, bool include = false);

  /// Takes more text, in whole characters, and returns the text that may be shown now. After a stop it returns
  /// nothing.
  std::string push(std::string_view text);
  /// Takes text in which no stop string counts (before min_tokens). Returns the held text and this one.
  std::string pass(std::string_view text);
  /// Ends a text without a stop and returns the held text. The next push() begins another text.
  std::string flush();

  bool stopped() const { return stop_ != kNone; }
  /// The stop string that was found; empty when none was.
  std::string_view stop() const { return stopped() ? std::string_view(stops_[stop_]) : std::string_view(); }
  /// The number of bytes held back. For tests.
  size_t held_bytes() const { return held_.size(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  // sorted by byte
    uint32_t fail = 0;                               // the longest proper suffix that is a node
    uint32_t depth = 0;
    uint32_t stop = kNone;  // the longest stop that ends here
  };
  uint32_t child(uint32_t node, uint8_t byte) const;
  uint32_t step(uint32_t node, uint8_t byte) const;
  void add(uint32_t stop_index);
  void link();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;
  bool include_ = false;
  std::string held_;
  uint32_t node_ = 0;
  uint32_t stop_ = kNone;
};

}  // namespace mc::text

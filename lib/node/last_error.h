// The last error of a node, for `mc-conductor ps`: short, and gone when the node has served since.
#pragma once

#include <string>
#include <string_view>

namespace mc::node {

class LastError {
 public:
  static constexpr size_t kBytesMax = 160;

  /// The node failed at something.
  void note(std::string_view what) { passing_ = cut(what); }
  /// The node goes on without something, such as its disk. served() does not clear this error, which takes the place of
  /// the failures that led to it.
  void keep(std::string_view what) {
    lasting_ = cut(what);
    passing_.clear();
  }
  /// The node has done what it is there for.
  void served() { passing_.clear(); }
  /// "" = none.
  const std::string& text() const { return passing_.empty() ? lasting_ : passing_; }

 private:
  /// At most kBytesMax bytes, cut between two characters of UTF-8.
  static std::string cut(std::string_view what) {
    if (what.size() <= kBytesMax) return std::string(what);
    size_t size = kBytesMax - 3;
    while (size > 0 && (static_cast<unsigned char>(what[size]) & 0xc0) == 0x80) --size;
    return std::string(what.substr(0, size)) + "...";
  }

  std::string passing_, lasting_;
};

}  // namespace mc::node

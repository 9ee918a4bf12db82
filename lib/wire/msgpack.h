// MessagePack without its headers: a writer, and a reader that turns bytes from outside into a flat array of nodes. The
// reader checks every cost before it pays it. Every array and map counts its elements against the remaining bytes and
// against a budget of nodes, and depth is bounded. So memory is at most 24 bytes for each byte received.
//
//   {"a": [1, 2], "b": 3}   ->   0 map(2) | 1 "a" | 2 array(2) | 3 1 | 4 2 | 5 "b" | 6 3
//                                node.next: the index behind the whole value (0:7  2:5  3:4)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::wire {

struct MsgpackLimits {
  size_t bytes = size_t{16} << 20;
  size_t nodes = size_t{1} << 22;
  size_t depth = 16;
};

class MsgpackWriter {
 public:
  /// Begins a map. `pair_count` pairs of a key (str) and a value must follow.
  void map(size_t pair_count);
  void array(size_t count);
  void str(std::string_view text);
  void bin(std::span<const uint8_t> bytes);
  void u64(uint64_t value);
  void i64(int64_t value);
  /// Always takes 9 bytes, so that the size of a message does not depend on its values.
  void f64(double value);
  void boolean(bool value);
  void nil();
  std::vector<uint8_t> take() { return std::move(bytes_); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

enum class MsgpackType : uint8_t { nil, boolean, u64, i64, f64, str, bin, array, map };
std::string_view to_string(MsgpackType type);

struct MsgpackNode {
  MsgpackType type = MsgpackType::nil;
  uint32_t count = 0;  // elements, pairs, or bytes of str and bin
  uint32_t next = 0;   // index behind this value and all its parts
  union {
    bool boolean;
    uint64_t u64;  // type u64: any non-negative integer
    int64_t i64;   // type i64: negative only
    double f64;
    const char* data;  // into the bytes that were parsed
  };
  MsgpackNode() : u64(0) {}
  std::string_view text() const { return {data, count}; }
};

/// Parses exactly one value that fills `bytes`. The nodes point into `bytes`, which must stay alive. Code::corrupt with
/// the offset when the value is cut, malformed or followed by more bytes. Code::invalid when a limit is exceeded.
Result<std::vector<MsgpackNode>> parse_msgpack(std::span<const uint8_t> bytes, const MsgpackLimits& limits = {});

}  // namespace mc::wire

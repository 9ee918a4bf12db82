// The header of a GGUF file (versions 2 and 3, little-endian): metadata, then the name, shape, type and offset of every
// tensor, then the aligned data.
//
//   "GGUF"  u32 version  u64 tensors  u64 pairs
//   pairs    { string key, u32 type, value }             string: u64 length, bytes
//   tensors  { string name, u32 dimensions, u64 size[], u32 type, u64 offset }
//   padding up to a multiple of general.alignment (32 without it), then the data, in which offsets count
//
// The file is untrusted. Every count, length, offset, type and the alignment is checked against the bytes that are
// there, before anything is allocated or read. Errors name the file, the field and its value.
// Source: the GGUF specification, version 3, in the repository ggml-org/ggml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/types.h"

namespace mc::gguf {

/// The numbers in the file.
enum class ValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};
std::string_view to_string(ValueType type);

/// One value of the metadata, or one array. It points into the file, which must outlive it.
class Value {
 public:
  ValueType type() const { return type_; }
  bool is_array() const { return type_ == ValueType::array; }
  /// Elements of an array; 1 otherwise.
  uint64_t count() const { return count_; }
  /// A whole number (of any width) that is not negative.
  std::optional<uint64_t> whole() const;
  /// A number of any type, but no boolean.
  std::optional<double> number() const;
  std::optional<bool> flag() const;
  std::optional<std::string_view> text() const;
  /// The elements of an array of strings; nullopt for other types.
  std::optional<std::vector<std::string_view>> texts() const;
  /// The elements of an array of numbers; nullopt for other types.
  std::optional<std::vector<double>> numbers() const;
  /// The value for messages: a string is quoted and cut off, an array is "[3 strings]".
  std::string shown() const;

 private:
  friend class HeaderReader;
  ValueType type_ = ValueType::u8, element_ = ValueType::u8;
  uint64_t count_ = 1;
  std::span<const std::byte> bytes_;  // a scalar's bytes, a string's text, or an array's elements as they lie
};

struct Pair {
  std::string key;
  Value value;
};

struct TensorInfo {
  std::string name;
  Type type = Type::f32;
  /// The slowest dimension first, as in other tensor formats: [rows, columns]. The file has it the other way round.
  std::vector<uint64_t> shape;
  uint64_t offset = 0, bytes = 0;  // in the data
  uint64_t elements() const;
};

struct Header {
  uint32_t version = 0;
  uint32_t alignment = 32;
  uint64_t data_offset = 0;
  std::vector<Pair> pairs;          // ascending by key; keys are unique
  std::vector<TensorInfo> tensors;  // ascending by name; names are unique, ranges are in the file and do not overlap

  const Value* find(std::string_view key) const;
};

/// Reads and checks the header of a whole file. `name` is for messages. corrupt (MC3002), unsupported (MC3003: version
/// 1 or big-endian numbers, MC3010: a tensor type that is not read). The header points into `file`.
Result<Header> parse(std::span<const std::byte> file, const std::string& name);

}  // namespace mc::gguf

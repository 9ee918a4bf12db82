#include "gguf/header.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::gguf {
namespace {

constexpr uint64_t kPairsMax = 1 << 16;
constexpr uint64_t kTensorsMax = 200'000;
constexpr uint64_t kNameBytesMax = 65535;  // the format's own limit on keys
constexpr uint64_t kDimensionsMax = 4;
constexpr uint64_t kAlignmentMax = 1 << 20;
constexpr size_t kShownMax = 80;

/// Bytes of a value of fixed size; 0 for strings, arrays and numbers that are no type.
uint64_t fixed_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64: return 8;
    case ValueType::string:
    case ValueType::array: return 0;
  }
  return 0;
}

template <class T>
T load(const std::byte* at) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::optional<double> number_at(ValueType type, const std::byte* at) {
  switch (type) {
    case ValueType::u8: return load<uint8_t>(at);
    case ValueType::i8: return load<int8_t>(at);
    case ValueType::u16: return load<uint16_t>(at);
    case ValueType::i16: return load<int16_t>(at);
    case ValueType::u32: return load<uint32_t>(at);
    case ValueType::i32: return load<int32_t>(at);
    case ValueType::f32: return load<float>(at);
    case ValueType::u64: return static_cast<double>(load<uint64_t>(at));
    case ValueType::i64: return static_cast<double>(load<int64_t>(at));
    case ValueType::f64: return load<double>(at);
    case ValueType::boolean:
    case ValueType::string:
    case ValueType::array: return std::nullopt;
  }
  return std::nullopt;
}

/// A name from the file as part of a message: printable, and not longer than a line.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, kShownMax)) out += c >= ' ' && c != 0x7f ? c : '?';
  return out + (text.size() > kShownMax ? "...'" : "'");
}

}  // namespace

std::string_view to_string(ValueType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::optional<uint64_t> Value::whole() const {
  switch (type_) {
    case ValueType::u64: return load<uint64_t>(bytes_.data());
    case ValueType::i64:
      if (const auto value = load<int64_t>(bytes_.data()); value >= 0) return static_cast<uint64_t>(value);
      return std::nullopt;
    case ValueType::f32:
    case ValueType::f64: return std::nullopt;
    default: break;
  }
  const auto value = number();
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

std::optional<double> Value::number() const {
  return is_array() ? std::nullopt : number_at(type_, bytes_.data());
}

std::optional<bool> Value::flag() const {
  if (type_ != ValueType::boolean) return std::nullopt;
  return bytes_[0] != std::byte{0};
}

std::optional<std::string_view> Value::text() const {
  if (type_ != ValueType::string) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
}

std::optional<std::vector<std::string_view>> Value::texts() const {
  if (!is_array() || element_ != ValueType::string) return std::nullopt;
  std::vector<std::string_view> out;
  out.reserve(count_);
  size_t at = 0;
  for (uint64_t i = 0; i < count_; ++i) {
    const auto length = load<uint64_t>(bytes_.data() + at);
    MC_ASSERT_LE(length, bytes_.size() - at - 8);  // parse() has walked over the strings
    out.emplace_back(reinterpret_cast<const char*>(bytes_.data()) + at + 8, length);
    at += 8 + length;
  }
  MC_ASSERT_EQ(at, bytes_.size());
  return out;
}

std::optional<std::vector<double>> Value::numbers() const {
  const uint64_t each = fixed_bytes(element_);
  if (!is_array() || each == 0 || element_ == ValueType::boolean) return std::nullopt;
  MC_ASSERT_EQ(each * count_, bytes_.size());
  std::vector<double> out(count_);
  for (uint64_t i = 0; i < count_; ++i) out[i] = *number_at(element_, bytes_.data() + i * each);
  return out;
}

std::string Value::shown() const {
  if (is_array()) return "[" + std::to_string(count_) + " of " + std::string(to_string(element_)) + "]";
  if (const auto string = text()) return quoted(*string);
  if (const auto boolean = flag()) return *boolean ? "true" : "false";
  if (const auto value = whole()) return std::to_string(*value);
  char line[32];
  std::snprintf(line, sizeof line, "%.9g", number().value_or(0));
  return line;
}

uint64_t TensorInfo::elements() const {
  uint64_t count = 1;
  for (uint64_t size : shape) count *= size;  // parse() checked the product
  return count;
}

const Value* Header::find(std::string_view key) const {
  const auto at =
      std::lower_bound(pairs.begin(), pairs.end(), key, [](const Pair& p, std::string_view k) { return p.key < k; });
  return at != pairs.end() && at->key == key ? &at->value : nullptr;
}

/// Reads the header from front to back. Every step checks that its bytes are there.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  Result<Header> run() {
    Header header;
    MC_CHECK(read_magic(header));
    MC_TRY(tensors, count("tensor_count", kTensorsMax, 24));
    MC_TRY(pairs, count("metadata_kv_count", kPairsMax, 13));
    MC_CHECK(read_pairs(pairs, header));
    MC_CHECK(read_alignment(header));
    MC_CHECK(read_tensors(tensors, header));
    header.data_offset = (at_ + header.alignment - 1) / header.alignment * header.alignment;
    MC_CHECK(check_ranges(header));
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    const auto same = [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; };
    const auto twice = std::adjacent_find(header.tensors.begin(), header.tensors.end(), same);
    if (twice != header.tensors.end()) return damaged("tensor " + quoted(twice->name) + " is listed twice");
    return header;
  }

 private:
  Error damaged(const std::string& what) const { return user_error(err::kModelCorrupt, name_ + ": " + what); }
  Error short_of(const std::string& field) const {
    return damaged(field + " at byte " + std::to_string(at_) + " reaches beyond the end of the file, which has " +
                   std::to_string(file_.size()) + " bytes; is it truncated?");
  }
  uint64_t left() const { return file_.size() - at_; }

  template <class T>
  Result<T> scalar(const std::string& field) {
    if (left() < sizeof(T)) return short_of(field);
    const T value = load<T>(file_.data() + at_);
    at_ += sizeof(T);
    return value;
  }

  /// The number of things that take at least `least` bytes each.
  Result<uint64_t> count(const std::string& field, uint64_t most, uint64_t least) {
    MC_TRY(value, scalar<uint64_t>(field));
    if (value > most || value > left() / least)
      return damaged(field + " is " + std::to_string(value) + "; at most " + std::to_string(most) +
                     " are allowed, and the file has " + std::to_string(file_.size()) + " bytes");
    return value;
  }

  Result<std::string_view> string(const std::string& field, uint64_t most) {
    MC_TRY(length, scalar<uint64_t>(field + " (length)"));
    if (length > left() || length > most)
      return damaged(field + " has a length of " + std::to_string(length) + " bytes; at most " +
                     std::to_string(std::min(most, left())) + " fit here; is the file truncated?");
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + at_, length);
    at_ += length;
    return text;
  }

  /// Skips element `index` of an array of strings, which gets a name only for an error: a vocabulary has many.
  Result<void> skip_string(const std::string& field, uint64_t index) {
    if (left() >= sizeof(uint64_t)) {
      const auto length = load<uint64_t>(file_.data() + at_);
      if (length <= left() - sizeof length) {
        at_ += sizeof length + length;
        return {};
      }
    }
    MC_CHECK(string(field + "[" + std::to_string(index) + "]", file_.size()));
    return {};
  }

  Result<void> read_magic(Header& header) {
    if (file_.size() < 24 || std::memcmp(file_.data(), "GGUF", 4) != 0)
      return damaged("is no GGUF file: it does not begin with the bytes GGUF and a header of 24 bytes");
    at_ = 4;
    MC_TRY(version, scalar<uint32_t>("version"));
    if (version == 2 || version == 3) {
      header.version = version;
      return {};
    }
    const bool swapped = version == 2u << 24 || version == 3u << 24;
    return user_error(err::kModelUnsupported,
                      name_ + ": version is " + std::to_string(version) +
                          (swapped ? ", so its numbers are big-endian" : "") + "; supported: 2 and 3, little-endian",
                      {}, "convert the model again with a current converter, on a little-endian host");
  }

  Result<Value> read_value(const std::string& field) {
    MC_TRY(number, scalar<uint32_t>(field + " (type)"));
    Value value;
    value.type_ = static_cast<ValueType>(number);
    if (value.type_ == ValueType::string) {
      MC_TRY(text, string(field, file_.size()));
      value.bytes_ = std::as_bytes(std::span(text.data(), text.size()));
      return value;
    }
    if (value.type_ == ValueType::array) {
      MC_CHECK(read_array(field, value));
      return value;
    }
    const uint64_t bytes = fixed_bytes(value.type_);
    if (bytes == 0) return damaged(field + " has value type " + std::to_string(number) + "; types go from 0 to 12");
    if (left() < bytes) return short_of(field);
    value.bytes_ = file_.subspan(at_, bytes);
    if (value.type_ == ValueType::boolean && value.bytes_[0] > std::byte{1})
      return damaged(field + " is a boolean of value " + std::to_string(static_cast<int>(value.bytes_[0])));
    at_ += bytes;
    return value;
  }

  Result<void> read_array(const std::string& field, Value& value) {
    MC_TRY(number, scalar<uint32_t>(field + " (element type)"));
    value.element_ = static_cast<ValueType>(number);
    MC_TRY(elements, scalar<uint64_t>(field + " (length)"));
    value.count_ = elements;
    const uint64_t begin = at_, each = fixed_bytes(value.element_);
    if (each == 0 && value.element_ != ValueType::string)
      return damaged(field + " is an array of value type " + std::to_string(number) +
                     "; elements are numbers, booleans or strings");
    if (elements > left() / std::max<uint64_t>(each, each == 0 ? 8 : 1))
      return damaged(field + " has " + std::to_string(elements) + " elements, but only " + std::to_string(left()) +
                     " bytes follow; is the file truncated?");
    if (each > 0)
      at_ += elements * each;
    else
      for (uint64_t i = 0; i < elements; ++i) MC_CHECK(skip_string(field, i));
    value.bytes_ = file_.subspan(begin, at_ - begin);
    return {};
  }

  Result<void> read_pairs(uint64_t pairs, Header& header) {
    for (uint64_t i = 0; i < pairs; ++i) {
      MC_TRY(key, string("metadata key " + std::to_string(i), kNameBytesMax));
      MC_TRY(value, read_value(std::string(key.substr(0, 200))));
      header.pairs.push_back({std::string(key), value});
    }
    std::sort(header.pairs.begin(), header.pairs.end(), [](const Pair& a, const Pair& b) { return a.key < b.key; });
    const auto same = [](const Pair& a, const Pair& b) { return a.key == b.key; };
    const auto twice = std::adjacent_find(header.pairs.begin(), header.pairs.end(), same);
    if (twice != header.pairs.end()) return damaged("metadata key " + quoted(twice->key) + " occurs twice");
    return {};
  }

  Result<void> read_alignment(Header& header) const {
    const Value* value = header.find("general.alignment");
    if (!value) return {};
    const auto alignment = value->whole();
    if (!alignment || !std::has_single_bit(*alignment) || *alignment < 8 || *alignment > kAlignmentMax)
      return damaged("general.alignment is " + value->shown() + "; it must be a power of two from 8 to " +
                     std::to_string(kAlignmentMax));
    header.alignment = static_cast<uint32_t>(*alignment);
    return {};
  }

  Result<void> read_tensors(uint64_t tensors, Header& header) {
    for (uint64_t i = 0; i < tensors; ++i) {
      MC_TRY(name, string("name of tensor " + std::to_string(i), kNameBytesMax));
      const std::string field = "tensor " + quoted(name);
      TensorInfo tensor{.name = std::string(name)};
      MC_TRY(dimensions, scalar<uint32_t>(field + " (dimensions)"));
      if (dimensions > kDimensionsMax)
        return damaged(field + " has " + std::to_string(dimensions) + " dimensions; at most " +
                       std::to_string(kDimensionsMax) + " are allowed");
      uint64_t elements = 1;
      for (uint32_t d = 0; d < dimensions; ++d) {
        MC_TRY(size, scalar<uint64_t>(field + " (shape)"));
        if (__builtin_mul_overflow(elements, size, &elements) || elements > uint64_t{1} << 60)
          return damaged(field + " has more than 2^60 elements");
        tensor.shape.insert(tensor.shape.begin(), size);
      }
      MC_TRY(number, scalar<uint32_t>(field + " (type)"));
      const TypeInfo* type = find_type(number);
      if (!type)
        return user_error(err::kDtypeUnsupported, name_ + ": " + field + " has type " + type_name(number), {},
                          "use a file whose tensors are " + type_names());
      tensor.type = type->type;
      const uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
      if (row % type->weights != 0)
        return damaged(field + " has rows of " + std::to_string(row) + " weights, but " + std::string(type->name) +
                       " has blocks of " + std::to_string(type->weights));
      tensor.bytes = elements / type->weights * type->bytes;
      MC_TRY(offset, scalar<uint64_t>(field + " (offset)"));
      if (offset % header.alignment != 0)
        return damaged(field + " has offset " + std::to_string(offset) + ", no multiple of general.alignment " +
                       std::to_string(header.alignment));
      tensor.offset = offset;
      header.tensors.push_back(std::move(tensor));
    }
    return {};
  }

  /// Every tensor lies in the file, and no byte belongs to two.
  Result<void> check_ranges(const Header& header) const {
    const uint64_t room = file_.size() > header.data_offset ? file_.size() - header.data_offset : 0;
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& tensor : header.tensors) {
      if (tensor.offset > room || tensor.bytes > room - tensor.offset)
        return damaged("tensor " + quoted(tensor.name) + " has " + std::to_string(tensor.bytes) + " bytes at offset " +
                       std::to_string(tensor.offset) + ", but the file has " + std::to_string(room) +
                       " bytes of data; is it truncated?");
      if (tensor.bytes > 0) order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
      return a->offset != b->offset ? a->offset < b->offset : a->name < b->name;
    });
    for (size_t i = 1; i < order.size(); ++i)
      if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes)
        return damaged("tensor " + quoted(order[i]->name) + " at offset " + std::to_string(order[i]->offset) +
                       " overlaps " + quoted(order[i - 1]->name) + ", which ends at " +
                       std::to_string(order[i - 1]->offset + order[i - 1]->bytes));
    return {};
  }

  const std::span<const std::byte> file_;
  const std::string& name_;
  uint64_t at_ = 0;  // never beyond the end of the file
};

Result<Header> parse(std::span<const std::byte> file, const std::string& name) {
  auto header = HeaderReader(file, name).run();
  if (!header) return header;
  for (const TensorInfo& tensor : header->tensors)
    MC_ASSERT(tensor.bytes == 0 || header->data_offset + tensor.offset + tensor.bytes <= file.size());
  return header;
}

}  // namespace mc::gguf

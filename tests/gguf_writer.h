// Writes small GGUF files for tests, correct ones and, byte by byte, wrong ones.
#pragma once

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "test.h"

namespace mc::test {

template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string gguf_string(std::string_view text) {
  return little_endian<uint64_t>(text.size()) + std::string(text);
}

class GgufWriter {
 public:
  using ValueType = gguf::ValueType;

  /// A pair whose value is given as bytes.
  GgufWriter& raw(std::string_view key, uint32_t type, const std::string& value) {
    pairs_ += gguf_string(key) + little_endian(type) + value;
    ++pair_count_;
    return *this;
  }
  GgufWriter& text(std::string_view key, std::string_view value) { return raw(key, 8, gguf_string(value)); }
  GgufWriter& whole(std::string_view key, uint32_t value) { return raw(key, 4, little_endian(value)); }
  GgufWriter& number(std::string_view key, float value) { return raw(key, 6, little_endian(value)); }
  GgufWriter& flag(std::string_view key, bool value) { return raw(key, 7, std::string(1, value ? '\1' : '\0')); }
  GgufWriter& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = little_endian<uint32_t>(8) + little_endian<uint64_t>(values.size());
    for (const std::string& value : values) bytes += gguf_string(value);
    return raw(key, 9, bytes);
  }
  template <class T>
  GgufWriter& numbers(std::string_view key, ValueType type, const std::vector<T>& values) {
    std::string bytes = little_endian(static_cast<uint32_t>(type)) + little_endian<uint64_t>(values.size());
    for (T value : values) bytes += little_endian(value);
    return raw(key, 9, bytes);
  }
  /// `shape` has the slowest dimension first; the data are the tensor's bytes.
  GgufWriter& tensor(std::string_view name, const std::vector<uint64_t>& shape, gguf::Type type, std::string data) {
    return tensor_at(name, shape, static_cast<uint32_t>(type), data_.size(), std::move(data));
  }
  /// The same with any type number and offset.
  GgufWriter& tensor_at(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset,
                        std::string data) {
    tensors_ += gguf_string(name) + little_endian(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) tensors_ += little_endian(shape[i]);
    tensors_ += little_endian(type) + little_endian(offset);
    ++tensor_count_;
    data_ += data;
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    return *this;
  }
  /// The alignment of tensors added from now on; also written as general.alignment.
  GgufWriter& align(uint32_t alignment) {
    alignment_ = alignment;
    return whole("general.alignment", alignment);
  }
  std::string bytes(uint32_t version = 3) const {
    std::string out = "GGUF" + little_endian(version) + little_endian(tensor_count_) + little_endian(pair_count_);
    out += pairs_ + tensors_;
    out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
    return out + data_;
  }

 private:
  std::string pairs_, tensors_, data_;
  uint64_t pair_count_ = 0, tensor_count_ = 0;
  size_t alignment_ = 32;
};

/// A folder for model files that disappears with the test.
struct GgufFolder {
  std::filesystem::path path = std::filesystem::path(binary_dir()) / "tests" / ("gguf-" + std::to_string(::getpid()));
  GgufFolder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~GgufFolder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const GgufWriter& writer) const {
    std::ofstream(path / name, std::ios::binary) << writer.bytes();
    return (path / name).string();
  }
};

}  // namespace mc::test

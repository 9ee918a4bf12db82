// The packing of frame payloads (internal to wire): little-endian numbers, and texts with a 16-bit length. The reader
// bounds every length before it uses it. A decoder ends with done(), so it consumes exactly the bytes that it was
// given.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::wire {

class Writer {
 public:
  template <class T>
  void number(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  template <size_t N>
  void raw(const std::array<uint8_t, N>& value) {
    const auto* p = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), p, p + N);
  }
  void text(std::string_view value, size_t limit) {
    value = value.substr(0, limit);
    number(static_cast<uint16_t>(value.size()));
    const auto* p = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), p, p + value.size());
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Failure is sticky: after the first short read every value reads as zero, and done() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  template <size_t N>
  void raw(std::array<uint8_t, N>& out) {
    take(out.data(), N);
  }
  std::string text(size_t limit) {
    const size_t size = number<uint16_t>();
    if (size > limit || size > bytes_.size()) {
      failed_ = true;
      return {};
    }
    std::string value(size, '\0');
    take(value.data(), size);
    return value;
  }
  bool flag() {
    const auto value = number<uint8_t>();
    if (value > 1) failed_ = true;
    return value == 1;
  }
  bool failed() const { return failed_; }
  bool done() const { return !failed_ && bytes_.empty(); }

 private:
  void take(void* out, size_t size) {
    if (failed_ || size > bytes_.size()) {
      failed_ = true;
      return;
    }
    if (size > 0) std::memcpy(out, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

inline Error malformed(std::string_view what, size_t size) {
  return Error{Code::corrupt, "xfer: malformed " + std::string(what) + " (" + std::to_string(size) + " bytes)"};
}

}  // namespace mc::wire

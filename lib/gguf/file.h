// An open GGUF model: one file, or the parts of a split one (NAME-00001-of-00003.gguf ...), mapped read-only. The
// metadata is that of the first part; the tensors are those of all parts. A file that is cut off while it is mapped
// ends the process with an error (base/mapped_file.h). A model keeps no mapping once its weights are packed, but Q8_0
// matrices are not packed, and stay mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "gguf/header.h"

namespace mc::gguf {

/// A tensor and its bytes in the mapping.
struct Tensor {
  TensorInfo info;
  const std::byte* data = nullptr;
  size_t part = 0;  // index into paths()
};

class File {
 public:
  /// Opens a file, and all parts when it is the first part of several. not_found (MC3001) names a missing part, invalid
  /// (MC3002) parts that do not belong together; otherwise the errors of parse().
  static Result<File> open(const std::string& path);

  const Header& header() const { return header_; }
  std::span<const Tensor> tensors() const { return tensors_; }  // ascending by name
  const Tensor* find_tensor(std::string_view name) const;
  std::span<const std::string> paths() const { return paths_; }
  uint64_t bytes() const;

  // Fields of the metadata. An absent field is nullopt; a field of another type or size is an error (MC3006) that names
  // file, field and value.
  Result<std::optional<uint64_t>> whole(const std::string& key, uint64_t low, uint64_t high) const;
  Result<std::optional<double>> positive(const std::string& key) const;
  Result<std::optional<bool>> flag(const std::string& key) const;
  Result<std::optional<std::string>> text(const std::string& key) const;
  /// The error of a field: "FILE: KEY WHAT".
  Error invalid(const std::string& key, const std::string& what) const;
  /// The error of a value that is valid but not supported: "FILE: KEY is VALUE; supported: ALLOWED".
  Error unsupported(err::Number number, const std::string& key, const std::string& allowed) const;

 private:
  File() = default;
  Result<Header> map(const std::string& path);
  Result<void> open_parts(const std::string& first, uint64_t count);
  Result<uint64_t> part_number(const Header& header, const char* key, const std::string& path) const;
  void add_tensors(const Header& header);

  std::vector<MappedFile> mappings_;
  std::vector<std::string> paths_;
  Header header_;  // of the first part
  std::vector<Tensor> tensors_;
};

/// Whether the file begins with the bytes GGUF. False when it cannot be read.
bool is_gguf(const std::string& path);

}  // namespace mc::gguf

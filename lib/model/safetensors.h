// Weights in safetensors files: 8 bytes of little-endian header length, a JSON header with dtype, shape and byte range
// of every tensor, then the raw data. The weights are in one file, or in shards that an index names.
//
// The file is untrusted. The header must fit. Ranges must be in the data, have exactly shape x dtype bytes, not
// overlap, and cover all of the data. Errors name file, tensor and numbers. Files are mapped read-only. A file that is
// cut off while it is mapped ends the process with an error (base/mapped_file.h). The model keeps no mapping once its
// weights are packed. Q8_0 matrices of a GGUF file are not packed, and their file stays mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "gguf/gguf.h"

namespace mc::model {

struct TensorEntry {
  std::string name;
  std::string dtype_name;      // name in the file: "BF16"
  std::optional<Dtype> dtype;  // empty for formats without arithmetic here (I64, F64, ...)
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // byte offsets in the data section

  uint64_t elements() const;
  std::string shape_text() const;  // "[2048, 256]"
};

struct SafetensorsHeader {
  uint64_t data_offset = 0;          // offset of the data section in the file
  std::vector<TensorEntry> tensors;  // sorted by name
};

/// Reads and checks the header. `file` must contain at least the header; `file_bytes` is the size of the file. corrupt
/// (MC3002) or unsupported (MC3010: an unknown dtype). `name` is for messages.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, uint64_t file_bytes,
                                            std::string_view name);

/// Has the kernel read the pages of [begin, end), which lie in a mapped file, while this process does something else.
/// Best effort.
void read_soon(const std::byte* begin, const std::byte* end);

/// A tensor of an open model. `data` points into a mapping that lives as long as the WeightFiles.
struct Tensor {
  TensorEntry entry;
  const std::byte* data = nullptr;
  size_t file = 0;                        // index into files()
  std::optional<gguf::Type> blocks = {};  // quantised blocks of a GGUF file; entry.dtype is empty then
  size_t paired_head = 0;                 // ops::WeightRows
  uint64_t bytes() const { return entry.end - entry.begin; }
};

/// Formats of less than 16 bits: fp8, and the blocks of GGUF files. Norms and biases have none.
enum class Narrow : uint8_t { refused, allowed };

class WeightFiles {
 public:
  /// Opens model.safetensors or the shards of model.safetensors.index.json in a directory, or a GGUF file. not_found
  /// (MC3001) names the missing file.
  static Result<WeightFiles> open(const std::string& place);
  WeightFiles() = default;  // no files

  std::span<const Tensor> tensors() const { return tensors_; }  // sorted by name
  const Tensor* find(std::string_view name) const;
  /// The tensor with exactly this shape, in f32, f16 or bf16 (or narrower). An error names the expected and the actual
  /// shape.
  Result<const Tensor*> require(std::string_view name, std::span<const uint64_t> shape,
                                Narrow narrow = Narrow::refused) const;
  /// Returns the tensor's pages to the system. A later read of the tensor reads the file again.
  void drop(const Tensor& tensor) const;
  std::span<const std::string> files() const { return paths_; }
  /// Where the last tensor of a file ends.
  const std::byte* data_end(size_t file) const { return ends_[file]; }
  uint64_t total_bytes() const;
  bool is_gguf() const { return gguf_.has_value(); }

  /// SHA-256 over all tensors in order of name: name, dtype, shape, and the CRC32C of each 4 KiB of content. The
  /// distribution over files has no influence. Up to 64 MiB of weights are covered completely. Of more, each tensor
  /// contributes its first and last 4 KiB, and one 4 KiB piece of every total/4096 bytes. These are about 16 MiB, which
  /// distinguish two trainings, but not two files that differ in a few chosen weights.
  std::string digest() const;

 private:
  Result<void> open_place(const std::string& place);
  Result<void> add_file(const std::string& directory, const std::string& file);
  Result<void> open_shards(const std::string& directory, const std::string& index_path);
  Result<void> open_gguf(const std::string& path);

  std::vector<MappedFile> mappings_;
  std::optional<gguf::File> gguf_;
  std::vector<std::string> paths_;
  std::vector<Tensor> tensors_;
  std::vector<const std::byte*> ends_;  // of each file
};

}  // namespace mc::model

// A file of a model, mapped for reading. When the file is cut off while it is mapped, or its disk fails, the kernel
// raises SIGBUS in a thread that reads the lost bytes. The process then prints an error that names the file (MC3002 or
// MC5005) and exits with 1, because no computation can go on without its weights. Every other SIGBUS keeps the action
// that it had.
//
//   MC_TRY(file, MappedFile::open("/models/qwen/model.safetensors"));
//   MC_TRY(header, parse(file.bytes()));
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace mc {

class MappedFile {
 public:
  /// Errors are those of open_model_file(). An empty file has no bytes.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  /// Valid as long as this object or the one that it was moved to.
  std::span<const std::byte> bytes() const;

 private:
  struct Mapping;
  explicit MappedFile(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;  // null only after a move
};

}  // namespace mc

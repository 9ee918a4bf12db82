// Reading the files of a model directory, which come from strangers. A model may hold a FIFO, a device, a socket or a
// directory under the name of a file: opening a FIFO waits for a writer, and a device may never end. Each is refused
// with an error of a model, and nothing here waits.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"

namespace mc {

struct ModelFile {
  Fd fd;
  uint64_t bytes = 0;
};

/// Opens for reading. MC3001: there is no such file. MC3002: it is no regular file. MC5005: it cannot be opened.
Result<ModelFile> open_model_file(const std::string& path);
/// The whole file. MC3002 also when it has more than `limit` bytes, before any is read.
Result<std::string> read_model_file(const std::string& path, size_t limit);

}  // namespace mc

// Copies weights to a device in the type in which it multiplies them. The host's threads widen the next piece of a
// matrix while the last one is copied from page-locked memory.
//
//   DeviceUpload upload(device, parallel);
//   MC_CHECK(upload.prepare());
//   MC_CHECK(upload.matrix(packed, {}, address));
//   MC_CHECK(upload.finish());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/result.h"
#include "gpu/gpu.h"
#include "model/tensor_part.h"
#include "ops/matmul.h"
#include "ops/unpack.h"

namespace mc::model {

class DeviceUpload {
 public:
  /// The device and the threads must outlive it.
  DeviceUpload(gpu::Device& device, Parallel& parallel) : device_(device), parallel_(parallel) {}
  Result<void> prepare();
  /// Queues the rows of a matrix, widened to bf16: [rows, columns] of the cut at `to`.
  Result<void> matrix(const ops::PackedMatrix& from, const MatrixCut& cut, uint64_t to);
  /// Queues the codes of an fp8 matrix likewise, a byte each.
  Result<void> codes(const ops::PackedMatrix& from, const MatrixCut& cut, uint64_t to);
  /// Queues `count` rows of a table, widened to bf16; read(row, out) writes one, and any thread of the host calls it.
  Result<void> table(size_t count, size_t columns, uint64_t to,
                     const std::function<void(size_t row, float* out)>& read);
  /// Waits for what was queued.
  Result<void> finish();

 private:
  struct Piece {
    gpu::PinnedBuffer memory;
    gpu::Event copied;
  };
  /// A panel that a thread has unpacked, memory to unpack it, and a row of a table.
  struct Scratch {
    ops::UnpackScratch unpack;
    std::vector<std::byte> panel;
    std::vector<float> row;
  };
  /// Makes the scratch of all threads large enough, because the threads must not throw. MC5003: there is no memory.
  Result<void> fit(const ops::PackedMatrix* matrix, size_t panel_bytes, size_t row_columns);
  /// Writes one unit of rows.
  using Fill = std::function<void(size_t unit, Scratch& scratch, std::byte* out)>;
  Result<void> pieces(size_t units, size_t unit_bytes, size_t bytes, uint64_t to, const Fill& fill);
  Result<std::span<std::byte>> room(Piece& piece, size_t bytes);
  /// Unpacks panel `index` of a matrix, row-major.
  using Unpack = std::function<void(size_t index, Scratch& scratch, std::byte* out)>;
  Result<void> rows(const ops::PackedMatrix& from, const MatrixCut& cut, size_t weight_bytes, uint64_t to,
                    const Unpack& unpack);

  gpu::Device& device_;
  Parallel& parallel_;
  gpu::Stream stream_;
  Piece pieces_[2];  // one is filled while the other one is copied
  size_t next_ = 0;
  std::vector<Scratch> scratch_;  // by thread
};

}  // namespace mc::model

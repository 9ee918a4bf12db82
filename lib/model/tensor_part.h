// The part of a model that one of several devices computes (Megatron-LM, arXiv:1909.08053, section 3). Attention is
// split by KV heads with their query heads. The inner width of each MLP, and of each expert, is split into columns of
// its first matrices and rows of its last one. Every device has the whole residual stream, the norms, the router of a
// mixture and the embeddings; the first one makes the logits. So each layer has two sums over the devices, one behind
// the output of attention and one behind the MLP.
//
//   kernel matrix   rows             columns
//   qkv             heads of part    hidden
//   output          hidden           heads of part
//   gate_up         inner of part    hidden
//   down            hidden           inner of part
//
// Every rank computes the norms and the router for itself. Their bits must be equal on all ranks: the residual stream
// has equal bits behind a sum (gpu/nccl.h), the devices are of one kind (DeviceGroup::open() refuses others), and the
// project's own kernels multiply the router. A library may choose another algorithm on each device, and a near tie of
// two experts would then send a row to different experts on different ranks.
//
// Pages of the host stay whole: a part is a run of bytes in each extent, because an extent has one record for each KV
// head (base/extent.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/extent.h"
#include "base/result.h"
#include "model/config.h"

namespace mc::model {

struct TensorPart {
  uint32_t rank = 0, ranks = 1;
  bool is_whole() const { return ranks == 1; }
  /// Its sums have the residual stream and the biases behind the split; the other ranks add to them.
  bool is_first() const { return rank == 0; }
};

/// MC7002 when heads, KV heads or an inner width cannot be split evenly: the number, and by what it can be divided.
Result<void> check_split(const ModelConfig& config, uint32_t ranks, const std::string& devices);
/// The heads and inner widths of one part. Inner widths are rounded up to what kernels read at a time; the rest of such
/// a matrix is zero.
ModelConfig config_of(const ModelConfig& whole, const TensorPart& part);

/// Rows of a matrix that follow one another, and in a part so many zero rows behind them that `padded` rows are there.
struct RowRun {
  size_t first = 0, count = 0, padded = 0;
};
/// The rows and columns that a device takes of a matrix. No runs: all rows. No columns: all columns.
struct MatrixCut {
  std::vector<RowRun> rows;
  RowRun columns;

  size_t row_count(size_t of) const;
  size_t column_count(size_t of) const { return columns.padded > 0 ? columns.padded : of; }
  /// Whether it takes all of a matrix in its order.
  bool is_whole(size_t of_rows, size_t of_columns) const;
};
/// Rows of q, k and v.
std::vector<RowRun> attention_rows(const ModelConfig& whole, const TensorPart& part);
/// Rows of gate and up of an MLP of `inner`.
std::vector<RowRun> inner_rows(size_t inner, const TensorPart& part);
/// Columns of the output matrix of attention, and of down of an MLP of `inner`.
RowRun attention_columns(const ModelConfig& whole, const TensorPart& part);
RowRun inner_columns(size_t inner, const TensorPart& part);

/// The KV heads of a part in pages of the host and in pages of its device.
struct KvPart {
  ExtentLayout host, device;
  size_t first = 0;  // byte of a layer's extent in a host's page

  static KvPart of(const ExtentLayout& host, const TensorPart& part);
  size_t host_offset(uint32_t layer) const { return host.layer_offset(layer) + first; }
};

/// Bytes of the weights on each device at most. `total`: of one device alone.
size_t part_weight_bytes(const ModelConfig& whole, size_t total, const TensorPart& part);

}  // namespace mc::model

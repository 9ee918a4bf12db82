#include "model/tensor_part.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "gpu/devices.h"

namespace mc::model {
namespace {

constexpr size_t kStep = 8;  // elements of a row that a kernel reads at a time

/// The numbers of devices up to `most` that divide all of `values`: "2, 4".
std::string divisors_of(std::span<const uint32_t> values, uint32_t most) {
  std::string out;
  for (uint32_t by = 2; by <= most; ++by) {
    bool divides = true;
    for (const uint32_t value : values) divides = divides && value % by == 0;
    if (divides) out += (out.empty() ? "" : ", ") + std::to_string(by);
  }
  return out;
}

uint32_t padded_width(uint32_t inner, const TensorPart& part) {
  if (part.is_whole()) return inner;
  return static_cast<uint32_t>(round_up(inner / part.ranks, kStep));
}

}  // namespace

Result<void> check_split(const ModelConfig& config, uint32_t ranks, const std::string& devices) {
  struct Width {
    const char* name;
    uint32_t value;
  };
  std::vector<Width> widths = {{"attention heads", config.heads}, {"KV heads", config.kv_heads}};
  bool has_dense = false;
  for (uint32_t layer = 0; layer < config.layers; ++layer) has_dense = has_dense || !config.has_mixture(layer);
  if (has_dense) widths.push_back({"elements of an MLP's inner width", config.intermediate});
  if (config.mixture.experts > 0) {
    widths.push_back({"elements of an expert's inner width", config.mixture.intermediate});
    if (config.mixture.shared_intermediate > 0)
      widths.push_back({"elements of the shared expert's inner width", config.mixture.shared_intermediate});
  }
  std::vector<uint32_t> values;
  for (const Width& width : widths) values.push_back(width.value);
  const std::string fit = divisors_of(values, gpu::kDevicesMax);
  for (const Width& width : widths)
    if (width.value % ranks != 0)
      return user_error(err::kDeviceUnusable,
                        devices + ": the model's " + std::to_string(width.value) + " " + width.name +
                            " cannot be split over " + std::to_string(ranks) + " devices",
                        "--device",
                        fit.empty() ? "name one device" : "name one device, or a number that divides: " + fit);
  return {};
}

ModelConfig config_of(const ModelConfig& whole, const TensorPart& part) {
  MC_ASSERT(part.rank < part.ranks && whole.heads % part.ranks == 0 && whole.kv_heads % part.ranks == 0);
  ModelConfig out = whole;
  out.heads = whole.heads / part.ranks;
  out.kv_heads = whole.kv_heads / part.ranks;
  out.intermediate = padded_width(whole.intermediate, part);
  out.mixture.intermediate = padded_width(whole.mixture.intermediate, part);
  out.mixture.shared_intermediate = padded_width(whole.mixture.shared_intermediate, part);
  return out;
}

size_t MatrixCut::row_count(size_t of) const {
  if (rows.empty() || of == 0) return of;
  size_t count = 0;
  for (const RowRun& run : rows) count += run.padded;
  return count;
}

bool MatrixCut::is_whole(size_t of_rows, size_t of_columns) const {
  const bool all_columns = columns.padded == 0 || (columns.first == 0 && columns.count == of_columns);
  size_t end = 0;
  for (const RowRun& run : rows) {
    if (run.first != end || run.padded != run.count) return false;
    end += run.count;
  }
  return all_columns && (rows.empty() || end == of_rows) && column_count(of_columns) == of_columns;
}

std::vector<RowRun> attention_rows(const ModelConfig& whole, const TensorPart& part) {
  const size_t q = size_t{whole.heads} * whole.head_dim, kv = size_t{whole.kv_heads} * whole.head_dim;
  const size_t q_part = q / part.ranks, kv_part = kv / part.ranks;
  return {{part.rank * q_part, q_part, q_part},
          {q + part.rank * kv_part, kv_part, kv_part},
          {q + kv + part.rank * kv_part, kv_part, kv_part}};
}

std::vector<RowRun> inner_rows(size_t inner, const TensorPart& part) {
  const RowRun gate = inner_columns(inner, part);
  return {gate, {inner + gate.first, gate.count, gate.padded}};
}

RowRun attention_columns(const ModelConfig& whole, const TensorPart& part) {
  return attention_rows(whole, part)[0];
}

RowRun inner_columns(size_t inner, const TensorPart& part) {
  const size_t count = inner / part.ranks;
  return {part.rank * count, count, padded_width(static_cast<uint32_t>(inner), part)};
}

KvPart KvPart::of(const ExtentLayout& host, const TensorPart& part) {
  KvPart out{.host = host, .device = host};
  out.device.kv_heads = host.kv_heads / part.ranks;
  out.first = size_t{part.rank} * out.device.layer_bytes();
  MC_ASSERT_EQ(part.ranks * out.device.layer_bytes(), host.layer_bytes());
  return out;
}

size_t part_weight_bytes(const ModelConfig& whole, size_t total, const TensorPart& part) {
  if (part.is_whole()) return total;
  const size_t table = size_t{whole.vocab} * whole.hidden * 2;
  const size_t ends = std::min(total, table * (whole.tied_embeddings ? 1 : 2));
  // Norms, biases and routers are on every device, and inner widths are rounded up.
  const size_t vectors = size_t{4} * whole.layers * (4 * whole.hidden + 2 * whole.head_dim);
  const size_t routers = size_t{2} * whole.layers * (whole.mixture.experts + 1) * whole.hidden;
  const size_t mlps = std::max<size_t>(whole.mixture.experts + 1, 1) * whole.layers;
  const size_t padding = mlps * 3 * kStep * whole.hidden * 2;
  return ends + (total - ends) / part.ranks + vectors + routers + padding;
}

}  // namespace mc::model

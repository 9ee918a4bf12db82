// See matmul.h. Slices are 128 columns: small enough that a single tile of a small model feeds several
// threads, large enough that a slice's panels (f32, K = 4096: 2 MiB) are reused from L2 by the tiles of
// a group. oneDNN runs where a slice is whole panels, K needs no padding and is large; our panel kernel
// does the rest, and all products of quantised weights: whole numbers are faster than f32 tiles (370 against 202
// GFLOP/s on one Zen 5 core, K = 576).
#include "ops/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "ops/onednn.h"
#include "ops/quant_pack.h"

namespace mc::ops {
namespace {

constexpr size_t kSlicePanels = 2;
constexpr size_t kGroupTiles = 8;
constexpr size_t kQuantTaskRows = 2 * kTileRows;  // the codes of a panel are widened once a task
static_assert(kQuantTaskRows % kQuantRows == 0);
constexpr size_t kLibraryColumnsMin = 512;
constexpr size_t kDecodeTaskBytes = 96 * 1024;
constexpr int64_t kLineTasks = 8;  // decode tasks of rows in place for each thread: long, as each begins with a miss
constexpr size_t kPackTaskBytes = 512 * 1024;  // of the file; its pages are given back once a task

void read_fp8_row(const WeightRows& part, size_t row, size_t columns, float* out) {
  const std::array<float, 256>& values = e4m3_values();
  const auto* codes = static_cast<const uint8_t*>(part.data) + row * columns;
  const WeightScales& scales = part.scales;
  const float* line = scales.values + row / scales.block_rows * scales.per_row;
  for (size_t first = 0; first < columns; first += scales.block_columns) {
    const float scale = line[first / scales.block_columns];
    const size_t last = std::min(columns, first + scales.block_columns);
    for (size_t i = first; i < last; ++i) out[i] = values[codes[i]] * scale;
  }
}

/// A row of Q8_0 blocks as a panel of form eight holds it: a scale that has no minimum in f16 is no number.
void read_line(const std::byte* line, size_t columns, float* out) {
  const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);
  gguf::widen_row(type.type, line, columns, out);
  for (size_t first = 0; first < columns; first += type.weights, line += type.bytes) {
    uint16_t scale;
    std::memcpy(&scale, line, sizeof scale);
    if (!(std::abs(f16_to_f32(scale)) <= kLineScaleMax)) std::fill_n(out + first, type.weights, std::nanf(""));
  }
}

/// Row `row` of `part` widened to f32; the file gives no alignment.
void read_row(const WeightRows& part, size_t row, size_t columns, float* out) {
  if (!part.blocks && part.dtype == Dtype::f8_e4m3) return read_fp8_row(part, row, columns, out);
  const auto* source = static_cast<const std::byte*>(part.data) + part.stored_row(row) * part.row_bytes(columns);
  if (part.blocks) return gguf::widen_row(*part.blocks, source, columns, out);
  if (part.dtype == Dtype::f32) {
    std::memcpy(out, source, columns * sizeof(float));
    return;
  }
  for (size_t i = 0; i < columns; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = part.dtype == Dtype::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
}

/// Index of weight (row, column) inside its panel.
size_t panel_index(Dtype dtype, size_t row, size_t column) {
  const size_t lane = row % kPanelColumns;
  return dtype == Dtype::bf16 ? (column / 2 * kPanelColumns + lane) * 2 + column % 2 : column * kPanelColumns + lane;
}

/// Row `row` of `part` in the packed dtype; `wide` is scratch of `columns` floats.
void convert(const WeightRows& part, size_t row, size_t columns, Dtype dtype, float* wide, void* out) {
  if (part.dtype == dtype && !part.blocks) {
    const size_t bytes = columns * dtype_bytes(dtype);
    std::memcpy(out, static_cast<const std::byte*>(part.data) + part.stored_row(row) * bytes, bytes);
    return;
  }
  read_row(part, row, columns, wide);
  auto* narrow = static_cast<bf16_t*>(out);
  if (dtype == Dtype::f32)
    std::memcpy(out, wide, columns * sizeof(float));
  else
    for (size_t i = 0; i < columns; ++i) narrow[i] = f32_to_bf16(wide[i]);
}

/// Calls body(part, bytes) for the bytes of each part that rows [first, last) of the stacked parts have.
template <class Body>
void for_parts(std::span<const WeightRows> parts, size_t first, size_t last, size_t columns, const Body& body) {
  size_t start = 0;
  for (const WeightRows& part : parts) {
    const size_t begin = std::max(first, start), end = std::min(last, start + part.rows);
    const size_t line = part.row_bytes(columns);
    if (begin < end)
      body(part, std::span(static_cast<const std::byte*>(part.data) + (begin - start) * line, (end - begin) * line));
    start += part.rows;
  }
}

/// Rows [first, last) of the stacked parts will be read now.
void begin_rows(std::span<const WeightRows> parts, size_t first, size_t last, size_t columns) {
  for_parts(parts, first, last, columns, [](const WeightRows& part, std::span<const std::byte> bytes) {
    const auto ahead = read_ahead(bytes.data(), bytes.size(), part.readable);
    if (part.soon && !ahead.empty()) part.soon(ahead.data(), ahead.data() + ahead.size());
  });
}

/// Rows [first, last) of the stacked parts will not be read again.
void finish_rows(std::span<const WeightRows> parts, size_t first, size_t last, size_t columns) {
  for_parts(parts, first, last, columns, [](const WeightRows& part, std::span<const std::byte> bytes) {
    if (part.done) part.done(bytes.data(), bytes.data() + bytes.size());
  });
}

/// Both layouts are a transposition of 32-bit words (an f32, or two bf16 of neighbouring k): 16 rows at a
/// time, so that every write is a whole cache line.
void fill_panel(std::span<const WeightRows> parts, size_t first_row, size_t rows, size_t columns, Dtype dtype,
                std::byte* panel) {
  constexpr size_t kLanes = 16;
  const size_t words = padded_k(dtype, columns) * dtype_bytes(dtype) / sizeof(uint32_t);
  std::vector<float> wide(columns);
  std::vector<uint32_t> lines(kLanes * words);
  size_t part = 0, part_start = 0;
  for (size_t lane = 0; lane < kPanelColumns; lane += kLanes) {
    std::fill(lines.begin(), lines.end(), 0);
    for (size_t i = 0; i < kLanes && first_row + lane + i < rows; ++i) {
      const size_t row = first_row + lane + i;
      while (row >= part_start + parts[part].rows) part_start += parts[part++].rows;
      convert(parts[part], row - part_start, columns, dtype, wide.data(), lines.data() + i * words);
    }
    auto* out = reinterpret_cast<uint32_t*>(panel) + lane;
    for (size_t word = 0; word < words; ++word)
      for (size_t i = 0; i < kLanes; ++i) out[word * kPanelColumns + i] = lines[i * words + word];
  }
}

/// Fills a panel of whole numbers with the stacked rows from `first` on.
void quantise_panel(std::span<const WeightRows> parts, size_t first, size_t columns, QuantForm form, std::byte* panel) {
  const std::byte* lines[kPanelColumns];
  std::vector<float> wide;
  size_t start = 0;  // the part's first row
  for (const WeightRows& part : parts) {
    const size_t begin = std::max(first, start), end = std::min(first + kPanelColumns, start + part.rows);
    const size_t count = begin < end ? end - begin : 0, lane = begin - first;
    for (size_t i = 0; i < count; ++i) {
      const size_t row = begin - start + i;
      if (part.blocks) {
        lines[i] = static_cast<const std::byte*>(part.data) + part.stored_row(row) * part.row_bytes(columns);
        continue;
      }
      wide.resize(columns);
      read_row(part, row, columns, wide.data());
      pack_floats(wide.data(), columns, form, lane + i, panel);
    }
    if (part.blocks && count > 0) pack_rows(*part.blocks, {lines, count}, columns, form, lane, panel);
    start += part.rows;
  }
}

}  // namespace

std::span<const std::byte> read_ahead(const std::byte* data, size_t bytes, const std::byte* readable) {
  const auto left = static_cast<size_t>(data < readable ? readable - data : 0);
  if (left <= kReadAheadBytes) return {};
  return {data + kReadAheadBytes, std::min(bytes, left - kReadAheadBytes)};
}

size_t WeightRows::row_bytes(size_t columns) const {
  return blocks ? gguf::row_bytes(*blocks, columns) : columns * dtype_bytes(dtype);
}

size_t WeightRows::stored_row(size_t row) const {
  if (paired_head == 0) return row;
  MC_ASSERT_EQ(rows % paired_head, 0u);
  const size_t in_head = row % paired_head, half = paired_head / 2;
  return row - in_head + in_head % half * 2 + in_head / half;
}

float f16_to_f32(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const float sign = half >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-24f;
  return sign * static_cast<float>(1024 + mantissa) * 0x1p-25f * static_cast<float>(1u << exponent);
}

void convert_row(const WeightRows& source, size_t row, size_t columns, Dtype dtype, std::byte* out) {
  std::vector<float> wide(columns);
  convert(source, row, columns, dtype, wide.data(), out);
}

size_t PackedMatrix::packed_bytes(size_t rows, size_t columns, Dtype dtype) {
  const size_t panels = (rows + kPanelColumns - 1) / kPanelColumns;
  return panels * padded_k(dtype, columns) * kPanelColumns * dtype_bytes(dtype);
}

Result<PackedMatrix> PackedMatrix::allocate(std::span<const WeightRows> parts, size_t columns, Dtype dtype,
                                            std::optional<QuantForm> quant, size_t fp8_group) {
  MC_ASSERT(dtype == Dtype::f32 || dtype == Dtype::bf16);
  PackedMatrix packed;
  packed.columns_ = columns;
  packed.dtype_ = dtype;
  packed.quant_ = quant;
  packed.fp8_group_ = fp8_group;
  for (const WeightRows& part : parts) packed.rows_ += part.rows;
  MC_ASSERT(packed.rows_ > 0 && columns > 0);
  const size_t bytes = packed.panels() * packed.panel_bytes();
  // Fresh pages are zero: that is the padding.
  MC_TRY(storage, mem::HostBuffer::allocate(bytes, {.name = "weights", .huge_pages = bytes >= (size_t{4} << 20)}));
  packed.storage_ = std::move(storage);
  return packed;
}

Result<PackedMatrix> PackedMatrix::pack(Parallel& parallel, std::span<const WeightRows> parts, size_t columns,
                                        Dtype dtype) {
  MC_TRY(packed, allocate(parts, columns, dtype, std::nullopt, 0));
  parallel.for_each(static_cast<int64_t>(packed.panels()), [&](int64_t panel, int) {
    const size_t first = static_cast<size_t>(panel) * kPanelColumns;
    begin_rows(parts, first, first + kPanelColumns, columns);
    fill_panel(parts, first, packed.rows_, columns, dtype,
               packed.storage_.data() + static_cast<size_t>(panel) * packed.panel_bytes());
    finish_rows(parts, first, first + kPanelColumns, columns);
  });
  return packed;
}

size_t PackedMatrix::quantised_bytes(size_t rows, size_t columns, QuantForm form) {
  return (rows + kPanelColumns - 1) / kPanelColumns * quant_panel_bytes(columns, form);
}

std::optional<QuantForm> PackedMatrix::block_form(std::span<const WeightRows> parts) {
  std::optional<QuantForm> form;
  for (const WeightRows& part : parts) {
    const auto own = part.blocks ? kept_form(*part.blocks) : std::nullopt;
    if (!own) return std::nullopt;
    form = form ? common_form(*form, *own) : *own;
  }
  return form;
}

Result<PackedMatrix> PackedMatrix::quantise(Parallel& parallel, std::span<const WeightRows> parts, size_t columns,
                                            QuantForm form) {
  MC_TRY(packed, allocate(parts, columns, Dtype::f32, form, 0));
  const size_t source_bytes = parts.front().row_bytes(columns) * kPanelColumns;
  const auto grain = static_cast<int64_t>(std::max<size_t>(1, kPackTaskBytes / source_bytes));
  parallel.for_ranges(static_cast<int64_t>(packed.panels()), grain, [&](int64_t begin, int64_t end, int) {
    const size_t first = static_cast<size_t>(begin) * kPanelColumns, last = static_cast<size_t>(end) * kPanelColumns;
    begin_rows(parts, first, last, columns);
    for (size_t row = first; row < last; row += kPanelColumns)
      quantise_panel(parts, row, columns, form, packed.storage_.data() + row / kPanelColumns * packed.panel_bytes());
    finish_rows(parts, first, last, columns);
  });
  return packed;
}

bool PackedMatrix::fits_in_place(std::span<const WeightRows> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const WeightRows& part) { return part.blocks == gguf::Type::q8_0; });
}

PackedMatrix PackedMatrix::in_place(std::span<const WeightRows> parts, size_t columns) {
  MC_ASSERT(!parts.empty() && columns > 0 && fits_in_place(parts));
  PackedMatrix matrix;
  matrix.columns_ = columns;
  matrix.quant_ = QuantForm::eight;
  matrix.parts_.assign(parts.begin(), parts.end());
  for (const WeightRows& part : parts) matrix.rows_ += part.rows;
  MC_ASSERT(matrix.rows_ > 0);
  return matrix;
}

size_t PackedMatrix::bytes() const {
  return is_in_place() ? rows_ * gguf::row_bytes(gguf::Type::q8_0, columns_) : storage_.size();
}

std::array<const std::byte*, kPanelColumns> PackedMatrix::lines(size_t index) const {
  const size_t first = index * kPanelColumns, end = std::min(rows_, first + kPanelColumns);
  MC_ASSERT_LT(first, end);
  const size_t line_bytes = gguf::row_bytes(gguf::Type::q8_0, columns_);
  std::array<const std::byte*, kPanelColumns> lines{};
  size_t start = 0;  // the part's first row
  for (const WeightRows& part : parts_) {
    const auto* data = static_cast<const std::byte*>(part.data);
    for (size_t row = std::max(first, start); row < std::min(end, start + part.rows); ++row)
      lines[row - first] = data + part.stored_row(row - start) * line_bytes;
    start += part.rows;
  }
  std::fill(lines.begin() + static_cast<std::ptrdiff_t>(end - first), lines.end(), lines[end - first - 1]);
  return lines;
}

size_t PackedMatrix::fp8_bytes(size_t rows, size_t columns, size_t group) {
  return (rows + kPanelColumns - 1) / kPanelColumns * fp8_panel_bytes(columns, group);
}

std::optional<size_t> PackedMatrix::fp8_group(std::span<const WeightRows> parts, size_t columns) {
  constexpr size_t kGroupMin = 32;
  size_t group = 0;
  for (const WeightRows& part : parts) {
    const size_t own = std::min(columns, part.scales.block_columns);
    if (part.blocks || part.dtype != Dtype::f8_e4m3 || (group > 0 && own != group)) return std::nullopt;
    if (own < columns && (own % 2 != 0 || own < kGroupMin)) return std::nullopt;
    group = own;
  }
  return group;
}

size_t PackedMatrix::fp8_rows(std::span<const WeightRows> parts) {
  MC_ASSERT(!parts.empty());
  const size_t rows = parts.front().scales.block_rows;
  for (const WeightRows& part : parts)
    if (part.scales.block_rows != rows || (&part != &parts.back() && part.rows % rows != 0)) return 1;
  return rows;
}

Result<PackedMatrix> PackedMatrix::keep_fp8(Parallel& parallel, std::span<const WeightRows> parts, size_t columns,
                                            Dtype dtype) {
  const auto group = fp8_group(parts, columns);
  MC_ASSERT(group.has_value());
  MC_TRY(packed, allocate(parts, columns, dtype, std::nullopt, *group));
  packed.fp8_rows_ = fp8_rows(parts);
  const size_t groups = fp8_groups(columns, *group);
  parallel.for_each(static_cast<int64_t>(packed.panels()), [&](int64_t panel, int) {
    const size_t first = static_cast<size_t>(panel) * kPanelColumns;
    const size_t last = std::min(first + kPanelColumns, packed.rows_);
    begin_rows(parts, first, last, columns);
    std::vector<const uint8_t*> codes;
    std::vector<float> scales;
    size_t part = 0, part_start = 0;
    for (size_t row = first; row < last; ++row) {
      while (row >= part_start + parts[part].rows) part_start += parts[part++].rows;
      const WeightScales& form = parts[part].scales;
      codes.push_back(static_cast<const uint8_t*>(parts[part].data) + (row - part_start) * columns);
      const float* line = form.values + (row - part_start) / form.block_rows * form.per_row;
      scales.insert(scales.end(), line, line + groups);
    }
    fp8_fill_panel(codes, scales, columns, *group,
                   packed.storage_.data() + static_cast<size_t>(panel) * packed.panel_bytes());
    finish_rows(parts, first, last, columns);
  });
  return packed;
}

float PackedMatrix::at(size_t row, size_t column) const {
  if (is_in_place()) {
    const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);
    std::array<float, kQuantGroup> group;
    MC_ASSERT_EQ(type.weights, group.size());
    read_line(lines(row / kPanelColumns)[row % kPanelColumns] + column / group.size() * type.bytes, group.size(),
              group.data());
    return group[column % group.size()];
  }
  const std::byte* data = panel(row / kPanelColumns);
  if (is_fp8()) {
    const size_t lane = row % kPanelColumns;
    return e4m3_values()[fp8_code(data, lane, column)] *
           fp8_scales(data, columns_)[column / fp8_group_ * kPanelColumns + lane];
  }
  if (quant_) return quant_weight(data, *quant_, row % kPanelColumns, column);
  const size_t index = panel_index(dtype_, row, column);
  if (dtype_ == Dtype::bf16) return bf16_to_f32(reinterpret_cast<const bf16_t*>(data)[index]);
  return reinterpret_cast<const float*>(data)[index];
}

void PackedMatrix::row(size_t row, float* out) const {
  MC_ASSERT_LT(row, rows_);
  if (is_in_place()) return read_line(lines(row / kPanelColumns)[row % kPanelColumns], columns_, out);
  const std::byte* data = panel(row / kPanelColumns);
  const size_t lane = row % kPanelColumns;
  if (quant_ || is_fp8()) {
    for (size_t k = 0; k < columns_; ++k) out[k] = at(row, k);
    return;
  }
  if (dtype_ == Dtype::f32) {
    const auto* wide = reinterpret_cast<const float*>(data) + lane;
    for (size_t k = 0; k < columns_; ++k) out[k] = wide[k * kPanelColumns];
    return;
  }
  const auto* pairs = reinterpret_cast<const bf16_t*>(data) + 2 * lane;
  for (size_t k = 0; k < columns_; ++k) out[k] = bf16_to_f32(pairs[k / 2 * 2 * kPanelColumns + k % 2]);
}

Matmul::Matmul(const Kernels& kernels, Parallel& parallel)
    : kernels_(&kernels), fp8_(&fp8_kernels(kernels)), quant_(kernels), parallel_(&parallel) {
  widened_.resize(static_cast<size_t>(parallel.threads()));
  packed_.resize(static_cast<size_t>(parallel.threads()));
}
Matmul::~Matmul() = default;

namespace {

/// Shapes left to oneDNN. With few columns its dense result tile costs more to copy than it gains (K = 256:
/// 145 against 160 GFLOP/s on one Sapphire Rapids core, K = 1024: 154 against 150).
bool for_library(const PackedMatrix& weights) {
  return weights.columns() >= kLibraryColumnsMin && padded_k(weights.dtype(), weights.columns()) == weights.columns();
}

}  // namespace

bool Matmul::uses_library(const PackedMatrix& weights) const {
  return kernels_->tile_gemm != TileGemm::panels && !weights.quantised() && for_library(weights);
}

Dtype Matmul::tile_dtype(const PackedMatrix& weights) const {
  return kernels_->tile_gemm == TileGemm::onednn_widened ? Dtype::f32 : weights.dtype();
}

/// A slice's panels in the tile's dtype; until the worker's next call.
const void* Matmul::widen_slice(const PackedMatrix& weights, size_t panel, size_t panels, int worker) {
  std::byte* out = widened_[static_cast<size_t>(worker)].data();
  const size_t k = weights.columns(), group = weights.fp8_group();
  const Dtype dtype = tile_dtype(weights);
  for (size_t p = panel; p < panel + panels; ++p, out += k * kPanelColumns * dtype_bytes(dtype)) {
    const std::byte* source = weights.panel(p);
    auto* wide = reinterpret_cast<float*>(out);
    if (!weights.is_fp8())
      kernels_->widen_pairs(reinterpret_cast<const bf16_t*>(source), k * kPanelColumns / 2, wide);
    else if (dtype == Dtype::f32)
      fp8_->widen(source, k, group, wide);
    else
      fp8_->widen_bf16(source, k, group, reinterpret_cast<bf16_t*>(out));
  }
  return widened_[static_cast<size_t>(worker)].data();
}

Result<void> Matmul::prepare(const PackedMatrix& weights) {
  if (!uses_library(weights)) return {};
  const Dtype dtype = tile_dtype(weights);
  const size_t full = weights.rows() / kPanelColumns * kPanelColumns;
  for (size_t first = 0; first < full; first += kSlicePanels * kPanelColumns) {
    const Slice slice{std::min(kSlicePanels * kPanelColumns, full - first), weights.columns(), dtype};
    if (program(slice)) continue;
    auto compiled = TileProgram::compile(dtype, slice.columns, slice.rows);
    if (compiled) programs_.emplace_back(slice, std::move(*compiled));
  }
  if (!widens(weights)) return {};
  const size_t bytes = kSlicePanels * kPanelColumns * weights.columns() * dtype_bytes(dtype);
  for (mem::HostBuffer& buffer : widened_) {
    if (buffer.size() >= bytes) continue;
    MC_TRY(grown, mem::HostBuffer::allocate(bytes, {.name = "matmul scratch", .huge_pages = true}));
    buffer = std::move(grown);
  }
  return {};
}

const TileProgram* Matmul::program(const Slice& slice) const {
  for (const auto& [key, compiled] : programs_)
    if (key == slice) return compiled.get();
  return nullptr;
}

Matmul::Input Matmul::input(const PackedMatrix& weights, const float* x, size_t rows, size_t x_stride) {
  const size_t columns = weights.columns(), stride = padded_k(Dtype::bf16, columns);
  if (weights.quantised()) {
    const size_t bytes = quant_row_bytes(columns);
    const QuantKernels& quant = quant_.table(rows, weights.is_in_place());
    if (weights.is_in_place() && rows > quant.lines_max)
      for (auto& panel : packed_) panel.resize(std::max(panel.size(), weights.panel_bytes()));
    code_rows_.resize(std::max(code_rows_.size(), quant_rows_bytes(rows, columns)));
    parallel_->for_ranges(static_cast<int64_t>(rows), 16, [&](int64_t begin, int64_t end, int) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row)
        quant.quantise_row(x + row * x_stride, columns, *weights.quantised(), row, code_rows_.data());
    });
    return {x, nullptr, x_stride, code_rows_.data(), bytes, &quant};
  }
  if (weights.dtype() == Dtype::f32) return {x, nullptr, x_stride};
  const bool tiles_of_bf16 = kernels_->panel_bf16 != nullptr;
  const bool widen = !tiles_of_bf16 || weights.is_fp8();
  if (bf16_rows_.size() < rows * stride) bf16_rows_.resize(rows * stride);
  if (widen && f32_rows_.size() < rows * stride) f32_rows_.resize(rows * stride);
  parallel_->for_ranges(static_cast<int64_t>(rows), 16, [&](int64_t begin, int64_t end, int) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      bf16_t* narrow = bf16_rows_.data() + row * stride;
      kernels_->to_bf16(x + row * x_stride, columns, narrow);
      std::memset(narrow + columns, 0, (stride - columns) * sizeof(bf16_t));
      if (widen) kernels_->from_bf16(narrow, stride, f32_rows_.data() + row * stride);
    }
  });
  return {widen ? f32_rows_.data() : nullptr, tiles_of_bf16 ? bf16_rows_.data() : nullptr, stride};
}

void Matmul::prefill(const PackedMatrix& weights, const float* x, size_t tiles, float* y) {
  const size_t n = weights.rows(), k = weights.columns();
  const Input rows = input(weights, x, tiles * kTileRows, k);
  if (!uses_library(weights)) return rows_by_panels(weights, rows, tiles * kTileRows, y);
  const Dtype dtype = tile_dtype(weights);
  const size_t full = n / kPanelColumns * kPanelColumns;
  const size_t slices = (weights.panels() + kSlicePanels - 1) / kSlicePanels;
  const size_t groups = (tiles + kGroupTiles - 1) / kGroupTiles;
  parallel_->for_each(static_cast<int64_t>(slices * groups), [&](int64_t task, int worker) {
    const size_t panel = static_cast<size_t>(task) / groups * kSlicePanels, first = panel * kPanelColumns;
    const size_t first_row = static_cast<size_t>(task) % groups * kGroupTiles * kTileRows;
    const size_t last_row = std::min(tiles * kTileRows, first_row + kGroupTiles * kTileRows);
    size_t columns = first < full ? std::min(kSlicePanels * kPanelColumns, full - first) : 0;
    const TileProgram* compiled = columns > 0 ? program({columns, k, dtype}) : nullptr;
    if (!compiled) columns = 0;
    if (compiled) {
      const void* panels = widens(weights) ? widen_slice(weights, panel, columns / kPanelColumns, worker)
                                           : static_cast<const void*>(weights.panel(panel));
      for (size_t row = first_row; row < last_row; row += kTileRows) {
        const Input tile = rows.from_row(row);
        const void* values = dtype == Dtype::f32 ? static_cast<const void*>(tile.wide) : tile.narrow;
        compiled->run(values, panels, y + row * n + first, n);
      }
    }
    const size_t last_panel = std::min(weights.panels(), panel + kSlicePanels);
    for (size_t p = panel + columns / kPanelColumns; p < last_panel; ++p)
      panel_rows(weights, p, rows.from_row(first_row), last_row - first_row, y + first_row * n, worker);
  });
}

void Matmul::line_rows(const PackedMatrix& weights, size_t panel, const Input& x, size_t rows, float* y, int worker) {
  const size_t n = weights.rows(), k = weights.columns(), first = panel * kPanelColumns;
  const size_t columns = std::min(kPanelColumns, n - first);
  const auto lines = weights.lines(panel);
  if (rows <= x.quant->lines_max) return x.quant->lines(x.codes, rows, lines.data(), k, y + first, n, columns);
  std::byte* packed = packed_[static_cast<size_t>(worker)].data();
  pack_rows(gguf::Type::q8_0, lines, k, QuantForm::eight, 0, packed);
  x.quant->panel(x.codes, rows, packed, k, QuantForm::eight, y + first, n, columns);
}

void Matmul::panel_rows(const PackedMatrix& weights, size_t panel, const Input& x, size_t rows, float* y, int worker) {
  if (weights.is_in_place()) return line_rows(weights, panel, x, rows, y, worker);
  const size_t n = weights.rows(), k = weights.columns(), first = panel * kPanelColumns;
  const size_t columns = std::min(kPanelColumns, n - first);
  const std::byte* data = weights.panel(panel);
  if (weights.quantised()) {
    MC_ASSERT(x.codes != nullptr);
    x.quant->panel(x.codes, rows, data, k, *weights.quantised(), y + first, n, columns);
  } else if (weights.is_fp8())
    fp8_->panel(x.wide, x.stride, rows, data, k, weights.fp8_group(), y + first, n, columns);
  else if (weights.dtype() == Dtype::f32)
    kernels_->panel_f32(x.wide, x.stride, rows, reinterpret_cast<const float*>(data), k, y + first, n, columns);
  else if (x.wide)
    kernels_->panel_widened(x.wide, x.stride, rows, reinterpret_cast<const bf16_t*>(data), x.stride, y + first, n,
                            columns);
  else
    kernels_->panel_bf16(x.narrow, x.stride, rows, reinterpret_cast<const bf16_t*>(data), x.stride, y + first, n,
                         columns);
}

/// Rows in place are put side by side once a task, so their tasks are longer where enough are left for all threads.
size_t Matmul::task_rows(const PackedMatrix& weights, size_t rows) const {
  size_t step = weights.quantised() ? kQuantTaskRows : kTileRows;
  const auto tasks = [&](size_t of) { return weights.panels() * ((rows + of - 1) / of); };
  while (weights.is_in_place() && step < rows && tasks(2 * step) >= 8 * static_cast<size_t>(parallel_->threads()))
    step *= 2;
  return step;
}

void Matmul::rows_by_panels(const PackedMatrix& weights, const Input& x, size_t rows, float* y) {
  const size_t step = task_rows(weights, rows), steps = (rows + step - 1) / step;
  parallel_->for_each(static_cast<int64_t>(steps * weights.panels()), [&](int64_t task, int worker) {
    const size_t row = static_cast<size_t>(task) % steps * step, count = std::min(step, rows - row);
    panel_rows(weights, static_cast<size_t>(task) / steps, x.from_row(row), count, y + row * weights.rows(), worker);
  });
}

void Matmul::decode(const PackedMatrix& weights, const float* x, size_t rows, float* y, size_t x_stride) {
  const Input in = input(weights, x, rows, x_stride > 0 ? x_stride : weights.columns());
  if (rows > kTileRows) return rows_by_panels(weights, in, rows, y);
  const auto panels = static_cast<int64_t>(weights.panels());
  auto grain = static_cast<int64_t>(std::max<size_t>(1, kDecodeTaskBytes / (weights.panel_bytes() * rows)));
  if (weights.is_in_place()) grain = std::max(grain, panels / (kLineTasks * parallel_->threads()));
  parallel_->for_ranges(panels, grain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t panel = begin; panel < end; ++panel)
      panel_rows(weights, static_cast<size_t>(panel), in, rows, y, worker);
  });
}

}  // namespace mc::ops

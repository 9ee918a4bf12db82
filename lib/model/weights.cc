#include "model/weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "base/parallel.h"

namespace mc::model {
namespace {

using Shape = std::vector<uint64_t>;

float element(const Tensor& tensor, uint64_t i) {
  MC_ASSERT(tensor.entry.dtype && tensor.entry.dtype != Dtype::f8_e4m3);
  if (*tensor.entry.dtype == Dtype::f32) {
    float value;
    std::memcpy(&value, tensor.data + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, tensor.data + 2 * i, 2);
  return *tensor.entry.dtype == Dtype::bf16 ? bf16_to_f32(bits) : ops::f16_to_f32(bits);
}

/// Drops the whole pages within [begin, end). Bytes of a neighbour on the first and last page stay.
void drop_pages(const std::byte* begin, const std::byte* end) {
  static const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / kPage * kPage;
  // The mapping is read-only, so a dropped page is read again on demand. A failure costs memory only.
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

std::optional<ops::QuantForm> quant_form_of(WeightForm form) {
  switch (form) {
    case WeightForm::int8: return ops::QuantForm::eight;
    case WeightForm::int4: return ops::QuantForm::four;
    case WeightForm::as_stored:
    case WeightForm::full: break;
  }
  return std::nullopt;
}

bool is_scale(std::string_view name) {
  return name.ends_with("_scale") || name.ends_with("_scale_inv");
}

Result<std::vector<float>> WeightLoader::vector(const std::string& name, uint64_t size) const {
  MC_TRY(tensor, files_.require(name, Shape{size}));
  std::vector<float> out(size);
  const ops::WeightRows order{.rows = size, .paired_head = tensor->paired_head};
  for (uint64_t i = 0; i < size; ++i) out[i] = element(*tensor, order.stored_row(i));
  return out;
}

/// Reads the scales. Their shape determines which of the three forms they have.
Result<void> WeightLoader::read_scales(const std::string& name, uint64_t rows, uint64_t columns, Source& out) const {
  const Tensor* scales = files_.find(name + "_scale_inv");
  if (!scales) scales = files_.find(name + "_scale");
  const std::string& path = files_.files()[out.tensor->file];
  if (!scales)
    return user_error(err::kModelIncomplete, path + ": tensor '" + name + "' is F8_E4M3, but there is neither '" +
                                                 name + "_scale_inv' nor '" + name + "_scale'");
  const TensorEntry& entry = scales->entry;
  const uint64_t count = entry.elements(), block_rows = config_.fp8.block_rows,
                 block_columns = config_.fp8.block_columns;
  const uint64_t down = (rows + block_rows - 1) / block_rows, across = (columns + block_columns - 1) / block_columns;
  ops::WeightScales& form = out.rows.scales;
  if (entry.shape.size() == 2 && entry.shape[0] == down && entry.shape[1] == across)
    form = {nullptr, block_rows, block_columns, across};
  else if (count == 1)
    form = {nullptr, rows, columns, 1};
  else if (count == rows && entry.shape[0] == rows)
    form = {nullptr, 1, columns, 1};
  else
    return user_error(err::kQuantUnsupported,
                      path + ": scales '" + entry.name + "' have shape " + entry.shape_text() + "; supported for " +
                          out.tensor->entry.shape_text() + ": one, one a row, or " +
                          TensorEntry{.shape = {down, across}}.shape_text() + " for blocks of " +
                          std::to_string(block_rows) + " x " + std::to_string(block_columns));
  if (!entry.dtype || *entry.dtype == Dtype::f8_e4m3)
    return user_error(err::kDtypeUnsupported,
                      path + ": scales '" + entry.name + "' have dtype " + entry.dtype_name + "; use F32, F16 or BF16");
  for (uint64_t i = 0; i < count; ++i) {
    out.scales.push_back(element(*scales, i));
    if (!std::isfinite(out.scales.back()))
      return user_error(err::kModelCorrupt, path + ": scales '" + entry.name + "' hold a value that is not finite");
  }
  return {};
}

Result<WeightLoader::Source> WeightLoader::source(const std::string& name, uint64_t rows, uint64_t columns) const {
  MC_TRY(tensor, files_.require(name, Shape{rows, columns}, Narrow::allowed));
  Source out{{.data = tensor->data,
              .dtype = tensor->entry.dtype.value_or(Dtype::f32),
              .rows = rows,
              .blocks = tensor->blocks,
              .paired_head = tensor->paired_head},
             tensor,
             {}};
  if (tensor->entry.dtype == Dtype::f8_e4m3) MC_CHECK(read_scales(name, rows, columns, out));
  out.rows.soon = read_soon;
  out.rows.readable = files_.data_end(tensor->file);
  out.rows.done = drop_pages;
  return out;
}

/// Asks for the first bytes of a tensor that is packed next. The packing asks for all bytes after them. Most tensors
/// lie in a file in the order of their use: then these bytes have been asked for before.
void WeightLoader::ask(const Source& source) const {
  const std::byte* begin = source.tensor->data;
  const auto left = static_cast<size_t>(source.rows.readable - begin);
  const std::byte* first_end = begin + std::min(left, ops::kReadAheadBytes);
  if (begin > asked_end_ || first_end < asked_begin_) asked_begin_ = asked_end_ = begin;
  if (begin < asked_begin_) read_soon(begin, asked_begin_);
  if (first_end > asked_end_) read_soon(asked_end_, first_end);
  asked_begin_ = std::min(asked_begin_, begin);
  asked_end_ = std::max(asked_end_, begin + std::min(left, source.tensor->bytes() + ops::kReadAheadBytes));
}

Result<std::vector<WeightLoader::Source>> WeightLoader::sources(const std::string& prefix,
                                                                std::span<const WeightPart> parts,
                                                                uint64_t columns) const {
  std::vector<Source> out;
  for (const WeightPart& part : parts) {
    MC_TRY(one, source(prefix + part.name + ".weight", part.rows, columns));
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<ops::WeightRows> WeightLoader::rows_of(const std::vector<Source>& sources) {
  std::vector<ops::WeightRows> rows;
  for (const Source& one : sources) {
    rows.push_back(one.rows);
    rows.back().scales.values = one.scales.data();
  }
  return rows;
}

Result<ops::PackedMatrix> WeightLoader::matrix(const std::string& prefix, std::span<const WeightPart> parts,
                                               uint64_t columns, Precision precision) const {
  MC_TRY(read, sources(prefix, parts, columns));
  const std::vector<ops::WeightRows> rows = rows_of(read);
  const WeightForm form = precision == Precision::full ? WeightForm::full : form_;
  if (form == WeightForm::as_stored && ops::PackedMatrix::fits_in_place(rows)) {
    for (const Source& one : read) in_place_.emplace_back(one.tensor->data, one.tensor->bytes());
    return ops::PackedMatrix::in_place(rows, columns);
  }
  for (const Source& one : read) ask(one);
  auto whole = quant_form_of(form);
  if (form == WeightForm::as_stored) whole = ops::PackedMatrix::block_form(rows);
  auto packed = whole ? ops::PackedMatrix::quantise(parallel_, rows, columns, *whole)
                : form == WeightForm::as_stored && ops::PackedMatrix::fp8_group(rows, columns)
                    ? ops::PackedMatrix::keep_fp8(parallel_, rows, columns, dtype_)
                    : ops::PackedMatrix::pack(parallel_, rows, columns, dtype_);
  for (const Source& one : read) files_.drop(*one.tensor);
  return packed;
}

Result<WeightLoader::MatrixPlan> WeightLoader::plan(const std::string& prefix, std::span<const WeightPart> parts,
                                                    uint64_t columns, Precision precision) const {
  uint64_t outputs = 0;
  const bool stored = form_ == WeightForm::as_stored && precision == Precision::as_asked;
  bool fp8 = stored;
  std::vector<ops::WeightRows> types;  // of the parts that the file has
  for (const WeightPart& part : parts) {
    outputs += part.rows;
    const Tensor* tensor = stored ? files_.find(prefix + part.name + ".weight") : nullptr;
    fp8 = fp8 && tensor && tensor->entry.dtype == Dtype::f8_e4m3;
    types.push_back({.blocks = tensor ? tensor->blocks : std::nullopt});
  }
  auto whole = precision == Precision::as_asked ? quant_form_of(form_) : std::nullopt;
  const auto kept = stored ? ops::PackedMatrix::block_form(types) : std::nullopt;
  if (stored && ops::PackedMatrix::fits_in_place(types)) {
    const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);  // columns of any number: matrix() refuses a wrong one
    return MatrixPlan{outputs * ((columns + type.weights - 1) / type.weights * type.bytes), false, true};
  }
  if (kept) whole = kept;
  if (whole) return MatrixPlan{ops::PackedMatrix::quantised_bytes(outputs, columns, *whole), false, kept.has_value()};
  if (fp8) {
    MC_TRY(read, sources(prefix, parts, columns));
    const std::vector<ops::WeightRows> rows = rows_of(read);
    if (const auto group = ops::PackedMatrix::fp8_group(rows, columns))
      return MatrixPlan{ops::PackedMatrix::fp8_bytes(outputs, columns, *group), true, false,
                        ops::ScaleRun{ops::PackedMatrix::fp8_rows(rows), *group}};
  }
  return MatrixPlan{ops::PackedMatrix::packed_bytes(outputs, columns, dtype_), false, false};
}

Result<std::vector<float>> WeightLoader::bias(const std::string& prefix, std::span<const WeightPart> parts,
                                              bool present) const {
  std::vector<float> out;
  if (!present) return out;
  for (const WeightPart& part : parts) {
    MC_TRY(values, vector(prefix + part.name + ".bias", part.rows));
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

size_t WeightTable::row_bytes(size_t columns, Dtype dtype, std::optional<gguf::Type> blocks) {
  return blocks ? gguf::row_bytes(*blocks, columns) : columns * dtype_bytes(dtype);
}

void WeightTable::row(size_t row, float* out) const {
  const size_t line = row_bytes(columns_, dtype_, blocks_);
  MC_ASSERT_LE((row + 1) * line, storage_.size());
  const std::byte* source = storage_.data() + row * line;
  const gguf::Type plain = dtype_ == Dtype::f32 ? gguf::Type::f32 : gguf::Type::bf16;
  gguf::widen_row(blocks_.value_or(plain), source, columns_, out);
}

WeightLoader::MatrixPlan WeightLoader::plan_table(const std::string& name, uint64_t rows, uint64_t columns) const {
  const Tensor* tensor = form_ == WeightForm::as_stored ? files_.find(name) : nullptr;
  if (!tensor || !tensor->blocks) return {rows * columns * dtype_bytes(dtype_), false, false};
  const gguf::TypeInfo& type = gguf::info(*tensor->blocks);  // of any shape: table() refuses a wrong one
  return {rows * ((columns + type.weights - 1) / type.weights * type.bytes), false, true};
}

Result<WeightTable> WeightLoader::table(const std::string& name, uint64_t rows, uint64_t columns) const {
  MC_TRY(one, source(name, rows, columns));
  one.rows.scales.values = one.scales.data();
  const auto blocks = form_ == WeightForm::as_stored ? one.rows.blocks : std::nullopt;
  const size_t line = WeightTable::row_bytes(columns, dtype_, blocks), source_line = one.rows.row_bytes(columns);
  MC_TRY(storage, mem::HostBuffer::allocate(rows * line, {.name = "embeddings"}));
  const auto* data = static_cast<const std::byte*>(one.rows.data);
  ask(one);
  parallel_.for_ranges(static_cast<int64_t>(rows), 256, [&](int64_t begin, int64_t end, int) {
    const auto ahead = ops::read_ahead(data + static_cast<size_t>(begin) * source_line,
                                       static_cast<size_t>(end - begin) * source_line, one.rows.readable);
    read_soon(ahead.data(), ahead.data() + ahead.size());
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      std::byte* out = storage.data() + row * line;
      if (blocks)
        std::memcpy(out, data + row * line, line);
      else
        ops::convert_row(one.rows, row, columns, dtype_, out);
    }
    drop_pages(data + static_cast<size_t>(begin) * source_line, data + static_cast<size_t>(end) * source_line);
  });
  files_.drop(*one.tensor);
  return WeightTable(std::move(storage), columns, dtype_, blocks);
}

}  // namespace mc::model

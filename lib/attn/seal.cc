// Append, seal and centroids: plain element-wise loops (memory-bound, without reordering), so every variant and every
// machine writes equal bytes.
#include "attn/seal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attn/kernels.h"
#include "base/assert.h"
#include "base/parallel.h"

namespace mc::attn {
namespace {

/// `exponent` is that of the page's scale, with fp8_e4m3.
void load_row(Dtype dtype, const std::byte* row, int exponent, int dim, float* out) {
  if (dtype == Dtype::f32) {
    std::memcpy(out, row, static_cast<size_t>(dim) * 4);
    return;
  }
  if (dtype == Dtype::f8_e4m3) {
    const float scale = e4m3_scale(exponent);
    for (int i = 0; i < dim; ++i) out[i] = e4m3_to_f32(static_cast<uint8_t>(row[i])) * scale;
    return;
  }
  const bf16_t* in = reinterpret_cast<const bf16_t*>(row);
  for (int i = 0; i < dim; ++i) out[i] = bf16_to_f32(in[i]);
}

void store_row(Dtype dtype, const float* in, int dim, std::byte* row) {
  if (dtype == Dtype::f32) {
    std::memcpy(row, in, static_cast<size_t>(dim) * 4);
    return;
  }
  bf16_t* out = reinterpret_cast<bf16_t*>(row);
  for (int i = 0; i < dim; ++i) out[i] = f32_to_bf16(in[i]);
}

/// The exponent of the scale of one row. Values that are not finite have no part in it.
int row_exponent(const float* in, int dim) {
  float largest = 0;
  for (int i = 0; i < dim; ++i) {
    const float size = std::abs(in[i]);
    if (e4m3_is_finite(in[i]) && size > largest) largest = size;
  }
  return e4m3_exponent(largest);
}

void shift_codes(std::byte* codes, int64_t count, int by) {
  for (int64_t i = 0; i < count && by > 0; ++i) codes[i] = std::byte{e4m3_shift(static_cast<uint8_t>(codes[i]), by)};
}

/// Rows of K or of V that go into one page as codes.
struct CodedRows {
  const float* from;  // the first row
  int64_t stride;     // floats from row to row
  int64_t first, end;
  int dim;
};

/// Writes rows [first, end) of a page, whose rows before `first` are codes under *scale. See base/e4m3.h.
void store_codes(const CodedRows& rows, std::byte* codes, float* scale) {
  int exponents[512];
  const int before = rows.first == 0 ? kE4m3ExponentMin : e4m3_exponent_of(*scale);
  int page = before;
  for (int64_t t = rows.first; t < rows.end; ++t) {
    exponents[t] = row_exponent(rows.from + (t - rows.first) * rows.stride, rows.dim);
    page = std::max(page, exponents[t]);
  }
  shift_codes(codes, rows.first * rows.dim, page - before);
  for (int64_t t = rows.first; t < rows.end; ++t) {
    const float* in = rows.from + (t - rows.first) * rows.stride;
    for (int i = 0; i < rows.dim; ++i)
      codes[t * rows.dim + i] = std::byte{e4m3_shift(e4m3_code(in[i], exponents[t]), page - exponents[t])};
  }
  *scale = e4m3_scale(page);
}

/// The pairwise sum of block_tokens rows (a power of two): rows 2i and 2i+1 first, then pairs of pairs. It keeps one
/// partial sum a level, like a binary counter: after row t the levels that are ones in t+1 end.
void tree_sum(const ExtentLayout& layout, const std::byte* k, int exponent, float* out) {
  const int dim = static_cast<int>(layout.head_dim);
  float level[10][kDimMax];  // 2^9 = 512 rows at most; the last level is the result
  const int64_t rows = layout.block_tokens;
  for (int64_t t = 0; t < rows; ++t) {
    float carry[kDimMax];
    load_row(layout.dtype, k + static_cast<size_t>(t) * layout.row_bytes(), exponent, dim, carry);
    int depth = 0;
    for (; (t >> depth) & 1; ++depth)
      for (int i = 0; i < dim; ++i) carry[i] = level[depth][i] + carry[i];
    std::memcpy(level[depth], carry, static_cast<size_t>(dim) * 4);
    if (t + 1 == rows) std::memcpy(out, carry, static_cast<size_t>(dim) * 4);
  }
}

void seal_head(const ExtentLayout& layout, std::byte* record, int64_t tokens) {
  const size_t used = static_cast<size_t>(tokens) * layout.row_bytes();
  std::memset(record + used, 0, layout.v_offset() - used);
  std::memset(record + layout.v_offset() + used, 0, layout.v_offset() - used);
  const int dim = static_cast<int>(layout.head_dim);
  float sum[kDimMax];
  tree_sum(layout, record, layout.has_scales() ? scales_of(layout, record).k : 0, sum);
  std::memset(record + layout.ksum_offset(), 0, layout.scale_offset() - layout.ksum_offset());
  if (layout.has_scales()) {
    const size_t end_of_scales = layout.scale_offset() + 2 * sizeof(float);
    std::memset(record + end_of_scales, 0, layout.head_bytes() - end_of_scales);
  }
  std::memcpy(record + layout.ksum_offset(), sum, static_cast<size_t>(dim) * 4);
  bf16_t* mean = reinterpret_cast<bf16_t*>(record + layout.kmean_offset());
  const float tokens_full = static_cast<float>(layout.block_tokens);
  for (int i = 0; i < dim; ++i) mean[i] = f32_to_bf16(sum[i] / tokens_full);
}

/// K and V of tokens, [tokens, head_dim] of one head. They become rows `row`, `row` + 1, ... of the page.
struct NewRows {
  const float* k;
  const float* v;
  int64_t k_stride, v_stride;
  int64_t row, tokens;
};

void store_rows(const ExtentLayout& layout, std::byte* record, const NewRows& rows) {
  const int dim = static_cast<int>(layout.head_dim);
  if (layout.has_scales()) {
    float* scales = reinterpret_cast<float*>(record + layout.scale_offset());
    const int64_t end = rows.row + rows.tokens;
    store_codes({rows.k, rows.k_stride, rows.row, end, dim}, record + layout.k_offset(), scales);
    store_codes({rows.v, rows.v_stride, rows.row, end, dim}, record + layout.v_offset(), scales + 1);
    return;
  }
  for (int64_t t = 0; t < rows.tokens; ++t) {
    std::byte* k_row = record + static_cast<size_t>(rows.row + t) * layout.row_bytes();
    store_row(layout.dtype, rows.k + t * rows.k_stride, dim, k_row);
    store_row(layout.dtype, rows.v + t * rows.v_stride, dim, k_row + layout.v_offset());
  }
}

}  // namespace

void append(const AppendArgs& args, Parallel* parallel) {
  const ExtentLayout& layout = args.layout;
  MC_ASSERT_LE(layout.head_dim, uint32_t{kDimMax});
  if (args.tokens <= 0) return;
  const int64_t dim = layout.head_dim;
  const int64_t k_stride = args.k_stride != 0 ? args.k_stride : layout.kv_heads * dim;
  const int64_t v_stride = args.v_stride != 0 ? args.v_stride : layout.kv_heads * dim;
  const int64_t block = layout.block_tokens;
  const int64_t end = args.position + args.tokens;
  const int64_t first_page = args.position / block;
  const int64_t page_count = (end - 1) / block - first_page + 1;
  const auto one = [&](int64_t index, int) {
    const int64_t page = first_page + index / layout.kv_heads;
    const int64_t head = index % layout.kv_heads;
    std::byte* record = args.target.pages[page] + args.target.offset + static_cast<size_t>(head) * layout.head_bytes();
    const int64_t begin_token = std::max(args.position, page * block);
    const int64_t end_token = std::min(end, (page + 1) * block);
    const int64_t skipped = begin_token - args.position;
    store_rows(layout, record,
               {args.k + skipped * k_stride + head * dim, args.v + skipped * v_stride + head * dim, k_stride, v_stride,
                begin_token - page * block, end_token - begin_token});
    if (end_token == (page + 1) * block) seal_head(layout, record, block);
  };
  const int64_t count = page_count * layout.kv_heads;
  if (parallel != nullptr && args.tokens > 1)
    parallel->for_each(count, one);
  else
    for (int64_t index = 0; index < count; ++index) one(index, 0);
}

void append_codes(const ExtentLayout& layout, std::byte* layer, int64_t row, const std::byte* codes) {
  MC_ASSERT(layout.has_scales() && row < layout.block_tokens);
  const size_t dim = layout.row_bytes(), heads = layout.kv_heads;
  for (size_t i = 0; i < 2 * heads; ++i) {
    std::byte* record = layer + i % heads * layout.head_bytes();
    std::byte* part = record + (i < heads ? layout.k_offset() : layout.v_offset());
    float* scale = reinterpret_cast<float*>(record + layout.scale_offset()) + i / heads;
    float row_scale;
    std::memcpy(&row_scale, codes + 2 * heads * dim + i * sizeof(float), sizeof(float));
    const int own = e4m3_exponent_of(row_scale), before = row == 0 ? own : e4m3_exponent_of(*scale);
    const int page = std::max(before, own);
    std::byte* to = part + static_cast<size_t>(row) * dim;
    shift_codes(part, row * static_cast<int64_t>(dim), page - before);
    std::memcpy(to, codes + i * dim, dim);
    shift_codes(to, static_cast<int64_t>(dim), page - own);
    *scale = e4m3_scale(page);
  }
}

void seal(const ExtentLayout& layout, std::byte* layer, int64_t tokens) {
  MC_ASSERT_LE(layout.head_dim, uint32_t{kDimMax});
  MC_ASSERT_LE(tokens, int64_t{layout.block_tokens});
  for (uint32_t head = 0; head < layout.kv_heads; ++head) seal_head(layout, layer + head * layout.head_bytes(), tokens);
}

void centroid(const ExtentLayout& layout, const KvView& kv, int kv_head, int32_t moba_block, int64_t index,
              bf16_t* out) {
  const int64_t pages = moba_block / layout.block_tokens;
  MC_ASSERT_LE((index + 1) * moba_block, kv.kv_len);
  const int dim = static_cast<int>(layout.head_dim);
  if (pages == 1) {
    std::memcpy(out, head_record(layout, kv, index, kv_head) + layout.kmean_offset(), static_cast<size_t>(dim) * 2);
    return;
  }
  float sum[kDimMax];
  for (int64_t page = 0; page < pages; ++page) {
    const std::byte* record = head_record(layout, kv, index * pages + page, kv_head);
    const float* ksum = reinterpret_cast<const float*>(record + layout.ksum_offset());
    for (int i = 0; i < dim; ++i) sum[i] = page == 0 ? ksum[i] : sum[i] + ksum[i];
  }
  const float tokens = static_cast<float>(moba_block);
  for (int i = 0; i < dim; ++i) out[i] = f32_to_bf16(sum[i] / tokens);
}

}  // namespace mc::attn

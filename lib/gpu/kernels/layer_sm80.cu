// The kernels of a transformer layer that move little and multiply nothing: embedding, RMSNorm, bias, SiLU, RoPE with
// the write of K and V, the choice of rows, and the seal of pages. A row's result depends on that row alone.
#include "base/e4m3.h"
#include "gpu/kernels/fed.cuh"
#include "gpu/kernels/layer.h"
#include "gpu/kernels/numbers.cuh"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

/// 1 / sqrt(mean + epsilon) of a sum of squares.
MC_DEVICE float norm_scale(float squares, int columns, float epsilon) {
  return ptx::div_rn(1, ptx::sqrt_rn(ptx::div_rn(squares, static_cast<float>(columns)) + epsilon));
}

}  // namespace

MC_KERNEL(embed_rows, (kThreads))(MC_PARAM(EmbedArgs) args) {
  const int64_t row = ptx::ctaid_x();
  const int32_t token = max(fed_token(ptx::load(args.tokens + row), args.fed), 0);
  const uint16_t* from = args.table + int64_t{token} * args.columns;
  for (int i = ptx::tid_x(); i < args.columns; i += kThreads)
    ptx::store(args.x + row * args.columns + i, widen(ptx::load(from + i)));
}

MC_KERNEL(rms_norm, (kThreads))(MC_PARAM(NormArgs) args) {
  const int64_t row = int64_t{ptx::ctaid_x()} * kRowsPerCta + ptx::tid_x() / 32;
  const int lane = ptx::tid_x() % 32;
  if (row >= args.rows) return;
  const float* x = args.x + row * args.columns;
  float squares = 0;
  for (int i = lane; i < args.columns; i += 32) {
    const float value = ptx::load(x + i);
    squares += value * value;
  }
  const float scale = norm_scale(sum_of_warp(squares), args.columns, args.epsilon);
  for (int i = lane; i < args.columns; i += 32)
    ptx::store(args.out + row * args.columns + i, narrow(ptx::load(x + i) * scale * ptx::load(args.weight + i)));
}

MC_KERNEL(add_to_rows, (kThreads))(MC_PARAM(AddArgs) args) {
  float* y = args.y + int64_t{ptx::ctaid_x()} * args.columns;
  for (int i = ptx::tid_x(); i < args.columns; i += kThreads)
    ptx::store(y + i, ptx::add_rn(ptx::load(y + i), ptx::load(args.x + i)));
}

MC_KERNEL(silu_mul, (kThreads))(MC_PARAM(SiluArgs) args) {
  const int64_t row = ptx::ctaid_x();
  const float* gate = args.gate_up + row * 2 * args.columns;
  for (int i = ptx::tid_x(); i < args.columns; i += kThreads) {
    const float g = ptx::load(gate + i);
    const float soft = ptx::div_rn(g, 1 + ptx::exp2_approx(-g * kLog2e));  // g sigmoid(g), rounded once
    ptx::store(args.out + row * args.columns + i, narrow(soft * ptx::load(gate + args.columns + i)));
  }
}

/// A warp has one head of one row; a lane has elements i and i + head_dim / 2 for i = lane, lane + 32.
MC_KERNEL(rotate_and_keep, (kThreads))(MC_PARAM(RotateArgs) args) {
  const int64_t row = ptx::ctaid_x();
  const int head = static_cast<int>(ptx::ctaid_y()) * kRowsPerCta + static_cast<int>(ptx::tid_x()) / 32;
  const int lane = ptx::tid_x() % 32, half = args.head_dim / 2, kv_heads = args.pool.kv_heads;
  const int heads = args.q_heads + 2 * kv_heads;
  if (head >= heads) return;
  const bool is_q = head < args.q_heads, is_v = head >= args.q_heads + kv_heads;
  float* from = args.qkv + (row * heads + head) * args.head_dim;
  const float* norm = is_v ? nullptr : is_q ? args.q_norm : args.k_norm;
  float scale = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int i = lane; i < args.head_dim; i += 32) {
      const float value = ptx::load(from + i);
      squares += value * value;
    }
    scale = norm_scale(sum_of_warp(squares), args.head_dim, args.epsilon);
  }
  uint16_t *out = nullptr, *kept = nullptr;
  if (is_q) {
    out = args.q + (row * args.q_heads + head) * args.head_dim;
  } else if (args.pool.scale_offset == 0) {
    const RowPlace place = ptx::load(args.places + row);
    if (place.page < 0) return;
    const int kv_head = (head - args.q_heads) % kv_heads;
    unsigned char* record = const_cast<unsigned char*>(args.pool.base) + place.page * args.pool.page_bytes +
                            kv_head * args.pool.head_bytes + (is_v ? args.pool.v_offset : 0);
    out = reinterpret_cast<uint16_t*>(record) + int64_t{place.slot} * args.head_dim;
    if (row < args.kept_rows) kept = args.kept + ((row * 2 + (is_v ? 1 : 0)) * kv_heads + kv_head) * args.head_dim;
  }
  for (int i = lane; i < half; i += 32) {
    float low = ptx::load(from + i), high = ptx::load(from + i + half);
    if (norm != nullptr) {
      low = low * scale * ptx::load(norm + i);
      high = high * scale * ptx::load(norm + i + half);
    }
    if (!is_v) {
      const float c = ptx::load(args.cosine + row * half + i), s = ptx::load(args.sine + row * half + i);
      const float turned = low * c - high * s;
      high = high * c + low * s;
      low = turned;
    }
    if (out == nullptr) {  // for code_rows
      ptx::store(from + i, low);
      ptx::store(from + i + half, high);
      continue;
    }
    ptx::store(out + i, narrow(low));
    ptx::store(out + i + half, narrow(high));
    if (kept == nullptr) continue;
    ptx::store(kept + i, narrow(low));
    ptx::store(kept + i + half, narrow(high));
  }
}

namespace {

/// The exponent of a row's scale, in all lanes of a warp.
MC_DEVICE int row_exponent(const float* row, int head_dim) {
  float largest = 0;
  for (int i = ptx::tid_x() % 32; i < head_dim; i += 32) {
    const float value = ptx::load(row + i);
    if (e4m3_is_finite(value)) largest = ptx::max_f32(largest, value < 0 ? -value : value);
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) largest = ptx::max_f32(largest, ptx::shuffle_xor(largest, by));
  return e4m3_exponent(largest);
}

/// Four codes, each shifted.
MC_DEVICE uint32_t shift_codes(uint32_t codes, int by) {
  uint32_t out = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 8) out |= uint32_t{e4m3_shift(static_cast<uint8_t>(codes >> i), by)} << i;
  return out;
}

}  // namespace

/// The warps find the scales of the rows; then all threads store codes, four at a time.
MC_KERNEL(code_rows, (kThreads))(MC_PARAM(CodeArgs) args) {
  const KvPool& pool = args.pool;
  const PageRows rows = ptx::load(args.pages + ptx::ctaid_x());
  if (rows.page < 0) return;
  const int tid = ptx::tid_x(), warp = tid / 32, words = args.head_dim / 4;
  const int head = static_cast<int>(ptx::ctaid_z()) * pool.kv_heads + static_cast<int>(ptx::ctaid_y());
  const int64_t width = int64_t{args.q_heads + 2 * pool.kv_heads} * args.head_dim;
  const float* from = args.qkv + rows.first * width + (args.q_heads + head) * args.head_dim;
  unsigned char* record =
      const_cast<unsigned char*>(pool.base) + rows.page * pool.page_bytes + ptx::ctaid_y() * pool.head_bytes;
  uint32_t* codes = reinterpret_cast<uint32_t*>(record + (ptx::ctaid_z() == 0 ? 0 : pool.v_offset));
  float* scale = reinterpret_cast<float*>(record + pool.scale_offset) + ptx::ctaid_z();
  const uint32_t exponents = ptx::dynamic_shared<128>(), tops = exponents + kPageRowsMax * 4;

  int top = kE4m3ExponentMin;
  for (int row = warp; row < rows.count; row += kThreads / 32) {
    const int exponent = row_exponent(from + row * width, args.head_dim);
    if (tid % 32 == 0) ptx::store_shared_u32(exponents + row * 4, static_cast<uint32_t>(exponent));
    top = max(top, exponent);
  }
  if (tid % 32 == 0) ptx::store_shared_u32(tops + warp * 4, static_cast<uint32_t>(top));
  const int before = rows.slot == 0 ? kE4m3ExponentMin : e4m3_exponent_of(ptx::load(scale));
  ptx::barrier_all();
  int page = before;
  for (int other = 0; other < kThreads / 32; ++other)
    page = max(page, static_cast<int>(ptx::load_shared_u32(tops + other * 4)));

  if (page > before && !ptx::has_fault(Fault::codes_not_shifted))
    for (int i = tid; i < rows.slot * words; i += kThreads)
      ptx::store(codes + i, shift_codes(ptx::load(codes + i), page - before));
  for (int i = tid; i < rows.count * words; i += kThreads) {
    const int row = i / words, column = i % words * 4;
    const int exponent = static_cast<int>(ptx::load_shared_u32(exponents + row * 4));
    uint32_t own = 0;
#pragma unroll
    for (int v = 0; v < 4; ++v)
      own |= uint32_t{e4m3_code(ptx::load(from + row * width + column + v), exponent)} << (8 * v);
    ptx::store(codes + (rows.slot + row) * words + i % words, shift_codes(own, page - exponent));
    if (rows.first + row >= args.kept_rows) continue;
    unsigned char* kept = args.kept + int64_t{rows.first + row} * kept_code_bytes(pool.kv_heads, args.head_dim);
    ptx::store(reinterpret_cast<uint32_t*>(kept + head * args.head_dim + column), own);
    if (column == 0)
      ptx::store(reinterpret_cast<float*>(kept + 2 * pool.kv_heads * args.head_dim) + head, e4m3_scale(exponent));
  }
  if (tid == 0) ptx::store(scale, e4m3_scale(page));
}

MC_KERNEL(gather_rows, (kThreads))(MC_PARAM(GatherArgs) args) {
  const int64_t row = ptx::ctaid_x();
  const int64_t taken = ptx::has_fault(Fault::gathers_own_place) ? row : ptx::load(args.rows + row);
  for (int i = ptx::tid_x(); i < args.words; i += kThreads)
    ptx::store(args.to + row * args.words + i, ptx::load(args.from + taken * args.words + i));
}

/// A thread has one element of the head. It sums the page's rows by the pairwise tree of attn/seal.h: like a binary
/// counter, with one partial sum a level.
MC_KERNEL(seal_pages, (kThreads))(MC_PARAM(SealArgs) args) {
  constexpr int kLevels = 10;  // 512 rows at most
  const KvPool& pool = args.pool;
  const RowPlace page = ptx::load(args.pages + ptx::ctaid_x());
  const int i = ptx::tid_x();
  if (page.page < 0 || i >= args.head_dim) return;
  unsigned char* record =
      const_cast<unsigned char*>(pool.base) + page.page * pool.page_bytes + ptx::ctaid_y() * pool.head_bytes;
  uint16_t* k = reinterpret_cast<uint16_t*>(record);
  uint16_t* v = reinterpret_cast<uint16_t*>(record + pool.v_offset);
  const bool has_codes = pool.scale_offset != 0;
  const unsigned char* scales = record + pool.scale_offset;
  const float scale = has_codes ? e4m3_scale(e4m3_exponent_of(ptx::load(reinterpret_cast<const float*>(scales)))) : 1;
  // The rest of the 64 bytes behind the scales.
  if (has_codes && i < 14) ptx::store(reinterpret_cast<uint32_t*>(record + pool.scale_offset + 8) + i, uint32_t{0});
  float level[kLevels];
#pragma unroll
  for (int depth = 0; depth < kLevels; ++depth) level[depth] = 0;
  float sum = 0;
  for (int row = 0; row < pool.block_tokens; ++row) {
    const int64_t at = int64_t{row} * args.head_dim + i;
    sum = 0;
    if (row < page.slot) {
      sum = has_codes ? ptx::mul_rn(e4m3_to_f32(ptx::load(record + at)), scale) : widen(ptx::load(k + at));
    } else if (has_codes) {
      ptx::store(record + at, static_cast<unsigned char>(0));
      ptx::store(record + pool.v_offset + at, static_cast<unsigned char>(0));
    } else {
      ptx::store(k + at, uint16_t{0});
      ptx::store(v + at, uint16_t{0});
    }
    bool carries = true;
#pragma unroll
    for (int depth = 0; depth < kLevels; ++depth) {
      if (!carries) continue;
      if ((row >> depth & 1) != 0) {
        sum = ptx::add_rn(level[depth], sum);
      } else {
        level[depth] = sum;
        carries = false;
      }
    }
  }
  ptx::store(reinterpret_cast<float*>(record + pool.ksum_offset) + i, sum);
  ptx::store(reinterpret_cast<uint16_t*>(record + pool.kmean_offset) + i,
             narrow(ptx::div_rn(sum, static_cast<float>(pool.block_tokens))));
}

}  // namespace mc::gpu

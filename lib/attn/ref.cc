// Attention by the papers' equations. MoBA, arXiv:2502.13189, section 2.2, for a query q at position p with blocks I_j
// = [jB, (j+1)B), b = floor(p / B):
//
//   s_j = <q, mean K[I_j]>                          (eq. 6)   j < b: only blocks that ended before b
//   T   = the k-1 largest s_j                       (eq. 5)   ties: larger j; NaN: -inf
//   A   = union of I_j, j in T, and [bB, p]         (eq. 3)
//   out = softmax(q K[A]^T / sqrt(d)) V[A]          (eq. 2)
//
// and a sliding window (arXiv:2310.06825, section 2): A = (p - tokens, p].
//
// This code is slow on purpose: it is the definition that tests compare the other variants with.
#include "attn/ref.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "attn/seal.h"
#include "base/assert.h"

namespace mc::attn {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

/// The numbers of a row whose page has a scale of 2^exponent, which means nothing but with fp8_e4m3.
void widen(Dtype dtype, const std::byte* row, int exponent, std::vector<double>& out) {
  const auto widen_all = [&](auto number) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = number(i);
  };
  switch (dtype) {
    case Dtype::f32:
      return widen_all([&](size_t i) { return static_cast<double>(reinterpret_cast<const float*>(row)[i]); });
    case Dtype::f8_e4m3: {
      const double scale = std::ldexp(1.0, exponent);
      return widen_all(
          [&](size_t i) { return static_cast<double>(e4m3_to_f32(static_cast<uint8_t>(row[i]))) * scale; });
    }
    default:
      return widen_all(
          [&](size_t i) { return static_cast<double>(bf16_to_f32(reinterpret_cast<const bf16_t*>(row)[i])); });
  }
}

/// The scales of the page that holds the token at `position`.
ScaleExponents scales_at(const PrefillArgs& args, int64_t position, int kv_head) {
  if (!args.layout.has_scales()) return {0, 0};
  return scales_of(args.layout, head_record(args.layout, args.kv, position / args.layout.block_tokens, kv_head));
}

/// A query element as the kernels round it.
double query(Dtype dtype, float value) {
  return dtype == Dtype::f32 ? static_cast<double>(value) : static_cast<double>(bf16_to_f32(f32_to_bf16(value)));
}

const float* q_row(const PrefillArgs& args, int64_t row, int32_t q_head) {
  const int64_t stride = args.q_stride != 0 ? args.q_stride : int64_t{args.q_heads} * args.layout.head_dim;
  return args.q + row * stride + int64_t{q_head} * args.layout.head_dim;
}

int kv_head_of(const PrefillArgs& args, int32_t q_head) {
  return static_cast<int>(q_head / (args.q_heads / static_cast<int32_t>(args.layout.kv_heads)));
}

/// Keys of A in ascending order.
std::vector<int64_t> visible_keys(const PrefillArgs& args, int64_t position, const int32_t* chosen) {
  std::vector<int64_t> keys;
  const int64_t block = args.mode.block;
  if (position >= dense_below(args.mode))
    for (int32_t i = 0; i + 1 < args.mode.top_k && chosen[i] >= 0; ++i)
      for (int64_t key = chosen[i] * block; key < (chosen[i] + 1) * block; ++key) keys.push_back(key);
  const OwnKeys own = own_keys(args.mode, position, args.kv.kv_len);
  for (int64_t key = own.first; key < own.end; ++key) keys.push_back(key);
  return keys;
}

struct Row {
  std::vector<double> o;
  double m = kMinusInf;  // base 2
  double d = 0;
};

Row attend(const PrefillArgs& args, int64_t row, int32_t q_head, const std::vector<int64_t>& keys) {
  const int dim = static_cast<int>(args.layout.head_dim);
  const int kv_head = kv_head_of(args, q_head);
  const float* q = q_row(args, row, q_head);
  const double scale = args.scale != 0 ? static_cast<double>(args.scale) : 1.0 / std::sqrt(static_cast<double>(dim));
  Row result{std::vector<double>(static_cast<size_t>(dim), 0.0)};
  std::vector<double> x, rounded(result.o.size()), numbers(result.o.size());
  for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = query(args.layout.dtype, q[i]);
  for (int64_t key : keys) {
    const std::byte* k = k_row(args.layout, args.kv, key, kv_head);
    const int exponent = scales_at(args, key, kv_head).k;
    double dot = 0;
    widen(args.layout.dtype, k, exponent, numbers);
    for (size_t i = 0; i < numbers.size(); ++i) dot += rounded[i] * numbers[i];
    x.push_back(dot * scale * std::numbers::log2e);
    result.m = std::max(result.m, x.back());
  }
  if (result.m == kMinusInf) return result;
  for (size_t n = 0; n < keys.size(); ++n) {
    const double weight = std::exp2(x[n] - result.m);
    const std::byte* v = v_row(args.layout, args.kv, keys[n], kv_head);
    const int exponent = scales_at(args, keys[n], kv_head).v;
    result.d += weight;
    widen(args.layout.dtype, v, exponent, numbers);
    for (size_t i = 0; i < numbers.size(); ++i) result.o[i] += weight * numbers[i];
  }
  return result;
}

void store(const PrefillArgs& args, int64_t row, int32_t q_head, const Row& result) {
  const int64_t dim = args.layout.head_dim;
  const int64_t stride = args.out_stride != 0 ? args.out_stride : args.q_heads * dim;
  const int64_t state_row = row * args.q_heads + q_head;
  for (int64_t i = 0; i < dim; ++i) {
    const double o = result.o[static_cast<size_t>(i)];
    if (args.out != nullptr)
      args.out[row * stride + q_head * dim + i] = static_cast<float>(result.m == kMinusInf ? 0.0 : o / result.d);
    if (args.state) args.state.o[state_row * dim + i] = static_cast<float>(o);
  }
  if (!args.state) return;
  args.state.m[state_row] = static_cast<float>(result.m);
  args.state.d[state_row] = static_cast<float>(result.d);
}

}  // namespace

int64_t ref_scores(const PrefillArgs& args, int64_t row, int32_t q_head, double* scores) {
  const int64_t candidates = (args.q_begin + row) / args.mode.block;  // j < b(p)
  const int dim = static_cast<int>(args.layout.head_dim);
  std::vector<bf16_t> mean(static_cast<size_t>(dim));
  const float* q = q_row(args, row, q_head);
  for (int64_t j = 0; j < candidates; ++j) {
    centroid(args.layout, args.kv, kv_head_of(args, q_head), args.mode.block, j, mean.data());
    scores[j] = 0;
    for (int i = 0; i < dim; ++i)
      scores[j] += query(args.layout.dtype, q[i]) * static_cast<double>(bf16_to_f32(mean[static_cast<size_t>(i)]));
  }
  return candidates;
}

void ref_select(const PrefillArgs& args, int32_t* selection) {
  const int64_t history = std::max(args.mode.top_k - 1, 0);
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t position = args.q_begin + row;
    for (int32_t head = 0; head < args.q_heads; ++head) {
      int32_t* chosen = selection + (row * args.q_heads + head) * history;
      std::fill_n(chosen, history, -1);
      if (position < dense_below(args.mode)) continue;
      std::vector<double> scores(static_cast<size_t>(position / args.mode.block));
      const int64_t candidates = ref_scores(args, row, head, scores.data());
      std::vector<int32_t> order(static_cast<size_t>(candidates));
      for (int32_t j = 0; j < candidates; ++j) order[static_cast<size_t>(j)] = j;
      std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return chosen_before(scores[static_cast<size_t>(a)], a, scores[static_cast<size_t>(b)], b);
      });
      const int64_t count = std::min(history, candidates);
      std::sort(order.begin(), order.begin() + count);
      std::copy_n(order.begin(), count, chosen);
    }
  }
}

void ref_prefill(const PrefillArgs& args) {
  const int64_t history = std::max(args.mode.top_k - 1, 0);
  std::vector<int32_t> selection(static_cast<size_t>(args.rows * args.q_heads * history));
  if (args.selection_in != nullptr)
    std::copy_n(args.selection_in, selection.size(), selection.data());
  else
    ref_select(args, selection.data());
  if (args.selection_out != nullptr) std::copy_n(selection.data(), selection.size(), args.selection_out);
  for (int64_t row = 0; row < args.rows; ++row)
    for (int32_t head = 0; head < args.q_heads; ++head) {
      const int32_t* chosen = selection.data() + (row * args.q_heads + head) * history;
      store(args, row, head, attend(args, row, head, visible_keys(args, args.q_begin + row, chosen)));
    }
}

void ref_decode(const DecodeArgs& args) {
  const int64_t dim = args.layout.head_dim;
  const int64_t q_stride = args.q_stride != 0 ? args.q_stride : args.q_heads * dim;
  const int64_t out_stride = args.out_stride != 0 ? args.out_stride : args.q_heads * dim;
  for (int64_t sequence = 0; sequence < args.sequences; ++sequence) {
    PrefillArgs one{.layout = args.layout,
                    .mode = args.modes[sequence],
                    .q_heads = args.q_heads,
                    .rows = 1,
                    .q_begin = args.kv[sequence].kv_len - 1,
                    .q = args.q + sequence * q_stride,
                    .kv = args.kv[sequence],
                    .scale = args.scale};
    if (args.out != nullptr) one.out = args.out + sequence * out_stride;
    const int64_t state_row = sequence * args.q_heads;
    if (args.state) one.state = {args.state.o + state_row * dim, args.state.m + state_row, args.state.d + state_row};
    ref_prefill(one);
  }
}

}  // namespace mc::attn

// Inputs of attention tests: a sequence's KV in pages scattered over a poisoned arena, queries, and the
// comparison with the reference under a derived bound.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "attn/ref.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace mc::attn::cases {

enum class Data { normal, huge, constant_keys, zeros, one_key };
inline const char* to_string(Data data) {
  const char* names[] = {"normal", "huge", "constant_keys", "zeros", "one_key"};
  return names[static_cast<int>(data)];
}

inline ExtentLayout layout_of(uint32_t kv_heads, uint32_t head_dim, Dtype dtype, uint32_t block_tokens = 64) {
  return {.layers = 1, .kv_heads = kv_heads, .head_dim = head_dim, .block_tokens = block_tokens, .dtype = dtype};
}

/// All floats of a sequence, before they go into pages.
struct Rows {
  std::vector<float> k, v;  // [tokens, kv_heads, head_dim]
};

/// The sum of four uniform numbers, with variance 1: nearly normal, and drawn at a tenth of the cost of Rng::normal().
inline float bell(Rng& rng) {
  const uint64_t bits = rng.next();
  const auto part = [&](int i) { return static_cast<float>(bits >> (16 * i) & 0xffff); };
  return ((part(0) + part(1)) + (part(2) + part(3)) - 131070) * (1.7320508f / 65536);
}

inline Rows random_rows(const ExtentLayout& layout, int64_t tokens, Data data, Rng& rng) {
  const size_t row = layout.kv_heads * layout.head_dim;
  Rows rows{std::vector<float>(static_cast<size_t>(tokens) * row),
            std::vector<float>(static_cast<size_t>(tokens) * row)};
  for (size_t i = 0; i < rows.k.size(); ++i) {
    rows.k[i] = bell(rng);
    rows.v[i] = bell(rng);
    if (data == Data::huge) rows.k[i] *= 40;
    if (data == Data::zeros) rows.k[i] = 0;
    if (data == Data::constant_keys) rows.k[i] = rows.k[i % row];
    if (data == Data::one_key && i / row != static_cast<size_t>(tokens) / 3) rows.k[i] *= 1e-3f;
    if (data == Data::one_key && i / row == static_cast<size_t>(tokens) / 3) rows.k[i] *= 10;
  }
  return rows;
}

/// Pages of one layer behind a non-zero offset, every byte that nobody writes a NaN.
class Pages {
 public:
  Pages(const ExtentLayout& layout, int64_t tokens, bool shuffled, Rng& rng) : layout_(layout) {
    const int64_t count = (tokens + layout.block_tokens - 1) / layout.block_tokens;
    const size_t stride = round_up(kOffset + layout.layer_bytes(), 4096);
    arena_.assign(stride * static_cast<size_t>(count) / 4 + 1024, std::numeric_limits<float>::quiet_NaN());
    auto* base = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(arena_.data()), 4096));
    for (int64_t page = 0; page < count; ++page) pages_.push_back(base + stride * static_cast<size_t>(page));
    if (shuffled)
      for (size_t i = pages_.size(); i > 1; --i) std::swap(pages_[i - 1], pages_[rng.below(i)]);
  }

  /// Appends tokens [begin, end) of rows.
  void append(const Rows& rows, int64_t begin, int64_t end, Parallel* parallel = nullptr) {
    const size_t row = layout_.kv_heads * layout_.head_dim;
    attn::append({.layout = layout_,
                  .target = target(),
                  .position = begin,
                  .tokens = end - begin,
                  .k = rows.k.data() + static_cast<size_t>(begin) * row,
                  .v = rows.v.data() + static_cast<size_t>(begin) * row},
                 parallel);
  }

  KvTarget target() const { return {pages_.data(), kOffset}; }
  KvView view(int64_t kv_len) const { return {pages_.data(), kv_len, kOffset}; }
  std::byte* layer(int64_t page) { return pages_[static_cast<size_t>(page)] + kOffset; }

 private:
  static constexpr size_t kOffset = 192;  // layer_offset of some layer

  ExtentLayout layout_;
  std::vector<float> arena_;
  std::vector<std::byte*> pages_;
};

/// Everything of one prefill call.
struct Case {
  ExtentLayout layout;
  Mode mode;
  int32_t q_heads;
  int64_t kv_len;
  int64_t q_begin;
  int64_t rows;
  Data data;

  std::string name() const {
    return std::string(mc::to_string(layout.dtype)) + " d" + std::to_string(layout.head_dim) + " heads " +
           std::to_string(q_heads) + "/" + std::to_string(layout.kv_heads) + " page " +
           std::to_string(layout.block_tokens) + " kv " + std::to_string(kv_len) + " q " + std::to_string(rows) + "@" +
           std::to_string(q_begin) + " moba " + std::to_string(mode.block) + "," + std::to_string(mode.top_k) +
           " window " + std::to_string(mode.window) + " " + to_string(data);
  }
};

inline std::vector<float> random_queries(const Case& c, Rng& rng) {
  std::vector<float> q(static_cast<size_t>(c.rows * c.q_heads) * c.layout.head_dim);
  for (float& x : q) x = bell(rng);
  return q;
}

/// How far a variant may be from the reference in one output element, given the same selection. A score is
/// a chain of head_dim f32 roundings: as random walks go, 4 sqrt(head_dim) 2^-24 |q| |k| covers it, and its
/// error moves a weight by that factor. The output is a weighted mean of V over at most `keys` f32 additions,
/// so it moves by max |v| times those. bf16 tiles round each weight once more, by 2^-9 up or down, twice
/// where numerator and sum disagree.
class Bound {
 public:
  /// `variant` decides whether weights are bf16.
  Bound(const Case& c, const Rows& rows, std::string_view variant)
      : dim_(c.layout.head_dim), bf16_(variant == "avx512bf16" && c.layout.dtype != Dtype::f32), keys_(c.kv_len) {
    for (size_t row = 0; row < rows.k.size() / dim_; ++row) k_ = std::max(k_, norm(rows.k.data() + row * dim_));
    for (float v : rows.v) v_max_ = std::max(v_max_, std::abs(static_cast<double>(v)));
    // A stored value may be larger than x by a 16th, and by a 512th of a scale that is at most 1 / 224 of the largest.
    const double stored = c.layout.dtype == Dtype::f8_e4m3 ? 1.07 : 1;
    k_ *= stored, v_max_ *= stored;
  }
  /// For a query row and its whole output.
  double operator()(const float* q) const {
    const double u = std::exp2(-24);
    const double dim = static_cast<double>(dim_);
    const double score = 4 * (std::sqrt(dim) + 1) * u * norm(q) * k_ / std::sqrt(dim);
    const double weight = score + 4 * (std::sqrt(static_cast<double>(keys_)) + 1) * u;
    return v_max_ * (weight + (bf16_ ? std::exp2(-8) : 0)) + 1e-7;
  }

 private:
  double norm(const float* row) const {
    double sum = 0;
    for (size_t i = 0; i < dim_; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    return std::sqrt(sum);
  }
  size_t dim_;
  bool bf16_;
  int64_t keys_;
  double k_ = 0, v_max_ = 0;
};

/// The largest error of `out` against `expected` as a share of the bound; rows of head_dim, NaN is infinite.
inline double error_share(const Bound& bound, const float* q, const float* out, const float* expected, size_t floats,
                          size_t dim) {
  double worst = 0;
  for (size_t row = 0; row < floats; row += dim) {
    const double limit = bound(q + row);
    for (size_t i = row; i < row + dim; ++i) {
      const double error = std::abs(static_cast<double>(out[i]) - static_cast<double>(expected[i])) / limit;
      if (!(error <= worst)) worst = error == error ? error : std::numeric_limits<double>::infinity();
    }
  }
  return worst;
}

inline PrefillArgs args_of(const Case& c, const std::vector<float>& q, const KvView& kv, float* out) {
  return {.layout = c.layout,
          .mode = c.mode,
          .q_heads = c.q_heads,
          .rows = c.rows,
          .q_begin = c.q_begin,
          .q = q.data(),
          .kv = kv,
          .out = out};
}

inline size_t out_floats(const Case& c) {
  return static_cast<size_t>(c.rows * c.q_heads) * c.layout.head_dim;
}
inline size_t list_values(const Case& c) {
  return static_cast<size_t>(c.rows * c.q_heads) * static_cast<size_t>(std::max(c.mode.top_k - 1, 0));
}

/// Variants other than ref that this machine runs.
inline std::vector<std::string> fast_variants() {
  std::vector<std::string> names;
  for (const Variant* variant : variants())
    if (lacking(*variant).empty() && name_of(*variant) != "ref") names.emplace_back(name_of(*variant));
  return names;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace mc::attn::cases

// The keys that a row attends to, as arithmetic. The reference, the CPU variants and the GPU kernels compile this one
// definition. It uses plain integers and constexpr functions, which nvcc accepts as device code with
// --expt-relaxed-constexpr and without the standard library.
#pragma once

#include <cstdint>

namespace mc::attn {

enum class ModeKind : uint8_t { full = 0, moba = 1, window = 2 };

/// The attention of one layer. Parameters that the mode does not have are 0.
struct Mode {
  ModeKind kind = ModeKind::full;
  int32_t block = 0;   // tokens of a moba_block
  int32_t top_k = 0;   // blocks a row attends to, its own included
  int32_t window = 0;  // keys a row attends to, its own included
  bool operator==(const Mode&) const = default;
};

constexpr int64_t kDenseForEver = INT64_MAX;

/// A MoBA row below this position has at most top_k - 1 complete blocks before it, so it chooses all of them.
constexpr int64_t moba_dense_below(int32_t block, int32_t top_k) {
  return int64_t{block} * top_k;
}

/// The first of the last `window` keys before and at `position`.
constexpr int64_t window_first_key(int32_t window, int64_t position) {
  return position + 1 > window ? position + 1 - window : 0;
}

/// The contiguous keys [first, end) of a row at `position`. A MoBA row that chooses has the chosen blocks beside them.
struct OwnKeys {
  int64_t first = 0, end = 0;
};
constexpr OwnKeys own_keys(const Mode& mode, int64_t position, int64_t kv_len) {
  OwnKeys keys{0, position + 1 < kv_len ? position + 1 : kv_len};
  if (mode.kind == ModeKind::window) keys.first = window_first_key(mode.window, position);
  if (mode.kind == ModeKind::moba && position >= moba_dense_below(mode.block, mode.top_k))
    keys.first = position / mode.block * mode.block;
  return keys;
}

/// The order of MoBA's selection: the larger score, then the larger block. A NaN score counts as -infinity.
template <class T>
constexpr bool chosen_before(T score, int64_t block, T other_score, int64_t other_block) {
  const T lowest = -static_cast<T>(__builtin_inff());
  const T a = score == score ? score : lowest, b = other_score == other_score ? other_score : lowest;
  return a > b || (a == b && block > other_block);
}

}  // namespace mc::attn

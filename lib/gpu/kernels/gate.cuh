// The parts of MoBA's gate (arXiv:2502.13189, section 2.2) that the kernels share: a warp scores 16 rows against 8
// blocks at a time by mma.sync, and each thread keeps sorted lists of its best. Scores have equal bits in all kernels.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {

constexpr int kNone = -1;

struct Choice {
  float score;
  int32_t block;
};

MC_DEVICE bool is_before(const Choice& a, const Choice& b) {
  return mc::attn::chosen_before(a.score, a.block, b.score, b.block);
}

/// The best one of `kThreads` neighbouring threads, which all get it.
template <int kThreads>
MC_DEVICE Choice best_of_threads(Choice best) {
#pragma unroll
  for (int by = 1; by < kThreads; by *= 2) {
    const Choice other{ptx::shuffle_xor(best.score, by), ptx::shuffle_xor(best.block, by)};
    if (is_before(other, best)) best = other;
  }
  return best;
}

/// The place of a row's winner in the ascending order of its winners. Turns without a winner are the last ones, and
/// keep their places.
struct WinnerPlace {
  int32_t winner;
  int place;

  MC_DEVICE WinnerPlace(int32_t block, int turn) : winner(block), place(block == kNone ? turn : 0) {}
  /// Takes another winner of the row, or kNone, into account.
  MC_DEVICE void pass(int32_t other) {
    if (winner != kNone && other != kNone && other < winner) ++place;
  }
};

/// The best `kLength` blocks of one row among those that a thread has seen, best first.
template <int kLength>
struct BestOf {
  float score[kLength];
  int32_t block[kLength];

  MC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kLength; ++i) {
      score[i] = kMinusInf;
      block[i] = kNone;
    }
  }
  MC_DEVICE void offer(float s, int32_t b) {
    if (s < score[kLength - 1]) return;  // most scores: one comparison
    if (!(s == s)) s = kMinusInf;
#pragma unroll
    for (int i = 0; i < kLength; ++i) {
      // chosen_before() of numbers: the list has no NaN.
      if (!(s > score[i] || (s == score[i] && b > block[i]))) continue;
      const float old_score = score[i];
      const int32_t old_block = block[i];
      score[i] = s;
      block[i] = b;
      s = old_score;
      b = old_block;
    }
  }
  /// The best of `kThreadsOfRow` neighbouring threads, which all get it. Its own thread drops it.
  template <int kThreadsOfRow>
  MC_DEVICE Choice pop() {
    const Choice out = best_of_threads<kThreadsOfRow>({score[0], block[0]});
    if (out.block != kNone && out.block == block[0]) drop_first();
    return out;
  }

 private:
  MC_DEVICE void drop_first() {
#pragma unroll
    for (int i = 0; i + 1 < kLength; ++i) {
      score[i] = score[i + 1];
      block[i] = block[i + 1];
    }
    score[kLength - 1] = kMinusInf;
    block[kLength - 1] = kNone;
  }
};
using Best = BestOf<kChosenMax>;

/// Offers the blocks first .. first + 7, first + stride .. of one KV head to the rows g and g + 8 (g = lane / 4) of a
/// warp, up to each row's candidates. `centroids(b, block)` fills in the thread's part of a centroid, the B fragment of
/// each product.
template <int kDim, int kLength, class Centroids>
MC_DEVICE void offer_blocks(BestOf<kLength> (&best)[2], const uint32_t (&q)[kDim / 16][4],
                            const int64_t (&candidates)[2], int64_t first, int64_t stride, const Centroids& centroids) {
  const int lane = ptx::tid_x() % 32;
  int64_t most = max(candidates[0], candidates[1]);
#pragma unroll
  for (int by = 16; by > 0; by /= 2) most = max(most, ptx::shuffle_xor(most, by));
  for (int64_t block = first; block < most; block += stride) {
    float s[4] = {0, 0, 0, 0};
    uint32_t b[kDim / 16][2];
    centroids(b, min(block + lane / 4, most - 1));
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) ptx::mma_16816(s, q[step], b[step][0], b[step][1]);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int64_t candidate = block + 2 * (lane % 4) + (v & 1);
      if (candidate < candidates[v / 2])
        best[v / 2].offer(ptx::has_fault(Fault::smallest_chosen) ? -s[v] : s[v], static_cast<int32_t>(candidate));
    }
  }
}

}  // namespace mc::gpu

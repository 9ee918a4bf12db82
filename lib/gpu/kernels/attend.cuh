// Attention of a tile of rows over the pages of one KV head, for sm_80 and later: cp.async copies of 64 keys at a time
// into two stages, mma.sync products, online softmax (Milakov and Gimelshein, arXiv:1805.02867) in base 2.
//
//   prefill  kRowWarps = 4: 64 rows, each warp owns 16 of them and all 64 keys of a stage
//   decode   kRowWarps = 1: 16 rows, all warps share them, each owns 16 keys of a stage; their states merge at the end
//
// The rows of a tile are consecutive (token, head of the group) pairs of one KV head, so K and V are read once for all
// heads of the group. MoBA rows choose different blocks: the CTA walks the union of its rows' blocks, and every row
// masks the blocks that it did not choose (MoBA, arXiv:2502.13189, section 2.2). When the rows are routed, other CTAs
// have attended to the chosen blocks (routed_sm80.cu): the CTA walks the rows' own keys and merges the states.
//
// Pages of fp8_e4m3 are copied as codes, into stages of half the size, and widened to one bf16 tile behind them before
// the products: the same shared memory, and half of the bytes from device memory. The bits of a result are those that
// bf16 pages of the same values give.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/kernels/routing.cuh"
#include "gpu/kernels/tiles.cuh"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {

/// One row as a thread sees it: its place in q and out, the keys that it sees, and its position in its selection.
struct Row {
  int32_t first = 0, end = 0;       // own keys
  const int32_t* chosen = nullptr;  // the rest of its list, ascending
  int32_t left = 0;
  int32_t index = -1;  // token * q_heads + head; -1: no such row
  int32_t number = 0;  // among the rows of the KV head

  /// Whether the row chose `block`; blocks come in ascending order.
  MC_DEVICE bool member(int32_t block) {
    if (ptx::has_fault(Fault::member_ignored)) return true;
    for (; left > 0; ++chosen, --left) {
      const int32_t next = ptx::load(chosen);
      if (next < 0 || next >= block) return next == block;
    }
    return false;
  }
};

MC_DEVICE Row row_of(const AttentionArgs& args, const Sequence& sequence, int kv_head, int number) {
  const int group = args.q_heads / args.pool.kv_heads;
  const int token = number / group;
  Row row;
  row.number = number;
  if (token >= sequence.tokens) return row;
  const int64_t position = sequence.q_begin + token;
  row.index = (sequence.first_token + token) * args.q_heads + kv_head * group + number % group;
  const attn::OwnKeys keys = attn::own_keys(sequence.mode, position, sequence.kv_len);
  row.first = static_cast<int32_t>(keys.first);
  row.end = static_cast<int32_t>(keys.end);
  if (ptx::has_fault(Fault::mask_one_short)) --row.end;
  if (ptx::has_fault(Fault::mask_one_far)) ++row.end;
  if (sequence.mode.kind == attn::ModeKind::moba && keys.first > 0) {
    row.chosen = args.selection + int64_t{row.index} * args.chosen;
    row.left = sequence.mode.top_k - 1;
  }
  return row;
}

MC_DEVICE float scale_of(const AttentionArgs& args) {
  return ptx::has_fault(Fault::scale_forgotten) ? 1 : args.scale_log2;
}

constexpr int kUnionWords = 8;  // of a union that are read at the same time; mark_union() zeroes a multiple of them

/// Block number `rank`, in ascending order, of a union in shared memory, of which the first `end` blocks are looked at;
/// -1: there are fewer. `wanted`: how many blocks are to be counted at most; then, how many were.
MC_DEVICE int32_t nth_block(uint32_t bits, int32_t end, int32_t rank, int32_t& wanted) {
  int32_t total = 0, place = -1, before = 0;
  uint32_t word = 0;
  for (int32_t first = 0; first * 32 < end && total < wanted; first += kUnionWords) {
    uint32_t words[kUnionWords];
    int32_t here = 0;
#pragma unroll
    for (int i = 0; i < kUnionWords; ++i) words[i] = ptx::load_shared_u32(bits + (first + i) * 4);
#pragma unroll
    for (int i = 0; i < kUnionWords; ++i) {
      const int32_t left = rank - total - here, count = ptx::popcount(words[i]);
      if (left >= 0 && left < count) {
        word = words[i];
        place = first + i;
        before = left;
      }
      here += count;
    }
    total += here;
  }
  wanted = total;
  if (place < 0) return -1;
  for (; before > 0; --before) word &= word - 1;
  return place * 32 + ptx::lowest_bit(word);
}

/// The key tiles that the rows of a CTA need, in ascending order.
struct Walk {
  int32_t end = 0;         // tile behind the last
  int tiles_of_block = 0;  // of a MoBA block; 0: every tile is needed
  uint32_t needed = 0;     // shared address of the bits of the MoBA blocks

  MC_DEVICE int32_t next(int32_t tile) const {
    if (tiles_of_block == 0) return tile;
    for (int32_t block = tile / tiles_of_block; tile < end; tile = block * tiles_of_block) {
      const uint32_t left = ptx::load_shared_u32(needed + block / 32 * 4) >> (block % 32);
      if ((left & 1) != 0) return tile;
      block = left != 0 ? block + ptx::lowest_bit(left) : (block / 32 + 1) * 32;
    }
    return end;
  }

  /// MoBA: needed tile number `rank`, which exists.
  MC_DEVICE int32_t nth(int32_t rank) const {
    int32_t blocks = rank / tiles_of_block + 1;
    return nth_block(needed, kUnionBlocksMax, rank / tiles_of_block, blocks) * tiles_of_block + rank % tiles_of_block;
  }
};

/// The number of needed tiles before tile `end` when the rows need `blocks` MoBA blocks, the one before `end` among
/// them.
MC_DEVICE int32_t tiles_of_blocks(int32_t blocks, int32_t tiles_of_block, int32_t end) {
  return blocks * tiles_of_block - ((end + tiles_of_block - 1) / tiles_of_block * tiles_of_block - end);
}

/// Sets the bits of the MoBA blocks that any of the tile's rows needs: those that it chose and, with `with_own`, those
/// of its own keys. `bits` is zeroed here; the caller synchronises before it reads them.
template <int kRows, int kCtaThreads = kThreads>
MC_DEVICE void mark_union(const AttentionArgs& args, const Sequence& sequence, int kv_head, int first_row,
                          uint32_t bits, bool with_own = true) {
  const int32_t blocks = (static_cast<int32_t>(sequence.kv_len) + sequence.mode.block - 1) / sequence.mode.block;
  const int words = (blocks + 31) / 32;
  for (int i = ptx::tid_x(); i < (words + kUnionWords - 1) / kUnionWords * kUnionWords; i += kCtaThreads)
    ptx::store_shared_u32(bits + i * 4, 0);
  ptx::barrier_all();
  for (int i = ptx::tid_x(); i < kRows; i += kCtaThreads) {
    const Row row = row_of(args, sequence, kv_head, first_row + i);
    if (row.index < 0 || row.end <= row.first) continue;
    const int32_t last = (row.end - 1) / sequence.mode.block;
    for (int32_t block = row.first / sequence.mode.block; with_own && block <= last; ++block)
      ptx::atomic_or_shared(bits + block / 32 * 4, 1u << (block % 32));
    for (int at = 0; at < row.left; ++at) {
      const int32_t block = ptx::load(row.chosen + at);
      if (block < 0) break;
      if (ptx::has_fault(Fault::union_misses_block) && at + 1 == row.left) break;
      ptx::atomic_or_shared(bits + block / 32 * 4, 1u << (block % 32));
    }
  }
}

/// Accumulators of one warp: 16 rows, of which a thread holds rows g and g + 8 (g = lane / 4).
template <int kDim>
struct Accumulator {
  float o[kDim / 8][4];
  float m[2], d[2];

  MC_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < kDim / 2; ++n) o[n / 4][n % 4] = 0;
    m[0] = m[1] = kMinusInf;
    d[0] = d[1] = 0;
  }
};

/// s = q k^T over `kKeys` keys of a stage from row `key0`: s[n] holds keys key0 + 8n ..
template <int kDim, int kKeys>
MC_DEVICE void scores(float (&s)[kKeys / 8][4], const uint32_t (&q)[kDim / 16][4], uint32_t k_tile, int key0) {
  const int lane = ptx::tid_x() % 32;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int v = 0; v < 4; ++v) s[n][v] = 0;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 2) {
      uint32_t b[4];
      const int row = key0 + 8 * n + (lane & 7) + ((lane >> 4) << 3);
      ptx::ldmatrix_x4(b, k_tile + chunk_at<kDim>(row, 2 * step + ((lane >> 3) & 1)));
      ptx::mma_16816(s[n], q[step], b[0], b[1]);
      ptx::mma_16816(s[n + 1], q[step], b[2], b[3]);
    }
}

/// Masks and scales s, updates the running maximum and sum, and rescales o. s becomes the weights.
template <int kDim, int kKeys>
MC_DEVICE void soften(float (&s)[kKeys / 8][4], Accumulator<kDim>& acc, const Row (&rows)[2], const bool (&member)[2],
                      int32_t key0, float scale_log2) {
  const int lane = ptx::tid_x() % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Row& row = rows[half];
    const bool any = row.index >= 0;
    float top = kMinusInf;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int32_t key = key0 + 8 * n + 2 * (lane % 4) + v;
        const bool seen = any && key < row.end && (key >= row.first || member[half]);
        float& x = s[n][2 * half + v];
        x = seen ? x * scale_log2 : kMinusInf;
        top = ptx::max_f32(top, x);
      }
    top = ptx::max_f32(top, ptx::shuffle_xor(top, 1));
    top = ptx::max_f32(top, ptx::shuffle_xor(top, 2));
    const float m = ptx::max_f32(acc.m[half], top);
    const float base = m == kMinusInf ? 0 : m;  // no key yet: every weight is 2^-inf = 0
    const float keep = ptx::has_fault(Fault::sums_not_rescaled) ? 1 : ptx::exp2_approx(acc.m[half] - base);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        float& x = s[n][2 * half + v];
        x = ptx::exp2_approx(x - base);
        sum += x;
      }
    acc.m[half] = m;
    acc.d[half] = acc.d[half] * keep + sum;  // of this thread's keys; the quad adds up at the end
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      acc.o[n][2 * half] *= keep;
      acc.o[n][2 * half + 1] *= keep;
    }
  }
}

/// o += weights v over the same keys.
template <int kDim, int kKeys>
MC_DEVICE void weigh(Accumulator<kDim>& acc, const float (&s)[kKeys / 8][4], uint32_t v_tile, int key0) {
  const int lane = ptx::tid_x() % 32;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const uint32_t a[4] = {
        ptx::pack_bf16(s[2 * step][0], s[2 * step][1]), ptx::pack_bf16(s[2 * step][2], s[2 * step][3]),
        ptx::pack_bf16(s[2 * step + 1][0], s[2 * step + 1][1]), ptx::pack_bf16(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, v_tile + chunk_at<kDim>(key0 + 16 * step + lane % 16, n + lane / 16));
      ptx::mma_16816(acc.o[n], a, b[0], b[1]);
      ptx::mma_16816(acc.o[n + 1], a, b[2], b[3]);
    }
  }
}

/// Writes a thread's part of a row: the output when there is one split, else the split's state.
template <int kDim>
MC_DEVICE void store_row(const AttentionArgs& args, const Row& row, int split, int splits, float m, float d,
                         const float (&o)[kDim / 8][2]) {
  const int column = 2 * (ptx::tid_x() % 4);
  if (row.index < 0) return;
  if (splits == 1) {
    uint32_t* out = reinterpret_cast<uint32_t*>(args.out + int64_t{row.index} * kDim + column);
    const float inverse = d > 0 ? 1 / d : 0;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) ptx::store(out + n * 4, ptx::pack_bf16(o[n][0] * inverse, o[n][1] * inverse));
    return;
  }
  const int64_t at = int64_t{split} * args.split_tokens * args.q_heads + row.index;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    ptx::store(args.split_o + at * kDim + n * 8 + column, o[n][0]);
    ptx::store(args.split_o + at * kDim + n * 8 + column + 1, o[n][1]);
  }
  if (column == 0) {
    ptx::store(args.split_m + at, m);
    ptx::store(args.split_d + at, d);
  }
}

/// The sum over the four threads of a row.
MC_DEVICE float sum_of_quad(float d) {
  d += ptx::shuffle_xor(d, 1);
  return d + ptx::shuffle_xor(d, 2);
}

/// 8 elements of a part's o, as one access.
struct alignas(16) PartWords {
  uint32_t v[4];
};

/// Transposes the 4 x 4 words of a quad: thread q gives word j to thread j and gets word q of thread j as its word j.
MC_DEVICE void transpose_quad(uint32_t (&v)[4]) {
#pragma unroll
  for (uint32_t by = 1; by < 4; by *= 2) {
    const bool is_high = (ptx::tid_x() & by) != 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if ((i & by) != 0) continue;
      const uint32_t theirs = ptx::shuffle_xor(is_high ? v[i] : v[i + by], by);
      if (is_high)
        v[i] = theirs;
      else
        v[i + by] = theirs;
    }
  }
}

/// Writes the states of 16 rows of an item, from row `first` of it on, at the rows' places. The quad of a row writes 16
/// bytes a thread.
template <int kDim>
MC_DEVICE void store_parts(const AttentionArgs& args, const Accumulator<kDim>& acc, int first, const Item& item) {
  const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
  const int lane = ptx::tid_x() % 32, column = 2 * (lane % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float d = sum_of_quad(acc.d[half]);
    const int row = first + lane / 4 + 8 * half;
    const bool is_row = row < item.count && !(ptx::has_fault(Fault::item_loses_row) && row + 1 == item.count);
    const int64_t at = int64_t{ptx::ctaid_y()} * routing.entries + item.first + row;
    PartWords* out = reinterpret_cast<PartWords*>(routing.o + at * kDim);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      PartWords words;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        words.v[n] = ptx::pack_bf16(acc.o[4 * i + n][2 * half], acc.o[4 * i + n][2 * half + 1]);
      transpose_quad(words.v);
      if (is_row) ptx::store(out + 4 * i + lane % 4, words);
    }
    if (!is_row || column != 0) continue;
    ptx::store(routing.m + at, acc.m[half]);
    ptx::store(routing.d + at, d);
  }
}

/// Merges a part into the state of a row. `pair_of(n)`: two elements of the part's o, from column 8 n on. No product is
/// fused with a sum, so a row has equal bits wherever its parts come from.
template <int kDim, class PairOf>
MC_DEVICE void merge_part(float their_m, float their_d, const PairOf& pair_of, float& m, float& d,
                          float (&o)[kDim / 8][2]) {
  const float top = ptx::max_f32(m, their_m), base = top == kMinusInf ? 0 : top;
  float keep = ptx::exp2_approx(m - base), add = ptx::exp2_approx(their_m - base);
  if (ptx::has_fault(Fault::part_not_rescaled)) keep = add = 1;
  m = top;
  d = ptx::add_rn(ptx::mul_rn(d, keep), ptx::mul_rn(their_d, add));
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    const uint32_t pair = pair_of(n);
    o[n][0] = ptx::add_rn(ptx::mul_rn(o[n][0], keep), ptx::mul_rn(ptx::from_bits(pair << 16), add));
    o[n][1] = ptx::add_rn(ptx::mul_rn(o[n][1], keep), ptx::mul_rn(ptx::from_bits(pair & 0xffff0000u), add));
  }
}

/// A thread's share of the state of one chosen block of a row.
template <int kDim>
struct Part {
  PartWords words[kDim / 32];
  float m = kMinusInf, d = 0;

  MC_DEVICE void load(const Routing& routing, int kv_head, int32_t place) {
    if (ptx::has_fault(Fault::part_of_neighbour)) place = max(place - 1, 0);
    const int64_t at = int64_t{kv_head} * routing.entries + place;
    const PartWords* from = reinterpret_cast<const PartWords*>(routing.o + at * kDim) + ptx::tid_x() % 4;
    m = ptx::load(routing.m + at);
    d = ptx::load(routing.d + at);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) words[i] = ptx::load(from + 4 * i);
  }
  /// The quad's threads have the row's elements as wgmma does. All lanes of the warp take part.
  MC_DEVICE void deal() {
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) transpose_quad(words[i].v);
  }
  /// Two elements from column 8 n on.
  MC_DEVICE uint32_t pair(int n) const {
    return words[n / 4].v[n % 4];
  }
};

/// Merges the states of the chosen blocks of a thread's two rows, in the order of the blocks, into those of their own
/// keys. A part is on its way while the one before it is merged.
template <int kDim>
MC_DEVICE void merge_parts(const Routing& routing, const int32_t* places, int chosen, const Row (&rows)[2], int kv_head,
                           float (&m)[2], float (&d)[2], float (&o)[2][kDim / 8][2]) {
  Part<kDim> parts[2], next[2] = {};
  int32_t place[2] = {};
  const int lost = ptx::has_fault(Fault::part_lost) ? 1 : 0;
  const int left[2] = {max(rows[0].left - lost, 0), max(rows[1].left - lost, 0)};
  const auto load_place = [&](int half, int slot) {
    if (slot < left[half]) place[half] = ptx::load(places + int64_t{rows[half].number} * chosen + slot);
  };
  const auto load_part = [&](int half, int slot) {
    if (slot < left[half]) next[half].load(routing, kv_head, place[half]);
    load_place(half, slot + 1);
  };
  load_place(0, 0);
  load_place(1, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) load_part(half, 0);
  int most = max(left[0], left[1]);  // of the warp: its lanes exchange words
#pragma unroll
  for (uint32_t by = 4; by < 32; by *= 2) most = max(most, ptx::shuffle_xor(most, by));
  for (int slot = 0; slot < most; ++slot) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      parts[half] = next[half];
      load_part(half, slot + 1);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      parts[half].deal();
      if (slot < left[half])
        merge_part<kDim>(
            parts[half].m, parts[half].d, [&](int n) { return parts[half].pair(n); }, m[half], d[half], o[half]);
    }
  }
}

constexpr int kAttendingBarrier = 1;

/// Merges the states of the four warps of a decode CTA through shared memory; warp 0 keeps the result. kHasOthers: the
/// CTA has other warps as well.
template <int kDim, bool kHasOthers = false>
MC_DEVICE void merge_warps(Accumulator<kDim>& acc, uint32_t scratch) {
  const int warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
  constexpr int kFloats = kDim / 2 + 4;  // of one thread's accumulator
  const uint32_t mine = scratch + (warp * 32 + lane) * 4;
  if (warp > 0) {
#pragma unroll
    for (int n = 0; n < kDim / 2; ++n) ptx::store_shared_f32(mine + n * kThreads * 4, acc.o[n / 4][n % 4]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::store_shared_f32(mine + (kDim / 2 + half) * kThreads * 4, acc.m[half]);
      ptx::store_shared_f32(mine + (kDim / 2 + 2 + half) * kThreads * 4, acc.d[half]);
    }
  }
  static_assert(kFloats * kThreads * 4 <= 4 * kKeyTile * kDim * 2, "the stages hold the states");
  if constexpr (kHasOthers)
    ptx::barrier_sync<kAttendingBarrier, kThreads>();
  else
    ptx::barrier_all();
  if (warp > 0) return;
  for (int other = 1; other < 4; ++other) {
    const uint32_t theirs = scratch + (other * 32 + lane) * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float their_m = ptx::load_shared_f32(theirs + (kDim / 2 + half) * kThreads * 4);
      const float m = ptx::max_f32(acc.m[half], their_m), base = m == kMinusInf ? 0 : m;
      const float keep = ptx::exp2_approx(acc.m[half] - base), add = ptx::exp2_approx(their_m - base);
      acc.m[half] = m;
      const float their_d = ptx::load_shared_f32(theirs + (kDim / 2 + 2 + half) * kThreads * 4);
      acc.d[half] = acc.d[half] * keep + their_d * add;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int v = 2 * half; v < 2 * half + 2; ++v)
          acc.o[n][v] = acc.o[n][v] * keep + ptx::load_shared_f32(theirs + (n * 4 + v) * kThreads * 4) * add;
    }
  }
}

/// Adds up the quad's sums and writes both rows of every thread. kMerges: the parts of the rows come first.
template <int kDim, bool kMerges>
MC_DEVICE void finish(const AttentionArgs& args, const Sequence& sequence, const Accumulator<kDim>& acc,
                      const Row (&rows)[2], int split) {
  float m[2] = {acc.m[0], acc.m[1]}, d[2] = {sum_of_quad(acc.d[0]), sum_of_quad(acc.d[1])};
  float o[2][kDim / 8][2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) o[i % 4 / 2][i / 4][i % 2] = acc.o[i / 4][i % 4];
  if constexpr (kMerges) {
    const int kv_head = static_cast<int>(ptx::ctaid_y()), chosen = sequence.mode.top_k - 1;
    const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
    const int32_t* places = of_head(routing.places, kv_head, int64_t{rows_of(args, sequence)} * chosen);
    merge_parts<kDim>(routing, places, chosen, rows, kv_head, m, d, o);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    store_row<kDim>(args, rows[half], split, kMerges ? 1 : sequence.splits, m[half], d[half], o[half]);
}

/// Queues the copy of the query tile into shared memory; rows that do not exist are zero.
template <int kDim, int kRows, int kCtaThreads = kThreads>
MC_DEVICE void queue_queries(const AttentionArgs& args, const Sequence& sequence, int kv_head, int first_row,
                             uint32_t tile) {
  constexpr int kChunks = kDim / 8;
  for (int i = ptx::tid_x(); i < kRows * kChunks; i += kCtaThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const int32_t index = row_of(args, sequence, kv_head, first_row + row).index;
    const uint16_t* from = args.q + (index < 0 ? 0 : int64_t{index} * kDim + chunk * 8);
    ptx::cp_async_16(tile + chunk_at<kDim>(row, chunk), from, index < 0 ? 0 : 16);
  }
  ptx::cp_async_commit();
}

/// Waits for the query tile, behind which kGroups groups of copies were queued, and loads its fragments.
template <int kDim, int kGroups>
MC_DEVICE void take_queries(uint32_t tile, int warp_row, uint32_t (&q)[kDim / 16][4]) {
  ptx::cp_async_wait<kGroups>();
  ptx::barrier_all();
  const int lane = ptx::tid_x() % 32;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    ptx::ldmatrix_x4(q[step], tile + chunk_at<kDim>(warp_row + lane % 16, 2 * step + lane / 16));
}

template <int kDim, int kRows, int kCtaThreads = kThreads>
MC_DEVICE void load_queries(const AttentionArgs& args, const Sequence& sequence, int kv_head, int first_row,
                            uint32_t tile, int warp_row, uint32_t (&q)[kDim / 16][4]) {
  queue_queries<kDim, kRows, kCtaThreads>(args, sequence, kv_head, first_row, tile);
  take_queries<kDim, 0>(tile, warp_row, q);
}

/// Splits of one sequence have equal numbers of needed tiles instead of equal ranges of keys.
MC_DEVICE void share_union(Walk& walk, int split, int splits, int32_t& first) {
  const int32_t blocks = (walk.end + walk.tiles_of_block - 1) / walk.tiles_of_block;
  int32_t count = kUnionBlocksMax;
  nth_block(walk.needed, blocks, -1, count);
  const int32_t tiles = tiles_of_blocks(count, walk.tiles_of_block, walk.end);
  const int32_t each = (tiles + splits - 1) / splits, begin = split * each, end = min(begin + each, tiles);
  const int repeated = ptx::has_fault(Fault::splits_overlap) && split > 0 ? 1 : 0;
  first = begin < end ? walk.nth(begin - repeated) : walk.end;
  if (begin < end) walk.end = walk.nth(end - 1) + 1;
}

/// The tiles of split `split` of the sequence's, of the rows' tiles [first, end). kOwn: of their own keys alone.
template <bool kOwn>
MC_DEVICE Walk walk_of(const AttentionArgs& args, const Sequence& sequence, int first_row, int rows, int split,
                       uint32_t needed, int32_t& first, bool shares_union = false) {
  const int group = args.q_heads / args.pool.kv_heads;
  const int last = min((first_row + rows - 1) / group, sequence.tokens - 1);
  const attn::OwnKeys low = attn::own_keys(sequence.mode, sequence.q_begin + first_row / group, sequence.kv_len);
  const attn::OwnKeys high = attn::own_keys(sequence.mode, sequence.q_begin + last, sequence.kv_len);
  const bool moba = !kOwn && sequence.mode.kind == attn::ModeKind::moba;
  const auto begin = static_cast<int32_t>(moba ? 0 : low.first / kKeyTile);
  const auto end = static_cast<int32_t>(high.end > 0 ? (high.end + kKeyTile - 1) / kKeyTile : 0);
  const int32_t each = (end - begin + sequence.splits - 1) / sequence.splits;
  first = begin + split * each;
  if (ptx::has_fault(Fault::splits_overlap) && split > 0) --first;
  Walk walk;
  walk.end = min(end, first + each);
  if (moba) walk.tiles_of_block = sequence.mode.block / kKeyTile;
  walk.needed = needed;
  if (moba && shares_union) {
    walk.end = end;
    share_union(walk, split, sequence.splits, first);
  }
  return walk;
}

/// Two stages of key tiles in shared memory. bf16 tiles are attended to where they are; codes of E4M3 are widened
/// first.
template <int kDim, bool kCodes>
struct Stages {
  static constexpr uint32_t kTile = SharedLayout<kDim, 0>::kTile, kStage = kCodes ? kTile : 2 * kTile;
  uint32_t first;              // shared address of all
  uint32_t now = 0, next = 0;  // bytes from there on
  int32_t number = 0;          // of the page of the announced tile
  TileScales scales, next_scales;

  MC_DEVICE explicit Stages(uint32_t at) : first(at), now(kCodes ? 2 * kTile : 0), next(now + kStage) {}

  /// Fetches the page number of the tile that is loaded next.
  MC_DEVICE void announce(const KvPool& pool, const Sequence& sequence, int32_t tile) {
    number = ptx::load(sequence.pages + page_of(pool, tile));
  }
  /// Queues the copy of the announced tile into the next stage.
  MC_DEVICE void load(const KvPool& pool, const Sequence& sequence, int kv_head, int32_t tile) {
    if constexpr (kCodes)
      next_scales = load_codes<kDim>(pool, sequence, kv_head, tile, number, first + next);
    else
      load_tile<kDim>(pool, sequence, kv_head, tile, number, first + next);
  }
  /// The next stage becomes the present one.
  MC_DEVICE void turn() {
    const uint32_t old = now;
    now = next;
    next = old;
    scales = next_scales;
  }
  /// The shared address of K and V of the present stage, whose copy has ended for all threads.
  MC_DEVICE uint32_t tiles() const {
    if constexpr (!kCodes) return first + now;
    widen_matrix<kDim>(first + now, scales.k, first);
    widen_matrix<kDim>(first + now + kKeyTile * kDim, scales.v, first + kTile);
    ptx::barrier_all();
    return first;
  }
};

/// grid: (row tiles of the longest sequence * args.splits, kv_heads, sequences). kMerges: the rows are routed, and
/// there are no splits. kCodes: pages hold codes of E4M3.
template <int kDim, int kRowWarps, bool kMerges = false, bool kCodes = false>
MC_DEVICE void attend(const AttentionArgs& args) {
  constexpr int kRows = 16 * kRowWarps, kKeys = kKeyTile / (4 / kRowWarps);
  using Layout = SharedLayout<kDim, kRows>;
  static_assert(Layout::kBytes == attention_shared(kRows, kDim));
  const uint32_t base = ptx::dynamic_shared<128>(), bits = base + Layout::kUnion;

  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int kv_head = ptx::ctaid_y(), split = ptx::ctaid_x() % args.splits;
  const int first_row = static_cast<int>(ptx::ctaid_x() / args.splits) * kRows;
  if (split >= sequence.splits || first_row >= sequence.tokens * (args.q_heads / args.pool.kv_heads)) return;
  queue_queries<kDim, kRows>(args, sequence, kv_head, first_row, base);
  if (!kMerges && sequence.mode.kind == attn::ModeKind::moba) {
    mark_union<kRows>(args, sequence, kv_head, first_row, bits);
    ptx::barrier_all();
  }

  const int warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
  const int warp_row = kRowWarps == 1 ? 0 : 16 * warp, key0 = kRowWarps == 1 ? kKeys * warp : 0;
  Row rows[2] = {row_of(args, sequence, kv_head, first_row + warp_row + lane / 4),
                 row_of(args, sequence, kv_head, first_row + warp_row + lane / 4 + 8)};

  int32_t tile;
  const Walk walk = walk_of<kMerges>(args, sequence, first_row, kRows, split, bits, tile, kRowWarps == 1);
  tile = walk.next(tile);
  Stages<kDim, kCodes> stages(base + Layout::kStages);
  if (tile < walk.end) {
    stages.announce(args.pool, sequence, tile);
    stages.load(args.pool, sequence, kv_head, tile);
  }
  ptx::cp_async_commit();
  int32_t next = walk.next(tile + 1);
  if (next < walk.end) stages.announce(args.pool, sequence, next);
  uint32_t q[kDim / 16][4];
  take_queries<kDim, 1>(base, warp_row, q);
  Accumulator<kDim> acc;
  acc.clear();
  while (tile < walk.end) {
    stages.turn();
    if (next < walk.end) stages.load(args.pool, sequence, kv_head, next);
    ptx::cp_async_commit();
    const int32_t after = walk.next(next + 1);
    if (after < walk.end) stages.announce(args.pool, sequence, after);
    ptx::cp_async_wait<1>();
    ptx::barrier_all();
    const uint32_t stage = stages.tiles();
    float s[kKeys / 8][4];
    scores<kDim, kKeys>(s, q, stage, key0);
    const int32_t block = walk.tiles_of_block > 0 ? tile / walk.tiles_of_block : -1;
    const bool member[2] = {!kMerges && rows[0].member(block), !kMerges && rows[1].member(block)};
    soften<kDim, kKeys>(s, acc, rows, member, tile * kKeyTile + key0, scale_of(args));
    weigh<kDim, kKeys>(acc, s, stage + Layout::kTile, key0);
    // The barriers around a widened tile order its reads already.
    if constexpr (!kCodes) ptx::barrier_all();
    tile = next;
    next = after;
  }
  if constexpr (kRowWarps == 1) {
    if constexpr (kCodes) ptx::barrier_all();
    merge_warps<kDim>(acc, base + Layout::kStages);
    if (warp > 0) return;
  }
  finish<kDim, kMerges>(args, sequence, acc, rows, split);
}

}  // namespace mc::gpu

// MoBA's gate on the device (arXiv:2502.13189, section 2.2): centroids of complete blocks from the sums that pages
// carry, and the top_k - 1 blocks of every row. Scores are products by mma.sync with equal bits in all kernels. There
// are two gates, which choose alike:
//
//   moba_gate                  Chunks of prompts. Neither a matrix of all scores nor a sort of all blocks is formed: a
//                              warp scores its rows twice. The first walk finds a bound for each row, the second one
//                              keeps the few blocks that reach it.
//   moba_scores, moba_choose   Decode rows, which are few: CTAs share the blocks and write the scores, then a CTA has
//                              one row.
#include "gpu/kernels/attend.cuh"
#include "gpu/kernels/gate.cuh"
#include "gpu/kernels/gate.h"
#include "gpu/ptx/arithmetic.cuh"

namespace mc::gpu {

namespace {

struct alignas(16) Words {
  uint32_t word[4];
};
struct alignas(16) Floats {
  float value[4];
};

}  // namespace

/// Centroid of a block: bf16(sum of its pages' ksum, in page order, / tokens); of one page: its kmean. These are the
/// sums of attn/seal.h, so a block's centroid is the same bits on every device. A thread has 8 dimensions of a block.
/// grid: (groups of kCentroidBlocks blocks of the longest MoBA sequence, kv_heads, sequences)
MC_KERNEL(moba_centroids, (kThreads))(MC_PARAM(CentroidArgs) args) {
  constexpr int kAtOnce = 8;  // pages whose loads do not wait for one another
  const KvPool& pool = args.pool;
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int threads = args.head_dim / 8, thread = static_cast<int>(ptx::tid_x()), dim = thread % threads * 8;
  const int head = static_cast<int>(ptx::ctaid_y());
  const int64_t block = int64_t{ptx::ctaid_x()} * kCentroidBlocks + thread / threads;
  if (sequence.mode.kind != mc::attn::ModeKind::moba || thread / threads >= kCentroidBlocks) return;
  const int64_t blocks = sequence.kv_len / sequence.mode.block;
  if (block >= blocks) return;
  const int pages = sequence.mode.block / pool.block_tokens;
  Words* out = reinterpret_cast<Words*>(const_cast<uint16_t*>(sequence.centroids) +
                                        (head * blocks + block) * args.head_dim + dim);
  float sum[8];
  for (int first = 0; first < pages; first += kAtOnce) {
    const unsigned char* record[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t page = ptx::load(sequence.pages + block * pages + min(first + i, pages - 1));
      record[i] = pool.base + page * pool.page_bytes + head * pool.head_bytes;
    }
    if (pages == 1) {
      ptx::store(out, ptx::load(reinterpret_cast<const Words*>(record[0] + pool.kmean_offset + dim * 2)));
      return;
    }
    Floats part[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i)
      part[i / 2][i % 2] =
          ptx::load(reinterpret_cast<const Floats*>(record[i / 2] + pool.ksum_offset + dim * 4) + i % 2);
#pragma unroll
    for (int i = 0; i < 8 * kAtOnce; ++i) {
      const int page = first + i / 8;
      const float one = part[i / 8][i % 8 / 4].value[i % 4];
      if (page < pages) sum[i % 8] = page == 0 ? one : ptx::add_rn(sum[i % 8], one);
    }
  }
  Words mean;
  const auto tokens = static_cast<float>(sequence.mode.block);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    mean.word[i] = ptx::pack_bf16(ptx::div_rn(sum[2 * i], tokens), ptx::div_rn(sum[2 * i + 1], tokens));
  ptx::store(out, mean);
}

namespace {

// ---- rows and scores ----

/// Rows of one KV head of a sequence, in the order of attention.h.
struct HeadRows {
  Sequence sequence;
  int32_t kv_head = 0, group = 1, q_heads = 1;
  int64_t dense_below = 0;

  MC_DEVICE int32_t count() const { return sequence.tokens * group; }
  /// The row's index in q: token * q_heads + head.
  MC_DEVICE int64_t index(int32_t number) const {
    return (int64_t{sequence.first_token} + number / group) * q_heads + kv_head * group + number % group;
  }
  /// Blocks that a row may choose; 0 when it does not choose or is none.
  MC_DEVICE int32_t candidates(int32_t number) const {
    const int64_t position = sequence.q_begin + number / group;
    if (number >= count() || position < dense_below) return 0;
    return static_cast<int32_t>(static_cast<uint32_t>(position) / static_cast<uint32_t>(sequence.mode.block));
  }
};

MC_DEVICE HeadRows head_rows(const GateArgs& args) {
  HeadRows rows;
  rows.sequence = ptx::load(args.sequences + ptx::ctaid_z());
  rows.kv_head = static_cast<int32_t>(ptx::ctaid_y());
  rows.group = args.q_heads / args.pool.kv_heads;
  rows.q_heads = args.q_heads;
  if (rows.sequence.mode.kind == mc::attn::ModeKind::moba)
    rows.dense_below = mc::attn::moba_dense_below(rows.sequence.mode.block, rows.sequence.mode.top_k);
  else
    rows.sequence.tokens = 0;
  return rows;
}

/// Queues the copy of `kRows` queries from row `first` on into a tile; rows that there are not become zero.
template <int kDim, int kRows>
MC_DEVICE void copy_queries(const GateArgs& args, const HeadRows& rows, int32_t first, uint32_t tile) {
  constexpr int kChunks = kDim / 8, kStep = kThreads / kChunks;
  const int thread = static_cast<int>(ptx::tid_x()), chunk = thread % kChunks, row0 = thread / kChunks;
  // Two divisions for all rows of the thread, which lie kStep apart.
  int32_t token = (first + row0) / rows.group, head = (first + row0) % rows.group;
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    const bool is_row = token < rows.sequence.tokens;
    const int64_t index =
        (int64_t{rows.sequence.first_token} + token) * rows.q_heads + rows.kv_head * rows.group + head;
    const uint16_t* from = args.q + (is_row ? index * kDim + chunk * 8 : 0);
    ptx::cp_async_16(tile + chunk_at<kDim>(row0 + i * kStep, chunk), from, is_row ? 16 : 0);
    head += kStep;
    while (head >= rows.group) head -= rows.group, ++token;
  }
}

/// s = q c^T of 16 kTiles rows and the 16 blocks from row `first` of a tile of centroids: s[tile][n] holds the blocks
/// first + 8 n ...
template <int kDim, int kTiles>
MC_DEVICE void score_16(float (&s)[kTiles][2][4], const uint32_t (&q)[kTiles][kDim / 16][4], uint32_t tile,
                        int32_t first) {
  const int lane = static_cast<int>(ptx::tid_x()) % 32;
#pragma unroll
  for (int i = 0; i < kTiles * 8; ++i) s[i / 8][i % 8 / 4][i % 4] = 0;
#pragma unroll
  for (int step = 0; step < kDim / 16; step += 2)
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, tile + chunk_at<kDim>(first + 8 * n + lane % 8, 2 * step + lane / 8));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        ptx::mma_16816(s[t][n], q[t][step], b[0], b[1]);
        ptx::mma_16816(s[t][n], q[t][step + 1], b[2], b[3]);
      }
    }
#pragma unroll
  for (int i = 0; i < kTiles * 8; ++i)
    if (ptx::has_fault(Fault::smallest_chosen)) s[i / 8][i % 8 / 4][i % 4] *= -1;
}

// ---- chunks of prompts ----

/// Rows of a warp of moba_gate: a thread shares with its three neighbours the rows lane / 4 + 8 i, i below 4, and sees
/// of each block the scores of these rows, or none.
template <int kDim>
struct WarpGate {
  HeadRows rows;
  int32_t first_row = 0, count = 0;  // count: blocks that a row chooses
  uint32_t base = 0, kept = 0, lengths = 0;
  int32_t candidates[4];
  int32_t least = INT32_MAX, most = 0;  // candidates of the rows that choose
  int32_t most_of_cta = 0;
  uint32_t q[2][kDim / 16][4];
  float bound[4];  // the row chooses no block of a smaller score

  static constexpr uint32_t kStage = kGateChunk * kDim * 2;
  static_assert(kGateRows * kDim * 2 == 2 * kStage, "the queries fill the two stages");

  /// The lists of all lanes for their rows i.
  MC_DEVICE uint32_t lists(int i) const {
    return kept + i * (ptx::has_fault(Fault::lists_share_banks) ? kKeptList - 4 : kKeptList);
  }
  MC_DEVICE uint32_t list(int i) const { return lists(i) + ptx::tid_x() % 32 * 4; }
  MC_DEVICE void prepare(const GateArgs& args);
  /// Calls `take(s, u, first)` for every 16 blocks that some row of the warp may choose; u is first / 16 % 2.
  template <class Take>
  MC_DEVICE void walk(const Take& take) const;
  MC_DEVICE void find_bounds();
  /// Keeps the blocks that reach the bounds. False when a thread has no room for them.
  MC_DEVICE bool keep();
  MC_DEVICE void write(const GateArgs& args) const;
  MC_DEVICE void write_all(const GateArgs& args) const;
};

template <int kDim>
MC_DEVICE void WarpGate<kDim>::prepare(const GateArgs& args) {
  const int lane = static_cast<int>(ptx::tid_x()) % 32, warp = static_cast<int>(ptx::tid_x()) / 32;
  const int32_t first = first_row;
  base = ptx::dynamic_shared<128>();
  kept = base + 2 * kStage + warp * 4 * kKeptList;
  lengths = base + 2 * kStage + kGateRows / 32 * 4 * kKeptList + warp * kLengths;
  copy_queries<kDim, kGateRows>(args, rows, first, base);
  ptx::cp_async_commit();
  // Candidates grow with the position.
  most_of_cta = rows.candidates(min(first + kGateRows, rows.count()) - 1);
  first_row = first + 32 * warp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    candidates[i] = rows.candidates(first_row + lane / 4 + 8 * i);
    most = max(most, candidates[i]);
    least = min(least, candidates[i] > 0 ? candidates[i] : INT32_MAX);
  }
#pragma unroll
  for (int by = 4; by < 32; by *= 2) {
    most = max(most, ptx::shuffle_xor(most, by));
    least = min(least, ptx::shuffle_xor(least, by));
  }
  ptx::cp_async_wait<0>();
  ptx::barrier_all();
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      ptx::ldmatrix_x4(q[t][step], base + chunk_at<kDim>(32 * warp + 16 * t + lane % 16, 2 * step + lane / 16));
}

template <int kDim>
template <class Take>
MC_DEVICE void WarpGate<kDim>::walk(const Take& take) const {
  constexpr int kChunks = kDim / 8;
  const int64_t blocks = rows.sequence.kv_len / rows.sequence.mode.block;
  const uint16_t* centroids = rows.sequence.centroids + rows.kv_head * blocks * kDim;
  const auto load = [&](int32_t first, uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kGateChunk * kChunks / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(ptx::tid_x()), row = at / kChunks, chunk = at % kChunks;
      const bool is_block = first + row < most_of_cta;
      const uint16_t* from = centroids + (is_block ? int64_t{first + row} * kDim + chunk * 8 : 0);
      ptx::cp_async_16(stage + chunk_at<kDim>(row, chunk), from, is_block ? 16 : 0);
    }
    ptx::cp_async_commit();
  };
  if (most_of_cta == 0) return;
  ptx::barrier_all();  // all warps are done with what lay in the stages
  load(0, base);
  uint32_t stage = base;
  for (int32_t chunk = 0; chunk < most_of_cta; chunk += kGateChunk) {
    ptx::cp_async_wait<0>();
    ptx::barrier_all();  // the chunk is here, and all are done with the one before, whose stage the next load fills
    const uint32_t other = 2 * base + kStage - stage;
    if (chunk + kGateChunk < most_of_cta) load(chunk + kGateChunk, other);
#pragma unroll 1
    for (int pair = 0; pair < kGateChunk / 32; ++pair)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int32_t row = 32 * pair + 16 * u;
        if (chunk + row >= most) continue;
        float s[2][2][4];
        score_16<kDim, 2>(s, q, stage, row);
        take(s, u, chunk + row);
      }
    stage = other;
  }
}

/// A thread has the largest scores of 8 groups of blocks for each of its rows, so a row has those of 32 groups. The
/// `count` largest ones are scores of `count` blocks: no block below them is chosen.
template <int kDim>
MC_DEVICE void WarpGate<kDim>::find_bounds() {
  const int lane = static_cast<int>(ptx::tid_x()) % 32;
  float top[4][8];
#pragma unroll
  for (int i = 0; i < 32; ++i) top[i / 8][i % 8] = kMinusInf;
  walk([&](const float(&s)[2][2][4], int u, int32_t first) {
    const bool is_masked = first + 16 > least;
#pragma unroll
    for (int v = 0; v < 16; ++v) {
      const int t = v / 8, n = v / 4 % 2, i = 2 * t + v / 2 % 2, column = v % 2;
      const int32_t block = first + 8 * n + 2 * (lane % 4) + column;
      float& best = top[i][4 * u + 2 * n + column];
      if (!is_masked || block < candidates[i]) best = ptx::max_f32(best, s[t][n][v % 4]);
    }
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) bound[i] = kMinusInf;
  for (int turn = 0; turn < count; ++turn)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float best = top[i][0];
#pragma unroll
      for (int slot = 1; slot < 8; ++slot) best = ptx::max_f32(best, top[i][slot]);
      best = ptx::max_f32(best, ptx::shuffle_xor(best, 1));
      best = ptx::max_f32(best, ptx::shuffle_xor(best, 2));
      bound[i] = best;
#pragma unroll
      for (int slot = 0; slot < 8; ++slot)
        if (top[i][slot] == best) top[i][slot] = kMinusInf;
    }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (candidates[i] == 0) bound[i] = -kMinusInf;
}

template <int kDim>
MC_DEVICE bool WarpGate<kDim>::keep() {
  constexpr uint32_t kEntry = 32 * 4, kBlocks = kKeptMax * kEntry;
  const int lane = static_cast<int>(ptx::tid_x()) % 32;
  uint32_t at[4];
  bool is_full = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) at[i] = list(i);
  walk([&](const float(&s)[2][2][4], int, int32_t first) {
    const bool is_masked = first + 16 > least;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at[i] <= list(i) + (kKeptMax - 4) * kEntry) continue;  // room for 4 more
      at[i] = list(i);
      is_full = true;
    }
#pragma unroll
    for (int v = 0; v < 16; ++v) {
      const int t = v / 8, n = v / 4 % 2, i = 2 * t + v / 2 % 2;
      const int32_t block = first + 8 * n + 2 * (lane % 4) + v % 2;
      const float score = s[t][n][v % 4];
      if (score < bound[i] || (is_masked && block >= candidates[i])) continue;  // a NaN is kept
      const Banks copy{.copy = static_cast<uint32_t>(v)};
      ptx::store_shared_f32(at[i], score, copy);
      ptx::store_shared_u32(at[i] + kBlocks, static_cast<uint32_t>(block), copy);
      at[i] += kEntry;
    }
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::store_shared_u32(lengths + (i * 33 + lane) * 4, (at[i] - list(i)) / kEntry);
  return ptx::ballot(is_full) == 0;
}

/// Blocks that the four threads of a row kept. A lane has the row with its number.
struct KeptRow {
  uint32_t list = 0;  // of the first thread
  int32_t length[4];

  MC_DEVICE Choice entry(int thread, int32_t at) const {
    const uint32_t from = list + thread * 4 + at * 32 * 4;
    const Banks copy{.copy = static_cast<uint32_t>(thread)};
    const float score = ptx::load_shared_f32(from, copy);
    return {score == score ? score : kMinusInf,
            static_cast<int32_t>(ptx::load_shared_u32(from + kKeptMax * 32 * 4, copy))};
  }
};

/// The best block that is not chosen; the `count` chosen blocks are before it.
MC_DEVICE Choice find_cut(const KeptRow& row, int count) {
  Choice cut{kMinusInf, kNone};
  int32_t longest = 0, all = 0;
#pragma unroll
  for (int thread = 0; thread < 4; ++thread) {
    longest = max(longest, row.length[thread]);
    all += row.length[thread];
  }
  for (; all > count; --all) {
    Choice worst{kMinusInf, kNone};
    for (int32_t at = 0; at < longest; ++at)
#pragma unroll
      for (int thread = 0; thread < 4; ++thread) {
        if (at >= row.length[thread]) continue;
        const Choice one = row.entry(thread, at);
        if (is_before(one, cut) && (worst.block == kNone || is_before(worst, one))) worst = one;
      }
    cut = worst;
  }
  return cut;
}

/// Writes the blocks before the cut, ascending, as each of the four lists is; then -1 up to `count`.
MC_DEVICE void write_kept(const KeptRow& row, const Choice& cut, int count, int32_t* out) {
  constexpr int32_t kEnd = INT32_MAX;
  Choice head[4];
  int32_t at[4] = {0, 0, 0, 0};
  const auto read = [&](int thread) {
    head[thread].block = kEnd;
    if (at[thread] < row.length[thread]) head[thread] = row.entry(thread, at[thread]);
  };
#pragma unroll
  for (int thread = 0; thread < 4; ++thread) read(thread);
  int written = 0;
  while (true) {
    const int32_t next = min(min(head[0].block, head[1].block), min(head[2].block, head[3].block));
    if (next == kEnd) break;
#pragma unroll
    for (int thread = 0; thread < 4; ++thread) {
      if (head[thread].block != next) continue;
      if (is_before(head[thread], cut)) ptx::store(out + written++, next);
      ++at[thread];
      read(thread);
    }
  }
  for (; written < count; ++written) ptx::store(out + written, kNone);
}

template <int kDim>
MC_DEVICE void WarpGate<kDim>::write(const GateArgs& args) const {
  const int lane = static_cast<int>(ptx::tid_x()) % 32, i = lane / 8;
  ptx::warp_sync();  // the lists and lengths are written
  const int32_t number = first_row + lane;
  if (number >= rows.count()) return;
  KeptRow row;
  row.list = lists(i) + lane % 8 * 4 * 4;
  const bool chooses = rows.candidates(number) > 0;
#pragma unroll
  for (int thread = 0; thread < 4; ++thread) {
    const auto length = static_cast<int32_t>(ptx::load_shared_u32(lengths + (i * 33 + lane % 8 * 4 + thread) * 4));
    row.length[thread] = chooses ? length : 0;
  }
  write_kept(row, find_cut(row, count), count, args.selection + rows.index(number) * args.chosen);
}

/// Merges the lists of the four threads of a row and writes the first `count`, ascending, then -1.
MC_DEVICE void write_choice(Best& best, int count, int32_t* out) {
  int32_t winners[kChosenMax];
#pragma unroll
  for (int i = 0; i < kChosenMax; ++i) {
    winners[i] = kNone;
    if (i < count) winners[i] = best.pop<4>().block;
  }
  if (out == nullptr || ptx::tid_x() % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < kChosenMax; ++i) {
    if (i >= count) continue;
    WinnerPlace at(winners[i], i);
#pragma unroll
    for (int k = 0; k < kChosenMax; ++k) at.pass(winners[k]);
    ptx::store(out + at.place, winners[i]);
  }
}

/// The choice where many blocks reach the bound, as those of equal keys do: each thread keeps a list of its best.
template <int kDim>
MC_DEVICE void WarpGate<kDim>::write_all(const GateArgs& args) const {
  const int lane = static_cast<int>(ptx::tid_x()) % 32;
  const int64_t blocks = rows.sequence.kv_len / rows.sequence.mode.block;
  const uint16_t* centroids = rows.sequence.centroids + rows.kv_head * blocks * kDim;
#pragma unroll 1
  for (int t = 0; t < 2; ++t) {
    uint32_t tile[kDim / 16][4];
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) tile[i / 4][i % 4] = t == 0 ? q[0][i / 4][i % 4] : q[1][i / 4][i % 4];
    Best best[2];
    best[0].clear();
    best[1].clear();
    const int64_t limits[2] = {t == 0 ? candidates[0] : candidates[2], t == 0 ? candidates[1] : candidates[3]};
    offer_blocks<kDim>(best, tile, limits, 0, 8, [&](uint32_t(&b)[kDim / 16][2], int64_t block) {
      const uint32_t* row = reinterpret_cast<const uint32_t*>(centroids + block * kDim);
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) b[i / 2][i % 2] = ptx::load(row + i * 4 + lane % 4);
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t number = first_row + 16 * t + 8 * half + lane / 4;
      write_choice(best[half], count,
                   number < rows.count() ? args.selection + rows.index(number) * args.chosen : nullptr);
    }
  }
}

template <int kDim>
MC_DEVICE void choose(const GateArgs& args) {
  WarpGate<kDim> gate;
  gate.rows = head_rows(args);
  gate.count = gate.rows.sequence.mode.top_k - 1;
  // The last tile has the most candidates, and begins first.
  const int32_t tiles = (gate.rows.count() + kGateRows - 1) / kGateRows;
  gate.first_row = (tiles - 1 - static_cast<int32_t>(ptx::ctaid_x())) * kGateRows;
  if (gate.first_row < 0 || gate.count <= 0) return;
  gate.prepare(args);
  gate.find_bounds();
  if (gate.keep())
    gate.write(args);
  else
    gate.write_all(args);
}

// ---- decode rows ----

/// Where the scores of a row lie.
MC_DEVICE float* scores_of(const ScoreArgs& args, const HeadRows& rows, int head_dim, int32_t number) {
  const int64_t blocks = rows.sequence.kv_len / rows.sequence.mode.block;
  const int64_t before = (rows.sequence.centroids - args.centroids) / head_dim;  // centroids of other sequences
  return args.scores + before * kScoreRows + (int64_t{rows.kv_head} * kScoreRows + number) * blocks;
}

template <int kDim>
MC_DEVICE void score_blocks(const ScoreArgs& args) {
  constexpr int kChunks = kDim / 8;
  const HeadRows rows = head_rows(args.gate);
  const auto first = static_cast<int32_t>(ptx::ctaid_x()) * kScoreBlocks;
  const int thread = static_cast<int>(ptx::tid_x()), lane = thread % 32, warp = thread / 32;
  if (rows.count() == 0 || rows.sequence.mode.top_k <= 1) return;
  const int32_t most = rows.candidates(rows.count() - 1);
  if (first >= most) return;
  const uint32_t base = ptx::dynamic_shared<128>(), tile = base + kScoreRows * kDim * 2;
  copy_queries<kDim, kScoreRows>(args.gate, rows, 0, base);
  const Sequence& sequence = rows.sequence;
  const KvPool& pool = args.gate.pool;
  const bool of_pages = sequence.mode.block == pool.block_tokens;  // the centroid of a block is the mean of its page
  const int64_t blocks = sequence.kv_len / sequence.mode.block;
#pragma unroll
  for (int i = 0; i < kScoreBlocks * kChunks / kThreads; ++i) {
    const int at = i * kThreads + thread, row = at / kChunks, chunk = at % kChunks;
    const int32_t block = min(first + row, most - 1);
    const uint16_t* from = sequence.centroids + (rows.kv_head * blocks + block) * kDim;
    if (of_pages) {
      const int64_t page = ptx::load(sequence.pages + block);
      from = reinterpret_cast<const uint16_t*>(pool.base + page * pool.page_bytes + rows.kv_head * pool.head_bytes +
                                               pool.kmean_offset);
    }
    ptx::cp_async_16(tile + chunk_at<kDim>(row, chunk), from + chunk * 8, first + row < most ? 16 : 0);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::barrier_all();
  uint32_t q[1][kDim / 16][4];
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    ptx::ldmatrix_x4(q[0][step], base + chunk_at<kDim>(lane % 16, 2 * step + lane / 16));
  float s[1][2][4];
  score_16<kDim, 1>(s, q, tile, 16 * warp);
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    const int32_t number = lane / 4 + v / 2 % 2 * 8;
    const int32_t block = first + 16 * warp + v / 4 * 8 + 2 * (lane % 4) + v % 2;
    if (block < rows.candidates(number)) ptx::store(scores_of(args, rows, kDim, number) + block, s[0][v / 4][v % 4]);
  }
}

/// Finds the best block of a row, then the next one, and so on, and writes them in ascending order. A thread has the
/// scores of up to kEach blocks.
template <int kEach>
MC_DEVICE void choose_in_order(const float* scores, int32_t candidates, int count, int32_t* out) {
  constexpr int kWarps = kChooseThreads / 32;
  const int thread = static_cast<int>(ptx::tid_x()), lane = thread % 32;
  float score[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t block = i * kChooseThreads + thread;
    score[i] = block < candidates ? ptx::load(scores + block) : 0;
  }
  const auto best_after = [&](const Choice& last) {
    Choice best{kMinusInf, kNone};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Choice one{score[i] == score[i] ? score[i] : kMinusInf, i * kChooseThreads + thread};
      if (one.block < candidates && is_before(last, one) && is_before(one, best)) best = one;
    }
    return best;
  };
  const uint32_t base = ptx::dynamic_shared<16>(), list = base + 2 * kWarps * 8;
  Choice own = best_after({-kMinusInf, INT32_MAX});
  for (int turn = 0; turn < count; ++turn) {
    const uint32_t bests = base + turn % 2 * kWarps * 8;  // the turn before may still read the others
    const Choice of_warp = best_of_threads<32>(own);
    if (lane == 0) {
      ptx::store_shared_f32(bests + thread / 32 * 8, of_warp.score);
      ptx::store_shared_u32(bests + thread / 32 * 8 + 4, static_cast<uint32_t>(of_warp.block));
    }
    ptx::barrier_all();
    Choice best{kMinusInf, kNone};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const Choice one{ptx::load_shared_f32(bests + warp * 8),
                       static_cast<int32_t>(ptx::load_shared_u32(bests + warp * 8 + 4))};
      if (is_before(one, best)) best = one;
    }
    if (thread == 0) ptx::store_shared_u32(list + turn * 4, static_cast<uint32_t>(best.block));
    if (own.block == best.block && own.block != kNone) own = best_after(own);
  }
  ptx::barrier_all();
  if (thread >= count) return;
  const auto mine = static_cast<int32_t>(ptx::load_shared_u32(list + thread * 4));
  WinnerPlace at(mine, thread);
  for (int turn = 0; turn < count; ++turn) at.pass(static_cast<int32_t>(ptx::load_shared_u32(list + turn * 4)));
  ptx::store(out + at.place, mine);
}

template <int kDim>
MC_DEVICE void choose_row(const ScoreArgs& args) {
  constexpr int kFew = 4;
  const HeadRows rows = head_rows(args.gate);
  const auto number = static_cast<int32_t>(ptx::ctaid_x());
  const int count = rows.sequence.mode.top_k - 1;
  if (number >= rows.count() || count <= 0) return;
  const int32_t candidates = rows.candidates(number);
  const float* scores = scores_of(args, rows, kDim, number);
  int32_t* out = args.gate.selection + rows.index(number) * args.gate.chosen;
  if (candidates <= kFew * kChooseThreads)
    choose_in_order<kFew>(scores, candidates, count, out);
  else
    choose_in_order<kUnionBlocksMax / kChooseThreads>(scores, candidates, count, out);
}

}  // namespace

/// grid: (tiles of kGateRows rows of the longest sequence, kv_heads, sequences)
MC_KERNEL(moba_gate_d64, (kThreads))(MC_PARAM(GateArgs) args) {
  choose<64>(args);
}
MC_KERNEL(moba_gate_d128, (kThreads))(MC_PARAM(GateArgs) args) {
  choose<128>(args);
}
/// grid: (tiles of kScoreBlocks blocks of the longest sequence, kv_heads, sequences)
MC_KERNEL(moba_scores_d64, (kThreads))(MC_PARAM(ScoreArgs) args) {
  score_blocks<64>(args);
}
MC_KERNEL(moba_scores_d128, (kThreads))(MC_PARAM(ScoreArgs) args) {
  score_blocks<128>(args);
}
/// grid: (rows of a KV head of the longest sequence, kv_heads, sequences)
MC_KERNEL(moba_choose_d64, (kChooseThreads))(MC_PARAM(ScoreArgs) args) {
  choose_row<64>(args);
}
MC_KERNEL(moba_choose_d128, (kChooseThreads))(MC_PARAM(ScoreArgs) args) {
  choose_row<128>(args);
}

}  // namespace mc::gpu

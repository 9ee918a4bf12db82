// Decode attention in one launch (sm_90a). A cluster of kClusterCtas CTAs has the rows of one sequence and KV head, and
// keeps everything between its steps in its own shared memory:
//
//   gate     each warp of the cluster scores some of the MoBA blocks and publishes its best of each row;
//            every CTA reads the lists of all and has the choice                        cluster barrier
//   attend   the CTAs take the splits of the sequence by turns; a split's state goes by columns to the CTAs that merge
//            it, while the next split's tiles are on their way. Half of the warps wait for the end
//   merge    each CTA merges its columns of all splits and writes them                 cluster barrier
//
// Splits, tiles, masks and sums are those of attend.cuh and attention_combine, in their order, and scores are those of
// gate_sm80.cu: the choice and the output have the bits of those kernels. Full and window attention lack the gate.
#include "gpu/kernels/attend.cuh"
#include "gpu/kernels/decode.h"
#include "gpu/kernels/gate.cuh"
#include "gpu/kernels/merged.cuh"
#include "gpu/ptx/cluster.cuh"

namespace mc::gpu {
namespace {

constexpr int kGateWarps = kClusterThreads / 32, kRows = kClusterRows;
constexpr int kLanesOfCta = 32 / kClusterCtas;  // that read the lists of a CTA's warps
static_assert(kLanesOfCta * 2 == kGateWarps, "a lane reads the lists of two warps of the cluster");

template <int kDim>
struct ClusterLayout {
  static constexpr int kSlice = kDim / kClusterCtas;  // columns of the output that a CTA merges
  static constexpr uint32_t kTile = SharedLayout<kDim, kRows>::kTile;
  static constexpr uint32_t kState = kRows * (kSlice + 2) * 4;  // of a split, the CTA's columns
  static constexpr uint32_t kStage0 = kRows * kDim * 2;
  static constexpr uint32_t kScratch = kStage0 + kClusterStages * 2 * kTile;
  static constexpr uint32_t kScores = kScratch + (kDim / 2 + 4) * kThreads * 4;  // [warp][place][row], with kLists
  static constexpr uint32_t kLists = kScores + kGateWarps * kChosenMax * kRows * 4;
  static constexpr uint32_t kChosen = kLists + kGateWarps * kChosenMax * kRows * 4;  // [row][place], ascending
  static constexpr uint32_t kBits = kChosen + kRows * kClusterPlaces * 4;            // of the union
  static constexpr uint32_t kBlocks = kBits + kUnionBlocksMax / 8;                   // of the union, ascending
  static constexpr uint32_t kMembers = kBlocks + kClusterBlocksMax * 4;              // the rows that chose each
  static constexpr uint32_t kStates = kMembers + kClusterBlocksMax * 4;
  static constexpr uint32_t kBytes = kStates + kClusterSplitsMax * kState;
  static_assert(kBytes == cluster_shared(kDim));
  /// The place of column `2 * pair + parity` of a row in a state. The rows' maxima and sums stand behind the columns.
  MC_DEVICE static uint32_t element(int pair, int parity, int row) {
    return static_cast<uint32_t>((parity * kSlice / 2 + pair) * kRows + row) * 4;
  }
};

/// The cluster's rows of one sequence and KV head.
struct Task {
  Sequence sequence;
  int kv_head = 0, first_row = 0, rows = 0, group = 1;  // group: query heads of the KV head
  bool is_moba = false, chooses = false;                // chooses: some row, and so the last one
};

MC_DEVICE Task task_of(const AttentionArgs& args) {
  Task task;
  task.sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int group = args.q_heads / args.pool.kv_heads;
  task.group = group;
  task.kv_head = ptx::ctaid_y();
  task.first_row = static_cast<int>(ptx::ctaid_x() / kClusterCtas) * kRows;
  task.rows = min(kRows, task.sequence.tokens * group - task.first_row);
  const attn::Mode& mode = task.sequence.mode;
  task.is_moba = mode.kind == attn::ModeKind::moba;
  const int64_t last = task.sequence.q_begin + (task.first_row + task.rows - 1) / group;
  task.chooses = task.is_moba && mode.top_k > 1 && last >= attn::moba_dense_below(mode.block, mode.top_k);
  return task;
}

// ---- gate ----

/// The centroids of a warp's blocks, eight at a time, from the sums that their pages carry: moba_centroids in
/// gate_sm80.cu. A unit is what one page of each of the eight blocks carries; some units are on their way to the warp's
/// slots, which lie where the stages are later.
template <int kDim>
class CentroidRing {
 public:
  MC_DEVICE CentroidRing(const KvPool& pool, const Task& task, int64_t first, int64_t stride, uint32_t base)
      : pool_(pool), task_(task), ahead_(first), stride_(stride), pages_(task.sequence.mode.block / pool.block_tokens) {
    const int32_t group_last = static_cast<int32_t>((task.first_row + task.rows - 1) / task.group);
    most_ = (task.sequence.q_begin + group_last) / task.sequence.mode.block;
    slots_ = base + ClusterLayout<kDim>::kStage0 + ptx::tid_x() / 32 * (kSlots * kSlot);
    load_number();
    for (int slot = 0; slot + 1 < kSlots; ++slot) load_ahead(slot);
  }

  /// The thread's part of the next eight centroids.
  MC_DEVICE void take(uint32_t (&b)[kDim / 16][2]) {
    const int row = ptx::tid_x() % 32 / 4, quad = ptx::tid_x() % 4;
    if (pages_ == 1) {
      const uint32_t unit = turn();
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i)
        b[i / 2][i % 2] = ptx::load_shared_u32(unit + chunk_at<kDim>(row, i) + quad * 4);
      return;
    }
    float low[kDim / 8], high[kDim / 8];
    for (int page = 0; page < pages_; ++page) {
      // Rows in pairs share banks: odd ones read the second element of a pair first.
      const uint32_t unit = turn(), odd = row % 2;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const uint32_t at = unit + chunk_at<2 * kDim>(row, 2 * i + quad / 2) + quad % 2 * 8;
        const float one = ptx::load_shared_f32(at + odd * 4), other = ptx::load_shared_f32(at + 4 - odd * 4);
        low[i] = page == 0 ? (odd ? other : one) : ptx::add_rn(low[i], odd ? other : one);
        high[i] = page == 0 ? (odd ? one : other) : ptx::add_rn(high[i], odd ? one : other);
      }
    }
    const int32_t tokens = task_.sequence.mode.block;
    const auto divisor = static_cast<float>(tokens), share = 1 / divisor;
    const bool is_exact = (tokens & (tokens - 1)) == 0;  // a product with the share has the bits of the quotient
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
      b[i / 2][i % 2] = is_exact ? ptx::pack_bf16(ptx::mul_rn(low[i], share), ptx::mul_rn(high[i], share))
                                 : ptx::pack_bf16(ptx::div_rn(low[i], divisor), ptx::div_rn(high[i], divisor));
  }

 private:
  static constexpr int kSlots = 4;
  static constexpr uint32_t kSlot = 8 * kDim * 4;
  static_assert(kGateWarps * kSlots * kSlot <= ClusterLayout<kDim>::kScores - ClusterLayout<kDim>::kStage0);

  /// The shared address of the next unit. All lanes are done with the one before, whose slot the next load fills.
  MC_DEVICE uint32_t turn() {
    ptx::cp_async_wait<kSlots - 2>();
    ptx::warp_sync();
    load_ahead((slot_ + kSlots - 1) % kSlots);
    const uint32_t unit = slots_ + slot_ * kSlot;
    slot_ = (slot_ + 1) % kSlots;
    return unit;
  }
  /// The number of the page of the lane's row in the unit ahead.
  MC_DEVICE void load_number() {
    if (ahead_ >= most_) return;
    const int64_t block = min(ahead_ + ptx::tid_x() % 8, most_ - 1);
    number_ = ptx::load(task_.sequence.pages + block * pages_ + page_ahead_);
  }
  /// Queues the copy of a unit; neighbouring lanes have neighbouring rows, which lie in different banks.
  MC_DEVICE void load_ahead(int slot) {
    const int row = ptx::tid_x() % 8, first = ptx::tid_x() % 32 / 8;
    const uint32_t to = slots_ + slot * kSlot;
    if (ahead_ < most_) {
      const unsigned char* record = pool_.base + number_ * pool_.page_bytes + task_.kv_head * pool_.head_bytes;
      if (pages_ == 1) {
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i)
          ptx::cp_async_16(to + chunk_at<kDim>(row, first + 4 * i), record + pool_.kmean_offset + (first + 4 * i) * 16,
                           16);
      } else {
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i)
          ptx::cp_async_16(to + chunk_at<2 * kDim>(row, first + 4 * i),
                           record + pool_.ksum_offset + (first + 4 * i) * 16, 16);
      }
    }
    ptx::cp_async_commit();
    if (++page_ahead_ == pages_) {
      page_ahead_ = 0;
      ahead_ += stride_;
    }
    load_number();
  }

  const KvPool& pool_;
  const Task& task_;
  int64_t ahead_, stride_, most_;  // blocks
  int32_t pages_, page_ahead_ = 0, number_ = 0, slot_ = 0;
  uint32_t slots_;
};

/// Scores the warp's share of the blocks and publishes its best of each row, best first. A row chooses up to kLength.
template <int kDim, int kLength>
MC_DEVICE void publish_lists(const AttentionArgs& args, const Task& task, const uint32_t (&q)[kDim / 16][4],
                             uint32_t base) {
  const int lane = ptx::tid_x() % 32, warp = ptx::tid_x() / 32, group = args.q_heads / args.pool.kv_heads;
  const attn::Mode& mode = task.sequence.mode;
  int64_t candidates[2];
  BestOf<kLength> best[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int number = lane / 4 + 8 * half;
    const int64_t position = task.sequence.q_begin + (task.first_row + number) / group;
    const bool chooses = number < task.rows && position >= attn::moba_dense_below(mode.block, mode.top_k);
    candidates[half] = chooses ? position / mode.block : 0;
    best[half].clear();
  }
  constexpr int64_t kStride = 8 * kGateWarps * kClusterCtas;
  const int64_t first = static_cast<int64_t>(ptx::cluster_rank() * kGateWarps + warp) * 8;
  CentroidRing<kDim> ring(args.pool, task, first, kStride, base);
  offer_blocks<kDim>(best, q, candidates, first, kStride, [&](auto& b, int64_t) { ring.take(b); });
#pragma unroll
  for (int half = 0; half < 2; ++half)
    for (int place = 0; place < mode.top_k - 1; ++place) {
      const Choice choice = best[half].template pop<4>();
      const uint32_t at = ((warp * kChosenMax + place) * kRows + lane / 4 + 8 * half) * 4;
      if (lane % 4 != 0) continue;
      ptx::store_shared_f32(base + ClusterLayout<kDim>::kScores + at, choice.score);
      ptx::store_shared_u32(base + ClusterLayout<kDim>::kLists + at, static_cast<uint32_t>(choice.block));
    }
  ptx::warp_sync();  // one lane in four stored, and the cluster's barrier is for whole warps
}

/// The choice of each row from the lists of all warps of the cluster: blocks in ascending order, then kNone.
template <int kDim>
MC_DEVICE void choose_blocks(const AttentionArgs& args, const Task& task, uint32_t base, bool keeps_selection) {
  using Layout = ClusterLayout<kDim>;
  const int lane = ptx::tid_x() % 32, count = task.sequence.mode.top_k - 1;
  const uint32_t peer = ptx::map_to_rank(base, lane / kLanesOfCta);
  for (int row = static_cast<int>(ptx::tid_x() / 32); row < task.rows; row += kGateWarps) {
    Best best;
    best.clear();
    const auto published = [&](int warp, int place) {
      const uint32_t at = peer + ((warp * kChosenMax + place) * kRows + row) * 4;
      return Choice{ptx::from_bits(ptx::load_cluster_u32(at + Layout::kScores)),
                    static_cast<int32_t>(ptx::load_cluster_u32(at + Layout::kLists))};
    };
#pragma unroll
    for (int place = 0; place < kChosenMax; ++place) {
      if (place >= count) continue;
      const Choice choice = published(lane % kLanesOfCta, place);
      best.score[place] = choice.score;
      best.block[place] = choice.block;
    }
    for (int place = 0; place < count; ++place) {
      const Choice choice = published(lane % kLanesOfCta + kLanesOfCta, place);
      if (choice.block != kNone) best.offer(choice.score, choice.block);
    }
    int32_t winners[kChosenMax], mine = kNone;
#pragma unroll
    for (int place = 0; place < kChosenMax; ++place) {
      winners[place] = place < count ? best.template pop<32>().block : kNone;
      if (place == lane) mine = winners[place];
    }
    WinnerPlace at(mine, lane);
#pragma unroll
    for (int place = 0; place < kChosenMax; ++place) at.pass(winners[place]);
    if (lane >= kChosenMax) continue;
    ptx::store_shared_u32(base + Layout::kChosen + (row * kClusterPlaces + at.place) * 4, static_cast<uint32_t>(mine));
    const int64_t index = row_of(args, task.sequence, task.kv_head, task.first_row + row).index;
    if (keeps_selection && lane < count)
      ptx::store(const_cast<int32_t*>(args.selection) + index * args.chosen + at.place, mine);
  }
}

// ---- tiles ----

/// The key tiles that the cluster reads, numbered in ascending order, and how splits share them.
struct Tiles {
  int32_t first = 0, count = 0;
  int32_t each = 1;            // of a split
  int32_t tiles_of_block = 0;  // of a MoBA block; 0: the tiles follow one another
  uint32_t blocks = 0;         // shared address of the union's blocks

  MC_DEVICE int32_t used_splits() const { return (count + each - 1) / each; }
  /// The place of a tile's block in the union.
  MC_DEVICE int32_t entry(int32_t number) const { return number / tiles_of_block; }
  MC_DEVICE int32_t tile(int32_t number) const {
    if (tiles_of_block == 0) return first + number;
    const auto block = static_cast<int32_t>(ptx::load_shared_u32(blocks + entry(number) * 4));
    return block * tiles_of_block + number % tiles_of_block;
  }
};

/// A tile of the CTA's walk over its splits.
struct Step {
  int32_t split, number = 0, end = 0;

  MC_DEVICE Step(const Tiles& tiles, int32_t split) : split(split) { enter(tiles); }
  MC_DEVICE bool is_real(const Tiles& tiles) const { return number < tiles.count; }
  MC_DEVICE bool ends_split() const { return number + 1 == end; }
  MC_DEVICE void advance(const Tiles& tiles) {
    if (++number < end) return;
    split += kClusterCtas;
    enter(tiles);
  }

 private:
  MC_DEVICE void enter(const Tiles& tiles) {
    number = split * tiles.each;
    end = min(number + tiles.each, tiles.count);
    if (ptx::has_fault(Fault::splits_overlap) && split > 0 && number < end) --number;
  }
};

/// The blocks that any row needs, ascending, and the rows that chose each. Returns their number.
template <int kDim>
MC_DEVICE int32_t list_union(const AttentionArgs& args, const Task& task, uint32_t base, int32_t words) {
  using Layout = ClusterLayout<kDim>;
  const int32_t size = task.sequence.mode.block, thread = ptx::tid_x();
  const int chosen = task.chooses ? task.sequence.mode.top_k - 1 : 0;
  const auto mark = [&](int32_t block) {
    ptx::atomic_or_shared(base + Layout::kBits + block / 32 * 4, 1u << (block % 32));
  };
  const auto choice = [&](int row, int at) {
    return static_cast<int32_t>(ptx::load_shared_u32(base + Layout::kChosen + (row * kClusterPlaces + at) * 4));
  };
  if (thread < task.rows) {
    const Row row = row_of(args, task.sequence, task.kv_head, task.first_row + thread);
    for (int32_t key = row.first / size * size; key < row.end; key += size) mark(key / size);
    for (int at = 0; at < chosen; ++at) {
      const int32_t block = choice(thread, at);
      if (block == kNone || (ptx::has_fault(Fault::union_misses_block) && at + 1 == chosen)) break;
      mark(block);
    }
  }
  ptx::barrier_sync<kAttendingBarrier, kThreads>();
  int32_t total = thread + 1;
  for (int32_t wanted = thread; wanted < total; wanted += kThreads) {  // a block of the union for each thread
    total = kUnionBlocksMax;
    const int32_t found = nth_block(base + Layout::kBits, words * 32, wanted, total);
    if (found == kNone) break;
    uint32_t members = 0;
    for (int row = 0; row < task.rows; ++row)
      for (int at = 0; at < chosen; ++at)
        if (choice(row, at) == found) members |= 1u << row;
    ptx::store_shared_u32(base + Layout::kBlocks + wanted * 4, static_cast<uint32_t>(found));
    ptx::store_shared_u32(base + Layout::kMembers + wanted * 4, members);
  }
  ptx::barrier_sync<kAttendingBarrier, kThreads>();
  return total;
}

/// The tiles that the rows need, by the rules of walk_of().
template <int kDim>
MC_DEVICE Tiles tiles_of(const AttentionArgs& args, const Task& task, uint32_t base) {
  const Sequence& s = task.sequence;
  const int group = args.q_heads / args.pool.kv_heads;
  const attn::OwnKeys low = attn::own_keys(s.mode, s.q_begin + task.first_row / group, s.kv_len);
  const attn::OwnKeys high = attn::own_keys(s.mode, s.q_begin + (task.first_row + task.rows - 1) / group, s.kv_len);
  const auto end = static_cast<int32_t>(high.end > 0 ? (high.end + kKeyTile - 1) / kKeyTile : 0);
  Tiles tiles;
  if (task.is_moba) {
    tiles.tiles_of_block = s.mode.block / kKeyTile;
    tiles.blocks = base + ClusterLayout<kDim>::kBlocks;
    const int32_t blocks = (end + tiles.tiles_of_block - 1) / tiles.tiles_of_block;
    tiles.count = tiles_of_blocks(list_union<kDim>(args, task, base, (blocks + 31) / 32), tiles.tiles_of_block, end);
  } else {
    tiles.first = static_cast<int32_t>(low.first / kKeyTile);
    tiles.count = max(end - tiles.first, 0);
  }
  tiles.each = max((tiles.count + s.splits - 1) / s.splits, 1);
  return tiles;
}

// ---- states ----

/// Gives the CTAs their columns of a split's state. Warp 0 has it.
template <int kDim>
MC_DEVICE void push_state(const Accumulator<kDim>& acc, const Row (&rows)[2], int32_t split, uint32_t base) {
  using Layout = ClusterLayout<kDim>;
  const int lane = ptx::tid_x() % 32;
  const float d[2] = {sum_of_quad(acc.d[0]), sum_of_quad(acc.d[1])};
#pragma unroll
  for (int rank = 0; rank < kClusterCtas; ++rank) {
    const uint32_t state = ptx::map_to_rank(base + Layout::kStates + split * Layout::kState, rank);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (rows[half].index < 0) continue;
#pragma unroll
      for (int i = 0; i < Layout::kSlice / 8; ++i)
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
          uint32_t bits = ptx::to_bits(acc.o[rank * (Layout::kSlice / 8) + i][2 * half + parity]);
          if (ptx::has_fault(Fault::state_cut)) bits &= 0xffff0000u;
          ptx::store_cluster_u32(state + Layout::element(4 * i + lane % 4, parity, row), bits);
        }
      if (lane % 4 != rank % 4) continue;
      const uint32_t behind = state + (Layout::kSlice * kRows + row) * 4;
      ptx::store_cluster_u32(behind, ptx::to_bits(acc.m[half]));
      ptx::store_cluster_u32(behind + kRows * 4, ptx::to_bits(d[half]));
    }
  }
  ptx::warp_sync();  // lanes without a row stored nothing, and the cluster's barrier may come next
}

/// Merges the CTA's columns of all splits and writes them: two columns of a row a thread.
template <int kDim>
MC_DEVICE void merge_columns(const AttentionArgs& args, const Task& task, int32_t splits, uint32_t base) {
  using Layout = ClusterLayout<kDim>;
  const int row = ptx::tid_x() % kRows, pair = ptx::tid_x() / kRows;
  if (row >= task.rows || pair >= Layout::kSlice / 2) return;
  float top = kMinusInf;
  const uint32_t maxima = base + Layout::kStates + (Layout::kSlice * kRows + row) * 4;
#pragma unroll 8
  for (int32_t split = 0; split < splits; ++split)
    top = ptx::max_f32(top, ptx::load_shared_f32(maxima + split * Layout::kState));
  Merged<2> merged;
#pragma unroll 4
  for (int32_t split = 0; split < splits; ++split) {
    const uint32_t state = base + Layout::kStates + split * Layout::kState;
    const float weight = split_weight(ptx::load_shared_f32(maxima + split * Layout::kState), top);
    const float d = ptx::load_shared_f32(maxima + split * Layout::kState + kRows * 4);
    merged.add(weight, ptx::mul_rn(d, weight),
               {ptx::load_shared_f32(state + Layout::element(pair, 0, row)),
                ptx::load_shared_f32(state + Layout::element(pair, 1, row))});
  }
  const int64_t index = row_of(args, task.sequence, task.kv_head, task.first_row + row).index;
  uint16_t* out = args.out + index * kDim + ptx::cluster_rank() * Layout::kSlice + 2 * pair;
  const float inverse = merged.inverse();
  ptx::store(reinterpret_cast<uint32_t*>(out), ptx::pack_bf16(merged.o[0] * inverse, merged.o[1] * inverse));
}

// ---- attention ----

/// Attends to the tiles of the CTA's splits and gives away the states. A warp owns 16 keys of each tile.
template <int kDim>
MC_DEVICE void attend_splits(const AttentionArgs& args, const Task& task, const Tiles& tiles,
                             const uint32_t (&q)[kDim / 16][4], uint32_t base) {
  using Layout = ClusterLayout<kDim>;
  const int lane = ptx::tid_x() % 32, warp = ptx::tid_x() / 32;
  const Row rows[2] = {row_of(args, task.sequence, task.kv_head, task.first_row + lane / 4),
                       row_of(args, task.sequence, task.kv_head, task.first_row + lane / 4 + 8)};
  const auto stage_at = [&](int stage) { return base + Layout::kStage0 + stage * 2 * Layout::kTile; };
  const auto rank = static_cast<int32_t>(ptx::cluster_rank());
  Step now(tiles, rank), ahead(tiles, rank);
  int32_t number = 0;  // of the page of the tile ahead
  const auto announce = [&] {
    if (ahead.is_real(tiles)) number = ptx::load(task.sequence.pages + page_of(args.pool, tiles.tile(ahead.number)));
  };
  const auto load = [&](int stage) {
    if (ahead.is_real(tiles))
      load_tile<kDim>(args.pool, task.sequence, task.kv_head, tiles.tile(ahead.number), number, stage_at(stage));
    ptx::cp_async_commit();
    ahead.advance(tiles);
    announce();
  };
  announce();
  for (int stage = 0; stage + 1 < kClusterStages; ++stage) load(stage);
  if (!task.chooses) ptx::cluster_wait();  // the others have started
  Accumulator<kDim> acc;
  acc.clear();
  for (int stage = 0; now.is_real(tiles); stage = (stage + 1) % kClusterStages, now.advance(tiles)) {
    ptx::cp_async_wait<kClusterStages - 2>();
    // The tile is here, and all are done with the one before, whose stage the next load fills.
    ptx::barrier_sync<kAttendingBarrier, kThreads>();
    load((stage + kClusterStages - 1) % kClusterStages);
    const int32_t tile = tiles.tile(now.number);
    uint32_t members = 0;
    if (task.chooses) members = ptx::load_shared_u32(base + Layout::kMembers + tiles.entry(now.number) * 4);
    if (ptx::has_fault(Fault::member_ignored)) members = 0xffffu;
    const bool member[2] = {(members >> (lane / 4) & 1) != 0, (members >> (lane / 4 + 8) & 1) != 0};
    float s[2][4];
    scores<kDim, 16>(s, q, stage_at(stage), 16 * warp);
    soften<kDim, 16>(s, acc, rows, member, tile * kKeyTile + 16 * warp, scale_of(args));
    weigh<kDim, 16>(acc, s, stage_at(stage) + Layout::kTile, 16 * warp);
    if (!now.ends_split()) continue;
    merge_warps<kDim, true>(acc, base + Layout::kScratch);
    if (warp == 0) push_state<kDim>(acc, rows, now.split, base);
    acc.clear();
  }
}

template <int kDim>
MC_DEVICE void decode_cluster(const AttentionArgs& args, bool keeps_selection) {
  using Layout = ClusterLayout<kDim>;
  const uint32_t base = ptx::dynamic_shared<128>();
  const Task task = task_of(args);
  if (task.rows <= 0) return;  // likewise in all CTAs of the cluster
  for (int i = ptx::tid_x(); task.is_moba && i < kUnionBlocksMax / 32; i += kClusterThreads)
    ptx::store_shared_u32(base + Layout::kBits + i * 4, 0);
  uint32_t q[kDim / 16][4];
  load_queries<kDim, kRows, kClusterThreads>(args, task.sequence, task.kv_head, task.first_row, base, 0, q);
  constexpr int kShort = 8;  // an insertion passes all places of a list, and most plans choose few blocks
  if (task.chooses && task.sequence.mode.top_k - 1 <= kShort)
    publish_lists<kDim, kShort>(args, task, q, base);
  else if (task.chooses)
    publish_lists<kDim, kChosenMax>(args, task, q, base);
  ptx::cluster_arrive();
  if (task.chooses) {
    ptx::cluster_wait();
    choose_blocks<kDim>(args, task, base, keeps_selection && ptx::cluster_rank() == 0);
    ptx::barrier_all();
  }
  if (ptx::tid_x() >= kThreads) {  // whole warps
    if (!task.chooses) ptx::cluster_wait();
    ptx::cluster_arrive();
    ptx::cluster_wait();
    return;
  }
  const Tiles tiles = tiles_of<kDim>(args, task, base);
  attend_splits<kDim>(args, task, tiles, q, base);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  merge_columns<kDim>(args, task, tiles.used_splits(), base);
}

}  // namespace

/// grid: (kClusterCtas * tiles of kClusterRows rows of the longest sequence, kv_heads, sequences)
MC_CLUSTER_KERNEL(attention_cluster_d64, (kClusterThreads, 1), kClusterCtas)
(MC_PARAM(AttentionArgs) args, int32_t keeps_selection) {
  decode_cluster<64>(args, keeps_selection != 0);
}
MC_CLUSTER_KERNEL(attention_cluster_d128, (kClusterThreads, 1), kClusterCtas)
(MC_PARAM(AttentionArgs) args, int32_t keeps_selection) {
  decode_cluster<128>(args, keeps_selection != 0);
}

}  // namespace mc::gpu

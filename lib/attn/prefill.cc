// Prefill on the CPU. A task is one KV head and a run of tokens. Its rows are (token, query head of the group) pairs,
// which share the tiles of the KV head. Keys are processed in ascending tiles. Each tile is packed once, and then every
// row of the task that sees it takes one step of online softmax over it.
//
//   dense rows    tiles of 256 keys from position 0, those before the mode's first key left out
//   sparse rows   longer tasks, so that a block is packed for many rows;
//                 their blocks in ascending order, tiles of 256 keys from each block's start; the rows of a
//                 block come from the inverse of the selection, all heads of the group in one list
//
// The tile boundaries of a row depend on its position alone, and the leaves treat rows independently. So chunking, task
// size and threads cannot change a bit.
#include <algorithm>

#include "attn/cpu.h"
#include "base/parallel.h"

namespace mc::attn {
namespace {

constexpr int64_t kTaskRows = 512;  // Q, O and one K/V tile of so many rows stay in a 1 MiB L2
constexpr int64_t kTaskTokensMin = 64;
// A moba_block is packed once for all rows of a task that chose it. With this many rows, packing costs a tenth of the
// time. Q and O of the rows then come from L3, a few hundred bytes for every 4 head_dim x moba_block FLOP.
constexpr int64_t kListRows = 96;
constexpr int64_t kSparseTaskRowsMax = 16384;

struct Task {
  int kv_head;
  int64_t first;  // row (token) of the chunk
  int64_t tokens;
};

/// A worker's memory for one task.
struct TaskMemory {
  std::byte* q;
  float* o;
  float* m;
  float* d;
  int32_t* rows;
  int32_t* visible;
  int32_t* hidden;
  std::byte* k_tile;
  std::byte* v_tile;
  float* leaf;
  uint16_t* widened;  // [kRun][head_dim], of codes
  // Used by sparse rows only:
  int32_t* chosen;       // [rows][top_k - 1]
  int32_t* block_rows;   // rows of every block, grouped by block
  int64_t* block_begin;  // [blocks + 1]
  float* scores;         // [kRowTile][strips * 64]
  float* top;            // [kRowTile][strips]
};

class Prefill {
 public:
  Prefill(const Kernels& kernels, const PrefillArgs& args)
      : kernels_(kernels),
        args_(args),
        shape_(shape_of(args.layout, args.q_heads, args.scale)),
        history_(std::max(args.mode.top_k - 1, 0)) {
    const int64_t dense = dense_below(args.mode);
    dense_rows_ = dense == kDenseForEver ? args.rows : std::clamp<int64_t>(dense - args.q_begin, 0, args.rows);
    if (dense_rows_ < args.rows) {
      MC_ASSERT(args.mode.block % static_cast<int32_t>(args.layout.block_tokens) == 0);
      MC_ASSERT_LE(args.q_begin + args.rows, args.kv.kv_len);  // kv holds a sparse row's own block
      blocks_ = (args.q_begin + args.rows - 1) / args.mode.block + 1;
      strips_ = (blocks_ - 1 + kStripKeys - 1) / kStripKeys;
    }
  }

  Result<void> run(Parallel& parallel, CpuScratch& scratch);

 private:
  struct Split {
    int64_t tokens_per_task;
    int64_t tasks_per_head;
  };
  Split split(int64_t tokens, int threads, bool dense) const;
  void run_tasks(Parallel& parallel, CpuScratch& scratch, int64_t begin, int64_t end, bool dense);
  TaskMemory take(Arena& arena, int64_t tokens, bool dense) const;
  size_t task_bytes(int64_t tokens) const;

  void load(const Task& task, const TaskMemory& memory) const;
  void store(const Task& task, const TaskMemory& memory) const;
  void run_dense(const Task& task, const TaskMemory& memory) const;
  void run_sparse(const Task& task, const TaskMemory& memory) const;
  void select(const Task& task, const TaskMemory& memory) const;
  void invert(const Task& task, const TaskMemory& memory) const;
  const std::byte* widened(const std::byte* rows, int exponent, int count, const TaskMemory& memory) const;
  int pack(int kv_head, int64_t begin, int64_t count, const TaskMemory& memory) const;
  void step(const TaskMemory& memory, int keys, int row_count, const int32_t* hidden = nullptr) const;

  int64_t position(const Task& task, int64_t row) const { return args_.q_begin + task.first + row / shape_.group; }
  size_t strip_bytes() const { return static_cast<size_t>(shape_.dim) * kStripKeys * kernels_.element_bytes; }

  const Kernels& kernels_;
  const PrefillArgs& args_;
  Shape shape_;
  int64_t history_;
  int64_t dense_rows_ = 0;
  int64_t blocks_ = 0;              // moba blocks up to the last row's own
  int64_t strips_ = 0;              // of 64 centroids
  std::byte* centroids_ = nullptr;  // [kv_heads][strips_] strips
};

Prefill::Split Prefill::split(int64_t tokens, int threads, bool dense) const {
  int64_t rows = kTaskRows;
  // The estimate assumes random choices of blocks: the mean list has rows (top_k - 1) / blocks rows.
  if (!dense && history_ > 0)
    while (rows < kSparseTaskRowsMax && rows * history_ < kListRows * blocks_) rows *= 2;
  int64_t per_task = std::max<int64_t>(kTaskTokensMin, rows / shape_.group);
  const auto tasks = [&] { return (tokens + per_task - 1) / per_task; };
  // With too few tasks, threads are idle at the end; smaller tasks only pack more often. Sparse tasks take equal times.
  const int64_t least = threads == 1 ? 1 : (dense ? 4 : 2) * threads;
  while (per_task > kTaskTokensMin && tasks() * shape_.kv_heads < least) per_task /= 2;
  return {per_task, tasks()};
}

size_t Prefill::task_bytes(int64_t tokens) const {
  const size_t rows = static_cast<size_t>(tokens * shape_.group);
  const size_t dim = static_cast<size_t>(shape_.dim);
  size_t bytes = rows * dim * (kernels_.element_bytes + 4) + rows * 20 + kScratchFloats * 4;
  bytes += 2 * kKeyTile * dim * kernels_.element_bytes + kRun * dim * 2;
  bytes += rows * static_cast<size_t>(2 * history_ + 1) * 4 + static_cast<size_t>(blocks_ + 2) * 8;
  bytes += kRowTile * static_cast<size_t>(strips_) * (kStripKeys + 1) * 4;
  return bytes + 16 * Arena::kAlign;
}

TaskMemory Prefill::take(Arena& arena, int64_t tokens, bool dense) const {
  const int64_t rows = tokens * shape_.group;
  const int64_t dim = shape_.dim;
  const int64_t element = static_cast<int64_t>(kernels_.element_bytes);
  arena.rewind();
  TaskMemory memory = {};
  memory.q = arena.take<std::byte>(rows * dim * element);
  memory.o = arena.take<float>(rows * dim);
  memory.m = arena.take<float>(rows);
  memory.d = arena.take<float>(rows);
  memory.rows = arena.take<int32_t>(rows);
  memory.visible = arena.take<int32_t>(rows);
  memory.hidden = arena.take<int32_t>(rows);
  memory.k_tile = arena.take<std::byte>(kKeyTile * dim * element);
  memory.v_tile = arena.take<std::byte>(kKeyTile * dim * element);
  memory.leaf = arena.take<float>(kScratchFloats);
  memory.widened = arena.take<uint16_t>(kRun * dim);
  if (dense) return memory;
  memory.chosen = arena.take<int32_t>(rows * history_);
  memory.block_rows = arena.take<int32_t>(rows * (history_ + 1));
  memory.block_begin = arena.take<int64_t>(blocks_ + 2);
  memory.scores = arena.take<float>(kRowTile * strips_ * kStripKeys);
  memory.top = arena.take<float>(kRowTile * strips_);
  return memory;
}

Result<void> Prefill::run(Parallel& parallel, CpuScratch& scratch) {
  const int threads = parallel.threads();
  scratch.workers.resize(std::max(scratch.workers.size(), static_cast<size_t>(threads)));
  const size_t bytes = task_bytes(std::max(split(dense_rows_, threads, true).tokens_per_task,
                                           split(args_.rows - dense_rows_, threads, false).tokens_per_task));
  for (Arena& arena : scratch.workers) MC_CHECK(arena.reserve(bytes));
  if (args_.selection_out != nullptr) std::fill_n(args_.selection_out, dense_rows_ * shape_.q_heads * history_, -1);
  if (dense_rows_ < args_.rows && history_ > 0 && args_.selection_in == nullptr) {
    const int64_t strip_count = shape_.kv_heads * strips_;
    MC_CHECK(scratch.shared.reserve(static_cast<size_t>(strip_count) * strip_bytes() + Arena::kAlign));
    centroids_ = scratch.shared.take<std::byte>(strip_count * static_cast<int64_t>(strip_bytes()));
    parallel.for_each(strip_count, [&](int64_t index, int) {
      pack_centroids(kernels_, args_.layout, shape_, args_.kv, static_cast<int>(index / strips_), args_.mode.block,
                     index % strips_ * kStripKeys, blocks_ - 1,
                     centroids_ + static_cast<size_t>(index) * strip_bytes());
    });
  }
  run_tasks(parallel, scratch, 0, dense_rows_, true);
  run_tasks(parallel, scratch, dense_rows_, args_.rows, false);
  return {};
}

void Prefill::run_tasks(Parallel& parallel, CpuScratch& scratch, int64_t begin, int64_t end, bool dense) {
  if (begin == end) return;
  const Split cut = split(end - begin, parallel.threads(), dense);
  parallel.for_each(cut.tasks_per_head * shape_.kv_heads, [&](int64_t index, int worker) {
    const FlushDenormals flush;
    // Later tokens see more keys, so the longest tasks go first.
    const int64_t part = cut.tasks_per_head - 1 - index / shape_.kv_heads;
    const int64_t first = begin + part * cut.tokens_per_task;
    const Task task{static_cast<int>(index % shape_.kv_heads), first, std::min(cut.tokens_per_task, end - first)};
    const TaskMemory memory = take(scratch.workers[static_cast<size_t>(worker)], task.tokens, dense);
    load(task, memory);
    dense ? run_dense(task, memory) : run_sparse(task, memory);
    store(task, memory);
  });
}

void Prefill::load(const Task& task, const TaskMemory& memory) const {
  const int64_t stride = args_.q_stride != 0 ? args_.q_stride : int64_t{shape_.q_heads} * shape_.head_dim;
  const int64_t rows = task.tokens * shape_.group;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = int64_t{task.kv_head} * shape_.group + row % shape_.group;
    const float* q = args_.q + (task.first + row / shape_.group) * stride + head * shape_.head_dim;
    kernels_.pack_q(q, shape_.head_dim, shape_.dim, shape_.bf16,
                    memory.q + static_cast<size_t>(row * shape_.dim) * kernels_.element_bytes);
  }
  clear({memory.o, memory.m, memory.d}, rows, shape_.dim);
}

void Prefill::store(const Task& task, const TaskMemory& memory) const {
  const int64_t stride = args_.out_stride != 0 ? args_.out_stride : int64_t{shape_.q_heads} * shape_.head_dim;
  const int64_t rows = task.tokens * shape_.group;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = task.first + row / shape_.group;
    const int64_t head = int64_t{task.kv_head} * shape_.group + row % shape_.group;
    const StateView state{memory.o + row * shape_.dim, memory.m + row, memory.d + row};
    if (args_.out != nullptr) {
      const bool empty = *state.d == 0;  // no keys: o is 0
      kernels_.scale_row(state.o, empty ? 0.0f : 1.0f / *state.d, shape_.head_dim,
                         args_.out + token * stride + head * shape_.head_dim);
    }
    if (!args_.state) continue;
    const int64_t at = token * shape_.q_heads + head;
    std::copy_n(state.o, shape_.head_dim, args_.state.o + at * shape_.head_dim);
    args_.state.m[at] = *state.m;
    args_.state.d[at] = *state.d;
  }
}

/// The rows as the leaves pack them: where they are, or codes of E4M3 as bf16 in memory.widened.
const std::byte* Prefill::widened(const std::byte* rows, int exponent, int count, const TaskMemory& memory) const {
  if (!shape_.e4m3) return rows;
  kernels_.widen_e4m3(reinterpret_cast<const uint8_t*>(rows), count * shape_.head_dim, exponent, nullptr,
                      memory.widened);
  return reinterpret_cast<const std::byte*>(memory.widened);
}

/// Packs keys [begin, begin + count), count <= kKeyTile. Returns the tile's padded key count.
int Prefill::pack(int kv_head, int64_t begin, int64_t count, const TaskMemory& memory) const {
  const int keys = static_cast<int>(round_up(static_cast<size_t>(count), kStripKeys));
  const size_t panel_bytes = static_cast<size_t>(shape_.dim) * kRun * kernels_.element_bytes;
  for (int key = 0; key < keys; key += kRun) {
    const int64_t at = begin + key;
    const int valid = static_cast<int>(std::clamp<int64_t>(std::min(begin + count, args_.kv.kv_len) - at, 0, kRun));
    const KvRows rows = valid > 0 ? rows_at(args_.layout, args_.kv, at, kv_head) : KvRows{};
    kernels_.pack_k(shape_.bf16, widened(rows.k, rows.scales.k, valid, memory), valid, shape_.head_dim, shape_.dim,
                    memory.k_tile + static_cast<size_t>(key / kRun) * panel_bytes);
    kernels_.pack_v(shape_.bf16, widened(rows.v, rows.scales.v, valid, memory), valid, shape_.head_dim, shape_.dim, key,
                    keys, memory.v_tile);
  }
  return keys;
}

void Prefill::step(const TaskMemory& memory, int keys, int row_count, const int32_t* hidden) const {
  kernels_.tile({.dim = shape_.dim,
                 .k = memory.k_tile,
                 .v = memory.v_tile,
                 .keys = keys,
                 .q = memory.q,
                 .o = memory.o,
                 .m = memory.m,
                 .d = memory.d,
                 .rows = memory.rows,
                 .visible = memory.visible,
                 .hidden = hidden,
                 .row_count = row_count,
                 .scale = shape_.scale,
                 .scratch = memory.leaf});
}

void Prefill::run_dense(const Task& task, const TaskMemory& memory) const {
  const int64_t rows = task.tokens * shape_.group;
  const int64_t end = std::min(args_.kv.kv_len, position(task, rows - 1) + 1);
  const ModeRow& mode = mode_row(args_.mode.kind);
  const bool whole = mode.first_key(args_.mode, position(task, rows - 1)) == 0;
  int64_t first_row = 0;  // earlier rows see no key of this tile or of later ones
  // Tile boundaries do not depend on the window, because the arithmetic of a row follows its position alone.
  for (int64_t begin = std::max<int64_t>(mode.first_key(args_.mode, position(task, 0)), 0) / kKeyTile * kKeyTile;
       begin < end; begin += kKeyTile) {
    while (first_row < rows && position(task, first_row) < begin) ++first_row;
    const int64_t count = std::min<int64_t>(kKeyTile, end - begin);
    int row_count = 0;
    for (int64_t row = first_row; row < rows; ++row, ++row_count) {
      const int64_t hidden = std::max<int64_t>(mode.first_key(args_.mode, position(task, row)) - begin, 0);
      if (hidden >= count) break;  // the keys of this row and of later rows begin behind the tile
      memory.rows[row_count] = static_cast<int32_t>(row);
      memory.visible[row_count] = static_cast<int32_t>(std::min(count, position(task, row) + 1 - begin));
      memory.hidden[row_count] = static_cast<int32_t>(hidden);
    }
    if (row_count > 0)
      step(memory, pack(task.kv_head, begin, count, memory), row_count, whole ? nullptr : memory.hidden);
  }
}

/// Selects the history blocks of every row of the task.
void Prefill::select(const Task& task, const TaskMemory& memory) const {
  const int64_t rows = task.tokens * shape_.group;
  const auto outside = [&](int64_t row) {  // index of the row's list in the caller's arrays
    const int64_t head = int64_t{task.kv_head} * shape_.group + row % shape_.group;
    return ((task.first + row / shape_.group) * shape_.q_heads + head) * history_;
  };
  if (args_.selection_in != nullptr) {
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(args_.selection_in + outside(row), history_, memory.chosen + row * history_);
  } else if (history_ > 0) {
    const ModeRow& mode = mode_row(args_.mode.kind);
    const std::byte* strips = centroids_ + static_cast<size_t>(task.kv_head * strips_) * strip_bytes();
    for (int64_t first = 0; first < rows; first += kRowTile) {
      const int count = static_cast<int>(std::min<int64_t>(kRowTile, rows - first));
      for (int i = 0; i < count; ++i) memory.rows[i] = static_cast<int32_t>(first + i);
      const int64_t candidates = position(task, first + count - 1) / args_.mode.block;
      for (int64_t strip = 0; strip * kStripKeys < candidates; ++strip)
        kernels_.scores({.dim = shape_.dim,
                         .q = memory.q,
                         .rows = memory.rows,
                         .row_count = count,
                         .panels = strips + static_cast<size_t>(strip) * strip_bytes(),
                         .scores = memory.scores + strip * kStripKeys,
                         .stride = strips_ * kStripKeys,
                         .top = memory.top + strip,
                         .top_stride = strips_});
      for (int i = 0; i < count; ++i)
        mode.select(args_.mode, {.scores = memory.scores + i * strips_ * kStripKeys,
                                 .strip_max = memory.top + i * strips_,
                                 .candidates = position(task, first + i) / args_.mode.block,
                                 .chosen = memory.chosen + (first + i) * history_});
    }
  }
  if (args_.selection_out != nullptr)
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(memory.chosen + row * history_, history_, args_.selection_out + outside(row));
}

/// block_rows[block_begin[j] .. block_begin[j + 1]) become the rows that attend to block j, ascending.
void Prefill::invert(const Task& task, const TaskMemory& memory) const {
  const int64_t rows = task.tokens * shape_.group;
  std::fill_n(memory.block_begin, blocks_ + 2, 0);
  const auto each = [&](auto&& visit) {
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t* chosen = memory.chosen + row * history_;
      for (int64_t i = 0; i < history_ && chosen[i] >= 0; ++i) visit(row, chosen[i]);
      visit(row, position(task, row) / args_.mode.block);
    }
  };
  // Counts at index j + 2. After the running sum, block_begin[j + 1] is where the rows of block j go next.
  each([&](int64_t, int64_t block) { ++memory.block_begin[block + 2]; });
  for (int64_t block = 0; block < blocks_; ++block) memory.block_begin[block + 2] += memory.block_begin[block + 1];
  each([&](int64_t row, int64_t block) {
    memory.block_rows[memory.block_begin[block + 1]++] = static_cast<int32_t>(row);
  });
}

void Prefill::run_sparse(const Task& task, const TaskMemory& memory) const {
  select(task, memory);
  invert(task, memory);
  const int64_t moba_block = args_.mode.block;
  for (int64_t block = 0; block < blocks_; ++block) {
    const int32_t* listed = memory.block_rows + memory.block_begin[block];
    const int64_t listed_count = memory.block_begin[block + 1] - memory.block_begin[block];
    if (listed_count == 0) continue;
    const int64_t block_end = std::min((block + 1) * moba_block, args_.kv.kv_len);
    for (int64_t begin = block * moba_block; begin < block_end; begin += kKeyTile) {
      const int64_t count = std::min<int64_t>(kKeyTile, block_end - begin);
      int row_count = 0;
      int64_t seen = 0;
      for (int64_t i = 0; i < listed_count; ++i) {
        // The causal edge, when this is the row's own block. History blocks are completely before it.
        const int64_t visible = std::min(count, position(task, listed[i]) + 1 - begin);
        if (visible <= 0) continue;
        memory.rows[row_count] = listed[i];
        memory.visible[row_count++] = static_cast<int32_t>(visible);
        seen = std::max(seen, visible);
      }
      if (row_count > 0) step(memory, pack(task.kv_head, begin, seen, memory), row_count);
    }
  }
}

}  // namespace

Result<void> prefill_cpu(const Kernels& kernels, Parallel& parallel, CpuScratch& scratch, const PrefillArgs& args) {
  if (args.rows <= 0) return {};
  return Prefill(kernels, args).run(parallel, scratch);
}

}  // namespace mc::attn

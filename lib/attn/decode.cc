// Decode on the CPU: memory-bound, so every byte of K and V is read once for all heads of its group. The
// KV of each sequence is cut at fixed positions (every 1024 tokens); a task is one cut of one KV head and
// leaves a partial state; the states are merged in order of position. Neither the batch nor the threads
// move a cut, so they cannot change a row's bits.
//
//   1  gate      (MoBA rows) scores and choice of each head, by the same leaves as prefill: same blocks
//   2  attend    tiles of up to 64 keys; a tile is read if any head of the group chose its block, and only
//                the heads that did take part (the union with a mask of moba.md 5.7)
//   3  merge
#include <algorithm>

#include "attn/cpu.h"
#include "base/parallel.h"

namespace mc::attn {
namespace {

constexpr int64_t kCutTokens = 1024;

/// Keys [begin, end).
struct Span {
  int64_t begin;
  int64_t end;
};

class Decode {
 public:
  Decode(const Kernels& kernels, const DecodeArgs& args)
      : kernels_(kernels), args_(args), shape_(shape_of(args.layout, args.q_heads, args.scale)) {
    MC_ASSERT_LE(shape_.group, kDecodeRowsMax);
    for (int64_t sequence = 0; sequence < args.sequences; ++sequence) {
      first_cut_.push_back(cuts_);
      cuts_ += (args.kv[sequence].kv_len + kCutTokens - 1) / kCutTokens;
      const Mode& mode = args.modes[sequence];
      if (!sparse(sequence)) continue;
      MC_ASSERT(mode.block % static_cast<int32_t>(args.layout.block_tokens) == 0);
      history_ = std::max(history_, mode.top_k - 1);
      strips_ = std::max(strips_, (candidates(sequence) + kStripKeys - 1) / kStripKeys);
    }
    first_cut_.push_back(cuts_);
  }

  Result<void> run(Parallel& parallel, CpuScratch& scratch);

 private:
  int64_t position(int64_t sequence) const { return args_.kv[sequence].kv_len - 1; }
  bool sparse(int64_t sequence) const { return position(sequence) >= dense_below(args_.modes[sequence]); }
  int64_t candidates(int64_t sequence) const { return position(sequence) / args_.modes[sequence].block; }
  /// State rows of one cut: [cut][kv_head][group].
  StateView cut_state(int64_t cut, int kv_head) const {
    const int64_t row = (cut * shape_.kv_heads + kv_head) * shape_.group;
    return {o_ + row * shape_.dim, m_ + row, d_ + row};
  }
  int32_t* chosen(int64_t sequence, int kv_head) const {
    return chosen_ + (sequence * shape_.q_heads + kv_head * shape_.group) * history_;
  }

  std::byte* load(int64_t sequence, int kv_head, Arena& arena) const;
  void gate(int64_t sequence, int kv_head, Arena& arena) const;
  void attend(int64_t sequence, int64_t cut, int kv_head, Arena& arena) const;
  void tile(const KvView& kv, int kv_head, Span span, Span next, DecodeTileArgs& leaf) const;
  void tiles(const KvView& kv, int kv_head, int64_t begin, int64_t end, DecodeTileArgs& leaf) const;
  void finish(int64_t sequence, int kv_head) const;

  const Kernels& kernels_;
  const DecodeArgs& args_;
  Shape shape_;
  std::vector<int64_t> first_cut_;  // [sequences + 1]
  int64_t cuts_ = 0;
  int32_t history_ = 0;  // the largest top_k - 1 of the batch
  int64_t strips_ = 0;
  float* o_ = nullptr;
  float* m_ = nullptr;
  float* d_ = nullptr;
  int32_t* chosen_ = nullptr;
};

Result<void> Decode::run(Parallel& parallel, CpuScratch& scratch) {
  const size_t dim = static_cast<size_t>(shape_.dim), group = static_cast<size_t>(shape_.group);
  const int64_t heads = shape_.kv_heads;
  const int64_t state_rows = cuts_ * heads * shape_.group;
  const int64_t list_values = args_.sequences * shape_.q_heads * history_;
  MC_CHECK(scratch.shared.reserve(static_cast<size_t>(state_rows) * (dim + 2) * 4 +
                                  static_cast<size_t>(list_values) * 4 + 8 * Arena::kAlign));
  o_ = scratch.shared.take<float>(state_rows * shape_.dim);
  m_ = scratch.shared.take<float>(state_rows);
  d_ = scratch.shared.take<float>(state_rows);
  chosen_ = scratch.shared.take<int32_t>(list_values);

  scratch.workers.resize(std::max(scratch.workers.size(), static_cast<size_t>(parallel.threads())));
  const size_t strips = static_cast<size_t>(strips_);
  const size_t bytes = group * (dim * 4 + 4 + strips * (kStripKeys + 1) * 4) + dim * kStripKeys * 4 +
                       kScratchFloats * 4 + 8 * Arena::kAlign;
  for (Arena& arena : scratch.workers) MC_CHECK(arena.reserve(bytes));

  const auto arena_of = [&](int worker) -> Arena& { return scratch.workers[static_cast<size_t>(worker)]; };
  if (history_ > 0)
    parallel.for_each(args_.sequences * heads, [&](int64_t index, int worker) {
      const FlushDenormals flush;
      if (sparse(index / heads)) gate(index / heads, static_cast<int>(index % heads), arena_of(worker));
    });
  parallel.for_each(cuts_ * heads, [&](int64_t index, int worker) {
    const FlushDenormals flush;
    const int64_t cut = index / heads;
    const int64_t sequence = std::upper_bound(first_cut_.begin(), first_cut_.end(), cut) - first_cut_.begin() - 1;
    attend(sequence, cut - first_cut_[static_cast<size_t>(sequence)], static_cast<int>(index % heads),
           arena_of(worker));
  });
  parallel.for_each(args_.sequences * heads, [&](int64_t index, int) {
    const FlushDenormals flush;
    finish(index / heads, static_cast<int>(index % heads));
  });
  return {};
}

/// The group's query rows, packed; rewinds the arena.
std::byte* Decode::load(int64_t sequence, int kv_head, Arena& arena) const {
  arena.rewind();
  std::byte* rows =
      arena.take<std::byte>(int64_t{shape_.group} * shape_.dim * static_cast<int64_t>(kernels_.element_bytes));
  const int64_t stride = args_.q_stride != 0 ? args_.q_stride : int64_t{shape_.q_heads} * shape_.head_dim;
  const float* q = args_.q + sequence * stride + int64_t{kv_head} * shape_.group * shape_.head_dim;
  for (int head = 0; head < shape_.group; ++head)
    kernels_.pack_q(q + head * shape_.head_dim, shape_.head_dim, shape_.dim, shape_.bf16,
                    rows + static_cast<size_t>(head * shape_.dim) * kernels_.element_bytes);
  return rows;
}

void Decode::gate(int64_t sequence, int kv_head, Arena& arena) const {
  const Mode& mode = args_.modes[sequence];
  const std::byte* q = load(sequence, kv_head, arena);
  int32_t* rows = arena.take<int32_t>(shape_.group);
  for (int head = 0; head < shape_.group; ++head) rows[head] = head;
  std::byte* strip =
      arena.take<std::byte>(int64_t{shape_.dim} * kStripKeys * static_cast<int64_t>(kernels_.element_bytes));
  float* scores = arena.take<float>(shape_.group * strips_ * kStripKeys);
  float* top = arena.take<float>(shape_.group * strips_);
  const int64_t count = candidates(sequence);
  for (int64_t first = 0; first < count; first += kStripKeys) {
    pack_centroids(kernels_, args_.layout, shape_, args_.kv[sequence], kv_head, mode.block, first, count, strip);
    kernels_.scores({.dim = shape_.dim,
                     .q = q,
                     .rows = rows,
                     .row_count = shape_.group,
                     .panels = strip,
                     .scores = scores + first,
                     .stride = strips_ * kStripKeys,
                     .top = top + first / kStripKeys,
                     .top_stride = strips_});
  }
  for (int head = 0; head < shape_.group; ++head) {
    int32_t* list = chosen(sequence, kv_head) + head * history_;
    mode_row(mode.kind).select(mode, {.scores = scores + head * strips_ * kStripKeys,
                                      .strip_max = top + head * strips_,
                                      .candidates = count,
                                      .chosen = list});
    std::fill(list + mode.top_k - 1, list + history_, -1);
  }
}

/// One tile for the heads listed in leaf.rows; `next` (may be empty) is prefetched.
void Decode::tile(const KvView& kv, int kv_head, Span span, Span next, DecodeTileArgs& leaf) const {
  const void* runs[4][kDecodeTile / kRun];
  const auto fill = [&](Span s, const void** k_runs, const void** v_runs) {
    int count = 0;
    for (int64_t key = s.begin; key < s.end; key += kRun, ++count) {
      const std::byte* k = k_row(args_.layout, kv, key, kv_head);
      k_runs[count] = k;
      v_runs[count] = k + args_.layout.v_offset();
    }
    return count;
  };
  fill(span, runs[0], runs[1]);
  leaf.keys = static_cast<int>(span.end - span.begin);
  leaf.k_runs = runs[0];
  leaf.v_runs = runs[1];
  leaf.ahead_runs = fill(next, runs[2], runs[3]);
  leaf.k_ahead = runs[2];
  leaf.v_ahead = runs[3];
  kernels_.decode(leaf);
}

/// Tiles of [begin, end) for the heads in leaf.rows.
void Decode::tiles(const KvView& kv, int kv_head, int64_t begin, int64_t end, DecodeTileArgs& leaf) const {
  const auto span_at = [&](int64_t at) { return Span{std::min(at, end), std::min(at + kDecodeTile, end)}; };
  for (int64_t at = begin; at < end; at += kDecodeTile) tile(kv, kv_head, span_at(at), span_at(at + kDecodeTile), leaf);
}

void Decode::attend(int64_t sequence, int64_t cut, int kv_head, Arena& arena) const {
  const KvView& kv = args_.kv[sequence];
  const StateView state = cut_state(first_cut_[static_cast<size_t>(sequence)] + cut, kv_head);
  clear(state, shape_.group, shape_.dim);
  const std::byte* q = load(sequence, kv_head, arena);
  int32_t* rows = arena.take<int32_t>(shape_.group);
  DecodeTileArgs leaf = {.bf16 = shape_.bf16,
                         .head_dim = shape_.head_dim,
                         .dim = shape_.dim,
                         .q = q,
                         .o = state.o,
                         .m = state.m,
                         .d = state.d,
                         .rows = rows,
                         .scale = shape_.scale,
                         .scratch = arena.take<float>(kScratchFloats)};
  const int64_t cut_end = std::min((cut + 1) * kCutTokens, kv.kv_len);
  if (!sparse(sequence)) {
    for (int head = 0; head < shape_.group; ++head) rows[head] = head;
    leaf.row_count = shape_.group;
    const int64_t first = std::max(cut * kCutTokens, first_key(args_.modes[sequence], position(sequence)));
    // A run must not cross a page: a window that begins within a run takes the rest of that run alone. (The
    // leaf may read up to 3 rows more; behind a page's last K rows lie its V rows.)
    const int64_t aligned = std::min(static_cast<int64_t>(round_up(static_cast<uint64_t>(first), kRun)), cut_end);
    if (first < aligned) tile(kv, kv_head, {first, aligned}, {}, leaf);
    if (aligned < cut_end) tiles(kv, kv_head, aligned, cut_end, leaf);
    return;
  }
  const Mode& mode = args_.modes[sequence];
  const int32_t* lists = chosen(sequence, kv_head);
  for (int64_t begin = cut * kCutTokens; begin < cut_end;) {
    const int64_t block = begin / mode.block;
    const int64_t block_end = std::min((block + 1) * mode.block, cut_end);
    leaf.row_count = 0;
    for (int head = 0; head < shape_.group; ++head) {
      const int32_t* list = lists + head * history_;
      if (block == candidates(sequence) || std::find(list, list + mode.top_k - 1, block) != list + mode.top_k - 1)
        rows[leaf.row_count++] = head;
    }
    if (leaf.row_count > 0) tiles(kv, kv_head, begin, block_end, leaf);
    begin = block_end;
  }
}

void Decode::finish(int64_t sequence, int kv_head) const {
  const int64_t out_stride = args_.out_stride != 0 ? args_.out_stride : int64_t{shape_.q_heads} * shape_.head_dim;
  const int64_t first = first_cut_[static_cast<size_t>(sequence)];
  const int64_t end = first_cut_[static_cast<size_t>(sequence) + 1];
  const int64_t head_begin = int64_t{kv_head} * shape_.group;
  float* out = args_.out == nullptr ? nullptr : args_.out + sequence * out_stride + head_begin * shape_.head_dim;
  const int64_t state_row = sequence * shape_.q_heads + head_begin;
  const StateView target{args_.state.o + state_row * shape_.head_dim, args_.state.m + state_row,
                         args_.state.d + state_row};
  if (first == end) {  // an empty sequence
    if (out != nullptr) std::fill_n(out, int64_t{shape_.group} * shape_.head_dim, 0.0f);
    if (args_.state) clear(target, shape_.group, shape_.head_dim);
    return;
  }
  const StateView state = cut_state(first, kv_head);
  for (int64_t cut = first + 1; cut < end; ++cut) merge(state, cut_state(cut, kv_head), shape_.group, shape_.dim);
  for (int64_t head = 0; head < shape_.group; ++head) {
    const StateView row{state.o + head * shape_.dim, state.m + head, state.d + head};
    if (out != nullptr) normalise(row, 1, shape_.head_dim, out + head * shape_.head_dim);
    if (!args_.state) continue;
    std::copy_n(row.o, shape_.head_dim, target.o + head * shape_.head_dim);
    target.m[head] = *row.m;
    target.d[head] = *row.d;
  }
}

}  // namespace

Result<void> decode_cpu(const Kernels& kernels, Parallel& parallel, CpuScratch& scratch, const DecodeArgs& args) {
  if (args.sequences <= 0) return {};
  return Decode(kernels, args).run(parallel, scratch);
}

}  // namespace mc::attn

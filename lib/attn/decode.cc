// Decode on the CPU. Decode is memory-bound, so every byte of K and V is read once for all heads of its group, and the
// next tile is prefetched while one is computed. The keys of a KV head are cut at fixed places. A task is one cut of
// one KV head and yields a partial state. The states are merged in order. Neither the batch nor the threads change a
// cut, so they cannot change the bits of a row.
//
//   1  gate      (MoBA rows) scores of each head, the sums of prefill's leaves: the same blocks. A task scores 64
//                blocks for all KV heads, whose centroids lie in the same pages: tasks enough for one KV head too
//      choice    of each head, then the union of the group's: the blocks that the KV head reads, ascending
//   2  attend    tiles of up to 64 keys; only the heads that chose a block take part in its tiles (a
//                mask over the union)
//   3  merge
//
// A cut is 1024 tokens of the keys read, counted without the gaps between chosen blocks. In a long context a cut is a
// 64th of the tokens, because every cut costs a state and a merge.
#include <algorithm>

#include "attn/cpu.h"
#include "base/parallel.h"

namespace mc::attn {
namespace {

constexpr int64_t kCutTokens = 1024;
constexpr int64_t kCutsMax = 64;

/// Keys [begin, end) that the heads rows[0 .. row_count) attend to.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  const int32_t* rows = nullptr;
  int row_count = 0;
};

class Decode {
 public:
  /// `scratch` must outlive the object.
  Decode(const Kernels& kernels, const DecodeArgs& args, CpuScratch& scratch);

  Result<void> run(Parallel& parallel);

 private:
  int64_t position(int64_t sequence) const { return args_.kv[sequence].kv_len - 1; }
  int64_t candidates(int64_t sequence) const { return position(sequence) / args_.modes[sequence].block; }
  const SequenceCuts& of(int64_t sequence) const { return sequences_[static_cast<size_t>(sequence)]; }
  int64_t tokens_read_max(int64_t sequence) const;
  /// State rows of one cut: [cut][kv_head][group].
  StateView cut_state(int64_t cut, int kv_head) const {
    const int64_t row = (cut * shape_.kv_heads + kv_head) * shape_.group;
    return {o_ + row * shape_.dim, m_ + row, d_ + row};
  }
  int32_t* chosen(int64_t sequence, int kv_head) const {
    return chosen_ + (sequence * shape_.q_heads + kv_head * shape_.group) * history_;
  }
  /// The list of blocks that a KV head reads: their number, then the blocks in ascending order.
  int32_t* read_list(int64_t sequence, int kv_head) const {
    return read_lists_ + (sequence * shape_.kv_heads + kv_head) * (int64_t{shape_.group} * history_ + 2);
  }

  std::byte* load(int64_t sequence, int kv_head, Arena& arena) const;
  void gate(int64_t sequence, int64_t strip, Arena& arena) const;
  void choose(int64_t sequence, int kv_head) const;
  /// Scores of a sequence's query heads: [q_heads][strips_ * 64], and the largest of each 64.
  float* scores(int64_t sequence) const { return scores_ + sequence * shape_.q_heads * strips_ * kStripKeys; }
  float* top(int64_t sequence) const { return top_ + sequence * shape_.q_heads * strips_; }
  void join(int64_t sequence, int kv_head) const;
  void attend(int64_t sequence, int64_t cut, int kv_head, Arena& arena) const;
  int dense_spans(int64_t sequence, int64_t cut, const int32_t* everyone, Span* spans) const;
  int sparse_spans(int64_t sequence, int64_t cut, int kv_head, int32_t* rows, Span* spans) const;
  int runs_of(const KvView& kv, int kv_head, const Span& span, KvRows* runs) const;
  void tile(const KvView& kv, int kv_head, const Span& span, const Span& next, uint16_t* widened,
            DecodeTileArgs& leaf) const;
  void finish(int64_t sequence, int kv_head) const;

  const Kernels& kernels_;
  const DecodeArgs& args_;
  Shape shape_;
  CpuScratch& scratch_;
  std::vector<SequenceCuts>& sequences_;  // owned by scratch_; the last entry is the end of the last sequence's cuts
  int64_t cuts_ = 0;
  int64_t spans_max_ = 2;  // spans of one cut
  int32_t history_ = 0;    // the largest top_k - 1 of the batch
  int64_t strips_ = 0;
  float* o_ = nullptr;
  float* m_ = nullptr;
  float* d_ = nullptr;
  float* scores_ = nullptr;
  float* top_ = nullptr;
  int32_t* chosen_ = nullptr;
  int32_t* read_lists_ = nullptr;
};

Decode::Decode(const Kernels& kernels, const DecodeArgs& args, CpuScratch& scratch)
    : kernels_(kernels),
      args_(args),
      shape_(shape_of(args.layout, args.q_heads, args.scale)),
      scratch_(scratch),
      sequences_(scratch.cuts) {
  sequences_.clear();
  MC_ASSERT_LE(shape_.group, kDecodeRowsMax);
  for (int64_t sequence = 0; sequence < args.sequences; ++sequence) {
    const Mode& mode = args.modes[sequence];
    const bool sparse = position(sequence) >= dense_below(mode);
    const int64_t tokens = sparse ? tokens_read_max(sequence) : args.kv[sequence].kv_len;
    const int64_t longest = (tokens + kCutsMax - 1) / kCutsMax;
    const int64_t cut_tokens =
        std::max(kCutTokens, static_cast<int64_t>(round_up(static_cast<uint64_t>(longest), kCutTokens)));
    sequences_.push_back({cuts_, cut_tokens, sparse});
    cuts_ += (tokens + cut_tokens - 1) / cut_tokens;
    if (!sparse) continue;
    MC_ASSERT(mode.block % static_cast<int32_t>(args.layout.block_tokens) == 0);
    history_ = std::max(history_, mode.top_k - 1);
    strips_ = std::max(strips_, (candidates(sequence) + kStripKeys - 1) / kStripKeys);
    spans_max_ = std::max(spans_max_, cut_tokens / mode.block + 2);
  }
  sequences_.push_back({cuts_, kCutTokens, false});
}

/// Upper bound of the tokens that a KV head of a sparse sequence reads.
int64_t Decode::tokens_read_max(int64_t sequence) const {
  const Mode& mode = args_.modes[sequence];
  const int64_t blocks = std::min(candidates(sequence), int64_t{shape_.group} * (mode.top_k - 1));
  return blocks * mode.block + position(sequence) % mode.block + 1;
}

Result<void> Decode::run(Parallel& parallel) {
  const size_t dim = static_cast<size_t>(shape_.dim), group = static_cast<size_t>(shape_.group);
  const int64_t heads = shape_.kv_heads;
  const int64_t state_rows = cuts_ * heads * shape_.group;
  const int64_t list_values = args_.sequences * shape_.q_heads * history_;
  const int64_t read_values = list_values + 2 * args_.sequences * heads;
  const int64_t strips_all = args_.sequences * shape_.q_heads * strips_;
  MC_CHECK(scratch_.shared.reserve(static_cast<size_t>(state_rows) * (dim + 2) * 4 +
                                   static_cast<size_t>(strips_all) * (kStripKeys + 1) * 4 +
                                   static_cast<size_t>(list_values + read_values) * 4 + 10 * Arena::kAlign));
  o_ = scratch_.shared.take<float>(state_rows * shape_.dim);
  m_ = scratch_.shared.take<float>(state_rows);
  d_ = scratch_.shared.take<float>(state_rows);
  scores_ = scratch_.shared.take<float>(strips_all * kStripKeys);
  top_ = scratch_.shared.take<float>(strips_all);
  chosen_ = scratch_.shared.take<int32_t>(list_values);
  read_lists_ = scratch_.shared.take<int32_t>(read_values);

  scratch_.workers.resize(std::max(scratch_.workers.size(), static_cast<size_t>(parallel.threads())));
  const size_t spans = static_cast<size_t>(spans_max_);
  const size_t bytes = group * (dim * 4 + 4) + dim * kStripKeys * 6 + kScratchFloats * 4 +
                       spans * (sizeof(Span) + group * 4) + (shape_.e4m3 ? 4 * kDecodeTile * dim : 0) +
                       12 * Arena::kAlign;
  for (Arena& arena : scratch_.workers) MC_CHECK(arena.reserve(bytes));

  const auto arena_of = [&](int worker) -> Arena& { return scratch_.workers[static_cast<size_t>(worker)]; };
  if (strips_ > 0) {
    if (history_ > 0)
      parallel.for_each(args_.sequences * strips_, [&](int64_t index, int worker) {
        const FlushDenormals flush;
        gate(index / strips_, index % strips_, arena_of(worker));
      });
    parallel.for_each(args_.sequences * heads, [&](int64_t index, int) {
      if (of(index / heads).sparse) choose(index / heads, static_cast<int>(index % heads));
    });
  }
  const auto later = [](int64_t cut, const SequenceCuts& s) { return cut < s.first_cut; };
  parallel.for_each(cuts_ * heads, [&](int64_t index, int worker) {
    const FlushDenormals flush;
    const int64_t cut = index / heads;
    const int64_t sequence =
        std::upper_bound(sequences_.begin(), sequences_.end(), cut, later) - sequences_.begin() - 1;
    attend(sequence, cut - of(sequence).first_cut, static_cast<int>(index % heads), arena_of(worker));
  });
  parallel.for_each(args_.sequences * heads, [&](int64_t index, int) {
    const FlushDenormals flush;
    finish(index / heads, static_cast<int>(index % heads));
  });
  return {};
}

/// Packs the query rows of the group. Rewinds the arena.
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

/// Computes the scores of all heads with the 64 candidates of one strip.
void Decode::gate(int64_t sequence, int64_t strip, Arena& arena) const {
  const Mode& mode = args_.modes[sequence];
  const int64_t first = strip * kStripKeys;
  if (!of(sequence).sparse || mode.top_k < 2 || first >= candidates(sequence)) return;
  const int64_t count = candidates(sequence);
  const auto gather = [&](int kv_head, uint16_t* means) {
    return gather_centroids(kernels_, args_.layout, args_.kv[sequence], kv_head, mode.block, first, count, means);
  };
  // The buffer of centroids is overwritten only after the last use.
  const CentroidView& gathered = args_.kv[sequence].centroids;
  const bool in_place = mode.block == static_cast<int32_t>(args_.layout.block_tokens) ||
                        (gathered.moba_block == mode.block && gathered.count >= std::min(count, first + kStripKeys));
  CentroidRows next;
  for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
    const std::byte* q = load(sequence, kv_head, arena);
    int32_t* rows = arena.take<int32_t>(shape_.group);
    for (int head = 0; head < shape_.group; ++head) rows[head] = head;
    std::byte* panels =
        arena.take<std::byte>(int64_t{shape_.dim} * kStripKeys * static_cast<int64_t>(kernels_.element_bytes));
    uint16_t* means = arena.take<uint16_t>(int64_t{shape_.dim} * kStripKeys);
    const int64_t row = int64_t{kv_head} * shape_.group;
    const ScoreArgs leaf = {.dim = shape_.dim,
                            .q = q,
                            .rows = rows,
                            .row_count = shape_.group,
                            .panels = panels,
                            .scores = scores(sequence) + row * strips_ * kStripKeys + first,
                            .stride = strips_ * kStripKeys,
                            .top = top(sequence) + row * strips_ + strip,
                            .top_stride = strips_};
    if (kernels_.score_rows == nullptr) {
      pack_centroids(kernels_, args_.layout, shape_, args_.kv[sequence], kv_head, mode.block, first, count, panels);
      kernels_.scores(leaf);
      continue;
    }
    const CentroidRows now = in_place && kv_head > 0 ? next : gather(kv_head, means);
    next = in_place && kv_head + 1 < shape_.kv_heads ? gather(kv_head + 1, means) : CentroidRows{};
    kernels_.score_rows(leaf, shape_.head_dim, now, next);
  }
}

void Decode::choose(int64_t sequence, int kv_head) const {
  const Mode& mode = args_.modes[sequence];
  for (int head = 0; head < shape_.group && mode.top_k > 1; ++head) {
    const int64_t row = int64_t{kv_head} * shape_.group + head;
    int32_t* list = chosen(sequence, kv_head) + head * history_;
    mode_row(mode.kind).select(mode, {.scores = scores(sequence) + row * strips_ * kStripKeys,
                                      .strip_max = top(sequence) + row * strips_,
                                      .candidates = candidates(sequence),
                                      .chosen = list});
    std::fill(list + mode.top_k - 1, list + history_, -1);
  }
  join(sequence, kv_head);
}

/// Makes the union of the blocks that the group's heads chose and the row's own block.
void Decode::join(int64_t sequence, int kv_head) const {
  const Mode& mode = args_.modes[sequence];
  const int32_t* lists = chosen(sequence, kv_head);
  int32_t* list = read_list(sequence, kv_head);
  int32_t* end = list + 1;
  for (int64_t i = 0; i < int64_t{shape_.group} * history_; ++i)
    if (lists[i] >= 0 && i % history_ < mode.top_k - 1) *end++ = lists[i];
  std::sort(list + 1, end);
  end = std::unique(list + 1, end);
  *end++ = static_cast<int32_t>(candidates(sequence));
  *list = static_cast<int32_t>(end - list - 1);
}

/// The runs of the first tile of the span. Returns their number.
int Decode::runs_of(const KvView& kv, int kv_head, const Span& span, KvRows* runs) const {
  int count = 0;
  const int64_t end = std::min(span.end, span.begin + kDecodeTile);
  for (int64_t key = span.begin; key < end; key += kRun) runs[count++] = rows_at(args_.layout, kv, key, kv_head);
  return count;
}

/// Computes one tile of `span` for its heads. Prefetches the first tile of `next` (which may be empty). Codes of E4M3
/// are widened into `widened` first, which for all heads costs less than reading twice the bytes.
void Decode::tile(const KvView& kv, int kv_head, const Span& span, const Span& next, uint16_t* widened,
                  DecodeTileArgs& leaf) const {
  KvRows now[kDecodeTile / kRun], later[kDecodeTile / kRun];
  const void* runs[4][kDecodeTile / kRun];
  const int count = runs_of(kv, kv_head, span, now), ahead = runs_of(kv, kv_head, next, later);
  leaf.keys = static_cast<int>(std::min<int64_t>(span.end - span.begin, kDecodeTile));
  for (int i = 0; i < count; ++i) runs[0][i] = now[i].k, runs[1][i] = now[i].v;
  for (int i = 0; i < ahead; ++i) runs[2][i] = later[i].k, runs[3][i] = later[i].v;
  leaf.ahead_runs = shape_.e4m3 ? 0 : ahead;
  for (int i = 0; i < count && shape_.e4m3; ++i) {
    const int codes = std::min(kRun, leaf.keys - i * kRun) * shape_.head_dim;
    for (int part = 0; part < 2; ++part, widened += kRun * shape_.head_dim) {
      kernels_.widen_e4m3(static_cast<const uint8_t*>(runs[part][i]), codes,
                          part == 0 ? now[i].scales.k : now[i].scales.v, i < ahead ? runs[2 + part][i] : nullptr,
                          widened);
      runs[part][i] = widened;
    }
  }
  leaf.k_runs = runs[0];
  leaf.v_runs = runs[1];
  leaf.k_ahead = runs[2];
  leaf.v_ahead = runs[3];
  leaf.rows = span.rows;
  leaf.row_count = span.row_count;
  kernels_.decode(leaf);
}

/// The spans of all heads, from the mode's first key.
int Decode::dense_spans(int64_t sequence, int64_t cut, const int32_t* everyone, Span* spans) const {
  const int64_t begin = cut * of(sequence).cut_tokens;
  const int64_t end = std::min(begin + of(sequence).cut_tokens, args_.kv[sequence].kv_len);
  const int64_t first = std::max(begin, first_key(args_.modes[sequence], position(sequence)));
  // A run must not cross a page. A window that begins within a run reads the rest of that run alone. (The leaf may read
  // up to 3 rows more, because V rows follow a page's last K rows.)
  const int64_t aligned = std::min(static_cast<int64_t>(round_up(static_cast<uint64_t>(first), kRun)), end);
  int count = 0;
  if (first < aligned) spans[count++] = {first, aligned, everyone, shape_.group};
  if (aligned < end) spans[count++] = {std::max(first, aligned), end, everyone, shape_.group};
  return count;
}

/// The part of the KV head's blocks that is in the cut, the blocks laid end to end. `rows` has room for a group in each
/// span.
int Decode::sparse_spans(int64_t sequence, int64_t cut, int kv_head, int32_t* rows, Span* spans) const {
  const Mode& mode = args_.modes[sequence];
  const int32_t* list = read_list(sequence, kv_head);
  const int32_t* lists = chosen(sequence, kv_head);
  const int64_t own = position(sequence) % mode.block + 1;
  const int64_t cut_end = std::min((cut + 1) * of(sequence).cut_tokens, (*list - 1) * int64_t{mode.block} + own);
  int count = 0;
  for (int64_t at = cut * of(sequence).cut_tokens; at < cut_end; rows += shape_.group) {
    const int64_t entry = at / mode.block;
    const int64_t end = std::min((entry + 1) * mode.block, cut_end);
    const int32_t block = list[1 + entry];
    Span& span = spans[count++];
    span = {block * int64_t{mode.block} + at % mode.block, 0, rows, 0};
    span.end = span.begin + end - at;
    for (int head = 0; head < shape_.group; ++head) {
      const int32_t* from = lists + head * history_;
      const bool chose = std::find(from, from + mode.top_k - 1, block) != from + mode.top_k - 1;
      if (entry == *list - 1 || chose) rows[span.row_count++] = head;
    }
    at = end;
  }
  return count;
}

void Decode::attend(int64_t sequence, int64_t cut, int kv_head, Arena& arena) const {
  const KvView& kv = args_.kv[sequence];
  const StateView state = cut_state(of(sequence).first_cut + cut, kv_head);
  clear(state, shape_.group, shape_.dim);
  const std::byte* q = load(sequence, kv_head, arena);
  int32_t* rows = arena.take<int32_t>(shape_.group * spans_max_);
  Span* spans = arena.take<Span>(spans_max_);
  DecodeTileArgs leaf = {.bf16 = shape_.bf16,
                         .head_dim = shape_.head_dim,
                         .dim = shape_.dim,
                         .q = q,
                         .o = state.o,
                         .m = state.m,
                         .d = state.d,
                         .scale = shape_.scale,
                         .scratch = arena.take<float>(kScratchFloats)};
  uint16_t* widened = shape_.e4m3 ? arena.take<uint16_t>(2 * kDecodeTile * shape_.head_dim) : nullptr;
  for (int head = 0; head < shape_.group; ++head) rows[head] = head;
  const int count =
      of(sequence).sparse ? sparse_spans(sequence, cut, kv_head, rows, spans) : dense_spans(sequence, cut, rows, spans);
  for (int i = 0; i < count; ++i)
    for (Span rest = spans[i]; rest.begin < rest.end;) {
      Span next = rest;
      next.begin += kDecodeTile;
      if (next.begin >= next.end) next = i + 1 < count ? spans[i + 1] : Span{};
      tile(kv, kv_head, rest, next, widened, leaf);
      rest.begin += kDecodeTile;
    }
}

void Decode::finish(int64_t sequence, int kv_head) const {
  const int64_t out_stride = args_.out_stride != 0 ? args_.out_stride : int64_t{shape_.q_heads} * shape_.head_dim;
  const int64_t first = of(sequence).first_cut, end = of(sequence + 1).first_cut;
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
  return Decode(kernels, args, scratch).run(parallel);
}

}  // namespace mc::attn

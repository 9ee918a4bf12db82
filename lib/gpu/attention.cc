#include "gpu/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "base/assert.h"
#include "base/extent.h"
#include "gpu/arena.h"
#include "gpu/kernels/decode.h"
#include "gpu/kernels/gate.h"
#include "gpu/routed.h"

namespace mc::gpu {
namespace {

static_assert(kClusterSplitsMax == kSplitsMax && kCombineSplitsMax == kSplitsMax);
static_assert(kClusterRows == kDecodeRowsMax);
constexpr int64_t kKeysOfSplit = 512;

// A chip runs about 400 CTAs of the decode kernel at the same time (132 multiprocessors, three on each). The splits of
// a long sequence fill that in whole waves for 8, 16 and 32 KV heads: a few CTAs more run alone in a wave of their own.
constexpr int64_t kSplitsOfWave = 48;
constexpr uint32_t kHeadsOfManySplits = 6;  // up to which kSplitsMax splits of each fit into one wave

Error limit(const std::string& text, Code code = Code::unsupported) {
  return {code, "attention on a GPU: " + text};
}

Result<void> check(const AttentionShape& shape) {
  const ExtentLayout& l = shape.layout;
  if (l.head_dim != 64 && l.head_dim != 128)
    return limit("the head dimension is " + std::to_string(l.head_dim) + ", kernels exist for 64 and 128");
  if (l.dtype != Dtype::bf16 && !l.has_scales())
    return limit("K and V are " + std::string(to_string(l.dtype)) + ", kernels read bf16 and fp8_e4m3");
  const bool reads_codes = shape.kernel == AttentionKernel::automatic || shape.kernel == AttentionKernel::prefill ||
                           shape.kernel == AttentionKernel::decode;
  if (l.has_scales() && !reads_codes) return limit("K and V are fp8_e4m3, which prefill and decode of sm_80 read");
  if (l.block_tokens % kKeyTile != 0)
    return limit("a page holds " + std::to_string(l.block_tokens) + " tokens, kernels read 64 at a time");
  if (shape.q_heads <= 0 || shape.q_heads % static_cast<int32_t>(l.kv_heads) != 0)
    return limit(std::to_string(shape.q_heads) + " query heads are no multiple of " + std::to_string(l.kv_heads));
  return {};
}

Result<void> check(const AttentionShape& shape, const SequenceRows& s) {
  const ExtentLayout& l = shape.layout;
  if (s.kv_len > INT32_MAX - 1024) return limit("a sequence of " + std::to_string(s.kv_len) + " tokens, at most 2^31");
  MC_CHECK(check_mode(l, s.mode, s.kv_len));
  if (s.splits < 0 || s.splits > kSplitsMax)
    return limit(std::to_string(s.splits) + " splits, at most " + std::to_string(kSplitsMax));
  if (s.pages.size() * l.block_tokens < static_cast<size_t>(std::max<int64_t>(s.kv_len, 0)))
    return limit("a sequence of " + std::to_string(s.kv_len) + " tokens has " + std::to_string(s.pages.size()) +
                 " pages");
  return {};
}

/// A count for the places of tables, at most a quarter larger: a number that grows by one keeps its place for a while.
size_t round_count(size_t count) {
  constexpr size_t kExact = 4;
  return count <= kExact ? count : round_up(count, std::bit_floor(count) / kExact);
}

/// Whether no row of a MoBA sequence chooses: each of them sees every key before it.
bool is_dense(const SequenceRows& s) {
  return s.mode.kind == attn::ModeKind::moba &&
         s.q_begin + s.tokens <= attn::moba_dense_below(s.mode.block, s.mode.top_k);
}

/// Complete MoBA blocks of a sequence, each with a centroid.
int64_t blocks_of(const SequenceRows& s) {
  return s.mode.kind == attn::ModeKind::moba ? s.kv_len / s.mode.block : 0;
}

std::string kernel_name(std::string_view base, const ExtentLayout& layout) {
  return std::string(base) + "_d" + std::to_string(layout.head_dim);
}

/// The kernel for pages of the layout's type.
std::string reader_name(std::string_view base, const ExtentLayout& layout) {
  return kernel_name(std::string(base) + (layout.has_scales() ? "_e4m3" : ""), layout);
}

/// Keys that the decode rows of a sequence read at most.
int64_t keys_read(const SequenceRows& s, uint32_t heads) {
  if (s.mode.kind == attn::ModeKind::window) return std::min(s.kv_len, int64_t{s.mode.window} + s.tokens);
  if (s.mode.kind != attn::ModeKind::moba) return s.kv_len;
  const int64_t rows = int64_t{s.tokens} * heads;  // each with its choice, beside the open block
  return std::min(s.kv_len, (rows * (s.mode.top_k - 1) + 1) * s.mode.block);
}

/// The kernel of a sequence. Padding has that of a sequence with one token, so that a step remains one group.
AttentionKernel choose(const Device& device, const AttentionShape& shape, const SequenceRows& s) {
  // The ways of MoBA rows follow from the length of their sequence, and the rows of a rounded step take one kernel.
  const bool is_hopper = device.capability() == 90;
  const bool may_route = s.mode.kind == attn::ModeKind::moba && !shape.is_rounded;
  if (shape.kernel == AttentionKernel::routed && !may_route) return AttentionKernel::prefill;
  if (shape.kernel > AttentionKernel::routed && !may_route) return AttentionKernel::hopper;
  if (shape.kernel == AttentionKernel::stationary && s.mode.block > kStationaryBlockMax) return AttentionKernel::wide;
  if (shape.kernel != AttentionKernel::automatic) return shape.kernel;
  const uint32_t heads = static_cast<uint32_t>(shape.q_heads) / shape.layout.kv_heads;
  if (static_cast<uint32_t>(std::max(s.tokens, 1)) * heads <= kDecodeRowsMax) return AttentionKernel::decode;
  if (shape.layout.has_scales()) return AttentionKernel::prefill;
  if (may_route) return choose_routed(shape.layout, shape.q_heads, s, shape.routed_bytes, is_hopper);
  return is_hopper ? AttentionKernel::hopper : AttentionKernel::prefill;
}

}  // namespace

// A request names its plan, so a plan beyond the kernels is the request's fault: the node is not to blame.
Result<void> check_mode(const ExtentLayout& layout, const attn::Mode& mode, int64_t kv_len) {
  if (mode.kind != attn::ModeKind::moba) return {};
  if (mode.block <= 0 || mode.block % static_cast<int32_t>(layout.block_tokens) != 0)
    return limit("a MoBA block of " + std::to_string(mode.block) + " tokens is no multiple of the page's",
                 Code::invalid);
  if (mode.top_k < 1 || mode.top_k - 1 > kChosenMax)
    return limit("top_k is " + std::to_string(mode.top_k) + ", at most " + std::to_string(kChosenMax + 1),
                 Code::invalid);
  const int64_t blocks = (kv_len + mode.block - 1) / mode.block;
  if (blocks > kUnionBlocksMax)
    return limit(std::to_string(blocks) + " MoBA blocks, at most " + std::to_string(kUnionBlocksMax), Code::invalid);
  return {};
}

int32_t splits_of(const SequenceRows& sequence, uint32_t kv_heads) {
  const int64_t most = kv_heads <= kHeadsOfManySplits ? kSplitsMax : kSplitsOfWave;
  const bool is_window = sequence.mode.kind == attn::ModeKind::window;
  const int64_t keys = is_window ? std::min<int64_t>(sequence.mode.window, sequence.kv_len) : sequence.kv_len;
  return static_cast<int32_t>(std::clamp<int64_t>((keys + kKeysOfSplit - 1) / kKeysOfSplit, 1, most));
}

AttentionMemory attention_memory(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences,
                                 bool has_moba, size_t device_bytes) {
  constexpr size_t kParts = 10;  // of an AttentionBatch, each aligned
  const size_t most = std::max<size_t>(sequences, kDecodeRowsMax), heads = static_cast<size_t>(q_heads);
  AttentionMemory out{.fixed = most * sizeof(Sequence) + kParts * Arena::kAlignment +
                               kSplitsMax * most * heads * (layout.head_dim + 2) * sizeof(float),
                      .page = sizeof(int32_t) * 5 / 4};  // its number, and what round_count() adds
  if (!has_moba) return out;
  out.fixed += std::max(rows, sequences) * heads * kChosenMax * sizeof(int32_t) +
               routed_bytes_most(layout, q_heads, rows, most, routed_bytes_of(device_bytes));
  const size_t of_block = 2 * layout.head_dim + kScoreRows * sizeof(float);  // the centroid, and scores of decode rows
  out.page += layout.kv_heads * of_block * 5 / 4 + routed_page_bytes(layout);
  return out;
}

// ---- what the layers share ----

AttentionBatch::AttentionBatch(Device& device) : device_(&device) {}
AttentionBatch::AttentionBatch(AttentionBatch&&) noexcept = default;
AttentionBatch& AttentionBatch::operator=(AttentionBatch&&) noexcept = default;
AttentionBatch::~AttentionBatch() = default;

Result<void> AttentionBatch::begin(const AttentionShape& shape, std::vector<SequenceRows> sequences) {
  MC_CHECK(check(shape));
  for (const SequenceRows& s : sequences) MC_CHECK(check(shape, s));
  shape_ = shape;
  place_sequences(std::move(sequences));
  if (shape_.routed_bytes == 0) MC_CHECK(size_waves());
  form_groups();
  if (total_ == 0) return {};
  MC_CHECK(form_clusters());
  count_workspace();
  plan_routed();
  if (shape_.is_rounded) round_up_sizes();
  at_ = place();
  MC_CHECK(reserve(at_.end));
  return copy_tables();
}

/// The bytes of a wave follow from the memory of the device, which the driver is asked for once.
Result<void> AttentionBatch::size_waves() {
  const auto is_moba = [](const Placed& s) { return s.rows.mode.kind == attn::ModeKind::moba; };
  if (wave_bytes_ == 0 && std::ranges::any_of(sequences_, is_moba)) {
    MC_TRY(memory, device_->memory());
    wave_bytes_ = routed_bytes_of(memory.total);
  }
  shape_.routed_bytes = wave_bytes_;
  return {};
}

void AttentionBatch::place_sequences(std::vector<SequenceRows> sequences) {
  sequences_.clear();
  longest_ = total_ = chosen_ = 0;
  pages_ = 1;
  for (SequenceRows& s : sequences) {
    longest_ = std::max(longest_, s.tokens);
    if (s.mode.kind == attn::ModeKind::moba) chosen_ = std::max(chosen_, s.mode.top_k - 1);
    for (const int32_t page : s.pages) pages_ = std::max(pages_, static_cast<uint64_t>(page) + 1);
    const int32_t first = std::exchange(total_, total_ + s.tokens);
    const bool dense = is_dense(s);
    if (dense) s.mode = {};
    sequences_.push_back({std::move(s), first, dense});
  }
}

/// Sorts the sequences by the kernel that they take.
void AttentionBatch::form_groups() {
  groups_.clear();
  const auto kernel_of = [&](const Placed& s) { return choose(*device_, shape_, s.rows); };
  // Decode rows are the first ones.
  std::ranges::stable_sort(sequences_, {}, [&](const Placed& s) {
    const AttentionKernel kernel = kernel_of(s);
    return std::pair(kernel != AttentionKernel::decode, kernel);
  });
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Placed& s = sequences_[i];
    const AttentionKernel kernel = kernel_of(s);
    if (groups_.empty() || groups_.back().kernel != kernel) groups_.push_back({.kernel = kernel, .first = i});
    Group& group = groups_.back();
    const bool decodes = kernel == AttentionKernel::decode || kernel == AttentionKernel::cluster;
    if (s.rows.splits == 0) s.rows.splits = decodes ? splits_of(s.rows, shape_.layout.kv_heads) : 1;
    if (group.is_routed()) s.rows.splits = 1;  // the key blocks are what CTAs share
    ++group.count;
    group.longest = std::max(group.longest, s.rows.tokens);
    group.splits = std::max(group.splits, s.rows.splits);
  }
}

/// Gives decode rows to clusters where they suit and the device runs all of them at the same time: how many it does
/// follows from its multiprocessors that work, which differ from chip to chip. The others stay with the decode kernel.
Result<void> AttentionBatch::form_clusters() {
  for (Group& group : groups_) {
    const bool is_named = group.kernel == AttentionKernel::cluster;
    if (group.longest == 0 || (!is_named && !suits_cluster(group))) continue;
    const LaunchShape shape = cluster_shape(group);
    MC_TRY(most, device_->clusters_at_once(kernel_name("attention_cluster", shape_.layout), shape));
    if (is_named && most == 0)
      return limit(std::string(device_->name()) + " has no room for a cluster of " + std::to_string(kClusterCtas) +
                   " CTAs with " + std::to_string(shape.dynamic_shared) +
                   " bytes of shared memory each; the decode kernel has the same result");
    const uint64_t wanted = uint64_t{shape.grid[0]} / kClusterCtas * shape.grid[1] * shape.grid[2];
    if (is_named || wanted <= static_cast<uint64_t>(most)) group.kernel = AttentionKernel::cluster;
  }
  return {};
}

/// Whether decode rows gain by clusters: where they save launches, have no more CTAs than there are multiprocessors,
/// and read the keys in about the time of a launch. A cluster has kClusterCtas CTAs however many keys it reads, where
/// the decode kernel has one for each split: over long sequences of few KV heads clusters leave most multiprocessors
/// idle. The bits of a row do not depend on it.
bool AttentionBatch::suits_cluster(const Group& group) const {
  if (shape_.kernel != AttentionKernel::automatic || group.kernel != AttentionKernel::decode) return false;
  if (shape_.layout.has_scales()) return false;  // clusters read bf16
  constexpr int64_t kKeysMost = kKeysOfSplit * kClusterCtas * 2;
  bool is_moba = false, is_short = true;
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const SequenceRows& s = sequences_[i].rows;
    is_moba = is_moba || s.mode.kind == attn::ModeKind::moba;
    is_short = is_short && (s.splits <= kClusterCtas || keys_read(s, heads_of_group()) <= kKeysMost);
  }
  const size_t ctas = group.count * shape_.layout.kv_heads * kClusterCtas;
  return device_->capability() == 90 && (group.splits > 1 || is_moba) && is_short &&
         ctas <= static_cast<size_t>(device_->facts().processors);
}

/// Whether decode rows have the gate by scores: CTAs share the blocks where a tile of rows would have one warp.
bool AttentionBatch::takes_scores(const Group& group) const {
  const auto first = sequences_.begin() + static_cast<std::ptrdiff_t>(group.first);
  const bool chooses = std::any_of(first, first + static_cast<std::ptrdiff_t>(group.count),
                                   [](const Placed& s) { return s.rows.mode.kind == attn::ModeKind::moba; });
  return chooses && group.longest > 0 && group.kernel == AttentionKernel::decode && group.first == gated_ &&
         static_cast<uint32_t>(group.longest) * heads_of_group() <= kScoreRows;
}

/// Splits, centroids and a selection have memory on the device unless clusters keep them.
void AttentionBatch::count_workspace() {
  splits_ = 1, split_tokens_ = 0, gated_ = 0, blocks_ = 0, scored_ = 0;
  has_gate_ = has_centroids_ = false;
  for (const Group& group : groups_) {
    if (group.kernel == AttentionKernel::cluster) {
      MC_ASSERT_EQ(group.first, gated_);
      gated_ += group.count;
      continue;
    }
    splits_ = std::max(splits_, group.splits);
    const bool by_scores = takes_scores(group);
    if (by_scores) scored_ = group.count;
    for (size_t i = group.first; i < group.first + group.count; ++i) {
      const Placed& s = sequences_[i];
      if (s.rows.splits > 1) split_tokens_ = std::max(split_tokens_, s.first + s.rows.tokens);
      blocks_ = std::max(blocks_, blocks_of(s.rows));
      const bool chooses = chosen_ > 0 && s.rows.mode.kind == attn::ModeKind::moba;
      const bool of_pages = s.rows.mode.block == static_cast<int32_t>(shape_.layout.block_tokens);
      has_gate_ = has_gate_ || chooses;
      has_centroids_ = has_centroids_ || (chooses && !(by_scores && of_pages));
    }
  }
}

void AttentionBatch::plan_routed() {
  routed_ = std::make_unique<RoutedPlan>(shape_.layout, shape_.q_heads, shape_.routed_bytes, shape_.unites);
  for (Group& group : groups_) {
    if (!group.is_routed()) continue;
    group.first_wave = routed_->waves().size();
    for (size_t i = group.first; i < group.first + group.count; ++i) routed_->add(i, sequences_[i].rows, group.kernel);
    routed_->close();
    group.waves = routed_->waves().size() - group.first_wave;
  }
}

void AttentionBatch::round_up_sizes() {
  MC_ASSERT(longest_ == 1 && groups_.size() == 1);
  Group& all = groups_.front();
  total_ = split_tokens_ = static_cast<int32_t>(sequences_.size());
  all.splits = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(all.splits)));
  if (all.kernel != AttentionKernel::cluster) splits_ = all.splits;
  blocks_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(blocks_)));
  static_assert(std::has_single_bit(static_cast<uint32_t>(kSplitsMax)));
}

AttentionBatch::Parts AttentionBatch::place() const {
  size_t pages = 0, blocks = 0, scored = 0;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pages += sequences_[i].rows.pages.size();
    if (i >= gated_) blocks += static_cast<size_t>(blocks_of(sequences_[i].rows));
    if (i < gated_ + scored_) scored = blocks;
  }
  if (shape_.is_rounded) pages = round_count(pages), blocks = round_count(blocks), scored = round_count(scored);
  const size_t dim = shape_.layout.head_dim;
  const size_t states = splits_ > 1 ? static_cast<size_t>(splits_) * rows_of(split_tokens_) : 0;
  Parts out;
  size_t at = 0;
  const auto take = [&](size_t bytes) { return std::exchange(at, at + round_up(bytes, Arena::kAlignment)); };
  out.pages = take(pages * sizeof(int32_t));
  out.sequences = take((sequences_.size() + routed_->pieces().size()) * sizeof(Sequence));
  out.routing = take(routed_->pieces().size() * sizeof(Routing));
  out.centroids = take(shape_.layout.kv_heads * blocks * dim * 2);
  out.scores = take(has_gate_ ? shape_.layout.kv_heads * scored * kScoreRows * sizeof(float) : 0);
  out.selection = take(has_gate_ ? rows_of(total_) * static_cast<size_t>(chosen_) * sizeof(int32_t) : 0);
  out.split_o = take(states * dim * sizeof(float));
  out.split_m = take(states * sizeof(float));
  out.split_d = take(states * sizeof(float));
  out.routed = take(routed_->bytes());
  out.end = at;
  return out;
}

Result<void> AttentionBatch::reserve(size_t bytes) {
  if (bytes <= memory_.bytes()) return {};
  const size_t before = memory_.bytes();
  memory_ = DeviceBuffer();  // first the old one goes: the two need not fit together
  // Half as much again as before spares the next growth, where there is room for it; but the waves of MoBA prefill are
  // large, and the memory plan counts what a pass needs.
  constexpr size_t kSpareMost = 64 * kMiB;
  for (const size_t size : {std::clamp(before + before / 2, bytes, bytes + kSpareMost), bytes}) {
    auto made = DeviceBuffer::make(*device_, size, "attention of the pass");
    if (!made && size > bytes && made.error().code == Code::no_space) continue;
    if (!made) return std::move(made).error();
    memory_ = std::move(*made);
    break;
  }
  return {};
}

/// A sequence as the kernels read it; its tables are at these places of the batch's memory.
Sequence AttentionBatch::sequence_of(const Placed& placed, size_t pages, size_t centroids) const {
  const SequenceRows& s = placed.rows;
  MC_ASSERT_LE(placed.first + s.tokens, total_);
  return {.q_begin = s.q_begin,
          .kv_len = s.kv_len,
          .first_token = placed.first,
          .tokens = s.tokens,
          .splits = s.splits,
          .pages = device_pointer<const int32_t>(memory_.address() + pages),
          .centroids = device_pointer<const uint16_t>(memory_.address() + centroids),
          .mode = s.mode};
}

/// The page tables, the sequences and pieces, as the kernels read them, in one copy.
Result<void> AttentionBatch::copy_tables() {
  const size_t pieces = routed_->pieces().size();
  std::vector<std::byte> bytes(at_.routing + pieces * sizeof(Routing));
  size_t pages = at_.pages, centroids = at_.centroids;
  std::vector<Sequence> table;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Placed& placed = sequences_[i];
    const SequenceRows& s = placed.rows;
    table.push_back(sequence_of(placed, pages, centroids));
    if (!s.pages.empty()) std::memcpy(&bytes[pages], s.pages.data(), s.pages.size() * sizeof(int32_t));
    pages += s.pages.size() * sizeof(int32_t);
    if (i < gated_) continue;
    centroids += shape_.layout.kv_heads * static_cast<size_t>(blocks_of(s)) * shape_.layout.head_dim * 2;
  }
  MC_ASSERT_LE(pages, at_.sequences);
  for (size_t i = 0; i < pieces; ++i) {
    const RoutedPlan::Piece& piece = routed_->pieces()[i];
    Sequence one = table[piece.sequence];
    one.q_begin += piece.first, one.first_token += piece.first, one.tokens = piece.tokens;
    table.push_back(one);
    const Routing routing = routed_->routing(piece, memory_.address() + at_.routed);
    std::memcpy(&bytes[at_.routing + i * sizeof routing], &routing, sizeof routing);
  }
  MC_ASSERT_LE(at_.sequences + table.size() * sizeof(Sequence), at_.routing);
  if (!table.empty()) std::memcpy(&bytes[at_.sequences], table.data(), table.size() * sizeof(Sequence));
  return device_->post(memory_.address(), bytes);
}

// ---- a layer ----

Result<void> AttentionBatch::run_gate(const AttentionArgs& args) {
  const ExtentLayout& layout = shape_.layout;
  const auto sequences = static_cast<uint32_t>(sequences_.size() - gated_);
  if (has_centroids_ && blocks_ > 0) {
    const CentroidArgs centroids{
        .pool = args.pool, .sequences = args.sequences + gated_, .head_dim = static_cast<int32_t>(layout.head_dim)};
    const auto groups = static_cast<uint32_t>((blocks_ + kCentroidBlocks - 1) / kCentroidBlocks);
    MC_CHECK(device_->launch("moba_centroids", {.grid = {groups, layout.kv_heads, sequences}}, bytes_of(centroids)));
  }
  GateArgs gate{.pool = args.pool,
                .sequences = args.sequences + gated_,
                .q_heads = shape_.q_heads,
                .chosen = args.chosen,
                .q = args.q,
                .selection = const_cast<int32_t*>(args.selection)};
  if (scored_ > 0) MC_CHECK(run_decode_gate(gate));
  gate.sequences += scored_;
  const auto others = sequences - static_cast<uint32_t>(scored_);
  if (others == 0) return {};
  const uint32_t row_tiles = (static_cast<uint32_t>(longest_) * heads_of_group() + kGateRows - 1) / kGateRows;
  const LaunchShape tiles{.grid = {row_tiles, layout.kv_heads, others}, .dynamic_shared = gate_shared(layout.head_dim)};
  return device_->launch(kernel_name("moba_gate", layout), tiles, bytes_of(gate));
}

/// The scores of decode rows, and the choice by them.
Result<void> AttentionBatch::run_decode_gate(const GateArgs& gate) {
  const ExtentLayout& layout = shape_.layout;
  const auto sequences = static_cast<uint32_t>(scored_);
  const ScoreArgs args{.gate = gate,
                       .centroids = device_pointer<const uint16_t>(memory_.address() + at_.centroids),
                       .scores = device_pointer<float>(memory_.address() + at_.scores)};
  const auto tiles = static_cast<uint32_t>((blocks_ + kScoreBlocks - 1) / kScoreBlocks);
  const LaunchShape scores{.grid = {tiles, layout.kv_heads, sequences},
                           .dynamic_shared = scores_shared(layout.head_dim)};
  if (tiles > 0) MC_CHECK(device_->launch(kernel_name("moba_scores", layout), scores, bytes_of(args)));
  const auto longest =
      std::ranges::max_element(groups_, {}, [&](const Group& g) { return takes_scores(g) ? g.longest : 0; })->longest;
  const LaunchShape rows{.grid = {static_cast<uint32_t>(longest) * heads_of_group(), layout.kv_heads, sequences},
                         .threads = kChooseThreads,
                         .dynamic_shared = kChooseShared};
  return device_->launch(kernel_name("moba_choose", layout), rows, bytes_of(args));
}

/// Keys or values of all pages: {head_dim, tokens of a page, kv_heads, pages}; a box is 64 columns of 64 tokens.
Result<EncodedMap> AttentionBatch::encode_pool(uint64_t address) const {
  const ExtentLayout& l = shape_.layout;
  return device_->encode({.base = address,
                          .dims = {l.head_dim, l.block_tokens, l.kv_heads, pages_},
                          .strides = {2, l.row_bytes(), l.head_bytes(), shape_.page_bytes},
                          .box = {64, kKeyTile, 1, 1}});
}

/// The CTAs of tiles of `rows` rows over sequences of at most `tokens` tokens.
LaunchShape AttentionBatch::tiles_of(uint32_t rows, int32_t tokens, size_t sequences) const {
  const uint32_t tiles = (static_cast<uint32_t>(tokens) * heads_of_group() + rows - 1) / rows;
  return {.grid = {tiles, shape_.layout.kv_heads, static_cast<uint32_t>(sequences)},
          .dynamic_shared = attention_shared(rows, shape_.layout.head_dim)};
}

Result<void> AttentionBatch::run_kernel(const Group& group, const AttentionArgs& args) {
  const bool hopper = group.kernel == AttentionKernel::hopper, decode = group.kernel == AttentionKernel::decode;
  LaunchShape shape = tiles_of(hopper ? 128 : decode ? 16 : 64, group.longest, group.count);
  shape.grid[0] *= static_cast<uint32_t>(args.splits);
  if (hopper) return launch_hopper("attention_hopper", shape, args);
  return device_->launch(reader_name(decode ? "attention_decode" : "attention_prefill", shape_.layout), shape,
                         bytes_of(args));
}

/// A kernel of two consuming warpgroups that share what a producer fetches.
Result<void> AttentionBatch::launch_hopper(std::string_view kernel, LaunchShape shape, const AttentionArgs& args) {
  shape.threads = kHopperThreads;
  shape.dynamic_shared = hopper_shared(shape_.layout.head_dim);
  return launch_mapped(kernel, shape, args);
}

/// A kernel that reads K and V by TMA.
Result<void> AttentionBatch::launch_mapped(std::string_view kernel, const LaunchShape& shape,
                                           const AttentionArgs& args) {
  const ExtentLayout& layout = shape_.layout;
  const auto pool = reinterpret_cast<uint64_t>(args.pool.base);
  MC_TRY(k_map, encode_pool(pool + layout.k_offset()));
  MC_TRY(v_map, encode_pool(pool + layout.v_offset()));
  const struct {
    AttentionArgs args;
    alignas(64) EncodedMap k_map;
    alignas(64) EncodedMap v_map;
  } params{args, k_map, v_map};
  return device_->launch(kernel_name(kernel, layout), shape, bytes_of(params));
}

/// Queues the choice of union tiles, the index of a wave, and the attention over its key blocks.
Result<void> AttentionBatch::run_lists(const Group& group, const RoutedWave& wave, const AttentionArgs& args) {
  const uint32_t heads = shape_.layout.kv_heads, pieces = static_cast<uint32_t>(wave.count);
  if (wave.union_tiles > 0) {
    const LaunchShape unite{.grid = {static_cast<uint32_t>(wave.union_tiles), heads, pieces},
                            .dynamic_shared = kUniteShared};
    MC_CHECK(device_->launch("moba_unite", unite, bytes_of(args)));
  }
  if (group.kernel == AttentionKernel::united) return {};
  const auto windows = static_cast<uint32_t>((wave.blocks + kIndexBlocks - 1) / kIndexBlocks);
  LaunchShape tiles{.grid = {kIndexTiles * windows, heads, pieces},
                    .threads = kIndexThreads,
                    .dynamic_shared = count_shared(wave.blocks)};
  MC_CHECK(device_->launch("moba_count", tiles, bytes_of(args)));
  const LaunchShape one{.grid = {1, heads, pieces}, .threads = kOffsetsThreads, .dynamic_shared = kOffsetsShared};
  MC_CHECK(device_->launch("moba_offsets", one, bytes_of(args)));
  tiles.dynamic_shared = lists_shared(wave.blocks);
  MC_CHECK(device_->launch("moba_lists", tiles, bytes_of(args)));
  return run_items(group, wave, args);
}

/// The attention over key blocks, in the shape of the group.
Result<void> AttentionBatch::run_items(const Group& group, const RoutedWave& wave, const AttentionArgs& args) {
  const ExtentLayout& layout = shape_.layout;
  LaunchShape items{.grid = {static_cast<uint32_t>(wave.items), layout.kv_heads, static_cast<uint32_t>(wave.count)}};
  if (group.kernel == AttentionKernel::wide) return launch_hopper("moba_wide", items, args);
  if (group.kernel == AttentionKernel::stationary) {
    items.threads = kStationaryThreads;
    items.dynamic_shared = stationary_shared(layout.head_dim, static_cast<uint32_t>(wave.block));
    return launch_mapped("moba_stationary", items, args);
  }
  if (group.kernel == AttentionKernel::transposed) {
    items.dynamic_shared = transposed_shared(layout.head_dim);
    return launch_mapped("moba_transposed", items, args);
  }
  items.dynamic_shared = routed_shared(layout.head_dim);
  return device_->launch(kernel_name("moba_routed", layout), items, bytes_of(args));
}

/// Queues the kernels of a wave of routed rows.
Result<void> AttentionBatch::run_wave(const Group& group, const RoutedWave& wave, AttentionArgs args) {
  args.sequences += sequences_.size() + wave.first;
  args.routing += wave.first;
  args.splits = 1;
  if (wave.items > 0) MC_CHECK(run_lists(group, wave, args));
  if (group.kernel != AttentionKernel::routed)
    return launch_hopper("moba_merge_hopper", tiles_of(128, wave.longest, wave.count), args);
  return device_->launch(kernel_name("moba_merge", shape_.layout), tiles_of(64, wave.longest, wave.count),
                         bytes_of(args));
}

/// A cluster for each tile of rows, KV head and sequence.
LaunchShape AttentionBatch::cluster_shape(const Group& group) const {
  const ExtentLayout& layout = shape_.layout;
  const uint32_t rows = static_cast<uint32_t>(group.longest) * heads_of_group();
  const auto splits = static_cast<uint32_t>(group.splits);
  return {.grid = {(rows + kClusterRows - 1) / kClusterRows * kClusterCtas, layout.kv_heads,
                   static_cast<uint32_t>(group.count)},
          .threads = kClusterThreads,
          .dynamic_shared = cluster_shared(layout.head_dim, shape_.is_rounded ? std::bit_ceil(splits) : splits)};
}

/// Gate, attention and merge in one launch. It writes the selection for the caller alone: in the batch's own memory
/// there is no room for it.
Result<void> AttentionBatch::run_cluster(const Group& group, const AttentionArgs& args) {
  const struct {
    AttentionArgs args;
    int32_t keeps_selection;
  } params{args, reinterpret_cast<uint64_t>(args.selection) != memory_.address() + at_.selection};
  return device_->launch(kernel_name("attention_cluster", shape_.layout), cluster_shape(group),
                         bytes_of(params).first(sizeof(AttentionArgs) + 4));
}

/// Writes -1 for the rows that take no gate because none of their sequence chooses.
Result<void> AttentionBatch::clear_selection(uint64_t selection) {
  const size_t each = rows_of(1) * static_cast<size_t>(chosen_) * sizeof(int32_t);  // of a token
  for (const Placed& s : sequences_)
    if (s.is_dense && s.rows.tokens > 0 && each > 0)
      MC_CHECK(device_->fill(selection + static_cast<size_t>(s.first) * each, 0xff,
                             static_cast<size_t>(s.rows.tokens) * each));
  return {};
}

Result<void> AttentionBatch::attend(const AttentionLayer& layer) {
  if (total_ == 0) return {};
  const ExtentLayout& layout = shape_.layout;
  const uint64_t base = memory_.address(), selection = layer.selection != 0 ? layer.selection : base + at_.selection;
  const AttentionArgs args{
      .pool = {device_pointer<const unsigned char>(layer.pool), shape_.page_bytes, layout.head_bytes(),
               static_cast<uint32_t>(layout.v_offset()), static_cast<uint32_t>(layout.ksum_offset()),
               static_cast<uint32_t>(layout.kmean_offset()), static_cast<int32_t>(layout.block_tokens),
               static_cast<int32_t>(layout.kv_heads),
               layout.has_scales() ? static_cast<uint32_t>(layout.scale_offset()) : 0},
      .sequences = device_pointer<const Sequence>(base + at_.sequences),
      .q_heads = shape_.q_heads,
      .splits = splits_,
      .split_tokens = split_tokens_,
      .scale_log2 = (shape_.scale != 0 ? shape_.scale : 1 / std::sqrt(static_cast<float>(layout.head_dim))) *
                    std::numbers::log2e_v<float>,
      .q = device_pointer<const uint16_t>(layer.q),
      .out = device_pointer<uint16_t>(layer.out),
      .selection = device_pointer<const int32_t>(selection),
      .chosen = chosen_,
      .split_o = device_pointer<float>(base + at_.split_o),
      .split_m = device_pointer<float>(base + at_.split_m),
      .split_d = device_pointer<float>(base + at_.split_d),
      .routing = device_pointer<const Routing>(base + at_.routing)};
  if (layer.selection != 0) MC_CHECK(clear_selection(layer.selection));
  if (has_gate_) MC_CHECK(run_gate(args));
  for (const Group& group : groups_)
    if (group.longest > 0) MC_CHECK(run_group(group, args));
  return {};
}

/// Queues the kernel of some of the sequences, and the merge of their splits.
Result<void> AttentionBatch::run_group(const Group& group, AttentionArgs args) {
  for (size_t i = 0; i < group.waves; ++i) MC_CHECK(run_wave(group, routed_->waves()[group.first_wave + i], args));
  if (group.is_routed()) return {};
  args.sequences += group.first;
  args.splits = group.splits;
  if (group.kernel == AttentionKernel::cluster) return run_cluster(group, args);
  MC_CHECK(run_kernel(group, args));
  if (group.splits == 1) return {};
  struct {
    AttentionArgs args;
    int32_t head_dim;
  } combine{args, static_cast<int32_t>(shape_.layout.head_dim)};
  return device_->launch(
      "attention_combine",
      {.grid = {static_cast<uint32_t>(group.longest * shape_.q_heads), static_cast<uint32_t>(group.count), 1},
       .dynamic_shared = kCombineShared},
      bytes_of(combine).first(sizeof(AttentionArgs) + 4));
}

}  // namespace mc::gpu

// The work of MoBA prefill by key blocks, counted in the emulator: each shape multiplies what its padding says, and
// rows that agree go by their union without lists.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "attn/attn.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "gpu/attention.h"
#include "gpu/emulated.h"
#include "test.h"

namespace mc::gpu {
namespace {

constexpr ExtentLayout kWorkLayout{
    .layers = 1, .kv_heads = 1, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::bf16};
constexpr int64_t kPairOfKey = 2 * 64;  // products of a row with one key: its score and its weight
constexpr int32_t kWorkGroup = 4;

/// Rows of one sequence. The queries of its first tokens are all equal, the others are drawn.
struct WorkCase {
  attn::Mode mode;
  int64_t kv_len = 0;
  int32_t tokens = 0;
  int32_t agree = 0;  // tokens
  int64_t q_begin() const { return kv_len - tokens; }
  int32_t rows() const { return tokens * kWorkGroup; }
};

struct Work {
  uint64_t multiply_adds = 0, copied = 0, stored = 0;
  std::vector<int32_t> selection;  // [rows, top_k - 1]
  std::vector<bf16_t> out;
};

/// A device with the pool and the queries of a case.
class WorkBench {
 public:
  explicit WorkBench(const WorkCase& c) : case_(c) {
    Rng rng(test::seed());
    Parallel parallel(1);
    const auto pages = static_cast<size_t>((c.kv_len + 63) / 64);
    std::vector<std::byte> host(pages * kWorkLayout.page_bytes());
    std::vector<std::byte*> at;
    for (size_t i = 0; i < pages; ++i) at.push_back(&host[i * kWorkLayout.page_bytes()]);
    std::vector<float> k(static_cast<size_t>(c.kv_len) * 64), v(k.size());
    for (size_t i = 0; i < k.size(); ++i)
      k[i] = static_cast<float>(rng.normal()), v[i] = static_cast<float>(rng.normal());
    attn::append({.layout = kWorkLayout, .target = {at.data(), 0}, .tokens = c.kv_len, .k = k.data(), .v = v.data()},
                 &parallel);
    const size_t width = 64;
    std::vector<bf16_t> queries(static_cast<size_t>(c.rows()) * width);
    for (size_t i = 0; i < queries.size(); ++i)
      queries[i] = i >= width && i < static_cast<size_t>(c.agree * kWorkGroup) * width
                       ? queries[i - width]
                       : f32_to_bf16(static_cast<float>(rng.normal()));
    pool_ = *DeviceBuffer::make(*device_, host.size(), "pool");
    q_ = *DeviceBuffer::make(*device_, queries.size() * 2, "queries");
    out_ = *DeviceBuffer::make(*device_, queries.size() * 2, "output");
    selection_ = *DeviceBuffer::make(*device_, selection_words() * 4, "selection");
    REQUIRE_OK(device_->write(pool_.address(), host));
    REQUIRE_OK(device_->write(q_.address(), std::as_bytes(std::span(queries))));
  }

  Work run(AttentionKernel kernel, bool unites, const attn::Mode& mode) {
    SequenceRows rows{
        .q_begin = case_.q_begin(), .kv_len = case_.kv_len, .tokens = case_.tokens, .mode = mode, .splits = 1};
    for (int32_t page = 0; page * 64 < case_.kv_len; ++page) rows.pages.push_back(page);
    AttentionBatch batch(*device_);
    REQUIRE_OK(batch.begin({.layout = kWorkLayout,
                            .page_bytes = kWorkLayout.page_bytes(),
                            .q_heads = kWorkGroup,
                            .kernel = kernel,
                            .unites = unites},
                           {rows}));
    Work work;
    work.selection.assign(selection_words(), -1);
    work.out.assign(static_cast<size_t>(case_.rows()) * 64, 0xffff);
    REQUIRE_OK(device_->write(selection_.address(), std::as_bytes(std::span(work.selection))));
    const emu::Counters before = driver_->gpu().counters();
    REQUIRE_OK(batch.attend({.pool = pool_.address(),
                             .q = q_.address(),
                             .out = out_.address(),
                             .selection = mode.kind == attn::ModeKind::moba ? selection_.address() : 0}));
    REQUIRE_OK(device_->finish());
    const emu::Counters& after = driver_->gpu().counters();
    work.multiply_adds = after.multiply_adds - before.multiply_adds;
    work.copied = after.async_bytes - before.async_bytes;
    work.stored = after.stored_bytes - before.stored_bytes;
    REQUIRE_OK(device_->read(selection_.address(), std::as_writable_bytes(std::span(work.selection))));
    REQUIRE_OK(device_->read(out_.address(), std::as_writable_bytes(std::span(work.out))));
    return work;
  }
  Work run(AttentionKernel kernel, bool unites) { return run(kernel, unites, case_.mode); }

 private:
  size_t selection_words() const { return static_cast<size_t>(case_.rows() * (case_.mode.top_k - 1)); }

  WorkCase case_;
  std::shared_ptr<EmulatedDriver> driver_ = std::make_shared<EmulatedDriver>();
  std::unique_ptr<Device> device_ = *Device::open(driver_, 0);
  DeviceBuffer pool_, q_, out_, selection_;
};

/// Products of the gate: a warp of 32 rows scores 16 blocks at a time, and all of them twice.
int64_t work_of_gate(const WorkCase& c) {
  int64_t out = 0;
  for (int32_t first = 0; first < c.rows(); first += 32) {
    const int64_t last = c.q_begin() + std::min(first + 31, c.rows() - 1) / kWorkGroup;
    const bool chooses = last >= attn::moba_dense_below(c.mode.block, c.mode.top_k);
    const int64_t candidates = chooses ? last / c.mode.block : 0;
    out += 2 * ((candidates + 15) / 16 * 16 * 32 * 64);
  }
  return out;
}

/// The distinct blocks that the rows of a tile of 128 chose.
std::set<int32_t> union_of(const WorkCase& c, const std::vector<int32_t>& selection, int32_t tile) {
  const int32_t chosen = c.mode.top_k - 1;
  std::set<int32_t> out;
  for (int32_t row = tile * kUnionRows; row < std::min((tile + 1) * kUnionRows, c.rows()); ++row)
    for (int32_t slot = 0; slot < chosen; ++slot) {
      const int32_t block = selection[static_cast<size_t>(row * chosen + slot)];
      if (block >= 0) out.insert(block);
    }
  return out;
}

/// Products of a tile's own keys, for all 128 rows of its CTA.
int64_t work_of_own(const WorkCase& c, int32_t tile) {
  const int64_t first = c.q_begin() + tile * kUnionRows / kWorkGroup;
  const int64_t last = c.q_begin() + (std::min((tile + 1) * kUnionRows, c.rows()) - 1) / kWorkGroup;
  const attn::OwnKeys low = attn::own_keys(c.mode, first, c.kv_len), high = attn::own_keys(c.mode, last, c.kv_len);
  return ((high.end + 63) / 64 - low.first / 64) * 64 * kUnionRows * kPairOfKey;
}

int32_t padded(AttentionKernel kernel, int32_t rows) {
  if (kernel != AttentionKernel::transposed) return (rows + 63) / 64 * 64;
  const int32_t eights = (rows + 7) / 8 * 8;
  return eights <= 32 ? eights : eights <= 48 ? 48 : 64;
}

/// The products of a shape by its definition: the gate, the own keys, and for each item of a list its padded rows.
/// `is_union`: of each tile.
int64_t define_work(const WorkCase& c, AttentionKernel kernel, const std::vector<int32_t>& selection,
                    const std::vector<bool>& is_union) {
  const int32_t chosen = c.mode.top_k - 1;
  const int32_t item_rows = kernel == AttentionKernel::stationary   ? kStationaryItemRows
                            : kernel == AttentionKernel::transposed ? kTransposedItemRows
                                                                    : kItemRows;
  int64_t out = work_of_gate(c);
  std::map<int32_t, int32_t> lists;  // rows by block
  for (size_t tile = 0; tile < is_union.size(); ++tile) {
    const auto number = static_cast<int32_t>(tile);
    out += work_of_own(c, number);
    if (is_union[tile]) {
      out += static_cast<int64_t>(union_of(c, selection, number).size()) * c.mode.block * kUnionRows * kPairOfKey;
      continue;
    }
    for (int32_t at = number * kUnionRows * chosen; at < std::min((number + 1) * kUnionRows, c.rows()) * chosen; ++at)
      if (selection[static_cast<size_t>(at)] >= 0) ++lists[selection[static_cast<size_t>(at)]];
  }
  for (const auto& [block, rows] : lists)
    for (int32_t first = 0; first < rows; first += item_rows)
      out += int64_t{padded(kernel, std::min(rows - first, item_rows))} * c.mode.block * kPairOfKey;
  return out;
}

constexpr AttentionKernel kListShapes[] = {AttentionKernel::wide, AttentionKernel::stationary,
                                           AttentionKernel::transposed};

}  // namespace

TEST_CASE("gpu/routed_work: each shape multiplies the rows of its lists, padded, with the keys of their block alone") {
  const WorkCase cases[] = {
      {.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 4}, .kv_len = 1200, .tokens = 40},   // short lists
      {.mode = {.kind = attn::ModeKind::moba, .block = 128, .top_k = 3}, .kv_len = 700, .tokens = 150},  // long ones
  };
  for (const WorkCase& c : cases) {
    WorkBench bench(c);
    const size_t tiles = static_cast<size_t>((c.rows() + kUnionRows - 1) / kUnionRows);
    for (const AttentionKernel kernel : kListShapes) {
      CAPTURE(static_cast<int>(kernel));
      const Work work = bench.run(kernel, false);
      CHECK(work.multiply_adds ==
            static_cast<uint64_t>(define_work(c, kernel, work.selection, std::vector<bool>(tiles, false))));
    }
    const Work united = bench.run(AttentionKernel::united, true);
    CHECK(united.multiply_adds == static_cast<uint64_t>(define_work(c, AttentionKernel::united, united.selection,
                                                                    std::vector<bool>(tiles, true))));
  }
}

TEST_CASE("gpu/routed_work: tiles whose rows agree go by their union, the others by lists, with the bits of lists") {
  const attn::Mode mode{.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  constexpr int32_t kTileTokens = kUnionRows / kWorkGroup;
  for (const int32_t tiles_that_agree : {0, 1, 2}) {
    CAPTURE(tiles_that_agree);
    const WorkCase c{.mode = mode, .kv_len = 2000, .tokens = 2 * kTileTokens, .agree = tiles_that_agree * kTileTokens};
    WorkBench bench(c);
    const Work lists = bench.run(AttentionKernel::wide, false);
    std::vector<bool> is_union;
    for (int32_t tile = 0; tile < 2; ++tile)
      is_union.push_back(union_of(c, lists.selection, tile).size() <= 2 + 2 * 256 / 64);
    CHECK(is_union == std::vector<bool>{tiles_that_agree > 0, tiles_that_agree > 1});
    for (const AttentionKernel kernel : kListShapes) {
      CAPTURE(static_cast<int>(kernel));
      const Work work = bench.run(kernel, true);
      CHECK(work.out == lists.out);
      CHECK(work.multiply_adds == static_cast<uint64_t>(define_work(c, kernel, work.selection, is_union)));
      if (tiles_that_agree == 0) continue;
      CHECK(work.stored < lists.stored);  // no parts of the tiles that agree
    }
  }
}

}  // namespace mc::gpu

// The gates of MoBA rows on the emulated device, over more blocks than `mc-bench gpu` has.
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "count.h"
#include "gpu/attention.h"
#include "gpu/emulated.h"
#include "test.h"

namespace mc::gpu {
namespace {

constexpr ExtentLayout kGateLayout{
    .layers = 1, .kv_heads = 2, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::bf16};
constexpr int32_t kGateHeads = 6, kGateChosen = 7;
constexpr int32_t kGateBlocks = 1100;  // a thread of moba_choose has more than four of them

/// The last `tokens` tokens of a sequence of kv_len, whose pages repeat after `pages`, so that blocks tie.
struct GateBench {
  std::shared_ptr<EmulatedDriver> driver = std::make_shared<EmulatedDriver>();
  std::unique_ptr<Device> device = *Device::open(driver, 0);
  std::vector<std::byte> host;
  std::vector<bf16_t> query;
  DeviceBuffer pool, q, out, selection;
  SequenceRows rows;

  size_t words() const { return static_cast<size_t>(rows.tokens) * kGateHeads * kGateChosen; }

  GateBench(int64_t kv_len, int32_t tokens, int32_t pages, Rng& rng, bool has_nan)
      : rows{.q_begin = kv_len - tokens,
             .kv_len = kv_len,
             .tokens = tokens,
             .mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = kGateChosen + 1}} {
    Parallel parallel(1);
    host.resize(static_cast<size_t>(pages) * kGateLayout.page_bytes());
    std::vector<std::byte*> at;
    for (int32_t i = 0; i < pages; ++i) at.push_back(&host[static_cast<size_t>(i) * kGateLayout.page_bytes()]);
    std::vector<float> k(static_cast<size_t>(pages) * 64 * 2 * 64), v(k.size(), 1.0F);
    for (float& x : k) x = static_cast<float>(rng.normal());
    attn::append({.layout = kGateLayout, .target = {at.data(), 0}, .tokens = pages * 64, .k = k.data(), .v = v.data()},
                 &parallel);
    for (int64_t i = 0; i <= kv_len / 64; ++i)
      rows.pages.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(pages))));
    for (int32_t i = 0; i < tokens * kGateHeads * 64; ++i)
      query.push_back(f32_to_bf16(static_cast<float>(rng.normal())));
    if (has_nan) query[70] = f32_to_bf16(std::nanf(""));  // of the second head
    pool = *DeviceBuffer::make(*device, host.size(), "pool");
    q = *DeviceBuffer::make(*device, query.size() * 2, "query");
    out = *DeviceBuffer::make(*device, query.size() * 2, "output");
    selection = *DeviceBuffer::make(*device, words() * 4, "selection");
    REQUIRE_OK(device->write(pool.address(), host));
    REQUIRE_OK(device->write(q.address(), std::as_bytes(std::span(query))));
  }

  std::vector<int32_t> choose(AttentionKernel kernel) {
    std::vector<int32_t> chosen(words(), -77);
    REQUIRE_OK(device->write(selection.address(), std::as_bytes(std::span(chosen))));
    AttentionBatch batch(*device);
    REQUIRE_OK(batch.begin(
        {.layout = kGateLayout, .page_bytes = kGateLayout.page_bytes(), .q_heads = kGateHeads, .kernel = kernel},
        {rows}));
    REQUIRE_OK(batch.attend(
        {.pool = pool.address(), .q = q.address(), .out = out.address(), .selection = selection.address()}));
    REQUIRE_OK(device->read(selection.address(), std::as_writable_bytes(std::span(chosen))));
    return chosen;
  }

  std::vector<int32_t> reference() const {
    Parallel parallel(1);
    auto made = attn::Attention::open(parallel, "ref");
    REQUIRE_OK(made);
    std::vector<const std::byte*> pages;
    for (const int32_t page : rows.pages) pages.push_back(&host[static_cast<size_t>(page) * kGateLayout.page_bytes()]);
    std::vector<float> floats, result(query.size());
    for (const bf16_t x : query) floats.push_back(bf16_to_f32(x));
    std::vector<int32_t> chosen(words(), -1);
    REQUIRE_OK(made->prefill({.layout = kGateLayout,
                              .mode = rows.mode,
                              .q_heads = kGateHeads,
                              .rows = rows.tokens,
                              .q_begin = rows.q_begin,
                              .q = floats.data(),
                              .kv = {pages.data(), rows.kv_len},
                              .out = result.data(),
                              .selection_out = chosen.data()}));
    return chosen;
  }
};

}  // namespace

TEST_CASE("gpu/gate: the gates choose as the reference among 1,100 blocks, also when blocks tie or scores are NaN") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  // The NaN lies in one head, so the other heads of that case have the ties alone.
  constexpr std::pair<int32_t, bool> kCases[] = {{200, false}, {40, true}, {1, false}, {40, false}};
  for (const auto& [pages, has_nan] : std::span(kCases).first(test::count(size_t{3}, std::size(kCases)))) {
    CAPTURE(pages);
    CAPTURE(has_nan);
    GateBench bench(kGateBlocks * 64 + 6, 1, pages, rng, has_nan);
    const std::vector<int32_t> right = bench.reference();
    for (const AttentionKernel kernel : {AttentionKernel::decode, AttentionKernel::cluster, AttentionKernel::prefill})
      CHECK(bench.choose(kernel) == right);
  }
}

TEST_CASE("gpu/gate: a chunk chooses as the reference, rows that choose nothing, ties and NaN beside others") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  // Rows of three heads a group, more than those of all warps of a CTA. The first chunk begins where rows choose
  // nothing yet, and crosses the ends of blocks. A long sequence has ties in either case, because pages repeat.
  constexpr std::pair<int64_t, int32_t> kCases[] = {{570, 150}, {570, 20}, {570, 1}, {12'000, 20}, {12'000, 150}};
  for (const auto& [kv_len, pages] : std::span(kCases).first(test::count(size_t{4}, std::size(kCases)))) {
    CAPTURE(kv_len);
    CAPTURE(pages);
    GateBench bench(kv_len, 100, pages, rng, pages == 20);
    CHECK(bench.choose(AttentionKernel::prefill) == bench.reference());
  }
}

TEST_CASE("gpu/gate: a decode sequence without rows beside a chunk that chooses costs no gate of its own") {
  Rng rng(test::seed());
  GateBench bench(1'000, 40, 16, rng, false);
  SequenceRows empty{.q_begin = 64, .kv_len = 64, .tokens = 0, .pages = {0}, .mode = {}};
  AttentionBatch batch(*bench.device);
  REQUIRE_OK(batch.begin(
      {.layout = kGateLayout, .page_bytes = kGateLayout.page_bytes(), .q_heads = kGateHeads}, {empty, bench.rows}));
  REQUIRE_OK(batch.attend({.pool = bench.pool.address(),
                         .q = bench.q.address(),
                         .out = bench.out.address(),
                         .selection = bench.selection.address()}));
  std::vector<int32_t> chosen(bench.words());
  REQUIRE_OK(bench.device->read(bench.selection.address(), std::as_writable_bytes(std::span(chosen))));
  CHECK(chosen == bench.reference());
}

}  // namespace mc::gpu

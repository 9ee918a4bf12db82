// Chunks of several sequences and decode rows in one pass of an emulated GPU: each has the bits that a pass of its own
// gives, whatever is beside it.
#include <algorithm>
#include <deque>

#include "base/hash.h"
#include "base/rng.h"
#include "count.h"
#include "device_pair.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_mixed_test {

using namespace mc;
using namespace mc::model;

namespace {

constexpr int64_t kBlock = 64;
constexpr double kShareMax = 0.03;  // bf16 has 8 bits, and roundings add up over the layers

/// One sequence of a mix: a chunk of its prompt, or a row whose prompt is there.
struct Part {
  bool is_row = false;
  int64_t start = 0;
  std::vector<uint32_t> tokens;  // of the chunk, or the row's one
  attn::Plan plan;
};

/// The pages and results of a part. The tokens before it are computed by the CPU, and are equal everywhere.
struct Ran {
  LocalPages pages;
  std::vector<float> logits, hidden;
  std::vector<uint32_t> layers;  // that were announced, in their order
  std::vector<uint32_t> sums;    // of the chunk's pages, by layer
  bool is_sum_wrong = false;     // one of them is not that of the bytes in the page
};

Ran before(const test::DevicePair& pair, const Part& part) {
  Ran out{.pages = pair.pages(192)};
  out.logits.resize(pair.config().vocab);
  if (!part.is_row) out.hidden.resize(pair.config().hidden);
  if (part.start == 0) return out;
  REQUIRE_OK(
      test::prefill(pair.cpu->runner, out.pages, test::some_tokens(static_cast<size_t>(part.start), 11), part.plan));
  return out;
}

PrefillChunk chunk_of(const Part& part, Ran& ran, const Runner& runner) {
  PrefillChunk chunk;
  chunk.tokens = part.tokens;
  chunk.start = part.start;
  chunk.pages = ran.pages.pages();
  chunk.plan = &part.plan;
  chunk.logits = ran.logits;
  chunk.hidden = ran.hidden;
  chunk.on_layer = [&ran, &runner, first = static_cast<size_t>(part.start / kBlock)](uint32_t layer) {
    const ExtentLayout& layout = runner.layout();
    const auto sums = runner.checksums(layer);
    ran.layers.push_back(layer);
    ran.sums.insert(ran.sums.end(), sums.begin(), sums.end());
    for (size_t i = 0; i < sums.size(); ++i)
      ran.is_sum_wrong |=
          sums[i] != crc32c(ran.pages.page(first + i).subspan(layout.layer_offset(layer), layout.layer_bytes()));
    return true;
  };
  return chunk;
}

DecodeRow row_of(const Part& part, const Ran& ran, uint64_t sequence) {
  return {part.tokens[0], part.start, ran.pages.pages(), &part.plan, nullptr, sequence};
}

/// Each part in a pass of its own.
std::deque<Ran> apart(const test::DevicePair& pair, Runner& runner, std::span<const Part> parts) {
  std::deque<Ran> out;
  for (const Part& part : parts) {
    Ran& ran = out.emplace_back(before(pair, part));
    if (part.is_row) {
      const DecodeRow row = row_of(part, ran, 0);
      REQUIRE_OK(runner.decode({&row, 1}, ran.logits));
    } else {
      REQUIRE_OK(runner.prefill(chunk_of(part, ran, runner)));
    }
  }
  return out;
}

/// A mix of parts as a pass.
struct Mix {
  std::deque<Ran> ran;
  std::deque<PrefillChunk> chunks;
  std::vector<const PrefillChunk*> chunk_list;
  std::vector<size_t> chunk_parts, row_parts;
  std::vector<DecodeRow> rows;
  std::vector<float> logits;  // of the rows
  MixedPass pass;

  Mix(const test::DevicePair& pair, const Runner& runner, std::span<const Part> parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      Ran& one = ran.emplace_back(before(pair, parts[i]));
      if (parts[i].is_row) {
        rows.push_back(row_of(parts[i], one, i + 1));
        row_parts.push_back(i);
      } else {
        chunks.push_back(chunk_of(parts[i], one, runner));
        chunk_list.push_back(&chunks.back());
        chunk_parts.push_back(i);
      }
    }
    logits.resize(rows.size() * pair.config().vocab);
    pass = {.chunks = chunk_list, .rows = rows, .logits = logits};
  }
  void run(Runner& runner) {
    const auto ends = runner.mixed(pass);
    REQUIRE_OK(ends.step);
    for (const auto& end : ends.chunks) REQUIRE_OK(end);
    const size_t vocab = runner.model().config().vocab;
    for (size_t n = 0; n < row_parts.size(); ++n)
      std::copy_n(logits.begin() + static_cast<ptrdiff_t>(n * vocab), vocab, ran[row_parts[n]].logits.begin());
    for (const DecodeRow& row : rows) runner.forget(row.sequence);
  }
};

void check_equal(const Ran& got, const Ran& want) {
  CHECK(got.logits == want.logits);
  CHECK(got.hidden == want.hidden);
  CHECK(got.layers == want.layers);
  CHECK(got.sums == want.sums);
  CHECK_FALSE(got.is_sum_wrong);
  for (size_t page = 0; page < got.pages.page_count(); ++page)
    CHECK(std::ranges::equal(got.pages.page(page), want.pages.page(page)));
}

attn::Plan some_plan(Rng& rng, const Model& model) {
  switch (rng.below(3)) {
    case 0: return test::full_plan(model);
    case 1: return test::moba_plan(model, 64, 1, 1);
    default: return test::moba_plan(model, 64, 2, 0);
  }
}

/// Parts whose edges are those of pages, tiles and kernels.
std::vector<Part> some_mix(Rng& rng, const Model& model) {
  constexpr size_t kLengths[] = {1, 1, 2, 8, 14, 17, 63, 64};
  constexpr int64_t kPositions[] = {1, 62, 63, 64, 65, 127};
  std::vector<Part> parts;
  size_t room = 126, short_room = 14;  // of a pass, beside two rows
  for (uint64_t i = 0; i < 1 + rng.below(3); ++i) {
    const size_t length = kLengths[rng.below(std::size(kLengths))];
    if (length > room || (length <= 16 && length > short_room)) continue;
    room -= length;
    if (length <= 16) short_room -= length;
    parts.push_back({.start = rng.below(2) == 0 ? 0 : kBlock,
                     .tokens = test::some_tokens(length, rng.next()),
                     .plan = some_plan(rng, model)});
  }
  for (uint64_t i = 0; i < rng.below(3) && parts.size() < 4; ++i)
    parts.insert(parts.begin() + static_cast<ptrdiff_t>(rng.below(parts.size() + 1)),
                 {.is_row = true,
                  .start = kPositions[rng.below(std::size(kPositions))],
                  .tokens = test::some_tokens(1, rng.next()),
                  .plan = some_plan(rng, model)});
  return parts;
}

}  // namespace

TEST_CASE("model/device_mixed: parts of a random mix have on emu the bits of passes of their own, under any schedule") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  test::DevicePair pair;
  for (int round = 0; round < test::count(2, 40); ++round) {
    const std::vector<Part> parts = some_mix(rng, pair.cpu->model);
    CAPTURE(round);
    pair.driver->gpu().set_options({.seed = rng.next(), .policy = gpu::emu::Policy::in_order});
    const std::deque<Ran> want = apart(pair, *pair.gpu, parts);
    pair.driver->gpu().set_options(
        {.seed = rng.next(), .policy = static_cast<gpu::emu::Policy>(rng.below(gpu::emu::kPolicies))});
    Mix mix(pair, *pair.gpu, parts);
    CHECK(pair.gpu->shares_pass(mix.chunk_list, mix.rows.size()));
    mix.run(*pair.gpu);
    CHECK_FALSE(pair.driver->gpu().broken_rule().has_value());
    for (size_t i = 0; i < parts.size(); ++i) check_equal(mix.ran[i], want[i]);
  }
}

TEST_CASE("model/device_mixed: chunks over cached pages and a row, dense and MoBA, agree with the CPU's passes") {
  test::DevicePair pair;
  const Model& model = pair.cpu->model;
  const std::vector<Part> parts = {
      {.start = 64, .tokens = test::some_tokens(1, 1), .plan = test::moba_plan(model, 64, 1, 1)},
      {.is_row = true, .start = 127, .tokens = test::some_tokens(1, 2), .plan = test::moba_plan(model, 64, 1, 1)},
      {.start = 0, .tokens = test::some_tokens(64, 3), .plan = test::full_plan(model)}};
  const std::deque<Ran> want = apart(pair, pair.cpu->runner, parts);
  Mix on_cpu(pair, pair.cpu->runner, parts), on_gpu(pair, *pair.gpu, parts);
  CHECK_FALSE(pair.cpu->runner.shares_pass(on_cpu.chunk_list, 1));  // it computes one after another
  on_cpu.run(pair.cpu->runner);
  const uint64_t before = pair.driver->gpu().operations();
  on_gpu.run(*pair.gpu);
  const uint64_t together = pair.driver->gpu().operations() - before;
  for (size_t i = 0; i < parts.size(); ++i) {
    check_equal(on_cpu.ran[i], want[i]);
    CHECK(test::share(on_gpu.ran[i].logits, want[i].logits) < kShareMax);
    const auto best = [](const std::vector<float>& logits) {
      return std::max_element(logits.begin(), logits.end()) - logits.begin();
    };
    CHECK(best(on_gpu.ran[i].logits) == best(want[i].logits));
  }
  const uint64_t alone = pair.driver->gpu().operations();
  (void)apart(pair, *pair.gpu, parts);
  CHECK(together < (pair.driver->gpu().operations() - alone) * 2 / 3);  // the kernels of a layer are launched once
}

TEST_CASE("model/device_mixed: a chunk that is wrong and one that stops leave the rest of a pass as it is") {
  test::DevicePair pair;
  const attn::Plan plan = test::full_plan(pair.cpu->model);
  std::vector<Part> parts = {{.tokens = test::some_tokens(20, 1), .plan = plan},
                             {.is_row = true, .start = 3, .tokens = test::some_tokens(1, 2), .plan = plan},
                             {.tokens = test::some_tokens(3, 3), .plan = plan},
                             {.tokens = test::some_tokens(2, 4), .plan = plan}};
  const std::deque<Ran> want = apart(pair, *pair.gpu, parts);
  parts[2].tokens[1] = 1'000'000;
  Mix mix(pair, *pair.gpu, parts);
  std::vector<uint32_t> stopped_at;
  mix.chunks[2].on_layer = [&](uint32_t layer) {
    stopped_at.push_back(layer);
    return layer < 1;
  };
  const auto ends = pair.gpu->mixed(mix.pass);
  REQUIRE_OK(ends.step);
  REQUIRE_OK(ends.chunks[0]);
  CHECK(ends.chunks[1].error().what.find("outside the vocabulary") != std::string::npos);
  CHECK(ends.chunks[2].error().code == Code::cancelled);
  CHECK(stopped_at == std::vector<uint32_t>{0, 1});
  check_equal(mix.ran[0], want[0]);
  CHECK(mix.logits == want[1].logits);
}

TEST_CASE("model/device_mixed: a row beside a chunk draws what a step draws, and steps go on behind the pass") {
  const auto run = [](bool is_mixed, gpu::emu::Policy policy) {
    test::DevicePair pair;
    pair.driver->gpu().set_options({.seed = test::seed(), .policy = policy});
    const attn::Plan plan = test::moba_plan(pair.cpu->model, 64, 1, 1);
    const Part chunk{.tokens = test::some_tokens(17, 1), .plan = plan};
    Ran ran = before(pair, chunk);
    LocalPages pages = pair.pages(128);
    std::vector<uint32_t> ids = test::some_tokens(62, 5);
    REQUIRE_OK(test::prefill(pair.cpu->runner, pages, std::span(ids).first(61), plan));
    const wire::Sampling how{.temperature = 0.9, .frequency_penalty = 0.8, .seed = 3};
    for (int step = 0; step < 4; ++step) {  // the page is full behind the second row
      const auto position = static_cast<int64_t>(ids.size()) - 1;
      const DecodeRow row{ids.back(), position, pages.pages(), &plan, nullptr, 9};
      const DrawRow draw{&how, ids.size(), ids, 62};
      ops::Sampled drawn;
      if (is_mixed && (step == 1 || step == 2)) {
        const PrefillChunk beside = chunk_of(chunk, ran, *pair.gpu);
        const PrefillChunk* const list[] = {&beside};
        const auto ends = pair.gpu->mixed({list, {&row, 1}, {&draw, 1}, {&drawn, 1}, {}});
        REQUIRE_OK(ends.step);
        REQUIRE_OK(ends.chunks[0]);
      } else {
        REQUIRE_OK(pair.gpu->decode_and_draw({&row, 1}, {&draw, 1}, {&drawn, 1}));
      }
      if (position == 63)
        CHECK(pair.gpu->checksums(1)[0] ==
              crc32c(pages.page(0).subspan(pair.gpu->layout().layer_offset(1), pair.gpu->layout().layer_bytes())));
      ids.push_back(drawn.token);
    }
    std::vector<std::byte> bytes(pages.page(0).begin(), pages.page(0).end());
    bytes.insert(bytes.end(), pages.page(1).begin(), pages.page(1).end());
    return std::pair(ids, bytes);
  };
  const auto want = run(false, gpu::emu::Policy::in_order);
  CHECK(run(true, gpu::emu::Policy::sticky) == want);
}

TEST_CASE("model/device_mixed: a GPU that dies in a mixed pass fails every part with the reason") {
  const uint64_t loading = test::DevicePair().driver->gpu().operations();
  test::DevicePair pair({.fault = gpu::Status::ecc_uncorrectable, .fault_after = loading + 30});
  const attn::Plan plan = test::full_plan(pair.cpu->model);
  const std::vector<Part> parts = {{.tokens = test::some_tokens(2, 1), .plan = plan},
                                   {.is_row = true, .start = 1, .tokens = test::some_tokens(1, 2), .plan = plan}};
  Mix mix(pair, *pair.gpu, parts);
  const auto ends = pair.gpu->mixed(mix.pass);
  REQUIRE_FALSE(ends.step.has_value());
  CHECK(ends.step.error().what.find("uncorrectable ECC error") != std::string::npos);
  REQUIRE_FALSE(ends.chunks[0].has_value());
  CHECK(ends.chunks[0].error().what == ends.step.error().what);
}

}  // namespace device_mixed_test
#endif

// The GPU's forward pass on the emulated device beside the CPU's: logits, KV pages, chunks, decode steps, and what the
// device refuses.

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"
#include "base/rng.h"
#include "count.h"
#include "device_pair.h"
#include "gpu/routed.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
using namespace mc;
using namespace mc::model;

namespace {

using Pair = test::DevicePair;
using test::prefill;
using test::share;
using test::some_tokens;

/// Orders of streams that a test of several steps runs under; in the quick tier the one in which the host runs ahead.
std::span<const gpu::emu::Policy> policies() {
  static constexpr gpu::emu::Policy kAll[] = {gpu::emu::Policy::sticky, gpu::emu::Policy::random,
                                              gpu::emu::Policy::in_order};
  return std::span(kAll).first(test::count(size_t{1}, std::size(kAll)));
}

constexpr double kShareMax = 0.03;  // bf16 has 8 bits, and roundings add up over the layers

}  // namespace

TEST_CASE("model/device: prefill, a chunk over pages of the CPU and decode steps on emu agree with the CPU's logits") {
  Pair pair;
  const auto tokens = some_tokens(70);
  const attn::Plan plan = test::moba_plan(pair.cpu->model, 64, 1, 1);  // the own block alone: the gate runs at 64
  LocalPages cpu_pages = pair.pages(80), gpu_pages = pair.pages(80);

  // The first chunk by the CPU into both: the second starts over pages that the device has not seen.
  for (LocalPages* pages : {&cpu_pages, &gpu_pages})
    REQUIRE_OK(prefill(pair.cpu->runner, *pages, std::span(tokens).first(64), plan));
  auto cpu = prefill(pair.cpu->runner, cpu_pages, std::span(tokens).subspan(64), plan, 64);
  auto gpu = prefill(*pair.gpu, gpu_pages, std::span(tokens).subspan(64), plan, 64);
  REQUIRE_OK(cpu);
  REQUIRE_OK(gpu);
  CHECK(share(*gpu, *cpu) < kShareMax);

  std::vector<float> cpu_logits(pair.config().vocab), gpu_logits(pair.config().vocab);
  for (int64_t position = 70; position < 72; ++position) {
    const DecodeRow on_cpu{100, position, cpu_pages.pages(), &plan, nullptr};
    const DecodeRow on_gpu{100, position, gpu_pages.pages(), &plan, nullptr};
    REQUIRE_OK(pair.cpu->runner.decode({&on_cpu, 1}, cpu_logits));
    REQUIRE_OK(pair.gpu->decode({&on_gpu, 1}, gpu_logits));
    CHECK(share(gpu_logits, cpu_logits) < kShareMax);
  }
}

TEST_CASE("model/device: rows that share a page copy it once, and get the logits that copies of their own give") {
  Pair pair;
  const auto tokens = some_tokens(64);
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  LocalPages first = pair.pages(128), second = pair.pages(128);
  REQUIRE_OK(prefill(pair.cpu->runner, first, tokens, plan));
  std::copy(first.page(0).begin(), first.page(0).end(), second.page(0).begin());
  std::byte* const own[] = {second.page(0).data(), second.page(1).data()};
  std::byte* const shared[] = {first.page(0).data(), second.page(1).data()};
  const auto step = [&](std::byte* const* pages, std::vector<float>& logits) {
    const DecodeRow rows[] = {{100, 64, first.pages(), &plan, nullptr}, {200, 64, pages, &plan, nullptr}};
    logits.resize(2 * pair.config().vocab);
    const uint64_t before = pair.driver->gpu().operations();
    REQUIRE_OK(pair.gpu->decode(rows, logits));
    return pair.driver->gpu().operations() - before;
  };
  std::vector<float> apart, together;
  const uint64_t copies = step(own, apart);
  CHECK(step(shared, together) == copies - pair.config().layers);
  CHECK(together == apart);
}

TEST_CASE("model/device: a chunk over a loaded prefix gives equal bits under every schedule of copies and kernels") {
  Pair pair;
  const auto tokens = some_tokens(67);
  const attn::Plan plan = test::moba_plan(pair.cpu->model, 64, 1, 1);
  LocalPages pages = pair.pages(128);
  REQUIRE_OK(prefill(pair.cpu->runner, pages, std::span(tokens).first(64), plan));
  std::vector<std::byte> expected;
  std::vector<float> first_logits;
  for (const auto policy : {gpu::emu::Policy::in_order, gpu::emu::Policy::random, gpu::emu::Policy::sticky}) {
    pair.driver->gpu().set_options({.seed = test::seed(), .policy = policy});
    std::ranges::fill(pages.page(1), std::byte{0});
    const auto logits = prefill(*pair.gpu, pages, std::span(tokens).subspan(64), plan, 64);
    REQUIRE_OK(logits);
    if (expected.empty()) {
      expected.assign(pages.page(1).begin(), pages.page(1).end());
      first_logits = *logits;
    }
    CHECK(std::ranges::equal(pages.page(1), expected));
    CHECK(*logits == first_logits);
  }
}

TEST_CASE("model/device: a layer is announced when its bytes are in the pages, and a chunk that stops is done again") {
  Pair pair;
  pair.driver->gpu().set_options({.seed = test::seed(), .policy = gpu::emu::Policy::sticky});
  const auto tokens = some_tokens(5);
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  LocalPages pages = pair.pages(64);
  const ExtentLayout layout = pair.cpu->runner.layout();
  std::vector<uint32_t> layers;
  uint32_t stop_at = 1;
  PrefillChunk chunk;
  chunk.tokens = tokens;
  chunk.pages = pages.pages();
  chunk.plan = &plan;
  chunk.on_layer = [&](uint32_t layer) {
    layers.push_back(layer);
    const auto sums = pair.gpu->checksums(layer);
    const auto extent = pages.page(0).subspan(layout.layer_offset(layer), layout.layer_bytes());
    CHECK(sums[0] == crc32c(extent));
    return layer != stop_at;
  };
  const auto stopped = pair.gpu->prefill(chunk);
  REQUIRE_FALSE(stopped.has_value());
  CHECK(stopped.error().code == Code::cancelled);
  CHECK(layers == std::vector<uint32_t>{0, 1});
  stop_at = UINT32_MAX;
  layers.clear();
  REQUIRE_OK(pair.gpu->prefill(chunk));
  CHECK(layers.size() == pair.config().layers);
}

TEST_CASE("model/device: a model without weights has random ones on a device, and no CPU runs it") {
  model::ModelConfig config;
  config.hidden = 128, config.intermediate = 192, config.layers = 2;
  config.heads = 2, config.kv_heads = 1, config.head_dim = 64;
  config.vocab = 1100, config.max_positions = 256;
  for (const bool is_tied : {false, true}) {
    config.tied_embeddings = is_tied;
    const model::Model model = model::Model::without_weights(config);
    CHECK_FALSE(model.has_weights());
    // q, k, v and output; gate, up and down; two norms; then embeddings, the head and the last norm.
    const uint64_t layer = 128 * (128 + 64 + 64 + 128) + 3 * 128 * 192 + 2 * 128;
    CHECK(model.parameters() == 2 * layer + (is_tied ? 1 : 2) * 1100 * 128 + 128);
    CHECK(model.weight_bytes() == 2 * model.parameters());
    Parallel parallel(1);
    const auto on_cpu = model::Runner::open(model, parallel, {});
    REQUIRE_FALSE(on_cpu.has_value());
    CHECK(on_cpu.error().code == Code::unsupported);
    auto device = gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(), 0);
    REQUIRE_OK(device);
    auto runner = model::Runner::open(model, parallel, {.max_chunk_tokens = 64, .max_batch = 4}, device->get());
    REQUIRE_OK(runner);
    auto pages = model::LocalPages::allocate(runner->layout(), 64);
    REQUIRE_OK(pages);
    attn::Plan plan;
    plan.layers = 2;
    const auto logits = test::prefill(*runner, *pages, test::some_tokens(40), plan);
    REQUIRE_OK(logits);
    const auto [low, high] = std::minmax_element(logits->begin(), logits->end());
    CHECK(std::isfinite(*low));
    CHECK(std::isfinite(*high));
    CHECK(*high - *low > 0.1f);  // rows of the head differ
  }
}

TEST_CASE("model/device: the planned weights and workspace are what the device lends") {
  Pair pair;
  const auto memory = pair.device->memory();
  REQUIRE_OK(memory);
  auto plan = plan_model(test::shallow_model(), {.dtype = "bf16"});
  REQUIRE_OK(plan);
  const size_t workspace = Runner::device_workspace_bytes(pair.config(), pair.gpu->options());
  const auto lent = static_cast<double>(memory->total - memory->free);
  CHECK(lent > 0.9 * static_cast<double>(plan->weight_bytes + workspace));
  CHECK(lent < 1.1 * static_cast<double>(plan->weight_bytes + workspace));
}

TEST_CASE("model/device: memory for MoBA by key blocks is planned for the batches of MoBA plans alone") {
  Pair pair;
  ModelConfig config = pair.config();
  config.heads = 32;
  const auto layers = static_cast<int32_t>(config.layers);
  const RunnerOptions options{.max_chunk_tokens = 4096, .max_batch = 4};
  const ExtentLayout layout = pair.gpu->layout();
  size_t device_bytes = gpu::kLargeDevice - 1;
  const auto scratch = [&](const std::vector<attn::Plan>& plans) {
    return Runner::device_scratch(config, layout, options, plans, device_bytes);
  };
  constexpr size_t kRouted = gpu::kRoutedBytes;
  const attn::Mode moba{.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  const attn::Plan full{{}, 0, layers}, most{moba, 1, layers}, all{moba, 0, layers}, none{moba, layers, layers};
  const attn::Plan slides{{.kind = attn::ModeKind::window, .window = 64}, 1, layers};
  const auto without = scratch({full}), one = scratch({most}), two = scratch({most, {moba, 2, layers}});
  // A chunk of so many tokens fills the workspace of a wave.
  CHECK(one.fixed >= without.fixed + kRouted);
  CHECK(one.fixed < without.fixed + 2 * kRouted);
  CHECK(two.fixed >= without.fixed + 2 * kRouted);
  CHECK(two.fixed < without.fixed + 3 * kRouted);
  CHECK(scratch({all}).fixed == one.fixed);
  CHECK(scratch({full, most}).fixed == one.fixed);
  CHECK(scratch({none}).fixed == without.fixed);
  CHECK(scratch({slides}).fixed == without.fixed);
  // On a large device the largest wave has all tokens of a chunk, with 16 chosen blocks.
  device_bytes = gpu::kLargeDevice;
  CHECK(scratch({full}).fixed == without.fixed);
  CHECK(scratch({most}).fixed > one.fixed + kRouted);
  CHECK(scratch({most}).fixed < without.fixed + gpu::kRoutedBytesLarge + kRouted);
  CHECK(without.page < 32);
  CHECK(one.page > 2 * size_t{layout.kv_heads} * layout.head_dim);
}

TEST_CASE("model/device: a page that emu fills is sealed by the definition of lib/attn, bit for bit") {
  Pair pair;
  const auto tokens = some_tokens(40);
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  LocalPages pages = pair.pages(64);
  REQUIRE_OK(prefill(*pair.gpu, pages, tokens, plan));
  const ExtentLayout layout = pair.cpu->runner.layout();
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    std::vector<std::byte> extent(pages.page(0).begin() + static_cast<ptrdiff_t>(layout.layer_offset(layer)),
                                  pages.page(0).begin() + static_cast<ptrdiff_t>(layout.layer_offset(layer + 1)));
    const std::vector<std::byte> stored = extent;
    attn::seal(layout, extent.data(), 40);
    CHECK(extent == stored);
  }
}

TEST_CASE(
    "model/device: checksums of emu are those of the bytes in the pages, of chunks and of pages that a step fills") {
  Pair pair;
  const auto tokens = some_tokens(70);
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  LocalPages pages = pair.pages(128), other = pair.pages(128);
  const ExtentLayout layout = pair.cpu->runner.layout();
  const auto sum = [&](const LocalPages& of, size_t page, uint32_t layer) {
    return crc32c(of.page(page).subspan(layout.layer_offset(layer), layout.layer_bytes()));
  };
  REQUIRE_OK(prefill(*pair.gpu, pages, tokens, plan));
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    const auto made = pair.gpu->checksums(layer);
    REQUIRE(made.size() == 2);  // a whole page and a tail
    CHECK(made[0] == sum(pages, 0, layer));
    CHECK(made[1] == sum(pages, 1, layer));
  }
  REQUIRE_OK(prefill(pair.cpu->runner, other, std::span(tokens).first(63), plan));
  CHECK(pair.cpu->runner.checksums(0).empty());
  // The first row leaves its page unfinished, the second fills its page.
  std::vector<float> logits(2 * pair.config().vocab);
  const DecodeRow rows[] = {{100, 70, pages.pages(), &plan, nullptr}, {100, 63, other.pages(), &plan, nullptr}};
  REQUIRE_OK(pair.gpu->decode(rows, logits));
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    REQUIRE(pair.gpu->checksums(layer).size() == 2);
    CHECK(pair.gpu->checksums(layer)[1] == sum(other, 0, layer));
  }
  REQUIRE_OK(pair.gpu->decode(std::span(rows).first(1), std::span(logits).first(pair.config().vocab)));
  CHECK(pair.gpu->checksums(0).empty());  // no page is full
}

TEST_CASE("model/device: a sequence that stays on the device gets the logits of one that is copied for every step") {
  Pair pair;
  const auto tokens = some_tokens(63);
  const attn::Plan plan = test::moba_plan(pair.cpu->model, 64, 1, 1);
  LocalPages kept = pair.pages(192), copied = pair.pages(192);
  for (LocalPages* pages : {&kept, &copied}) REQUIRE_OK(prefill(pair.cpu->runner, *pages, tokens, plan));
  std::vector<float> with(pair.config().vocab), without(pair.config().vocab);
  for (int64_t position = 63; position < test::count(67, 68); ++position) {  // over the end of a page
    const DecodeRow stays{100, position, kept.pages(), &plan, nullptr, 5};
    const DecodeRow moves{100, position, copied.pages(), &plan, nullptr};
    uint64_t before = pair.driver->gpu().operations();
    REQUIRE_OK(pair.gpu->decode({&stays, 1}, with));
    const uint64_t stayed = pair.driver->gpu().operations() - before;
    before = pair.driver->gpu().operations();
    REQUIRE_OK(pair.gpu->decode({&moves, 1}, without));
    CHECK(with == without);
    if (position >= 66)  // two pages are not copied in, layer by layer
      CHECK(stayed + 2 * pair.config().layers == pair.driver->gpu().operations() - before);
  }
  for (size_t page = 0; page < 2; ++page) CHECK(std::ranges::equal(kept.page(page), copied.page(page)));
  pair.gpu->forget(5);
  std::ranges::fill(kept.page(0), std::byte{0});
  std::ranges::copy(copied.page(0), kept.page(1).begin());  // the host reuses the pages
  std::byte* const reused[] = {kept.page(1).data(), kept.page(2).data()};
  std::byte* const plain[] = {copied.page(0).data(), copied.page(2).data()};
  const DecodeRow again{100, 64, reused, &plan, nullptr, 5}, other{100, 64, plain, &plan, nullptr};
  REQUIRE_OK(pair.gpu->decode({&again, 1}, with));
  REQUIRE_OK(pair.gpu->decode({&other, 1}, without));
  CHECK(with == without);
}

TEST_CASE("model/device: a step draws on emu what the sampler draws from the logits that emu gives") {
  Pair pair;
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  std::vector<LocalPages> pages;
  std::vector<DecodeRow> rows;
  for (uint32_t i = 0; i < 3; ++i) pages.push_back(pair.pages(64));
  for (uint32_t i = 0; i < 3; ++i) rows.push_back({40 + 300 * i, 0, pages[i].pages(), &plan});
  const wire::Sampling how[] = {{.temperature = 0}, {.top_p = 0.9, .seed = 4, .logprobs = 2}, {.top_k = 5, .seed = 5}};
  const DrawRow draws[] = {{&how[0], 1}, {&how[1], 1}, {&how[2], 1}};
  CHECK(pair.gpu->draws(draws[1]));
  CHECK_FALSE(pair.cpu->runner.draws(draws[0]));
  const size_t vocab = pair.config().vocab;
  std::vector<float> logits(rows.size() * vocab);
  REQUIRE_OK(pair.gpu->decode(rows, logits));
  std::vector<ops::Sampled> drawn(rows.size());
  REQUIRE_OK(pair.gpu->decode_and_draw(rows, draws, drawn));
  ops::Sampler sampler(pair.gpu->kernels());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto want = sampler.sample(std::span(logits).subspan(i * vocab, vocab), how[i], 1);
    REQUIRE_OK(want);
    CHECK(drawn[i].token == want->token);
    CHECK(drawn[i].top.size() == want->top.size());
  }
}

namespace {

/// Sequences that decode on one device, each with pages and a history of its own.
struct Answers {
  static constexpr size_t kSequences = 3;
  static constexpr uint32_t kUnseen = 0xffffffff;
  Pair& pair;
  attn::Plan plan;
  wire::Sampling how[kSequences];
  std::vector<LocalPages> pages;
  std::vector<std::vector<uint32_t>> ids;        // the prompt and the answer
  std::vector<size_t> prompts = {62, 3, 40};     // the first one's answer crosses the end of a page
  std::vector<std::vector<ops::Sampled>> drawn;  // by step
  std::vector<std::vector<uint32_t>> full_page_sums;
  int32_t queued_row[kSequences] = {-1, -1, -1};  // of the step that is queued

  explicit Answers(Pair& on) : pair(on), plan(test::moba_plan(on.cpu->model, 64, 1, 1)) {
    how[0] = {.temperature = 0, .logprobs = 2};
    how[1] = {.temperature = 0.9, .top_p = 0.95, .frequency_penalty = 0.8, .repetition_penalty = 1.3, .seed = 3};
    how[2] = {.temperature = 1.1, .top_k = 30, .min_p = 0.01, .presence_penalty = 1, .seed = 4};
    for (size_t i = 0; i < kSequences; ++i) {
      pages.push_back(pair.pages(128));
      ids.push_back(some_tokens(prompts[i]));
      for (uint32_t& token : ids[i]) token += static_cast<uint32_t>(i);
      REQUIRE_OK(prefill(pair.cpu->runner, pages[i], std::span(ids[i]).first(prompts[i] - 1), plan));
    }
  }
  /// The last row of a sequence is the token that it ends with. `step` counts from 0; the third sequence joins at
  /// step 1.
  void queue(int step) {
    std::vector<DecodeRow> rows;
    std::vector<DrawRow> draws;
    std::vector<size_t> order = {1, 0};
    if (step >= 1) order = {2, 0, 1};
    int32_t next[kSequences] = {-1, -1, -1};
    for (const size_t i : order) {
      next[i] = static_cast<int32_t>(rows.size());
      const int32_t fed = queued_row[i];
      if (fed >= 0) ids[i].push_back(kUnseen);
      const auto position = static_cast<int64_t>(ids[i].size()) - 1;
      rows.push_back({ids[i].back(), position, pages[i].pages(), &plan, nullptr, i + 1, fed});
      draws.push_back({&how[i], ids[i].size(), ids[i], prompts[i], {}, fed});
    }
    REQUIRE_OK(pair.gpu->queue_step(rows, draws));
    std::copy(std::begin(next), std::end(next), queued_row);
    orders.push_back(order);
  }
  /// Ends the step that was queued first. `behind`: another one is queued, whose rows have taken the tokens.
  void collect(bool behind) {
    const std::vector<size_t> order = orders.front();
    orders.erase(orders.begin());
    std::vector<ops::Sampled> out(order.size());
    REQUIRE_OK(pair.gpu->collect_step(out));
    for (size_t row = 0; row < order.size(); ++row) {
      std::vector<uint32_t>& of = ids[order[row]];
      if (behind)
        of.back() = out[row].token;
      else
        of.push_back(out[row].token), queued_row[order[row]] = -1;
    }
    const auto sums = pair.gpu->checksums(0);
    full_page_sums.emplace_back(sums.begin(), sums.end());
    drawn.push_back(std::move(out));
  }
  void run(int steps, bool ahead) {
    for (int step = 0; step < steps; ++step) {
      queue(step);
      if (!ahead) collect(false);
      if (ahead && step > 0) collect(true);
    }
    if (ahead) collect(false);
    for (uint64_t i = 1; i <= kSequences; ++i) pair.gpu->forget(i);
  }
  std::vector<std::vector<size_t>> orders;  // sequences by row, of the steps that are queued
};

}  // namespace

TEST_CASE("model/device: steps that are queued ahead draw and store what steps one by one do, under every schedule") {
  constexpr int kSteps = 4;  // the third one fills a page
  Pair pair({}, false);
  Answers one_by_one(pair);
  one_by_one.run(kSteps, false);
  CHECK(std::ranges::any_of(one_by_one.full_page_sums, [](const auto& sums) { return !sums.empty(); }));
  for (const auto policy : policies()) {
    Pair other;
    other.driver->gpu().set_options({.seed = test::seed(), .policy = policy});
    Answers ahead(other);
    ahead.run(kSteps, true);
    CHECK_FALSE(other.driver->gpu().broken_rule().has_value());
    CHECK(ahead.ids == one_by_one.ids);
    CHECK(ahead.full_page_sums == one_by_one.full_page_sums);
    REQUIRE(ahead.drawn.size() == one_by_one.drawn.size());
    for (size_t step = 0; step < ahead.drawn.size(); ++step)
      for (size_t row = 0; row < ahead.drawn[step].size(); ++row) {
        const ops::Sampled &got = ahead.drawn[step][row], &want = one_by_one.drawn[step][row];
        CHECK((got.token == want.token && got.logprob == want.logprob && got.top == want.top));
      }
    for (size_t i = 0; i < Answers::kSequences; ++i)
      for (size_t page = 0; page < 2; ++page)
        CHECK(std::ranges::equal(ahead.pages[i].page(page), one_by_one.pages[i].page(page)));
  }
}

TEST_CASE("model/device: steps of one shape are replayed as graphs, and give the tokens and pages of single kernels") {
  const int steps = test::count(5, 7);
  struct Run {
    std::vector<uint32_t> tokens;
    std::vector<std::byte> page;
    uint64_t replayed = 0, refused = 0;
  };
  const auto run = [steps](bool graphs, gpu::emu::Policy policy, size_t graphs_max = SIZE_MAX) {
    Pair pair({.graphs_max = graphs_max}, graphs);
    pair.driver->gpu().set_options({.seed = test::seed(), .policy = policy});
    const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
    LocalPages pages = pair.pages(64);
    const wire::Sampling how{.temperature = 0.8, .frequency_penalty = 1, .seed = 5};
    std::vector<uint32_t> history = {100};
    for (int step = 0; step <= steps; ++step) {
      const auto position = static_cast<uint64_t>(step);
      const int32_t fed = step > 0 ? 0 : -1;
      if (step < steps) {
        if (step > 0) history.push_back(0xffffffff);
        const DecodeRow row{100, step, pages.pages(), &plan, nullptr, 1, fed};
        const DrawRow draw{&how, position + 1, history, 1, {}, fed};
        REQUIRE_OK(pair.gpu->queue_step({&row, 1}, {&draw, 1}));
      }
      if (step == 0) continue;
      ops::Sampled drawn;
      REQUIRE_OK(pair.gpu->collect_step({&drawn, 1}));
      if (step < steps)
        history.back() = drawn.token;
      else
        history.push_back(drawn.token);
    }
    CHECK_FALSE(pair.driver->gpu().broken_rule().has_value());
    return Run{
        history, {pages.page(0).begin(), pages.page(0).end()}, pair.gpu->replayed_steps(), pair.gpu->refused_graphs()};
  };
  const Run single = run(false, gpu::emu::Policy::in_order);
  CHECK(single.tokens.size() == static_cast<size_t>(steps + 1));
  CHECK(single.replayed == 0);
  const Run refused = run(true, gpu::emu::Policy::in_order, 0);
  CHECK(refused.tokens == single.tokens);
  CHECK(refused.replayed == 0);
  CHECK(refused.refused == 1);
  for (const auto policy : policies()) {
    const Run graphs = run(true, policy);
    CHECK(graphs.tokens == single.tokens);
    CHECK(graphs.page == single.page);
    // Each of the two places of results has a graph of its own, made when it comes again.
    CHECK(graphs.replayed >= static_cast<uint64_t>(steps - 4));
  }
}

TEST_CASE("model/device: a step that cannot be queued leaves the one before it to be collected") {
  Pair pair;
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  const attn::Plan beyond = test::moba_plan(pair.cpu->model, 64, 32, 1);  // more blocks than the kernels choose
  std::vector<LocalPages> pages;
  for (int i = 0; i < 2; ++i) pages.push_back(pair.pages(64));
  const wire::Sampling greedy{.temperature = 0};
  const auto draw_at = [&](uint64_t position) { return DrawRow{&greedy, position, {}, 0, {}}; };
  const DecodeRow first{100, 0, pages[0].pages(), &plan, nullptr, 1};
  const DecodeRow fed{0, 1, pages[0].pages(), &plan, nullptr, 1, 0},
      wrong{100, 0, pages[1].pages(), &beyond, nullptr, 2};
  std::vector<DrawRow> draws = {draw_at(1)};
  ops::Sampled alone, collected;
  REQUIRE_OK(pair.gpu->decode_and_draw({&first, 1}, draws, {&alone, 1}));
  const std::vector<std::byte> stored(pages[0].page(0).begin(), pages[0].page(0).end());
  pair.gpu->forget(1);
  std::ranges::fill(pages[0].page(0), std::byte{0});

  REQUIRE_OK(pair.gpu->queue_step({&first, 1}, draws));
  const DecodeRow both[] = {fed, wrong};
  draws = {draw_at(2), draw_at(1)};
  draws[0].fed = 0;
  const auto refused = pair.gpu->queue_step(both, draws);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::invalid);
  REQUIRE_OK(pair.gpu->collect_step({&collected, 1}));
  CHECK(collected.token == alone.token);
  CHECK(std::ranges::equal(pages[0].page(0), stored));
  draws = {draw_at(1)};
  REQUIRE_OK(pair.gpu->decode_and_draw({&first, 1}, draws, {&collected, 1}));  // the device serves on
  CHECK(collected.token == alone.token);
}

TEST_CASE("model/device: a token of an answer costs as many operations behind a long prompt as behind a short one") {
  Pair pair;
  const attn::Plan plan{{}, 0, static_cast<int32_t>(pair.config().layers)};
  const auto operations = [&](size_t prompt, int32_t tokens) {
    GenerateRequest request{.prompt = some_tokens(prompt), .max_tokens = tokens};
    request.sampling.temperature = 0;
    request.prefill_plan = request.decode_plan = plan;
    LocalPages pages = pair.pages(80);
    Generated out;
    REQUIRE_OK(run_prefill(pair.cpu->runner, pages, request, SystemClock::instance(), out));
    const uint64_t before = pair.driver->gpu().operations();
    REQUIRE_OK(run_decode(*pair.gpu, pages, request, SystemClock::instance(), out));
    return pair.driver->gpu().operations() - before;
  };
  const uint64_t of_short = operations(4, 3) - operations(4, 2);
  CHECK(operations(67, 3) - operations(67, 2) == of_short);  // a page is copied in for the first step alone
}

TEST_CASE("model/device: what a device does not serve is refused by name, and so is a model that does not fit") {
  auto driver = std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{.memory_bytes = size_t{4} << 20});
  auto small = gpu::Device::open(driver, 0);
  REQUIRE_OK(small);
  const std::string tiny = test::source_dir() + "/lib/model/mc-tiny";
  auto loaded = test::Loaded::open(tiny, "bf16");
  const auto full = Runner::open(loaded->model, loaded->parallel, {}, small->get());
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().mc == err::kDeviceMemory);
  CHECK_MESSAGE(full.error().what.find("weights needs") != std::string::npos, full.error().what);

  auto device = gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(), 0);
  REQUIRE_OK(device);
  const auto blocks = Runner::open(loaded->model, loaded->parallel, {.block_tokens = 32}, device->get());
  REQUIRE_FALSE(blocks.has_value());
  CHECK(blocks.error().mc == err::kDeviceUnusable);
  CHECK(blocks.error().what.find("pages of 32 tokens") != std::string::npos);
  auto wide = test::Loaded::open(tiny, "f32");
  const auto f32 = Runner::open(wide->model, wide->parallel, {}, device->get());
  REQUIRE_FALSE(f32.has_value());
  CHECK(f32.error().what.find("compute type f32") != std::string::npos);
  CHECK_MESSAGE(f32.error().next.find("use --dtype bf16") != std::string::npos, f32.error().next);
}

TEST_CASE("model/device: a GPU that dies in mid-prefill fails the chunk with its reason") {
  const uint64_t loading = Pair().driver->gpu().operations();  // copies of weights; the fault strikes behind them
  gpu::EmulatedHost host{.fault = gpu::Status::ecc_uncorrectable, .fault_seed = test::seed()};
  host.fault_within = static_cast<uint32_t>(loading + 40);
  while (Rng(host.fault_seed).fork("fault").below(host.fault_within) < loading) ++host.fault_seed;
  Pair dying(host);
  LocalPages pages = dying.pages(64);
  const attn::Plan plan{{}, 0, static_cast<int32_t>(dying.config().layers)};
  const auto failed = prefill(*dying.gpu, pages, some_tokens(5), plan);
  CAPTURE(host.fault_seed);
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error().mc == err::kDeviceFailed);
  CHECK_MESSAGE(failed.error().what.find("uncorrectable ECC error") != std::string::npos, failed.error().what);
}
#endif

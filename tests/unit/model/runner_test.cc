// The forward pass against Hugging Face, and the invariances that caching and batching stand on.
#include "model/runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/hash.h"
#include "base/rng.h"
#include "golden.h"

using namespace mc;
using namespace mc::model;

namespace {

double range_of(const std::vector<float>& logits) {
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  return *high - *low;
}

double worst_error(std::span<const float> got, const std::vector<float>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(double{got[i]} - want[i]));
  return worst;
}

/// Prefills prompt[0, count) in chunks; the last chunk gives logits.
std::vector<float> prefill(test::Loaded& loaded, LocalPages& pages, const std::vector<uint32_t>& prompt, size_t count,
                           const attn::Plan& plan, size_t chunk_tokens = 4096, size_t from = 0) {
  std::vector<float> logits(loaded.model.config().vocab);
  for (size_t start = from; start < count; start += chunk_tokens) {
    PrefillChunk chunk;
    const size_t n = std::min(chunk_tokens, count - start);
    chunk.tokens = std::span(prompt).subspan(start, n);
    chunk.start = static_cast<int64_t>(start);
    chunk.pages = pages.pages();
    chunk.plan = &plan;
    if (start + n == count) chunk.logits = logits;
    REQUIRE_OK(loaded.runner.prefill(chunk));
  }
  return logits;
}

LocalPages pages_for(const test::Loaded& loaded, size_t tokens) {
  auto pages = LocalPages::allocate(loaded.runner.layout(), static_cast<int64_t>(tokens));
  REQUIRE_OK(pages);
  return std::move(*pages);
}

/// Largest error of prefill and of decode over the golden positions, as a share of the logit range.
double golden_error(test::Loaded& loaded, const test::GoldenCase& golden) {
  const attn::Plan plan = test::golden_plan(loaded.model);
  double worst = 0;
  LocalPages pages = pages_for(loaded, golden.prompt.size());
  std::vector<float> stepped(loaded.model.config().vocab);
  for (size_t i = 0; i < golden.positions.size(); ++i) {
    const size_t position = golden.positions[i];
    const std::vector<float>& want = golden.logits[i];
    const auto logits = prefill(loaded, pages, golden.prompt, position + 1, plan);
    worst = std::max(worst, worst_error(logits, want) / range_of(want));
    if (position == 0) continue;
    prefill(loaded, pages, golden.prompt, position, plan);
    const DecodeRow row{golden.prompt[position], static_cast<int64_t>(position), pages.pages(), &plan};
    REQUIRE_OK(loaded.runner.decode({&row, 1}, stepped));
    worst = std::max(worst, worst_error(stepped, want) / range_of(want));
  }
  return worst;
}

std::vector<uint32_t> greedy(test::Loaded& loaded, const std::vector<uint32_t>& prompt, size_t count) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = static_cast<int32_t>(count);
  request.sampling.temperature = 0;
  request.prefill_plan = request.decode_plan = test::golden_plan(loaded.model);
  const auto generated = generate(loaded.runner, request, SystemClock::instance());
  REQUIRE_OK(generated);
  return generated->ids;
}

std::vector<uint32_t> random_prompt(const Model& model, size_t tokens) {
  Rng rng(test::seed() + tokens);
  std::vector<uint32_t> prompt(tokens);
  for (uint32_t& id : prompt) id = static_cast<uint32_t>(rng.below(model.config().vocab));
  return prompt;
}

/// Bytes of the pages that hold `tokens` tokens, for comparison.
std::string bytes_of(const LocalPages& pages, size_t tokens) {
  std::string bytes;
  const size_t per_page = static_cast<size_t>(pages.capacity_tokens()) / pages.page_count();
  for (size_t page = 0; page * per_page < tokens; ++page)
    bytes.append(reinterpret_cast<const char*>(pages.page(page).data()), pages.page(page).size());
  return bytes;
}

}  // namespace

TEST_CASE("model/runner: f32 logits equal Hugging Face's within 1e-4 of their range, prefill and decode") {
  for (const char* name : test::kRandomModels) {
    const test::Golden golden = test::read_golden(name);
    const auto loaded = test::Loaded::open(golden.directory, "f32");
    for (const test::GoldenCase& one : golden.cases) {
      const double error = golden_error(*loaded, one);
      INFO(name << ": max error " << error << " of the logit range");
      CHECK(error <= 1e-4);
    }
  }
}

TEST_CASE("model/runner: greedy f32 text of 200 tokens equals Hugging Face's") {
  for (const char* name : test::kRandomModels) {
    const test::Golden golden = test::read_golden(name);
    const auto loaded = test::Loaded::open(golden.directory, "f32");
    for (const test::GoldenCase& one : golden.cases) {
      INFO(name);
      CHECK(greedy(*loaded, one.prompt, one.greedy.size()) == one.greedy);
    }
  }
}

TEST_CASE("model/runner: mc-tiny's f32 logits and greedy text equal Hugging Face's") {
  const test::Golden golden = test::read_golden("mc-tiny");
  const auto bytes = read_file(golden.directory + "/model.safetensors", 1 << 26);
  REQUIRE_OK(bytes);
  std::string sha;
  for (uint8_t byte : Sha256().update(*bytes).finish()) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    sha += digits;
  }
  if (sha != golden.file_sha256) FAIL("mc-tiny's weights changed: run scripts/make-model-goldens --mc-tiny");
  const auto loaded = test::Loaded::open(golden.directory, "f32", 2);
  for (const test::GoldenCase& one : golden.cases) {
    const double error = golden_error(*loaded, one);
    INFO("prompt of " << one.prompt.size() << " tokens, error " << error);
    CHECK(error <= 1e-4);
    CHECK(greedy(*loaded, one.prompt, one.greedy.size()) == one.greedy);
  }
}

TEST_CASE("model/runner: bf16 logits stay within the bound of their roundings") {
  // Bound, as a share of the logit range. Rounding to bf16 has a relative error below u = 2^-9 (rms
  // u / sqrt 3). From embedding to logits a token passes, in each layer, 8 places where a vector is rounded
  // (input of qkv, q, k, v, probabilities, input of output, of gate_up, of down) and one before the head:
  // R = 8 L + 1. Where the file is not bf16, the weights of 7 products a layer and of the head are rounded
  // as well: R = 15 L + 2. Signs are random, so a product's relative error is that of its terms and R of
  // them add as sqrt R. Scores of size s turn relative into absolute errors of the exponent, a gain of up
  // to s (about 6 in these models) for q and k. The largest of some 2500 samples is 3.5 sigma, against a
  // range of 5.5 sigma of the logits: 3.5 / 5.5 / sqrt 3 * 6 = 2.2 u sqrt R; taken as 3. (transformers' own
  // bf16 run is off by 0.012 to 0.025 on these models, ours by 0.007 to 0.018.)
  constexpr double u = 1.0 / 512;
  for (const char* name : test::kRandomModels) {
    const test::Golden golden = test::read_golden(name);
    const auto loaded = test::Loaded::open(golden.directory, "bf16");
    const bool rounded = *loaded->model.config().dtype != Dtype::bf16;
    const double layers = loaded->model.config().layers;
    const double bound = 3 * u * std::sqrt(rounded ? 15 * layers + 2 : 8 * layers + 1);
    const double error = golden_error(*loaded, golden.cases[0]);
    INFO(name << " error " << error << " bound " << bound);
    CHECK(error <= bound);
  }
}

TEST_CASE("model/runner: KV bytes and logits do not depend on chunks, threads or a resumed prefix") {
  for (const char* name : {"llama-gqa-llama3", "qwen3-gqa", "qwen2-untied", "qwen2-moe"})
    for (const char* dtype : {"f32", "bf16"})
      for (uint32_t block : {16u, 64u, 128u}) {
        const std::string directory = test::read_golden(name).directory;
        const auto one = test::Loaded::open(directory, dtype, 1, {.block_tokens = block});
        const auto three = test::Loaded::open(directory, dtype, 3, {.block_tokens = block});
        const auto prompt = random_prompt(one->model, 397);
        attn::Plan window = test::full_plan(one->model);
        window.mode = {.kind = attn::ModeKind::window, .window = 150};
        for (const attn::Plan& plan : {test::full_plan(one->model), test::moba_plan(one->model, 128, 2, 1), window}) {
          INFO(name << " " << dtype << " block " << block << " " << attn::to_string(plan));
          LocalPages whole = pages_for(*one, prompt.size());
          const auto logits = prefill(*one, whole, prompt, prompt.size(), plan);
          const std::string want = bytes_of(whole, prompt.size());
          for (size_t chunk : {size_t{block}, size_t{3 * block}, size_t{192}}) {
            if (chunk % block != 0) continue;
            LocalPages pages = pages_for(*three, prompt.size());
            const auto again = prefill(*three, pages, prompt, prompt.size(), plan, chunk);
            CHECK(again == logits);
            CHECK(bytes_of(pages, prompt.size()) == want);
          }
          // Resumed: another runner finds the first blocks in its pages and computes the rest.
          const size_t cached = prompt.size() / 2 / block * block;
          LocalPages pages = pages_for(*one, prompt.size());
          for (size_t page = 0; page < cached / block; ++page)
            std::copy(whole.page(page).begin(), whole.page(page).end(), pages.page(page).begin());
          CHECK(prefill(*three, pages, prompt, prompt.size(), plan, 4096, cached) == logits);
          CHECK(bytes_of(pages, prompt.size()) == want);
        }
      }
}

TEST_CASE(
    "model/runner: layers of a prefix that come just before their attention give the bytes of a prefix that was here") {
  constexpr uint32_t kBlock = 64, kCached = 3;
  for (const char* name : {"llama-gqa-llama3", "qwen3-gqa", "qwen2-moe"})
    for (const char* dtype : {"f32", "bf16"}) {
      const auto loaded = test::Loaded::open(test::read_golden(name).directory, dtype, 1, {.block_tokens = kBlock});
      const auto prompt = random_prompt(loaded->model, 397);
      for (const attn::Plan& plan : {test::full_plan(loaded->model), test::moba_plan(loaded->model, 128, 2, 1)}) {
        INFO(name << " " << dtype << " " << attn::to_string(plan));
        const ExtentLayout layout = loaded->runner.layout();
        LocalPages whole = pages_for(*loaded, prompt.size()), pages = pages_for(*loaded, prompt.size());
        const auto logits = prefill(*loaded, whole, prompt, prompt.size(), plan);
        for (uint32_t page = 0; page < kCached; ++page) std::ranges::fill(pages.page(page), std::byte{0xff});
        std::vector<uint32_t> asked;
        std::vector<float> again(logits.size());
        PrefillChunk chunk;
        chunk.tokens = std::span(prompt).subspan(kCached * kBlock);
        chunk.start = kCached * kBlock;
        chunk.pages = pages.pages();
        chunk.plan = &plan;
        chunk.logits = again;
        chunk.before_prefix = [&](uint32_t layer) {
          asked.push_back(layer);
          for (uint32_t page = 0; page < kCached; ++page) {
            const auto extent = whole.page(page).subspan(layout.layer_offset(layer), layout.layer_bytes());
            std::ranges::copy(extent, pages.page(page).begin() + static_cast<ptrdiff_t>(layout.layer_offset(layer)));
          }
          return true;
        };
        REQUIRE_OK(loaded->runner.prefill(chunk));
        CHECK(asked.size() == layout.layers);
        CHECK(std::ranges::is_sorted(asked));
        CHECK(again == logits);
        for (uint32_t page = kCached; page < (prompt.size() + kBlock - 1) / kBlock; ++page)
          CHECK(std::ranges::equal(pages.page(page), whole.page(page)));
        chunk.before_prefix = [](uint32_t layer) { return layer < 1; };
        CHECK(loaded->runner.prefill(chunk).error().code == Code::cancelled);
      }
    }
}

TEST_CASE("model/runner: every row's logits are told on demand, and asking changes no bit of the last row's") {
  // The last layer's rows go by tiles here, one by one without asking: f32 sums in another order; in bf16 a rounding
  // may fall to the other side in the one layer's activations, a few of 2^-9 of a row's range.
  for (const char* name : {"llama-mha", "qwen2-moe"})
    for (const char* dtype : {"f32", "bf16"})
      for (const uint32_t block : {16u, 64u}) {
        const auto opened = test::Loaded::open(test::read_golden(name).directory, dtype, 1, {.block_tokens = block});
        test::Loaded& loaded = *opened;
        const attn::Plan plan = test::golden_plan(loaded.model);
        const double bound = dtype == std::string_view("f32") ? 1e-4 : 4.0 / 512;
        const auto prompt = random_prompt(loaded.model, 150);
        const size_t count = prompt.size();
        for (const size_t chunk_tokens : {size_t{block}, size_t{3 * block}}) {  // of 16: starts inside a tile
          INFO(name << " " << dtype << " block " << block << " chunks of " << chunk_tokens);
          LocalPages pages = pages_for(loaded, count);
          const auto plain = prefill(loaded, pages, prompt, count, plan, chunk_tokens);
          std::vector<std::vector<float>> told;
          std::vector<float> last(loaded.model.config().vocab);
          for (size_t start = 0; start < count; start += chunk_tokens) {
            PrefillChunk chunk;
            chunk.tokens = std::span(prompt).subspan(start, std::min(chunk_tokens, count - start));
            chunk.start = static_cast<int64_t>(start);
            chunk.pages = pages.pages();
            chunk.plan = &plan;
            chunk.scored = chunk.tokens.size();
            chunk.on_logits = [&](size_t row, std::span<const float> logits) {
              CHECK(start + row == told.size());
              told.emplace_back(logits.begin(), logits.end());
              return true;
            };
            if (start + chunk.tokens.size() == count) chunk.logits = last;
            REQUIRE_OK(loaded.runner.prefill(chunk));
          }
          CHECK(last == plain);
          REQUIRE(told.size() == count);
          for (const size_t row : {size_t{0}, size_t{15}, size_t{16}, size_t{63}, size_t{64}, count - 1}) {
            CAPTURE(row);
            const auto want = prefill(loaded, pages, prompt, row + 1, plan);
            CHECK(worst_error(told[row], want) / range_of(want) < bound);
          }
        }
      }
}

TEST_CASE("model/runner: the workspace counts the logits of rows that are scored together") {
  const auto config = read_config(test::read_golden("llama-mha").directory);
  REQUIRE_OK(config);
  ModelConfig wider = *config;
  wider.vocab += 1000;
  CHECK(Runner::workspace_bytes(wider, {}) - Runner::workspace_bytes(*config, {}) >= 16 * 1000 * sizeof(float));
}

TEST_CASE("model/runner: a row decodes to the same bits alone and in any batch, full and MoBA mixed") {
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string directory = test::read_golden("qwen2-untied").directory;
    const auto one = test::Loaded::open(directory, dtype, 1), three = test::Loaded::open(directory, dtype, 3);
    const attn::Plan plans[] = {test::full_plan(one->model), test::moba_plan(one->model, 64, 2, 1)};
    const size_t lengths[] = {1, 63, 64, 65, 130, 200, 300, 17, 128};
    const size_t count = std::size(lengths), vocab = one->model.config().vocab;
    std::vector<LocalPages> alone_pages, batch_pages;
    std::vector<DecodeRow> rows;
    std::vector<float> alone(count * vocab), batch(count * vocab);
    for (size_t i = 0; i < count; ++i) {
      const auto prompt = random_prompt(one->model, lengths[i]);
      for (auto* list : {&alone_pages, &batch_pages}) {
        list->push_back(pages_for(*one, lengths[i] + 3));
        prefill(*one, list->back(), prompt, lengths[i], plans[0]);
      }
    }
    for (int step = 0; step < 3; ++step) {
      rows.clear();
      for (size_t i = 0; i < count; ++i) {
        const DecodeRow row{static_cast<uint32_t>(7 * i + static_cast<size_t>(step)),
                            static_cast<int64_t>(lengths[i]) + step, alone_pages[i].pages(), &plans[i % 2]};
        REQUIRE_OK(one->runner.decode({&row, 1}, std::span(alone).subspan(i * vocab, vocab)));
        rows.push_back(row);
        rows.back().pages = batch_pages[i].pages();
      }
      REQUIRE_OK(three->runner.decode(rows, batch));
      CHECK(alone == batch);
    }
    for (size_t i = 0; i < count; ++i)
      CHECK(bytes_of(alone_pages[i], lengths[i] + 3) == bytes_of(batch_pages[i], lengths[i] + 3));
  }
}

TEST_CASE("model/runner: a row that keeps its centroids gathered decodes to the same bits") {
  for (const char* dtype : {"f32", "bf16"}) {
    const auto loaded = test::Loaded::open(test::read_golden("qwen2-untied").directory, dtype, 2);
    const attn::Plan plan = test::moba_plan(loaded->model, 64, 2, 1);
    const auto prompt = random_prompt(loaded->model, 300);
    std::vector<float> plain(loaded->model.config().vocab), gathered(plain);
    LocalPages pages = pages_for(*loaded, 300), others = pages_for(*loaded, 300);
    prefill(*loaded, pages, prompt, 100, plan);
    prefill(*loaded, others, prompt, 100, plan);
    attn::CentroidIndex centroids(loaded->runner.layout());
    for (size_t i = 100; i < 300; ++i) {
      const auto position = static_cast<int64_t>(i);
      const DecodeRow row{prompt[i], position, pages.pages(), &plan};
      const DecodeRow keeps{prompt[i], position, others.pages(), &plan, &centroids};
      REQUIRE_OK(loaded->runner.decode({&row, 1}, plain));
      REQUIRE_OK(loaded->runner.decode({&keeps, 1}, gathered));
      REQUIRE(plain == gathered);
      CHECK(centroids.count() == (position < 128 ? 0 : position / 64));
    }
    CHECK(bytes_of(pages, 300) == bytes_of(others, 300));
  }
}

TEST_CASE("model/runner: KV that decode made agrees with prefill's within rounding, gate data included") {
  // Both compute the same sums in another order. f32: a few hundred additions of random sign, so about
  // sqrt(300) half-ulps of the largest element, over two layers; 64 half-ulps are allowed. bf16: a value
  // near a rounding boundary may fall to the other side, and layer 1 sees layer 0's flips through
  // attention: 4 units in the last place (2^-8) of the largest element.
  for (const char* dtype : {"f32", "bf16"}) {
    const auto loaded = test::Loaded::open(test::read_golden("llama-gqa-llama3").directory, dtype);
    const ExtentLayout& layout = loaded->runner.layout();
    const attn::Plan plan = test::full_plan(loaded->model);
    const auto prompt = random_prompt(loaded->model, 192);
    LocalPages whole = pages_for(*loaded, 192), stepped = pages_for(*loaded, 192);
    prefill(*loaded, whole, prompt, 192, plan);
    prefill(*loaded, stepped, prompt, 70, plan);
    std::vector<float> logits(loaded->model.config().vocab);
    for (size_t i = 70; i < 192; ++i) {
      const DecodeRow row{prompt[i], static_cast<int64_t>(i), stepped.pages(), &plan};
      REQUIRE_OK(loaded->runner.decode({&row, 1}, logits));
    }
    const bool wide = layout.dtype == Dtype::f32;
    const double bound = wide ? 64 * std::ldexp(1.0, -24) : 4 * std::ldexp(1.0, -8);
    for (size_t page = 0; page < 3; ++page)
      for (uint32_t layer = 0; layer < layout.layers; ++layer) {
        const auto part = [&](const LocalPages& pages, size_t offset) {
          const std::byte* at = pages.page(page).data() + layout.layer_offset(layer) + offset;
          std::vector<double> out(layout.block_tokens * layout.head_dim);
          for (size_t i = 0; i < out.size(); ++i)
            out[i] = wide ? reinterpret_cast<const float*>(at)[i] : bf16_to_f32(reinterpret_cast<const bf16_t*>(at)[i]);
          return out;
        };
        for (size_t offset : {layout.k_offset(), layout.v_offset()}) {
          const auto a = part(whole, offset), b = part(stepped, offset);
          double largest = 0, worst = 0;
          for (size_t i = 0; i < a.size(); ++i) {
            largest = std::max(largest, std::abs(a[i]));
            worst = std::max(worst, std::abs(a[i] - b[i]));
          }
          INFO(dtype << " page " << page << " layer " << layer << " worst " << worst / largest);
          CHECK(worst <= bound * largest);
        }
        const auto sums = [&](const LocalPages& pages) {
          return reinterpret_cast<const float*>(pages.page(page).data() + layout.layer_offset(layer) +
                                                layout.ksum_offset());
        };
        for (size_t i = 0; i < layout.head_dim; ++i)
          CHECK(std::abs(sums(whole)[i] - sums(stepped)[i]) <= bound * 64 * 8);
      }
  }
}

TEST_CASE("model/runner: layers are announced in order with their final bytes, and false stops the chunk") {
  const auto loaded = test::Loaded::open(test::read_golden("qwen2-untied").directory, "bf16");
  const attn::Plan plan = test::full_plan(loaded->model);
  const auto prompt = random_prompt(loaded->model, 100);
  LocalPages pages = pages_for(*loaded, prompt.size());
  const ExtentLayout& layout = loaded->runner.layout();
  std::vector<std::string> announced;
  PrefillChunk chunk{.tokens = prompt, .pages = pages.pages(), .plan = &plan};
  chunk.on_layer = [&](uint32_t layer) {
    CHECK(layer == announced.size());
    std::string bytes;
    for (size_t page = 0; page < pages.page_count(); ++page)
      bytes.append(reinterpret_cast<const char*>(pages.page(page).data()) + layout.layer_offset(layer),
                   layout.layer_bytes());
    announced.push_back(bytes);
    return true;
  };
  REQUIRE_OK(loaded->runner.prefill(chunk));
  REQUIRE(announced.size() == loaded->model.config().layers);
  for (uint32_t layer = 0; layer < announced.size(); ++layer)
    for (size_t page = 0; page < pages.page_count(); ++page)
      CHECK(std::memcmp(announced[layer].data() + page * layout.layer_bytes(),
                        pages.page(page).data() + layout.layer_offset(layer), layout.layer_bytes()) == 0);
  chunk.on_layer = [](uint32_t layer) { return layer < 1; };
  const auto stopped = loaded->runner.prefill(chunk);
  REQUIRE(!stopped.has_value());
  CHECK(stopped.error().code == Code::cancelled);
}

TEST_CASE("model/runner: rows of a partial tail beyond the last token are zero") {
  const auto loaded = test::Loaded::open(test::read_golden("llama-mha").directory, "f32");
  const auto prompt = random_prompt(loaded->model, 70);
  LocalPages pages = pages_for(*loaded, prompt.size());
  std::memset(pages.page(1).data(), 0xff, pages.page(1).size());
  prefill(*loaded, pages, prompt, prompt.size(), test::full_plan(loaded->model));
  const ExtentLayout& layout = loaded->runner.layout();
  for (uint32_t layer = 0; layer < layout.layers; ++layer)
    for (uint32_t head = 0; head < layout.kv_heads; ++head) {
      const std::byte* record = pages.page(1).data() + layout.layer_offset(layer) + head * layout.head_bytes();
      for (size_t offset : {layout.k_offset(), layout.v_offset()})
        for (size_t i = 6 * layout.row_bytes(); i < 64 * layout.row_bytes(); ++i)
          REQUIRE(record[offset + i] == std::byte{0});
    }
}

TEST_CASE("model/runner: variants agree within a bound, and MoBA that covers everything equals full") {
  const test::Golden golden = test::read_golden("llama-gqa-llama3");
  std::vector<std::vector<float>> results;
  for (const ops::Kernels* kernels : ops::variants()) {
    if (!kernels->supported() || !attn::find_variant(kernels->name)) continue;
    const auto loaded = test::Loaded::open(golden.directory, "f32", 2, {.kernels = kernels->name});
    INFO("kernels " << kernels->name);
    CHECK(golden_error(*loaded, golden.cases[0]) <= 1e-4);
    LocalPages pages = pages_for(*loaded, 150);
    const auto full = prefill(*loaded, pages, golden.cases[0].prompt, 150, test::full_plan(loaded->model));
    const auto moba = prefill(*loaded, pages, golden.cases[0].prompt, 150, test::moba_plan(loaded->model, 64, 3, 0));
    CHECK(full == moba);
  }
}

TEST_CASE("model/runner: chunks and rows that cannot be computed are refused with their numbers") {
  const auto loaded =
      test::Loaded::open(test::read_golden("llama-mha").directory, "f32", 1, {.max_chunk_tokens = 100, .max_batch = 2});
  const attn::Plan plan = test::full_plan(loaded->model);
  LocalPages pages = pages_for(*loaded, 600);
  std::vector<uint32_t> tokens(101, 5);
  const auto refusal = [&](std::span<const uint32_t> ids, int64_t start) {
    const auto result = loaded->runner.prefill({.tokens = ids, .start = start, .pages = pages.pages(), .plan = &plan});
    return result.has_value() ? std::string() : result.error().what;
  };
  CHECK(refusal(tokens, 0) == "a chunk of 101 tokens; allowed are 1 to 100");
  CHECK(refusal({}, 0) == "a chunk of 0 tokens; allowed are 1 to 100");
  CHECK(refusal(std::span(tokens).first(3), 32) == "a chunk at position 32, not a multiple of 64 tokens");
  CHECK(refusal(std::span(tokens).first(65), 448) == "position 512 is outside the context of 512 tokens");
  tokens[1] = 128;
  CHECK(refusal(std::span(tokens).first(3), 0) == "token id 128 is outside the vocabulary of 128");
  const std::vector<DecodeRow> rows(3, {0, 0, pages.pages(), &plan});
  std::vector<float> logits(3 * 128);
  const auto result = loaded->runner.decode(rows, logits);
  REQUIRE(!result.has_value());
  CHECK(result.error().what == "a batch of 3 rows; at most 2 are allowed");
  CHECK(!Runner::open(loaded->model, loaded->parallel, {.block_tokens = 48}).has_value());
  CHECK(!Runner::open(loaded->model, loaded->parallel, {.kernels = "sm90"}).has_value());
}

TEST_CASE("model/runner: int8 weights stay near the f32 logits, and are another namespace") {
  const test::Golden golden = test::read_golden("mc-tiny");
  const auto whole = test::Loaded::open(golden.directory, "f32", 1);
  const auto narrow = test::Loaded::open(golden.directory, "f32", 1, {}, "int8");
  CHECK(narrow->model.weight_bytes() < whole->model.weight_bytes() / 2);
  CHECK(narrow->model.weight_dtype() == "int8");
  const attn::Plan plan = test::golden_plan(narrow->model);
  CHECK(narrow->model.kv_namespace(plan, 64).id() != whole->model.kv_namespace(plan, 64).id());
  for (const test::GoldenCase& one : golden.cases) {
    const double error = golden_error(*narrow, one);
    INFO("prompt of " << one.prompt.size() << " tokens, error " << error);
    CHECK(error <= 0.03);
  }
}

TEST_CASE(
    "model/runner: with int8 or fp8 weights a row's logits do not depend on its batch, nor K and V on the chunks") {
  for (const auto& [name, form] : {std::pair{"qwen3-moe", "int8"}, std::pair{"llama-fp8-block", "int4"},
                                   std::pair{"llama-fp8-block", "auto"}, std::pair{"mistral-fp8-row", "auto"}}) {
    const auto loaded = test::Loaded::open(test::source_dir() + "/tests/golden/model/" + name, "bf16", 2, {}, form);
    const attn::Plan plan = test::full_plan(loaded->model);
    const auto prompt = random_prompt(loaded->model, 200);
    LocalPages whole = pages_for(*loaded, 201), cut = pages_for(*loaded, 201);
    const auto logits = prefill(*loaded, whole, prompt, 200, plan);
    CHECK(prefill(*loaded, cut, prompt, 200, plan, 64) == logits);
    CHECK(bytes_of(whole, 192) == bytes_of(cut, 192));
    const size_t vocab = loaded->model.config().vocab;
    std::vector<float> alone(vocab), batch(2 * vocab);
    const DecodeRow row{5, 200, whole.pages(), &plan};
    REQUIRE_OK(loaded->runner.decode({&row, 1}, alone));
    const DecodeRow rows[] = {{7, 200, cut.pages(), &plan}, row};
    REQUIRE_OK(loaded->runner.decode(rows, batch));
    CHECK(std::equal(alone.begin(), alone.end(), batch.begin() + static_cast<std::ptrdiff_t>(vocab)));
  }
}

TEST_CASE("model/runner: fp8 weights stay fp8, near the widened model's logits, unless full ones are asked for") {
  for (const char* name : {"llama-fp8-block", "qwen3-fp8-tensor", "mistral-fp8-row"}) {
    CAPTURE(name);
    const test::Golden golden = test::read_golden(name);
    const auto kept = test::Loaded::open(golden.directory, "f32", 1);
    const auto full = test::Loaded::open(golden.directory, "f32", 1, {}, "full");
    CHECK(kept->model.weight_dtype() == "fp8_e4m3");
    CHECK(full->model.weight_dtype() == "f32");
    CHECK(kept->model.layers()[0].qkv.is_fp8());
    CHECK_FALSE(full->model.layers()[0].qkv.is_fp8());
    size_t bytes = 0;
    for (const Layer& layer : kept->model.layers())
      for (const ops::PackedMatrix* matrix : {&layer.qkv, &layer.output, &layer.mlp.gate_up, &layer.mlp.down}) {
        CHECK(matrix->is_fp8());
        bytes += matrix->panels() * matrix->panel_bytes();
      }
    CHECK(kept->model.weight_bytes() > bytes);
    CHECK(kept->model.weight_bytes() < full->model.weight_bytes());
    const attn::Plan plan = test::golden_plan(kept->model);
    CHECK(kept->model.kv_namespace(plan, 64).id() != full->model.kv_namespace(plan, 64).id());
    for (const test::GoldenCase& one : golden.cases)
      for (const auto& loaded : {&kept, &full}) CHECK(golden_error(**loaded, one) <= 1e-4);
  }
}

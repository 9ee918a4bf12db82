// A model in parts: what the stages of a pipeline load and compute, against the whole model.
#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/rng.h"
#include "golden.h"
#include "model/runner.h"

using namespace mc;
using namespace mc::model;

namespace {

struct Part {
  std::unique_ptr<test::Loaded> loaded;
  LocalPages pages;

  Part(const std::string& directory, const ModelOptions& load, size_t tokens)
      : loaded(test::Loaded::open(directory, load, 1, {.max_chunk_tokens = 128})) {
    auto allocated = LocalPages::allocate(loaded->runner.layout(), static_cast<int64_t>(tokens));
    REQUIRE_OK(allocated);
    pages = std::move(*allocated);
  }

  std::span<const std::byte> extent(size_t page, uint32_t layer) const {
    const ExtentLayout& layout = loaded->runner.layout();
    return pages.page(page).subspan(layout.layer_offset(layer), layout.layer_bytes());
  }
};

std::vector<uint32_t> some_tokens(size_t count, uint32_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint32_t> ids(count);
  for (auto& id : ids) id = static_cast<uint32_t>(rng.below(vocab));
  return ids;
}

/// Logits of the last token, chunk by chunk through all parts.
std::vector<float> prefill(std::vector<Part>& parts, const attn::Plan& plan, const std::vector<uint32_t>& prompt,
                           size_t chunk_tokens) {
  const Model& first = parts[0].loaded->model;
  std::vector<float> logits(first.config().vocab);
  for (size_t start = 0; start < prompt.size(); start += chunk_tokens) {
    const size_t count = std::min(chunk_tokens, prompt.size() - start);
    std::vector<float> stream(count * first.config().hidden), after(stream.size());
    for (Part& part : parts) {
      const LayerRange held = part.loaded->model.held();
      PrefillChunk chunk;
      chunk.tokens = std::span(prompt).subspan(start, count);
      chunk.start = static_cast<int64_t>(start);
      chunk.pages = part.pages.pages();
      chunk.plan = &plan;
      chunk.first_layer = held.first, chunk.end_layer = held.end;
      const bool last = held.end == first.config().layers;
      if (held.first > 0) chunk.activations_in = stream;
      if (!last) chunk.activations_out = after;
      if (last && start + count == prompt.size()) chunk.logits = logits;
      REQUIRE_OK(part.loaded->runner.prefill(chunk));
      std::swap(stream, after);
    }
  }
  return logits;
}

}  // namespace

TEST_CASE("model/stages: the stages compute the whole model's logits and KV bit for bit") {
  for (const char* name : {"llama-mha", "qwen2-moe", "mistral-window", "mc-tiny", "llama-fp8-block"}) {
    for (const char* weights : {"auto", "int8"}) {
      CAPTURE(name);
      CAPTURE(weights);
      const std::string directory = test::read_golden(name).directory;
      std::vector<Part> whole;
      whole.emplace_back(directory, ModelOptions{.weight_dtype = weights}, 200);
      const ModelConfig& config = whole[0].loaded->model.config();
      const auto prompt = some_tokens(200, config.vocab, test::seed());
      const Model& model = whole[0].loaded->model;
      const attn::Plan plans[] = {test::golden_plan(model), test::moba_plan(model, 64, 2, 0),
                                  test::moba_plan(model, 64, 2, 1)};
      std::vector<std::vector<Part>> pipelines;
      for (uint32_t stages = 2; stages <= std::min(config.layers, 3u); ++stages) {
        auto& parts = pipelines.emplace_back();
        for (uint32_t stage = 0; stage < stages; ++stage)
          parts.emplace_back(directory, ModelOptions{.weight_dtype = weights, .stage = stage, .stages = stages}, 200);
      }
      for (const attn::Plan& plan : plans) {
        CAPTURE(attn::to_string(plan));
        const auto expected = prefill(whole, plan, prompt, 128);
        for (auto& parts : pipelines) {
          const auto got = prefill(parts, plan, prompt, 128);
          CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
          for (const Part& part : parts)
            for (uint32_t layer = part.loaded->model.held().first; layer < part.loaded->model.held().end; ++layer)
              for (size_t page = 0; page < part.pages.page_count(); ++page)
                CHECK(std::ranges::equal(part.extent(page, layer), whole[0].extent(page, layer)));
        }
      }
    }
  }
}

TEST_CASE("model/stages: a stage holds the weights and pages of its own layers, and together they hold the model") {
  for (const char* name : {"llama-mha", "qwen2-moe", "qwen2-untied", "mc-tiny", "qwen3-fp8-tensor"}) {
    CAPTURE(name);
    const std::string directory = test::read_golden(name).directory;
    const auto whole = plan_model(directory, {});
    REQUIRE_OK(whole);
    const uint32_t layers = whole->config.layers;
    size_t bytes = 0;
    for (uint32_t stage = 0; stage < layers; ++stage) {
      const auto part = plan_model(directory, {.stage = stage, .stages = layers});
      REQUIRE_OK(part);
      CHECK(part->layers == LayerRange{stage, stage + 1});
      CHECK(part->weight_bytes < whole->weight_bytes);
      bytes += part->weight_bytes;
    }
    // Tied embeddings stand at both ends of a pipeline.
    const size_t twice = whole->config.tied_embeddings
                             ? ops::PackedMatrix::packed_bytes(whole->config.vocab, whole->config.hidden, whole->dtype)
                             : 0;
    CHECK(bytes == whole->weight_bytes + twice);
    const ExtentLayout all = kv_layout(whole->config, whole->dtype, 64, whole->layers);
    CHECK(all.page_bytes() == round_up(layers * all.layer_bytes(), 4096));
    for (uint32_t stages = 2; stages <= layers; ++stages) {
      uint32_t next = 0;
      for (uint32_t stage = 0; stage < stages; ++stage) {
        const auto part = plan_model(directory, {.stage = stage, .stages = stages});
        REQUIRE_OK(part);
        const ExtentLayout layout = kv_layout(part->config, part->dtype, 64, part->layers);
        CHECK(layout.held() == part->layers);
        CHECK(layout.held().first == next);
        CHECK(layout.layer_offset(layout.held().first) == 0);
        CHECK(layout.page_bytes() == round_up(layout.held().count() * all.layer_bytes(), 4096));
        next = layout.held().end;
      }
      CHECK(next == layers);
    }
  }
}

TEST_CASE("model/stages: more stages than layers and a stage beyond the last are refused with both numbers") {
  const std::string directory = test::read_golden("llama-mha").directory;
  const auto plan = plan_model(directory, {.stage = 0, .stages = 64});
  REQUIRE(!plan.has_value());
  CHECK(plan.error().mc == err::kBadValue);
  CHECK(plan.error().where == "--pipeline");
  CHECK(plan.error().what.find("64 stages") != std::string::npos);
  for (const auto& [stage, stages] : {std::pair{0u, 0u}, {1u, 1u}, {2u, 2u}}) {
    const auto beyond = plan_model(directory, {.stage = stage, .stages = stages});
    REQUIRE(!beyond.has_value());
    CHECK(beyond.error().where == "--pipeline");
    CHECK(beyond.error().what.find("of " + std::to_string(stages) + " stages") != std::string::npos);
  }
}

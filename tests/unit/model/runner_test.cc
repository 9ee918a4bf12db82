// The forward pass against Hugging Face, and the invariances that caching and batching stand on.
#include "model/runner.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
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
  const attn::Plan plan = test::full_plan(loaded.model);
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

}  // namespace

TEST_CASE("model/runner: f32 logits equal Hugging Face's within 1e-4 of their range, prefill and decode") {
  for (const char* name : test::kRandomModels) {
    const test::Golden golden = test::read_golden(name);
    const auto loaded = test::Loaded::open(golden.directory, "f32");
    for (const test::GoldenCase& one : golden.cases) {
      const double error = golden_error(*loaded, one);
      MESSAGE(name << ": max error " << error << " of the logit range");
      CHECK(error <= 1e-4);
    }
  }
}

TEST_CASE("model/runner: greedy f32 text of 60 tokens equals Hugging Face's") {
  for (const char* name : test::kRandomModels) {
    const test::Golden golden = test::read_golden(name);
    const auto loaded = test::Loaded::open(golden.directory, "f32");
    for (const test::GoldenCase& one : golden.cases) {
      GenerateRequest request;
      request.prompt = one.prompt;
      request.max_tokens = static_cast<int32_t>(one.greedy.size());
      request.sampling.temperature = 0;
      request.prefill_plan = request.decode_plan = test::full_plan(loaded->model);
      const auto generated = generate(loaded->runner, request, SystemClock::instance());
      REQUIRE_OK(generated);
      INFO(name);
      CHECK(generated->ids == one.greedy);
    }
  }
}

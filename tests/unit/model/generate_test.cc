#include "model/generate.h"

#include "golden.h"

using namespace mc;
using namespace mc::model;

namespace {

GenerateRequest request_for(const test::Loaded& loaded, const test::GoldenCase& golden, int32_t tokens) {
  GenerateRequest request;
  request.prompt = golden.prompt;
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  request.prefill_plan = request.decode_plan = test::full_plan(loaded.model);
  return request;
}

Generated run(test::Loaded& loaded, const GenerateRequest& request) {
  auto generated = generate(loaded.runner, request, SystemClock::instance());
  REQUIRE_OK(generated);
  return std::move(*generated);
}

}  // namespace

TEST_CASE("model/generate: chunk size does not change the text or its log-probabilities") {
  const test::Golden golden = test::read_golden("qwen3-gqa");
  const auto loaded = test::Loaded::open(golden.directory, "f32");
  GenerateRequest request = request_for(*loaded, golden.cases[0], 20);
  request.sampling = {.temperature = 0.8f, .top_p = 0.9f, .seed = 3, .logprobs = 2};
  const Generated whole = run(*loaded, request);
  CHECK(whole.prefill_chunks == 1);
  CHECK(whole.ids.size() == 20);
  CHECK(whole.end == AnswerEnd::length);
  for (uint32_t chunk : {1u, 64u, 100u, 128u}) {
    request.chunk_tokens = chunk;
    const Generated cut = run(*loaded, request);
    CHECK(cut.prefill_chunks == (chunk < 128 ? 3 : 2));
    CHECK(cut.ids == whole.ids);
    for (size_t i = 0; i < cut.sampled.size(); ++i) {
      CHECK(cut.sampled[i].logprob == whole.sampled[i].logprob);
      CHECK(cut.sampled[i].top == whole.sampled[i].top);
    }
  }
  request.sampling.seed = 4;
  CHECK(run(*loaded, request).ids != whole.ids);
}

TEST_CASE("model/generate: a stop id ends the answer, but not before min_tokens") {
  const test::Golden golden = test::read_golden("llama-mha");
  const auto loaded = test::Loaded::open(golden.directory, "f32");
  GenerateRequest request = request_for(*loaded, golden.cases[0], 30);
  request.stop_ids = {golden.cases[0].greedy[5]};
  const Generated stopped = run(*loaded, request);
  CHECK(stopped.end == AnswerEnd::stop);
  CHECK(stopped.ids.back() == request.stop_ids[0]);
  CHECK(stopped.ids.size() <= 6);
  request.min_tokens = 12;
  const Generated longer = run(*loaded, request);
  for (size_t i = 0; i < 12; ++i) CHECK(longer.ids[i] != request.stop_ids[0]);
}

TEST_CASE("model/generate: the answer goes on from KV that another run left") {
  const test::Golden golden = test::read_golden("llama-gqa-llama3");
  const auto first = test::Loaded::open(golden.directory, "f32"), second = test::Loaded::open(golden.directory, "f32");
  const size_t answer = golden.cases[0].greedy.size(), total = golden.cases[0].prompt.size() + answer;
  const GenerateRequest request = request_for(*first, golden.cases[0], static_cast<int32_t>(answer));
  auto pages = LocalPages::allocate(first->runner.layout(), static_cast<int64_t>(total));
  REQUIRE_OK(pages);
  Generated out;
  REQUIRE_OK(run_prefill(first->runner, *pages, request, SystemClock::instance(), out));
  CHECK(out.ids.size() == 1);
  REQUIRE_OK(run_decode(second->runner, *pages, request, SystemClock::instance(), out));
  CHECK(out.ids == golden.cases[0].greedy);
  // Resumed behind cached blocks: the pages still hold the prompt.
  GenerateRequest resumed = request;
  resumed.cached_tokens = 128;
  Generated again;
  REQUIRE_OK(run_prefill(second->runner, *pages, resumed, SystemClock::instance(), again));
  REQUIRE_OK(run_decode(second->runner, *pages, resumed, SystemClock::instance(), again));
  CHECK(again.ids == golden.cases[0].greedy);
  resumed.cached_tokens = 192;
  const auto refused = run_prefill(second->runner, *pages, resumed, SystemClock::instance(), again);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().what.find("leave at least one token to compute") != std::string::npos);
}

TEST_CASE("model/generate: prompts beyond the context are refused, and a callback can stop the answer") {
  const test::Golden golden = test::read_golden("llama-mha");
  const auto loaded = test::Loaded::open(golden.directory, "f32");
  GenerateRequest request = request_for(*loaded, golden.cases[0], 363);
  const auto refused = generate(loaded->runner, request, SystemClock::instance());
  REQUIRE(!refused.has_value());
  CHECK(refused.error().what == "a prompt of 150 tokens and 363 to generate exceed the context of 512");
  request.prompt.clear();
  CHECK(!generate(loaded->runner, request, SystemClock::instance()).has_value());
  request = request_for(*loaded, golden.cases[0], 30);
  int seen = 0;
  request.on_token = [&](const ops::Sampled&) { return ++seen < 3; };
  const Generated stopped = run(*loaded, request);
  CHECK(stopped.end == AnswerEnd::cancelled);
  CHECK(stopped.ids.size() == 3);
}

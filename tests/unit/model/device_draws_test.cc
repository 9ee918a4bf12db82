// Tokens drawn on the emulated device beside those of the CPU's sampler, over random mixes of settings, and with each
// instruction of the kernels left out.
#include "model/device_draws.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "count.h"
#include "gpu/emulated.h"
#include "test.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
using namespace mc;
using namespace mc::model;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr size_t kRowsMax = 9;

/// One row of a call, with what it refers to.
struct Asked {
  std::vector<float> logits;
  wire::Sampling sampling;
  std::vector<uint32_t> history = {}, banned = {};
  size_t prompt_tokens = 0;
  uint64_t position = 0;
  uint64_t sequence = 0;
  int32_t fed = -1;  // a row of the call before, whose token is the last of `history` on the device
  DrawRow row() const { return {&sampling, position, history, prompt_tokens, banned, fed}; }
};

struct Bench {
  std::shared_ptr<gpu::EmulatedDriver> driver = std::make_shared<gpu::EmulatedDriver>();
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<DeviceDraws> draws;
  gpu::DeviceBuffer logits;
  size_t place = 0;  // of the next call's results

  explicit Bench(size_t vocab, const gpu::emu::Options& options = {}, std::string_view mutated = "") {
    driver->gpu().set_options(options);
    driver->gpu().set_mutated(mutated);
    auto opened = gpu::Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
    draws = std::make_unique<DeviceDraws>(*device);
    REQUIRE_OK(draws->prepare(static_cast<uint32_t>(vocab), kRowsMax));
    auto buffer = gpu::DeviceBuffer::make(*device, kRowsMax * vocab * 4, "logits");
    REQUIRE_OK(buffer);
    logits = std::move(*buffer);
  }
  Result<std::vector<ops::Sampled>> draw(const std::vector<Asked>& asked) {
    std::vector<DrawRow> rows;
    std::vector<uint64_t> sequences;
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto bytes = std::as_bytes(std::span(asked[i].logits));
      MC_CHECK(device->write(logits.address() + i * bytes.size(), bytes));
      rows.push_back(asked[i].row());
      sequences.push_back(asked[i].sequence);
    }
    std::vector<ops::Sampled> out(rows.size());
    MC_TRY(call, draws->queue(rows, sequences, logits.address(), place));
    std::vector<DeviceCopies::Store> copies;
    call.add_copies(copies);
    for (const DeviceCopies::Store& copy : copies) MC_CHECK(device->read(copy.from, {copy.to, copy.bytes}));
    MC_CHECK(call.results(out));
    place = 1 - place;
    return out;
  }
};

Result<ops::Sampled> on_cpu(const Asked& a) {
  ops::Sampler sampler(*ops::variants()[0]);
  return sampler.sample(a.logits, a.sampling, a.position, a.history, a.prompt_tokens, a.banned);
}

void check_equal(const ops::Sampled& got, const ops::Sampled& want) {
  CHECK(got.token == want.token);
  CHECK(std::abs(got.logprob - want.logprob) <= 1e-5f);
  REQUIRE(got.top.size() == want.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    CHECK(got.top[i].token == want.top[i].token);
    if (want.top[i].logprob > -kInf) CHECK(std::abs(got.top[i].logprob - want.top[i].logprob) <= 1e-5f);
  }
}

Asked random_row(Rng& rng, size_t vocab) {
  Asked a;
  for (size_t i = 0; i < vocab; ++i) {
    auto logit = static_cast<float>(rng.normal() * 3);
    if (rng.chance(0.2)) logit = std::round(logit);  // ties, and both zeros
    if (rng.chance(0.05)) logit = -kInf;
    a.logits.push_back(logit);
  }
  a.logits[rng.below(vocab)] = 1;  // something can be drawn
  wire::Sampling& s = a.sampling;
  s.temperature = rng.chance(0.15) ? 0 : 0.05 + rng.uniform() * 3;
  if (rng.chance(0.4)) s.top_k = static_cast<uint32_t>(rng.below(vocab + 12));
  if (rng.chance(0.4)) s.top_p = 0.01 + rng.uniform() * 0.99;
  if (rng.chance(0.3)) s.min_p = rng.uniform();
  if (rng.chance(0.3)) s.repetition_penalty = 0.3 + rng.uniform() * 2;
  if (rng.chance(0.3)) s.presence_penalty = rng.uniform() * 4 - 2;
  if (rng.chance(0.3)) s.frequency_penalty = rng.uniform() * 4 - 2;
  if (rng.chance(0.5)) s.logprobs = static_cast<int32_t>(rng.below(20));
  s.seed = rng.next();
  s.stream = rng.below(4);
  a.position = rng.below(100);
  for (size_t i = rng.below(300); i > 0; --i) a.history.push_back(static_cast<uint32_t>(rng.below(vocab + 3)));
  a.prompt_tokens = rng.below(a.history.size() + 1);
  while (rng.chance(0.4)) s.logit_bias.emplace_back(rng.below(vocab + 2), rng.normal() * 5);
  if (vocab > 1 && rng.chance(0.2)) {
    const uint32_t token = static_cast<uint32_t>(rng.below(vocab));
    if (std::ranges::count_if(a.logits, [](float x) { return x > -kInf; }) > 1) a.banned = {token};
  }
  return a;
}

}  // namespace

TEST_CASE("model/draws: rows of every mix of settings get the CPU's tokens and log-probabilities in one call") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  int drawn = 0;
  for (const size_t vocab : {1u, 2u, 40u, 256u, 257u, 700u, 3000u})
    for (int round = 0; round < 3; ++round) {
      CAPTURE(vocab);
      Bench bench(vocab, {.seed = rng.next(), .policy = static_cast<gpu::emu::Policy>(round % gpu::emu::kPolicies)});
      std::vector<Asked> asked;
      while (asked.size() < kRowsMax) {
        Asked a = random_row(rng, vocab);
        if (on_cpu(a)) asked.push_back(std::move(a));
      }
      const auto got = bench.draw(asked);
      REQUIRE_OK(got);
      for (size_t i = 0; i < asked.size(); ++i, ++drawn) check_equal((*got)[i], *on_cpu(asked[i]));
      CHECK(bench.driver->gpu().counters().bank_conflicts == 0);
    }
  CHECK(drawn == 7 * 3 * kRowsMax);
}

TEST_CASE("model/draws: equal logits, a wide nucleus and extreme temperatures give the CPU's tokens") {
  Bench bench(600);
  std::vector<float> steep(600, -40.0f);
  for (size_t i = 0; i < 600; ++i) steep[i] += static_cast<float>(i % 50);
  const std::vector<float> equal(600, 1.0f);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const std::vector<Asked> asked = {
        {equal, {.top_k = 3, .seed = seed}},
        {equal, {.top_p = 0.999, .seed = seed}},
        {equal, {.seed = seed}},
        {equal, {.min_p = 1, .seed = seed}},
        {steep, {.temperature = 1e-30, .seed = seed}},
        {steep, {.temperature = 100, .top_p = 1e-9, .seed = seed}},
        {steep, {.temperature = 2, .top_k = 599, .top_p = 0.5, .min_p = 0.01, .seed = seed}},
        {steep, {.top_k = 600, .seed = seed, .logprobs = 64}}};
    const auto got = bench.draw(asked);
    REQUIRE_OK(got);
    for (size_t i = 0; i < asked.size(); ++i) check_equal((*got)[i], *on_cpu(asked[i]));
  }
}

TEST_CASE("model/draws: a sequence's tokens are counted once each, over steps, in parts, and anew behind forget()") {
  Rng rng(test::seed());
  Bench bench(300);
  const auto ask = [&](uint64_t sequence, size_t tokens) {
    Asked a{.sampling = {.seed = 3}, .prompt_tokens = tokens, .sequence = sequence};
    for (int i = 0; i < 300; ++i) a.logits.push_back(static_cast<float>(rng.normal()));
    a.sampling.frequency_penalty = 0.7, a.sampling.repetition_penalty = 1.3;
    while (a.history.size() < tokens) a.history.push_back(static_cast<uint32_t>(rng.below(310)));
    return a;
  };
  std::vector<Asked> asked = {ask(1, 20000), ask(2, 5), ask(0, 40)};  // the first in two parts
  const auto check = [&] {
    const auto got = bench.draw(asked);
    REQUIRE_OK(got);
    for (size_t i = 0; i < asked.size(); ++i) check_equal((*got)[i], *on_cpu(asked[i]));
  };
  for (int step = 0; step < 4; ++step, asked[0].position++) {
    check();
    for (Asked& a : asked) a.history.push_back(static_cast<uint32_t>(rng.below(20)));
  }
  bench.draws->forget(2);
  asked[1] = ask(2, 30);  // another sequence of that name
  check();
  // More sequences than slots: the oldest lose theirs.
  for (uint64_t first = 10; first < 40; first += 3) {
    asked = {ask(first, 9), ask(first + 1, 8), ask(first + 2, 7)};
    check();
  }
  asked = {ask(1, 12)};  // shorter than what was counted
  check();
}

TEST_CASE("model/draws: a token that the host has not seen is counted once, as the one that the row before drew") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  constexpr size_t kVocab = 60;
  constexpr uint32_t kUnseen = 0xffffffff;
  Bench bench(kVocab);
  std::vector<Asked> rows;
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    Asked a{.sampling = {.temperature = sequence == 1 ? 0.0 : 0.7, .seed = sequence}, .sequence = sequence};
    a.sampling.frequency_penalty = 1.5, a.sampling.repetition_penalty = 1.2;
    while (a.logits.size() < kVocab) a.logits.push_back(static_cast<float>(rng.normal()));
    for (size_t i = 0; i < 4 * sequence; ++i) a.history.push_back(static_cast<uint32_t>(rng.below(kVocab)));
    a.prompt_tokens = a.history.size();
    rows.push_back(std::move(a));
  }
  for (int step = 0; step < 6; ++step) {
    std::vector<ops::Sampled> want;
    for (const Asked& a : rows) want.push_back(*on_cpu(a));
    std::vector<Asked> asked = rows;
    if (step > 0)
      for (Asked& a : asked) a.history.back() = kUnseen;
    const auto got = bench.draw(asked);
    REQUIRE_OK(got);
    for (size_t i = 0; i < rows.size(); ++i) check_equal((*got)[i], want[i]);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].history.push_back(want[i].token);
      rows[i].fed = static_cast<int32_t>(i);
      ++rows[i].position;
    }
    std::ranges::rotate(rows, rows.begin() + 1);  // the rows of a step have another order
    if (step == 3) bench.draws->forget(2);        // counted anew, with the token that is not seen
  }
}

TEST_CASE("model/draws: broken logits are an error as on the CPU, and grammars and long lists stay with the host") {
  Bench bench(4);
  const std::vector<float> finite = {0, 1, 2, 3}, nothing(4, -kInf), infinite = {0, kInf, 0, 0}, nan = {0, NAN, 2, 0};
  for (const auto& logits : {nothing, infinite}) {
    const auto got = bench.draw({{finite, {}}, {logits, {}}});
    REQUIRE_FALSE(got.has_value());
    CHECK(got.error().what == on_cpu({logits, {}}).error().what);
  }
  const auto scored = bench.draw({{nan, {.logprobs = 1}}});
  REQUIRE_FALSE(scored.has_value());
  CHECK(scored.error().what == on_cpu({nan, {.logprobs = 1}}).error().what);
  const auto drawn = bench.draw({{nan, {.temperature = 0}}});
  REQUIRE_OK(drawn);
  CHECK((*drawn)[0].token == 2);
  const Asked grammar{finite, {.grammar = "{}"}}, many{finite, {.logprobs = 65}}, most{finite, {.logprobs = 64}};
  CHECK_FALSE(DeviceDraws::draws(grammar.row()));
  CHECK_FALSE(DeviceDraws::draws(many.row()));
  CHECK(DeviceDraws::draws(most.row()));
}

namespace {

/// Rows in which each instruction of the kernels decides about a token, a log-probability or a list.
std::vector<Asked> telling_rows(Rng& rng) {
  constexpr size_t kVocab = 320;
  std::vector<Asked> out;
  const auto noise = [&](float scale) {
    std::vector<float> logits(kVocab);
    for (float& x : logits) x = static_cast<float>(rng.normal()) * scale;
    return logits;
  };
  std::vector<float> close(kVocab, 0.0f);  // 70 before 310
  close[70] = 5, close[310] = 4.9f;
  const auto greedy = [&](wire::Sampling sampling, size_t prompt_tokens) {
    sampling.temperature = 0;
    out.push_back({close, sampling, {70, 8}, {}, prompt_tokens});
  };
  greedy({.repetition_penalty = 1.1}, 2);                            // 310
  greedy({.presence_penalty = 0.02, .frequency_penalty = 0.03}, 0);  // 70: 4.95
  greedy({.presence_penalty = 0.05, .frequency_penalty = 0.1}, 0);   // 310: 4.85 for 70
  greedy({.logit_bias = {{310, 0.2}}}, 0);                           // 310
  out.push_back({noise(2), {.top_k = 40, .top_p = 0.9, .min_p = 0.02, .seed = 11, .logprobs = 5}});
  out.push_back({noise(1), {.seed = 12, .logprobs = 0}});
  std::vector<float> equal(kVocab, 0.5f);
  for (size_t i = 0; i < kVocab; i += 3) equal[i] = 1;
  out.push_back({equal, {.top_p = 0.8, .seed = 13, .logprobs = 7}});
  out.push_back({noise(3), {.temperature = 2, .top_k = 100, .seed = 14}});
  std::vector<float> few(kVocab, -kInf);
  few[9] = 1, few[300] = 1.5f;
  out.push_back({few, {.top_k = 3, .seed = 15}});  // which cuts nothing, so ids give the order
  MC_ASSERT_LE(out.size(), kRowsMax);
  return out;
}

/// A row that draws 200, because the penalty is for the token that row `fed` of the call before drew. `history` ends
/// with that token, or with anything where the device is to take it from the draw.
Asked fed_row(int32_t fed, uint32_t drawn, uint32_t last) {
  std::vector<float> close(320, 0.0f);
  close[drawn] = 5, close[200] = 4.9f;
  return {close, {.temperature = 0, .repetition_penalty = 1.1}, {8, last}, {}, 1, 0, 7, fed};
}

/// The draws of a call, and of one behind it whose row takes a token of the first.
Result<std::vector<ops::Sampled>> draw_twice(Bench& bench, const std::vector<Asked>& asked, uint32_t first) {
  MC_TRY(out, bench.draw(asked));
  MC_TRY(behind, bench.draw({fed_row(0, first, 0xffffffff)}));
  out.push_back(behind[0]);
  return out;
}

}  // namespace

TEST_CASE("model/draws: each instruction that a kernel leaves out is reported, or gives another draw") {
  Rng rng(17);
  const std::vector<Asked> asked = telling_rows(rng);
  const size_t vocab = asked[0].logits.size();
  std::vector<ops::Sampled> want;
  for (const Asked& a : asked) want.push_back(*on_cpu(a));
  const uint32_t first = want[0].token;
  want.push_back(*on_cpu(fed_row(-1, first, first)));
  CHECK(want.back().token == 200);
  for (const std::string_view kernel : {"draw_rows", "count_tokens"}) {
    std::vector<gpu::emu::Site> sites;
    Bench sound(vocab, {.sites = &sites}, kernel);
    const auto got = draw_twice(sound, asked, first);
    REQUIRE_OK(got);
    for (size_t i = 0; i < want.size(); ++i) check_equal((*got)[i], want[i]);
    int mutants = 0, runs = 0;
    for (const gpu::emu::Site& site : sites) {
      if (site.instruction == gpu::emu::Instruction::exit) continue;
      const gpu::emu::Mutation mutation{.site = site};
      const int first = mutants++;
      for (int i = 0; i < test::count(1, gpu::emu::kPolicies); ++i, ++runs) {
        const auto policy = static_cast<gpu::emu::Policy>((first + i) % gpu::emu::kPolicies);
        Bench bench(vocab, {.seed = rng.next(), .policy = policy, .mutation = &mutation}, kernel);
        const auto mutant = draw_twice(bench, asked, first);
        const bool is_seen =
            !mutant || !std::ranges::equal(*mutant, *got, [](const ops::Sampled& a, const ops::Sampled& b) {
              return a.token == b.token && a.logprob == b.logprob && a.top == b.top;
            });
        CHECK_MESSAGE(is_seen, kernel, ": ", gpu::emu::to_string(site.instruction), " at ", site.line);
      }
    }
    CHECK(mutants >= (kernel == "draw_rows" ? 40 : 4));
    CHECK(runs == mutants * test::count(1, gpu::emu::kPolicies));
  }
}
#endif

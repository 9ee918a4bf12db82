#include "sim/synth.h"

#include <numeric>

#include "sim/lru.h"
#include "sim/replacement.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

/// Sessions of three turns, a minute apart, that share one block and grow by 512 tokens a turn; two come
/// every two seconds.
std::vector<TraceRequest> sessions(size_t count) {
  std::vector<TraceRequest> out;
  uint64_t next = 1;
  std::vector<std::vector<uint64_t>> prompts;
  for (size_t i = 0; i < count; ++i) {
    const double now = 2000.0 * static_cast<double>(i / 2);
    const size_t age = 60;  // requests: 30 instants of two
    std::vector<uint64_t> ids = {0};
    if (i >= age && (i / age) % 3 != 0) ids = prompts[i - age];
    while (ids.size() < 4 + (i / age) % 3) ids.push_back(next++);
    prompts.push_back(ids);
    out.push_back({now, 512 * ids.size() - 100, 50, ids});
  }
  return out;
}

double token_hit(const std::vector<TraceRequest>& trace) {
  const auto leading = replay_cache(TraceBlocks(trace), kUnlimitedBlocks, *find_replacement("lru"));
  double hit = 0, all = 0;
  for (size_t r = 0; r < trace.size(); ++r) {
    hit += static_cast<double>(std::min<uint64_t>(512 * leading[r], trace[r].input_tokens));
    all += static_cast<double>(trace[r].input_tokens);
  }
  return hit / all;
}

}  // namespace

TEST_CASE("sim/synth: what is made is a sound trace with dense ids") {
  Rng rng(test::seed());
  const auto made = TraceModel(sessions(600)).generate(1000, rng);
  INFO("seed " << test::seed());
  REQUIRE(made.size() == 1000);
  uint64_t next = 0;
  double before = 0;
  for (const TraceRequest& r : made) {
    CHECK(r.timestamp_ms >= before);
    before = r.timestamp_ms;
    CHECK(r.hash_ids.size() == (r.input_tokens + 511) / 512);
    for (const uint64_t id : r.hash_ids) {
      CHECK(id <= next);
      next = std::max(next, id + 1);
    }
  }
}

TEST_CASE("sim/synth: rate, lengths, shared start and reuse are those of the trace fitted to") {
  const auto original = sessions(1800);
  Rng rng(test::seed());
  const auto made = TraceModel(original).generate(1800, rng);
  INFO("seed " << test::seed());
  CHECK(made.back().timestamp_ms == doctest::Approx(original.back().timestamp_ms).epsilon(.01));
  const auto total = [](const std::vector<TraceRequest>& trace) {
    return std::accumulate(trace.begin(), trace.end(), 0.0,
                           [](double sum, const TraceRequest& r) { return sum + static_cast<double>(r.input_tokens); });
  };
  CHECK(total(made) == doctest::Approx(total(original)).epsilon(.1));
  const Sharing sharing = find_sharing(made, TraceBlocks(made));
  CHECK(sharing.common_blocks == 1);
  CHECK(token_hit(made) == doctest::Approx(token_hit(original)).epsilon(.15));
}

TEST_CASE("sim/synth: the same seed makes the same trace, another one another") {
  const TraceModel model(sessions(300));
  Rng a(7), b(7), c(8);
  const auto first = model.generate(200, a), second = model.generate(200, b), other = model.generate(200, c);
  std::string one, two, three;
  for (const auto& r : first) one += trace_line(r);
  for (const auto& r : second) two += trace_line(r);
  for (const auto& r : other) three += trace_line(r);
  CHECK(one == two);
  CHECK(one != three);
}

TEST_CASE("sim/synth: one request is enough to fit to") {
  Rng rng(1);
  const auto made = TraceModel({{5, 600, 3, {9, 4}}}).generate(3, rng);
  REQUIRE(made.size() == 3);
  CHECK(made[2].input_tokens == 600);
  CHECK(made[2].hash_ids == std::vector<uint64_t>{4, 5});
}

TEST_CASE("sim/trace: merged traces keep time, and equal ids of two traces stay two blocks") {
  const auto merged = merge_traces({{{0, 600, 1, {5, 6}}, {20, 512, 1, {5}}}, {{0, 512, 1, {5}}, {10, 512, 1, {5}}}});
  REQUIRE(merged.size() == 4);
  CHECK(merged[0].hash_ids == std::vector<uint64_t>{0, 1});
  CHECK(merged[1].hash_ids == std::vector<uint64_t>{2});
  CHECK(merged[2].hash_ids == std::vector<uint64_t>{2});
  CHECK(merged[3].hash_ids == std::vector<uint64_t>{0});
}

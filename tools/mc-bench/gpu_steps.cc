#include "gpu_steps.h"

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/parallel.h"
#include "model/find.h"
#include "model/generate.h"
#include "model/runner.h"
#include "print.h"

namespace mc::bench {
namespace {

/// Sequences that decode side by side from their first token on.
class Batch {
 public:
  static Result<Batch> open(model::Runner& runner, size_t rows, int steps) {
    Batch out(runner);
    for (size_t row = 0; row < rows; ++row) {
      MC_TRY(pages, model::LocalPages::allocate(runner.layout(), steps));
      out.pages_.push_back(std::move(pages));
      out.tokens_.push_back(static_cast<uint32_t>(20 + 31 * row % 1000));
    }
    out.plan_.layers = static_cast<int32_t>(runner.model().config().layers);
    return out;
  }

  /// Takes the steps. The tokens of the last one are in tokens().
  Result<void> run(int steps, size_t queued) {
    size_t under_way = 0;
    for (int step = 0; step < steps; ++step) {
      MC_CHECK(queue(step, under_way > 0));
      ++under_way;
      for (; under_way == queued; --under_way) MC_CHECK(collect());
    }
    for (; under_way > 0; --under_way) MC_CHECK(collect());
    return {};
  }
  const std::vector<uint32_t>& tokens() const { return tokens_; }
  void forget() {
    for (size_t row = 0; row < pages_.size(); ++row) runner_.forget(row + 1);
  }

 private:
  explicit Batch(model::Runner& runner) : runner_(runner) {}
  Result<void> queue(int step, bool is_behind) {
    std::vector<model::DecodeRow> rows;
    std::vector<model::DrawRow> draws;
    for (size_t row = 0; row < pages_.size(); ++row) {
      const int32_t fed = is_behind ? static_cast<int32_t>(row) : -1;
      rows.push_back({tokens_[row], step, pages_[row].pages(), &plan_, nullptr, row + 1, fed});
      draws.push_back({&greedy_, static_cast<uint64_t>(step) + 1, {}, 0, {}, fed});
    }
    return runner_.queue_step(rows, draws);
  }
  Result<void> collect() {
    std::vector<ops::Sampled> drawn(pages_.size());
    MC_CHECK(runner_.collect_step(drawn));
    for (size_t row = 0; row < drawn.size(); ++row) tokens_[row] = drawn[row].token;
    return {};
  }

  model::Runner& runner_;
  std::vector<model::LocalPages> pages_;
  std::vector<uint32_t> tokens_;
  attn::Plan plan_;
  wire::Sampling greedy_{.temperature = 0};
};

struct Ran {
  std::vector<uint32_t> tokens;
  double seconds = 0;  // of a step
};

Result<void> warm_up(model::Runner& runner, size_t rows) {
  MC_TRY(batch, Batch::open(runner, rows, 1));
  MC_CHECK(batch.run(1, 1));
  batch.forget();
  return {};
}

Result<Ran> run_way(model::Runner& runner, size_t rows, int steps, size_t queued) {
  MC_TRY(batch, Batch::open(runner, rows, steps));
  const TimePoint began = steady_now();
  MC_CHECK(batch.run(steps, queued));
  const double seconds = to_seconds(steady_now() - began) / steps;
  batch.forget();
  return Ran{batch.tokens(), seconds};
}

Json describe_steps(uint64_t batch, const StepWay& way, int steps) {
  Json out = Json::object({{"type", "steps"}, {"model", "mc-tiny"}});
  return std::move(out.set("batch", batch).set("way", std::string(way.name)).set("steps", steps));
}

std::vector<std::string> steps_cells(const Json& row) {
  return {row["batch"].dump(), std::string(row["way"].as_string()), row["steps"].dump(),
          row.find("seconds") == nullptr ? "-" : fixed(row["seconds"].as_double() * 1e3, 3)};
}

}  // namespace

Table steps_table() {
  return Table({"batch", "steps are queued", "steps", "ms a step"});
}

Result<void> time_steps(gpu::Device& device, const StepsOptions& options, Rows& rows) {
  Parallel parallel(1);
  MC_TRY(directory, model::find_model("mc-tiny"));
  MC_TRY(loaded, model::Model::open(directory, {.dtype = "bf16"}, parallel));
  for (const uint64_t batch : options.batches)
    for (const StepWay& way : kStepWays) rows.expect(steps_cells(describe_steps(batch, way, options.steps)));
  for (const uint64_t batch : options.batches) {
    std::vector<uint32_t> expected;
    for (const StepWay& way : kStepWays) {
      const model::RunnerOptions limits{
          .max_chunk_tokens = 64, .max_batch = static_cast<uint32_t>(batch), .graphs = way.graphs};
      MC_TRY(runner, model::Runner::open(loaded, parallel, limits, &device));
      if (options.is_timed) MC_CHECK(warm_up(runner, batch));
      MC_TRY(ran, run_way(runner, batch, options.steps, way.queued));
      Json row = describe_steps(batch, way, options.steps);
      row.set("replayed", runner.replayed_steps());
      if (options.is_timed) row.set("seconds", ran.seconds);
      std::vector<std::string> cells = steps_cells(row);
      MC_CHECK(rows.add(std::move(row), std::move(cells)));
      if (expected.empty()) expected = ran.tokens;
      if (ran.tokens != expected)
        return user_error(err::kWrongAnswer, "steps draw other tokens when they are queued in another way", {},
                          "this is a fault of the programs: report it with these lines, which repeat it");
    }
  }
  return {};
}

}  // namespace mc::bench

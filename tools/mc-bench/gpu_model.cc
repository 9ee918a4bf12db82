#include "gpu_model.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "gpu_steps.h"
#include "model/device_loads.h"
#include "model/generate.h"
#include "model/runner.h"
#include "print.h"

namespace mc::bench {
namespace {

constexpr uint32_t kLlamaBlock = 64;  // tokens of a page

/// A shape, and what is measured with it.
struct LlamaShape {
  std::string_view name;
  uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
  int64_t prompt, context;  // tokens: of prefill, and below a decode step
  std::span<const uint32_t> chunks;
  int steps;  // of decode, at most a page
};
constexpr uint32_t kLlamaChunks[] = {512, 2048}, kLlamaSmallChunks[] = {64};
constexpr LlamaShape kLlamaShapes[] = {{"8b", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 2048, kLlamaChunks, 48},
                                       {"small", 2, 128, 192, 2, 1, 64, 256, 128, 64, kLlamaSmallChunks, 3}};

model::ModelConfig llama_config(const LlamaShape& shape) {
  model::ModelConfig c;
  c.hidden = shape.hidden;
  c.intermediate = shape.intermediate;
  c.layers = shape.layers;
  c.heads = shape.heads;
  c.kv_heads = shape.kv_heads;
  c.head_dim = shape.head_dim;
  c.vocab = shape.vocab;
  c.max_positions = 131072;
  c.norm_epsilon = 1e-5f;
  c.rope.theta = 500000;
  return c;
}

/// The work of a pass.
struct LlamaWork {
  explicit LlamaWork(const model::Model& model) : config(model.config()) {
    weights = static_cast<double>(model.weight_bytes() - model.embedding_bytes()) / 2;  // a table is not multiplied
    const auto layout = model.kv_layout(kLlamaBlock);
    token_bytes = 2.0 * layout.kv_heads * static_cast<double>(layout.row_bytes()) * layout.layers;
  }
  /// Multiplications and additions of a prompt. The head is counted for its last token.
  double prefill_flops(int64_t tokens) const {
    const auto n = static_cast<double>(tokens);
    const double head = static_cast<double>(config.vocab) * config.hidden;
    const double attention = 2.0 * config.layers * config.heads * config.head_dim * n * (n + 1);
    return 2 * ((weights - head) * n + head) + attention;
  }
  /// Bytes of weights, and of K and V, that a step reads at least.
  double step_bytes(uint64_t batch, double tokens) const {
    return 2 * weights + static_cast<double>(batch) * tokens * token_bytes;
  }
  model::ModelConfig config;
  double weights = 0, token_bytes = 0;
};

/// Takes the loads that have ended.
Result<void> check_loads(model::Runner& runner) {
  while (const auto ended = runner.loads()->take_ended())
    if (ended->error || !ended->rotten.empty())
      return Error{Code::corrupt, "a page does not match its checksum on the device"};
  return {};
}

struct PrefillTimes {
  double all = 0;
  double exposed = 0;  // from the end of the last chunk's layers on the device until their K and V are on the host
};

/// One prompt, whose pages decode then takes.
class LlamaPrompt {
 public:
  static Result<LlamaPrompt> open(model::Runner& runner, const LlamaShape& shape) {
    LlamaPrompt out(shape);
    MC_TRY(pages, model::LocalPages::allocate(runner.layout(), shape.prompt));
    out.pages_.emplace(std::move(pages));
    out.plan_.layers = static_cast<int32_t>(shape.layers);
    for (int64_t i = 0; i < shape.prompt; ++i) out.tokens_.push_back(static_cast<uint32_t>(i * 7919 % shape.vocab));
    for (int64_t i = 0; i < shape.prompt / kLlamaBlock; ++i) out.numbers_.push_back(static_cast<int32_t>(i));
    return out;
  }

  Result<PrefillTimes> run(model::Runner& runner, gpu::Device& device, uint32_t chunk_tokens) {
    PrefillTimes out;
    std::vector<float> logits(shape_.vocab);
    const TimePoint began = steady_now();
    for (int64_t start = 0; start < shape_.prompt; start += chunk_tokens) {
      const auto tokens = std::min<int64_t>(chunk_tokens, shape_.prompt - start);
      const bool is_last = start + tokens == shape_.prompt;
      TimePoint computed = began;
      model::PrefillChunk chunk;
      chunk.tokens = std::span(tokens_).subspan(static_cast<size_t>(start), static_cast<size_t>(tokens));
      chunk.start = start;
      chunk.pages = pages_->pages();
      chunk.plan = &plan_;
      chunk.device_pages = std::span(numbers_).first(static_cast<size_t>((start + tokens) / kLlamaBlock));
      if (is_last) chunk.logits = logits;
      // The last layer is queued when the one before it is announced.
      bool is_alive = true;
      chunk.on_layer = [&](uint32_t layer) {
        if (!is_last) return true;
        if (layer + 2 == shape_.layers) is_alive = device.finish().has_value();
        if (layer + 2 == shape_.layers) computed = steady_now();
        if (layer + 1 == shape_.layers) out.exposed = to_seconds(steady_now() - computed);
        return is_alive;
      };
      MC_CHECK(runner.prefill(chunk));
    }
    out.all = to_seconds(steady_now() - began);
    return out;
  }
  std::byte* const* pages() const { return pages_->pages(); }
  const attn::Plan& plan() const { return plan_; }
  const std::vector<int32_t>& numbers() const { return numbers_; }

 private:
  explicit LlamaPrompt(const LlamaShape& shape) : shape_(shape) {}
  LlamaShape shape_;
  std::optional<model::LocalPages> pages_;
  attn::Plan plan_;
  std::vector<uint32_t> tokens_;
  std::vector<int32_t> numbers_;  // of pages on the device
};

/// CRC32C of the extents of the first pages, [page][layer].
std::vector<uint32_t> extent_sums(const ExtentLayout& layout, std::byte* const* pages, size_t count) {
  std::vector<uint32_t> out;
  for (size_t page = 0; page < count; ++page)
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      out.push_back(crc32c({pages[page] + layout.layer_offset(layer), layout.layer_bytes()}));
  return out;
}

/// Sequences that decode side by side behind a context, which each has in pages of its own on the device.
class LlamaDecoding {
 public:
  static Result<LlamaDecoding> open(model::Runner& runner, const LlamaPrompt& prompt, const LlamaShape& shape,
                                    size_t rows) {
    LlamaDecoding out(runner, prompt, shape);
    const auto below = static_cast<size_t>(shape.context / kLlamaBlock);
    const std::vector<uint32_t> sums = extent_sums(runner.layout(), prompt.pages(), below);
    const std::vector<const std::byte*> from(prompt.pages(), prompt.pages() + below);
    for (size_t row = 0; row < rows; ++row) {
      MC_TRY(tail, model::LocalPages::allocate(runner.layout(), kLlamaBlock));
      Row made;
      made.pages.assign(prompt.pages(), prompt.pages() + below);
      made.pages.push_back(tail.pages()[0]);
      for (size_t page = 0; page <= below; ++page)
        made.numbers.push_back(static_cast<int32_t>(row * (below + 1) + page));
      const std::span<const int32_t> read(made.numbers.data(), below);
      runner.loads()->add({.load = row + 1, .from = from, .to = {read.begin(), read.end()}, .crcs = sums});
      MC_CHECK(runner.loads()->finish(read));
      out.tails_.push_back(std::move(tail));
      out.rows_.push_back(std::move(made));
    }
    MC_CHECK(check_loads(runner));
    return out;
  }

  /// Takes steps of the first sequences, from the context on.
  Result<void> run(size_t batch, int steps, size_t queued) {
    MC_ASSERT(batch > 0 && batch <= rows_.size());
    batch_ = batch;
    for (size_t row = 0; row < batch_; ++row) rows_[row].token = static_cast<uint32_t>(20 + row);
    size_t under_way = 0;
    for (int step = 0; step < steps; ++step) {
      MC_CHECK(queue(step, under_way > 0));
      ++under_way;
      for (; under_way == queued; --under_way) MC_CHECK(collect());
    }
    for (; under_way > 0; --under_way) MC_CHECK(collect());
    for (size_t row = 0; row < batch_; ++row) runner_.forget(row + 1);
    return {};
  }
  std::vector<uint32_t> tokens() const {
    std::vector<uint32_t> out;
    for (size_t row = 0; row < batch_; ++row) out.push_back(rows_[row].token);
    return out;
  }

 private:
  struct Row {
    uint32_t token = 0;
    std::vector<std::byte*> pages;  // of the host; those of the context are the prompt's
    std::vector<int32_t> numbers;   // of pages on the device
  };
  LlamaDecoding(model::Runner& runner, const LlamaPrompt& prompt, const LlamaShape& shape)
      : runner_(runner), plan_(&prompt.plan()), context_(shape.context) {}

  Result<void> queue(int step, bool is_behind) {
    std::vector<model::DecodeRow> rows;
    std::vector<model::DrawRow> draws;
    for (size_t row = 0; row < batch_; ++row) {
      const int32_t fed = is_behind ? static_cast<int32_t>(row) : -1;
      rows.push_back({.token = rows_[row].token,
                      .position = context_ + step,
                      .pages = rows_[row].pages.data(),
                      .plan = plan_,
                      .sequence = row + 1,
                      .fed = fed,
                      .device_pages = rows_[row].numbers.data()});
      draws.push_back({.sampling = &greedy_, .position = static_cast<uint64_t>(step) + 1, .fed = fed});
    }
    return runner_.queue_step(rows, draws);
  }
  Result<void> collect() {
    std::vector<ops::Sampled> drawn(batch_);
    MC_CHECK(runner_.collect_step(drawn));
    for (size_t row = 0; row < drawn.size(); ++row) rows_[row].token = drawn[row].token;
    return {};
  }

  model::Runner& runner_;
  const attn::Plan* plan_;
  int64_t context_;
  std::vector<Row> rows_;
  size_t batch_ = 0;  // of them that decode
  std::vector<model::LocalPages> tails_;
  wire::Sampling greedy_{.temperature = 0};
};

std::vector<std::string> model_cells(const Json& row) {
  const auto some = [&](const char* key, double scale, int decimals) {
    return row.find(key) == nullptr ? std::string("-") : fixed(row[key].as_double() * scale, decimals);
  };
  return {std::string(row["model"].as_string()) + " " + std::string(row["phase"].as_string()),
          row["tokens"].dump() + " x " + row["batch"].dump(),
          std::string(row["way"].as_string()),
          some("seconds", 1e3, 3),
          some("tokens_per_second", 1, 0),
          some("peak_share", 100, 1),
          some("share_of_prefill", 100, 2)};
}

/// All measurements of one shape.
class ModelSpeed {
 public:
  ModelSpeed(gpu::Device& device, const LlamaShape& shape, const ModelSpeedOptions& options, Rows& rows)
      : device_(device),
        shape_(shape),
        options_(options),
        rows_(rows),
        model_(model::Model::without_weights(llama_config(shape))),
        work_(model_) {}

  Result<void> run() {
    announce();
    for (const bool graphs : {false, true}) {
      MC_TRY(runner, open(graphs));
      MC_TRY(prompt, LlamaPrompt::open(runner, shape_));
      MC_CHECK(prefill(runner, prompt, !graphs));
      MC_TRY(decoding, LlamaDecoding::open(runner, prompt, shape_, std::ranges::max(options_.batches)));
      for (const StepWay& way : kStepWays)
        if (way.graphs == graphs)
          for (const uint64_t batch : options_.batches) MC_CHECK(decode(runner, decoding, way, batch));
    }
    return {};
  }

 private:
  /// The widest cells.
  void announce() {
    const uint64_t batch = std::ranges::max(options_.batches);
    rows_.expect(model_cells(describe("hand-over", std::string(kStepWays[2].name), 1, 8192)));
    rows_.expect(model_cells(describe("decode", std::string(kStepWays[2].name), batch, 8192)));
  }

  Result<model::Runner> open(bool graphs) {
    const uint64_t batch = std::ranges::max(options_.batches);
    const auto pages = static_cast<uint64_t>(shape_.context / kLlamaBlock + 1);
    const model::RunnerOptions limits{
        .block_tokens = kLlamaBlock,
        .max_chunk_tokens = std::ranges::max(shape_.chunks),
        .max_batch = static_cast<uint32_t>(batch),
        .graphs = graphs,
        .device_pages = static_cast<uint32_t>(std::max<uint64_t>(batch * pages, shape_.prompt / kLlamaBlock))};
    return model::Runner::open(model_, parallel_, limits, &device_);
  }

  Result<void> prefill(model::Runner& runner, LlamaPrompt& prompt, bool is_measured) {
    for (const uint32_t chunk : shape_.chunks) {
      MC_TRY(first, prompt.run(runner, device_, chunk));  // the algorithms of products are chosen
      if (!is_measured) return {};
      PrefillTimes best = first;
      for (int turn = 0; options_.is_timed && turn < 3; ++turn) {
        MC_TRY(more, prompt.run(runner, device_, chunk));
        if (turn == 0 || more.all < best.all) best = more;
      }
      const auto tokens = static_cast<uint64_t>(shape_.prompt);
      const std::string way = "chunks of " + std::to_string(chunk);
      Json row = describe("prefill", way, 1, tokens);
      if (options_.is_timed) {
        row.set("seconds", best.all).set("tokens_per_second", static_cast<double>(tokens) / best.all);
        const double flops = work_.prefill_flops(shape_.prompt) / best.all;
        row.set("flops", flops);
        if (options_.matrix_peak > 0) row.set("peak_share", flops / options_.matrix_peak);
      }
      MC_CHECK(add(std::move(row)));
      Json exposed = describe("hand-over", way, 1, tokens);
      if (options_.is_timed)
        exposed.set("seconds", best.exposed).set("share_of_prefill", best.exposed / best.all);
      MC_CHECK(add(std::move(exposed)));
      if (chunk == shape_.chunks.back()) MC_CHECK(load(runner, prompt, best.all));
    }
    return {};
  }

  /// The way of the prompt's pages from the host to a device, as a decode node takes it when nothing hides it.
  Result<void> load(model::Runner& runner, const LlamaPrompt& prompt, double prefill) {
    const size_t count = prompt.numbers().size();
    model::PageLoad load{.load = 1, .from = {prompt.pages(), prompt.pages() + count}, .to = prompt.numbers()};
    load.crcs = extent_sums(runner.layout(), prompt.pages(), count);
    const TimePoint began = steady_now();
    runner.loads()->add(std::move(load));
    MC_CHECK(runner.loads()->finish(prompt.numbers()));
    const double seconds = to_seconds(steady_now() - began);
    MC_CHECK(check_loads(runner));
    Json row = describe("load", "at once", 1, static_cast<uint64_t>(shape_.prompt));
    if (options_.is_timed) row.set("seconds", seconds).set("share_of_prefill", seconds / prefill);
    return add(std::move(row));
  }

  Result<void> decode(const model::Runner& runner, LlamaDecoding& decoding, const StepWay& way, uint64_t batch) {
    constexpr int kWarmUp = 3;
    MC_CHECK(decoding.run(batch, kWarmUp, way.queued));
    const uint64_t replayed = runner.replayed_steps();
    const TimePoint began = steady_now();
    MC_CHECK(decoding.run(batch, shape_.steps, way.queued));
    const double seconds = to_seconds(steady_now() - began) / shape_.steps;
    Json row = describe("decode", std::string(way.name), batch, static_cast<uint64_t>(shape_.context));
    row.set("steps", shape_.steps).set("replayed", runner.replayed_steps() - replayed);
    if (options_.is_timed) {
      const double tokens = static_cast<double>(shape_.context) + (shape_.steps + 1) / 2.0;
      const double bytes = work_.step_bytes(batch, tokens) / seconds;
      row.set("seconds", seconds).set("tokens_per_second", static_cast<double>(batch) / seconds);
      row.set("bytes_per_second", bytes);
      if (options_.copy_rate > 0) row.set("peak_share", bytes / options_.copy_rate);
    }
    MC_CHECK(add(std::move(row)));
    const auto [expected, is_first] = drawn_.try_emplace(batch, decoding.tokens());
    if (is_first || expected->second == decoding.tokens()) return {};
    return user_error(err::kWrongAnswer, "steps draw other tokens when they are queued in another way", {},
                      "this is a fault of the programs: report it with these lines, which repeat it");
  }

  Json describe(std::string_view phase, const std::string& way, uint64_t batch, uint64_t tokens) const {
    Json out = Json::object({{"type", "model"}, {"model", std::string(shape_.name)}, {"phase", std::string(phase)}});
    return std::move(out.set("way", way).set("batch", batch).set("tokens", tokens));
  }
  Result<void> add(Json row) {
    std::vector<std::string> cells = model_cells(row);
    return rows_.add(std::move(row), std::move(cells));
  }

  gpu::Device& device_;
  LlamaShape shape_;
  const ModelSpeedOptions& options_;
  Rows& rows_;
  Parallel parallel_{1};
  model::Model model_;
  LlamaWork work_;
  std::map<uint64_t, std::vector<uint32_t>> drawn_;  // tokens of the last step, by batch
};

}  // namespace

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> out{"mc-tiny"};
  for (const LlamaShape& shape : kLlamaShapes) out.push_back(shape.name);
  return out;
}

Table model_speed_table() {
  return Table({"model", "tokens x batch", "way", "ms", "tokens/s", "% of peak", "% of prefill"});
}

Result<void> time_model(gpu::Device& device, const ModelSpeedOptions& options, Rows& rows) {
  const auto shape = std::ranges::find(kLlamaShapes, options.shape, &LlamaShape::name);
  MC_ASSERT(shape != std::end(kLlamaShapes));  // --shape has the table
  return ModelSpeed(device, *shape, options, rows).run();
}

}  // namespace mc::bench

#include "model/runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "gpu/device_group.h"
#include "gpu/matmul.h"
#include "model/backend.h"
#include "model/cpu_backend.h"
#include "model/device_backend.h"
#include "model/device_layers.h"
#include "model/split_backend.h"

namespace mc::model {
namespace {

constexpr size_t kScoredAtOnce = 16;  // rows that share a pass over the head

}  // namespace

Runner::Runner(const Model& model, const RunnerOptions& options, const ops::Kernels& kernels,
               std::unique_ptr<Backend> backend)
    : model_(&model),
      options_(options),
      layout_(model.kv_layout(options.block_tokens)),
      kernels_(&kernels),
      backend_(std::move(backend)) {}
Runner::~Runner() = default;
Runner::Runner(Runner&&) noexcept = default;
Runner& Runner::operator=(Runner&&) noexcept = default;
std::span<const uint32_t> Runner::checksums(uint32_t layer) const {
  const auto all = backend_->checksums(layer);
  return sums_ == SIZE_MAX || all.empty() ? all : all.subspan(first_sum_, sums_);
}
DeviceLoads* Runner::loads() {
  return backend_->loads();
}
uint64_t Runner::replayed_steps() const {
  return backend_->replayed_steps();
}
uint64_t Runner::refused_graphs() const {
  return backend_->refused_graphs();
}
const Model& Runner::model() const {
  return *model_;
}
const RunnerOptions& Runner::options() const {
  return options_;
}
const ExtentLayout& Runner::layout() const {
  return layout_;
}
const ops::Kernels& Runner::kernels() const {
  return *kernels_;
}

size_t Runner::workspace_bytes(const ModelConfig& config, const RunnerOptions& options) {
  return cpu_workspace_bytes(config, options) + kScoredAtOnce * config.vocab * sizeof(float);
}

size_t Runner::device_workspace_bytes(const ModelConfig& config, const RunnerOptions& options) {
  return model::device_workspace_bytes(config, options);
}

size_t Runner::device_fp8_bytes(const ModelConfig& config, const RunnerOptions& options) {
  return DeviceLayers::fp8_bytes(config, options);
}

DeviceScratch Runner::device_scratch(const ModelConfig& config, const ExtentLayout& layout,
                                     const RunnerOptions& options, std::span<const attn::Plan> plans,
                                     size_t device_bytes) {
  return model::device_scratch(config, layout, options, plans, device_bytes);
}

/// The variant of the CPU's kernels. A name of what multiplies on a GPU names none (gpu/matmul.h).
static Result<std::string> kernels_of_host(const std::string& name, bool on_device) {
  const auto names = gpu::matmul_names();
  if (std::ranges::find(names, name) == names.end()) return name;
  if (on_device || name == "auto") return std::string("auto");
  return user_error(err::kKernelsUnusable,
                    "'" + name + "' computes matrix products of a GPU, and the CPU computes here", "--kernels",
                    "give --device cuda:N or emu, or use --kernels auto");
}

static Result<void> check_options(const RunnerOptions& options) {
  const uint32_t block = options.block_tokens;
  if (block < 16 || block > 512 || (block & (block - 1)) != 0)
    return user_error(err::kBadValue, "block of " + std::to_string(block) + " tokens", {},
                      "use a power of two from 16 to 512");
  if (options.max_chunk_tokens == 0 || options.max_batch == 0 || options.max_batch > kBatchRowsMax)
    return user_error(err::kBadValue,
                      "a batch of " + std::to_string(options.max_batch) + " rows and chunks of " +
                          std::to_string(options.max_chunk_tokens) + " tokens",
                      {}, "use 1 to " + std::to_string(kBatchRowsMax) + " rows and at least one token");
  return {};
}

Result<Runner> Runner::open(const Model& model, Parallel& parallel, const RunnerOptions& options, gpu::Device* device) {
  MC_CHECK(check_options(options));
  if (!model.has_weights() && device == nullptr)
    return Error{Code::unsupported, "a model without weights runs on a device, which makes random ones"};
  MC_TRY(host_kernels, kernels_of_host(options.kernels, device != nullptr));
  MC_TRY(kernels, ops::kernels_named(host_kernels));
  MC_TRY(backend, device != nullptr ? open_device_backend(model, *device, parallel, options, *kernels)
                                    : open_cpu_backend(model, parallel, options, *kernels));
  return Runner(model, options, *kernels, std::move(backend));
}

Result<Runner> Runner::open(const Model& model, Parallel& parallel, const RunnerOptions& options,
                            gpu::DeviceGroup* group) {
  if (group == nullptr || group->size() == 1)
    return open(model, parallel, options, group == nullptr ? nullptr : &group->device(0));
  MC_CHECK(check_options(options));
  MC_TRY(host_kernels, kernels_of_host(options.kernels, true));
  MC_TRY(kernels, ops::kernels_named(host_kernels));
  MC_TRY(backend, open_split_backend(model, *group, parallel, options, *kernels));
  return Runner(model, options, *kernels, std::move(backend));
}

Result<void> Runner::check_token(uint32_t token) const {
  if (token < model_->config().vocab) return {};
  return Error{Code::invalid, "token id " + std::to_string(token) + " is outside the vocabulary of " +
                                  std::to_string(model_->config().vocab)};
}

Result<void> Runner::check_position(int64_t position) const {
  const uint32_t context = model_->config().max_positions;
  if (position >= 0 && position < static_cast<int64_t>(context)) return {};
  return user_error(err::kContextLength, "position " + std::to_string(position) + " is outside the context of " +
                                             std::to_string(context) + " tokens");
}

Result<void> Runner::check_chunk(const PrefillChunk& chunk) const {
  const ModelConfig& config = model_->config();
  if (chunk.tokens.empty() || chunk.tokens.size() > options_.max_chunk_tokens)
    return Error{Code::invalid, "a chunk of " + std::to_string(chunk.tokens.size()) + " tokens; allowed are 1 to " +
                                    std::to_string(options_.max_chunk_tokens)};
  if (chunk.start < 0 || chunk.start % options_.block_tokens != 0)
    return Error{Code::invalid, "a chunk at position " + std::to_string(chunk.start) + ", not a multiple of " +
                                    std::to_string(options_.block_tokens) + " tokens"};
  MC_CHECK(check_position(chunk.start + static_cast<int64_t>(chunk.tokens.size()) - 1));
  for (uint32_t token : chunk.tokens) MC_CHECK(check_token(token));
  MC_ASSERT(chunk.plan != nullptr && chunk.pages != nullptr);
  MC_ASSERT_EQ(chunk.plan->layers, static_cast<int32_t>(config.layers));
  MC_CHECK(check_plan(*chunk.plan, chunk.start + static_cast<int64_t>(chunk.tokens.size())));
  MC_ASSERT_LE(chunk.scored, chunk.tokens.size());
  MC_ASSERT(chunk.scored == 0 || chunk.on_logits);
  MC_ASSERT(chunk.logits.empty() || chunk.logits.size() == config.vocab);
  MC_ASSERT(chunk.first_layer >= model_->held().first &&
            (chunk.end_layer == 0 ? config.layers : chunk.end_layer) <= model_->held().end);
  const size_t stream = chunk.tokens.size() * config.hidden;
  MC_ASSERT_EQ(chunk.activations_in.size(), chunk.first_layer > 0 ? stream : 0);
  const bool last = chunk.end_layer == 0 || chunk.end_layer == config.layers;
  MC_ASSERT_EQ(chunk.activations_out.size(), last ? 0 : stream);
  return {};
}

/// Computes the last layer for all rows, and the logits of the first `scored`.
Result<void> Runner::score_rows(const PrefillChunk& chunk) {
  const size_t vocab = model_->config().vocab;
  const uint32_t layer = model_->config().layers - 1;
  MC_CHECK(backend_->attend(layer));
  MC_CHECK(backend_->after_attention(layer));
  scored_.resize(kScoredAtOnce * vocab);
  for (size_t row = 0; row < chunk.scored; ++row) {
    const size_t count = std::min(kScoredAtOnce, chunk.scored - row);
    if (row % kScoredAtOnce == 0) MC_CHECK(backend_->logits(row, count, std::span(scored_).first(count * vocab)));
    if (!chunk.on_logits(row, std::span(scored_).subspan(row % kScoredAtOnce * vocab, vocab)))
      return Error{Code::cancelled, "prefill stopped at the logits of row " + std::to_string(row)};
  }
  return {};
}

/// K and V of a layer are in the caller's pages, who may stop the chunk now.
Result<void> Runner::announce(const PrefillChunk& chunk, uint32_t layer) {
  MC_CHECK(backend_->finish_layer(layer));
  if (!chunk.on_layer || chunk.on_layer(layer)) return {};
  return Error{Code::cancelled, "prefill stopped after layer " + std::to_string(layer)};
}

Result<void> Runner::prefill(const PrefillChunk& chunk) {
  MC_ASSERT(queued_.empty());
  MC_CHECK(check_chunk(chunk));
  MC_CHECK(backend_->begin(chunk));
  const uint32_t layers = model_->config().layers, end = chunk.end_layer == 0 ? layers : chunk.end_layer;
  const bool is_late = backend_->stores_later();
  for (uint32_t layer = chunk.first_layer; layer < end; ++layer) {
    MC_CHECK(backend_->before_attention(layer));
    if (!is_late) MC_CHECK(announce(chunk, layer));
    if (chunk.start > 0 && chunk.before_prefix && !chunk.before_prefix(layer))
      return Error{Code::cancelled, "prefill stopped before the attention of layer " + std::to_string(layer)};
    if (layer + 1 < layers) {
      MC_CHECK(backend_->attend(layer));
      MC_CHECK(backend_->after_attention(layer));
    }
    if (is_late && layer > chunk.first_layer) MC_CHECK(announce(chunk, layer - 1));
  }
  if (is_late) MC_CHECK(announce(chunk, end - 1));
  if (end < layers) return backend_->activations(chunk.activations_out);
  if (chunk.scored > 0) MC_CHECK(score_rows(chunk));
  return chunk.logits.empty() ? Result<void>{} : backend_->finish_last_row(chunk.logits, chunk.hidden);
}

Result<void> Runner::check_step(std::span<const DecodeRow> rows) const {
  MC_ASSERT(model_->whole());
  if (rows.size() > options_.max_batch)
    return Error{Code::invalid, "a batch of " + std::to_string(rows.size()) + " rows; at most " +
                                    std::to_string(options_.max_batch) + " are allowed"};
  for (const DecodeRow& row : rows) {
    if (row.fed < 0) MC_CHECK(check_token(row.token));
    MC_CHECK(check_position(row.position));
    MC_ASSERT(row.plan != nullptr && row.pages != nullptr);
  }
  return {};
}

Result<void> Runner::run_layers(std::span<const DecodeRow> rows) {
  MC_CHECK(backend_->begin(rows));
  for (uint32_t layer = 0; layer < model_->config().layers; ++layer) {
    MC_CHECK(backend_->before_attention(layer));
    MC_CHECK(backend_->attend(layer));
    MC_CHECK(backend_->after_attention(layer));
  }
  return {};
}

/// A step that is queued may still use what the device keeps of them.
void Runner::forget_failed(std::span<const uint64_t> sequences) {
  failed_.insert(failed_.end(), sequences.begin(), sequences.end());
  if (!queued_.empty()) return;
  for (const uint64_t sequence : std::exchange(failed_, {})) forget(sequence);
}

Result<void> Runner::decode(std::span<const DecodeRow> rows, std::span<float> logits) {
  MC_ASSERT(queued_.empty());
  if (rows.empty()) return {};
  MC_CHECK(check_step(rows));
  MC_ASSERT_EQ(logits.size(), rows.size() * model_->config().vocab);
  const auto run = [&]() -> Result<void> {
    MC_CHECK(run_layers(rows));
    MC_CHECK(backend_->finish_step());
    return backend_->logits(0, rows.size(), logits);
  };
  auto done = run();
  if (!done)
    for (const DecodeRow& row : rows) forget(row.sequence);
  return done;
}

Result<void> Runner::check_plan(const attn::Plan& plan, int64_t kv_len) const {
  return backend_->check_plan(plan, kv_len);
}

bool Runner::draws(const DrawRow& row) const {
  return backend_->draws(row);
}

Result<void> Runner::decode_and_draw(std::span<const DecodeRow> rows, std::span<const DrawRow> draws,
                                     std::span<ops::Sampled> out) {
  MC_ASSERT(queued_.empty());
  MC_ASSERT_EQ(rows.size(), out.size());
  if (rows.empty()) return {};
  MC_CHECK(queue_step(rows, draws));
  return collect_step(out);
}

Result<void> Runner::queue_step(std::span<const DecodeRow> rows, std::span<const DrawRow> draws) {
  MC_ASSERT(!rows.empty() && rows.size() == draws.size() && queued_.size() < kStepsQueued);
  MC_CHECK(check_step(rows));
  std::vector<uint64_t> sequences;
  for (const DecodeRow& row : rows) {
    MC_ASSERT(queued_.empty() ? row.fed < 0 : row.sequence != 0 && std::ranges::count(queued_.back(), 0) == 0);
    MC_ASSERT(row.fed < 0 || static_cast<size_t>(row.fed) < queued_.back().size());
    sequences.push_back(row.sequence);
  }
  const auto run = [&]() -> Result<void> {
    MC_CHECK(run_layers(rows));
    return backend_->queue_step(draws);
  };
  auto done = run();
  if (done)
    queued_.push_back(std::move(sequences));
  else
    forget_failed(sequences);
  return done;
}

Result<void> Runner::collect_step(std::span<ops::Sampled> out) {
  MC_ASSERT(!queued_.empty() && queued_.front().size() == out.size());
  auto done = backend_->collect_step(out);
  const std::vector<uint64_t> sequences = std::move(queued_.front());
  queued_.erase(queued_.begin());
  forget_failed(done ? std::span<const uint64_t>() : sequences);
  return done;
}

// ---- chunks of several sequences ----

bool Runner::shares_pass(std::span<const PrefillChunk* const> chunks, size_t rows) const {
  constexpr size_t kShort = 16;  // tokens of a chunk whose attention may be a decode row's, and needs its memory
  const size_t most = std::max<size_t>(options_.max_batch, kShort);
  size_t tokens = rows, short_tokens = rows;
  for (const PrefillChunk* chunk : chunks) {
    tokens += chunk->tokens.size();
    if (chunk->tokens.size() <= kShort) short_tokens += chunk->tokens.size();
  }
  return backend_->mixes() && rows + chunks.size() <= most && short_tokens <= most &&
         tokens <= std::max(options_.max_chunk_tokens, options_.max_batch);
}

Result<void> Runner::finish_step(const MixedPass& pass) {
  if (pass.rows.empty()) return {};
  return pass.draws.empty() ? decode(pass.rows, pass.logits) : decode_and_draw(pass.rows, pass.draws, pass.drawn);
}

/// Announces a layer of each chunk that goes on. False when nothing is left to compute.
bool Runner::announce(const MixedPass& pass, uint32_t layer, std::vector<Result<void>>& chunks) {
  first_sum_ = pass.rows.size();
  bool goes_on = !pass.rows.empty();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const PrefillChunk& chunk = *pass.chunks[i];
    sums_ = (chunk.tokens.size() + options_.block_tokens - 1) / options_.block_tokens;  // it begins a page
    if (chunks[i] && chunk.on_layer && !chunk.on_layer(layer))
      chunks[i] = Error{Code::cancelled, "prefill stopped after layer " + std::to_string(layer)};
    goes_on = goes_on || chunks[i];
    first_sum_ += sums_;
  }
  first_sum_ = 0, sums_ = SIZE_MAX;
  return goes_on;
}

Result<void> Runner::run_mixed(const MixedPass& pass, std::vector<Result<void>>& chunks) {
  const uint32_t layers = model_->config().layers;
  MC_ASSERT(backend_->stores_later());
  MC_CHECK(backend_->begin(pass));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    MC_CHECK(backend_->before_attention(layer));
    if (layer + 1 < layers) {
      MC_CHECK(backend_->attend(layer));
      MC_CHECK(backend_->after_attention(layer));
    }
    if (layer == 0) continue;
    MC_CHECK(backend_->finish_layer(layer - 1));
    if (!announce(pass, layer - 1, chunks)) return {};
  }
  MC_CHECK(backend_->finish_layer(layers - 1));
  return announce(pass, layers - 1, chunks) ? backend_->finish_rows(pass) : Result<void>{};
}

Runner::MixedEnds Runner::mixed(const MixedPass& pass) {
  MC_ASSERT(queued_.empty() && model_->whole());
  MC_ASSERT(pass.draws.empty() || pass.draws.size() == pass.rows.size());
  MC_ASSERT_EQ(pass.drawn.size(), pass.draws.size());
  MC_ASSERT_EQ(pass.logits.size(), pass.draws.empty() ? pass.rows.size() * model_->config().vocab : 0);
  MixedEnds ends;
  ends.chunks.resize(pass.chunks.size());
  for (const PrefillChunk* chunk : pass.chunks) MC_ASSERT(chunk->scored == 0 && chunk->first_layer == 0);
  ends.step = check_step(pass.rows);
  std::vector<size_t> sound;
  for (size_t i = 0; i < pass.chunks.size(); ++i) {
    ends.chunks[i] = check_chunk(*pass.chunks[i]);
    if (ends.chunks[i]) sound.push_back(i);
  }
  // Short ones first: their attention needs memory for all tokens up to the last of them.
  std::ranges::stable_sort(sound, {}, [&](size_t i) { return pass.chunks[i]->tokens.size(); });
  std::vector<const PrefillChunk*> chunks;
  for (const size_t i : sound) chunks.push_back(pass.chunks[i]);
  if (!ends.step || chunks.empty() || !shares_pass(chunks, pass.rows.size())) {
    for (size_t i = 0; i < pass.chunks.size(); ++i)
      if (ends.chunks[i]) ends.chunks[i] = prefill(*pass.chunks[i]);
    if (ends.step) ends.step = finish_step(pass);
    return ends;
  }
  MixedPass shared = pass;
  shared.chunks = chunks;
  std::vector<Result<void>> ended(chunks.size());
  ends.step = run_mixed(shared, ended);
  for (size_t i = 0; i < sound.size(); ++i) ends.chunks[sound[i]] = ended[i] ? ends.step : ended[i];
  if (!ends.step)
    for (const DecodeRow& row : pass.rows) forget(row.sequence);
  return ends;
}

void Runner::forget(uint64_t sequence) {
  std::erase(failed_, sequence);
  if (sequence != 0) backend_->forget(sequence);
}

}  // namespace mc::model

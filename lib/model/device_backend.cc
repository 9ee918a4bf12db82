#include "model/device_backend.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/layer.h"
#include "gpu/launch_graphs.h"
#include "gpu/mixture.h"
#include "gpu/mlp.h"
#include "model/cpu_backend.h"
#include "model/device_attention.h"
#include "model/device_copies.h"
#include "model/device_draws.h"
#include "model/device_inputs.h"
#include "model/device_pages.h"
#include "model/device_steps.h"
#include "model/device_weights.h"
#include "ops/rope.h"

namespace mc::model {
namespace {

uint32_t ceil_div(size_t value, size_t by) {
  return static_cast<uint32_t>((value + by - 1) / by);
}

/// Layers of a chunk whose sums are on the device: those of one layer are stored while the next ones are made.
constexpr size_t kLayersAtOnce = 2;

/// Scratch memory of a pass, each part [rows, ...].
struct Parts {
  uint64_t inputs = 0;                                      // DeviceInputs
  uint64_t sums = 0;                                        // uint32 [places of steps, layers, rows], or
                                                            // [kLayersAtOnce, rows of a chunk]
  uint64_t x = 0, qkv = 0, gate_up = 0, logits = 0;         // f32
  uint64_t normed = 0, q = 0, attended = 0, activated = 0;  // bf16
  uint64_t kept = 0;  // bf16 [places of steps, layers, rows of a step, 2, kv_heads, head_dim]
};

struct PartSize {
  uint64_t Parts::*member;
  size_t bytes;
};

size_t rows_most(const RunnerOptions& options) {
  return std::max<size_t>(options.max_chunk_tokens, options.max_batch);
}

constexpr gpu::RowPlace kNoPlace{-1, 0};

/// The rows that the kernels of a step compute. Batches of similar size have one number of rows, so that their kernels
/// are equal; the last rows are of no sequence.
size_t padded_rows(size_t rows, size_t most) {
  constexpr size_t kTile = 16;  // of a product
  return std::min(rows <= kTile ? std::bit_ceil(rows) : round_up(rows, kTile), most);
}

size_t logit_rows_most(const RunnerOptions& options) {
  return std::max<size_t>(options.max_batch, 16);
}

/// Inner width of the layers without a mixture; 0: all have one.
size_t dense_inner(const ModelConfig& c) {
  for (uint32_t layer = 0; layer < c.layers; ++layer)
    if (!c.has_mixture(layer)) return c.intermediate;
  return 0;
}

std::optional<gpu::MixtureShape> mixture_shape(const ModelConfig& c) {
  if (c.mixture.experts == 0) return std::nullopt;
  return gpu::MixtureShape{.experts = c.mixture.experts,
                           .per_token = c.mixture.per_token,
                           .normalise = c.mixture.normalise,
                           .hidden = c.hidden,
                           .inner = c.mixture.intermediate,
                           .shared_inner = c.mixture.shared_intermediate};
}

std::vector<PartSize> part_sizes(const ModelConfig& c, const RunnerOptions& options) {
  const size_t rows = rows_most(options), logit_rows = logit_rows_most(options);
  const size_t q_width = size_t{c.heads} * c.head_dim, kv_width = size_t{c.kv_heads} * c.head_dim;
  const size_t step_rows = DeviceSteps::kPlaces * c.layers * options.max_batch;
  return {{&Parts::inputs, DeviceInputs::bytes_most(rows, c.head_dim)},
          {&Parts::sums, std::max(kLayersAtOnce * rows, step_rows) * 4},
          {&Parts::x, rows * c.hidden * 4},
          {&Parts::qkv, rows * (q_width + 2 * kv_width) * 4},
          {&Parts::gate_up, rows * dense_inner(c) * 8},
          {&Parts::logits, logit_rows * c.vocab * 4},
          {&Parts::normed, rows * c.hidden * 2},
          {&Parts::q, rows * q_width * 2},
          {&Parts::attended, rows * q_width * 2},
          {&Parts::activated, rows * dense_inner(c) * 2},
          {&Parts::kept, step_rows * 2 * kv_width * 2}};
}

size_t scratch_bytes(const ModelConfig& config, const RunnerOptions& options) {
  size_t bytes = 0;
  for (const PartSize& part : part_sizes(config, options)) bytes += round_up(part.bytes, gpu::Arena::kAlignment);
  return bytes;
}

/// The checksums of the pass that the device makes, and the pages of which it makes them.
struct PassSums {
  std::vector<gpu::RowPlace> pages;
  std::vector<size_t> written;                  // their index among the written pages
  std::vector<uint32_t> stored[kLayersAtOnce];  // of a chunk's layers under way: what the device made, by page
};

/// One sequence of the pass: its rows, and where its pages are on the host and on the device.
struct PassSequence {
  uint64_t sequence = 0;  // whose pages stay on the device; 0: none
  int64_t q_begin = 0;
  int32_t tokens = 0;
  std::byte* const* host_pages = nullptr;
  std::vector<int32_t> pages;  // numbers on the device
  const attn::Plan* plan = nullptr;
  int64_t end() const { return q_begin + tokens; }
};

/// The pass as a whole.
struct PassState {
  bool is_step = false;
  LayerRange layers;
  size_t rows = 0;   // with padded_rows() of a step
  size_t place = 0;  // of a step's results
  PassSums sums;
  std::vector<gpu::RowPlace> sealed;  // of the written pages, with their tokens
  std::vector<uint32_t> checksums;    // [layer][written page] of the pass that has ended; empty: none
  std::vector<float> last_state;      // x of the chunk's last row before the model's last layer, once that has run
};

/// A page that the pass writes.
struct WrittenPage {
  gpu::RowPlace place;  // on the device, with its tokens
  std::byte* host = nullptr;
  bool is_whole = false;  // it is sealed, so all of it goes to the host
};

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(const Model& model, gpu::Device& device, const RunnerOptions& options, const ops::Kernels& kernels)
      : model_(model),
        device_(device),
        options_(options),
        kernels_(kernels),
        layout_(model.kv_layout(options.block_tokens)),
        rope_(model.config().rope, model.config().head_dim),
        attention_(device),
        pages_(device, layout_.page_bytes()),
        copies_(device),
        steps_(copies_, layout_),
        draws_(device),
        graphs_(device) {}
  Result<void> prepare();

  Result<void> begin(const PrefillChunk& chunk) override;
  Result<void> begin(std::span<const DecodeRow> rows) override;
  Result<void> before_attention(uint32_t layer) override;
  bool stores_later() const override { return true; }
  Result<void> finish_layer(uint32_t layer) override;
  std::span<const uint32_t> checksums(uint32_t layer) const override;
  void forget(uint64_t sequence) override {
    pages_.forget(sequence);
    draws_.forget(sequence);
  }
  Result<void> attend(uint32_t layer) override;
  Result<void> finish_step() override;
  Result<void> after_attention(uint32_t layer) override;
  Result<void> finish_last_row(std::span<float> logits, std::span<float> hidden) override;
  Result<void> logits(size_t first, size_t count, std::span<float> out) override;
  Result<void> activations(std::span<float> out) override;
  uint64_t replayed_steps() const override { return graphs_.counts().replayed; }
  bool draws(const DrawRow& row) const override { return draws_.draws(row); }
  Result<void> queue_step(std::span<const DrawRow> draws) override;
  Result<void> collect_step(std::span<ops::Sampled> out) override;

 private:
  const ModelConfig& config() const { return model_.config(); }
  size_t q_width() const { return size_t{config().heads} * config().head_dim; }
  size_t qkv_width() const { return q_width() + 2 * size_t{config().kv_heads} * config().head_dim; }
  size_t hidden_bytes() const { return size_t{config().hidden} * 4; }
  size_t kept_row_bytes() const { return size_t{2} * config().kv_heads * layout_.row_bytes(); }
  uint64_t sums_at(uint32_t layer) const {
    const size_t first = pass_.is_step ? pass_.place * config().layers * options_.max_batch : 0;
    return at_.sums + (first + (pass_.is_step ? layer : layer % kLayersAtOnce) * pass_.sums.pages.size()) * 4;
  }
  uint64_t kept_at(uint32_t layer) const {
    return at_.kept + (pass_.place * config().layers * options_.max_batch + layer * pass_.rows) * kept_row_bytes();
  }

  Result<void> check_served() const;
  Result<void> begin_rows(const std::vector<int32_t>& tokens, const std::vector<gpu::RowPlace>& places);
  Result<void> place_pages(LayerRange layers);
  Result<void> load_extents(uint32_t layer);
  Result<void> make_logits(size_t first, size_t count);
  Result<void> sum_extents(uint32_t layer);
  Result<void> store_extents(uint32_t layer);
  void note_sums(uint32_t layer, std::span<const uint32_t> made);
  gpu::KvPool pool_of(uint32_t layer) const;
  Result<void> norm(uint64_t x, uint64_t weight, uint64_t out, size_t rows);
  Result<void> multiply(uint64_t x, uint64_t weights, uint64_t bias, uint64_t y, size_t rows, size_t columns,
                        size_t inner, bool adds);
  std::vector<gpu::SequenceRows> sequence_rows() const;
  gpu::AttentionLayer attention_layer(uint32_t layer, size_t first) const;
  Result<void> rest_of_layer(uint32_t layer, size_t first, size_t count);
  Result<void> add_mlp(const DeviceLayer& w, uint64_t x, size_t count);

  const Model& model_;
  gpu::Device& device_;
  RunnerOptions options_;
  const ops::Kernels& kernels_;
  ExtentLayout layout_;
  ops::Rope rope_;
  DeviceWeights weights_;
  gpu::Arena scratch_;
  Parts at_;
  DeviceAttention attention_;
  DevicePages pages_;
  DeviceCopies copies_;
  DeviceSteps steps_;
  DeviceDraws draws_;
  std::optional<gpu::Mixture> mixture_;
  gpu::LaunchGraphs graphs_;  // of steps

  // The pass under way.
  PassState pass_;
  DeviceInputs inputs_{0};
  std::vector<PassSequence> sequences_;
  std::vector<WrittenPage> written_;
};

// ---- opening ----

Result<void> DeviceBackend::check_served() const {
  const ModelConfig& c = config();
  const struct {
    bool served;
    std::string what;
    const char* instead;
  } limits[] = {
      {c.mixture.experts <= gpu::kExpertsMax, "a mixture of " + std::to_string(c.mixture.experts) + " experts",
       "up to 512"},
      {c.head_dim == 64 || c.head_dim == 128, "heads of " + std::to_string(c.head_dim) + " elements", "64 and 128"},
      {model_.dtype() == Dtype::bf16, "the compute type " + std::string(mc::to_string(model_.dtype())), "bf16"},
      {options_.block_tokens % gpu::kKeyTile == 0, "pages of " + std::to_string(options_.block_tokens) + " tokens",
       "multiples of 64"},
  };
  for (const auto& limit : limits)
    if (!limit.served)
      return user_error(err::kDeviceUnusable,
                        std::string(device_.name()) + " does not serve " + limit.what + " yet, but " + limit.instead,
                        "--device", "use --device cpu");
  return {};
}

Result<void> DeviceBackend::prepare() {
  MC_CHECK(check_served());
  MC_TRY(weights, DeviceWeights::load(model_, device_));
  weights_ = std::move(weights);
  MC_TRY(arena, gpu::Arena::open(device_, gpu::Place::device, scratch_bytes(config(), options_), "workspace"));
  scratch_ = std::move(arena);
  for (const PartSize& size : part_sizes(config(), options_)) {
    if (size.bytes == 0) continue;
    MC_TRY(part, scratch_.take(size.bytes, "activations"));
    at_.*size.member = part.address;
  }
  if (const auto shape = mixture_shape(config())) {
    MC_TRY(mixture, gpu::Mixture::open(device_, *shape, rows_most(options_)));
    mixture_ = std::move(mixture);
  }
  MC_CHECK(copies_.prepare());
  // Attention writes nothing for rows of no sequence, which later kernels of the layer read.
  MC_CHECK(device_.fill(at_.attended, 0, options_.max_batch * q_width() * 2));
  return draws_.prepare(config().vocab, logit_rows_most(options_));
}

// ---- the beginning of a pass ----

Result<void> DeviceBackend::begin(const PrefillChunk& chunk) {
  const auto count = static_cast<int32_t>(chunk.tokens.size());
  const int64_t block = options_.block_tokens;
  graphs_.drop();
  sequences_ = {{.q_begin = chunk.start, .tokens = count, .host_pages = chunk.pages, .plan = chunk.plan}};
  pass_.is_step = false;
  pass_.rows = chunk.tokens.size();
  pass_.checksums.clear();
  pass_.last_state.clear();
  MC_CHECK(place_pages({chunk.first_layer, chunk.end_layer == 0 ? config().layers : chunk.end_layer}));
  std::vector<gpu::RowPlace> places;
  for (int64_t p = chunk.start; p < chunk.start + count; ++p)
    places.push_back({sequences_[0].pages[static_cast<size_t>(p / block)], static_cast<int32_t>(p % block)});
  std::vector<int32_t> tokens;
  if (chunk.first_layer == 0) tokens.assign(chunk.tokens.begin(), chunk.tokens.end());
  MC_CHECK(begin_rows(tokens, places));
  if (chunk.first_layer > 0) MC_CHECK(device_.write(at_.x, std::as_bytes(chunk.activations_in)));
  return {};
}

Result<void> DeviceBackend::begin(std::span<const DecodeRow> rows) {
  graphs_.drop();
  pass_.is_step = true;
  pass_.place = steps_.next_place();
  pass_.rows = options_.graphs ? padded_rows(rows.size(), options_.max_batch) : rows.size();
  sequences_.clear();
  pass_.last_state.clear();
  std::vector<int32_t> tokens;
  for (const DecodeRow& row : rows) {
    sequences_.push_back(
        {.sequence = row.sequence, .q_begin = row.position, .tokens = 1, .host_pages = row.pages, .plan = row.plan});
    tokens.push_back(row.fed >= 0 ? ~row.fed : static_cast<int32_t>(row.token));
  }
  MC_CHECK(place_pages({0, config().layers}));
  std::vector<gpu::RowPlace> places;
  for (const PassSequence& s : sequences_)
    places.push_back({s.pages.back(), static_cast<int32_t>(s.q_begin % options_.block_tokens)});
  tokens.resize(pass_.rows);
  places.resize(pass_.rows, kNoPlace);
  return begin_rows(tokens, places);
}

/// `tokens` is empty when the activations come from another stage.
Result<void> DeviceBackend::begin_rows(const std::vector<int32_t>& tokens, const std::vector<gpu::RowPlace>& places) {
  MC_ASSERT(places.size() == pass_.rows && pass_.rows <= rows_most(options_));
  const size_t half = rope_.half();
  std::vector<float> cosine(pass_.rows * half), sine(pass_.rows * half);
  size_t row = 0;
  for (const PassSequence& s : sequences_)
    for (int64_t p = s.q_begin; p < s.end(); ++p, ++row)
      rope_.at(static_cast<uint64_t>(p), cosine.data() + row * half, sine.data() + row * half);
  MC_ASSERT_LE(row, pass_.rows);
  inputs_ = DeviceInputs(at_.inputs);
  inputs_.tokens = inputs_.add(tokens);
  inputs_.places = inputs_.add(places);
  inputs_.sealed = inputs_.add(pass_.sealed);
  inputs_.summed = inputs_.add(pass_.sums.pages);
  inputs_.cosine = inputs_.add(cosine);
  inputs_.sine = inputs_.add(sine);
  MC_ASSERT_LE(inputs_.bytes().size(), DeviceInputs::bytes_most(rows_most(options_), config().head_dim));
  MC_CHECK(device_.post(at_.inputs, inputs_.bytes()));
  // The kernels of a step are noted, to be queued together at its end, unless they have to wait for pages. Copies that
  // are posted until then are queued before all of them.
  if (pass_.is_step && options_.graphs && pages_.missing().empty()) graphs_.begin();
  if (tokens.empty()) return {};
  const gpu::EmbedArgs args{.tokens = gpu::device_pointer<const int32_t>(inputs_.tokens),
                            .table = gpu::device_pointer<const uint16_t>(weights_.embeddings()),
                            .fed = gpu::device_pointer<const gpu::Drawn>(draws_.drawn(1 - pass_.place)),
                            .x = gpu::device_pointer<float>(at_.x),
                            .columns = static_cast<int32_t>(config().hidden)};
  return device_.launch("embed_rows", {.grid = {static_cast<uint32_t>(pass_.rows), 1, 1}}, gpu::bytes_of(args));
}

/// Numbers the pages of the pass, and begins to copy in the earlier rows that the device lacks.
Result<void> DeviceBackend::place_pages(LayerRange layers) {
  const int64_t block = options_.block_tokens;
  pass_.layers = layers;
  written_.clear();
  pass_.sealed.clear();
  pass_.sums = {};
  pages_.begin();
  for (PassSequence& s : sequences_) {
    for (int64_t page = 0; page * block < s.end(); ++page) {
      std::byte* const host = s.host_pages[page];
      const bool is_read = (page + 1) * block <= s.q_begin, is_fresh = page * block >= s.q_begin;
      const PageUse use = is_read ? PageUse::read : is_fresh ? PageUse::fresh : PageUse::append;
      s.pages.push_back(s.sequence == 0 ? pages_.take(host, use)
                                        : pages_.keep(s.sequence, static_cast<size_t>(page), host, use));
      if (is_read) continue;
      const int64_t tokens = std::min(s.end() - page * block, block);
      const gpu::RowPlace place{s.pages.back(), static_cast<int32_t>(tokens)};
      // The rest of a page that a step begins is not read before a later step fills the page.
      written_.push_back({place, host, tokens == block || (is_fresh && !pass_.is_step)});
      if (written_.back().is_whole) pass_.sealed.push_back(place);
      if (pass_.is_step && tokens < block) continue;  // a later step still writes the page
      pass_.sums.pages.push_back(place);
      pass_.sums.written.push_back(written_.size() - 1);
    }
  }
  if (pass_.is_step && options_.graphs && !pass_.sums.pages.empty()) {  // one grid for any number of full pages
    pass_.sealed.resize(pass_.rows, kNoPlace);
    pass_.sums.pages.resize(pass_.rows, kNoPlace);
  }
  const gpu::AttentionShape shape{.layout = layout_,
                                  .page_bytes = layout_.page_bytes(),
                                  .q_heads = static_cast<int32_t>(config().heads),
                                  .is_rounded = pass_.is_step && options_.graphs};
  attention_.begin(shape, sequence_rows());
  MC_CHECK(pages_.make_room());
  if (pages_.has_moved()) MC_CHECK(steps_.store_all());  // the host's pages are copied in anew
  MC_CHECK(copies_.begin(steps_.queued() > 0));
  return load_extents(pass_.layers.first);
}

/// Queues the copies of a layer's extents of the missing pages. A page is there when all layers are.
Result<void> DeviceBackend::load_extents(uint32_t layer) {
  if (layer >= pass_.layers.end) return {};
  const size_t offset = layout_.layer_offset(layer);
  std::vector<DeviceCopies::Load> pieces;
  for (const DevicePages::Missing& page : pages_.missing())
    pieces.push_back({page.host + offset, pages_.address(page.number) + offset, layout_.layer_bytes()});
  MC_CHECK(copies_.load(layer, pieces));
  if (layer + 1 == config().layers && pass_.layers.first == 0) pages_.note_filled();
  return {};
}

// ---- a layer ----

gpu::KvPool DeviceBackend::pool_of(uint32_t layer) const {
  return {gpu::device_pointer<const unsigned char>(pages_.address() + layout_.layer_offset(layer)),
          layout_.page_bytes(),
          layout_.head_bytes(),
          static_cast<uint32_t>(layout_.v_offset()),
          static_cast<uint32_t>(layout_.ksum_offset()),
          static_cast<uint32_t>(layout_.kmean_offset()),
          static_cast<int32_t>(layout_.block_tokens),
          static_cast<int32_t>(layout_.kv_heads)};
}

Result<void> DeviceBackend::norm(uint64_t x, uint64_t weight, uint64_t out, size_t rows) {
  const gpu::NormArgs args{.x = gpu::device_pointer<const float>(x),
                           .weight = gpu::device_pointer<const float>(weight),
                           .out = gpu::device_pointer<uint16_t>(out),
                           .rows = static_cast<int32_t>(rows),
                           .columns = static_cast<int32_t>(config().hidden),
                           .epsilon = config().norm_epsilon};
  return device_.launch("rms_norm", {.grid = {ceil_div(rows, gpu::kRowsPerCta), 1, 1}}, gpu::bytes_of(args));
}

/// y = x w^T + bias, or y += the same.
Result<void> DeviceBackend::multiply(uint64_t x, uint64_t weights, uint64_t bias, uint64_t y, size_t rows,
                                     size_t columns, size_t inner, bool adds) {
  const gpu::ProductArgs args{.x = gpu::device_pointer<const uint16_t>(x),
                              .w = gpu::device_pointer<const uint16_t>(weights),
                              .y = gpu::device_pointer<float>(y),
                              .rows = static_cast<int32_t>(rows),
                              .columns = static_cast<int32_t>(columns),
                              .inner = static_cast<int32_t>(inner),
                              .adds = adds};
  MC_CHECK(gpu::queue_product(device_, args));
  if (bias == 0) return {};
  const gpu::AddArgs add{.x = gpu::device_pointer<const float>(bias),
                         .y = gpu::device_pointer<float>(y),
                         .columns = static_cast<int32_t>(columns)};
  return device_.launch("add_to_rows", {.grid = {static_cast<uint32_t>(rows), 1, 1}}, gpu::bytes_of(add));
}

Result<void> DeviceBackend::before_attention(uint32_t layer) {
  const ModelConfig& c = config();
  const DeviceLayer& w = weights_.layer(layer);
  MC_CHECK(copies_.await_load(layer));
  MC_CHECK(norm(at_.x, w.input_norm, at_.normed, pass_.rows));
  MC_CHECK(multiply(at_.normed, w.qkv, w.qkv_bias, at_.qkv, pass_.rows, qkv_width(), c.hidden, false));
  const gpu::RotateArgs rotate{.pool = pool_of(layer),
                               .qkv = gpu::device_pointer<const float>(at_.qkv),
                               .cosine = gpu::device_pointer<const float>(inputs_.cosine),
                               .sine = gpu::device_pointer<const float>(inputs_.sine),
                               .q_norm = gpu::device_pointer<const float>(w.q_norm),
                               .k_norm = gpu::device_pointer<const float>(w.k_norm),
                               .places = gpu::device_pointer<const gpu::RowPlace>(inputs_.places),
                               .q = gpu::device_pointer<uint16_t>(at_.q),
                               .kept = pass_.is_step ? gpu::device_pointer<uint16_t>(kept_at(layer)) : nullptr,
                               .q_heads = static_cast<int32_t>(c.heads),
                               .head_dim = static_cast<int32_t>(c.head_dim),
                               .epsilon = c.norm_epsilon};
  const uint32_t heads = c.heads + 2 * c.kv_heads;
  MC_CHECK(device_.launch("rotate_and_keep",
                          {.grid = {static_cast<uint32_t>(pass_.rows), ceil_div(heads, gpu::kRowsPerCta), 1}},
                          gpu::bytes_of(rotate)));
  if (!pass_.sealed.empty()) {
    const gpu::SealArgs seal{.pool = pool_of(layer),
                             .pages = gpu::device_pointer<const gpu::RowPlace>(inputs_.sealed),
                             .head_dim = static_cast<int32_t>(c.head_dim)};
    MC_CHECK(device_.launch("seal_pages", {.grid = {static_cast<uint32_t>(pass_.sealed.size()), c.kv_heads, 1}},
                            gpu::bytes_of(seal)));
  }
  MC_CHECK(sum_extents(layer));
  MC_CHECK(load_extents(layer + 1));
  return pass_.is_step ? Result<void>{} : store_extents(layer);
}

std::span<const uint32_t> DeviceBackend::checksums(uint32_t layer) const {
  const size_t each = pass_.checksums.size() / config().layers;
  return std::span(pass_.checksums).subspan(layer * each, each);
}

/// Queues the sums of what the pass wrote of one layer: the device makes them before the bytes cross to the host.
Result<void> DeviceBackend::sum_extents(uint32_t layer) {
  if (pass_.sums.pages.empty()) return {};
  const gpu::ChecksumArgs args{
      .extents = gpu::device_pointer<const unsigned char>(pages_.address() + layout_.layer_offset(layer)),
      .page_bytes = layout_.page_bytes(),
      .pages = gpu::device_pointer<const gpu::RowPlace>(inputs_.summed),
      .sums = gpu::device_pointer<uint32_t>(sums_at(layer)),
      .words = static_cast<uint32_t>(layout_.layer_bytes() / 4),
      .start = crc32c_shift(0xffffffff, layout_.layer_bytes())};
  return device_.launch(
      "checksum_extents",
      {.grid = {static_cast<uint32_t>(pass_.sums.pages.size()), 1, 1}, .dynamic_shared = gpu::kChecksumShared},
      gpu::bytes_of(args));
}

void DeviceBackend::note_sums(uint32_t layer, std::span<const uint32_t> made) {
  MC_ASSERT_EQ(made.size(), pass_.sums.written.size());
  pass_.checksums.resize(size_t{config().layers} * written_.size());
  for (size_t i = 0; i < made.size(); ++i) pass_.checksums[layer * written_.size() + pass_.sums.written[i]] = made[i];
}

/// Queues the copies of what a chunk wrote of one layer to the caller's pages, and of their sums.
Result<void> DeviceBackend::store_extents(uint32_t layer) {
  const size_t offset = layout_.layer_offset(layer);
  std::vector<DeviceCopies::Store> pieces;
  for (const WrittenPage& page : written_)
    pieces.push_back({pages_.address(page.place.page) + offset, page.host + offset, layout_.layer_bytes()});
  std::vector<uint32_t>& sums = pass_.sums.stored[layer % kLayersAtOnce];
  sums.resize(pass_.sums.pages.size());
  if (!sums.empty())
    pieces.push_back({sums_at(layer), std::as_writable_bytes(std::span(sums)).data(), sums.size() * sizeof(uint32_t)});
  return copies_.store(layer, std::move(pieces));
}

Result<void> DeviceBackend::finish_layer(uint32_t layer) {
  MC_ASSERT(!pass_.is_step);
  MC_CHECK(copies_.finish_store(layer));
  if (!pass_.sums.pages.empty()) note_sums(layer, pass_.sums.stored[layer % kLayersAtOnce]);
  return {};
}

// ---- attention ----

std::vector<gpu::SequenceRows> DeviceBackend::sequence_rows() const {
  std::vector<gpu::SequenceRows> out;
  for (const PassSequence& s : sequences_)
    out.push_back({.q_begin = s.q_begin, .kv_len = s.end(), .tokens = s.tokens, .pages = s.pages});
  if (pass_.is_step) out.resize(pass_.rows);
  return out;
}

/// The addresses of the rows from `first` on.
gpu::AttentionLayer DeviceBackend::attention_layer(uint32_t layer, size_t first) const {
  const uint64_t skipped = first * q_width() * 2;
  return {.pool = pages_.address() + layout_.layer_offset(layer), .q = at_.q + skipped, .out = at_.attended + skipped};
}

Result<void> DeviceBackend::attend(uint32_t layer) {
  std::vector<attn::Mode> modes;
  for (const PassSequence& s : sequences_) modes.push_back(s.plan->layer(static_cast<int32_t>(layer)));
  return attention_.attend(std::move(modes), attention_layer(layer, 0));
}

Result<void> DeviceBackend::after_attention(uint32_t layer) {
  if (layer + 1 == config().layers && !pass_.is_step) {
    pass_.last_state.resize(config().hidden);
    MC_CHECK(
        device_.read(at_.x + (pass_.rows - 1) * hidden_bytes(), std::as_writable_bytes(std::span(pass_.last_state))));
  }
  return rest_of_layer(layer, 0, pass_.rows);
}

Result<void> DeviceBackend::rest_of_layer(uint32_t layer, size_t first, size_t count) {
  const ModelConfig& c = config();
  const DeviceLayer& w = weights_.layer(layer);
  const uint64_t x = at_.x + first * hidden_bytes();
  MC_CHECK(
      multiply(at_.attended + first * q_width() * 2, w.output, w.output_bias, x, count, c.hidden, q_width(), true));
  MC_CHECK(norm(x, w.post_norm, at_.normed, count));
  if (c.has_mixture(layer)) return mixture_->add(w.experts, at_.normed, x, count);
  return add_mlp(w, x, count);
}

/// x += MLP(normed)
Result<void> DeviceBackend::add_mlp(const DeviceLayer& w, uint64_t x, size_t count) {
  const ModelConfig& c = config();
  MC_CHECK(
      multiply(at_.normed, w.gate_up, w.gate_up_bias, at_.gate_up, count, size_t{2} * c.intermediate, c.hidden, false));
  const gpu::SiluArgs silu{.gate_up = gpu::device_pointer<const float>(at_.gate_up),
                           .out = gpu::device_pointer<uint16_t>(at_.activated),
                           .columns = static_cast<int32_t>(c.intermediate)};
  MC_CHECK(gpu::queue_silu(device_, silu, count));
  return multiply(at_.activated, w.down, w.down_bias, x, count, c.hidden, c.intermediate, true);
}

// ---- the end of a pass ----

/// Queues the rest of a step after its layers. `draws` is empty when the host draws.
Result<void> DeviceBackend::queue_step(std::span<const DrawRow> draws) {
  MC_ASSERT(pass_.is_step && written_.size() == sequences_.size());
  DeviceSteps::Step step{.rows = {},
                         .summed = pass_.sums.written,
                         .kept_rows = pass_.rows,
                         .sum_rows = pass_.sums.pages.size(),
                         .kept = kept_at(0),
                         .sums = sums_at(0)};
  const size_t held = size_t{config().layers} * layout_.layer_bytes();
  for (size_t row = 0; row < written_.size(); ++row) {
    const WrittenPage& page = written_[row];
    step.rows.push_back({page.host, static_cast<size_t>(sequences_[row].q_begin % options_.block_tokens)});
    if (page.is_whole) step.full_pages.push_back({pages_.address(page.place.page), page.host, held});
  }
  if (!draws.empty()) {
    MC_ASSERT_EQ(draws.size(), sequences_.size());
    MC_CHECK(make_logits(0, pass_.rows));
    std::vector<uint64_t> names;
    for (const PassSequence& s : sequences_) names.push_back(s.sequence);
    MC_TRY(call, draws_.queue(draws, names, at_.logits, pass_.place, pass_.rows));
    step.draws = std::move(call);
  }
  MC_CHECK(graphs_.end());
  return steps_.queue(std::move(step));
}

Result<void> DeviceBackend::collect_step(std::span<ops::Sampled> out) {
  auto ended = steps_.finish(out);
  pass_.checksums = steps_.sums();
  return ended;
}

Result<void> DeviceBackend::finish_step() {
  MC_ASSERT_EQ(steps_.queued(), size_t{0});
  MC_CHECK(queue_step({}));
  return collect_step({});
}

Result<void> DeviceBackend::finish_last_row(std::span<float> logits_out, std::span<float> hidden) {
  const uint32_t layer = config().layers - 1;
  const size_t row = pass_.rows - 1;
  const uint64_t x = at_.x + row * hidden_bytes();
  if (!pass_.last_state.empty()) MC_CHECK(device_.write(x, std::as_bytes(std::span(pass_.last_state))));
  MC_CHECK(
      attention_.attend_last_row(sequences_[0].plan->layer(static_cast<int32_t>(layer)), attention_layer(layer, row)));
  MC_CHECK(rest_of_layer(layer, row, 1));
  MC_CHECK(logits(row, 1, logits_out));
  if (hidden.empty()) return {};
  std::vector<float> state(config().hidden);
  MC_CHECK(device_.read(x, std::as_writable_bytes(std::span(state))));
  kernels_.rms_norm(state.data(), model_.final_norm().data(), config().norm_epsilon, state.size(), hidden.data());
  return {};
}

Result<void> DeviceBackend::make_logits(size_t first, size_t count) {
  MC_ASSERT_LE(first + count, pass_.rows);
  MC_CHECK(norm(at_.x + first * hidden_bytes(), weights_.final_norm(), at_.normed, count));
  return multiply(at_.normed, weights_.head(), 0, at_.logits, count, config().vocab, config().hidden, false);
}

Result<void> DeviceBackend::logits(size_t first, size_t count, std::span<float> out) {
  MC_ASSERT_EQ(out.size(), count * config().vocab);
  MC_CHECK(make_logits(first, count));
  return device_.read(at_.logits, std::as_writable_bytes(out));
}

Result<void> DeviceBackend::activations(std::span<float> out) {
  MC_ASSERT_EQ(out.size(), pass_.rows * config().hidden);
  return device_.read(at_.x, std::as_writable_bytes(out));
}

}  // namespace

size_t device_workspace_bytes(const ModelConfig& config, const RunnerOptions& options) {
  const auto mixture = mixture_shape(config);
  return scratch_bytes(config, options) + DeviceDraws::bytes(config.vocab, logit_rows_most(options)) +
         (mixture ? gpu::Mixture::bytes(*mixture, rows_most(options)) : 0);
}

DeviceScratch device_scratch(const ModelConfig& config, const ExtentLayout& layout, const RunnerOptions& options) {
  const gpu::AttentionMemory attention =
      DeviceAttention::memory(layout, static_cast<int32_t>(config.heads), options.max_chunk_tokens, options.max_batch);
  return {device_workspace_bytes(config, options) + attention.fixed, attention.page};
}

Result<std::unique_ptr<Backend>> open_device_backend(const Model& model, gpu::Device& device,
                                                     const RunnerOptions& options, const ops::Kernels& kernels) {
  auto backend = std::make_unique<DeviceBackend>(model, device, options, kernels);
  MC_CHECK(backend->prepare());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace mc::model

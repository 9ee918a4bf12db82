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
#include "model/cpu_backend.h"
#include "model/device_attention.h"
#include "model/device_copies.h"
#include "model/device_draws.h"
#include "model/device_inputs.h"
#include "model/device_layers.h"
#include "model/device_loads.h"
#include "model/device_pages.h"
#include "model/device_pass.h"
#include "model/device_rank.h"
#include "model/device_steps.h"
#include "model/tensor_part.h"
#include "ops/rope.h"

namespace mc::model {
namespace {

constexpr gpu::RowPlace kNoPlace{-1, 0};
constexpr gpu::PageRows kNoRows{.page = -1};

/// The rows that the kernels of a step compute. Batches of similar size have one number of rows, so that their kernels
/// are equal; the last rows are of no sequence.
size_t padded_rows(size_t rows, size_t most) {
  constexpr size_t kTile = 16;  // of a product
  return std::min(rows <= kTile ? std::bit_ceil(rows) : round_up(rows, kTile), most);
}

/// MC7002 names what a device does not serve.
Result<void> check_served(const Model& model, const gpu::Device& device, const RunnerOptions& options) {
  const ModelConfig& c = model.config();
  const struct {
    bool served;
    std::string what;
    const char* instead;
    const char* next = "use --device cpu";
  } limits[] = {
      {c.mixture.experts <= gpu::kExpertsMax, "a mixture of " + std::to_string(c.mixture.experts) + " experts",
       "up to 512"},
      {c.head_dim == 64 || c.head_dim == 128, "heads of " + std::to_string(c.head_dim) + " elements", "64 and 128"},
      {model.dtype() == Dtype::bf16, "the compute type " + std::string(mc::to_string(model.dtype())), "bf16",
       "use --dtype bf16, or --device cpu"},
      {options.block_tokens % gpu::kKeyTile == 0, "pages of " + std::to_string(options.block_tokens) + " tokens",
       "multiples of 64"},
  };
  for (const auto& limit : limits)
    if (!limit.served)
      return user_error(err::kDeviceUnusable,
                        std::string(device.name()) + " does not serve " + limit.what + " yet, but " + limit.instead,
                        "--device", limit.next);
  return {};
}

/// The places of the rows of all sequences, whose pages are numbered.
std::vector<gpu::RowPlace> row_places(std::span<const PassSequence> sequences, int64_t block) {
  std::vector<gpu::RowPlace> places;
  for (const PassSequence& s : sequences)
    for (int64_t p = s.q_begin; p < s.end(); ++p)
      places.push_back({s.pages[static_cast<size_t>(p / block)], static_cast<int32_t>(p % block)});
  return places;
}

/// Begins the part of a pass that waits for loads: that of the pages below its chunks. The pages of a step's rows are
/// there.
Result<void> begin_loads(DeviceLoads& loads, std::span<const PassSequence> sequences, int64_t block) {
  std::vector<int32_t> read;
  for (const PassSequence& s : sequences) {
    const auto below = static_cast<size_t>(s.q_begin / block);
    MC_ASSERT_LE(below, s.pages.size());
    for (size_t page = below; page < s.pages.size(); ++page) loads.overwrite(s.pages[page]);
    if (!s.is_row) read.insert(read.end(), s.pages.begin(), s.pages.begin() + static_cast<std::ptrdiff_t>(below));
  }
  return loads.begin_pass(read);
}

void add_rows(std::span<const DecodeRow> rows, std::vector<PassSequence>& sequences, std::vector<int32_t>& tokens) {
  for (const DecodeRow& row : rows) {
    sequences.push_back({.is_row = true,
                         .sequence = row.sequence,
                         .q_begin = row.position,
                         .tokens = 1,
                         .host_pages = row.pages,
                         .given = row.device_pages,
                         .plan = row.plan});
    tokens.push_back(row.fed >= 0 ? ~row.fed : static_cast<int32_t>(row.token));
  }
}

void add_chunk(const PrefillChunk& chunk, std::vector<PassSequence>& sequences, std::vector<int32_t>& tokens) {
  sequences.push_back({.q_begin = chunk.start,
                       .tokens = static_cast<int32_t>(chunk.tokens.size()),
                       .host_pages = chunk.pages,
                       .given = chunk.device_pages.empty() ? nullptr : chunk.device_pages.data(),
                       .plan = chunk.plan});
  if (chunk.first_layer == 0) tokens.insert(tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
}

/// The pages of a layer, as kernels take them.
gpu::KvPool pool_of(const KvPart& kv, const DevicePages& pages, uint32_t layer) {
  const ExtentLayout& own = kv.device;
  return {gpu::device_pointer<const unsigned char>(pages.address() + own.layer_offset(layer)),
          own.page_bytes(),
          own.head_bytes(),
          static_cast<uint32_t>(own.v_offset()),
          static_cast<uint32_t>(own.ksum_offset()),
          static_cast<uint32_t>(own.kmean_offset()),
          static_cast<int32_t>(own.block_tokens),
          static_cast<int32_t>(own.kv_heads),
          own.has_scales() ? static_cast<uint32_t>(own.scale_offset()) : 0};
}

gpu::AttentionShape attention_shape(const ExtentLayout& own, uint32_t heads, bool is_rounded) {
  return {
      .layout = own, .page_bytes = own.page_bytes(), .q_heads = static_cast<int32_t>(heads), .is_rounded = is_rounded};
}

/// The copy of a layer's extent of a page to the host.
DeviceCopies::Store extent_of(const KvPart& kv, const DevicePages& pages, const WrittenPage& page, uint32_t layer) {
  return {pages.address(page.place.page) + kv.device.layer_offset(layer), page.host + kv.host_offset(layer),
          kv.device.layer_bytes()};
}

/// The copies of all layers, which are one where the device has whole extents.
void add_page(const KvPart& kv, const DevicePages& pages, const WrittenPage& page,
              std::vector<DeviceCopies::Store>& pieces) {
  const uint32_t layers = kv.device.layers;
  if (kv.device == kv.host) {
    pieces.push_back({pages.address(page.place.page), page.host, layers * kv.device.layer_bytes()});
    return;
  }
  for (uint32_t layer = 0; layer < layers; ++layer) pieces.push_back(extent_of(kv, pages, page, layer));
}

class DeviceBackend final : public DeviceRank {
 public:
  DeviceBackend(const Model& model, gpu::Device& device, const RunnerOptions& options, const ops::Kernels& kernels,
                const TensorPart& part)
      : model_(model),
        device_(device),
        options_(options),
        kernels_(kernels),
        kv_(KvPart::of(model.kv_layout(options.block_tokens), part)),
        rope_(model.config().rope, model.config().head_dim),
        layers_(model, device, options, part),
        attention_(device),
        pages_(device, kv_.device.page_bytes()),
        copies_(device),
        loads_(device, kv_.device),
        steps_(copies_, kv_),
        draws_(device),
        graphs_(device) {}
  Result<void> prepare(Parallel& parallel);

  Result<void> check_plan(const attn::Plan& plan, int64_t kv_len) const override {
    return gpu::check_mode(kv_.device, plan.layer(0), kv_len);
  }
  Result<void> begin(const PrefillChunk& chunk) override;
  Result<void> begin(std::span<const DecodeRow> rows) override;
  bool mixes() const override { return true; }
  Result<void> begin(const MixedPass& pass) override;
  Result<DeviceLayers::Rows> attend_last_rows() override;
  Result<void> end_rows(const MixedPass& pass) override;
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
  DeviceLayers& layers() override { return layers_; }
  Result<DeviceLayers::Rows> rows_behind(uint32_t layer) override;
  Result<DeviceLayers::Rows> attend_last_row() override;
  Result<void> end_last_row(std::span<float> logits, std::span<float> hidden) override;
  Result<void> logits(size_t first, size_t count, std::span<float> out) override;
  Result<void> activations(std::span<float> out) override;
  DeviceLoads* loads() override { return options_.device_pages > 0 ? &loads_ : nullptr; }
  uint64_t replayed_steps() const override { return graphs_.counts().replayed; }
  uint64_t refused_graphs() const override { return graphs_.counts().refused; }
  bool draws(const DrawRow& row) const override { return draws_.draws(row); }
  Result<void> queue_step(std::span<const DrawRow> draws) override;
  Result<void> collect_step(std::span<ops::Sampled> out) override;

 private:
  const ModelConfig& config() const { return layers_.config(); }
  uint64_t sums_at(uint32_t layer) const {
    const size_t first = pass_.is_step ? pass_.place * config().layers * options_.max_batch : 0;
    return layers_.at().sums + (first + (pass_.is_step ? layer : layer % kLayersAtOnce) * pass_.sums.pages.size()) * 4;
  }
  uint64_t kept_at(uint32_t layer) const {
    const size_t first = pass_.place * config().layers * options_.max_batch;
    return layers_.at().kept + (first + layer * pass_.step_rows) * kept_row_bytes(kv_.device);
  }

  Result<void> begin_rows(const std::vector<int32_t>& tokens, const std::vector<gpu::RowPlace>& places);
  Result<void> place_pages(LayerRange layers);
  void use_page(PassSequence& sequence, int64_t page, int64_t first_row);
  Result<void> load_extents(uint32_t layer);
  Result<DrawCall> queue_draws(std::span<const DrawRow> draws);
  Result<void> draw_at_once(std::span<const DrawRow> draws, std::span<ops::Sampled> out);
  Result<void> sum_extents(uint32_t layer);
  Result<void> store_extents(uint32_t layer);
  Result<void> seal_pages(uint32_t layer);
  gpu::AttentionLayer attention_layer(uint32_t layer, size_t first) const;
  Result<void> read_state(uint64_t x, std::span<float> hidden);

  const Model& model_;
  gpu::Device& device_;
  RunnerOptions options_;
  const ops::Kernels& kernels_;
  KvPart kv_;
  ops::Rope rope_;
  DeviceLayers layers_;
  DeviceAttention attention_;
  DevicePages pages_;
  DeviceCopies copies_;
  DeviceLoads loads_;  // to pages that the caller numbers
  DeviceSteps steps_;
  DeviceDraws draws_;
  gpu::LaunchGraphs graphs_;  // of steps

  // The pass under way.
  PassState pass_;
  DeviceInputs inputs_{0};
  std::vector<PassSequence> sequences_;
  std::vector<WrittenPage> written_;
};

// ---- opening ----

Result<void> DeviceBackend::prepare(Parallel& parallel) {
  MC_CHECK(check_served(model_, device_, options_));
  MC_CHECK(layers_.prepare(parallel));
  MC_CHECK(copies_.prepare());
  if (options_.device_pages > 0) {
    MC_CHECK(pages_.reserve(options_.device_pages));
    MC_CHECK(loads_.prepare(pages_.address()));
  }
  return draws_.prepare(config().vocab, DeviceLayers::logit_rows_most(options_));
}

// ---- the beginning of a pass ----

Result<void> DeviceBackend::begin(const PrefillChunk& chunk) {
  std::vector<int32_t> tokens;
  graphs_.drop();
  sequences_.clear();
  add_chunk(chunk, sequences_, tokens);
  pass_ = {.rows = chunk.tokens.size()};
  MC_CHECK(place_pages({chunk.first_layer, chunk.end_layer == 0 ? config().layers : chunk.end_layer}));
  MC_CHECK(begin_rows(tokens, row_places(sequences_, options_.block_tokens)));
  if (chunk.first_layer > 0) MC_CHECK(device_.write(layers_.at().x, std::as_bytes(chunk.activations_in)));
  return {};
}

Result<void> DeviceBackend::begin(std::span<const DecodeRow> rows) {
  std::vector<int32_t> tokens;
  graphs_.drop();
  sequences_.clear();
  add_rows(rows, sequences_, tokens);
  const size_t all = options_.graphs ? padded_rows(rows.size(), options_.max_batch) : rows.size();
  pass_.is_step = true;
  pass_.rows = pass_.step_rows = all;
  pass_.place = steps_.next_place();
  pass_.last_state.clear();
  pass_.last_rows.clear();
  MC_CHECK(place_pages({0, config().layers}));
  std::vector<gpu::RowPlace> places = row_places(sequences_, options_.block_tokens);
  tokens.resize(pass_.rows);
  places.resize(pass_.rows, kNoPlace);
  return begin_rows(tokens, places);
}

// The rows of the step come first: their K and V are kept side by side, and their logits are the first ones.
Result<void> DeviceBackend::begin(const MixedPass& pass) {
  MC_ASSERT_EQ(steps_.queued(), size_t{0});
  std::vector<int32_t> tokens;
  graphs_.drop();
  sequences_.clear();
  add_rows(pass.rows, sequences_, tokens);
  for (const PrefillChunk* chunk : pass.chunks) add_chunk(*chunk, sequences_, tokens);
  pass_ = {.rows = tokens.size(), .step_rows = pass.rows.size(), .place = steps_.next_place()};
  for (size_t row = 0; row < pass.rows.size(); ++row) pass_.last_rows.push_back(static_cast<int32_t>(row));
  size_t end = pass.rows.size();
  for (const PrefillChunk* chunk : pass.chunks) {
    end += chunk->tokens.size();
    if (!chunk->logits.empty()) pass_.last_rows.push_back(static_cast<int32_t>(end) - 1);
  }
  MC_CHECK(place_pages({0, config().layers}));
  return begin_rows(tokens, row_places(sequences_, options_.block_tokens));
}

/// `tokens` is empty when the activations come from another stage.
Result<void> DeviceBackend::begin_rows(const std::vector<int32_t>& tokens, const std::vector<gpu::RowPlace>& places) {
  MC_ASSERT(places.size() == pass_.rows && pass_.rows <= DeviceLayers::rows_most(options_));
  const size_t half = rope_.half();
  std::vector<float> cosine(pass_.rows * half), sine(pass_.rows * half);
  size_t row = 0;
  for (const PassSequence& s : sequences_)
    for (int64_t p = s.q_begin; p < s.end(); ++p, ++row)
      rope_.at(static_cast<uint64_t>(p), cosine.data() + row * half, sine.data() + row * half);
  MC_ASSERT_LE(row, pass_.rows);
  inputs_ = DeviceInputs(layers_.at().inputs);
  inputs_.tokens = inputs_.add(tokens);
  inputs_.places = inputs_.add(places);
  inputs_.sealed = inputs_.add(pass_.sealed);
  inputs_.summed = inputs_.add(pass_.sums.pages);
  inputs_.coded = inputs_.add(pass_.coded);
  inputs_.last = inputs_.add(pass_.last_rows);
  inputs_.cosine = inputs_.add(cosine);
  inputs_.sine = inputs_.add(sine);
  MC_ASSERT_LE(inputs_.bytes().size(), DeviceInputs::bytes_most(DeviceLayers::rows_most(options_), config().head_dim));
  MC_CHECK(device_.post(layers_.at().inputs, inputs_.bytes()));
  // The kernels of a step are noted, to be queued together at its end, unless they have to wait for pages. Copies that
  // are posted until then are queued before all of them.
  if (pass_.is_step && options_.graphs && pages_.missing().empty()) graphs_.begin();
  if (tokens.empty()) return {};
  return layers_.embed(inputs_.tokens, draws_.drawn(1 - pass_.place), pass_.rows);
}

/// Numbers the pages of the pass, and begins to copy in the earlier rows that the device lacks.
Result<void> DeviceBackend::place_pages(LayerRange layers) {
  pass_.layers = layers;
  written_.clear();
  pass_.sealed.clear();
  pass_.coded.clear();
  pass_.sums = {};
  pages_.begin();
  int64_t first_row = 0;
  for (PassSequence& s : sequences_) {
    for (int64_t page = 0; page * options_.block_tokens < s.end(); ++page) use_page(s, page, first_row);
    first_row += s.tokens;
  }
  if (pass_.is_step && options_.graphs && kv_.device.has_scales()) pass_.coded.resize(pass_.rows, kNoRows);
  if (pass_.is_step && options_.graphs && !pass_.sums.pages.empty()) {  // one grid for any number of full pages
    pass_.sealed.resize(pass_.rows, kNoPlace);
    pass_.sums.pages.resize(pass_.rows, kNoPlace);
  }
  std::vector<gpu::SequenceRows> rows;
  for (const PassSequence& s : sequences_)
    rows.push_back({.q_begin = s.q_begin, .kv_len = s.end(), .tokens = s.tokens, .pages = s.pages});
  if (pass_.is_step) rows.resize(pass_.rows);
  attention_.begin(attention_shape(kv_.device, config().heads, pass_.is_step && options_.graphs), std::move(rows));
  if (options_.device_pages > 0) MC_CHECK(begin_loads(loads_, sequences_, options_.block_tokens));
  MC_CHECK(pages_.make_room());
  if (pages_.has_moved()) MC_CHECK(steps_.store_all());  // the host's pages are copied in anew
  MC_CHECK(copies_.begin(steps_.queued() > 0));
  return load_extents(pass_.layers.first);
}

/// Numbers a page of a sequence, whose pages below are numbered. `first_row`: of the sequence in the pass.
void DeviceBackend::use_page(PassSequence& s, int64_t page, int64_t first_row) {
  const int64_t block = options_.block_tokens;
  std::byte* const host = s.host_pages[page];
  const bool is_read = (page + 1) * block <= s.q_begin, is_fresh = page * block >= s.q_begin;
  const PageUse use = is_read ? PageUse::read : is_fresh ? PageUse::fresh : PageUse::append;
  MC_ASSERT((s.given != nullptr) == (options_.device_pages > 0));
  s.pages.push_back(s.given != nullptr ? s.given[page]
                    : s.sequence == 0  ? pages_.take(host, use)
                                       : pages_.keep(s.sequence, static_cast<size_t>(page), host, use));
  MC_ASSERT(options_.device_pages == 0 || static_cast<uint32_t>(s.pages.back()) < options_.device_pages);
  if (is_read) return;
  const int64_t tokens = std::min(s.end() - page * block, block);
  const gpu::RowPlace place{s.pages.back(), static_cast<int32_t>(tokens)};
  if (kv_.device.has_scales()) {
    const int64_t begin = std::max(page * block, s.q_begin);
    pass_.coded.push_back({.page = place.page,
                           .slot = static_cast<int32_t>(begin - page * block),
                           .first = static_cast<int32_t>(first_row + begin - s.q_begin),
                           .count = static_cast<int32_t>(page * block + tokens - begin)});
  }
  // The rest of a page that a step begins is not read before a later step fills the page.
  written_.push_back({place, host, tokens == block || (is_fresh && !s.is_row)});
  if (written_.back().is_whole) pass_.sealed.push_back(place);
  if (s.is_row && tokens < block) return;  // a later step still writes the page
  pass_.sums.pages.push_back(place);
  pass_.sums.written.push_back(written_.size() - 1);
}

/// Queues the copies of a layer's extents of the missing pages. A page is there when all layers are.
Result<void> DeviceBackend::load_extents(uint32_t layer) {
  if (options_.device_pages > 0) return layer < pass_.layers.end ? loads_.advance(layer) : Result<void>{};
  if (layer >= pass_.layers.end) return {};
  const size_t offset = kv_.device.layer_offset(layer);
  std::vector<DeviceCopies::Load> pieces;
  for (const DevicePages::Missing& page : pages_.missing())
    pieces.push_back(
        {page.host + kv_.host_offset(layer), pages_.address(page.number) + offset, kv_.device.layer_bytes()});
  MC_CHECK(copies_.load(layer, pieces));
  if (layer + 1 == config().layers && pass_.layers.first == 0) pages_.note_filled();
  return {};
}

// ---- a layer ----

Result<void> DeviceBackend::before_attention(uint32_t layer) {
  MC_CHECK(options_.device_pages > 0 ? loads_.await(layer) : copies_.await_load(layer));
  MC_CHECK(layers_.project(layer, pass_.rows));
  const DeviceLayers::RotateTables tables{.places = inputs_.places,
                                          .cosine = inputs_.cosine,
                                          .sine = inputs_.sine,
                                          .kept = kept_at(layer),
                                          .kept_rows = pass_.step_rows,
                                          .coded = inputs_.coded,
                                          .coded_pages = pass_.coded.size()};
  MC_CHECK(layers_.rotate(layer, pool_of(kv_, pages_, layer), tables, pass_.rows));
  MC_CHECK(seal_pages(layer));
  MC_CHECK(sum_extents(layer));
  MC_CHECK(load_extents(layer + 1));
  return pass_.is_step ? Result<void>{} : store_extents(layer);
}

Result<void> DeviceBackend::seal_pages(uint32_t layer) {
  if (pass_.sealed.empty()) return {};
  const gpu::SealArgs seal{.pool = pool_of(kv_, pages_, layer),
                           .pages = gpu::device_pointer<const gpu::RowPlace>(inputs_.sealed),
                           .head_dim = static_cast<int32_t>(config().head_dim)};
  return device_.launch("seal_pages", {.grid = {static_cast<uint32_t>(pass_.sealed.size()), config().kv_heads, 1}},
                        gpu::bytes_of(seal));
}

std::span<const uint32_t> DeviceBackend::checksums(uint32_t layer) const {
  const size_t each = pass_.checksums.size() / config().layers;
  return std::span(pass_.checksums).subspan(layer * each, each);
}

/// Queues the sums of what the pass wrote of one layer: the device makes them before the bytes cross to the host.
Result<void> DeviceBackend::sum_extents(uint32_t layer) {
  if (pass_.sums.pages.empty()) return {};
  const gpu::ChecksumArgs args{
      .extents = gpu::device_pointer<const unsigned char>(pages_.address() + kv_.device.layer_offset(layer)),
      .page_bytes = kv_.device.page_bytes(),
      .pages = gpu::device_pointer<const gpu::RowPlace>(inputs_.summed),
      .sums = gpu::device_pointer<uint32_t>(sums_at(layer)),
      .words = static_cast<uint32_t>(kv_.device.layer_bytes() / 4),
      .start = crc32c_shift(0xffffffff, kv_.device.layer_bytes())};
  return device_.launch(
      "checksum_extents",
      {.grid = {static_cast<uint32_t>(pass_.sums.pages.size()), 1, 1}, .dynamic_shared = gpu::kChecksumShared},
      gpu::bytes_of(args));
}

/// Queues the copies of what the pass wrote of one layer to the host, and of their sums.
Result<void> DeviceBackend::store_extents(uint32_t layer) {
  std::vector<DeviceCopies::Store> pieces;
  for (const WrittenPage& page : written_)
    if (page.is_whole) pieces.push_back(extent_of(kv_, pages_, page, layer));
  StoredLayer& stored = pass_.stored[layer % kLayersAtOnce];
  stored.kept.resize(pass_.step_rows * kept_row_bytes(kv_.device));
  if (!stored.kept.empty()) pieces.push_back({kept_at(layer), stored.kept.data(), stored.kept.size()});
  stored.sums.resize(pass_.sums.pages.size());
  const auto sums = std::as_writable_bytes(std::span(stored.sums));
  if (!sums.empty()) pieces.push_back({sums_at(layer), sums.data(), sums.size()});
  return copies_.store(layer, std::move(pieces));
}

Result<void> DeviceBackend::finish_layer(uint32_t layer) {
  MC_ASSERT(!pass_.is_step);
  MC_CHECK(copies_.finish_store(layer));
  const StoredLayer& stored = pass_.stored[layer % kLayersAtOnce];
  MC_ASSERT_EQ(stored.kept.size(), pass_.step_rows * kept_row_bytes(kv_.device));
  for (size_t row = 0; row < pass_.step_rows; ++row)
    write_kept_row(kv_.device, written_[row].host + kv_.host_offset(layer),
                   static_cast<size_t>(sequences_[row].q_begin % options_.block_tokens),
                   stored.kept.data() + row * kept_row_bytes(kv_.device));
  MC_ASSERT_EQ(stored.sums.size(), pass_.sums.written.size());
  pass_.checksums.resize(size_t{config().layers} * written_.size());
  for (size_t i = 0; i < stored.sums.size(); ++i)
    pass_.checksums[layer * written_.size() + pass_.sums.written[i]] = stored.sums[i];
  return {};
}

// ---- attention ----

/// The addresses of the rows from `first` on.
gpu::AttentionLayer DeviceBackend::attention_layer(uint32_t layer, size_t first) const {
  const uint64_t skipped = first * layers_.q_bytes();
  return {.pool = pages_.address() + kv_.device.layer_offset(layer),
          .q = layers_.at().q + skipped,
          .out = layers_.at().attended + skipped};
}

Result<void> DeviceBackend::attend(uint32_t layer) {
  std::vector<attn::Mode> modes;
  for (const PassSequence& s : sequences_) modes.push_back(s.plan->layer(static_cast<int32_t>(layer)));
  return attention_.attend(std::move(modes), attention_layer(layer, 0));
}

Result<DeviceLayers::Rows> DeviceBackend::rows_behind(uint32_t layer) {
  if (layer + 1 == config().layers && !pass_.is_step) {
    pass_.last_state.resize(config().hidden);
    MC_CHECK(device_.read(layers_.x(pass_.rows - 1), std::as_writable_bytes(std::span(pass_.last_state))));
  }
  return DeviceLayers::Rows{layers_.at().attended, layers_.at().x, pass_.rows};
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
  for (size_t row = 0; row < written_.size(); ++row) {
    const WrittenPage& page = written_[row];
    step.rows.push_back({page.host, static_cast<size_t>(sequences_[row].q_begin % options_.block_tokens)});
    if (page.is_whole) add_page(kv_, pages_, page, step.full_pages);
  }
  if (!draws.empty()) {
    MC_CHECK(layers_.make_logits(layers_.at().x, pass_.rows));
    MC_TRY(call, queue_draws(draws));
    step.draws = std::move(call);
  }
  MC_CHECK(graphs_.end());
  return steps_.queue(std::move(step));
}

/// Queues a draw for each row of a step, whose logits are the first ones.
Result<DrawCall> DeviceBackend::queue_draws(std::span<const DrawRow> draws) {
  std::vector<uint64_t> names;
  for (const PassSequence& s : sequences_)
    if (s.is_row) names.push_back(s.sequence);
  MC_ASSERT_EQ(draws.size(), names.size());
  return draws_.queue(draws, names, layers_.at().logits, pass_.place, pass_.step_rows);
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

Result<DeviceLayers::Rows> DeviceBackend::attend_last_row() {
  const uint32_t layer = config().layers - 1;
  const size_t row = pass_.rows - 1;
  const uint64_t x = layers_.x(row);
  if (!pass_.last_state.empty()) MC_CHECK(device_.write(x, std::as_bytes(std::span(pass_.last_state))));
  const gpu::AttentionLayer places = attention_layer(layer, row);
  MC_CHECK(attention_.attend_last_row(sequences_[0].plan->layer(static_cast<int32_t>(layer)), places));
  return DeviceLayers::Rows{places.out, x, 1};
}

Result<void> DeviceBackend::end_last_row(std::span<float> logits_out, std::span<float> hidden) {
  const size_t row = pass_.rows - 1;
  MC_CHECK(logits(row, 1, logits_out));
  return hidden.empty() ? Result<void>{} : read_state(layers_.x(row), hidden);
}

/// The state behind the final norm, of a row of x.
Result<void> DeviceBackend::read_state(uint64_t x, std::span<float> hidden) {
  std::vector<float> state(config().hidden);
  MC_CHECK(device_.read(x, std::as_writable_bytes(std::span(state))));
  kernels_.rms_norm(state.data(), model_.final_norm().data(), config().norm_epsilon, state.size(), hidden.data());
  return {};
}

// The rows lie side by side in memory of their own, one token of a sequence each: they are a step's rows, whatever the
// pass has beside them.
Result<DeviceLayers::Rows> DeviceBackend::attend_last_rows() {
  const size_t count = pass_.last_rows.size();
  if (count == 0) return DeviceLayers::Rows{};
  const uint32_t layer = config().layers - 1;
  const DeviceLayers::Parts& at = layers_.at();
  std::vector<gpu::SequenceRows> rows;
  std::vector<attn::Mode> modes;
  size_t end = 0;
  for (const PassSequence& s : sequences_) {
    end += static_cast<size_t>(s.tokens);
    if (rows.size() == count || pass_.last_rows[rows.size()] != static_cast<int32_t>(end) - 1) continue;
    rows.push_back({.q_begin = s.end() - 1, .kv_len = s.end(), .tokens = 1, .pages = s.pages});
    modes.push_back(s.plan->layer(static_cast<int32_t>(layer)));
  }
  MC_ASSERT_EQ(rows.size(), count);
  MC_CHECK(layers_.gather(inputs_.last, count));
  attention_.begin(attention_shape(kv_.device, config().heads, pass_.is_step && options_.graphs), std::move(rows));
  const uint64_t pool = pages_.address() + kv_.device.layer_offset(layer);
  MC_CHECK(attention_.attend(std::move(modes), {.pool = pool, .q = at.last_q, .out = at.attended}));
  return DeviceLayers::Rows{at.attended, at.last_x, count};
}

Result<void> DeviceBackend::end_rows(const MixedPass& pass) {
  const size_t vocab = config().vocab;
  const DeviceLayers::Parts& at = layers_.at();
  MC_CHECK(layers_.make_logits(at.last_x, pass_.last_rows.size()));
  if (!pass.draws.empty()) MC_CHECK(draw_at_once(pass.draws, pass.drawn));
  if (!pass.logits.empty()) MC_CHECK(device_.read(at.logits, std::as_writable_bytes(pass.logits)));
  size_t row = pass.rows.size();
  for (const PrefillChunk* chunk : pass.chunks) {
    if (chunk->logits.empty()) continue;
    MC_CHECK(device_.read(at.logits + row * vocab * 4, std::as_writable_bytes(chunk->logits)));
    if (!chunk->hidden.empty()) MC_CHECK(read_state(at.last_x + row * layers_.hidden_bytes(), chunk->hidden));
    ++row;
  }
  return {};
}

Result<void> DeviceBackend::draw_at_once(std::span<const DrawRow> draws, std::span<ops::Sampled> out) {
  MC_TRY(call, queue_draws(draws));
  std::vector<DeviceCopies::Store> pieces;
  call.add_copies(pieces);
  const auto slot = static_cast<uint32_t>(pass_.place);
  MC_CHECK(copies_.store(slot, std::move(pieces)));
  MC_CHECK(copies_.finish_store(slot));
  return call.results(out);
}

Result<void> DeviceBackend::logits(size_t first, size_t count, std::span<float> out) {
  MC_ASSERT_EQ(out.size(), count * config().vocab);
  MC_ASSERT_LE(first + count, pass_.rows);
  MC_CHECK(layers_.make_logits(layers_.x(first), count));
  return device_.read(layers_.at().logits, std::as_writable_bytes(out));
}

Result<void> DeviceBackend::activations(std::span<float> out) {
  MC_ASSERT_EQ(out.size(), pass_.rows * config().hidden);
  return device_.read(layers_.at().x, std::as_writable_bytes(out));
}

}  // namespace

size_t device_workspace_bytes(const ModelConfig& config, const RunnerOptions& options) {
  return DeviceLayers::bytes(config, options) +
         DeviceDraws::bytes(config.vocab, DeviceLayers::logit_rows_most(options));
}

DeviceScratch device_scratch(const ModelConfig& config, const ExtentLayout& layout, const RunnerOptions& options,
                             std::span<const attn::Plan> plans, size_t device_bytes) {
  const gpu::AttentionMemory attention = DeviceAttention::memory(
      layout, static_cast<int32_t>(config.heads), options.max_chunk_tokens, options.max_batch, plans, device_bytes);
  return {device_workspace_bytes(config, options) + attention.fixed, attention.page};
}

Result<std::unique_ptr<DeviceRank>> open_device_rank(const Model& model, gpu::Device& device, Parallel& parallel,
                                                     const RunnerOptions& options, const ops::Kernels& kernels,
                                                     const TensorPart& part) {
  MC_ASSERT(part.is_whole() || (options.device_pages == 0 && !options.graphs));
  auto rank = std::make_unique<DeviceBackend>(model, device, options, kernels, part);
  MC_CHECK(rank->prepare(parallel));
  return std::unique_ptr<DeviceRank>(std::move(rank));
}

Result<std::unique_ptr<Backend>> open_device_backend(const Model& model, gpu::Device& device, Parallel& parallel,
                                                     const RunnerOptions& options, const ops::Kernels& kernels) {
  MC_TRY(whole, open_device_rank(model, device, parallel, options, kernels, {}));
  return std::unique_ptr<Backend>(std::move(whole));
}

}  // namespace mc::model

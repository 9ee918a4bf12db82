// See cpu_backend.h. Rows are positions: tile t of a chunk holds positions from 64 (start / 64 + t) on, so the index of
// a row in its tile is position % 64 for every block size. Rows outside the chunk are zero. Where all products are
// quantised, a row has equal bits in every place, and a chunk is computed without rows outside of it. All steps but
// attention work on groups of 8 tiles, so that scratch memory stays small and the activations of a group stay in cache.
#include "model/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "base/parallel.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace mc::model {
namespace {

using ops::kTileRows;

constexpr size_t kGroupRows = kBatchRowsMax;
constexpr int64_t kRowGrain = 8;  // rows a thread takes at a time in element-wise loops

size_t rows_of(const RunnerOptions& options) {
  // A chunk may start in the middle of a tile when blocks are smaller than tiles.
  const size_t chunk = round_up(size_t{options.max_chunk_tokens} + kTileRows - 1, kTileRows);
  return std::max<size_t>(chunk, options.max_batch);
}

struct Widths {
  size_t hidden, q, kv, qkv;
  size_t inner;    // inner width of the widest MLP
  size_t experts;  // number of experts of a mixture, or 0
  explicit Widths(const ModelConfig& c)
      : hidden(c.hidden),
        q(size_t{c.heads} * c.head_dim),
        kv(size_t{c.kv_heads} * c.head_dim),
        qkv(q + 2 * kv),
        inner(std::max({c.intermediate, c.mixture.intermediate, c.mixture.shared_intermediate})),
        experts(c.mixture.experts) {}
};

/// One allocation cut into f32 arrays.
struct Workspace {
  float *x, *qkv, *attention, *cosine, *sine;       // [rows, ...]
  float *normed, *projected, *gate_up, *activated;  // [group, ...]
  float *scores, *asked, *answered;                 // [group, ...] of a mixture

  static size_t floats(const ModelConfig& c, size_t rows) {
    const Widths w(c);
    const size_t group = std::min(rows, kGroupRows);
    return rows * (w.hidden + w.qkv + w.q + c.head_dim) + group * (2 * w.hidden + 3 * w.inner + mixture(w)) + 12 * 16;
  }

  void cut(const ModelConfig& c, size_t rows, float* memory) {
    const Widths w(c);
    const size_t group = std::min(rows, kGroupRows);
    const auto take = [&](size_t count) {
      float* start = memory;
      memory += round_up(count, 16);
      return start;
    };
    x = take(rows * w.hidden);
    qkv = take(rows * w.qkv);
    attention = take(rows * w.q);
    cosine = take(rows * c.head_dim / 2);
    sine = take(rows * c.head_dim / 2);
    normed = take(group * w.hidden);
    projected = take(group * w.hidden);
    gate_up = take(group * 2 * w.inner);
    activated = take(group * w.inner);
    scores = take(group * w.experts);
    asked = take(group * (w.experts > 0 ? w.hidden : 0));
    answered = take(group * (w.experts > 0 ? w.hidden : 0));
  }

 private:
  /// Number of floats in a row for a mixture. The gate of the shared expert reuses the memory of the scores.
  static size_t mixture(const Widths& w) { return w.experts > 0 ? w.experts + 2 * w.hidden : 0; }
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Model& model, Parallel& parallel, const RunnerOptions& options, const ops::Kernels& kernels,
             attn::Attention attention)
      : model_(model),
        parallel_(parallel),
        options_(options),
        layout_(model.kv_layout(options.block_tokens)),
        width_(model.config()),
        kernels_(kernels),
        matmul_(kernels, parallel),
        attention_(std::move(attention)),
        rope_(model.config().rope, model.config().head_dim) {}
  /// Allocates the workspace and compiles the matrix products of chunks.
  Result<void> prepare();

  Result<void> begin(const PrefillChunk& chunk) override;
  Result<void> begin(std::span<const DecodeRow> rows) override;
  Result<void> before_attention(uint32_t layer) override;
  Result<void> attend(uint32_t layer) override;
  Result<void> after_attention(uint32_t layer) override;
  Result<void> finish_last_row(std::span<float> logits, std::span<float> hidden) override;
  Result<void> logits(size_t first, size_t count, std::span<float> out) override;
  Result<void> activations(std::span<float> out) override;

 private:
  const ModelConfig& config() const { return model_.config(); }

  /// Calls body(row) for every row in [0, rows), in parallel when there are many.
  template <class Body>
  void each_row(size_t rows, Body&& body) {
    parallel_.for_ranges(static_cast<int64_t>(rows), kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) body(row);
    });
  }

  /// The form of a matrix product: 64-row tiles of a chunk, or independent rows.
  enum class Form { tiles, rows };

  void product(Form form, const ops::PackedMatrix& weights, const float* x, size_t rows, float* y) {
    if (form == Form::tiles)
      matmul_.prefill(weights, x, rows / kTileRows, y);
    else
      matmul_.decode(weights, x, rows, y);
  }

  /// out = MLP(in) for `rows` rows, at most one group. Where rows are independent, their activations take the place of
  /// their gates, so that memory of `activated` is never touched.
  void run_mlp(Form form, const Mlp& mlp, const float* in, size_t rows, float* out) {
    const size_t inner = mlp.down.columns(), stride = 2 * inner;
    product(form, mlp.gate_up, in, rows, work_.gate_up);
    each_row(rows, [&](size_t row) {
      float* gate = work_.gate_up + row * stride;
      if (!mlp.gate_up_bias.empty()) kernels_.add(mlp.gate_up_bias.data(), stride, gate);
      kernels_.silu_mul(gate, gate + inner, inner, form == Form::tiles ? work_.activated + row * inner : gate);
    });
    if (form == Form::tiles)
      product(form, mlp.down, work_.activated, rows, out);
    else
      matmul_.decode(mlp.down, work_.gate_up, rows, out, stride);
    if (mlp.down_bias.empty()) return;
    each_row(rows, [&](size_t row) { kernels_.add(mlp.down_bias.data(), width_.hidden, out + row * width_.hidden); });
  }

  /// out = MLP(in) for a mixture of experts. Experts run in ascending order, and their rows are independent. So the
  /// bits of a row do not depend on neighbouring rows or on other rows of its experts.
  void run_experts(Form form, const Experts& experts, const float* in, size_t rows, float* out) {
    const size_t hidden = width_.hidden;
    const MixtureConfig& mixture = config().mixture;
    matmul_.decode(experts.router, in, rows, work_.scores);
    auto& [asking, routes] = routing_;
    asking.assign(mixture.experts, {});
    for (size_t row = 0; row < rows; ++row) {
      route({work_.scores + row * mixture.experts, mixture.experts}, mixture.per_token, mixture.normalise, routes);
      for (const Route& one : routes) asking[one.expert].push_back({static_cast<uint32_t>(row), one.share});
    }
    std::fill_n(out, rows * hidden, 0.0f);
    for (size_t expert = 0; expert < asking.size(); ++expert) {
      const auto& askers = asking[expert];
      if (askers.empty()) continue;
      for (size_t i = 0; i < askers.size(); ++i)
        std::memcpy(work_.asked + i * hidden, in + askers[i].row * hidden, hidden * sizeof(float));
      run_mlp(Form::rows, experts.routed[expert], work_.asked, askers.size(), work_.answered);
      each_row(askers.size(), [&](size_t i) {
        add_share(work_.answered + i * hidden, askers[i].share, out + askers[i].row * hidden);
      });
    }
    if (mixture.shared_intermediate == 0) return;
    matmul_.decode(experts.shared_gate, in, rows, work_.scores);
    run_mlp(form, experts.shared, in, rows, work_.answered);
    each_row(rows, [&](size_t row) {
      add_share(work_.answered + row * hidden, 1 / (1 + std::exp(-work_.scores[row])), out + row * hidden);
    });
  }

  /// sum += share * answer, [hidden]
  void add_share(const float* answer, float share, float* sum) const {
    for (size_t i = 0; i < width_.hidden; ++i) sum[i] += share * answer[i];
  }

  /// x += W attention (+ bias), then x += MLP(norm(x)), for `rows` rows from `first`, at most one group.
  void finish_layer(Form form, const Layer& layer, const float* attended, float* x, size_t rows) {
    const Widths& w = width_;
    product(form, layer.output, attended, rows, work_.projected);
    each_row(rows, [&](size_t row) {
      float* out = x + row * w.hidden;
      if (!layer.output_bias.empty()) kernels_.add(layer.output_bias.data(), w.hidden, out);
      kernels_.add(work_.projected + row * w.hidden, w.hidden, out);
      kernels_.rms_norm(out, layer.post_norm.data(), config().norm_epsilon, w.hidden, work_.normed + row * w.hidden);
    });
    if (layer.experts.routed.empty())
      run_mlp(form, layer.mlp, work_.normed, rows, work_.projected);
    else
      run_experts(form, layer.experts, work_.normed, rows, work_.projected);
    each_row(rows, [&](size_t row) { kernels_.add(work_.projected + row * w.hidden, w.hidden, x + row * w.hidden); });
  }

  /// qkv = W norm(x) (+ bias), with q and k normed and rotated, for `rows` rows, at most one group.
  void project_qkv(Form form, const Layer& layer, const float* x, const float* cosine, const float* sine, size_t rows,
                   float* qkv) {
    const Widths& w = width_;
    const size_t dim = config().head_dim, half = dim / 2;
    each_row(rows, [&](size_t row) {
      kernels_.rms_norm(x + row * w.hidden, layer.input_norm.data(), config().norm_epsilon, w.hidden,
                        work_.normed + row * w.hidden);
    });
    product(form, layer.qkv, work_.normed, rows, qkv);
    each_row(rows, [&](size_t row) {
      float* line = qkv + row * w.qkv;
      if (!layer.qkv_bias.empty()) kernels_.add(layer.qkv_bias.data(), w.qkv, line);
      for (size_t head = 0; head < size_t{config().heads} + config().kv_heads; ++head) {
        float* part = line + head * dim;
        const std::vector<float>& norm = head < config().heads ? layer.q_norm : layer.k_norm;
        if (!norm.empty()) kernels_.rms_norm(part, norm.data(), config().norm_epsilon, dim, part);
        kernels_.rope(part, cosine + row * half, sine + row * half, half);
      }
    });
  }

  /// logits [rows, vocab] of `rows` rows of x. Overwrites work_.normed.
  void project_logits(const float* x, size_t rows, float* logits) {
    for (size_t first = 0; first < rows; first += kGroupRows) {
      const size_t count = std::min(rows - first, kGroupRows);
      each_row(count, [&](size_t row) {
        kernels_.rms_norm(x + (first + row) * width_.hidden, model_.final_norm().data(), config().norm_epsilon,
                          width_.hidden, work_.normed + row * width_.hidden);
      });
      matmul_.decode(model_.head(), work_.normed, count, logits + first * config().vocab);
    }
  }

  size_t last_row() const { return pad_ + chunk_->tokens.size() - 1; }
  Form form() const { return chunk_ != nullptr && !free_rows_ ? Form::tiles : Form::rows; }
  Result<void> attend_chunk(uint32_t layer, const float* q, size_t rows, int64_t position, float* out);
  Result<void> attend_batch(uint32_t layer);
  void append_chunk(uint32_t layer);
  void append_batch(uint32_t layer);

  const Model& model_;
  Parallel& parallel_;
  RunnerOptions options_;
  ExtentLayout layout_;
  Widths width_;
  const ops::Kernels& kernels_;
  ops::Matmul matmul_;
  attn::Attention attention_;
  ops::Rope rope_;
  mem::HostBuffer memory_;
  Workspace work_{};
  std::vector<attn::KvView> views_;
  std::vector<attn::Mode> modes_;
  struct Asker {
    uint32_t row;
    float share;
  };
  struct Routing {
    std::vector<std::vector<Asker>> asking;  // index: expert
    std::vector<Route> routes;               // routes of one row
  };
  Routing routing_;

  // The pass under way: of a chunk or of a batch.
  const PrefillChunk* chunk_ = nullptr;
  std::span<const DecodeRow> batch_;
  size_t pad_ = 0, rows_ = 0;      // rows of work_ before the chunk, and in all
  bool free_rows_ = false;         // every product of a chunk is quantised, so that rows need no tiles
  std::vector<float> last_state_;  // x of the chunk's last row before the model's last layer, once that has run
};

Result<void> CpuBackend::prepare() {
  MC_TRY(memory, mem::HostBuffer::allocate(cpu_workspace_bytes(config(), options_),
                                           {.name = "forward pass workspace", .huge_pages = true}));
  memory_ = std::move(memory);
  work_.cut(config(), rows_of(options_), memory_.as<float>());
  free_rows_ = true;
  for (const Layer& layer : model_.layers()) {
    const Mlp& tiled = layer.experts.routed.empty() ? layer.mlp : layer.experts.shared;  // routed experts work on rows
    for (const ops::PackedMatrix* matrix : {&layer.qkv, &layer.output, &tiled.gate_up, &tiled.down})
      if (matrix->rows() > 0) {
        MC_CHECK(matmul_.prepare(*matrix));
        free_rows_ = free_rows_ && matrix->quantised().has_value();
      }
  }
  return {};
}

Result<void> CpuBackend::begin(const PrefillChunk& chunk) {
  chunk_ = &chunk;
  batch_ = {};
  last_state_.clear();
  const Widths& w = width_;
  const size_t tokens = chunk.tokens.size(), half = rope_.half();
  pad_ = free_rows_ ? 0 : static_cast<size_t>(chunk.start) % kTileRows;
  rows_ = free_rows_ ? tokens : round_up(pad_ + tokens, kTileRows);
  each_row(rows_, [&](size_t row) {
    const bool inside = row >= pad_ && row < pad_ + tokens;
    const auto position = static_cast<uint64_t>(chunk.start) + (inside ? row - pad_ : 0);
    rope_.at(position, work_.cosine + row * half, work_.sine + row * half);
    if (inside && chunk.first_layer > 0)
      std::copy_n(chunk.activations_in.data() + (row - pad_) * w.hidden, w.hidden, work_.x + row * w.hidden);
    else if (inside)
      model_.embed(chunk.tokens[row - pad_], work_.x + row * w.hidden);
    else
      std::fill_n(work_.x + row * w.hidden, w.hidden, 0.0f);
  });
  std::fill_n(work_.attention, pad_ * w.q, 0.0f);
  std::fill_n(work_.attention + (pad_ + tokens) * w.q, (rows_ - pad_ - tokens) * w.q, 0.0f);
  return {};
}

Result<void> CpuBackend::begin(std::span<const DecodeRow> rows) {
  chunk_ = nullptr;
  batch_ = rows;
  pad_ = 0;
  rows_ = rows.size();
  const size_t half = rope_.half();
  each_row(rows_, [&](size_t row) {
    rope_.at(static_cast<uint64_t>(rows[row].position), work_.cosine + row * half, work_.sine + row * half);
    model_.embed(rows[row].token, work_.x + row * width_.hidden);
  });
  views_.resize(rows_);
  modes_.resize(rows_);
  for (const DecodeRow& row : rows)  // the gate of a row reads blocks that were sealed before it
    if (row.centroids != nullptr) row.centroids->extend(*row.plan, row.pages, row.position, parallel_);
  return {};
}

Result<void> CpuBackend::before_attention(uint32_t layer) {
  const size_t half = rope_.half();
  for (size_t first = 0; first < rows_; first += kGroupRows)
    project_qkv(form(), model_.layers()[layer], work_.x + first * width_.hidden, work_.cosine + first * half,
                work_.sine + first * half, std::min(kGroupRows, rows_ - first), work_.qkv + first * width_.qkv);
  if (chunk_ != nullptr)
    append_chunk(layer);
  else
    append_batch(layer);
  return {};
}

/// Writes the chunk's K and V of one layer, and seals every page that the chunk touches.
void CpuBackend::append_chunk(uint32_t layer) {
  attn::AppendArgs args;
  args.layout = layout_;
  args.target = {chunk_->pages, layout_.layer_offset(layer)};
  args.position = chunk_->start;
  args.tokens = static_cast<int64_t>(chunk_->tokens.size());
  args.k = work_.qkv + pad_ * width_.qkv + width_.q;
  args.v = args.k + width_.kv;
  args.k_stride = args.v_stride = static_cast<int64_t>(width_.qkv);
  attn::append(args, &parallel_);
  const int64_t end = args.position + args.tokens, block = options_.block_tokens;
  if (end % block != 0) attn::seal(layout_, chunk_->pages[end / block] + layout_.layer_offset(layer), end % block);
}

void CpuBackend::append_batch(uint32_t layer) {
  const size_t offset = layout_.layer_offset(layer);
  each_row(rows_, [&](size_t row) {
    attn::AppendArgs args;
    args.layout = layout_;
    args.target = {batch_[row].pages, offset};
    args.position = batch_[row].position;
    args.tokens = 1;
    args.k = work_.qkv + row * width_.qkv + width_.q;
    args.v = args.k + width_.kv;
    attn::append(args);
    const attn::CentroidIndex* centroids = batch_[row].centroids;
    views_[row] = {batch_[row].pages, batch_[row].position + 1, offset,
                   centroids != nullptr ? centroids->view(layer) : attn::CentroidView{}};
    modes_[row] = batch_[row].plan->layer(static_cast<int32_t>(layer));
  });
}

Result<void> CpuBackend::attend(uint32_t layer) {
  if (chunk_ == nullptr) return attend_batch(layer);
  return attend_chunk(layer, work_.qkv + pad_ * width_.qkv, chunk_->tokens.size(), chunk_->start,
                      work_.attention + pad_ * width_.q);
}

Result<void> CpuBackend::attend_chunk(uint32_t layer, const float* q, size_t rows, int64_t position, float* out) {
  attn::PrefillArgs args;
  args.layout = layout_;
  args.mode = chunk_->plan->layer(static_cast<int32_t>(layer));
  args.q_heads = static_cast<int32_t>(config().heads);
  args.rows = static_cast<int64_t>(rows);
  args.q_begin = position;
  args.q = q;
  args.q_stride = static_cast<int64_t>(width_.qkv);
  args.kv = {chunk_->pages, chunk_->start + static_cast<int64_t>(chunk_->tokens.size()), layout_.layer_offset(layer)};
  args.out = out;
  return attention_.prefill(args);
}

Result<void> CpuBackend::attend_batch(uint32_t layer) {
  MC_ASSERT_EQ(views_.size(), rows_);
  attn::DecodeArgs args;
  args.layout = layout_;
  args.q_heads = static_cast<int32_t>(config().heads);
  args.sequences = static_cast<int64_t>(rows_);
  args.modes = modes_.data();
  args.q = work_.qkv;
  args.q_stride = static_cast<int64_t>(width_.qkv);
  args.kv = views_.data();
  args.out = work_.attention;
  return attention_.decode(args);
}

Result<void> CpuBackend::after_attention(uint32_t layer) {
  const Widths& w = width_;
  if (chunk_ != nullptr && layer + 1 == config().layers) {
    const float* last = work_.x + last_row() * w.hidden;
    last_state_.assign(last, last + w.hidden);
  }
  for (size_t first = 0; first < rows_; first += kGroupRows)
    finish_layer(form(), model_.layers()[layer], work_.attention + first * w.q, work_.x + first * w.hidden,
                 std::min(kGroupRows, rows_ - first));
  return {};
}

/// The row is computed alone, as in decode.
Result<void> CpuBackend::finish_last_row(std::span<float> logits, std::span<float> hidden) {
  MC_ASSERT(chunk_ != nullptr);
  const uint32_t layer = config().layers - 1;
  const int64_t position = chunk_->start + static_cast<int64_t>(chunk_->tokens.size()) - 1;
  MC_CHECK(attend_chunk(layer, work_.qkv + last_row() * width_.qkv, 1, position, work_.attention));
  float* x = work_.x + last_row() * width_.hidden;
  std::copy(last_state_.begin(), last_state_.end(), x);
  finish_layer(Form::rows, model_.layers()[layer], work_.attention, x, 1);
  project_logits(x, 1, logits.data());
  MC_ASSERT(hidden.empty() || hidden.size() == width_.hidden);
  std::copy_n(work_.normed, hidden.size(), hidden.data());
  return {};
}

Result<void> CpuBackend::logits(size_t first, size_t count, std::span<float> out) {
  MC_ASSERT_LE(pad_ + first + count, rows_);
  MC_ASSERT_EQ(out.size(), count * config().vocab);
  project_logits(work_.x + (pad_ + first) * width_.hidden, count, out.data());
  return {};
}

Result<void> CpuBackend::activations(std::span<float> out) {
  MC_ASSERT(chunk_ != nullptr);
  MC_ASSERT_EQ(out.size(), chunk_->tokens.size() * width_.hidden);
  std::copy_n(work_.x + pad_ * width_.hidden, out.size(), out.data());
  return {};
}

}  // namespace

size_t cpu_workspace_bytes(const ModelConfig& config, const RunnerOptions& options) {
  return Workspace::floats(config, rows_of(options)) * sizeof(float);
}

Result<std::unique_ptr<Backend>> open_cpu_backend(const Model& model, Parallel& parallel, const RunnerOptions& options,
                                                  const ops::Kernels& kernels) {
  MC_ASSERT_LE(options.max_batch, kBatchRowsMax);
  MC_TRY(attention, attn::Attention::open(parallel, options.kernels));
  auto backend = std::make_unique<CpuBackend>(model, parallel, options, kernels, std::move(attention));
  MC_CHECK(backend->prepare());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace mc::model

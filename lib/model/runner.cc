// See runner.h. Rows are positions: tile t of a chunk holds positions from 64 (start / 64 + t) on, so the index of a
// row in its tile is position % 64 for every block size. Rows outside the chunk are zero. All steps but attention work
// on groups of 8 tiles, so that scratch memory stays small and the activations of a group stay in cache.
#include "model/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "base/parallel.h"
#include "ops/rope.h"

namespace mc::model {
namespace {

using ops::kTileRows;

constexpr size_t kGroupRows = 8 * kTileRows;
constexpr size_t kScoredAtOnce = 16;  // rows that share a pass over the head
constexpr int64_t kRowGrain = 8;      // rows a thread takes at a time in element-wise loops

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
  float* logits;                                    // [kScoredAtOnce, vocab]

  static size_t floats(const ModelConfig& c, size_t rows) {
    const Widths w(c);
    const size_t group = std::min(rows, kGroupRows);
    return rows * (w.hidden + w.qkv + w.q + c.head_dim) + group * (2 * w.hidden + 3 * w.inner + mixture(w)) +
           kScoredAtOnce * c.vocab + 13 * 16;
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
    logits = take(kScoredAtOnce * c.vocab);
  }

 private:
  /// Number of floats in a row for a mixture. The gate of the shared expert reuses the memory of the scores.
  static size_t mixture(const Widths& w) { return w.experts > 0 ? w.experts + 2 * w.hidden : 0; }
};

}  // namespace

struct Runner::State {
  const Model* model;
  Parallel* parallel;
  RunnerOptions options;
  ExtentLayout layout;
  Widths width;
  const ops::Kernels* kernels;
  ops::Matmul matmul;
  attn::Attention attention;
  ops::Rope rope;
  mem::HostBuffer memory;
  Workspace work{};
  std::vector<attn::KvView> views;
  std::vector<attn::Mode> modes;
  struct Asker {
    uint32_t row;
    float share;
  };
  std::vector<std::vector<Asker>> asking;  // index: expert
  std::vector<Route> routes;               // routes of one row

  State(const Model& m, Parallel& p, const RunnerOptions& o, const ops::Kernels& k, attn::Attention a)
      : model(&m),
        parallel(&p),
        options(o),
        layout(m.kv_layout(o.block_tokens)),
        width(m.config()),
        kernels(&k),
        matmul(k, p),
        attention(std::move(a)),
        rope(m.config().rope, m.config().head_dim) {}

  const ModelConfig& config() const { return model->config(); }

  /// Calls body(row) for every row in [0, rows), in parallel when there are many.
  template <class Body>
  void each_row(size_t rows, Body&& body) {
    parallel->for_ranges(static_cast<int64_t>(rows), kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) body(row);
    });
  }

  /// The form of a matrix product: 64-row tiles of a chunk, or independent rows.
  enum class Form { tiles, rows };

  void product(Form form, const ops::PackedMatrix& weights, const float* x, size_t rows, float* y) {
    if (form == Form::tiles)
      matmul.prefill(weights, x, rows / kTileRows, y);
    else
      matmul.decode(weights, x, rows, y);
  }

  /// out = MLP(in) for `rows` rows, at most one group.
  void run_mlp(Form form, const Mlp& mlp, const float* in, size_t rows, float* out) {
    const size_t inner = mlp.down.columns();
    product(form, mlp.gate_up, in, rows, work.gate_up);
    each_row(rows, [&](size_t row) {
      float* gate = work.gate_up + row * 2 * inner;
      if (!mlp.gate_up_bias.empty()) kernels->add(mlp.gate_up_bias.data(), 2 * inner, gate);
      kernels->silu_mul(gate, gate + inner, inner, work.activated + row * inner);
    });
    product(form, mlp.down, work.activated, rows, out);
    if (mlp.down_bias.empty()) return;
    each_row(rows, [&](size_t row) { kernels->add(mlp.down_bias.data(), width.hidden, out + row * width.hidden); });
  }

  /// out = MLP(in) for a mixture of experts. Experts run in ascending order, and their rows are independent. So the
  /// bits of a row do not depend on neighbouring rows or on other rows of its experts.
  void run_experts(Form form, const Experts& experts, const float* in, size_t rows, float* out) {
    const size_t hidden = width.hidden;
    const MixtureConfig& mixture = config().mixture;
    matmul.decode(experts.router, in, rows, work.scores);
    asking.assign(mixture.experts, {});
    for (size_t row = 0; row < rows; ++row) {
      route({work.scores + row * mixture.experts, mixture.experts}, mixture.per_token, mixture.normalise, routes);
      for (const Route& one : routes) asking[one.expert].push_back({static_cast<uint32_t>(row), one.share});
    }
    std::fill_n(out, rows * hidden, 0.0f);
    for (size_t expert = 0; expert < asking.size(); ++expert) {
      const auto& askers = asking[expert];
      if (askers.empty()) continue;
      for (size_t i = 0; i < askers.size(); ++i)
        std::memcpy(work.asked + i * hidden, in + askers[i].row * hidden, hidden * sizeof(float));
      run_mlp(Form::rows, experts.routed[expert], work.asked, askers.size(), work.answered);
      each_row(askers.size(),
               [&](size_t i) { add_share(work.answered + i * hidden, askers[i].share, out + askers[i].row * hidden); });
    }
    if (mixture.shared_intermediate == 0) return;
    matmul.decode(experts.shared_gate, in, rows, work.scores);
    run_mlp(form, experts.shared, in, rows, work.answered);
    each_row(rows, [&](size_t row) {
      add_share(work.answered + row * hidden, 1 / (1 + std::exp(-work.scores[row])), out + row * hidden);
    });
  }

  /// sum += share * answer, [hidden]
  void add_share(const float* answer, float share, float* sum) const {
    for (size_t i = 0; i < width.hidden; ++i) sum[i] += share * answer[i];
  }

  /// x += W attention (+ bias), then x += MLP(norm(x)), for `rows` rows from `first`, at most one group.
  void finish_layer(Form form, const Layer& layer, const float* attended, float* x, size_t rows) {
    const Widths& w = width;
    product(form, layer.output, attended, rows, work.projected);
    each_row(rows, [&](size_t row) {
      float* out = x + row * w.hidden;
      if (!layer.output_bias.empty()) kernels->add(layer.output_bias.data(), w.hidden, out);
      kernels->add(work.projected + row * w.hidden, w.hidden, out);
      kernels->rms_norm(out, layer.post_norm.data(), config().norm_epsilon, w.hidden, work.normed + row * w.hidden);
    });
    if (layer.experts.routed.empty())
      run_mlp(form, layer.mlp, work.normed, rows, work.projected);
    else
      run_experts(form, layer.experts, work.normed, rows, work.projected);
    each_row(rows, [&](size_t row) { kernels->add(work.projected + row * w.hidden, w.hidden, x + row * w.hidden); });
  }

  /// qkv = W norm(x) (+ bias), with q and k normed and rotated, for `rows` rows, at most one group.
  void project_qkv(Form form, const Layer& layer, const float* x, const float* cosine, const float* sine, size_t rows,
                   float* qkv) {
    const Widths& w = width;
    const size_t dim = config().head_dim, half = dim / 2;
    each_row(rows, [&](size_t row) {
      kernels->rms_norm(x + row * w.hidden, layer.input_norm.data(), config().norm_epsilon, w.hidden,
                        work.normed + row * w.hidden);
    });
    product(form, layer.qkv, work.normed, rows, qkv);
    each_row(rows, [&](size_t row) {
      float* line = qkv + row * w.qkv;
      if (!layer.qkv_bias.empty()) kernels->add(layer.qkv_bias.data(), w.qkv, line);
      for (size_t head = 0; head < size_t{config().heads} + config().kv_heads; ++head) {
        float* part = line + head * dim;
        const std::vector<float>& norm = head < config().heads ? layer.q_norm : layer.k_norm;
        if (!norm.empty()) kernels->rms_norm(part, norm.data(), config().norm_epsilon, dim, part);
        kernels->rope(part, cosine + row * half, sine + row * half, half);
      }
    });
  }

  /// logits [rows, vocab] of `rows` rows of x. Overwrites work.normed.
  void project_logits(const float* x, size_t rows, float* logits) {
    for (size_t first = 0; first < rows; first += kGroupRows) {
      const size_t count = std::min(rows - first, kGroupRows);
      each_row(count, [&](size_t row) {
        kernels->rms_norm(x + (first + row) * width.hidden, model->final_norm().data(), config().norm_epsilon,
                          width.hidden, work.normed + row * width.hidden);
      });
      matmul.decode(model->head(), work.normed, count, logits + first * config().vocab);
    }
  }

  Result<void> check_token(uint32_t token) const {
    if (token < config().vocab) return {};
    return Error{Code::invalid, "token id " + std::to_string(token) + " is outside the vocabulary of " +
                                    std::to_string(config().vocab)};
  }
  Result<void> check_position(int64_t position) const {
    if (position >= 0 && position < static_cast<int64_t>(config().max_positions)) return {};
    return user_error(err::kContextLength, "position " + std::to_string(position) + " is outside the context of " +
                                               std::to_string(config().max_positions) + " tokens");
  }
  Result<void> check_chunk(const PrefillChunk& chunk) const;
  Result<void> finish_last_row(const PrefillChunk& chunk, size_t row);
  Result<void> score_rows(const PrefillChunk& chunk, size_t pad, size_t rows);
  Result<void> attend_chunk(const PrefillChunk& chunk, uint32_t layer, const float* q, size_t rows, int64_t position,
                            float* out);
  void append_chunk(const PrefillChunk& chunk, uint32_t layer, size_t first_row);
};

Runner::Runner(std::unique_ptr<State> state) : state_(std::move(state)) {}
Runner::~Runner() = default;
Runner::Runner(Runner&&) noexcept = default;
Runner& Runner::operator=(Runner&&) noexcept = default;
const Model& Runner::model() const {
  return *state_->model;
}
const RunnerOptions& Runner::options() const {
  return state_->options;
}
const ExtentLayout& Runner::layout() const {
  return state_->layout;
}
const ops::Kernels& Runner::kernels() const {
  return *state_->kernels;
}

size_t Runner::workspace_bytes(const ModelConfig& config, const RunnerOptions& options) {
  return Workspace::floats(config, rows_of(options)) * sizeof(float);
}

Result<Runner> Runner::open(const Model& model, Parallel& parallel, const RunnerOptions& options) {
  const uint32_t block = options.block_tokens;
  if (block < 16 || block > 512 || (block & (block - 1)) != 0)
    return user_error(err::kBadValue, "block of " + std::to_string(block) + " tokens", {},
                      "use a power of two from 16 to 512");
  if (options.max_chunk_tokens == 0 || options.max_batch == 0 || options.max_batch > kGroupRows)
    return user_error(err::kBadValue,
                      "a batch of " + std::to_string(options.max_batch) + " rows and chunks of " +
                          std::to_string(options.max_chunk_tokens) + " tokens",
                      {}, "use 1 to " + std::to_string(kGroupRows) + " rows and at least one token");
  MC_TRY(kernels, ops::kernels_named(options.kernels));
  MC_TRY(attention, attn::Attention::open(parallel, options.kernels));
  auto state = std::make_unique<State>(model, parallel, options, *kernels, std::move(attention));
  MC_TRY(memory, mem::HostBuffer::allocate(workspace_bytes(model.config(), options),
                                           {.name = "forward pass workspace", .huge_pages = true}));
  state->memory = std::move(memory);
  state->work.cut(model.config(), rows_of(options), state->memory.as<float>());
  for (const Layer& layer : model.layers()) {
    const Mlp& tiled = layer.experts.routed.empty() ? layer.mlp : layer.experts.shared;  // routed experts work on rows
    for (const ops::PackedMatrix* matrix : {&layer.qkv, &layer.output, &tiled.gate_up, &tiled.down})
      if (matrix->rows() > 0) MC_CHECK(state->matmul.prepare(*matrix));
  }
  return Runner(std::move(state));
}

Result<void> Runner::State::check_chunk(const PrefillChunk& chunk) const {
  if (chunk.tokens.empty() || chunk.tokens.size() > options.max_chunk_tokens)
    return Error{Code::invalid, "a chunk of " + std::to_string(chunk.tokens.size()) + " tokens; allowed are 1 to " +
                                    std::to_string(options.max_chunk_tokens)};
  if (chunk.start < 0 || chunk.start % options.block_tokens != 0)
    return Error{Code::invalid, "a chunk at position " + std::to_string(chunk.start) + ", not a multiple of " +
                                    std::to_string(options.block_tokens) + " tokens"};
  MC_CHECK(check_position(chunk.start + static_cast<int64_t>(chunk.tokens.size()) - 1));
  for (uint32_t token : chunk.tokens) MC_CHECK(check_token(token));
  MC_ASSERT(chunk.plan != nullptr && chunk.pages != nullptr);
  MC_ASSERT_EQ(chunk.plan->layers, static_cast<int32_t>(config().layers));
  MC_ASSERT_LE(chunk.scored, chunk.tokens.size());
  MC_ASSERT(chunk.scored == 0 || chunk.on_logits);
  MC_ASSERT(chunk.logits.empty() || chunk.logits.size() == config().vocab);
  MC_ASSERT(chunk.first_layer >= model->held().first &&
            (chunk.end_layer == 0 ? config().layers : chunk.end_layer) <= model->held().end);
  const size_t stream = chunk.tokens.size() * width.hidden;
  MC_ASSERT_EQ(chunk.activations_in.size(), chunk.first_layer > 0 ? stream : 0);
  const bool last = chunk.end_layer == 0 || chunk.end_layer == config().layers;
  MC_ASSERT_EQ(chunk.activations_out.size(), last ? 0 : stream);
  return {};
}

Result<void> Runner::State::attend_chunk(const PrefillChunk& chunk, uint32_t layer, const float* q, size_t rows,
                                         int64_t position, float* out) {
  attn::PrefillArgs args;
  args.layout = layout;
  args.mode = chunk.plan->layer(static_cast<int32_t>(layer));
  args.q_heads = static_cast<int32_t>(config().heads);
  args.rows = static_cast<int64_t>(rows);
  args.q_begin = position;
  args.q = q;
  args.q_stride = static_cast<int64_t>(width.qkv);
  args.kv = {chunk.pages, chunk.start + static_cast<int64_t>(chunk.tokens.size()), layout.layer_offset(layer)};
  args.out = out;
  return attention.prefill(args);
}

/// Writes the chunk's K and V of one layer, and seals every page that the chunk touches.
void Runner::State::append_chunk(const PrefillChunk& chunk, uint32_t layer, size_t first_row) {
  attn::AppendArgs args;
  args.layout = layout;
  args.target = {chunk.pages, layout.layer_offset(layer)};
  args.position = chunk.start;
  args.tokens = static_cast<int64_t>(chunk.tokens.size());
  args.k = work.qkv + first_row * width.qkv + width.q;
  args.v = args.k + width.kv;
  args.k_stride = args.v_stride = static_cast<int64_t>(width.qkv);
  attn::append(args, parallel);
  const int64_t end = args.position + args.tokens, block = options.block_tokens;
  if (end % block != 0) attn::seal(layout, chunk.pages[end / block] + layout.layer_offset(layer), end % block);
}

/// Finishes the last layer after its K and V are written. Only the last row is needed, and it is computed alone.
Result<void> Runner::State::finish_last_row(const PrefillChunk& chunk, size_t row) {
  const uint32_t layer = config().layers - 1;
  const int64_t position = chunk.start + static_cast<int64_t>(chunk.tokens.size()) - 1;
  MC_CHECK(attend_chunk(chunk, layer, work.qkv + row * width.qkv, 1, position, work.attention));
  float* x = work.x + row * width.hidden;
  finish_layer(Form::rows, model->layers()[layer], work.attention, x, 1);
  project_logits(x, 1, chunk.logits.data());
  MC_ASSERT(chunk.hidden.empty() || chunk.hidden.size() == width.hidden);
  std::copy_n(work.normed, chunk.hidden.size(), chunk.hidden.data());
  return {};
}

/// Computes the last layer for all rows, and the logits of the first `scored`. The last row of x stays unchanged,
/// because finish_last_row() computes it alone.
Result<void> Runner::State::score_rows(const PrefillChunk& chunk, size_t pad, size_t rows) {
  const Widths& w = width;
  const uint32_t layer = config().layers - 1;
  const size_t tokens = chunk.tokens.size(), vocab = config().vocab;
  float* last = work.x + (pad + tokens - 1) * w.hidden;
  const std::vector<float> kept(last, last + w.hidden);
  MC_CHECK(attend_chunk(chunk, layer, work.qkv + pad * w.qkv, tokens, chunk.start, work.attention + pad * w.q));
  for (size_t first = 0; first < rows; first += kGroupRows)
    finish_layer(Form::tiles, model->layers()[layer], work.attention + first * w.q, work.x + first * w.hidden,
                 std::min(kGroupRows, rows - first));
  for (size_t row = 0; row < chunk.scored; ++row) {
    if (row % kScoredAtOnce == 0)
      project_logits(work.x + (pad + row) * w.hidden, std::min(kScoredAtOnce, chunk.scored - row), work.logits);
    if (!chunk.on_logits(row, {work.logits + row % kScoredAtOnce * vocab, vocab}))
      return Error{Code::cancelled, "prefill stopped at the logits of row " + std::to_string(row)};
  }
  std::copy(kept.begin(), kept.end(), last);
  return {};
}

Result<void> Runner::prefill(const PrefillChunk& chunk) {
  State& s = *state_;
  MC_CHECK(s.check_chunk(chunk));
  const Widths& w = s.width;
  const Workspace& work = s.work;
  const size_t tokens = chunk.tokens.size(), half = s.rope.half();
  const size_t pad = static_cast<size_t>(chunk.start) % kTileRows;
  const size_t rows = round_up(pad + tokens, kTileRows);
  s.each_row(rows, [&](size_t row) {
    const bool inside = row >= pad && row < pad + tokens;
    const auto position = static_cast<uint64_t>(chunk.start) + (inside ? row - pad : 0);
    s.rope.at(position, work.cosine + row * half, work.sine + row * half);
    if (inside && chunk.first_layer > 0)
      std::copy_n(chunk.activations_in.data() + (row - pad) * w.hidden, w.hidden, work.x + row * w.hidden);
    else if (inside)
      s.model->embed(chunk.tokens[row - pad], work.x + row * w.hidden);
    else
      std::fill_n(work.x + row * w.hidden, w.hidden, 0.0f);
  });
  std::fill_n(work.attention, pad * w.q, 0.0f);
  std::fill_n(work.attention + (pad + tokens) * w.q, (rows - pad - tokens) * w.q, 0.0f);
  const uint32_t layers = s.config().layers, end = chunk.end_layer == 0 ? layers : chunk.end_layer;
  for (uint32_t layer = chunk.first_layer; layer < end; ++layer) {
    const Layer& weights = s.model->layers()[layer];
    for (size_t first = 0; first < rows; first += kGroupRows)
      s.project_qkv(State::Form::tiles, weights, work.x + first * w.hidden, work.cosine + first * half,
                    work.sine + first * half, std::min(kGroupRows, rows - first), work.qkv + first * w.qkv);
    s.append_chunk(chunk, layer, pad);
    if (chunk.on_layer && !chunk.on_layer(layer))
      return Error{Code::cancelled, "prefill stopped after layer " + std::to_string(layer)};
    if (layer + 1 == layers) break;
    MC_CHECK(s.attend_chunk(chunk, layer, work.qkv + pad * w.qkv, tokens, chunk.start, work.attention + pad * w.q));
    for (size_t first = 0; first < rows; first += kGroupRows)
      s.finish_layer(State::Form::tiles, weights, work.attention + first * w.q, work.x + first * w.hidden,
                     std::min(kGroupRows, rows - first));
  }
  if (end < layers) {
    std::copy_n(work.x + pad * w.hidden, tokens * w.hidden, chunk.activations_out.data());
    return {};
  }
  if (chunk.scored > 0) MC_CHECK(s.score_rows(chunk, pad, rows));
  return chunk.logits.empty() ? Result<void>{} : s.finish_last_row(chunk, pad + tokens - 1);
}

Result<void> Runner::decode(std::span<const DecodeRow> rows, std::span<float> logits) {
  State& s = *state_;
  const Widths& w = s.width;
  const Workspace& work = s.work;
  const size_t count = rows.size(), half = s.rope.half();
  if (count == 0) return {};
  MC_ASSERT(s.model->whole());
  if (count > s.options.max_batch)
    return Error{Code::invalid, "a batch of " + std::to_string(count) + " rows; at most " +
                                    std::to_string(s.options.max_batch) + " are allowed"};
  MC_ASSERT_EQ(logits.size(), count * s.config().vocab);
  for (const DecodeRow& row : rows) {
    MC_CHECK(s.check_token(row.token));
    MC_CHECK(s.check_position(row.position));
    MC_ASSERT(row.plan != nullptr && row.pages != nullptr);
  }
  s.each_row(count, [&](size_t row) {
    s.rope.at(static_cast<uint64_t>(rows[row].position), work.cosine + row * half, work.sine + row * half);
    s.model->embed(rows[row].token, work.x + row * w.hidden);
  });
  s.views.resize(count);
  s.modes.resize(count);
  for (const DecodeRow& row : rows)  // the gate of a row reads blocks that were sealed before it
    if (row.centroids != nullptr) row.centroids->extend(*row.plan, row.pages, row.position, *s.parallel);
  for (uint32_t layer = 0; layer < s.config().layers; ++layer) {
    const Layer& weights = s.model->layers()[layer];
    s.project_qkv(State::Form::rows, weights, work.x, work.cosine, work.sine, count, work.qkv);
    const size_t offset = s.layout.layer_offset(layer);
    s.each_row(count, [&](size_t row) {
      attn::AppendArgs args;
      args.layout = s.layout;
      args.target = {rows[row].pages, offset};
      args.position = rows[row].position;
      args.tokens = 1;
      args.k = work.qkv + row * w.qkv + w.q;
      args.v = args.k + w.kv;
      attn::append(args);
      const attn::CentroidIndex* centroids = rows[row].centroids;
      s.views[row] = {rows[row].pages, rows[row].position + 1, offset,
                      centroids != nullptr ? centroids->view(layer) : attn::CentroidView{}};
      s.modes[row] = rows[row].plan->layer(static_cast<int32_t>(layer));
    });
    attn::DecodeArgs args;
    args.layout = s.layout;
    args.q_heads = static_cast<int32_t>(s.config().heads);
    args.sequences = static_cast<int64_t>(count);
    args.modes = s.modes.data();
    args.q = work.qkv;
    args.q_stride = static_cast<int64_t>(w.qkv);
    args.kv = s.views.data();
    args.out = work.attention;
    MC_CHECK(s.attention.decode(args));
    s.finish_layer(State::Form::rows, weights, work.attention, work.x, count);
  }
  s.project_logits(work.x, count, logits.data());
  return {};
}

}  // namespace mc::model

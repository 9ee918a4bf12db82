// The forward pass of one thread: the prefill of one chunk of one sequence, or a decode step of a batch.
//
// Invariances, bit for bit, for one kernel variant and CPU:
//   prefill  a token's K and V do not depend on how the prompt was cut into chunks (each starting at a
//            block boundary), on a resumed prefix, on threads or on the process. Row `position % 64` of a
//            tile always holds `position`, and the last row of a chunk is finished alone, as in decode.
//   decode   a row's logits do not depend on the other rows of the batch.
//
// KV is in pages that the caller owns (base/extent.h): pages[i] holds tokens [i * block_tokens, (i + 1) * block_tokens)
// of the sequence, all layers. No other thread may read a page that this call writes before the page's layer is
// announced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "base/result.h"
#include "model/model.h"

namespace mc::model {

struct RunnerOptions {
  uint32_t block_tokens = 64;
  uint32_t max_chunk_tokens = 4096;  // longest chunk of prefill()
  uint32_t max_batch = 64;           // most rows of decode()
  std::string kernels = "auto";      // variant for both lib/ops and lib/attn
};

struct PrefillChunk {
  std::span<const uint32_t> tokens;   // at positions start, start + 1, ...
  int64_t start = 0;                  // a multiple of block_tokens
  std::byte* const* pages = nullptr;  // pages of positions 0 .. start + tokens - 1; the pages below `start` are filled
  const attn::Plan* plan = nullptr;
  std::span<float> logits;  // logits [vocab] of the last token, or empty
  std::span<float> hidden;  // the state [hidden] of the last token behind the final norm, or empty; needs `logits`
  // A pipeline stage runs layers [first_layer, end_layer) only, which its model has; end_layer 0 = all. Activations are
  // the f32 residual stream, [tokens, hidden]. They are handed on bit for bit, so stages compute what one process
  // would.
  uint32_t first_layer = 0, end_layer = 0;
  std::span<const float> activations_in;  // output of the layers before first_layer; empty when that is 0
  std::span<float> activations_out;       // output of end_layer - 1; empty when that is the model's last layer
  /// Called with the logits [vocab] of each of the chunk's first `scored` rows, in order, when all layers are done.
  /// False: the caller cannot go on, Code::cancelled. Costs the last layer and the head for each row. `logits` has
  /// equal bits with and without it.
  size_t scored = 0;
  std::function<bool(size_t row, std::span<const float> logits)> on_logits;
  /// Called when a layer's extents of this chunk are written and sealed (including a partial tail), before the
  /// attention of that layer. False stops the chunk: Code::cancelled.
  std::function<bool(uint32_t layer)> on_layer;
};

struct DecodeRow {
  uint32_t token = 0;                 // last token of its sequence; this step appends its K and V
  int64_t position = 0;               // position of that token
  std::byte* const* pages = nullptr;  // pages up to the one of `position`
  const attn::Plan* plan = nullptr;
  /// The centroid index of this sequence. The owner of the pages keeps it, and the step extends it. Null: the gate
  /// reads pages.
  attn::CentroidIndex* centroids = nullptr;
};

class Runner {
 public:
  /// `model` and `parallel` must outlive the runner. no_space when the workspace does not fit, unsupported for an
  /// unknown kernel variant or block size.
  static Result<Runner> open(const Model& model, Parallel& parallel, const RunnerOptions& options);
  ~Runner();
  Runner(Runner&&) noexcept;
  Runner& operator=(Runner&&) noexcept;

  /// invalid: a token outside the vocabulary, a start that is no multiple of the block, more than max_chunk_tokens, or
  /// a position beyond the context. After an error the pages of the chunk are undefined.
  Result<void> prefill(const PrefillChunk& chunk);
  /// Needs a whole model. logits [rows, vocab]. Seals pages that become full.
  Result<void> decode(std::span<const DecodeRow> rows, std::span<float> logits);

  const Model& model() const;
  const RunnerOptions& options() const;
  const ExtentLayout& layout() const;
  const ops::Kernels& kernels() const;
  static size_t workspace_bytes(const ModelConfig& config, const RunnerOptions& options);

 private:
  struct State;
  explicit Runner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mc::model

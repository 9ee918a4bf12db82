// The forward pass of one thread: prefill of one chunk of one sequence, and a decode step of a batch.
//
// Invariances, bit for bit, for one kernel variant and CPU:
//   prefill  a token's K and V do not depend on how the prompt was cut into chunks (each starting at a
//            block boundary), on a resumed prefix, on threads or on the process. Row `position % 64` of a
//            tile always holds `position`, and a chunk's last row is finished alone, as in decode.
//   decode   a row's logits do not depend on the other rows of the batch.
//
// KV lives in pages that the caller owns (base/extent.h): pages[i] holds tokens [i * block_tokens,
// (i + 1) * block_tokens) of the sequence, all layers. Pages that this call writes must not be read by
// others until their layer is announced.
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
  std::string kernels = "auto";      // of both lib/ops and lib/attn
};

struct PrefillChunk {
  std::span<const uint32_t> tokens;   // at positions start, start + 1, ...
  int64_t start = 0;                  // a multiple of block_tokens
  std::byte* const* pages = nullptr;  // of positions 0 .. start + tokens - 1; the prefix below start is filled
  const attn::Plan* plan = nullptr;
  std::span<float> logits;  // [vocab] of the last token, or empty
  // A pipeline stage runs layers [first_layer, end_layer) alone, which its model holds; end_layer 0 = all. Activations
  // are the f32 residual stream, [tokens, hidden]: handed on bit for bit, so stages compute what one process would.
  uint32_t first_layer = 0, end_layer = 0;
  std::span<const float> activations_in;  // of layers before first_layer; empty when that is 0
  std::span<float> activations_out;       // after end_layer - 1; empty when that is the model's last
  /// Called with the logits [vocab] of each of the chunk's first `scored` rows, in order, when all layers are done
  /// (and every layer before the last ran). False: the caller cannot go on, Code::cancelled. Costs the last layer
  /// and the head for each row; `logits` has the same bits with and without it.
  size_t scored = 0;
  std::function<bool(size_t row, std::span<const float> logits)> on_logits;
  /// Called when a layer's extents of this chunk are written and sealed (a partial tail too), before that
  /// layer's attention runs. False stops the chunk: Code::cancelled.
  std::function<bool(uint32_t layer)> on_layer;
};

struct DecodeRow {
  uint32_t token = 0;                 // the last token of its sequence, whose K and V this step appends
  int64_t position = 0;               // of that token
  std::byte* const* pages = nullptr;  // up to the page of `position`
  const attn::Plan* plan = nullptr;
  /// The centroid index of this sequence, which the pages' owner keeps and the step extends. Null: the gate reads
  /// pages.
  attn::CentroidIndex* centroids = nullptr;
};

class Runner {
 public:
  /// `model` and `parallel` outlive it. no_space when the workspace does not fit, unsupported for an
  /// unknown kernel variant or block size.
  static Result<Runner> open(const Model& model, Parallel& parallel, const RunnerOptions& options);
  ~Runner();
  Runner(Runner&&) noexcept;
  Runner& operator=(Runner&&) noexcept;

  /// invalid: a token outside the vocabulary, a start off the block grid, more than max_chunk_tokens, or
  /// beyond the context. After an error the chunk's pages are undefined.
  Result<void> prefill(const PrefillChunk& chunk);
  /// Needs a whole model. logits [rows, vocab]. Pages that become full are sealed.
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

// The rows of one forward pass (runner.h): a chunk of one sequence's prompt, a decode step of a batch, or chunks of
// several sequences with a step beside them.
//
// KV is in pages that the caller owns (base/extent.h): pages[i] holds tokens [i * block_tokens, (i + 1) * block_tokens)
// of the sequence, all layers. No other thread may read a page that a pass writes before the page's layer is announced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "base/clock.h"
#include "base/result.h"
#include "ops/sample.h"
#include "wire/sampling.h"

namespace mc::model {

struct RunnerOptions {
  uint32_t block_tokens = 64;
  uint32_t max_chunk_tokens = 4096;  // longest chunk of prefill()
  uint32_t max_batch = 64;           // most rows of decode()
  bool graphs = true;                // a device takes decode steps that it meets again as one graph
  /// Pages of the device, which the caller numbers from 0 on: it says which block is in which page, and copies blocks
  /// there (model/device_loads.h). 0: the device copies the pages of each pass by itself.
  uint32_t device_pages = 0;
  std::string kernels = "auto";  // variant for both lib/ops and lib/attn
};

/// Blocks that a device copies from pages of the host to its own.
struct PageLoad {
  uint64_t load = 0;                   // the caller's number
  std::vector<const std::byte*> from;  // pages of the host, which stay until the load ends
  std::vector<int32_t> to;             // pages of the device
  std::vector<uint32_t> crcs;          // CRC32C of the extents, [block][layer]
};
struct LoadEnd {
  uint64_t load = 0;
  std::optional<Error> error;
  std::vector<uint32_t> rotten;  // blocks that do not match their checksums
  Duration busy{};               // time of the copies alone
};

/// Bytes of a device's memory beside weights and KV pages: of any pass, and for each page.
struct DeviceScratch {
  size_t fixed = 0, page = 0;
};

struct PrefillChunk {
  std::span<const uint32_t> tokens;   // at positions start, start + 1, ...
  int64_t start = 0;                  // a multiple of block_tokens
  std::byte* const* pages = nullptr;  // pages of positions 0 .. start + tokens - 1; the pages below `start` are filled
  const attn::Plan* plan = nullptr;
  std::span<float> logits;  // logits [vocab] of the last token, or empty
  std::span<float> hidden;  // the state [hidden] of the last token after the final norm, or empty; needs `logits`
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
  /// Called when a layer's extents of this chunk are written and sealed (including a partial tail): on the CPU before
  /// the attention of that layer, on a GPU while it computes the next layer. False stops the chunk: Code::cancelled.
  std::function<bool(uint32_t layer)> on_layer;
  /// Called before the pages below `start` are read in a layer: on the CPU before the attention of the layer, while a
  /// device reads them before it is called. False stops the chunk: Code::cancelled.
  std::function<bool(uint32_t layer)> before_prefix;
  /// One for each of `pages`, with RunnerOptions::device_pages; else empty. The pages below `start` are loaded, or
  /// under a load that has begun.
  std::span<const int32_t> device_pages;
};

/// The draw of a row's next token, as arguments of ops::Sampler::sample().
struct DrawRow {
  const wire::Sampling* sampling = nullptr;
  uint64_t position = 0;              // of the drawn token
  std::span<const uint32_t> history;  // the tokens before it; may be empty without penalties
  size_t prompt_tokens = 0;           // of `history`
  std::span<const uint32_t> banned;
  int32_t fed = -1;  // DecodeRow::fed of the row; where it names a row, the last of `history` is not read
};

struct DecodeRow {
  uint32_t token = 0;                 // last token of its sequence; this step appends its K and V
  int64_t position = 0;               // position of that token
  std::byte* const* pages = nullptr;  // pages up to the one of `position`
  const attn::Plan* plan = nullptr;
  /// The centroid index of this sequence. The owner of the pages keeps it, and the step extends it. Null: the gate
  /// reads pages.
  attn::CentroidIndex* centroids = nullptr;
  /// Names the sequence, whose pages a device then keeps from step to step, until Runner::forget(). Only steps of the
  /// sequence may write them meanwhile. 0: the device copies the pages for this step alone.
  uint64_t sequence = 0;
  /// In Runner::queue_step(): a row of the step that was queued before, whose drawn token takes the place of `token`.
  int32_t fed = -1;
  /// One for each of `pages`, with RunnerOptions::device_pages. They are loaded.
  const int32_t* device_pages = nullptr;
};

/// Chunks of several sequences and the rows of a step in one pass. The chunks are those of whole models whose rows are
/// not scored and wait for no prefix.
struct MixedPass {
  std::span<const PrefillChunk* const> chunks;
  std::span<const DecodeRow> rows;
  // The step's results: a draw for each row, or logits [rows, vocab].
  std::span<const DrawRow> draws;
  std::span<ops::Sampled> drawn;
  std::span<float> logits;
};

}  // namespace mc::model

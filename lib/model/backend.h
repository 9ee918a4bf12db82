// The arithmetic of a forward pass as one interface. Runner (runner.h) checks the rows and walks the layers; a backend
// holds the weights in its own form, computes, and keeps the activations of the pass under way. Calls are one a layer,
// so the interface costs nothing beside the work.
//
//   MC_CHECK(backend.begin(chunk));
//   for each layer:  before_attention(l), attend(l), after_attention(l); finish_layer(l), and K and V are announced
//   of the model's last layer, when one row's logits are wanted:  before_attention(l), finish_last_row(...)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "model/pass.h"
#include "ops/sample.h"

namespace mc::model {

class DeviceLoads;

class Backend {
 public:
  virtual ~Backend() = default;

  /// Why no row of a sequence with this plan can be computed over its first `kv_len` tokens: Code::invalid names the
  /// limit. Passes hold rows of many requests, so the caller asks for each one before begin().
  virtual Result<void> check_plan(const attn::Plan& /*plan*/, int64_t /*kv_len*/) const { return {}; }
  /// Starts a pass, whose arguments the caller has checked and keeps until its end: embeds the tokens, or takes the
  /// activations of the stage before.
  virtual Result<void> begin(const PrefillChunk& chunk) = 0;
  virtual Result<void> begin(std::span<const DecodeRow> rows) = 0;
  /// Whether chunks of several sequences and the rows of a step can be one pass. begin(MixedPass) starts it, each layer
  /// but the model's last runs as in other passes, and before_attention() and finish_rows() end it. checksums() has
  /// those of the step's rows, and behind them those of the chunks. K and V of all rows are in the caller's pages, and
  /// the sums hold, from finish_layer() on. No step is queued meanwhile.
  virtual bool mixes() const { return false; }
  virtual Result<void> begin(const MixedPass& /*pass*/) {
    return Error{Code::unsupported, "the backend computes one chunk at a time"};
  }
  /// The rest of the model's last layer, for the step's rows and for the last row of each chunk that wants logits. The
  /// results have the bits that passes of their own would give.
  virtual Result<void> finish_rows(const MixedPass& /*pass*/) {
    return Error{Code::unsupported, "the backend computes one chunk at a time"};
  }
  /// Norm, q, k and v, RoPE. Writes K and V of the rows into the caller's pages, and seals those that become full and a
  /// chunk's partial tail: ksum and kmean as attn/seal.h defines them. The pages of a step may follow in finish_step(),
  /// and those of a chunk in finish_layer().
  virtual Result<void> before_attention(uint32_t layer) = 0;
  /// Whether K and V of a chunk are copied to the caller's pages while later kernels run. finish_layer() is then called
  /// when the next layer is queued, else right after before_attention().
  virtual bool stores_later() const { return false; }
  /// K and V of a chunk's rows of `layer` are in the caller's pages, and checksums() of the layer holds, from here on.
  virtual Result<void> finish_layer(uint32_t /*layer*/) { return {}; }
  /// CRC32C of the extents of `layer` that the pass wrote, by page: of a chunk from the page of its start on; of a step
  /// one for each row, after finish_step(), which means nothing unless the row's page is full. Empty: the backend makes
  /// none, and the caller sums the pages.
  virtual std::span<const uint32_t> checksums(uint32_t /*layer*/) const { return {}; }
  /// A step's layers have run: K and V of its rows, and the seal of pages that became full, are in the caller's pages
  /// from here on, and checksums() holds. No step is queued.
  virtual Result<void> finish_step() { return {}; }
  /// Attention of all rows over their pages.
  virtual Result<void> attend(uint32_t layer) = 0;
  /// The layer after attention: its output projection and MLP.
  virtual Result<void> after_attention(uint32_t layer) = 0;
  /// The rest of the model's last layer for the chunk's last row alone, after before_attention(); the row's logits
  /// [vocab], and its state [hidden] after the final norm unless `hidden` is empty. The bits of the result do not
  /// depend on whether all rows passed attend() and after_attention() in between.
  virtual Result<void> finish_last_row(std::span<float> logits, std::span<float> hidden) = 0;
  /// The sequence (DecodeRow::sequence) has no further row.
  virtual void forget(uint64_t /*sequence*/) {}
  /// Logits [count, vocab] of rows first .. first + count - 1 of the pass.
  virtual Result<void> logits(size_t first, size_t count, std::span<float> out) = 0;
  /// Whether queue_step() takes a row of this kind: the backend draws where the logits are.
  virtual bool draws(const DrawRow& /*row*/) const { return false; }
  /// A step's layers are queued: draws the tokens of its rows likewise, and waits for nothing. The next step may begin
  /// before this one is collected.
  virtual Result<void> queue_step(std::span<const DrawRow> /*draws*/) {
    return Error{Code::unsupported, "the backend draws no tokens"};
  }
  /// As finish_step(), of the step that was queued first, with the tokens that it drew. Code::corrupt as
  /// ops::Sampler::sample(); its K and V are in the caller's pages then too.
  virtual Result<void> collect_step(std::span<ops::Sampled> /*out*/) {
    return Error{Code::unsupported, "the backend draws no tokens"};
  }
  /// The copies of blocks to pages that the caller numbers; null without RunnerOptions::device_pages.
  virtual DeviceLoads* loads() { return nullptr; }
  /// Steps whose kernels were queued as a graph that was made before.
  virtual uint64_t replayed_steps() const { return 0; }
  /// Graphs of steps for which the device had no memory. The kernels of the step were queued one by one.
  virtual uint64_t refused_graphs() const { return 0; }
  /// The f32 residual stream [tokens, hidden] of a chunk after the last layer that ran.
  virtual Result<void> activations(std::span<float> out) = 0;
};

}  // namespace mc::model

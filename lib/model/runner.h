// The forward pass of one thread: the prefill of one chunk of one sequence, a decode step of a batch, or chunks of
// several sequences with a step beside them.
//
// Invariances, bit for bit, for one kernel variant and CPU:
//   prefill  a token's K and V do not depend on how the prompt was cut into chunks (each starting at a
//            block boundary), on a resumed prefix, on threads or on the process. Row `position % 64` of a
//            tile always holds `position`, and the last row of a chunk is finished alone, as in decode.
//   decode   a row's logits do not depend on the other rows of the batch.
//   mixed    chunks and rows of one pass have what passes of their own would give.
//
// A Runner checks the rows and walks the layers. The arithmetic is behind backend.h: the CPU's (cpu_backend.h), or that
// of a GPU (device_backend.h), whose results differ from the CPU's within rounding.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "model/pass.h"
#include "ops/sample.h"

namespace mc::gpu {
class Device;
class DeviceGroup;
}  // namespace mc::gpu

namespace mc::model {

class Backend;
class DeviceLoads;

class Runner {
 public:
  /// `model`, `parallel` and `device` must outlive the runner. `device`: the GPU that computes; null: the CPU.
  /// no_space when the workspace does not fit, unsupported for an unknown kernel variant or block size, or for a model
  /// that the device does not serve (MC7002 names why).
  static Result<Runner> open(const Model& model, Parallel& parallel, const RunnerOptions& options,
                             gpu::Device* device = nullptr);
  /// Likewise over the devices of a group, which must outlive the runner; null: the CPU. MC7002 as well when the model
  /// cannot be split over them.
  static Result<Runner> open(const Model& model, Parallel& parallel, const RunnerOptions& options,
                             gpu::DeviceGroup* group);
  ~Runner();
  Runner(Runner&&) noexcept;
  Runner& operator=(Runner&&) noexcept;

  /// invalid: a token outside the vocabulary, a start that is no multiple of the block, more than max_chunk_tokens, a
  /// position beyond the context, or check_plan(). After an error the pages of the chunk are undefined.
  Result<void> prefill(const PrefillChunk& chunk);
  /// Needs a whole model. logits [rows, vocab]. Seals pages that become full.
  Result<void> decode(std::span<const DecodeRow> rows, std::span<float> logits);
  /// Why rows with this plan cannot be computed over the first `kv_len` tokens of a sequence: Code::invalid names the
  /// limit of the device. A row that is refused fails its whole step, so callers ask before they form one.
  Result<void> check_plan(const attn::Plan& plan, int64_t kv_len) const;
  /// Whether the device draws a token of this kind, which spares the copy of the logits.
  bool draws(const DrawRow& row) const;
  /// decode() with a draw for each row in the place of its logits. Only where draws() takes all of them.
  Result<void> decode_and_draw(std::span<const DecodeRow> rows, std::span<const DrawRow> draws,
                               std::span<ops::Sampled> out);
  /// decode_and_draw() in two parts: queue_step() hands a step to the device, and collect_step() waits for the step
  /// that was queued first. Two steps may be queued, so that the device has the next one when it ends the first; rows
  /// of the second may take tokens that the first draws (DecodeRow::fed), and name a sequence then. The pages, plans
  /// and spans of the rows stay until their step is collected.
  static constexpr size_t kStepsQueued = 2;
  Result<void> queue_step(std::span<const DecodeRow> rows, std::span<const DrawRow> draws);
  Result<void> collect_step(std::span<ops::Sampled> out);
  /// How each chunk of mixed() ended, and its step.
  struct MixedEnds {
    std::vector<Result<void>> chunks;
    Result<void> step;
  };
  /// prefill() of the chunks and decode() or decode_and_draw() of the step, each with its own end: a chunk that stops
  /// or is wrong leaves the others as they are. Where shares_pass() holds, a device computes them in one pass. Else
  /// they are computed one after another. Each chunk is of another sequence, and none is of a sequence of the step. No
  /// step is queued.
  MixedEnds mixed(const MixedPass& pass);
  /// Whether chunks of so many tokens and a step of so many rows are one pass.
  bool shares_pass(std::span<const PrefillChunk* const> chunks, size_t rows) const;
  /// The sequence (DecodeRow::sequence) has no further row, and no step with one is queued. A failed step forgets those
  /// of its rows.
  void forget(uint64_t sequence);

  /// CRC32C of the extents of `layer` that the last pass wrote (Backend::checksums); in PrefillChunk::on_layer those of
  /// the chunk alone. Empty: the caller sums the pages.
  std::span<const uint32_t> checksums(uint32_t layer) const;

  /// The copies of blocks to pages of the device that the caller numbers; null without RunnerOptions::device_pages.
  DeviceLoads* loads();

  /// Steps that a device took as a graph which it had before (RunnerOptions::graphs).
  uint64_t replayed_steps() const;
  /// Graphs of steps for which the device had no memory. After the first one, steps may be queued kernel by kernel.
  uint64_t refused_graphs() const;

  const Model& model() const;
  const RunnerOptions& options() const;
  const ExtentLayout& layout() const;
  const ops::Kernels& kernels() const;
  /// Host memory of the CPU's workspace.
  static size_t workspace_bytes(const ModelConfig& config, const RunnerOptions& options);
  /// Device memory of a GPU's workspace, which is allocated when a runner is opened.
  static size_t device_workspace_bytes(const ModelConfig& config, const RunnerOptions& options);
  /// Memory of products of fp8 beside it, where the device keeps weights in fp8 (DeviceForms::coded).
  static size_t device_fp8_bytes(const ModelConfig& config, const RunnerOptions& options);
  /// The workspace, and what passes of rows with these plans allocate beside it. `layout`: of the KV pages;
  /// `device_bytes`: the device's whole memory.
  static DeviceScratch device_scratch(const ModelConfig& config, const ExtentLayout& layout,
                                      const RunnerOptions& options, std::span<const attn::Plan> plans,
                                      size_t device_bytes);

 private:
  Runner(const Model& model, const RunnerOptions& options, const ops::Kernels& kernels,
         std::unique_ptr<Backend> backend);
  Result<void> check_token(uint32_t token) const;
  Result<void> check_position(int64_t position) const;
  Result<void> check_chunk(const PrefillChunk& chunk) const;
  Result<void> announce(const PrefillChunk& chunk, uint32_t layer);
  Result<void> score_rows(const PrefillChunk& chunk);
  Result<void> check_step(std::span<const DecodeRow> rows) const;
  Result<void> finish_step(const MixedPass& pass);
  Result<void> run_mixed(const MixedPass& pass, std::vector<Result<void>>& chunks);
  bool announce(const MixedPass& pass, uint32_t layer, std::vector<Result<void>>& chunks);
  Result<void> run_layers(std::span<const DecodeRow> rows);
  void forget_failed(std::span<const uint64_t> sequences);

  const Model* model_;
  RunnerOptions options_;
  ExtentLayout layout_;
  const ops::Kernels* kernels_;  // of the host, for the sampler
  std::unique_ptr<Backend> backend_;
  std::vector<float> scored_;                  // logits of rows that share a pass over the head
  size_t first_sum_ = 0, sums_ = SIZE_MAX;     // the checksums of the chunk that is being announced
  std::vector<std::vector<uint64_t>> queued_;  // sequences of the steps that are queued, in their order
  std::vector<uint64_t> failed_;               // sequences to forget when no step is queued
};

}  // namespace mc::model

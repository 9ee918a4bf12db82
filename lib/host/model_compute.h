// The thread that owns the model's forward pass. The control loop hands it runs (a chunk of a prompt,
// a step of the batch) one at a time and takes events back (host/compute_queue.h). Also shared are the KV pages, which
// the role leaves untouched while a run uses them, and the rows of a step, which only one side has at a time.
// It keeps each sequence of the batch from JoinBatch to LeaveBatch: its pages, plan, sampling and history. A step in
// which no block fills allocates nothing on the CPU, unless log-probabilities are asked for.
//
// A device that draws the tokens of a step has the next step queued when it ends the first: that step's rows take the
// drawn tokens on the device, and the thread reports the first step while the device computes the second.
//
// Chunks that follow each other (RunChunk::is_followed), and a step behind them, are one pass where the runner has such
// passes. Else they are computed one after another.
//
//   control loop --submit--> [work] --> thread: model::Runner, sampler, CRC32C of sealed extents
//                <--next---- [LayerDone*, ChunkDone | StepDone]   event_fd() is readable meanwhile
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "attn/attn.h"
#include "base/fd.h"
#include "base/parallel.h"
#include "gpu/device_group.h"
#include "host/compute_queue.h"
#include "host/constraints.h"
#include "host/page_loads.h"
#include "host/refused_graphs.h"
#include "model/model.h"
#include "model/runner.h"
#include "node/node.h"
#include "node/services.h"
#include "node/stage.h"
#include "ops/sample.h"

namespace mc::host {

struct ComputeOptions {
  std::byte* pool = nullptr;  // page 0; outlives the Compute
  uint32_t page_count = 0;
  node::ActivationSlots slots;                // of a pipeline member, offsets from `pool`
  const gpu::DeviceGroup* devices = nullptr;  // the runner's; null: the CPU
};

class ModelCompute final : public node::Compute {
 public:
  /// `parallel` and the objects that the runner refers to outlive it, and only its thread uses them from now on.
  static Result<std::unique_ptr<ModelCompute>> open(model::Runner runner, Parallel& parallel,
                                                    const ComputeOptions& options);
  ~ModelCompute() override;

  void submit(node::ComputeWork work) override { queue_.submit(std::move(work)); }
  void prefix_here(uint64_t run, uint32_t layers) override { queue_.prefix_here(run, layers); }
  void cancel(uint64_t run) override { queue_.cancel(run); }
  std::string kernels() const override;
  std::optional<Error> lost() const override;
  int event_fd() const override { return queue_.event_fd(); }
  std::optional<node::Event> next() override;

 private:
  /// A sequence of the batch, from JoinBatch to LeaveBatch.
  struct Sequence {
    Sequence(node::JoinBatch join, const ExtentLayout& layout);
    node::JoinBatch told;           // its `history` and `position` grow with the steps; `pages` are moved to `pages`
    std::vector<std::byte*> pages;  // their addresses, up to that of the newest token
    std::vector<int32_t> device_pages;  // their numbers on the device, where that is a tier of the node
    Result<attn::Plan> plan;
    attn::CentroidIndex centroids;
    std::unique_ptr<Constraint> constraint;  // once its first token is drawn, if the sampling has a grammar
    // The row before, whose token a row of RunRow::kFed takes.
    int32_t queued_row = -1;  // of the step that is queued; -1: the row has been collected
    uint32_t drawn = 0;       // its token, once it has been collected
    bool is_over = false;     // it has no token, so later rows are not computed
  };
  /// A chunk from RunChunk to ChunkDone.
  struct Chunk {
    node::RunChunk run;
    TimePoint began{};
    node::ChunkDone done;
    std::vector<std::byte*> pages;
    std::vector<int32_t> device_pages;
    attn::Plan plan;
    std::vector<float> logits, hidden;  // of the last token
    std::optional<Error> unscored;      // why the prompt's log-probabilities are not computed
    model::PrefillChunk pass;           // refers to the others
  };
  /// A step from RunStep to StepDone.
  struct Step {
    node::RunStep run;
    TimePoint began{};
    std::vector<size_t> computed;        // which of the rows are computed
    std::vector<model::DecodeRow> rows;  // those
    std::vector<model::DrawRow> draws;   // likewise
    std::vector<ops::Sampled> drawn;     // likewise, when the device draws; else empty
  };

  ModelCompute(model::Runner runner, Parallel& parallel, EventFd wake, const ComputeOptions& options);
  void loop();
  /// The run of `done` has ended. When the device has failed, a HostError follows the run that it failed.
  void finish(node::Event done);
  void note_failure();
  /// Takes the runs that follow the chunk, and computes all of them.
  void run_chunks(node::RunChunk first);
  void compute(std::span<Chunk* const> chunks, Step* step);
  void compute_alone(Chunk& chunk);
  /// The chunks share a pass with the step, if there is one.
  void compute_together(std::span<Chunk* const> chunks, Step* step);
  /// Finds out what is computed. An error ends the chunk.
  Result<void> prepare(Chunk& chunk);
  Result<void> prepare_scores(Chunk& chunk);
  void report(Chunk& chunk, const Result<void>& ended);
  /// Draws the first token of the answer.
  Result<void> note_results(Chunk& chunk);
  void join(node::JoinBatch join);
  void leave(const node::LeaveBatch& leaves);
  void run_step(node::RunStep run);
  /// A place for the step, whose rows are not prepared yet.
  Step& begin(node::RunStep run);
  /// Waits for the step that is queued on the device, if there is one, and reports it.
  void collect();
  /// Finds out which rows are computed, and from what. The tokens of the rows are then a part of their sequences.
  Result<void> prepare(Step& step);
  /// A row of the step; false: it is not computed.
  Result<bool> prepare_row(const node::RunRow& row, node::StepRow& out);
  /// The step before has been collected: rows take the tokens that it drew. Rows of sequences that it ended are
  /// dropped.
  void resolve_fed(Step& step);
  /// Computes the rows of a step that is not queued.
  Result<void> compute(Step& step);
  /// Whether the device draws the tokens of all rows.
  bool draws(const Step& step) const;
  /// Fills in the results of the computed rows.
  Result<void> note_results(Step& step);
  void report(Step& step, const Result<void>& ended);
  /// Checksums of a layer: made by the device, or of the bytes of the pages.
  std::vector<uint32_t> layer_crcs(const node::RunChunk& run, uint32_t layer) const;
  /// The addresses of the chunk's pages. Rows after its end are zeroed, because the last page may have held another
  /// block before.
  std::vector<std::byte*> pages_of(const node::RunChunk& run) const;
  /// Blocks of the first pages whose bytes are not those that were sealed; `crcs` as in RunChunk::prefix_crcs.
  std::vector<uint32_t> rotten(std::span<const uint32_t> pages, std::span<const uint32_t> crcs,
                               LayerRange layers) const;
  Result<attn::Plan> plan(const std::string& text) const;
  /// Computed row `n` of a step.
  Result<node::SampledToken> draw_row(const Step& step, size_t n, std::span<const uint64_t> allowed);
  Result<node::SampledToken> draw_first(const node::RunChunk& run, std::span<const float> logits);
  Result<node::SampledToken> draw(std::span<const float> logits, const model::DrawRow& row,
                                  std::span<const uint64_t> allowed);
  /// The tokens that the grammar allows after the row's token; empty without a grammar.
  Result<std::span<const uint64_t>> allowed_after(Sequence& sequence, uint32_t token);
  /// Runs work that takes as much memory as a client's grammar determines. `begins`: the grammar of an answer is
  /// prepared, which needs most. no_space: there was not enough, and the grammars that were kept for later requests are
  /// dropped.
  template <class Work>
  Result<std::span<const uint64_t>> within_memory(bool begins, Work work);
  std::span<float> activations(uint32_t slot, size_t tokens) const;
  std::byte* page(uint32_t index) const { return options_.pool + size_t{index} * layout_.page_bytes(); }

  model::Runner runner_;
  const model::Model& model_;  // the runner's
  Parallel& parallel_;
  ops::Sampler sampler_;
  Constraints constraints_;
  ComputeOptions options_;
  ExtentLayout layout_;
  PageLoads loads_;
  std::vector<float> logits_;
  std::unordered_map<uint64_t, Sequence> batch_;  // by number
  std::array<Step, model::Runner::kStepsQueued> steps_;
  size_t turn_ = 0;         // of steps_, for the next step
  Step* queued_ = nullptr;  // one of steps_, which the device computes
  TimePoint step_ended_{};  // the last one
  RefusedGraphs refused_graphs_;
  ComputeQueue queue_;
  std::optional<Error> failure_;  // of the device; written once, before the HostError that reports it
  bool is_lost_ = false;          // the control loop has taken that event
  std::thread thread_;
};

}  // namespace mc::host

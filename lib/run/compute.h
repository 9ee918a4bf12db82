// The thread that owns the model's forward pass. The control loop hands it runs (a chunk of a prompt,
// a step of the batch) one at a time and takes events back; nothing else is shared but the KV pages,
// which the role keeps its hands off while a run uses them.
//
//   control loop --submit--> [runs] --> thread: model::Runner, sampler, CRC32C of sealed extents
//                <--next---- [LayerDone*, ChunkDone | StepDone]   event_fd() is readable meanwhile
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <variant>

#include "attn/attn.h"
#include "base/fd.h"
#include "base/parallel.h"
#include "model/model.h"
#include "model/runner.h"
#include "node/node.h"
#include "node/stage.h"
#include "ops/sample.h"

namespace mc::run {

struct ComputeOptions {
  uint32_t block_tokens = 64;
  uint32_t chunk_tokens = 512;
  uint32_t batch_max = 64;
  std::string kernels = "auto";
  std::byte* pool = nullptr;  // page 0; outlives the Compute
  uint32_t page_count = 0;
  node::ActivationSlots slots;  // of a pipeline member, offsets from `pool`
};

/// Where the control loop's runs go. submit() and cancel() are the loop's; events come back by next().
class Compute {
 public:
  virtual ~Compute() = default;
  virtual void submit(node::RunChunk run) = 0;
  virtual void submit(node::RunStep run) = 0;
  /// The run ends at its next layer (a step runs on: it is short); its done event still comes.
  virtual void cancel(uint64_t run) = 0;
  virtual std::string kernels() const = 0;
  virtual int event_fd() const = 0;
  /// The next event, if any; clears event_fd() when there is none.
  virtual std::optional<node::Event> next() = 0;
  /// A compute that models a network sees what the loop reads, and may hold the answer back: it is given
  /// out by next() later.
  virtual void reading(const node::Read&) {}
  virtual void cancel_read(uint64_t) {}
  virtual std::optional<node::Event> hold(node::Event event) { return event; }
};

class ModelCompute final : public Compute {
 public:
  /// `model` and `parallel` outlive it; `parallel` is used by this thread alone from now on.
  static Result<std::unique_ptr<ModelCompute>> open(const model::Model& model, Parallel& parallel,
                                                    const ComputeOptions& options);
  ~ModelCompute() override;

  void submit(node::RunChunk run) override;
  void submit(node::RunStep run) override;
  void cancel(uint64_t run) override;
  std::string kernels() const override;
  int event_fd() const override { return wake_.fd(); }
  std::optional<node::Event> next() override;

 private:
  ModelCompute(const model::Model& model, model::Runner runner, Parallel& parallel, EventFd wake,
               const ComputeOptions& options);
  void loop();
  node::ChunkDone run_chunk(const node::RunChunk& run);
  node::StepDone run_step(const node::RunStep& run);
  std::vector<uint32_t> layer_crcs(const node::RunChunk& run, uint32_t layer) const;
  /// Blocks of the first pages whose bytes are not those that were sealed; `crcs` as in RunChunk::prefix_crcs.
  std::vector<uint32_t> rotten(std::span<const uint32_t> pages, std::span<const uint32_t> crcs,
                               LayerRange layers) const;
  Result<const attn::Plan*> plan(const std::string& text);
  Result<node::SampledToken> draw(std::span<const float> logits, const wire::Sampling& sampling, uint64_t position,
                                  std::span<const uint32_t> history, uint32_t prompt_tokens,
                                  std::span<const uint32_t> banned);
  std::span<float> activations(uint32_t slot, size_t tokens) const;
  std::byte* page(uint32_t index) const { return options_.pool + size_t{index} * layout_.page_bytes(); }
  void post(node::Event event);

  const model::Model& model_;
  model::Runner runner_;
  Parallel& parallel_;
  ops::Sampler sampler_;
  ComputeOptions options_;
  ExtentLayout layout_;
  std::map<std::string, attn::Plan> plans_;  // by text; bounded in loop()
  std::vector<float> logits_;
  std::map<uint64_t, attn::CentroidIndex> centroids_;  // by RunRow::sequence; of the last step's rows
  EventFd wake_;

  std::mutex mutex_;
  std::condition_variable work_;
  bool stopping_ = false;                                         // guarded by mutex_, like all below
  std::deque<std::variant<node::RunChunk, node::RunStep>> runs_;  // the role keeps at most one under way
  std::deque<node::Event> events_;                                // at most layers + 1 a run
  std::set<uint64_t> cancelled_;
  uint64_t current_ = 0;
  std::thread thread_;
};

/// Sampling as the model's sampler takes it.
ops::SamplingParams sampling_params(const wire::Sampling& sampling);

}  // namespace mc::run

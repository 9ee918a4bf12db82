// The plan of a worker process, made from its flags and its model: the options of its machine, the size of its KV
// buffer, and the compute.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/cli.h"
#include "costed/costed.h"
#include "costed/paced_plane.h"
#include "host/block_disk.h"
#include "host/engine.h"
#include "host/memory_plan.h"
#include "host/value_disk.h"
#include "model/runner.h"
#include "node/cache.h"
#include "node/decode.h"
#include "node/prefill.h"
#include "node/stage.h"
#include "wire/codec.h"

namespace mc::host {

class WorkerPlan {
 public:
  /// `args` outlives it.
  WorkerPlan(wire::Role role, const cli::Args& args) : role_(role), args_(args) {}

  /// Reads the flags and loads the model; refuses what does not fit into memory.
  Result<void> make();
  /// The compute over the KV buffer at `pool`; null for a cache node. It measures the cost of the model.
  Result<std::unique_ptr<node::Compute>> open_compute(std::byte* pool);
  /// The disk of --ssd; null without it. Errors name the directory and the next step.
  Result<std::unique_ptr<BlockDisk>> open_disk();
  /// The disk of durable values, a part of --ssd; null where the node keeps none.
  Result<std::unique_ptr<BlockValueDisk>> open_value_disk() const;
  /// Files that the block store of --ssd may have open; 0 without one.
  uint64_t disk_files() const;
  std::unique_ptr<node::Worker> make_machine() const;

  wire::Role role() const { return role_; }
  /// --name, else the role.
  std::string title() const { return options.name.empty() ? std::string(wire::to_string(role_)) : options.name; }
  uint64_t arena_bytes() const { return arena_bytes_; }
  /// About how many blocks the node can have in memory and on disk; after open_disk(). The pages of a cache node may
  /// have any size: those of a small model count.
  uint64_t blocks_max() const;
  /// Memory of the store of values, which the KV buffer leaves free of --dram; 0 = the node has no such store.
  uint64_t value_bytes() const { return value_bytes_; }
  /// Number of token ids; 0 in a cache node.
  uint32_t vocab() const { return engine_ ? engine_->model->config().vocab : costed_ ? costed_->vocab : 0; }
  /// Null in a cache node and with --runner costed.
  const Engine* engine() const { return engine_.get(); }
  /// Memory of the device that --device names.
  const DevicePlan& device() const { return device_; }
  /// With --runner costed: how fast a modelled network carries the bytes that really move.
  std::optional<costed::PacedPlane::Pace> pace() const;

  /// Options of the machine. The planes add the addresses of this process.
  node::WorkerOptions options;

 private:
  /// Bytes of --ssd for durable values; MC1002 when a part that was asked for is too small.
  Result<uint64_t> value_disk_bytes(uint64_t ssd_bytes) const;
  Result<void> check_value_disk() const;
  Result<void> check_block(const std::string& directory, uint64_t value_bytes_max) const;
  Result<void> plan_pipeline();
  void add_slots(uint64_t row_bytes, uint64_t chunk_tokens);
  Result<void> plan_cache();
  Result<void> check_memory() const;
  Result<uint64_t> check_model_fits(gpu::DeviceGroup* devices);
  ExtentLayout widest_layout() const;
  uint64_t pages_wanted() const;
  bool has_device_tier() const;
  Result<void> plan_device_pages(uint64_t fit);
  /// --inline-tokens; 0 for other roles than decode.
  uint32_t inline_tokens() const;
  model::RunnerOptions runner_options() const;
  Result<std::vector<attn::Plan>> row_plans(const model::ModelConfig& config) const;
  Result<void> plan_model();
  Result<void> plan_costed(sched::Profile profile);
  Result<void> check_chunk(uint32_t chunk_tokens) const;
  uint64_t by_layer_bytes() const;
  double page_scale() const;
  Result<std::unique_ptr<node::Compute>> open_costed(std::byte* pool);
  Result<std::unique_ptr<node::Compute>> open_model(std::byte* pool);
  Result<void> check_plan(const model::Runner& runner, const Flag& flag, const attn::Plan& plan) const;
  Result<sched::Cost> cost_of_model(model::Runner& runner) const;

  wire::Role role_;
  const cli::Args& args_;
  node::PrefillOptions prefill_;
  node::DecodeOptions decode_;
  node::StageOptions stage_;
  node::CacheOptions cache_;
  std::unique_ptr<Engine> engine_;
  std::optional<costed::CostedOptions> costed_;  // with --runner costed
  DevicePlan device_;
  uint32_t block_tokens_ = 0;
  uint64_t arena_bytes_ = 0, value_bytes_ = 0;
};

}  // namespace mc::host

// A worker without a model: the Compute that takes the modelled time of a profile (sched/profile.h) and
// writes stand-in KV (costed/standin.h), so that a cluster of many real processes, sockets and transfers
// runs on one small host. It owns no thread: a timer descriptor wakes the control loop when a layer, a
// chunk or a step is due, and only then are its bytes written.
// Transfers take modelled time as well: costed/paced_plane.h.
//
// A pipeline stage takes its share of the time, and its pages hold its layers. It hands on one number for each token
// (Standin::activation), from which the next stage sees that the activations are those of its chunk.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/fd.h"
#include "costed/standin.h"
#include "node/services.h"
#include "node/stage.h"
#include "sched/profile.h"

namespace mc::costed {

struct CostedOptions {
  sched::Profile profile;
  ExtentLayout layout;  // Standin::layout
  uint32_t vocab = 0;
  std::byte* pool = nullptr;  // page 0; outlives the Costed
  uint32_t page_count = 0;
  double share = 1;             // of a chunk's time, which a pipeline stage takes (sched::stage_share)
  node::ActivationSlots slots;  // of a pipeline member, offsets from `pool`
};

class Costed final : public node::Compute {
 public:
  static Result<std::unique_ptr<Costed>> open(CostedOptions options);

  // Control loop's thread only, like everything here.
  void submit(node::ComputeWork work) override;
  void prefix_here(uint64_t run, uint32_t layers) override;
  void cancel(uint64_t run) override;
  std::string kernels() const override { return "costed:" + options_.profile.name; }
  int event_fd() const override { return timer_.get(); }
  std::optional<node::Event> next() override;

 private:
  struct ChunkLayer {  // of the chunk under way
    uint32_t layer;
  };
  using Due = std::variant<ChunkLayer, node::ChunkDone, node::StepDone, node::PagesLoaded>;
  struct Load {  // of blocks to the device, under way
    node::LoadPages asked;
    TimePoint began{};
    Duration layer_time{};
  };
  struct Sequence {  // of the batch, from JoinBatch to LeaveBatch
    std::vector<std::byte*> pages;
    uint32_t position = 0;
  };

  Costed(CostedOptions options, Fd timer);
  void begin_chunk(node::RunChunk run);
  /// Copies to the device go one after the other, beside the runs.
  void begin_load(node::LoadPages load);
  void finish_load(node::PagesLoaded& done);
  /// When the first `count` layers of the chunk's prefix are on the device.
  TimePoint on_device_at(const node::RunChunk& run, uint32_t count) const;
  double chunk_seconds(const node::RunChunk& run) const;
  /// Cached blocks whose bytes are not those that were sealed (node::RunChunk::prefix_crcs).
  std::vector<uint32_t> rotten(const node::RunChunk& run) const;
  Result<void> check_inputs(const node::RunChunk& run);
  std::span<uint64_t> activations(uint32_t slot, size_t tokens) const;
  void fail(Error error);
  void begin_step(node::RunStep run);
  void start_next();
  /// Whether the next event is a layer of the chunk under way whose prefix is not here.
  bool is_waiting() const;
  void fail_chunk(Error error);
  node::Event finish_layer(uint32_t layer);
  void finish_chunk(node::ChunkDone& done);
  void finish_step(node::StepDone& done);
  Result<void> finish_row(const node::RunRow& row, node::StepRow& out);
  void at(TimePoint when, Due due);
  void arm();
  std::byte* page(uint32_t index) const;
  std::vector<std::byte*> pages_of(const std::vector<uint32_t>& indexes) const;

  CostedOptions options_;
  Standin standin_;
  Fd timer_;
  std::multimap<TimePoint, Due> due_;
  std::vector<node::ComputeWork> queue_;  // a chunk waits for earlier checks of cached blocks alone
  std::set<uint64_t> cancelled_;          // chunks in the queue
  std::map<uint64_t, Load> loads_;
  TimePoint loads_end_{};  // of all loads
  std::variant<std::monostate, node::RunChunk, node::RunStep> current_;
  TimePoint began_{};
  uint32_t layers_here_ = UINT32_MAX;  // of the prefix of the chunk under way
  Duration layer_time_{};              // of that chunk
  Error failure_;                      // of the current chunk, reported when it is due
  bool failed_ = false;
  std::vector<uint64_t> tags_;  // Standin::extend of each token of the current chunk
  std::unordered_map<uint64_t, Sequence> batch_;
};

}  // namespace mc::costed

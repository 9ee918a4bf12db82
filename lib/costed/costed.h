// A worker without a model: the Compute that takes the modelled time of a profile (sched/profile.h) and
// writes stand-in KV (costed/standin.h), so that a cluster of many real processes, sockets and transfers
// runs on one small host. It owns no thread: a timer descriptor wakes the control loop when a layer, a
// chunk or a step is due, and only then are its bytes written.
// Transfers take modelled time as well: costed/paced_plane.h.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <variant>

#include "base/fd.h"
#include "costed/standin.h"
#include "node/services.h"
#include "sched/profile.h"

namespace mc::costed {

struct CostedOptions {
  sched::Profile profile;
  ExtentLayout layout;  // Standin::layout
  uint32_t vocab = 0;
  std::byte* pool = nullptr;  // page 0; outlives the Costed
  uint32_t page_count = 0;
};

class Costed final : public node::Compute {
 public:
  static Result<std::unique_ptr<Costed>> open(CostedOptions options);

  // Control loop's thread only, like everything here.
  void submit(node::ComputeWork work) override;
  void cancel(uint64_t run) override;
  std::string kernels() const override { return "costed:" + options_.profile.name; }
  int event_fd() const override { return timer_.get(); }
  std::optional<node::Event> next() override;

 private:
  struct ChunkLayer {  // of the chunk under way
    uint32_t layer;
  };
  using Due = std::variant<ChunkLayer, node::ChunkDone, node::StepDone>;
  struct Sequence {  // of the batch, from JoinBatch to LeaveBatch
    std::vector<std::byte*> pages;
    uint32_t position = 0;
  };

  Costed(CostedOptions options, Fd timer);
  void begin_chunk(node::RunChunk run);
  void begin_step(node::RunStep run);
  void start_next();
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
  std::vector<node::ComputeWork> queue_;  // the role keeps at most one run under way
  std::variant<std::monostate, node::RunChunk, node::RunStep> current_;
  TimePoint began_{};
  Error failure_;  // of the current chunk, told when it is due
  bool failed_ = false;
  std::unordered_map<uint64_t, Sequence> batch_;
};

}  // namespace mc::costed

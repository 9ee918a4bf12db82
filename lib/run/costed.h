// A worker without a model: the Compute that takes the modelled time of a profile (sched/profile.h) and
// writes stand-in KV (run/standin.h), so that a cluster of many real processes, sockets and transfers
// runs on one small host. It owns no thread: a timer descriptor wakes the control loop when a layer, a
// chunk or a step is due, and only then are its bytes written.
//
// Transfers take modelled time as well: the bytes that really moved stand for kv_bytes_per_token a
// token, and their ReadDone is held back until the link into this node would have carried those.
#pragma once

#include <map>
#include <memory>
#include <variant>

#include "base/fd.h"
#include "run/compute.h"
#include "run/modelled_link.h"
#include "run/standin.h"
#include "sched/profile.h"

namespace mc::run {

struct CostedOptions {
  sched::Profile profile;
  ExtentLayout layout;  // Standin::layout
  uint32_t vocab = 0;
  std::byte* pool = nullptr;  // page 0; outlives the Costed
  uint32_t page_count = 0;
};

class Costed final : public Compute {
 public:
  static Result<std::unique_ptr<Costed>> open(CostedOptions options);

  // Control loop's thread only, like everything here.
  void submit(node::RunChunk run) override;
  void submit(node::RunStep run) override;
  void cancel(uint64_t run) override;
  std::string kernels() const override { return "costed:" + options_.profile.name; }
  int event_fd() const override { return timer_.get(); }
  std::optional<node::Event> next() override;
  void reading(const node::Read& read) override;
  void cancel_read(uint64_t read) override;
  std::optional<node::Event> hold(node::Event event) override;

 private:
  struct ChunkLayer {  // of the chunk under way
    uint32_t layer;
  };
  using Due = std::variant<ChunkLayer, node::ChunkDone, node::StepDone, node::ReadDone>;

  Costed(CostedOptions options, Fd timer);
  void begin_chunk(node::RunChunk run);
  void begin_step(node::RunStep run);
  void start_next();
  node::Event finish_layer(uint32_t layer);
  void finish_chunk(node::ChunkDone& done);
  void finish_step(node::StepDone& done);
  void at(TimePoint when, Due due);
  void end_read(uint64_t read);
  void arm();
  std::vector<std::byte*> pages_of(const std::vector<uint32_t>& indexes) const;

  CostedOptions options_;
  Standin standin_;
  double bytes_scale_;  // modelled bytes per byte moved
  Fd timer_;
  std::multimap<TimePoint, Due> due_;
  std::vector<std::variant<node::RunChunk, node::RunStep>> queue_;  // the role keeps at most one under way
  std::variant<std::monostate, node::RunChunk, node::RunStep> current_;
  TimePoint began_{};
  Error failure_;  // of the current chunk, told when it is due
  bool failed_ = false;
  ModelledLink link_;
};

}  // namespace mc::run

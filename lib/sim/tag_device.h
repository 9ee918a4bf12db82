// Memory, links and compute of every simulated process. Reads and runs take time and move tags (sim/tags.h) between
// pages. It is a violation when two operations write one page at once, or when a page is written that others may read.
// Inside lib/sim only.
#pragma once

#include <functional>

#include "base/rng.h"
#include "sim/agenda.h"
#include "sim/process.h"

namespace mc::sim {

/// The first violation of a run. The world goes on, so that one run reports one cause.
class Findings {
 public:
  void add(TimePoint now, const std::string& what) {
    if (first_.empty()) first_ = std::to_string(to_ms(now - TimePoint{})) + " ms: " + what;
  }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

class TagDevice {
 public:
  using Deliver = std::function<void(const std::string& name, const InstanceId& instance, node::Event event)>;

  /// All arguments but `deliver` outlive the device.
  TagDevice(const WorldOptions& options, Agenda& agenda, Rng& rng, Processes& processes, Findings& findings,
            Deliver deliver)
      : options_(options),
        agenda_(agenda),
        rng_(rng),
        processes_(processes),
        findings_(findings),
        deliver_(std::move(deliver)) {}

  void perform_read(Process& process, const node::Read& read);
  void perform_chunk(Process& process, const node::RunChunk& run);
  void prefix_here(Process& process, const node::PrefixLayers& here);
  void cancel_run(Process& process, uint64_t run);
  void perform_step(Process& process, const node::RunStep& run);
  void perform_load(Process& process, const node::LoadPages& load);
  /// A sequence of the batch reads these pages of the device.
  void use(Process& process, const std::vector<uint32_t>& device_pages);
  /// No step has a row of the sequence any more.
  void leave(Process& process, uint64_t sequence);

 private:
  // ---- pages being written ----
  void claim(Process& process, uint64_t offset, uint64_t op);
  void check_owned(const Process& process, uint32_t pool, kv::PageIndex page, const char* what);
  void claim_page(Process& process, uint64_t op, uint32_t page, uint32_t layer);
  void release_claims(Process& process, uint64_t op);

  // ---- reads ----
  Duration read_time(Process& process, const node::Read& read, uint64_t bytes);
  Code take_slice(Process& process, const Process& source, const node::Read& read, const node::ReadSlice& slice,
                  bool flipped);
  void finish_read(const std::string& name, const InstanceId& instance, const node::Read& read, Code fate);

  // ---- pages of a device ----
  void let_go(Process& process, const std::vector<uint32_t>& device_pages);
  void next_load_layer(const std::string& name, const InstanceId& instance, uint64_t load);
  bool load_layer(Process& process, const DeviceLoad& at) const;
  void end_load(Process& process, const DeviceLoad& ended);
  /// The loads that bring pages of the run.
  std::set<uint64_t> loads_of(const Process& process, const node::RunChunk& run) const;
  /// The extent of a block that a run reads: on the device, where that is a tier.
  uint64_t& extent(Process& process, const std::vector<uint32_t>& pages, const std::vector<uint32_t>& device_pages,
                   uint32_t block, uint32_t layer) const;
  void store(Process& process, uint32_t page, uint32_t layer, uint64_t tag) const;

  // ---- runs ----
  Duration chunk_time(const Place& place, const node::RunChunk& run, LayerRange layers) const;
  void begin_step(Process& process);
  node::StepRow compute_row(Process& process, const node::RunRow& row);
  std::optional<node::StepRow> checked_row(Process& process, const node::RunRow& row);
  uint64_t fold_pages(Process& process, const std::vector<uint32_t>& pages, const std::vector<uint32_t>& device_pages,
                      LayerRange layers, uint64_t sum) const;
  void rot(Process& process);
  std::vector<uint32_t> rotten(const Process& process, const std::vector<uint32_t>& pages,
                               const std::vector<uint32_t>& crcs, LayerRange layers) const;
  /// A run that computes one layer after the other when it can.
  struct LayeredRun {
    std::string name;
    InstanceId instance;
    node::RunChunk run;
    LayerRange layers;
    Activations activations;
    Duration layer_time{}, tail_time{};
    TimePoint began{};
    uint32_t next = 0;  // layer
  };
  void next_layer(const std::shared_ptr<LayeredRun>& layered);
  void compute_layer(Process& process, const node::RunChunk& run, uint32_t layer, Activations& activations);
  void end_chunk(Process& process, const node::RunChunk& run, LayerRange layers, Activations activations,
                 Duration took);

  const WorldOptions& options_;
  Agenda& agenda_;
  Rng& rng_;
  Processes& processes_;
  Findings& findings_;
  Deliver deliver_;
};

}  // namespace mc::sim

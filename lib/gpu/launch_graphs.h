// Lists of kernels that are queued as one graph when they come again. A list has the kernels that a pass launches from
// begin() to end(). The first time its kernels are queued one by one, the second time they are captured, and from then
// on the graph is replayed: a call of the driver in place of hundreds. A graph stands for a list only if every kernel,
// grid and parameter is equal byte for byte, so a pass that keeps what changes in device memory meets its graph again,
// and a pass whose parameters differ is queued as it is.
//
//   graphs.begin();
//   ... device.launch(...) ...             // device.post() and the like are queued at once, before the kernels
//   MC_CHECK(graphs.end());
//
// A graph takes device memory. When there is none for another graph, all graphs give theirs back, and the list is
// queued one by one. When there were none, no list becomes a graph any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "gpu/gpu.h"

namespace mc::gpu {

class LaunchGraphs {
 public:
  static constexpr size_t kGraphsMax = 64;

  /// The device must outlive the graphs.
  explicit LaunchGraphs(Device& device) : device_(device) {}
  ~LaunchGraphs() { drop(); }
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  /// Kernels of the device's own stream are noted from here on.
  void begin();
  /// Queues them. Does nothing without begin().
  Result<void> end();
  /// As end(), but the kernels are forgotten: the pass has failed.
  void drop();

  struct Counts {
    uint64_t replayed = 0, captured = 0, single = 0;  // lists
    uint64_t refused = 0;                             // graphs for which there was no memory
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Known {
    Graph graph;
    bool is_captured = false;
    uint64_t used = 0;  // lists_ when it was queued last
  };
  Result<void> queue();
  Result<void> queue_single();
  Result<void> queue_graph(Known& known);
  void make_room();
  void free_graphs();

  Device& device_;
  Device::Launches noted_;
  bool is_noting_ = false;
  std::unordered_map<std::string, Known> known_;  // by the bytes of Device::Launches
  bool has_memory_ = true;                        // for graphs
  uint64_t lists_ = 0;
  Counts counts_;
};

/// Kernels are queued at once while this object lives, before those that are noted.
class Unnoted {
 public:
  explicit Unnoted(Device& device) : device_(device), notes_(device.notes()) { device_.note_launches(nullptr); }
  ~Unnoted() { device_.note_launches(notes_); }
  Unnoted(const Unnoted&) = delete;
  Unnoted& operator=(const Unnoted&) = delete;

 private:
  Device& device_;
  Device::Launches* notes_;
};

}  // namespace mc::gpu

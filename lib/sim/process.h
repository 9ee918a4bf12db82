// One simulated process: its machine, and the content of its KV memory as tags. Inside lib/sim only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "sim/tags.h"
#include "sim/world.h"

namespace mc::sim {

/// A run whose compute waits for layers of its prefix.
struct ArrivingRun {
  uint32_t layers_here = 0;
  std::set<uint64_t> loads;     // LoadPages under way that bring pages of the run to the device
  std::function<void()> go_on;  // set while it waits: tries the next layer again
};

/// A LoadPages under way.
struct DeviceLoad {
  node::LoadPages load;
  TimePoint began{};
  Duration layer_time{};
  uint32_t layers = 0;  // that are on the device
  bool fails = false;   // with the last layer
};

/// The memory of a node's device: what its pages hold, and what uses them.
struct DeviceMemory {
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> tags;  // (page, layer) -> tag
  std::map<uint64_t, DeviceLoad> loads;
  std::map<uint32_t, uint32_t> users;  // page -> runs under way and sequences of the batch that read it
  TimePoint busy_until{};              // its copies
};

struct Process {
  Place place;
  std::string name;
  InstanceId instance;
  std::unique_ptr<node::Machine> machine;  // null = not running
  node::Worker* worker = nullptr;          // the same machine, null for the conductor
  TimePoint tick_at = kNever;
  uint64_t events = 0;                        // that the machine has handled
  std::map<uint64_t, uint64_t> memory;        // extent offset in the KV buffer -> tag
  std::map<uint64_t, Activations> slots;      // by offset in the KV buffer; of pipeline members
  std::map<uint64_t, uint64_t> claims;        // extent offset -> the read or run writing it
  std::map<uint64_t, node::JoinBatch> batch;  // sequences that joined and have not left, with the pages added since
  std::map<uint64_t, std::optional<uint32_t>>
      drawn;                                 // the last token of each that had a row; none: it was not computed
  std::deque<node::RunStep> steps;           // the first one is being computed
  std::set<uint64_t> cancelled;              // reads and runs
  std::map<uint64_t, ArrivingRun> arriving;  // runs that began before their prefix was here
  DeviceMemory device;
  TimePoint sends_until{}, receives_until{};  // its links, with a profile

  bool runs(const InstanceId& which) const { return machine != nullptr && instance == which; }
  /// A later stage of a pipeline: the books of its pages are its leader's.
  bool is_stage() const { return place.stage > 0; }
};

using Processes = std::map<std::string, std::unique_ptr<Process>>;

/// The cost of an event and the making of workers without a profile.
inline constexpr Duration kChunkBase = 300us, kTokenCost = 20us;  // 64 tokens: 1.6 ms
inline constexpr Duration kStepBase = 500us, kRowCost = 50us;
inline constexpr double kReadBytesPerSecond = 2e9;
inline constexpr double kLoadBytesPerSecond = 4e9;  // from the host to a device

/// A page stands for this many times its own bytes.
double byte_scale(const sched::Profile& profile, const ExtentLayout& layout);
/// Activations in a slot stand for this many times their own bytes.
double activation_scale(const sched::Profile& profile, const node::ActivationSlots& slots);
/// Blocks on the disk of a node.
uint64_t disk_blocks_of(const WorldOptions& options, const Place& place);
/// Stages of the pipeline that prefill node `index` leads.
uint32_t stages_of(const WorldOptions& options, uint32_t index);
node::ActivationSlots activation_slots(const WorldOptions& options);
std::unique_ptr<node::Worker> make_worker(const WorldOptions& options, const Place& place, const InstanceId& instance,
                                          uint64_t seed);
/// The reason why a worker is not idle, for failure messages.
std::string describe(const node::Worker& worker);

}  // namespace mc::sim

// The disks of a simulated cluster: a block store (lib/store) for each node over a disk in memory, under the virtual
// clock. The content outlives a crash of its node. A value holds the tags of a block (sim/tags.h) in place of its KV.
//
// Faults: operations that fail, operations that take long, bytes that change while they are read, no space for another
// segment, and a crash in the middle of a write, of which any number of pages reach the disk. The law: a block whose
// write was acknowledged is there after a restart, unless the store has reported that it gave the block up.
// Inside lib/sim only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "sim/tag_device.h"
#include "store/store.h"

namespace mc::sim {

class DiskDevice {
 public:
  /// All arguments but `deliver` outlive the device.
  DiskDevice(const WorldOptions& options, Agenda& agenda, Rng& rng, Processes& processes, Findings& findings,
             TagDevice::Deliver deliver)
      : options_(options),
        agenda_(agenda),
        rng_(rng),
        processes_(processes),
        findings_(findings),
        deliver_(std::move(deliver)) {}
  ~DiskDevice();

  /// Opens the node's store and reports what is in it, some blocks at a time.
  void start(const Process& process);
  void write(const Process& process, const node::DiskWrite& write);
  void load(const Process& process, const node::DiskLoad& load);
  void drop(const Process& process, const node::DiskDrop& drop);
  /// Before the memory of the process is cleared. Writes under way reach the disk in part.
  void crash(const Process& process);

 private:
  class Platter;
  struct Node {
    std::unique_ptr<store::Disk> files;  // outlives the store
    Platter* platter = nullptr;          // the store's; null = not open
    std::unique_ptr<store::Store> store;
    std::set<BlockHash> acknowledged;
    std::map<uint64_t, node::DiskWrite> writing;
    TimePoint busy_until{};  // with a profile
  };

  Duration time_of(const Process& process, bool is_write);
  void later(const Process& process, Duration delay, std::function<void(Process&, Node&)> then);
  void find(const Process& process, std::vector<Id128> ids, size_t begin);
  void finish_write(Process& process, Node& node, const node::DiskWrite& write);
  void finish_load(Process& process, Node& node, const node::DiskLoad& load);
  Code put(const Process& process, Node& node, const node::DiskWrite& write);
  void tell_evicted(const Process& process, Node& node);

  const WorldOptions& options_;
  Agenda& agenda_;
  Rng& rng_;
  Processes& processes_;
  Findings& findings_;
  TagDevice::Deliver deliver_;
  std::map<std::string, Node> nodes_;  // by name of the process
};

}  // namespace mc::sim

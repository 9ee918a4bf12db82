// Services that a host provides to the machine that it drives: a compute for its runs, a KV plane for its reads, a disk
// for blocks that do not fit in memory, and the thread that the machine runs on. The live host implements all of them
// (lib/host). Stand-ins with modelled times (lib/costed) implement the first two. Each takes actions of node.h and
// answers with events of node.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "node/node.h"

namespace mc::node {

/// Work that a machine's loop gives to a compute, in order.
using ComputeWork = std::variant<RunChunk, JoinBatch, RunStep, CollectSteps, LeaveBatch, LoadPages>;

/// Carries out the runs of one machine. submit() and cancel() are the loop's; events come back by next().
class Compute {
 public:
  virtual ~Compute() = default;
  virtual void submit(ComputeWork work) = 0;
  /// See PrefixLayers.
  virtual void prefix_here(uint64_t run, uint32_t layers) = 0;
  /// The run ends at its next layer (a step runs on: it is short); its done event still comes.
  virtual void cancel(uint64_t run) = 0;
  virtual std::string kernels() const = 0;
  /// The error after which the compute can do no more work: its device failed. The runs that it still has fail with it.
  virtual std::optional<Error> lost() const { return std::nullopt; }
  virtual int event_fd() const = 0;
  /// The next event, if any; clears event_fd() when there is none.
  virtual std::optional<Event> next() = 0;
};

/// The place of a page of one of the machine's pools in the buffer that holds them all.
using PagePlace = std::function<uint64_t(uint32_t pool, uint32_t page)>;

/// Reads KV extents of peers into this node's pages, and carries the small notifies that announce them.
class KvPlane {
 public:
  virtual ~KvPlane() = default;
  virtual void set_peers(const std::vector<wire::Peer>& peers) = 0;
  virtual void notify(const SendNotify& notify) = 0;
  /// Answered by one ReadDone. A read that waits for its connection keeps a copy of `place` and asks it later: what the
  /// function refers to must outlive the plane.
  virtual void read(const Read& read, const PagePlace& place) = 0;
  virtual void cancel(uint64_t read) = 0;
  /// Readable when next() may have an event.
  virtual int event_fd() const = 0;
  virtual std::optional<Event> next() = 0;
};

/// Keeps KV blocks on a disk. It begins by giving the blocks that it has, as DiskFound events.
class BlockDisk {
 public:
  virtual ~BlockDisk() = default;
  /// `page` is the memory of the action's page. It must stay until the DiskWritten or DiskLoaded of the action.
  virtual void write(const DiskWrite& write, std::span<const std::byte> page) = 0;
  virtual void load(const DiskLoad& load, std::span<std::byte> page) = 0;
  virtual void drop(const DiskDrop& drop) = 0;
  /// Readable when next() may have an event.
  virtual int event_fd() const = 0;
  virtual std::optional<Event> next() = 0;
};

/// The thread that owns a machine, as other parts of its process see it.
class MachineLoop {
 public:
  /// Work for the loop's thread: may look at the machine and append actions.
  using Task = std::function<void(TimePoint now, Actions& out)>;

  virtual ~MachineLoop() = default;
  /// Any thread. Tasks run in order; they are dropped once the loop has ended.
  virtual void post(Task task) = 0;
  /// Loop thread only: gives the machine an event.
  virtual void deliver(const Event& event) = 0;
};

}  // namespace mc::node

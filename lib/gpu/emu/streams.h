// Streams of the emulated device: queues of copies, kernels and events. The seed and the policy draw which queue goes
// on and how much of a copy is done at a time, so copies and kernels of different streams interleave. Every byte of
// device memory and of page-locked host memory has its accesses on record: two operations that touch a byte, one of
// them writing, must be ordered by a stream, by an event or by a host that waited between them, or the run stops with
// the rule "stream order". The order is that of vector clocks (Mattern 1989) over streams, so a missing wait is found
// under every schedule.
//
//   in_order  the host waits for each operation where it queues it: the order of one stream
//   random    after each call of the host, 0 to 3 steps of queues that are drawn uniformly
//   sticky    nothing runs before the host waits; then one queue runs far ahead of the others
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/rng.h"
#include "gpu/emu/emu.h"

namespace mc::gpu::emu {

struct CopyIn {
  uint64_t to = 0;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};
struct CopyOut {
  std::byte* to = nullptr;
  uint64_t from = 0;
  size_t bytes = 0;
};
struct CopyWithin {
  uint64_t to = 0, from = 0;
  size_t bytes = 0;
};
struct FillBytes {
  uint64_t to = 0;
  std::byte value{};
  size_t bytes = 0;
};
struct KernelLaunch {
  const Kernel* kernel = nullptr;
  Launch launch;                  // without its parameters
  std::vector<std::byte> params;  // of the launch
};
/// A kernel of a library, which the host computes in one piece: the bytes that it reads and writes, and what it does.
struct LibraryCall {
  /// `count` runs of `bytes` bytes, one every `stride`.
  struct Range {
    std::string_view what;  // "A"
    uint64_t address = 0;
    size_t bytes = 0, stride = 0, count = 1;
    bool writes = false;
    size_t end() const { return count == 0 ? 0 : (count - 1) * stride + bytes; }
  };
  std::string_view name;  // of a constant
  std::vector<Range> ranges;
  std::function<void(DeviceMemory& memory)> compute;
};
using StreamWork = std::variant<CopyIn, CopyOut, CopyWithin, FillBytes, KernelLaunch, LibraryCall>;

class StreamQueues : private GridOrder {
 public:
  /// `memory` must outlive the queues.
  explicit StreamQueues(DeviceMemory& memory) : memory_(memory) { memory_.set_order(this); }
  ~StreamQueues() { memory_.set_order(nullptr); }
  StreamQueues(const StreamQueues&) = delete;
  StreamQueues& operator=(const StreamQueues&) = delete;

  /// Seed and policy from here on; a failure and what is queued are forgotten.
  void reset(const Options& options);
  /// Runs a kernel; the queues call it when the launch's turn has come.
  using RunKernel = std::function<std::optional<Failure>(const KernelLaunch& launch)>;
  void set_run_kernel(RunKernel run) { run_kernel_ = std::move(run); }

  uint32_t make_stream();
  uint32_t make_event();
  void submit(uint32_t stream, StreamWork work);
  void record(uint32_t stream, uint32_t event);
  void wait(uint32_t stream, uint32_t event);
  void finish(uint32_t stream);
  void finish_event(uint32_t event);
  void finish_all();
  /// The number of the last operation of a stream.
  uint64_t last(uint32_t stream) const { return queues_.at(stream).count; }
  /// Runs until an operation of a stream has ended, and the host learns nothing: another device waits for it. False:
  /// the stream does not come to it.
  bool run_to(uint32_t stream, uint64_t number);
  /// The host touches page-locked bytes: a failure when an unfinished copy owns some of them.
  void touch_host(const std::byte* at, size_t bytes);
  /// The first broken rule; nothing runs after it.
  const std::optional<Failure>& failure() const { return failure_; }
  /// Stops the run for a rule that a call of the host broke.
  void stop(Rule rule, const std::string& text);
  /// Operations that have begun.
  uint64_t begun() const { return begun_; }

 private:
  /// Operations of each stream that have ended: entry s counts stream s.
  using Known = std::vector<uint64_t>;
  struct Signal {
    uint32_t event = 0;
    uint64_t time = 0;  // the event's recording
  };
  struct Operation {
    std::variant<StreamWork, Signal> work;
    bool waits = false;   // of a Signal: waits for the recording, or is it
    uint64_t number = 0;  // in its stream, from 1
    uint64_t queued = 0;  // over all streams
    Known before;         // what ends before it starts
    size_t done = 0;      // bytes of a copy
    uint32_t grid = 0;    // its number in the memory's records; 0: not begun
  };
  struct Queue {
    std::deque<Operation> waiting;
    Known known;  // what ends before the next operation starts
    uint64_t count = 0;
    uint64_t priority = 0;  // Policy::sticky
  };
  struct EventState {
    uint64_t recorded = 0, reached = 0;  // recordings that were queued, and that were executed
    Known known;                         // of the last recording
  };
  struct Stamp {
    uint32_t stream = 0;
    uint64_t number = 0;
    std::string_view what;  // of a constant, or the name of a kernel
  };
  struct HostRange {
    const std::byte *begin = nullptr, *end = nullptr;
    bool writes = false;
    Stamp by;
  };

  bool ends_before(uint32_t earlier) const override;
  std::string describe(uint32_t grid) const override;

  void push(uint32_t stream, Operation operation);
  void go_on();
  /// Runs a piece of one operation; false when no queue can move.
  bool step();
  bool can_run(const Queue& queue) const;
  void run(uint32_t stream);
  void run_work(uint32_t stream, Operation& operation, const StreamWork& work);
  void move_bytes(const StreamWork& work, size_t from, size_t bytes, uint32_t grid);
  /// Host bytes of device memory after the check and the record of the access; null after a failure.
  std::byte* touch(uint64_t address, size_t bytes, bool writes, uint32_t grid);
  void own_host(const std::byte* at, size_t bytes, bool writes, const Known& before, const Stamp& by);
  void run_library(const LibraryCall& call, uint32_t grid);
  void fail(const std::string& text) { stop(Rule::stream_order, text); }
  static bool covers(const Known& known, uint32_t stream, uint64_t number);
  static void join(Known& into, const Known& from);
  static void learn(Known& known, uint32_t stream, uint64_t number);

  DeviceMemory& memory_;
  RunKernel run_kernel_;
  Options options_;
  Rng rng_;
  std::deque<Queue> queues_;
  std::deque<EventState> events_;
  std::vector<Stamp> stamps_;  // by grid
  std::vector<HostRange> host_ranges_;
  Known host_;  // what the host has waited for
  const Operation* running_ = nullptr;
  uint64_t queued_ = 0, begun_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace mc::gpu::emu

// The work for a compute thread, and the events that it reports: the only state that the thread shares with the control
// loop.
//
//   control loop --submit--> [work]   --take--> compute thread: one run at a time, two steps, or runs of one pass
//                <--next---- [events] <--post, finish--        event_fd() is readable while there are events
//
// A run may begin before all layers of its prefix are here. The thread waits for each layer in await_prefix().
//
// A cancelled run is not taken out of the queue. The thread asks is_cancelled() where it can stop, and finishes the run
// early. The mark goes with the run, so it hits no later one.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/fd.h"
#include "node/services.h"

namespace mc::host {

class ComputeQueue {
 public:
  explicit ComputeQueue(EventFd wake) : wake_(std::move(wake)) {}

  // ---- control loop ----
  /// Not after stop().
  void submit(node::ComputeWork work);
  /// The first `layers` layers of the run's prefix are here. Does nothing when the run is neither waiting nor under
  /// way.
  void prefix_here(uint64_t run, uint32_t layers);
  /// Does nothing when the run is neither waiting nor under way.
  void cancel(uint64_t run);
  std::optional<node::Event> next();
  int event_fd() const { return wake_.fd(); }
  /// The thread gets no more work, and the run under way is cancelled.
  void stop();

  // ---- compute thread ----
  /// Waits for work. nullopt after stop(). The run taken before must be finished, unless it is a step, or a chunk that
  /// is followed (node::RunChunk::is_followed).
  std::optional<node::ComputeWork> take();
  bool is_cancelled(uint64_t run) const;
  /// Whether take() would wait.
  bool is_empty() const;
  /// Waits until the first `layers` layers of the prefix of the run under way are here. False: it is cancelled.
  bool await_prefix(uint64_t run, uint32_t layers);
  void post(node::Event event);
  /// The run under way that `done` names has ended.
  void finish(node::Event done);

 private:
  EventFd wake_;
  mutable std::mutex mutex_;         // guards all below
  std::condition_variable changed_;  // for the compute thread: work, layers of a prefix, a cancelled run, or stop()
  bool stopping_ = false;
  std::vector<node::ComputeWork> work_;       // the role keeps at most one pass of runs under way, or two steps
  std::vector<node::Event> events_;           // at most layers + 1 a run
  std::set<uint64_t> cancelled_;              // of runs that wait or are under way
  std::map<uint64_t, uint32_t> layers_here_;  // of the prefixes of such runs that lack layers
  std::vector<uint64_t> current_;             // the runs under way
  bool is_followed_ = false;                  // RunChunk::is_followed of the chunk that was taken last
};

}  // namespace mc::host

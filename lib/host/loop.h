// The control loop: one thread that owns a machine and feeds it events from the control plane, the
// data plane, the compute thread, other threads of the process (post) and the clock, and carries out
// the actions it asks for. It sleeps in poll(2) until something happens or the machine's next wake-up.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "host/heartbeat.h"
#include "host/lease_channels.h"
#include "host/links.h"
#include "node/services.h"

namespace mc::host {

class Loop final : public node::MachineLoop {
 public:
  struct Parts {
    node::Machine* machine = nullptr;
    Links* links = nullptr;
    node::KvPlane* data = nullptr;                           // null: the conductor moves no KV
    LeaseChannels* leases = nullptr;                         // null: leases go by control
    node::BlockDisk* disk = nullptr;                         // null: a node without --ssd
    std::byte* pages = nullptr;                              // the KV buffer; of a node with a disk
    node::Compute* compute = nullptr;                        // null: conductor and cache compute nothing
    node::PagePlace place;                                   // of the machine's pages
    std::function<void(size_t tokens)> on_compute;           // of each chunk or step; workers only
    std::function<void(const node::Reply&)> on_reply;        // conductor only
    std::function<void(const wire::Message&)> on_operators;  // messages to node::kOperators; prefill nodes only
    std::function<void(node::OrderAnswer)> on_order;         // workers only
    std::function<void()> after_events;                      // after each round: status, readiness
    int signal_fd = -1;
    std::function<void()> on_signal;  // signal_fd is readable
    Heartbeat* heartbeat = nullptr;   // may be null; outlives the loop
  };

  static Result<std::unique_ptr<Loop>> open(Parts parts);

  void post(Task task) override;
  /// Until stop() is called. Loop thread = the caller.
  void run();
  /// Any thread.
  void stop();
  void deliver(const node::Event& event) override;
  /// Loop thread only: runs a task at once.
  void apply(const Task& task);

 private:
  Loop(Parts parts, EventFd wake) : parts_(std::move(parts)), wake_(std::move(wake)) {}
  TimePoint wait();
  void forgive(TimePoint now);
  bool is_behind(TimePoint began, TimePoint now);
  node::KvPlane& data();
  node::Compute& compute();
  bool drain_sources();
  void send(const node::Send& send);
  node::Actions taken_actions();
  void perform(node::Actions actions);
  bool log_action(const node::Action& action);
  void perform_on_disk(const node::Action& action);
  bool run_tasks();

  Parts parts_;
  EventFd wake_;
  node::Actions spare_;              // room for the next event's actions
  TimePoint read_until_{};           // up to here the time is accounted for: messages were read, or a sleep was planned
  TimePoint behind_since_ = kNever;  // since when rounds leave messages unread
  bool has_more_messages_ = false;   // the last round left some
  std::mutex mutex_;
  std::vector<Task> tasks_;            // guarded by mutex_
  std::atomic<bool> stopping_{false};  // release by stop(), acquire by run()
};

}  // namespace mc::host

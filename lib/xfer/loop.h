// The engine's loop without its thread. It takes commands, handles reports of transports, gives work to lanes and ends
// batches. Not thread-safe: only the thread that has the turn (turns.h) calls this class.
//
// Life of a request:  assigned to a route -> cut into slices as lanes have room -> posted -> done, or failed, or back
// to the route for another attempt (at most attempts_max, within the deadline). A slice exists from its cutting until
// no transport can touch its memory; a batch is released when none of its slices exists.
#pragma once

#include <span>
#include <vector>

#include "xfer/commands.h"
#include "xfer/peering.h"
#include "xfer/poller.h"
#include "xfer/small_path.h"

namespace mc::xfer {

class EngineLoop {
 public:
  EngineLoop(Options& options, Services& services, TransportSet& transports, BatchTable& batches, SmallTable& small,
             PeerDirectory& directory, EventQueue& events, CommandQueue& commands)
      : options_(options),
        commands_(commands),
        parts_(options, services, transports, batches, directory, events),
        running_(parts_),
        small_(parts_, running_, small),
        router_(parts_, running_),
        dispatcher_(parts_, running_, router_),
        peering_(parts_, running_, router_, dispatcher_) {}

  /// Takes a batch in, like the command `submit`.
  void submit(OpenBatch& batch);
  /// The way of small batches. A batch that flies there joins the others in the next call of any other method.
  SmallPath& small() { return small_; }
  /// True when there were commands.
  bool take_commands();
  void ready(std::span<const Poller::Ready> ready);
  /// One round of all work except waiting. Returns the time of the next round. `now`: the time of this one.
  TimePoint round(TimePoint& now);
  /// Prepares the engine's sleep: devices that were polled must wake it from now on. False: they reported something.
  bool doze();
  bool stopping() const { return stopping_; }
  void shutdown();

 private:
  void handle(Command& command);
  bool handle_reports();
  void handle(EndpointEvent& event);
  void pause_if_full();

  Options& options_;  // the secret may change
  CommandQueue& commands_;
  LoopParts parts_;
  RunningBatches running_;
  SmallPath small_;
  Router router_;
  Dispatcher dispatcher_;
  Peering peering_;
  bool stopping_ = false;
  std::vector<Command> taken_;  // scratch memory
  std::vector<PeerId> turns_;   // scratch memory
  Reports handled_;             // reports that are being handled, while handlers append to parts_.reports
};

}  // namespace mc::xfer

// The engine's loop without its thread: it takes commands, handles what transports report, gives work to lanes and
// ends batches. Not thread-safe: it belongs to the thread that has the turn (turns.h).
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

namespace mc::xfer {

class EngineLoop {
 public:
  EngineLoop(Options& options, Home& home, TransportSet& transports, BatchTable& batches, PeerDirectory& directory,
             EventQueue& events, CommandQueue& commands)
      : options_(options),
        commands_(commands),
        parts_(options, home, transports, batches, directory, events),
        running_(parts_),
        router_(parts_, running_),
        dispatcher_(parts_, running_, router_),
        peering_(parts_, running_, router_, dispatcher_) {}

  /// Takes a batch in, as the command `submit` does.
  void submit(OpenBatch& batch);
  /// Posts the batch at once if it is one small request for which nothing stands in the way.
  enum class Begun : uint8_t {
    no,   // nothing was done: submit() it
    yes,  // it is posted or done, and round() must run now
    over  // it is done and perhaps closed already; round() must run at `until`
  };
  Begun begin(OpenBatch& batch, TimePoint& until);
  /// True when there were commands.
  bool take_commands();
  void ready(std::span<const Poller::Ready> ready);
  /// Everything but waiting, once. Returns when the next round is due; `now` is when this one was made.
  TimePoint round(TimePoint& now);
  /// The engine is about to sleep: devices that were polled must wake it. False: they reported something meanwhile.
  bool doze();
  bool stopping() const { return stopping_; }
  void shutdown();

 private:
  void handle(Command& command);
  bool handle_reports();
  void handle(News& news);
  void pause_if_full();

  Options& options_;  // the secret may change
  CommandQueue& commands_;
  LoopParts parts_;
  RunningBatches running_;
  Router router_;
  Dispatcher dispatcher_;
  Peering peering_;
  bool stopping_ = false;
  std::vector<Command> taken_;  // scratch
  std::vector<PeerId> turns_;   // scratch
  Reports handled_;             // being handled: handlers append to parts_.reports
};

}  // namespace mc::xfer

// The paths of the connections of the rdma transport, from the plan to the end of every attempt (internal).
//
//   dialler                              listener
//     path_offer (its queue pairs)  -->    makes its own, connects them to those of the dialler
//     connects, tests both ways     <--    path_answer
//     path_ready                    -->    checks the pattern written here, tests both ways
//     checks, up                    <--    path_ready, up
//
// The dialler plans the paths and begins every attempt. The listener answers. A failed path hands its slices back when
// its queue pairs have released their memory. Not thread-safe: only the thread that has the loop's turn calls this
// class.
#pragma once

#include <functional>
#include <string>

#include "xfer/tally.h"
#include "xfer_rdma/parts.h"

namespace mc::xfer {

class RdmaPaths {
 public:
  explicit RdmaPaths(RdmaParts& parts) : parts_(parts) {}

  /// Dialler: the peer's ports have arrived for the first time.
  void plan(RdmaEndpoint& endpoint);
  /// Dialler: addresses of a port have changed on either side. A path that is up keeps its pair while both sides have
  /// it. Otherwise it starts over with another pair.
  void replan(RdmaEndpoint& endpoint, Reports& out);
  /// Handles a frame about a path. Not ok: the peer breaks the protocol, as `why` says.
  Code on_frame(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
                Reports& out, const char*& why);
  /// The connector has finished with the queue pairs of an attempt.
  void on_joined(const RdmaConnector::Done& done, Reports& out);
  /// The connection has its queue pairs: every path of it may be begun or answered.
  void start(RdmaEndpoint& endpoint);
  /// Runs the timers of the connection's paths.
  void tick(RdmaEndpoint& endpoint, TimePoint at, Reports& out);

  /// Takes the completions of a path and handles them.
  /// `first`: a completion that was taken already; null: none.
  void serve(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out, const ibv_wc* first = nullptr);
  /// Counts the bytes of a slice that is done.
  void count(const Slice& slice) {
    parts_.services.tally->add(parts_.row(), slice.op == Op::read ? Flow::read_bytes : Flow::written_bytes,
                               slice.local.size());
  }
  /// Serves every path whose device raised an event.
  void on_events(RdmaDevice& device, Reports& out);
  /// Serves paths that raise no event. With `arm`, serves those that raised none until now. True: one of them failed or
  /// came up.
  bool poll(bool arm, Reports& out);

  /// Ends the attempt. `tell`: the peer is told, because it does not know yet.
  void fail(RdmaEndpoint& endpoint, RdmaRail& rail, PathCause cause, const std::string& text, bool tell, Reports& out);
  /// Ends the attempts of all paths that are selected.
  void fail_where(const std::function<bool(const RdmaRail&)>& select, PathCause cause, const std::string& text,
                  Reports& out);
  /// Begins new attempts at these paths, because the hindrance is over.
  void wake_where(const std::function<bool(const RdmaRail&)>& select);
  /// The peer's queue pairs of that attempt, and of earlier ones, accept nothing any more.
  void peer_end_gone(RdmaRail& rail, uint32_t epoch, Reports& out) const;
  /// Dialler: whether both ports of the path are active and their addresses fit.
  bool startable(const RdmaEndpoint& endpoint, const RdmaRail& rail) const;
  /// Ends a connection by destroying all of its queue pairs. True: WRITEs of it may still be under way.
  bool abandon(RdmaEndpoint& endpoint, Reports& out);
  /// Waits until no attempt of any connection is being connected.
  void stop();

 private:
  static constexpr size_t kChoicesMax = 4;        // address pairs tried for one path
  static constexpr Duration kAnswerPause = 20ms;  // between two answers to offers of one path
  static constexpr Duration kDrainMax = 1s;       // after which queue pairs are destroyed instead

  void begin(RdmaEndpoint& endpoint, RdmaRail& rail);
  Code on_offer(RdmaEndpoint& endpoint, const wire::RdmaPathOffer& offer, Reports& out);
  void on_down(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathDown& down, Reports& out);
  void answer_pending(RdmaEndpoint& endpoint, RdmaRail& rail);
  void answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& offer);
  void on_answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& answer, Reports& out);
  void join(RdmaRail& rail, RdmaAttempt::Work work);
  void on_ready(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  void rail_up(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  void first_up(RdmaEndpoint& endpoint, Reports& out);
  void check_dial(RdmaEndpoint& endpoint);
  void tick(RdmaEndpoint& endpoint, RdmaRail& rail, TimePoint at, Reports& out);
  void report(const Slice& slice, Reports& out);
  void finish_drain(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  SliceDone verdict(const RdmaEndpoint& endpoint, const RdmaRail& rail, const RdmaLane::Failed& failed) const;
  PathTimes times() const;
  uint16_t mtu_with(const RdmaPort& port, uint16_t theirs) const;

  RdmaParts& parts_;
  RdmaAttempt::Polled polled_;  // scratch memory of serve()
};

}  // namespace mc::xfer

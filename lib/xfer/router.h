// Which route a request takes: the first transport that is up and reaches the peer's buffer, else one worth waiting
// for. Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include <string>

#include "xfer/running.h"

namespace mc::xfer {

/// "read of buffer 3 [0, +4096)"
std::string request_text(const Request& request);

class Router {
 public:
  Router(LoopParts& parts, RunningBatches& running) : parts_(parts), running_(running) {}

  /// Queues the request on a route, or with its peer until there is a descriptor, or finishes it with an error.
  void assign(OpenBatch& batch, uint32_t request);
  void assign(const QueuedRequest& request) { assign(*request.batch, request.request); }
  /// Assigns what waits on a route that cannot do it now again.
  void reassign(Peer& peer, size_t route);

 private:
  void refuse(const Peer& peer, OpenBatch& batch, uint32_t request, Denial denial);
  size_t pick_route(const Peer& peer, const BufferInfo& buffer, TimePoint now) const;

  LoopParts& parts_;
  RunningBatches& running_;
};

}  // namespace mc::xfer

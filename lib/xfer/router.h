// The route of a request: the first transport that is up and reaches the peer's buffer, else a route that may come up.
// Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <string>

#include "xfer/running.h"

namespace mc::xfer {

/// A text such as "read of buffer 3 [0, +4096)".
std::string request_text(const Request& request);

class Router {
 public:
  Router(LoopParts& parts, RunningBatches& running) : parts_(parts), running_(running) {}

  /// Queues the request on a route, or at its peer while there is no descriptor, or ends it with an error.
  void assign(OpenBatch& batch, uint32_t request);
  void assign(const QueuedRequest& request) { assign(*request.batch, request.request); }
  /// Assigns the work of a route again, when the route cannot carry it now.
  void reassign(Peer& peer, size_t route);

 private:
  void refuse(const Peer& peer, OpenBatch& batch, uint32_t request, Denial denial);
  size_t pick_route(const Peer& peer, const BufferInfo& buffer, TimePoint now) const;

  LoopParts& parts_;
  RunningBatches& running_;
};

}  // namespace mc::xfer

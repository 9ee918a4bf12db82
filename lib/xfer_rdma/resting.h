// Connections that rest (internal). A resting connection keeps its socket but has given up its queue pairs, because
// this process (pool.h decides) or the peer has too many. The next transfer of either side wakes it.
//
//   has too many                         its peer
//     ask  (nothing posted here)   -->    nothing posted, unused: rests      else: <-- busy
//     insist                       -->    takes no more; rests when nothing is posted
//     fails its paths              <--    resting
//
// The listener cannot begin attempts at paths, so it asks for them with `wake`.
// Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include "xfer_rdma/paths.h"

namespace mc::xfer {

class RdmaResting {
 public:
  RdmaResting(RdmaParts& parts, RdmaPaths& paths) : parts_(parts), paths_(paths) {}

  /// Handles a path_rest frame of the peer. Not ok: the peer breaks the protocol, as `why` says.
  Code on_frame(RdmaEndpoint& endpoint, uint64_t verb, Reports& out, const char*& why);
  /// Moves queue pairs from one connection to another. Part of every round of the transport.
  void share(Reports& out);
  /// The connection has no queue pairs any more.
  void release(RdmaEndpoint& endpoint);

 private:
  size_t pairs_of(const RdmaEndpoint& endpoint) const;
  void wake(RdmaEndpoint& endpoint);
  void granted(RdmaEndpoint& endpoint);
  void rest(RdmaEndpoint& endpoint, bool tell, Reports& out);
  void rested(RdmaEndpoint& endpoint);
  void take_step(const RdmaPool::Step& step, Reports& out);

  RdmaParts& parts_;
  RdmaPaths& paths_;
};

}  // namespace mc::xfer

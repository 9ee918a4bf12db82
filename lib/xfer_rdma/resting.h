// Connections that rest (internal): their socket stays, their queue pairs go, because the process has too many (pool.h
// decides) or the peer has. The next transfer of either side wakes them.
//
//   has too many                         its peer
//     ask  (nothing posted here)   -->    nothing posted, unused: rests      else: <-- busy
//     insist                       -->    takes no more; rests when nothing is posted
//     fails its paths              <--    resting
//
// The listener cannot begin attempts at paths: it asks for them with `wake`.
// Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include "xfer_rdma/paths.h"

namespace mc::xfer {

class RdmaResting {
 public:
  RdmaResting(RdmaParts& parts, RdmaPaths& paths) : parts_(parts), paths_(paths) {}

  /// A path_rest frame of the peer. Not ok, and `why`: the peer breaks the rules.
  Code on_frame(RdmaEndpoint& endpoint, uint64_t verb, Reports& out, const char*& why);
  /// Hands queue pairs from one connection to another; part of every round of the transport.
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

// The peers with which a node has no data connection, as its host reports them (node::DataLink).
#pragma once

#include <map>
#include <string>

#include "node/node.h"

namespace mc::node {

class RefusedLinks {
 public:
  /// A report about a peer of the node; peers that leave are erased, so there are at most as many as peers.
  void take(const DataLink& link) {
    if (link.refusal.empty())
      refusals_.erase(link.instance);
    else
      refusals_[link.instance] = link.refusal;
  }
  void erase(const InstanceId& peer) { refusals_.erase(peer); }
  /// Why there can be no data connection to the peer; "" = there can, as far as this node knows.
  std::string why(const InstanceId& peer) const {
    const auto found = refusals_.find(peer);
    return found == refusals_.end() ? "" : found->second;
  }

 private:
  std::map<InstanceId, std::string> refusals_;
};

}  // namespace mc::node

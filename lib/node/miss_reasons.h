// The reason why each run of a prompt's blocks was computed instead of reused. It follows from the node's record of its
// blocks and from the results of the prompt's fetches.
#pragma once

#include <span>
#include <vector>

#include "node/block_memory.h"
#include "node/prefill_request.h"
#include "node/shelf.h"

namespace mc::node {

class MissReasons {
 public:
  /// All arguments must outlive the object. `self`: the name of this node.
  MissReasons(const Shelf& shelf, const BlockMemory& memory, const NodeId& self)
      : shelf_(shelf), memory_(memory), self_(self) {}

  /// The runs of blocks after the cached prefix of `r`. `computing`: requests whose blocks are being computed.
  std::vector<wire::Miss> of(const PrefillRequest& r, std::span<const GivenUp> given_up,
                             std::span<const PrefillRequest* const> computing, TimePoint now) const;

 private:
  const Shelf& shelf_;
  const BlockMemory& memory_;
  const NodeId& self_;
};

}  // namespace mc::node

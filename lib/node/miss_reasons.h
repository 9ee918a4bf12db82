// Why each run of a prompt's blocks was computed and not reused, from what the node remembers of its blocks and what
// the fetches of the prompt have come to.
#pragma once

#include <span>
#include <vector>

#include "node/block_memory.h"
#include "node/prefill_request.h"
#include "node/shelf.h"

namespace mc::node {

class MissReasons {
 public:
  /// All outlive it. `self`: the name of this node.
  MissReasons(const Shelf& shelf, const BlockMemory& memory, const NodeId& self)
      : shelf_(shelf), memory_(memory), self_(self) {}

  /// The runs of blocks behind the prefix of `r`. `computing`: requests whose blocks are computed now.
  std::vector<wire::Miss> of(const PrefillRequest& r, std::span<const GivenUp> given_up,
                             std::span<const PrefillRequest* const> computing, TimePoint now) const;

 private:
  const Shelf& shelf_;
  const BlockMemory& memory_;
  const NodeId& self_;
};

}  // namespace mc::node

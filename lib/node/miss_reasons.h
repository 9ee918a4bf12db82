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

  struct Prompt {
    const wire::RequestSpec* spec = nullptr;
    std::span<const BlockHash> hashes;  // of its full blocks
    uint32_t cached = 0;                // number of leading blocks that are not computed
  };
  static Prompt prompt_of(const PrefillRequest& r) { return {&r.spec, r.hashes, r.prefix.blocks}; }

  /// The runs of blocks after the cached prefix. `computing`: prompts whose blocks are being computed.
  std::vector<wire::Miss> of(const Prompt& prompt, std::span<const GivenUp> given_up, std::span<const Prompt> computing,
                             TimePoint now) const;

 private:
  const Shelf& shelf_;
  const BlockMemory& memory_;
  const NodeId& self_;
};

}  // namespace mc::node

#include "node/lease_grant.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "node/block_reads.h"

namespace mc::node {

bool is_as_asked(const wire::LeaseGrant& grant, std::span<const BlockHash> asked, uint32_t layers) {
  if (grant.blocks.size() > asked.size()) return false;
  for (size_t i = 0; i < grant.blocks.size(); ++i)
    if (grant.blocks[i].hash != asked[i] || grant.blocks[i].layer_crcs.size() != layers) return false;
  return are_sound(grant.parts, layers);
}

wire::Fallback fallback_of(const ReadDone& done) {
  MC_ASSERT(done.code != Code::ok);
  if (done.refused) return wire::Fallback::stage;  // which has not begun the read; the code is its reason
  switch (done.code) {
    case Code::corrupt: return wire::Fallback::corrupt;
    case Code::timeout: return wire::Fallback::read_timeout;
    case Code::peer_lost: return wire::Fallback::peer_lost;
    default: return wire::Fallback::transfer;
  }
}

void add_tokens(std::vector<wire::NameValue>& by_node, const NodeId& node, uint64_t tokens) {
  const auto known = std::ranges::find(by_node, node, &wire::NameValue::first);
  if (known == by_node.end())
    by_node.emplace_back(node, std::to_string(tokens));
  else
    known->second = std::to_string(std::stoull(known->second) + tokens);
}

}  // namespace mc::node

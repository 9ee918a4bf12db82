// The answer of a holder to a lease request, and the end of the read after it. PrefixFetches and HolderReads judge both
// alike.
#pragma once

#include <span>
#include <vector>

#include "node/node.h"

namespace mc::node {

/// Whether a grant names the leading blocks of those that were asked for, with `layers` checksums each, and sound parts
/// of the holder. A holder may grant fewer blocks than requested, but no others.
bool is_as_asked(const wire::LeaseGrant& grant, std::span<const BlockHash> asked, uint32_t layers);

/// The reason why a read that failed has brought no blocks.
wire::Fallback fallback_of(const ReadDone& done);

/// Adds tokens that `node` brought. `by_node` names each node once.
void add_tokens(std::vector<wire::NameValue>& by_node, const NodeId& node, uint64_t tokens);

}  // namespace mc::node

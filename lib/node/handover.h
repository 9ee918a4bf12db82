// The messages of a prefill node to the decode node of a request: the offer, the extents that are ready to read, the
// end. A request that operators ask of the prefill node alone has no decode node. It is accepted at once, and
// these functions send no message for it.
#pragma once

#include <string>

#include "node/prefill_request.h"
#include "node/shelf.h"

namespace mc::node::handover {

/// Starts to prepare the request: offers it to the decode node.
void offer(PrefillRequest& r, TimePoint now, Actions& out);
/// Announces the layers of the cached prefix that this node holds.
void announce_prefix(const PrefillRequest& r, const Shelf& shelf, LayerRange layers, Actions& out);
/// Books the sealed extents of a layer, and announces those that the decode node needs.
void announce_layer(PrefillRequest& r, const Shelf& shelf, const LayerDone& done, Actions& out);
/// The prompt is computed, and decode goes on with this first token.
void complete(const PrefillRequest& r, uint32_t token, Actions& out);
/// The decode node forgets the request, if it was offered.
void cancel(const PrefillRequest& r, std::string reason, Actions& out);

}  // namespace mc::node::handover

#include "xfer/lanes.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::xfer {

void Lanes::add(EndpointId endpoint, PeerId peer, size_t route) {
  MC_ASSERT(endpoint != EndpointId::none);
  const bool fresh = endpoints_.emplace(endpoint, EndpointState{.peer = peer, .route = route}).second;
  MC_ASSERT(fresh);
}

void Lanes::up(EndpointId endpoint, size_t lanes) {
  EndpointState& state = endpoints_.at(endpoint);
  MC_ASSERT(!state.up);  // a transport reports `up` once
  state.up = true;
  state.lanes.resize(lanes);
}

EndpointState* Lanes::find(EndpointId endpoint) {
  const auto at = endpoints_.find(endpoint);
  return at == endpoints_.end() ? nullptr : &at->second;
}

bool Lanes::any_of(PeerId peer) const {
  return std::any_of(endpoints_.begin(), endpoints_.end(),
                     [&](const auto& entry) { return entry.second.peer == peer; });
}

size_t Lanes::count(std::span<const EndpointId> endpoints) const {
  size_t lanes = 0;
  for (const EndpointId endpoint : endpoints) lanes += endpoints_.at(endpoint).lanes.size();
  return lanes;
}

Lanes::Lane Lanes::emptiest(std::span<const EndpointId> endpoints) {
  Lane best;
  for (const EndpointId id : endpoints) {
    EndpointState& endpoint = endpoints_.at(id);
    for (size_t i = 0; i < endpoint.lanes.size(); ++i) {
      LaneState& lane = endpoint.lanes[i];
      if (lane.full_round == round_ || lane.passed == pass_) continue;
      if (best.state == nullptr || lane.bytes < best.state->bytes) best = {&lane, id, static_cast<int>(i)};
      if (lane.bytes == 0) return best;
    }
  }
  return best;
}

void Lanes::leave(const SliceRecord& slice) {
  EndpointState* endpoint = find(slice.endpoint);
  if (endpoint == nullptr) return;
  leave(endpoint->lanes[static_cast<size_t>(slice.lane)], slice.bytes);
}

void Lanes::leave(LaneState& lane, uint64_t bytes) {
  MC_ASSERT_LE(bytes, lane.bytes);
  lane.bytes -= bytes;
  room();
}

}  // namespace mc::xfer

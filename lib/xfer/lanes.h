// The endpoints of all peers and the bytes in flight on each of their lanes. Work goes to the lane with the fewest
// bytes in flight. Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "xfer/slice_table.h"

namespace mc::xfer {

struct LaneState {
  uint64_t bytes = 0;       // in flight
  uint64_t full_round = 0;  // it took less than it was offered in that round: not asked again before there may be room
  uint64_t passed = 0;      // in that pass nothing waited that it takes
};

struct EndpointState {
  PeerId peer = PeerId::none;
  size_t route = 0;
  bool up = false;
  std::vector<LaneState> lanes;
};

class Lanes {
 public:
  void add(EndpointId endpoint, PeerId peer, size_t route);
  void up(EndpointId endpoint, size_t lanes);
  void erase(EndpointId endpoint) { endpoints_.erase(endpoint); }
  EndpointState* find(EndpointId endpoint);
  EndpointState& at(EndpointId endpoint) { return endpoints_.at(endpoint); }
  bool any_of(PeerId peer) const;
  size_t count(std::span<const EndpointId> endpoints) const;

  struct Lane {
    LaneState* state = nullptr;  // null: there is none
    EndpointId endpoint = EndpointId::none;
    int index = 0;
  };
  /// The lane with the fewest bytes in flight, of those that may have room and were not passed.
  Lane emptiest(std::span<const EndpointId> endpoints);
  /// A new pass over the lanes of a route: none of them was passed yet.
  void new_pass() { ++pass_; }
  void pass(LaneState& lane) const { lane.passed = pass_; }
  void full(LaneState& lane) const { lane.full_round = round_; }
  /// Something happened after which full lanes may have room.
  void room() { ++round_; }
  /// The lane took a slice.
  static void enter(LaneState& lane, uint64_t bytes) { lane.bytes += bytes; }
  /// The slice is no longer in flight on its lane.
  void leave(const SliceRecord& slice);

 private:
  std::map<EndpointId, EndpointState> endpoints_;
  uint64_t round_ = 1;
  uint64_t pass_ = 1;
};

}  // namespace mc::xfer

// The endpoints of all peers and the bytes in flight on each of their lanes. A slice goes to the lane with the fewest
// bytes in flight. Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "xfer/slice_table.h"

namespace mc::xfer {

struct LaneState {
  uint64_t bytes = 0;  // bytes in flight
  // Round in which the lane refused a part of its offer; it is offered no more until room() begins a new round.
  uint64_t full_round = 0;
  uint64_t passed = 0;  // pass in which no waiting slice suited the lane
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
    LaneState* state = nullptr;  // null: there is no such lane
    EndpointId endpoint = EndpointId::none;
    int index = 0;
  };
  /// The lane with the fewest bytes in flight among those that may have room and were not passed.
  Lane emptiest(std::span<const EndpointId> endpoints);
  /// Whether nothing is in flight on the lane, and it may have room and was not passed.
  bool idle(const LaneState& lane) const {
    return lane.bytes == 0 && lane.full_round != round_ && lane.passed != pass_;
  }
  /// Begins a new pass over the lanes of a route, in which no lane counts as passed.
  void new_pass() { ++pass_; }
  void pass(LaneState& lane) const { lane.passed = pass_; }
  void full(LaneState& lane) const { lane.full_round = round_; }
  /// Begins a new round, because lanes that were full may have room again.
  void room() { ++round_; }
  /// The lane took a slice.
  static void enter(LaneState& lane, uint64_t bytes) { lane.bytes += bytes; }
  /// The slice is no longer in flight on its lane.
  void leave(const SliceRecord& slice);
  void leave(LaneState& lane, uint64_t bytes);

 private:
  std::map<EndpointId, EndpointState> endpoints_;
  uint64_t round_ = 1;
  uint64_t pass_ = 1;
};

}  // namespace mc::xfer

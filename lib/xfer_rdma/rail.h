// A path of a connection (internal): one port here, one port of the peer, and the attempts to connect them. path.h has
// its states.
#pragma once

#include <set>
#include <string>

#include "wire/rdma_frame.h"
#include "xfer/token_bucket.h"
#include "xfer_rdma/attempt.h"
#include "xfer_rdma/choices.h"
#include "xfer_rdma/hold.h"
#include "xfer_rdma/path.h"
#include "xfer_rdma/speed.h"

namespace mc::xfer {

struct RdmaRail {
  RdmaRail(EndpointId of, uint32_t number, size_t local_port, size_t remote_port, const PathTimes& times)
      : endpoint(of), id(number), local(local_port), remote(remote_port), machine(times) {}

  const EndpointId endpoint;  // endpoint that the path belongs to
  const uint32_t id;
  size_t local;   // index of the local port
  size_t remote;  // index of the peer's port
  PathMachine machine;
  GidChoices choices;  // used by the dialler
  RdmaAttempt attempt;
  bool joining = false;  // another thread connects the attempt's queue pairs, so it must not be closed
  std::string last_error;
  TimePoint drain_deadline = kNever;

  struct Answer {
    wire::RdmaPathOffer pending;  // an offer that is not answered yet; without lanes: none
    TimePoint next{};             // earliest time of the next answer
    wire::RdmaPathOffer own;      // the answer to send when the queue pairs are connected
  } answer;                       // used by the listener

  PathSpeed speed;
  TokenBucket pace;
  bool paced = false;    // slices wait for the rate limit
  TimePoint progress{};  // last progress of transfers, for the stall time-out
  RdmaHold hold;         // of this attempt and earlier ones
  struct Cancelled {
    std::set<uint64_t> slices;  // cancelled slices that the NIC still holds
    TimePoint since = kNever;
  } cancelled;

  bool up() const { return machine.state() == PathMachine::State::up; }
  /// Makes the objects of a new attempt. Returns their description for the peer.
  Result<wire::RdmaPathOffer> open(const RdmaPort& port, size_t lanes, bool dialler) {
    return attempt.open(*this, port, {.path = id, .epoch = machine.epoch(), .dialler = dialler}, lanes);
  }
  /// Ends the attempt; see RdmaAttempt::close.
  std::vector<RdmaLane::Failed> close(RdmaReaper& reaper) {
    cancelled = {};
    return attempt.close(reaper);
  }
  /// Whether the path has nearly as much in flight as its speed allows.
  bool sated() const { return attempt.bytes() + speed.slice_bytes() > speed.allowance(); }
  /// Whether little else is in flight besides one lane's requests.
  bool shallow() const { return speed.allowance() <= RdmaLane::kWindowBytes; }
};

}  // namespace mc::xfer

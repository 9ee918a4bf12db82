// A path of a connection (internal): one port here, one port of the peer, and the attempts to connect them. path.h says
// which states a path goes through.
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

  const EndpointId endpoint;  // whose path it is
  const uint32_t id;
  size_t local;   // index of our port
  size_t remote;  // index of the peer's port
  PathMachine machine;
  GidChoices choices;  // dialler
  RdmaAttempt attempt;
  bool joining = false;  // the attempt's queue pairs are being connected elsewhere: it must not be closed
  std::string last_error;
  TimePoint drain_deadline = kNever;

  struct Answer {
    wire::RdmaPathOffer pending;  // an offer that is not answered yet; none: it has no lanes
    TimePoint next{};             // when an offer may be answered
    wire::RdmaPathOffer own;      // the answer that is sent when the queue pairs are connected
  } answer;                       // listener

  PathSpeed speed;
  TokenBucket pace;
  bool paced = false;    // slices wait for it
  TimePoint progress{};  // of transfers, for the stall timer
  RdmaHold hold;         // of this and earlier attempts
  struct Cancelled {
    std::set<uint64_t> slices;  // the NIC still holds them though nobody wants them
    TimePoint since = kNever;
  } cancelled;

  bool up() const { return machine.state() == PathMachine::State::up; }
  /// Objects of a new attempt, as told to the peer.
  Result<wire::RdmaPathOffer> open(const RdmaPort& port, size_t lanes, bool dialler) {
    return attempt.open(*this, port, {.path = id, .epoch = machine.epoch(), .dialler = dialler}, lanes);
  }
  /// The end of the attempt; see RdmaAttempt::close.
  std::vector<RdmaLane::Failed> close(RdmaReaper& reaper) {
    cancelled = {};
    return attempt.close(reaper);
  }
  /// It has nearly as much in flight as its speed allows.
  bool sated() const { return attempt.bytes() + speed.slice_bytes() > speed.allowance(); }
  /// Little else is in flight while one lane's requests are.
  bool shallow() const { return speed.allowance() <= RdmaLane::kWindowBytes; }
};

}  // namespace mc::xfer

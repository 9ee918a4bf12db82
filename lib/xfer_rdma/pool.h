// The queue pairs of a process and the connections that hold them, as pure code: no device, no clock. A NIC caches the
// state of few queue pairs, so their number is limited. A connection without queue pairs waits. A connection that is
// not used gives its pairs up until it is used again: it "rests", and its socket stays.
//
//   want -> (room) granted -> ... -> asked -> released
//   want -> (no room) waits in line; an idle holder is asked to rest, chosen by SIEVE (NSDI'24): the
//           hand walks from the oldest grant to the newest, spares once each holder that was used since the
//           last visit, and asks the first other one
//   no holder idle for as long as kWaitMax: the holder of the oldest grant must rest when its requests are done
//
// The peer of a holder may use it invisibly from here (one-sided reads), so the holder is asked and may refuse.
// Invariant: the pairs held never exceed the cap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "base/clock.h"
#include "xfer/transport.h"

namespace mc::xfer {

class RdmaPool {
 public:
  static constexpr Duration kIdle = 20ms;      // a holder that was unused for this long is idle
  static constexpr Duration kWaitMax = 100ms;  // longest wait of the first in line, and shortest life of a grant
  static constexpr Duration kAnswer = 1s;      // time for a peer to answer; then its pairs are taken away

  explicit RdmaPool(size_t pairs_max) : max_(pairs_max) {}

  struct Step {
    enum class Kind : uint8_t {
      grant,   // the endpoint has its pairs
      ask,     // rest if the peer does not use the connection either: released() or refused() follows
      insist,  // rest when the posted requests are done: released() follows
      force,   // rest now: released() follows
    };
    Kind kind{};
    EndpointId endpoint = EndpointId::none;
    bool operator==(const Step&) const = default;
  };

  /// Queues a request for `pairs` (at most the limit). False: the endpoint holds pairs or waits already.
  bool want(EndpointId endpoint, size_t pairs, TimePoint now);
  /// The endpoint no longer holds or awaits pairs, for any reason.
  void released(EndpointId endpoint);
  /// False: the endpoint holds no pairs.
  bool used(EndpointId endpoint, TimePoint now);
  /// Answer to `ask`: the connection is in use. False: too late, it must rest.
  bool refused(EndpointId endpoint, TimePoint now);
  /// The next steps; empty when there are none. Each step is returned once.
  std::vector<Step> step(TimePoint now);
  /// When step() may have more steps; kNever while no endpoint waits.
  TimePoint due() const;

  size_t held() const { return held_; }
  size_t waiting() const { return line_.size(); }
  bool holds(EndpointId endpoint) const;

 private:
  enum class State : uint8_t { held, asked, insisted, forced };
  struct Holder {
    EndpointId endpoint = EndpointId::none;
    size_t pairs = 0;
    State state = State::held;
    TimePoint granted{};
    TimePoint used{};
    TimePoint answer_by = kNever;  // set while asked or insisted
    bool visited = false;
  };
  struct Waiter {
    EndpointId endpoint = EndpointId::none;
    size_t pairs = 0;
    TimePoint since{};
  };
  using Holders = std::list<Holder>;  // oldest grant first; a list, so that the hand stays valid

  Holder* find(EndpointId endpoint);
  Holder* idle_one(TimePoint now);
  Holder* oldest(TimePoint now);
  void advance();

  size_t max_;
  size_t held_ = 0;
  size_t leaving_ = 0;  // number of holders that were asked, insisted or forced
  Holders holders_;
  Holders::iterator hand_ = holders_.end();
  std::list<Waiter> line_;
  TimePoint now_{};  // time of the latest step
};

}  // namespace mc::xfer

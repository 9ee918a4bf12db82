// Which connections of a process have queue pairs, as pure code: no device, no clock of its own. NICs
// keep the state of few queue pairs at hand, so there is a cap; a connection that got none waits, and one
// that is not used gives its pairs up (it "rests": its socket stays) until it is used again.
//
//   want -> (room) granted -> ... -> asked -> released
//   want -> (no room) waits in line; an idle holder is asked to rest, chosen by SIEVE (NSDI'24): the
//           hand walks from the oldest grant to the newest, spares once what was used since its last
//           visit, and asks the first that was not
//   no holder idle for as long as kPatience: the longest granted must rest when what it posted is done
//
// A holder may be in use by its peer, unseen here (one-sided reads), so it is asked, and may refuse.
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
  static constexpr Duration kIdle = 20ms;       // unused for this long = idle
  static constexpr Duration kPatience = 100ms;  // of the first in line, and the least a grant lasts
  static constexpr Duration kAnswer = 1s;       // for a peer to answer; then its pairs are taken away

  explicit RdmaPool(size_t pairs_max) : max_(pairs_max) {}

  struct Step {
    enum class Kind : uint8_t {
      grant,   // it has its pairs
      ask,     // to rest if its peer does not use it either: released(), or refused()
      insist,  // to rest when what is posted is done: released()
      force,   // to rest now: released()
    };
    Kind kind{};
    EndpointId endpoint = EndpointId::none;
    bool operator==(const Step&) const = default;
  };

  /// In line for `pairs` (at most the cap). False: it holds or waits already.
  bool want(EndpointId endpoint, size_t pairs, TimePoint now);
  /// It holds none and waits for none, for whatever reason.
  void released(EndpointId endpoint);
  void used(EndpointId endpoint, TimePoint now);
  /// Answer to `ask`: in use. False: too late, it must rest.
  bool refused(EndpointId endpoint, TimePoint now);
  /// What to do now; empty when nothing. Each step is given once.
  std::vector<Step> step(TimePoint now);
  /// When step() may have more to say; kNever while nobody waits.
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
    TimePoint answer_by = kNever;  // while asked or insisted
    bool visited = false;
  };
  struct Waiter {
    EndpointId endpoint = EndpointId::none;
    size_t pairs = 0;
    TimePoint since{};
  };
  using Holders = std::list<Holder>;  // oldest grant first; few change, the hand stays valid

  Holder* find(EndpointId endpoint);
  Holder* idle_one(TimePoint now);
  Holder* oldest(TimePoint now);
  void advance();

  size_t max_;
  size_t held_ = 0;
  size_t leaving_ = 0;  // of those asked, insisted or forced
  Holders holders_;
  Holders::iterator hand_ = holders_.end();
  std::list<Waiter> line_;
  TimePoint now_{};  // of the latest step
};

}  // namespace mc::xfer

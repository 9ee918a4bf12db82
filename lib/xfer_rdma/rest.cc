// Connections that rest: their socket stays, their queue pairs go, because the process has too many
// (pool.h decides) or the peer has. The next transfer of either side wakes them.
//
//   has too many                         its peer
//     ask  (nothing posted here)   -->    nothing posted, unused: rests      else: <-- busy
//     insist                       -->    takes no more; rests when nothing is posted
//     fails its paths              <--    resting
//
// The listener cannot begin attempts at paths: it asks for them with `wake`.
#include <algorithm>

#include "base/log.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace mc::xfer {

using State = PathMachine::State;
using wire::RestVerb;

namespace {

OutFrame verb_frame(RestVerb verb) {
  OutFrame frame = control_frame(wire::FrameType::path_rest, {});
  frame.header.id = static_cast<uint64_t>(verb);
  return frame;
}

bool posted(const RdmaEndpoint& endpoint) {
  return std::any_of(endpoint.rails.begin(), endpoint.rails.end(),
                     [](const auto& rail) { return rail->outstanding() > 0; });
}

bool any_in(const RdmaEndpoint& endpoint, std::initializer_list<State> states) {
  return std::any_of(endpoint.rails.begin(), endpoint.rails.end(), [&](const auto& rail) {
    return std::find(states.begin(), states.end(), rail->machine.state()) != states.end();
  });
}

}  // namespace

size_t RdmaTransport::paths_max(size_t lanes) const {
  return std::max<size_t>(1, std::min(wire::kRdmaPathsMax, home_.options->rdma_pairs_max / std::max<size_t>(lanes, 1)));
}

size_t RdmaTransport::pairs_of(const RdmaEndpoint& endpoint) const {
  return std::min(endpoint.rails.size(), paths_max(endpoint.lanes_per_path)) * endpoint.lanes_per_path;
}

/// Sees to it that the connection gets its paths, now or after it has rested.
void RdmaTransport::wake(RdmaEndpoint& endpoint) {
  if (endpoint.doomed || endpoint.rails.empty()) return;
  const bool holds = pool_.holds(endpoint.id);
  if (holds && !endpoint.resting) return;
  endpoint.wanted_again = holds;
  if (holds) return;
  if (endpoint.accepted && !endpoint.offered()) {
    if (std::exchange(endpoint.asked_to_wake, true)) return;
    endpoint.push(verb_frame(RestVerb::wake));
    return due(now());
  }
  if (pool_.want(endpoint.id, pairs_of(endpoint), now())) due(now());
}

/// Its turn has come: every path of it may be begun, or answered.
void RdmaTransport::granted(RdmaEndpoint& endpoint) {
  home_.tally->add(Count::rdma_pairs, pairs_of(endpoint));
  endpoint.asked_to_wake = false;
  endpoint.used = now();
  if (endpoint.up) {
    home_.tally->add(Count::rdma_wakes);
    endpoint.dark_since = now();  // until a path is up
    due(endpoint.dark_since + home_.options->rdma_blackout);
  }
  for (const auto& rail : endpoint.rails) {
    rail->machine.wake(now());
    if (endpoint.doomed || !rail->machine.may_begin(now())) continue;
    if (endpoint.accepted) {
      answer_pending(endpoint, *rail);
    } else if (startable(endpoint, *rail)) {
      begin(endpoint, *rail);
    } else {
      rail->last_error = "a port is down";
    }
  }
  check_dial(endpoint);
}

/// Gives the queue pairs up. `tell`: the peer does not know.
void RdmaTransport::rest(RdmaEndpoint& endpoint, bool tell, Reports& out) {
  if (endpoint.resting || !pool_.holds(endpoint.id)) return;
  endpoint.resting = true;
  endpoint.dark_since = kNever;
  if (tell) endpoint.push(verb_frame(RestVerb::resting));
  log_debug("rdma connection rests", {{"peer", endpoint.name}, {"asked_by_peer", !tell}});
  for (const auto& rail : endpoint.rails) {
    // an attempt that the peer has heard of, or will
    const bool attempt = rail->machine.live() && rail->machine.state() != State::up;
    fail(endpoint, *rail, PathCause::rest, "the connection rests", attempt, out);
  }
  rested(endpoint);
}

/// Were these its last queue pairs?
void RdmaTransport::rested(RdmaEndpoint& endpoint) {
  if (!endpoint.resting) return;
  if (any_in(endpoint, {State::connecting, State::verifying, State::up, State::draining})) return;
  endpoint.resting = endpoint.yielding = endpoint.insisted = endpoint.asked_to_wake = false;
  release_pairs(endpoint);
  home_.tally->add(Count::rdma_evictions);
  const bool dialling = !endpoint.up && !endpoint.accepted;
  if (std::exchange(endpoint.wanted_again, false) || endpoint.offered() || dialling) wake(endpoint);
}

void RdmaTransport::release_pairs(RdmaEndpoint& endpoint) {
  if (pool_.holds(endpoint.id)) home_.tally->sub(Count::rdma_pairs, pairs_of(endpoint));
  pool_.released(endpoint.id);
  due(now());  // somebody may wait for them
}

Code RdmaTransport::on_rest(RdmaEndpoint& endpoint, uint64_t verb, const char*& why) {
  why = "resting out of turn";
  if (verb > static_cast<uint64_t>(RestVerb::wake)) return Code::corrupt;
  const bool awake = pool_.holds(endpoint.id) && !endpoint.resting;
  switch (static_cast<RestVerb>(verb)) {
    case RestVerb::ask:
      if (!awake) {
        endpoint.push(verb_frame(RestVerb::resting));
      } else if (!endpoint.up || posted(endpoint) || now() - endpoint.used < RdmaPool::kIdle) {
        endpoint.push(verb_frame(RestVerb::busy));
      } else {
        rest(endpoint, true, *endpoint.out);
      }
      break;
    case RestVerb::insist:
      if (!awake)
        endpoint.push(verb_frame(RestVerb::resting));
      else
        endpoint.yielding = endpoint.insisted = true;
      break;
    case RestVerb::busy:
      if (pool_.refused(endpoint.id, now())) endpoint.yielding = endpoint.insisted;
      due(now());
      break;
    case RestVerb::resting:
      for (const auto& rail : endpoint.rails) peer_end_gone(*rail, rail->machine.epoch(), *endpoint.out);
      rest(endpoint, false, *endpoint.out);
      break;
    case RestVerb::wake:
      if (endpoint.accepted) return Code::corrupt;
      wake(endpoint);
      break;
  }
  return Code::ok;
}

void RdmaTransport::take_step(const RdmaPool::Step& step, Reports& out) {
  RdmaEndpoint* endpoint = find(step.endpoint);
  if (endpoint == nullptr || endpoint->doomed) return;
  switch (step.kind) {
    case RdmaPool::Step::Kind::grant: return granted(*endpoint);
    case RdmaPool::Step::Kind::ask:
      if (posted(*endpoint) || !any_in(*endpoint, {State::up})) return void(pool_.refused(endpoint->id, now()));
      endpoint->yielding = true;  // nothing is posted until the answer is here
      return endpoint->push(verb_frame(RestVerb::ask));
    case RdmaPool::Step::Kind::insist: endpoint->yielding = endpoint->insisting = true; return;
    case RdmaPool::Step::Kind::force: return rest(*endpoint, true, out);
  }
}

/// Hands pairs from one connection to another; part of every round of the transport.
void RdmaTransport::share_pairs(Reports& out) {
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->yielding || endpoint->doomed || posted(*endpoint)) continue;
    if (endpoint->insisted)
      rest(*endpoint, true, out);
    else if (std::exchange(endpoint->insisting, false))
      endpoint->push(verb_frame(RestVerb::insist));
  }
  for (auto steps = pool_.step(now()); !steps.empty(); steps = pool_.step(now()))
    for (const auto& step : steps) take_step(step, out);
  due(pool_.due());
}

}  // namespace mc::xfer

#include "xfer_rdma/resting.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "xfer/tally.h"

namespace mc::xfer {

using State = PathMachine::State;
using wire::RestVerb;

namespace {

OutFrame verb_frame(RestVerb verb) {
  OutFrame frame = control_frame(wire::FrameType::path_rest, {});
  frame.header.id = static_cast<uint64_t>(verb);
  return frame;
}

}  // namespace

size_t RdmaResting::pairs_of(const RdmaEndpoint& endpoint) const {
  return std::min(endpoint.rails.size(), parts_.paths_max(endpoint.lanes_per_path)) * endpoint.lanes_per_path;
}

/// Requests the paths of the connection, at once or after its rest.
void RdmaResting::wake(RdmaEndpoint& endpoint) {
  if (endpoint.doomed() || endpoint.rails.empty()) return;
  const bool holds = parts_.pool.holds(endpoint.id);
  if (holds && !endpoint.rest.resting) return;
  endpoint.rest.again = holds;
  if (holds) return;
  if (endpoint.accepted && !endpoint.offered()) {
    if (std::exchange(endpoint.rest.asked, true)) return;
    endpoint.socket.push(verb_frame(RestVerb::wake));
    return parts_.due(now());
  }
  if (parts_.pool.want(endpoint.id, pairs_of(endpoint), now())) parts_.due(now());
}

/// The pool has granted queue pairs to the connection.
void RdmaResting::granted(RdmaEndpoint& endpoint) {
  MC_ASSERT(parts_.pool.holds(endpoint.id) && !endpoint.rest.resting);
  parts_.services.tally->add(Count::rdma_pairs, pairs_of(endpoint));
  endpoint.rest.asked = false;
  endpoint.used = now();
  if (endpoint.up) {
    parts_.services.tally->add(Count::rdma_wakes);
    endpoint.dark_since = now();  // until a path is up
    parts_.due(endpoint.dark_since + parts_.services.options->rdma_blackout);
  }
  paths_.start(endpoint);
}

/// Gives the queue pairs up. `tell`: the peer is told, because it does not know yet.
void RdmaResting::rest(RdmaEndpoint& endpoint, bool tell, Reports& out) {
  if (!parts_.awake(endpoint)) return;
  endpoint.rest.resting = true;
  endpoint.dark_since = kNever;
  if (tell) endpoint.socket.push(verb_frame(RestVerb::resting));
  log_debug("rdma connection rests", {{"peer", endpoint.name}, {"asked_by_peer", !tell}});
  for (const auto& rail : endpoint.rails) {
    // An attempt that the peer has been or will be told of.
    const bool attempt = rail->machine.live() && !rail->up();
    paths_.fail(endpoint, *rail, PathCause::rest, "the connection rests", attempt, out);
  }
  rested(endpoint);
}

/// Completes the rest of a connection whose last queue pairs are gone, so that others may have them.
void RdmaResting::rested(RdmaEndpoint& endpoint) {
  if (!endpoint.rest.resting) return;
  if (endpoint.any_in({State::connecting, State::verifying, State::up, State::draining})) return;
  const bool again = endpoint.rest.again || endpoint.rest.wanted;
  endpoint.rest = {};
  release(endpoint);
  parts_.services.tally->add(Count::rdma_evictions);
  const bool dialling = !endpoint.up && !endpoint.accepted;
  if (again || endpoint.offered() || dialling) wake(endpoint);
}

void RdmaResting::release(RdmaEndpoint& endpoint) {
  if (parts_.pool.holds(endpoint.id)) parts_.services.tally->sub(Count::rdma_pairs, pairs_of(endpoint));
  parts_.pool.released(endpoint.id);
  MC_ASSERT(!parts_.pool.holds(endpoint.id));
  parts_.due(now());  // another connection may wait for them
}

Code RdmaResting::on_frame(RdmaEndpoint& endpoint, uint64_t verb, Reports& out, const char*& why) {
  why = "path_rest out of order";
  if (verb > static_cast<uint64_t>(RestVerb::wake)) return Code::corrupt;
  const bool awake = parts_.awake(endpoint);
  switch (static_cast<RestVerb>(verb)) {
    case RestVerb::ask:
      if (!awake)
        endpoint.socket.push(verb_frame(RestVerb::resting));
      else if (!endpoint.up || endpoint.posted() || now() - endpoint.used < RdmaPool::kIdle)
        endpoint.socket.push(verb_frame(RestVerb::busy));
      else
        rest(endpoint, true, out);
      break;
    case RestVerb::insist:
      if (!awake)
        endpoint.socket.push(verb_frame(RestVerb::resting));
      else
        endpoint.rest.yielding = endpoint.rest.insisted = true;
      break;
    case RestVerb::busy:
      if (parts_.pool.refused(endpoint.id, now())) endpoint.rest.yielding = endpoint.rest.insisted;
      parts_.due(now());
      break;
    case RestVerb::resting:
      for (const auto& rail : endpoint.rails) paths_.peer_end_gone(*rail, rail->machine.epoch(), out);
      rest(endpoint, false, out);
      break;
    case RestVerb::wake:
      if (endpoint.accepted) return Code::corrupt;
      wake(endpoint);
      break;
  }
  return Code::ok;
}

void RdmaResting::take_step(const RdmaPool::Step& step, Reports& out) {
  RdmaEndpoint* endpoint = parts_.find(step.endpoint);
  if (endpoint == nullptr || endpoint->doomed()) return;
  switch (step.kind) {
    case RdmaPool::Step::Kind::grant: return granted(*endpoint);
    case RdmaPool::Step::Kind::ask:
      if (endpoint->posted() || !endpoint->any_in({State::up})) return void(parts_.pool.refused(endpoint->id, now()));
      endpoint->rest.yielding = true;  // no slice is posted until the answer has arrived
      return endpoint->socket.push(verb_frame(RestVerb::ask));
    case RdmaPool::Step::Kind::insist: endpoint->rest.yielding = endpoint->rest.insisting = true; return;
    case RdmaPool::Step::Kind::force: return rest(*endpoint, true, out);
  }
}

void RdmaResting::share(Reports& out) {
  for (auto& [id, endpoint] : parts_.endpoints) {
    rested(*endpoint);
    if (std::exchange(endpoint->rest.wanted, false)) wake(*endpoint);
    if (!endpoint->rest.yielding || endpoint->doomed() || endpoint->posted()) continue;
    if (endpoint->rest.insisted)
      rest(*endpoint, true, out);
    else if (std::exchange(endpoint->rest.insisting, false))
      endpoint->socket.push(verb_frame(RestVerb::insist));
  }
  for (auto steps = parts_.pool.step(now()); !steps.empty(); steps = parts_.pool.step(now()))
    for (const auto& step : steps) take_step(step, out);
  parts_.due(parts_.pool.due());
}

}  // namespace mc::xfer

#include "xfer/peering.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "xfer/auth.h"
#include "xfer/poller.h"
#include "xfer/services.h"

namespace mc::xfer {
namespace {

bool none_up(const Peer& peer) {
  return peer.up_route() == peer.routes.size();
}

}  // namespace

void Peering::publish(const Peer& peer) {
  const size_t route = peer.up_route();
  parts_.directory.publish(peer.id, {.up = peer.up,
                                     .route = route == peer.routes.size() ? 0 : route,
                                     .descriptor = peer.descriptor,
                                     .proven = peer.who.claimed ? InstanceId{} : peer.who.instance});
}

void Peering::emit_up(const Peer& peer) {
  const size_t route = peer.up_route();
  MC_ASSERT_LT(route, peer.routes.size());
  const std::string& why = peer.routes[route].reason;
  std::string text = parts_.transports.entry(route).scheme;
  text += peer.sealed ? ", sealed: " : ": ";
  text += why.empty() ? "dialled by the peer" : why;
  for (size_t i = 0; i < route; ++i)
    text += std::string("; not ") + parts_.transports.entry(i).scheme + ": " + peer.routes[i].reason;
  parts_.events.push({.kind = Event::Kind::peer_up,
                      .peer = peer.id,
                      .claimed = peer.who.claimed,
                      .networked = parts_.transports.entry(route).dials_hosts,
                      .text = std::move(text)});
}

void Peering::emit_lost(const Peer& peer, Code code, bool gone, const std::string& text) {
  parts_.events.push({.kind = Event::Kind::peer_lost,
                      .peer = peer.id,
                      .code = code,
                      .mismatch = peer.failure.mismatch,
                      .no_listener = peer.failure.no_listener,
                      .gone = gone,
                      .text = text});
}

std::string Peering::reasons(const Peer& peer) const {
  std::string text;
  for (size_t i = 0; i < peer.routes.size(); ++i)
    text += (i == 0 ? "" : "; ") + std::string(parts_.transports.entry(i).scheme) + ": " + peer.routes[i].reason;
  return text;
}

/// Finds the transports that reach the peer of that descriptor, and the reasons. Known routes keep their state.
void Peering::learn_routes(Peer& peer) {
  if (peer.who.claimed) return;  // an address that a stranger gives is never dialled
  const Descriptor local = build_descriptor(parts_.services);
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    Route& route = peer.routes[i];
    Reach reach = parts_.transports.entry(i).reach(local, *peer.descriptor);
    // The route is dialled by URI, which needs no descriptor.
    if (!reach.usable && route.usable && !route.uri.empty()) continue;
    route.usable = reach.usable;
    route.uri = std::move(reach.uri);
    route.reason = std::move(reach.reason);
  }
}

void Peering::connect(PeerId id, TimePoint deadline, std::shared_ptr<const Descriptor> descriptor,
                      const std::string& uri) {
  bool fresh;
  Peer& peer = parts_.peers.make(id, parts_.transports.size(), fresh);
  if (descriptor) {
    peer.who.given = true;
    peer.who.ticket = descriptor->ticket;
  }
  if (descriptor && (!peer.descriptor || peer.descriptor->version < descriptor->version)) {
    peer.descriptor = std::move(descriptor);
    peer.who.instance = peer.descriptor->instance;
    peer.who.name = peer.descriptor->name;
    learn_routes(peer);
  } else if (!uri.empty()) {
    for (size_t i = 0; i < peer.routes.size(); ++i) {
      if (!uri.starts_with(std::string(parts_.transports.entry(i).scheme) + "://")) continue;
      peer.routes[i].usable = true;
      peer.routes[i].uri = uri;
      peer.routes[i].reason = "named by the caller";
    }
    if (peer.who.name.empty()) peer.who.name = uri;
  }
  publish(peer);
  if (peer.up) return emit_up(peer);
  // A dial was refused for another reason, such as a wrong secret, and is tried again.
  if (peer.gone && !peer.any_dead()) {
    peer.gone = false;
    if (peer.descriptor) learn_routes(peer);
  }
  if (peer.gone) return emit_lost(peer, Code::peer_lost, true, peer.failure.text);
  if (peer.all_dead()) {
    peer.failure.text = "no transport reaches it: " + reasons(peer);
    return emit_lost(peer, Code::unsupported, false, peer.failure.text);
  }
  peer.connecting = true;
  peer.connect_deadline = deadline;
  for (Route& route : peer.routes) route.next_try = {};
  parts_.peers.set_busy(peer.id);
}

bool Peering::leave(PeerId id, const std::string& why) {
  Peer* peer = parts_.peers.find(id);
  if (peer == nullptr) return false;
  // This step is first: a report of a connection that the peer made may be waiting and must not find the peer.
  parts_.directory.leave(id);
  parts_.peers.set_busy(id);  // the busy mark keeps admit() from removing the peer to make room
  peer->leaving = true;
  peer->gone = true;
  peer->failure.text = why;
  running_.finish_requests_of(id, Code::cancelled, why);
  for (size_t i = 0; i < peer->routes.size(); ++i) {
    const auto up = peer->routes[i].up;
    for (const EndpointId endpoint : up) parts_.transports[i].close(endpoint, Code::cancelled, why, parts_.reports);
    if (peer->routes[i].dialling != EndpointId::none)
      parts_.transports[i].close(peer->routes[i].dialling, Code::cancelled, why, parts_.reports);
  }
  return true;
}

void Peering::forget(PeerId id) {
  Peer* peer = parts_.peers.find(id);
  MC_ASSERT(peer != nullptr && peer->leaving);
  MC_ASSERT(!parts_.lanes.any_of(id));  // the reports of its endpoints' loss freed their slices
  drop_notifies(*peer);
  parts_.directory.forget(id);
  parts_.peers.erase(id);
}

void Peering::dial(Peer& peer, size_t index) {
  Route& route = peer.routes[index];
  MC_ASSERT(route.dialling == EndpointId::none);
  const TimePoint at = now();
  TimePoint deadline = after(at, parts_.options.connect_timeout);
  if (peer.connecting) deadline = std::min(deadline, std::max(peer.connect_deadline, at + 1ms));
  if (peer.dials++ == 0) peer.line = random_id();
  for (size_t i = 0; i < 8; ++i) peer.line.bytes[15 - i] = static_cast<uint8_t>(peer.dials >> (8 * i));
  route.dialling = parts_.transports[index].connect(
      {route.uri, peer.who.instance, peer.line, deadline, peer.who.ticket}, parts_.reports);
  parts_.lanes.add(route.dialling, peer.id, index);
}

void Peering::seek(Peer& peer) {
  const TimePoint at = now();
  if (!peer.notifies.empty()) send_notifies(peer);
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    Route& route = peer.routes[i];
    if (route.queue.idle() || !route.up.empty() || route.dialling != EndpointId::none) continue;
    if (route.may_dial(at)) {
      dial(peer, i);
      continue;
    }
    const bool better = std::any_of(peer.routes.begin(), peer.routes.end(),
                                    [&](const Route& other) { return !other.up.empty() || other.may_dial(at); });
    if (!route.usable || route.dead || better) router_.reassign(peer, i);
  }
  const bool wants = (peer.connecting || !peer.waiting.empty()) && !peer.up;
  const bool dialling = std::any_of(peer.routes.begin(), peer.routes.end(),
                                    [](const Route& route) { return route.dialling != EndpointId::none; });
  if (wants && !dialling) {
    const auto first =
        std::find_if(peer.routes.begin(), peer.routes.end(), [&](const Route& route) { return route.may_dial(at); });
    if (first != peer.routes.end()) dial(peer, static_cast<size_t>(first - peer.routes.begin()));
  }
  if (peer.connecting && !peer.up && peer.connect_deadline <= at) {
    peer.connecting = false;
    emit_lost(peer, Code::timeout, false,
              "not connected by the deadline: " + (peer.failure.text.empty() ? "no answer yet" : peer.failure.text));
  }
  if (peer.idle()) parts_.peers.set_idle(peer.id);
}

TimePoint Peering::due(TimePoint at) {
  TimePoint next = kNever;
  // Only future times count. Work that is due now is done by seek() in this round, or waits for a report.
  const auto consider = [&](TimePoint when) {
    if (when > at) next = std::min(next, when);
  };
  for (const PeerId id : parts_.peers.busy()) {
    const Peer* peer = parts_.peers.find(id);
    MC_ASSERT(peer != nullptr);
    if (peer->connecting) consider(peer->connect_deadline);
    for (const Route& route : peer->routes)
      if (route.usable && !route.dead && route.dialling == EndpointId::none) consider(route.next_try);
  }
  return next;
}

/// The peer of an accepted connection; none when the directory is full. A connection that proved nothing gets a peer of
/// its own, whatever instance it claims.
PeerId Peering::admit(const EndpointEvent& event) {
  const InstanceId proven = event.proven ? event.instance : InstanceId{};
  PeerId id = parts_.directory.admit(proven);
  if (id == PeerId::none) {
    const PeerId spare = parts_.peers.spare();
    if (spare == PeerId::none) return spare;
    parts_.directory.forget(spare);
    parts_.peers.erase(spare);
    id = parts_.directory.admit(proven);
  }
  return id;
}

void Peering::on_up(EndpointEvent& event) {
  Peer* peer = nullptr;
  size_t index = 0;
  if (event.accepted) {
    index = parts_.transports.route_of_row(event.row);
    const PeerId id = admit(event);
    parts_.lanes.add(event.endpoint, id, index);
    if (id == PeerId::none) {
      parts_.tally.failure("accept: too many peers");
      return parts_.transports[index].close(event.endpoint, Code::no_space, "too many peers", parts_.reports);
    }
    bool fresh;
    peer = &parts_.peers.make(id, parts_.transports.size(), fresh);
    if (fresh) peer->who.stranger = !event.proven;
  } else {
    const EndpointState& endpoint = parts_.lanes.at(event.endpoint);
    index = endpoint.route;
    peer = parts_.peers.find(endpoint.peer);
    if (peer == nullptr || peer->leaving)  // the peer was removed during the dial; `lost` follows
      return parts_.transports[index].close(event.endpoint, Code::cancelled, "no longer wanted", parts_.reports);
    peer->routes[index].dialling = EndpointId::none;
  }
  parts_.lanes.up(event.endpoint, static_cast<size_t>(parts_.transports[index].lanes(event.endpoint)));
  if (event.proven) peer->who.claimed = false;
  // The connection was accepted, or dialled at a bare address.
  else if (peer->who.stranger || (!peer->who.given && peer->who.instance.is_zero()))
    peer->who.claimed = true;
  peer->who.instance = event.instance;
  peer->who.name = event.text;
  peer->gone = false;
  if (!peer->descriptor || peer->descriptor->version <= event.descriptor->version) peer->descriptor = event.descriptor;
  learn_routes(*peer);
  Route& route = peer->routes[index];
  route.up.push_back(event.endpoint);
  route.backoff = {};
  route.dead = false;
  const bool first = !std::exchange(peer->up, true);
  peer->connecting = false;
  if (peer->notifier == EndpointId::none) peer->notifier = event.endpoint;
  publish(*peer);
  parts_.directory.keep_mappings(peer->id, event.endpoint, std::move(event.mappings));
  parts_.peers.set_busy(peer->id);
  if (first) {
    peer->sealed = event.sealed;
    parts_.tally.add(Count::peers_up);
    emit_up(*peer);
  }
  for (const QueuedRequest& request : std::exchange(peer->waiting, {})) router_.assign(request);
}

PeerId Peering::on_lost(const EndpointEvent& event) {
  const EndpointState* found = parts_.lanes.find(event.endpoint);
  if (found == nullptr) return PeerId::none;
  const EndpointState endpoint = *found;
  dispatcher_.endpoint_died(event.endpoint, event.code, event.text);  // uses the endpoint to find the route
  parts_.lanes.erase(event.endpoint);
  Peer* peer = parts_.peers.find(endpoint.peer);
  if (peer == nullptr) return PeerId::none;
  Route& route = peer->routes[endpoint.route];
  peer->failure.text = event.text;
  peer->failure.mismatch = event.mismatch;
  peer->failure.no_listener = event.no_listener;
  if (event.gone) route.dead = true;
  parts_.peers.set_busy(peer->id);
  if (!endpoint.up) {
    attempt_failed(*peer, endpoint.route, event);
    return PeerId::none;
  }
  std::erase(route.up, event.endpoint);
  parts_.directory.drop_mappings(peer->id, event.endpoint);
  const bool last = none_up(*peer);
  if (last || peer->notifier == event.endpoint) down(*peer, event.code, event.gone, event.text);
  return last && peer->who.stranger ? peer->id : PeerId::none;
}

/// Called when a dial ended before the connection was up.
void Peering::attempt_failed(Peer& peer, size_t index, const EndpointEvent& event) {
  Route& route = peer.routes[index];
  route.dialling = EndpointId::none;
  route.backoff = std::clamp(route.backoff * 2, parts_.options.backoff_min, parts_.options.backoff_max);
  // Random, so that peers which lost one node do not return in step.
  const double jitter = 0.5 + parts_.services.rng.uniform();
  route.next_try = now() + Duration(static_cast<int64_t>(static_cast<double>(route.backoff.count()) * jitter));
  // A wrong secret or address stays wrong.
  if (event.code == Code::invalid || event.code == Code::unsupported) route.usable = false;
  if (!peer.up && peer.all_dead()) gone(peer, event.text);
}

/// Called when the connection that carried the peer's notifies is lost, or the last connection. Notifies may be lost,
/// so callers get an event.
void Peering::down(Peer& peer, Code code, bool is_gone, const std::string& text) {
  parts_.tally.add(Count::peers_lost);
  drop_notifies(peer);
  const size_t other = peer.up_route();
  peer.up = other < peer.routes.size();
  peer.notifier = peer.up ? peer.routes[other].up.front() : EndpointId::none;
  publish(peer);
  emit_lost(peer, code, is_gone && !peer.up, text);
  if (peer.up) {
    parts_.tally.add(Count::peers_up);
    emit_up(peer);
  } else if (is_gone) {
    // the proof of one transport that the process is gone holds for all of them
    peer.gone = true;
    gone(peer, text);
  } else if (code != Code::cancelled && !peer.gone && !peer.all_dead()) {
    // dials at once to learn whether the process still lives, so that callers get the event without waiting for work
    peer.connecting = true;
    peer.connect_deadline = after(now(), parts_.options.reconnect_timeout);
    for (Route& route : peer.routes) route.next_try = {};
  }
}

/// Called when no transport reaches the peer any more.
void Peering::gone(Peer& peer, const std::string& text) {
  const bool told = std::exchange(peer.gone, true);
  peer.failure.text = text;
  peer.connecting = false;
  const bool dead = peer.any_dead();
  for (const QueuedRequest& request : std::exchange(peer.waiting, {})) router_.assign(request);
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    if (peer.routes[i].dialling != EndpointId::none)
      parts_.transports[i].close(peer.routes[i].dialling, Code::peer_lost, text, parts_.reports);
    router_.reassign(peer, i);
  }
  if (told) return;
  publish(peer);
  emit_lost(peer, dead ? Code::peer_lost : Code::invalid, dead, text);
}

void Peering::on_descriptor(EndpointEvent& event) {
  const EndpointState* endpoint = parts_.lanes.find(event.endpoint);
  Peer* peer = endpoint == nullptr ? nullptr : parts_.peers.find(endpoint->peer);
  if (peer == nullptr) return;
  parts_.directory.keep_mappings(peer->id, event.endpoint, std::move(event.mappings));
  if (peer->descriptor && peer->descriptor->version >= event.descriptor->version) return;
  peer->descriptor = event.descriptor;
  learn_routes(*peer);
  parts_.directory.keep_offered(peer->id, *event.descriptor);
  publish(*peer);
  parts_.events.push({.kind = Event::Kind::peer_changed, .peer = peer->id});
}

void Peering::notify(PeerId id, std::vector<std::byte>&& bytes) {
  Peer* peer = parts_.peers.find(id);
  if (peer == nullptr || !peer->up) return parts_.directory.notifies_gone(id, 1);
  peer->notifies.push_back(std::move(bytes));
  send_notifies(*peer);
}

void Peering::send_notifies(Peer& peer) {
  size_t sent = 0;
  while (!peer.notifies.empty() && peer.notifier != EndpointId::none) {
    Transport& transport = parts_.transports[parts_.lanes.at(peer.notifier).route];
    // the transport is full, or `lost` is on its way and drops the rest
    if (transport.notify(peer.notifier, peer.notifies.front(), parts_.reports) != Code::ok) break;
    peer.notifies.pop_front();
    ++sent;
  }
  if (!peer.notifies.empty()) parts_.peers.set_busy(peer.id);
  if (sent == 0) return;
  parts_.tally.add(Count::notifies_sent, sent);
  parts_.directory.notifies_gone(peer.id, sent);
}

void Peering::drop_notifies(Peer& peer) {
  const size_t dropped = peer.notifies.size();
  peer.notifies.clear();
  if (dropped > 0) parts_.directory.notifies_gone(peer.id, dropped);
}

}  // namespace mc::xfer

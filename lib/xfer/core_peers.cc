// Peers: dialling their routes, connections up and lost, descriptors, notifies.
#include <algorithm>

#include "base/assert.h"
#include "xfer/auth.h"
#include "xfer/core.h"

namespace mc::xfer {

Peer* Engine::Core::find_peer(PeerId id) {
  const auto at = peers_.find(id);
  return at == peers_.end() ? nullptr : &at->second;
}

void Engine::Core::publish_face(Peer& peer) {
  size_t transport = 0;
  for (size_t i = peer.routes.size(); i-- > 0;)
    if (!peer.routes[i].up.empty()) transport = i;
  std::lock_guard lock(mutex_);
  PeerFace& face = faces_[peer.id];
  face.up = peer.up;
  face.transport = transport;
  face.descriptor = peer.descriptor;
  if (!peer.instance.is_zero() && !peer.claimed && !face.leaving) known_.emplace(peer.instance, peer.id);
}

/// Which transports reach the peer its descriptor describes, and why. Keeps the state of known routes.
void Engine::Core::learn_routes(Peer& peer) {
  const Descriptor local = build_descriptor(home_);
  peer.routes.resize(active_.size());
  if (peer.claimed) return;  // nobody dials where a stranger says
  for (size_t i = 0; i < active_.size(); ++i) {
    Route& route = peer.routes[i];
    Reach reach = active_[i].entry->reach(local, *peer.descriptor);
    if (!reach.usable && route.usable && !route.uri.empty()) continue;  // dialled by URI: it works, whatever it says
    route.usable = reach.usable;
    route.uri = std::move(reach.uri);
    route.reason = std::move(reach.reason);
  }
}

void Engine::Core::on_connect(Command& command) {
  auto [at, fresh] = peers_.try_emplace(command.peer);
  Peer& peer = at->second;
  if (fresh) {
    peer.id = command.peer;
    peer.routes.resize(active_.size());
  }
  if (command.descriptor) {
    peer.given = true;
    peer.ticket = command.descriptor->ticket;
  }
  if (command.descriptor && (!peer.descriptor || peer.descriptor->version < command.descriptor->version)) {
    peer.descriptor = command.descriptor;
    peer.instance = command.descriptor->instance;
    peer.name = command.descriptor->name;
    learn_routes(peer);
  } else if (!command.uri.empty()) {
    for (size_t i = 0; i < active_.size(); ++i) {
      if (!command.uri.starts_with(std::string(active_[i].entry->scheme) + "://")) continue;
      peer.routes[i].usable = true;
      peer.routes[i].uri = command.uri;
      peer.routes[i].reason = "named by the caller";
    }
    if (peer.name.empty()) peer.name = command.uri;
  }
  publish_face(peer);
  if (peer.up) {
    size_t route = 0;
    while (peer.routes[route].up.empty()) ++route;
    return emit({.kind = Event::Kind::peer_up, .peer = peer.id, .claimed = peer.claimed, .text = up_text(peer, route)});
  }
  const bool dead = std::any_of(peer.routes.begin(), peer.routes.end(), [](const Route& r) { return r.dead; });
  if (peer.gone && !dead) {  // refused for another reason, a wrong secret say: asked again, tried again
    peer.gone = false;
    if (peer.descriptor) learn_routes(peer);
  }
  if (peer.gone)
    return emit({.kind = Event::Kind::peer_lost,
                 .peer = peer.id,
                 .code = Code::peer_lost,
                 .gone = true,
                 .text = peer.last_error});
  if (all_dead(peer)) {
    peer.last_error = "no transport reaches it: " + reasons(peer);
    return emit({.kind = Event::Kind::peer_lost, .peer = peer.id, .code = Code::unsupported, .text = peer.last_error});
  }
  peer.connecting = true;
  peer.connect_deadline = command.deadline;
  for (Route& route : peer.routes) route.next_try = {};
  busy_.insert(peer.id);
}

/// Under mutex_: from now on a connection of that process belongs to another peer.
void Engine::Core::disown(PeerId id) {
  std::erase_if(known_, [&](const auto& entry) { return entry.second == id; });
}

void Engine::Core::on_disconnect(PeerId id, std::string_view why) {
  Peer* peer = find_peer(id);
  if (peer == nullptr) return;
  {
    // Before anything else: news of a connection that this peer made may wait in the outbox, and must not find it.
    std::lock_guard lock(mutex_);
    faces_[id].leaving = true;
    disown(id);
  }
  busy_.insert(id);  // admit() forgets idle peers to make room
  peer->leaving = true;
  peer->gone = true;
  peer->last_error = why;
  for (auto& [key, batch] : running_)
    for (uint32_t i = 0; i < batch->requests.size(); ++i)
      if (batch->requests[i].peer == id && !batch->states[i].finished)
        finish_request(*batch, i, Code::cancelled, std::string(why));
  for (size_t i = 0; i < peer->routes.size(); ++i) {
    const auto up = peer->routes[i].up;
    for (const EndpointId endpoint : up) transport_of(i).close(endpoint, Code::cancelled, why, outbox_);
    if (peer->routes[i].dialling != EndpointId::none)
      transport_of(i).close(peer->routes[i].dialling, Code::cancelled, why, outbox_);
  }
  while (!outbox_.empty()) handle_outbox();  // the endpoints' `lost` frees their slices before the peer is forgotten
  peer = find_peer(id);
  drop_notifies(*peer);
  MC_ASSERT(std::none_of(endpoints_.begin(), endpoints_.end(), [&](const auto& e) { return e.second.peer == id; }));
  std::lock_guard lock(mutex_);
  faces_.erase(id);
  busy_.erase(id);
  peers_.erase(id);
}

void Engine::Core::dial(Peer& peer, size_t index) {
  Route& route = peer.routes[index];
  const TimePoint now = SystemClock::instance().now();
  TimePoint deadline = after(now, options_.connect_timeout);
  if (peer.connecting) deadline = std::min(deadline, std::max(peer.connect_deadline, now + 1ms));
  if (peer.dials++ == 0) peer.line = random_id();
  for (size_t i = 0; i < 8; ++i) peer.line.bytes[15 - i] = static_cast<uint8_t>(peer.dials >> (8 * i));
  const EndpointId endpoint =
      transport_of(index).connect({route.uri, peer.instance, peer.line, deadline, peer.ticket}, outbox_);
  route.dialling = endpoint;
  endpoints_[endpoint] = {.peer = peer.id, .route = index};
}

/// Sees to it that a peer with something to do has, or is getting, a connection.
void Engine::Core::seek(Peer& peer) {
  const PeerId id = peer.id;
  const TimePoint now = SystemClock::instance().now();
  if (!peer.notifies.empty()) send_notifies(peer);
  const auto may_dial = [&](const Route& route) {
    return route.usable && !route.dead && route.dialling == EndpointId::none && route.next_try <= now;
  };
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    Route& route = peer.routes[i];
    if (route.idle() || !route.up.empty() || route.dialling != EndpointId::none) continue;
    if (may_dial(route)) {
      dial(peer, i);
      continue;
    }
    const bool better = std::any_of(peer.routes.begin(), peer.routes.end(),
                                    [&](const Route& other) { return !other.up.empty() || may_dial(other); });
    if (!route.usable || route.dead || better) reassign(peer, i);
  }
  const bool wants = (peer.connecting || !peer.waiting.empty()) && !peer.up;
  const bool dialling = std::any_of(peer.routes.begin(), peer.routes.end(),
                                    [](const Route& route) { return route.dialling != EndpointId::none; });
  if (wants && !dialling) {
    for (size_t i = 0; i < peer.routes.size(); ++i) {
      if (!may_dial(peer.routes[i])) continue;
      dial(peer, i);
      break;
    }
  }
  if (peer.connecting && !peer.up && peer.connect_deadline <= now) {
    peer.connecting = false;
    emit({.kind = Event::Kind::peer_lost,
          .peer = id,
          .code = Code::timeout,
          .text = "not connected by the deadline: " + (peer.last_error.empty() ? "no answer yet" : peer.last_error)});
  }
  bool idle = !peer.connecting && peer.waiting.empty() && peer.notifies.empty();
  for (const Route& route : peer.routes) idle &= route.idle();
  if (idle) busy_.erase(id);
}

bool Engine::Core::all_dead(const Peer& peer) const {
  return std::all_of(peer.routes.begin(), peer.routes.end(),
                     [](const Route& route) { return !route.usable || route.dead; });
}

std::string Engine::Core::reasons(const Peer& peer) const {
  std::string text;
  for (size_t i = 0; i < peer.routes.size(); ++i)
    text += (i == 0 ? "" : "; ") + std::string(active_[i].entry->scheme) + ": " + peer.routes[i].reason;
  return text;
}

std::string Engine::Core::up_text(const Peer& peer, size_t route) const {
  std::string text = active_[route].entry->scheme;
  text += ": " + (peer.routes[route].reason.empty() ? std::string("dialled by the peer") : peer.routes[route].reason);
  for (size_t i = 0; i < route; ++i)
    text += std::string("; not ") + active_[i].entry->scheme + ": " + peer.routes[i].reason;
  return text;
}

/// The peer of an accepted connection; null when the table is full. One that proved nothing is a peer of its own,
/// whatever instance it says it is.
Peer* Engine::Core::admit(const News& news) {
  PeerId id{};
  {
    std::lock_guard lock(mutex_);
    const auto known = news.proven ? known_.find(news.instance) : known_.end();
    if (known != known_.end()) {
      id = known->second;
    } else {
      if (faces_.size() >= options_.peers_max) {
        // make room: the oldest peer that is neither connected nor wanted
        for (auto& [old, peer] : peers_) {
          if (peer.up || busy_.contains(old)) continue;
          id = old;
          break;
        }
        if (id == PeerId::none) return nullptr;
        disown(id);
        faces_.erase(id);
        peers_.erase(id);
      }
      id = PeerId{++last_peer_};
      if (news.proven) known_.emplace(news.instance, id);
    }
  }
  const auto [at, fresh] = peers_.try_emplace(id);
  at->second.id = id;
  if (fresh) at->second.stranger = !news.proven;
  return &at->second;
}

void Engine::Core::on_up(News& news) {
  Peer* peer = nullptr;
  size_t route_index = 0;
  if (news.accepted) {
    while (active_[route_index].row != news.row) ++route_index;
    peer = admit(news);
    if (peer == nullptr) {
      tally_.failure("accept: too many peers");
      endpoints_[news.endpoint] = {.peer = PeerId::none, .route = route_index};
      transport_of(route_index).close(news.endpoint, Code::no_space, "too many peers", outbox_);
      return;
    }
    endpoints_[news.endpoint] = {.peer = peer->id, .route = route_index};
  } else {
    const auto at = endpoints_.find(news.endpoint);
    MC_ASSERT(at != endpoints_.end());
    route_index = at->second.route;
    peer = find_peer(at->second.peer);
    if (peer == nullptr || peer->leaving)  // forgotten while it was dialled: `lost` follows
      return transport_of(route_index).close(news.endpoint, Code::cancelled, "no longer wanted", outbox_);
    peer->routes[route_index].dialling = EndpointId::none;
  }
  EndpointState& endpoint = endpoints_.at(news.endpoint);
  endpoint.up = true;
  endpoint.lanes.resize(static_cast<size_t>(transport_of(route_index).lanes(news.endpoint)));
  if (news.proven)
    peer->claimed = false;
  else if (peer->stranger || (!peer->given && peer->instance.is_zero()))  // accepted, or dialled at a bare address
    peer->claimed = true;
  peer->instance = news.instance;
  peer->name = news.text;
  peer->gone = false;
  if (!peer->descriptor || peer->descriptor->version <= news.descriptor->version) peer->descriptor = news.descriptor;
  learn_routes(*peer);
  Route& route = peer->routes[route_index];
  route.up.push_back(news.endpoint);
  route.backoff = {};
  route.dead = false;
  const bool first = !peer->up;
  peer->up = true;
  peer->connecting = false;
  if (peer->voice == EndpointId::none) peer->voice = news.endpoint;
  publish_face(*peer);
  keep_arenas(*peer, news);
  busy_.insert(peer->id);
  if (first) {
    tally_.add(Count::peers_up);
    emit({.kind = Event::Kind::peer_up,
          .peer = peer->id,
          .claimed = peer->claimed,
          .text = up_text(*peer, route_index)});
  }
  for (const Work& work : std::exchange(peer->waiting, {})) assign(*work.batch, work.request);
}

void Engine::Core::on_lost(News& news) {
  const auto at = endpoints_.find(news.endpoint);
  if (at == endpoints_.end()) return;
  const EndpointState endpoint = at->second;
  endpoint_died(news.endpoint, news.code, news.text);  // finds the route through endpoints_
  endpoints_.erase(news.endpoint);
  Peer* peer = find_peer(endpoint.peer);
  if (peer == nullptr) return;
  Route& route = peer->routes[endpoint.route];
  peer->last_error = news.text;
  if (news.gone) route.dead = true;
  busy_.insert(peer->id);
  if (!endpoint.up) {
    route.dialling = EndpointId::none;
    route.backoff = std::clamp(route.backoff * 2, options_.backoff_min, options_.backoff_max);
    const double jitter = 0.5 + home_.rng.uniform();  // peers that lost the same node must not return in step
    route.next_try = SystemClock::instance().now() +
                     Duration(static_cast<int64_t>(static_cast<double>(route.backoff.count()) * jitter));
    // a wrong secret or address does not heal by waiting
    if (news.code == Code::invalid || news.code == Code::unsupported) route.usable = false;
    if (!peer->up && all_dead(*peer)) peer_gone(*peer, news.text);
    return;
  }
  std::erase(route.up, news.endpoint);
  {
    std::lock_guard lock(mutex_);
    const auto face = faces_.find(peer->id);
    if (face != faces_.end())
      std::erase_if(face->second.arenas, [&](const auto& arena) { return arena.second.endpoint == news.endpoint; });
  }
  const bool none_left =
      std::all_of(peer->routes.begin(), peer->routes.end(), [](const Route& r) { return r.up.empty(); });
  if (none_left || peer->voice == news.endpoint) peer_down(*peer, news.code, news.gone, news.text);
  if (none_left && peer->stranger) push({.kind = Command::Kind::disconnect, .peer = peer->id});
}

/// The connection that carried the peer's notifies died, or the last one: some may be lost, say so.
void Engine::Core::peer_down(Peer& peer, Code code, bool gone, const std::string& text) {
  peer.up = false;
  peer.voice = EndpointId::none;
  tally_.add(Count::peers_lost);
  drop_notifies(peer);
  for (size_t i = 0; i < peer.routes.size() && !peer.up; ++i) {
    if (peer.routes[i].up.empty()) continue;
    peer.up = true;
    peer.voice = peer.routes[i].up.front();
  }
  publish_face(peer);
  emit({.kind = Event::Kind::peer_lost, .peer = peer.id, .code = code, .gone = gone && !peer.up, .text = text});
  if (peer.up) {
    size_t route = 0;
    while (peer.routes[route].up.empty()) ++route;
    tally_.add(Count::peers_up);
    emit({.kind = Event::Kind::peer_up, .peer = peer.id, .claimed = peer.claimed, .text = up_text(peer, route)});
  } else if (gone) {
    // one transport's word for "that process is gone" holds for all of them
    peer.gone = true;
    peer_gone(peer, text);
  } else if (code != Code::cancelled && !peer.gone && !all_dead(peer)) {
    // ask at once whether the process still lives: callers learn of a death without waiting for work
    peer.connecting = true;
    peer.connect_deadline = after(SystemClock::instance().now(), options_.reconnect_timeout);
    for (Route& route : peer.routes) route.next_try = {};
  }
}

void Engine::Core::peer_gone(Peer& peer, const std::string& text) {
  const bool told = std::exchange(peer.gone, true);
  peer.last_error = text;
  peer.connecting = false;
  const PeerId id = peer.id;
  const bool dead = std::any_of(peer.routes.begin(), peer.routes.end(), [](const Route& route) { return route.dead; });
  for (const Work& work : std::exchange(peer.waiting, {})) assign(*work.batch, work.request);
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    if (peer.routes[i].dialling != EndpointId::none)
      transport_of(i).close(peer.routes[i].dialling, Code::peer_lost, text, outbox_);
    reassign(peer, i);
  }
  if (told) return;
  publish_face(peer);
  emit({.kind = Event::Kind::peer_lost,
        .peer = id,
        .code = dead ? Code::peer_lost : Code::invalid,
        .gone = dead,
        .text = text});
}

void Engine::Core::on_descriptor(News& news) {
  const auto at = endpoints_.find(news.endpoint);
  if (at == endpoints_.end()) return;
  Peer* peer = find_peer(at->second.peer);
  if (peer == nullptr) return;
  keep_arenas(*peer, news);
  if (peer->descriptor && peer->descriptor->version >= news.descriptor->version) return;
  peer->descriptor = news.descriptor;
  learn_routes(*peer);
  {
    std::lock_guard lock(mutex_);
    auto& arenas = faces_[peer->id].arenas;
    std::erase_if(arenas, [&](const auto& arena) { return news.descriptor->find(arena.first) == nullptr; });
  }
  publish_face(*peer);
  emit({.kind = Event::Kind::peer_changed, .peer = peer->id});
}

void Engine::Core::keep_arenas(Peer& peer, News& news) {
  std::lock_guard lock(mutex_);
  auto& arenas = faces_[peer.id].arenas;
  for (Arena& arena : news.arenas) arenas[arena.buffer] = {news.endpoint, std::move(arena.mapping)};
}

void Engine::Core::on_notify(PeerId id, std::vector<std::byte>&& bytes) {
  Peer* peer = find_peer(id);
  if (peer == nullptr || !peer->up) {
    std::lock_guard lock(mutex_);
    const auto face = faces_.find(id);
    if (face != faces_.end()) --face->second.notifies;
    return;
  }
  peer->notifies.push_back(std::move(bytes));
  send_notifies(*peer);
}

void Engine::Core::send_notifies(Peer& peer) {
  size_t sent = 0;
  while (!peer.notifies.empty() && peer.voice != EndpointId::none) {
    Transport& transport = transport_of(endpoints_.at(peer.voice).route);
    const Code code = transport.notify(peer.voice, peer.notifies.front(), outbox_);
    if (code == Code::busy) break;
    if (code != Code::ok) break;  // `lost` is on its way and drops the rest
    peer.notifies.pop_front();
    ++sent;
  }
  if (!peer.notifies.empty()) busy_.insert(peer.id);
  if (sent == 0) return;
  tally_.add(Count::notifies_sent, sent);
  std::lock_guard lock(mutex_);
  faces_[peer.id].notifies -= sent;
}

void Engine::Core::drop_notifies(Peer& peer) {
  const size_t dropped = peer.notifies.size();
  peer.notifies.clear();
  if (dropped == 0) return;
  std::lock_guard lock(mutex_);
  const auto face = faces_.find(peer.id);
  if (face != faces_.end()) face->second.notifies -= dropped;
}

}  // namespace mc::xfer

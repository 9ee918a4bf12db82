// What comes from the network. Every frame is hostile until its envelope decodes; what does not is
// counted, logged once for each peer, and dropped.
#include <algorithm>

#include "base/errors.h"
#include "base/log.h"
#include "base/wrong_key.h"
#include "ctl/hub_loop.h"

namespace mc::ctl {
namespace {

constexpr int kSilentRefusals = 3;

bool power_of_two(uint64_t n) {
  return (n & (n - 1)) == 0;
}

std::string text_of(const Bytes& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace

std::optional<wire::Envelope> Loop::decode(const Bytes& frame, Link* link, std::string_view address,
                                           bool& wrong_version) {
  auto envelope = wire::decode_envelope(frame);
  if (envelope) return std::move(*envelope);
  wrong_version = envelope.error().mc == err::kProtocolVersion;
  ++(wrong_version ? stats_.wrong_version : stats_.garbage);
  if (link != nullptr && link->outgoing && !link->up) report(*link, true, envelope.error());
  // One line a peer; strangers without a link share a line at each doubling of the count.
  const uint64_t count = stats_.garbage + stats_.wrong_version;
  if (link ? !link->garbage_logged : power_of_two(count))
    log_warn("control message dropped", {{"from", address}, {"why", one_line(envelope.error())}, {"count", count}});
  if (link) link->garbage_logged = true;
  return std::nullopt;
}

void Loop::on_dealer(Link& link, SocketMessage message) {
  bool wrong_version = false;
  if (message.frame_count != 2) {
    message.frames.resize(1);
    message.frames[0].clear();  // decodes as garbage, which counts and logs it
  }
  auto envelope = decode(message.frames[0], &link, link.address, wrong_version);
  if (!envelope) return;
  stats_.received_bytes += message.frames[0].size() + message.frames[1].size();
  if (hear(link, *envelope)) deliver(link, std::move(*envelope), std::move(message.frames[1]));
}

void Loop::on_router(size_t router, SocketMessage message) {
  RouteKey route{router, std::move(message.frames[0])};
  // Until its address is bound again a router still has the old keys: it takes nothing.
  if (retired_.contains(route) || unbound_.contains(router)) return;
  const auto known = routes_.find(route);
  Link* link = known == routes_.end() ? nullptr : &links_.at(known->second);
  if (message.frame_count != 3) message.frames = {{}, {}, {}};
  bool wrong_version = false;
  auto envelope = decode(message.frames[1], link, message.peer_address, wrong_version);
  if (!envelope) {
    if (!wrong_version) return;
    // The other side learns our version from any envelope of ours, and refuses by itself.
    const Bytes ours = wire::encode({.type = std::string(kPing),
                                     .from = shared_.name_now(),
                                     .instance = options_.instance,
                                     .epoch = options_.epoch},
                                    options_.version);
    const std::span<const uint8_t> frames[] = {route.second, ours, {}};
    routers_[router].send(frames);
    return;
  }
  link = incoming(std::move(route), *envelope, message);
  if (link == nullptr) return;
  stats_.received_bytes += message.frames[1].size() + message.frames[2].size();
  if (hear(*link, *envelope)) deliver(*link, std::move(*envelope), std::move(message.frames[2]));
}

/// The link of the instance that speaks, made when it is new. An instance speaks by one connection: a
/// newer one ends the link of the older, whose last words, if any, come too late. Null: not to be heard.
Loop::Link* Loop::incoming(RouteKey route, const wire::Envelope& envelope, const SocketMessage& message) {
  const auto known = routes_.find(route);
  if (known != routes_.end()) {
    Link& link = links_.at(known->second);
    if (link.instance == envelope.instance) return &link;
    // No process becomes another, so this is not one of ours. By turns, every message would make a loss and a new
    // link; so the connection is over, and only a new one is heard.
    retire(link.route);
    lose(link, "its connection now speaks for another instance");
    ++stats_.garbage;
    return nullptr;
  }
  for (auto& [id, link] : links_) {
    if (link.outgoing || link.gone || link.instance != envelope.instance || link.route.first != route.first) continue;
    retire(link.route);
    lose(link, "connected anew");  // what we sent by the old connection may not have arrived
    break;
  }
  if (routes_.size() >= kIncomingMax) {
    ++stats_.garbage;
    return nullptr;
  }
  const LinkId id = shared_.next_link.fetch_add(1, std::memory_order_relaxed);  // a plain counter
  Link& link = links_[id];
  link.id = id;
  link.instance = envelope.instance;
  link.fd = message.fd;
  const Uri& listen = options_.listen[route.first];
  link.address = message.peer_address.empty() ? listen.text() : listen.scheme + " " + message.peer_address;
  routes_[route] = id;
  link.route = std::move(route);
  return &link;
}

/// False: what was heard does not count. Another instance is another connection, so one that begins to
/// speak for another is over; the next connection brings that one.
bool Loop::hear(Link& link, const wire::Envelope& envelope) {
  if (link.up && link.instance != envelope.instance) {
    lose(link, "restarted as another instance");
    return false;
  }
  link.heard = SystemClock::instance().now();
  link.broken_at = kNever;
  link.name = envelope.from;
  if (link.up) return true;
  link.up = true;
  link.since = link.heard;
  link.connected = true;
  link.reported = 0;
  link.garbage_logged = false;
  link.instance = envelope.instance;
  link.epoch = envelope.epoch;
  ++stats_.links_up;
  emit(LinkUp{link.id, link.outgoing, link.name, link.instance, link.epoch, link.address});
  if (!link.outgoing) ping(link);  // the other side is waiting to hear us
  flush(link);
  return link.up;
}

void Loop::deliver(Link& link, wire::Envelope envelope, Bytes body) {
  ++stats_.received;
  if (!envelope.to.is_zero() && envelope.to != options_.instance) {
    ++stats_.wrong_instance;
    return;
  }
  if (envelope.type == kPing) return;
  if (is_request(envelope.re)) {
    const auto request = requests_.find(envelope.re);
    if (request == requests_.end() || request->second.link != link.id) return;  // too late, or not asked
    requests_.erase(request);
  }
  Received received{link.id, std::move(envelope), std::move(body), link.heard, kNever};
  if (received.envelope.deadline) received.deadline = after(received.arrived, *received.envelope.deadline);
  emit(std::move(received));
}

void Loop::on_router_event(size_t router, const SocketEvent& event) {
  if (event.kind == SocketEvent::Kind::handshake_failed) {
    if (power_of_two(++stats_.handshakes_refused))
      log_warn("control handshake failed",
               {{"listen", routers_[router].bound()}, {"why", event.text}, {"count", stats_.handshakes_refused}});
  } else if (event.kind == SocketEvent::Kind::disconnected) {
    // Descriptors are reused, so this is a suspicion: a sign of life within the grace clears it.
    for (auto& [id, link] : links_)
      if (!link.outgoing && link.route.first == router && link.fd == event.fd && link.up)
        link.broken_at = SystemClock::instance().now();
  }
}

void Loop::on_dealer_event(Link& link, const SocketEvent& event) {
  switch (event.kind) {
    case SocketEvent::Kind::handshake_done:
      link.connected = true;
      link.handshake_failures = 0;
      link.since = SystemClock::instance().now();
      ping(link);
      break;
    case SocketEvent::Kind::handshake_failed: {
      if (link.reopen_at == kNever) reopen_later(link);
      const bool keyed = keys_ && link.uri.scheme == "tcp";
      // A server that cannot read our greeting hangs up without a word. With keys that means the key,
      // unless the server was just ending: so it takes a few of them.
      if (event.refused || (keyed && ++link.handshake_failures >= kSilentRefusals))
        report(link, true,
               wrong_key("cannot handshake with " + link.address + ": key refused or not CURVE (" + event.text + ")"));
      break;
    }
    case SocketEvent::Kind::disconnected:
      // Its last words first. ZeroMQ would connect again by itself, and nobody would learn what was lost.
      while (link.up && link.dealer && outbox_.empty()) {
        auto message = link.dealer->receive();
        if (!message) break;
        on_dealer(link, std::move(*message));
      }
      if (link.up)
        lose(link, "connection closed");
      else if (link.reopen_at == kNever)
        reopen_later(link);
      break;
    case SocketEvent::Kind::retrying: link.connected = false; break;
    case SocketEvent::Kind::listening: break;
  }
}

void Loop::on_zap(SocketMessage message) {
  // RFC 27: version, request id, domain, address, identity, mechanism, credentials.
  const auto& f = message.frames;
  if (message.frame_count < 2) return;
  bool allowed = message.frame_count == 7 && text_of(f[0]) == "1.0" && text_of(f[5]) == "CURVE" && f[6].size() == 32;
  allowed = allowed && keys_ && z85_text(f[6]) == keys_->client_public;
  auto view = [](std::string_view text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  const std::span<const uint8_t> reply[] = {
      f[0], f[1], view(allowed ? "200" : "400"), view(allowed ? "OK" : "unknown key"), view(allowed ? "cluster" : ""),
      {}};
  zap_->send(reply);
}

}  // namespace mc::ctl

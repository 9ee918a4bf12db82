#include "ctl/hub_links.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "product/wrong_key.h"

namespace mc::ctl {
namespace {

constexpr size_t kRetiredMax = 1024;   // replaced connections that are remembered
constexpr size_t kIncomingMax = 4096;  // links from outside; more are dropped as garbage
constexpr int kSilentRefusals = 3;     // hang-ups during the handshake that count as a wrong key
constexpr Duration kFirstWordRetry = 5ms;
constexpr Duration kFullPipeRecheck = 5ms;      // pause while a router's connection is full
constexpr uint64_t kLastNumber = ~uint64_t{0};  // of a message that ends the link at the other side

/// The other end of a connection from outside, as errors name it. libzmq calls the peer of an ipc socket
/// "localhost:UID:GID:PID".
std::string peer_text(const Uri& listen, const std::string& peer) {
  if (peer.empty()) return listen.text();
  if (listen.scheme == "ipc") return "process " + peer.substr(peer.rfind(':') + 1);
  return listen.scheme + " " + peer;
}

Id128 body_sum(std::span<const uint8_t> body) {
  return Sha256().update(std::as_bytes(body)).finish128();
}

/// Whether a message is the next one of its link, and has the body that was sent with it. The other side counts from 1
/// again when it has lost the link alone.
bool in_turn(const Link& link, const wire::Envelope& envelope, std::span<const uint8_t> body) {
  const uint64_t last = link.numbers.heard;
  const bool next = last == 0 ? envelope.seq == 0 : envelope.seq == last + 1 || envelope.seq == 1;
  return (!link.up || next) && (envelope.seq == 0 || envelope.sum == body_sum(body));
}

}  // namespace

Links::Links(Shared& shared, Context& context, Routers& routers, Events& events)
    : shared_(shared),
      options_(shared.options),
      context_(context),
      routers_(routers),
      events_(events),
      keys_(shared.options.keys),
      rng_(shared.options.seed) {
  // Every hub of a cluster may have one --seed, but their jitter must differ.
  rng_ = rng_.fork(shared.options.instance.hex());
}

Link* Links::find(LinkId id) {
  const auto at = links_.find(id);
  return at == links_.end() ? nullptr : &at->second;
}

Link* Links::find(const RouteKey& route) {
  const auto known = routes_.find(route);
  return known == routes_.end() ? nullptr : &links_.at(known->second);
}

// ---- commands of the owner ----

void Links::connect(ConnectCommand command) {
  Link& link = links_[command.link];
  link.id = command.link;
  link.outgoing = true;
  link.dialled.uri = std::move(command.uri);
  link.address = link.dialled.uri.text();
  link.dialled.backoff = link_backoff(options_);
  link.dialled.down_since = hub_now();
  open_dealer(link);
}

void Links::disconnect(LinkId id) {
  const auto at = links_.find(id);
  if (at == links_.end() || at->second.gone) return;
  Link& link = at->second;
  if (link.up) --events_.stats.links_up;
  for (const auto& r : requests_.take(id))
    events_.emit(RequestFailed{r.id, id, {Code::cancelled, "the link was closed"}});
  if (!link.outgoing) routes_.erase(link.accepted.route);
  links_.erase(at);
}

void Links::send(SendCommand command) {
  const auto at = links_.find(command.link);
  if (at == links_.end()) return drop(command, Code::peer_lost, "link " + std::to_string(command.link) + " is gone");
  Link& link = at->second;
  if (is_request(command.id)) {
    if (requests_.size() >= options_.request_max)
      return drop(command, Code::busy, std::to_string(options_.request_max) + " requests are under way");
    requests_.add(command.id, link.id, command.expires);
  }
  if (link.up && link.queue.empty()) {
    const Code code = transmit(link, command.envelope, command.body);
    if (code == Code::ok) return;
    if (code == Code::peer_lost) {
      drop(command, code, "connection to " + link.address + " is closed");
      return lose(link, "connection closed");
    }
  }
  // A request may wait until its link is up. A message is only for the present peer.
  if (!link.up && (!is_request(command.id) || !link.outgoing))
    return drop(command, Code::peer_lost, link.address + " is not connected");
  const size_t bytes = command.bytes();
  if (link.queue.size() >= options_.link_queue || link.queue_bytes + bytes > options_.link_queue_bytes)
    return drop(command, Code::busy,
                "queue to " + link.address + " is full (" + std::to_string(link.queue.size()) + " messages, " +
                    std::to_string(link.queue_bytes) + " bytes)");
  link.queue_bytes += bytes;
  link.queue.push_back(std::move(command));
}

void Links::drop(const SendCommand& command, Code code, std::string what) {
  ++events_.stats.dropped;
  if (is_request(command.id)) {
    requests_.erase(command.id);
    events_.emit(RequestFailed{command.id, command.link, {code, std::move(what)}});
  } else {
    events_.emit(SendFailed{command.id, command.link, {code, std::move(what)}});
  }
}

void Links::set_keys(const std::optional<KeySet>& keys) {
  keys_ = keys;
  for (auto& [id, link] : links_) {
    if (link.gone || (link.outgoing ? link.dialled.uri : routers_.listen(link.accepted.route.first)).scheme != "tcp")
      continue;
    if (link.up) lose(link, "the keys were changed");
    if (link.outgoing) {
      link.dialled.handshake_failures = 0;
      link.dialled.backoff.reset();
      open_dealer(link);
    }
    link.reported = 0;
  }
}

// ---- messages ----

/// Whether the messages of a link are numbered: where an attacker may be on the path, and cannot write the numbers.
bool Links::is_numbered(const Link& link) const {
  return keys_ && (link.outgoing ? link.dialled.uri : routers_.listen(link.accepted.route.first)).scheme == "tcp";
}

Code Links::transmit(Link& link, std::span<const uint8_t> envelope, std::span<const uint8_t> body) {
  Code code = Code::peer_lost;
  Bytes numbered;
  if (is_numbered(link)) {
    numbered = wire::numbered(envelope, link.numbers.sent + 1, body_sum(body));
    envelope = numbered;
  }
  if (link.outgoing) {
    const std::span<const uint8_t> frames[] = {envelope, body};
    if (link.dialled.dealer) code = link.dialled.dealer->send(frames);
  } else {
    code = routers_.send(link.accepted.route, envelope, body);
  }
  if (code == Code::ok) {
    link.sent = hub_now();
    ++link.numbers.sent;
    ++events_.stats.sent;
    events_.stats.sent_bytes += envelope.size() + body.size();
  }
  return code;
}

void Links::flush(Link& link) {
  while (link.up && !link.queue.empty()) {
    const SendCommand& command = link.queue.front();
    const Code code = transmit(link, command.envelope, command.body);
    if (code == Code::busy) return;
    if (code == Code::peer_lost) return lose(link, "connection closed");
    link.queue_bytes -= command.bytes();
    link.queue.pop_front();
  }
}

Bytes Links::ping_envelope() {
  return wire::encode({.type = std::string(kPing),
                       .id = shared_.next_message.fetch_add(1, std::memory_order_relaxed) * 2,  // a plain counter
                       .from = shared_.name_now(),
                       .instance = options_.instance,
                       .epoch = options_.epoch},
                      options_.version);
}

void Links::ping(Link& link) {
  link.sent = hub_now();  // counts as sent even when the pipe is full, so that no pings accumulate
  const Bytes bytes = ping_envelope();
  // Queued messages need no heartbeat behind them, because they count as signs of life themselves.
  if (link.up && !link.queue.empty()) return;
  const Code code = transmit(link, bytes, {});
  if (code == Code::peer_lost && link.up) return lose(link, "connection closed");
  // The first heartbeat may come before the socket has taken over its new connection, so it is tried again soon.
  if (code == Code::busy && !link.up) link.sent -= options_.heartbeat - std::min(options_.heartbeat, kFirstWordRetry);
}

/// The link of the sending instance, made when it is new. An instance has one connection: a newer one ends the link of
/// the older one, and later messages of the older one are dropped. Null: the message is dropped.
Link* Links::incoming(RouteKey route, const wire::Envelope& envelope, const SocketMessage& message) {
  const auto known = routes_.find(route);
  if (known != routes_.end()) {
    Link& link = links_.at(known->second);
    if (link.instance == envelope.instance) return &link;
    // A process never changes its instance, so the sender is no process of this cluster. Two instances on one
    // connection would make each message a loss and a new link, so the connection is ended.
    retire(link.accepted.route);
    lose(link, "its connection now carries another instance");
    ++events_.stats.garbage;
    return nullptr;
  }
  for (auto& [id, link] : links_) {
    if (link.outgoing || link.gone || link.instance != envelope.instance || link.accepted.route.first != route.first)
      continue;
    retire(link.accepted.route);
    lose(link, "replaced by a new connection");  // messages sent on the old connection may be lost
    break;
  }
  if (routes_.size() >= kIncomingMax) {
    ++events_.stats.garbage;
    return nullptr;
  }
  const LinkId id = shared_.next_link.fetch_add(1, std::memory_order_relaxed);  // a plain counter
  Link& link = links_[id];
  link.id = id;
  link.instance = envelope.instance;
  link.accepted.fd = message.fd;
  const Uri& listen = routers_.listen(route.first);
  link.address = peer_text(listen, message.peer_address);
  routes_[route] = id;
  link.accepted.route = std::move(route);
  return &link;
}

/// False: the message does not count. Each instance has its own connection, so a connection whose instance changes is
/// ended, and the new instance gets the next connection.
bool Links::hear(Link& link, const wire::Envelope& envelope, std::span<const uint8_t> body) {
  if (link.up && link.instance != envelope.instance) {
    lose(link, "restarted as another instance");
    return false;
  }
  if (!in_turn(link, envelope, body)) {
    break_off(link, "a message was left out or changed on its way");
    return false;
  }
  link.numbers.heard = envelope.seq;
  link.heard = hub_now();
  link.accepted.broken_at = kNever;
  link.name = envelope.from;
  if (link.up) return true;
  link.up = true;
  link.since = link.heard;
  if (link.outgoing) link.dialled.connected = true;
  link.reported = 0;
  link.garbage_logged = false;
  link.instance = envelope.instance;
  link.epoch = envelope.epoch;
  ++events_.stats.links_up;
  events_.emit(LinkUp{link.id, link.outgoing, link.name, link.instance, link.epoch, link.address});
  if (!link.outgoing) ping(link);  // the other side waits for a first message
  flush(link);
  return link.up;
}

/// Ends the connection of a link. A listening socket cannot close one, so the other side gets a message out of turn.
void Links::break_off(Link& link, std::string why) {
  ++events_.stats.garbage;
  if (!link.outgoing) {
    if (is_numbered(link))
      routers_.send(link.accepted.route, wire::numbered(ping_envelope(), kLastNumber, body_sum({})), {});
    retire(link.accepted.route);
  }
  if (link.up) return lose(link, std::move(why));
  if (link.outgoing) return reopen_later(link);
  routes_.erase(link.accepted.route);
  link.gone = true;
}

void Links::deliver(Link& link, wire::Envelope envelope, Bytes body) {
  ++events_.stats.received;
  if (!envelope.to.is_zero() && envelope.to != options_.instance) {
    ++events_.stats.wrong_instance;
    return;
  }
  if (envelope.type == kPing) return;
  // the reply is late, or answers no request
  if (is_request(envelope.re) && !requests_.answered(envelope.re, link.id)) return;
  Received received{link.id, std::move(envelope), std::move(body), link.heard, kNever};
  if (received.envelope.deadline) received.deadline = after(received.arrived, *received.envelope.deadline);
  events_.emit(std::move(received));
}

// ---- connections ----

void Links::on_handshake(Link& link) {
  link.dialled.connected = true;
  link.dialled.handshake_failures = 0;
  link.since = hub_now();
  ping(link);
}

void Links::on_handshake_failed(Link& link, const SocketEvent& event) {
  if (link.dialled.reopen_at == kNever) reopen_later(link);
  // A server that refuses the greeting may hang up before its reason is here. The cause is a wrong or a missing
  // key, or a server that was just ending, so several hang-ups must agree.
  const bool silent = link.dialled.uri.scheme == "tcp" && ++link.dialled.handshake_failures >= kSilentRefusals;
  if (event.refused || silent)
    report(link, true,
           wrong_key("cannot handshake with " + link.address + ": key refused or not CURVE (" + event.text + ")"));
}

/// Opens the socket of an outgoing link. While nothing listens, the socket retries by itself.
void Links::open_dealer(Link& link) {
  if (link.dialled.dealer) link.dialled.dealer->abandon();
  link.dialled.dealer.reset();
  link.dialled.connected = false;
  link.dialled.reopen_at = kNever;
  link.numbers = {};
  SocketOptions options;
  options.message_bytes_max = std::max(options_.message_bytes_max, wire::kEnvelopeBytesMax);
  options.ipv6 = link.dialled.uri.host.find(':') != std::string::npos;
  options.handshake = options_.handshake;
  options.reconnect =
      Duration(static_cast<int64_t>(static_cast<double>(options_.reconnect.count()) * (0.5 + rng_.uniform())));
  if (keys_ && link.dialled.uri.scheme == "tcp") {
    options.peer_public = keys_->server_public;
    options.client_public = keys_->client_public;
    options.client_secret = keys_->client_secret;
  }
  auto socket = Socket::open(context_, SocketKind::dealer, options);
  Result<void> done = socket ? socket->connect(link.dialled.uri.text()) : Result<void>(socket.error());
  if (!done) {
    report(link, true, user_error(err::kPeerUnreachable, done.error().what, link.address));
    return reopen_later(link);  // a passing cause such as a lack of descriptors
  }
  link.dialled.dealer = std::move(*socket);
}

/// Closes the socket at once, also that of a silent link: TCP would otherwise retry a connection whose packets are
/// lost for minutes after the network works again. tick_link opens the next socket after a pause, because the peer
/// decides how often connections end.
void Links::reopen_later(Link& link) {
  if (link.dialled.dealer) link.dialled.dealer->abandon();
  link.dialled.dealer.reset();
  link.dialled.connected = false;
  link.dialled.reopen_at = hub_now() + link.dialled.backoff.next(rng_);
}

/// Ends all queued messages and pending requests of the link. Incoming links are removed; outgoing ones connect again
/// on a new socket.
void Links::lose(Link& link, std::string why) {
  MC_ASSERT(link.up);
  const TimePoint now = hub_now();
  link.up = false;
  link.accepted.broken_at = kNever;
  link.reported = 0;
  --events_.stats.links_up;
  for (const SendCommand& command : link.queue)
    if (!is_request(command.id)) ++events_.stats.dropped;
  link.queue.clear();
  link.queue_bytes = 0;
  events_.emit(LinkLost{link.id, link.name, link.instance, why});
  for (const auto& r : requests_.take(link.id))
    events_.emit(RequestFailed{r.id, link.id, {Code::peer_lost, link.address + ": " + why}});
  if (link.outgoing) {
    link.dialled.backoff.lived(now - link.since);
    link.dialled.down_since = now;
    reopen_later(link);
  } else {
    routes_.erase(link.accepted.route);
    link.gone = true;  // callers up the stack still hold the reference
  }
}

/// Marks a connection as replaced. A router never reuses a routing id, so later messages of this one are dropped.
void Links::retire(const RouteKey& route) {
  if (retired_.insert(route).second) retired_order_.push_back(route);
  if (retired_order_.size() <= kRetiredMax) return;
  retired_.erase(retired_order_.front());
  retired_order_.pop_front();
}

void Links::report(Link& link, bool fatal, Error error) {
  if (link.reported == error.mc) return;
  link.reported = error.mc;
  if (error.where.empty()) error.where = "control connection to " + link.address;
  events_.emit(LinkFailed{link.id, fatal, std::move(error)});
}

// ---- time ----

void Links::forgive(Duration unread, TimePoint now) {
  for (auto& [id, link] : links_) {
    link.heard = std::min(now, link.heard + unread);
    if (link.accepted.broken_at != kNever) link.accepted.broken_at = std::min(now, link.accepted.broken_at + unread);
  }
}

void Links::tick(TimePoint now) {
  for (auto& [id, link] : links_) tick_link(link, now);
  expire_requests(now);
}

void Links::tick_link(Link& link, TimePoint now) {
  if (link.up && now - link.heard >= options_.dead_after)
    return lose(link, "silent for " + std::to_string((now - link.heard) / 1ms) + " ms");
  if (link.up && link.accepted.broken_at != kNever && now - link.accepted.broken_at >= options_.broken_grace)
    return lose(link, "connection closed");
  if ((link.up || link.dialled.connected) && now - link.sent >= options_.heartbeat) ping(link);
  if (link.up && !link.outgoing && !link.queue.empty()) flush(link);
  if (now >= link.dialled.reopen_at) open_dealer(link);
  if (!link.outgoing || link.up || link.reported != 0) return;
  if (now - (link.dialled.connected ? link.since : link.dialled.down_since) < options_.handshake) return;
  if (link.dialled.connected)
    report(
        link, false,
        user_error(err::kHandshakeTimeout, link.address + " accepted the connection but sent no valid message within " +
                                               std::to_string(options_.handshake / 1ms) + " ms"));
  else
    report(link, false,
           user_error(err::kPeerUnreachable, "no control connection to " + link.address + " after " +
                                                 std::to_string(options_.handshake / 1ms) + " ms; still trying"));
}

TimePoint Links::next_wakeup(TimePoint now) const {
  TimePoint at = requests_.next_expiry();
  for (const auto& [id, link] : links_) {
    if (link.up || link.dialled.connected) at = std::min(at, link.sent + options_.heartbeat);
    if (link.up) at = std::min(at, link.heard + options_.dead_after);
    if (link.up && link.accepted.broken_at != kNever)
      at = std::min(at, link.accepted.broken_at + options_.broken_grace);
    at = std::min(at, link.dialled.reopen_at);
    if (link.outgoing && !link.up && link.reported == 0)
      at = std::min(at, (link.dialled.connected ? link.since : link.dialled.down_since) + options_.handshake);
    if (!link.outgoing && !link.queue.empty()) at = std::min(at, now + kFullPipeRecheck);
  }
  return at;
}

void Links::expire_requests(TimePoint now) {
  for (const Requests::Request& request : requests_.take_expired(now)) {
    std::string where = "the peer";
    if (const auto at = links_.find(request.link); at != links_.end()) {
      Link& link = at->second;
      where = link.address;
      // A request that is still queued must not be sent after its deadline.
      const auto queued =
          std::find_if(link.queue.begin(), link.queue.end(), [&](const SendCommand& c) { return c.id == request.id; });
      if (queued != link.queue.end()) {
        link.queue_bytes -= queued->bytes();
        link.queue.erase(queued);
      }
    }
    events_.emit(
        RequestFailed{request.id, request.link, {Code::timeout, "no answer from " + where + " within the deadline"}});
  }
}

void Links::erase_gone() {
  std::erase_if(links_, [](const auto& entry) { return entry.second.gone; });
}

}  // namespace mc::ctl

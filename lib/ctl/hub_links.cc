// The life of a link: opening, sending, losing. See ctl.h for the promises.
#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "ctl/hub_loop.h"

namespace mc::ctl {
namespace {

constexpr Duration kFirstWordRetry = 5ms;
constexpr Duration kBindRetry = 10ms;

}  // namespace

void Loop::connect(ConnectCommand command) {
  Link& link = links_[command.link];
  link.id = command.link;
  link.outgoing = true;
  link.uri = std::move(command.uri);
  link.address = link.uri.text();
  link.backoff = link_backoff(options_);
  link.down_since = SystemClock::instance().now();
  open_dealer(link);
}

/// The socket goes at once, also that of a link that fell silent: a connection whose packets vanish
/// would otherwise be retried by TCP for minutes after the network has healed. The next one is opened
/// by tick_link, after a pause: how a connection ends is in the hands of the peer.
void Loop::reopen_later(Link& link) {
  if (link.dealer) link.dealer->abandon();
  link.dealer.reset();
  link.connected = false;
  link.reopen_at = SystemClock::instance().now() + link.backoff.next(rng_);
}

/// While nobody listens the socket goes on trying by itself.
void Loop::open_dealer(Link& link) {
  if (link.dealer) link.dealer->abandon();
  link.dealer.reset();
  link.connected = false;
  link.reopen_at = kNever;
  SocketOptions options;
  options.message_bytes_max = std::max(options_.message_bytes_max, wire::kEnvelopeBytesMax);
  options.ipv6 = link.uri.host.find(':') != std::string::npos;
  options.handshake = options_.handshake;
  options.reconnect =
      Duration(static_cast<int64_t>(static_cast<double>(options_.reconnect.count()) * (0.5 + rng_.uniform())));
  if (keys_ && link.uri.scheme == "tcp") {
    options.peer_public = keys_->server_public;
    options.client_public = keys_->client_public;
    options.client_secret = keys_->client_secret;
  }
  auto socket = Socket::open(context_, SocketKind::dealer, options);
  Result<void> done = socket ? socket->connect(link.uri.text()) : Result<void>(socket.error());
  if (!done) {
    report(link, true, user_error(err::kPeerUnreachable, done.error().what, link.address));
    return reopen_later(link);  // out of descriptors, perhaps: that passes
  }
  link.dealer = std::move(*socket);
}

/// A bound socket keeps the keys it was bound with, so each is replaced; so is every link over tcp.
void Loop::set_keys(KeySet keys) {
  keys_ = std::move(keys);
  for (auto& [id, link] : links_) {
    if (link.gone || (link.outgoing ? link.uri : options_.listen[link.route.first]).scheme != "tcp") continue;
    link.handshake_failures = 0;
    if (link.up) lose(link, "the keys were changed");
    if (link.outgoing) {
      link.backoff.reset();
      open_dealer(link);
    }
    link.reported = 0;
  }
  for (size_t router = 0; router < routers_.size(); ++router)
    if (options_.listen[router].scheme == "tcp") unbound_[router] = SystemClock::instance().now();
}

/// libzmq lets go of an address some time after the socket was closed.
void Loop::bind_again(TimePoint now) {
  for (auto it = unbound_.begin(); it != unbound_.end();) {
    auto& [router, again] = *it;
    if (now < again) {
      ++it;
      continue;
    }
    const std::string place = routers_[router].bound();
    auto socket = Socket::open(context_, SocketKind::router, router_options(options_, keys_, options_.listen[router]));
    if (socket) {
      routers_[router].unbind();
      if (auto bound = socket->bind(place)) {
        routers_[router] = std::move(*socket);
        it = unbound_.erase(it);
        continue;
      }
    }
    again = now + kBindRetry;
    ++it;
  }
}

void Loop::disconnect(LinkId id) {
  const auto at = links_.find(id);
  if (at == links_.end() || at->second.gone) return;
  Link& link = at->second;
  if (link.up) --stats_.links_up;
  fail_requests(id, {Code::cancelled, "the link was closed"});
  if (!link.outgoing) routes_.erase(link.route);
  links_.erase(at);
}

void Loop::drop(const SendCommand& command, Code code, std::string what) {
  ++stats_.dropped;
  if (is_request(command.id)) {
    requests_.erase(command.id);
    emit(RequestFailed{command.id, command.link, {code, std::move(what)}});
  } else {
    emit(SendFailed{command.id, command.link, {code, std::move(what)}});
  }
}

void Loop::send(SendCommand command) {
  const auto at = links_.find(command.link);
  if (at == links_.end()) return drop(command, Code::peer_lost, "link " + std::to_string(command.link) + " is gone");
  Link& link = at->second;
  if (is_request(command.id)) {
    if (requests_.size() >= options_.request_max)
      return drop(command, Code::busy, std::to_string(options_.request_max) + " requests are under way");
    requests_[command.id] = {link.id, command.expires};
  }
  if (link.up && link.queue.empty()) {
    const Code code = transmit(link, command.envelope, command.body);
    if (code == Code::ok) return;
    if (code == Code::peer_lost) {
      drop(command, code, "connection to " + link.address + " is closed");
      return lose(link, "connection closed");
    }
  }
  // A request may wait for its link to come up; a message is meant for the peer that is there.
  if (!link.up && (!is_request(command.id) || !link.outgoing))
    return drop(command, Code::peer_lost, link.address + " is not connected");
  const size_t bytes = command.envelope.size() + command.body.size();
  if (link.queue.size() >= options_.link_queue || link.queue_bytes + bytes > options_.link_queue_bytes)
    return drop(command, Code::busy,
                "queue to " + link.address + " is full (" + std::to_string(link.queue.size()) + " messages, " +
                    std::to_string(link.queue_bytes) + " bytes)");
  link.queue_bytes += bytes;
  link.queue.push_back(std::move(command));
}

Code Loop::transmit(Link& link, std::span<const uint8_t> envelope, std::span<const uint8_t> body) {
  Code code = Code::peer_lost;
  if (link.outgoing) {
    const std::span<const uint8_t> frames[] = {envelope, body};
    if (link.dealer) code = link.dealer->send(frames);
  } else {
    const std::span<const uint8_t> frames[] = {link.route.second, envelope, body};
    code = routers_[link.route.first].send(frames);
  }
  if (code == Code::ok) {
    link.sent = SystemClock::instance().now();
    ++stats_.sent;
    stats_.sent_bytes += envelope.size() + body.size();
  }
  return code;
}

void Loop::flush(Link& link) {
  while (link.up && !link.queue.empty()) {
    const SendCommand& command = link.queue.front();
    const Code code = transmit(link, command.envelope, command.body);
    if (code == Code::busy) return;
    if (code == Code::peer_lost) return lose(link, "connection closed");
    link.queue_bytes -= command.envelope.size() + command.body.size();
    link.queue.pop_front();
  }
}

void Loop::ping(Link& link) {
  link.sent = SystemClock::instance().now();  // also when it cannot leave: no ping storms at a full pipe
  wire::Envelope envelope{.type = std::string(kPing),
                          .id = shared_.next_message.fetch_add(1, std::memory_order_relaxed) * 2,  // a plain counter
                          .from = shared_.name_now(),
                          .instance = options_.instance,
                          .epoch = options_.epoch};
  const Bytes bytes = wire::encode(envelope, options_.version);
  // Behind queued messages a sign of life is not needed: they are one themselves once they leave.
  if (link.up && !link.queue.empty()) return;
  const Code code = transmit(link, bytes, {});
  if (code == Code::peer_lost && link.up) return lose(link, "connection closed");
  // The first word may come before the socket has taken its new connection over: soon again.
  if (code == Code::busy && !link.up) link.sent -= options_.heartbeat - std::min(options_.heartbeat, kFirstWordRetry);
}

/// Everything queued and asked on the link ends here. Incoming links are forgotten; outgoing ones try
/// again on a new socket.
void Loop::lose(Link& link, std::string why) {
  MC_ASSERT(link.up);
  const TimePoint now = SystemClock::instance().now();
  link.backoff.lived(now - link.since);
  link.down_since = now;
  link.up = false;
  link.broken_at = kNever;
  link.reported = 0;
  --stats_.links_up;
  for (const SendCommand& command : link.queue)
    if (!is_request(command.id)) ++stats_.dropped;
  link.queue.clear();
  link.queue_bytes = 0;
  emit(LinkLost{link.id, link.name, link.instance, why});
  fail_requests(link.id, {Code::peer_lost, link.address + ": " + why});
  if (link.outgoing) {
    reopen_later(link);
  } else {
    routes_.erase(link.route);
    link.gone = true;  // callers up the stack still hold the reference
  }
}

/// A router never reuses a routing id, so what still comes by this one is late.
void Loop::retire(const RouteKey& route) {
  if (retired_.insert(route).second) retired_order_.push_back(route);
  if (retired_order_.size() <= kRetiredMax) return;
  retired_.erase(retired_order_.front());
  retired_order_.pop_front();
}

void Loop::fail_requests(LinkId link, const Error& error) {
  for (auto r = requests_.begin(); r != requests_.end();) {
    if (r->second.link == link) {
      emit(RequestFailed{r->first, link, error});
      r = requests_.erase(r);
    } else {
      ++r;
    }
  }
}

void Loop::report(Link& link, bool fatal, Error error) {
  if (link.reported == error.mc) return;
  link.reported = error.mc;
  if (error.where.empty()) error.where = "control connection to " + link.address;
  emit(LinkFailed{link.id, fatal, std::move(error)});
}

void Loop::expire_requests(TimePoint now) {
  for (auto r = requests_.begin(); r != requests_.end();) {
    if (now < r->second.expires) {
      ++r;
      continue;
    }
    const auto [id, request] = *r;
    r = requests_.erase(r);
    std::string where = "the peer";
    if (const auto at = links_.find(request.link); at != links_.end()) {
      Link& link = at->second;
      where = link.address;
      // One that never left must not leave now.
      const auto queued = std::find_if(link.queue.begin(), link.queue.end(),
                                       [&, want = id](const SendCommand& c) { return c.id == want; });
      if (queued != link.queue.end()) {
        link.queue_bytes -= queued->envelope.size() + queued->body.size();
        link.queue.erase(queued);
      }
    }
    emit(RequestFailed{id, request.link, {Code::timeout, "no answer from " + where + " within the deadline"}});
  }
}

}  // namespace mc::ctl

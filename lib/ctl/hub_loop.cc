#include "ctl/hub_loop.h"

#include <algorithm>

#include "base/errors.h"
#include "base/log.h"

namespace mc::ctl {
namespace {

constexpr int kReadsPerTurn = 64;         // messages of one socket in a turn, so that no other socket starves
constexpr int kEventsPerTurn = 256;       // connection events of one router in a turn, for the same reason
constexpr Duration kPausedRecheck = 5ms;  // pause while the event ring is full
constexpr Duration kStall = 50ms;         // lateness of a turn beyond which its time is not the peers' silence

bool power_of_two(uint64_t n) {
  return (n & (n - 1)) == 0;
}

}  // namespace

Loop::Loop(Shared& shared, Context context, std::vector<Socket> routers, std::optional<Socket> zap)
    : shared_(shared),
      options_(shared.options),
      context_(std::move(context)),
      events_(shared),
      routers_(context_, shared.options, events_, std::move(routers), std::move(zap)),
      links_(shared, context_, routers_, events_) {}

void Loop::run() {
  // acquire pairs with the destructor's release: commands queued before it are seen below
  while (!shared_.stopping.load(std::memory_order_acquire)) turn();
  run_commands();  // sends a goodbye that was queued just before the end
}

void Loop::turn() {
  turn_start_ = hub_now();
  planned_ = next_wakeup(turn_start_);
  poll();
  read_sockets();
  run_commands();
  tick(hub_now());
  routers_.count_connections();
  events_.flush();
  events_.publish();
}

void Loop::poll() {
  items_.clear();
  item_links_.clear();
  reading_ = events_.flowing();
  items_.push_back({.fd = shared_.wake.fd()});
  if (Socket* zap = routers_.zap()) items_.push_back({.socket = zap});
  for (size_t r = 0; r < routers_.size(); ++r) items_.push_back({.socket = &routers_[r], .want_read = reading_});
  for (auto& [id, link] : links_.all()) {
    if (!link.dialled.dealer) continue;
    items_.push_back(
        {.socket = &*link.dialled.dealer, .want_read = reading_, .want_write = link.up && !link.queue.empty()});
    item_links_.push_back(id);
  }
  if (auto polled = poll_sockets(items_, planned_ - turn_start_); !polled)
    log_error("control poll failed", {{"what", polled.error().what}});
}

void Loop::read_sockets() {
  size_t at = 1;
  if (items_[0].readable) shared_.wake.drain();
  if (Socket* zap = routers_.zap(); zap && items_[at++].readable)
    while (auto message = zap->receive()) routers_.answer_zap(*message);
  for (size_t r = 0; r < routers_.size(); ++r) read_router(r, items_[at++]);
  for (size_t i = 0; i < item_links_.size(); ++i) {
    Link* link = links_.find(item_links_[i]);
    if (link && link->dialled.dealer) read_dealer(*link, items_[at + i]);
  }
}

void Loop::read_router(size_t router, const PollItem& item) {
  for (int i = 0; item.readable && i < kReadsPerTurn && events_.flowing(); ++i) {
    auto message = routers_[router].receive();
    if (!message) break;
    on_router(router, std::move(*message));
  }
  for (int i = 0; item.has_event && i < kEventsPerTurn; ++i) {
    const auto event = routers_[router].next_event();
    if (!event) break;
    on_router_event(router, *event);
  }
}

/// Reads one link's socket. The calls may replace the socket, but the link is erased at the end of the turn only.
void Loop::read_dealer(Link& link, const PollItem& item) {
  if (item.has_event)
    while (auto event = link.dialled.dealer ? link.dialled.dealer->next_event() : std::nullopt)
      on_dealer_event(link, *event);
  for (int n = 0; item.readable && n < kReadsPerTurn && events_.flowing(); ++n) {
    auto message = link.dialled.dealer ? link.dialled.dealer->receive() : std::nullopt;
    if (!message) break;
    on_dealer(link, std::move(*message));
  }
  if (item.writable) links_.flush(link);
}

void Loop::run_commands() {
  while (auto command = shared_.commands.pop()) {
    if (auto* c = std::get_if<ConnectCommand>(&*command))
      links_.connect(std::move(*c));
    else if (auto* d = std::get_if<DisconnectCommand>(&*command))
      links_.disconnect(d->link);
    else if (auto* s = std::get_if<SendCommand>(&*command))
      links_.send(std::move(*s));
    else if (auto* k = std::get_if<KeysCommand>(&*command)) {
      links_.set_keys(k->keys);
      routers_.set_keys(k->keys, hub_now());
    }
  }
}

TimePoint Loop::next_wakeup(TimePoint now) const {
  TimePoint at = std::min({after(now, 1s), routers_.next_bind(), links_.next_wakeup(now)});
  if (!events_.flowing()) at = std::min(at, now + kPausedRecheck);
  return std::max(at, now);
}

/// Checks all deadlines. Time in which the loop was stopped, or did not read because its owner did not, is not silence
/// of its peers.
void Loop::tick(TimePoint now) {
  const Duration late = now - planned_;
  const Duration unread = !reading_ ? now - turn_start_ : late > kStall ? late : Duration::zero();
  if (unread > Duration::zero()) links_.forgive(unread, now);
  links_.tick(now);
  routers_.bind_again(now);
  links_.erase_gone();
}

void Loop::on_router(size_t router, SocketMessage message) {
  RouteKey route{router, std::move(message.frames[0])};
  // A router that is not yet bound again has the old keys, so its messages are dropped.
  if (links_.retired(route) || !routers_.accepts(router)) return;
  Link* link = links_.find(route);
  if (message.frame_count != 3) message.frames = {{}, {}, {}};
  bool wrong_version = false;
  auto envelope = decode(message.frames[1], link, message.peer_address, wrong_version);
  if (!envelope) {
    if (!wrong_version) return;
    // Any envelope of this side carries its version, so the other side refuses without help.
    const Bytes ours = wire::encode({.type = std::string(kPing),
                                     .from = shared_.name_now(),
                                     .instance = options_.instance,
                                     .epoch = options_.epoch},
                                    options_.version);
    routers_.send(route, ours, {});
    return;
  }
  link = links_.incoming(std::move(route), *envelope, message);
  if (link == nullptr) return;
  events_.stats.received_bytes += message.frames[1].size() + message.frames[2].size();
  if (links_.hear(*link, *envelope, message.frames[2]))
    links_.deliver(*link, std::move(*envelope), std::move(message.frames[2]));
}

void Loop::on_dealer(Link& link, SocketMessage message) {
  bool wrong_version = false;
  if (message.frame_count != 2) {
    message.frames.resize(1);
    message.frames[0].clear();  // decodes as garbage, which counts and logs it
  }
  auto envelope = decode(message.frames[0], &link, link.address, wrong_version);
  if (!envelope) return;
  events_.stats.received_bytes += message.frames[0].size() + message.frames[1].size();
  if (links_.hear(link, *envelope, message.frames[1]))
    links_.deliver(link, std::move(*envelope), std::move(message.frames[1]));
}

std::optional<wire::Envelope> Loop::decode(const Bytes& frame, Link* link, std::string_view address,
                                           bool& wrong_version) {
  auto envelope = wire::decode_envelope(frame);
  if (envelope) return std::move(*envelope);
  wrong_version = envelope.error().mc == err::kProtocolVersion;
  ++(wrong_version ? events_.stats.wrong_version : events_.stats.garbage);
  if (link != nullptr && link->outgoing && !link->up) links_.report(*link, true, envelope.error());
  // Each peer is logged once. Senders without a link share one line at each doubling of the count.
  const uint64_t count = events_.stats.garbage + events_.stats.wrong_version;
  if (link ? !link->garbage_logged : power_of_two(count))
    log_warn("control message dropped", {{"from", address}, {"why", one_line(envelope.error())}, {"count", count}});
  if (link) link->garbage_logged = true;
  return std::nullopt;
}

void Loop::on_router_event(size_t router, const SocketEvent& event) {
  if (event.kind == SocketEvent::Kind::handshake_failed) {
    ++events_.stats.handshakes_refused;
    if (event.by_key)
      log_failed_handshake(router, event.text, routers_.refused_address());
    else  // libzmq closes the connection at once, and the report of the end names it
      failed_handshakes_[router] = event.text;
  } else if (event.kind == SocketEvent::Kind::disconnected) {
    if (const auto failed = failed_handshakes_.find(router); failed != failed_handshakes_.end()) {
      log_failed_handshake(router, failed->second, event.peer);
      failed_handshakes_.erase(failed);
    }
    // Descriptors are reused, so the link only becomes suspect. A sign of life within the grace period clears it.
    for (auto& [id, link] : links_.all())
      if (!link.outgoing && link.accepted.route.first == router && link.accepted.fd == event.fd && link.up)
        link.accepted.broken_at = hub_now();
  }
}

void Loop::log_failed_handshake(size_t router, const std::string& why, const std::string& from) {
  const uint64_t count = events_.stats.handshakes_refused;
  if (power_of_two(count))
    log_warn("control handshake failed",
             {{"listen", routers_[router].bound()}, {"from", from}, {"why", why}, {"count", count}});
}

void Loop::on_dealer_event(Link& link, const SocketEvent& event) {
  switch (event.kind) {
    case SocketEvent::Kind::handshake_done: links_.on_handshake(link); break;
    case SocketEvent::Kind::handshake_failed: links_.on_handshake_failed(link, event); break;
    case SocketEvent::Kind::disconnected:
      // The peer's last messages are read first. ZeroMQ would reconnect by itself, without a report of lost messages,
      // so the socket is then closed.
      while (link.up && link.dialled.dealer && events_.flowing()) {
        auto message = link.dialled.dealer->receive();
        if (!message) break;
        on_dealer(link, std::move(*message));
      }
      if (link.up)
        links_.lose(link, "connection closed");
      else if (link.dialled.reopen_at == kNever)
        links_.reopen_later(link);
      break;
    case SocketEvent::Kind::retrying: link.dialled.connected = false; break;
    case SocketEvent::Kind::listening: break;
  }
}

}  // namespace mc::ctl

#include "ctl/hub_loop.h"

#include <algorithm>

#include "base/errors.h"
#include "base/log.h"

namespace mc::ctl {
namespace {

constexpr int kReadsPerTurn = 64;         // of one socket, so that none starves the others
constexpr int kEventsPerTurn = 256;       // of one router's connections, for the same reason
constexpr Duration kPausedRecheck = 5ms;  // while the event ring is full or a router's connection is
constexpr Duration kStall = 50ms;         // lateness beyond which the loop blames itself, not its peers

TimePoint now() {
  return SystemClock::instance().now();
}

}  // namespace

Loop::Loop(Shared& shared, Context context, std::vector<Socket> routers, std::optional<Socket> zap)
    : shared_(shared),
      options_(shared.options),
      keys_(shared.options.keys),
      context_(std::move(context)),
      routers_(std::move(routers)),
      zap_(std::move(zap)),
      rng_(shared.options.seed) {
  // Every hub of a cluster may have the same --seed; its jitter must still differ.
  rng_ = rng_.fork(shared.options.instance.hex());
}

void Loop::run() {
  // acquire pairs with the destructor's release: commands queued before it are seen below
  while (!shared_.stopping.load(std::memory_order_acquire)) turn();
  run_commands();  // a goodbye queued just before the end still leaves
}

void Loop::turn() {
  turn_start_ = now();
  planned_ = next_wakeup(turn_start_);
  items_.clear();
  item_links_.clear();
  reading_ = outbox_.empty();
  items_.push_back({.fd = shared_.wake.fd()});
  if (zap_) items_.push_back({.socket = &*zap_});
  for (Socket& router : routers_) items_.push_back({.socket = &router, .want_read = reading_});
  for (auto& [id, link] : links_) {
    if (!link.dealer) continue;
    items_.push_back({.socket = &*link.dealer, .want_read = reading_, .want_write = link.up && !link.queue.empty()});
    item_links_.push_back(id);
  }
  if (auto polled = poll_sockets(items_, planned_ - turn_start_); !polled)
    log_error("control poll failed", {{"what", polled.error().what}});
  read_sockets();
  run_commands();
  tick(now());
  count_connections();
  flush_events();
  publish_stats();
}

void Loop::count_connections() {
  refused_.resize(routers_.size());
  stats_.connections = 0;
  for (size_t r = 0; r < routers_.size(); ++r) {
    stats_.connections += routers_[r].connections();
    const uint64_t refused = routers_[r].refused(), before = std::exchange(refused_[r], refused);
    if (refused <= before) continue;  // a router that was bound again counts from 0
    stats_.connections_refused += refused - before;
    log_warn("control connections refused: too many are open", {{"listen", routers_[r].bound()},
                                                                {"open", routers_[r].connections()},
                                                                {"refused", stats_.connections_refused}});
  }
}

void Loop::publish_stats() {
  const std::lock_guard lock(shared_.mutex);
  shared_.stats = stats_;
}

void Loop::read_sockets() {
  size_t at = 1;
  if (items_[0].readable) shared_.wake.drain();
  if (zap_ && items_[at++].readable)
    while (auto message = zap_->receive()) on_zap(std::move(*message));
  for (size_t r = 0; r < routers_.size(); ++r, ++at) {
    if (items_[at].readable)
      for (int i = 0; i < kReadsPerTurn && outbox_.empty(); ++i) {
        auto message = routers_[r].receive();
        if (!message) break;
        on_router(r, std::move(*message));
      }
    for (int i = 0; items_[at].has_event && i < kEventsPerTurn; ++i) {
      const auto event = routers_[r].next_event();
      if (!event) break;
      on_router_event(r, *event);
    }
  }
  for (size_t i = 0; i < item_links_.size(); ++i) {
    const PollItem& item = items_[at + i];
    const auto found = links_.find(item_links_[i]);
    if (found == links_.end() || !found->second.dealer) continue;
    Link& link = found->second;
    // Whatever these calls do, a link is erased at the end of the turn only; its socket may be replaced.
    if (item.has_event)
      while (auto event = link.dealer ? link.dealer->next_event() : std::nullopt) on_dealer_event(link, *event);
    if (item.readable)
      for (int n = 0; n < kReadsPerTurn && outbox_.empty(); ++n) {
        auto message = link.dealer ? link.dealer->receive() : std::nullopt;
        if (!message) break;
        on_dealer(link, std::move(*message));
      }
    if (item.writable) flush(link);
  }
}

void Loop::run_commands() {
  while (auto command = shared_.commands.pop()) {
    if (auto* c = std::get_if<ConnectCommand>(&*command))
      connect(std::move(*c));
    else if (auto* d = std::get_if<DisconnectCommand>(&*command))
      disconnect(d->link);
    else if (auto* s = std::get_if<SendCommand>(&*command))
      send(std::move(*s));
    else if (auto* k = std::get_if<KeysCommand>(&*command))
      set_keys(std::move(k->keys));
  }
}

TimePoint Loop::next_wakeup(TimePoint now) const {
  TimePoint at = after(now, 1s);
  if (!outbox_.empty()) at = std::min(at, now + kPausedRecheck);
  if (!requests_.empty())
    for (const auto& [id, request] : requests_) at = std::min(at, request.expires);
  for (const auto& [router, again] : unbound_) at = std::min(at, again);
  for (const auto& [id, link] : links_) {
    if (link.up || link.connected) at = std::min(at, link.sent + options_.heartbeat);
    if (link.up) at = std::min(at, link.heard + options_.dead_after);
    if (link.up && link.broken_at != kNever) at = std::min(at, link.broken_at + options_.broken_grace);
    at = std::min(at, link.reopen_at);
    if (link.outgoing && !link.up && link.reported == 0)
      at = std::min(at, (link.connected ? link.since : link.down_since) + options_.handshake);
    if (!link.outgoing && !link.queue.empty()) at = std::min(at, now + kPausedRecheck);
  }
  return std::max(at, now);
}

void Loop::tick(TimePoint now) {
  // A loop that was itself stopped or starved, or that may not read because its owner does not, heard
  // nobody: what its peers sent meanwhile is still in the sockets, so that time is not their silence.
  const Duration late = now - planned_;
  const Duration deaf = !reading_ ? now - turn_start_ : late > kStall ? late : Duration::zero();
  if (deaf > Duration::zero())
    for (auto& [id, link] : links_) {
      link.heard = std::min(now, link.heard + deaf);
      if (link.broken_at != kNever) link.broken_at = std::min(now, link.broken_at + deaf);
    }
  for (auto& [id, link] : links_) tick_link(link, now);
  expire_requests(now);
  bind_again(now);
  std::erase_if(links_, [](const auto& entry) { return entry.second.gone; });
}

void Loop::tick_link(Link& link, TimePoint now) {
  if (link.up && now - link.heard >= options_.dead_after)
    return lose(link, "silent for " + std::to_string((now - link.heard) / 1ms) + " ms");
  if (link.up && link.broken_at != kNever && now - link.broken_at >= options_.broken_grace)
    return lose(link, "connection closed");
  if ((link.up || link.connected) && now - link.sent >= options_.heartbeat) ping(link);
  if (link.up && !link.outgoing && !link.queue.empty()) flush(link);
  if (now >= link.reopen_at) open_dealer(link);
  if (!link.outgoing || link.up || link.reported != 0) return;
  if (now - (link.connected ? link.since : link.down_since) < options_.handshake) return;
  if (link.connected)
    report(link, false, user_error(err::kHandshakeTimeout, link.address + " accepted the connection and says nothing"));
  else
    report(link, false,
           user_error(err::kPeerUnreachable, "no control connection to " + link.address + " after " +
                                                 std::to_string(options_.handshake / 1ms) + " ms; still trying"));
}

/// Whoever takes an event finds what led to it in stats().
void Loop::emit(Event event) {
  publish_stats();
  if (outbox_.empty() && shared_.events.push(std::move(event))) {
    shared_.event_ready.signal();
    return;
  }
  outbox_.push_back(std::move(event));  // push leaves a refused event untouched
}

void Loop::flush_events() {
  bool any = false;
  while (!outbox_.empty() && shared_.events.push(std::move(outbox_.front()))) {
    outbox_.pop_front();
    any = true;
  }
  if (any) shared_.event_ready.signal();
}

}  // namespace mc::ctl

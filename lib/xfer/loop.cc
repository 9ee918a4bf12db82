#include "xfer/loop.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::xfer {

void EngineLoop::submit(OpenBatch& batch) {
  running_.add(batch);
  parts_.tally.add(Count::batches_submitted);
  for (uint32_t i = 0; i < batch.requests.size(); ++i) router_.assign(batch, i);
}

bool EngineLoop::take_commands() {
  if (!commands_.take(taken_)) return false;
  (void)small_.join();
  for (Command& command : taken_) handle(command);
  taken_.clear();
  return true;
}

void EngineLoop::handle(Command& command) {
  small_.forget();
  switch (command.kind) {
    case Command::Kind::submit: return submit(*command.batch);
    case Command::Kind::cancel: return running_.cancel(command.batch_id);
    case Command::Kind::connect:
      return peering_.connect(command.peer, command.deadline, std::move(command.descriptor), command.text);
    case Command::Kind::disconnect:
      if (!peering_.leave(command.peer, "disconnected by the caller")) return;
      while (!parts_.reports.empty()) handle_reports();
      return peering_.forget(command.peer);
    case Command::Kind::notify: return peering_.notify(command.peer, std::move(command.bytes));
    case Command::Kind::publish: return parts_.transports.publish(parts_.reports);
    case Command::Kind::secret: options_.secret = std::move(command.text); return;
    case Command::Kind::resume:
      if (std::exchange(parts_.services.reading_notifies, true)) return;
      return parts_.transports.pause_notifies(false);
    case Command::Kind::stop: stopping_ = true; return;
  }
}

void EngineLoop::ready(std::span<const Poller::Ready> ready) {
  (void)small_.join();
  if (!ready.empty()) parts_.lanes.room();
  for (const auto& [token, events] : ready) {
    if (token == Poller::kWakeToken)
      commands_.drain();
    else
      parts_.transports.ready(token, events, parts_.reports);
  }
}

TimePoint EngineLoop::round(TimePoint& now) {
  (void)small_.join();
  handle_reports();
  bool more = false;
  turns_.assign(parts_.peers.busy().begin(), parts_.peers.busy().end());
  for (const PeerId id : turns_) {
    Peer* peer = parts_.peers.find(id);
    if (peer == nullptr) continue;
    peering_.seek(*peer);
    more |= dispatcher_.pump(*peer);
  }
  more |= handle_reports();  // a completion makes room, and a loss needs another route
  running_.settle_changed();
  pause_if_full();
  // The clock is read after the work, which may have set deadlines. Those that are due now are handled in the next
  // round.
  now = SystemClock::instance().now();
  running_.expire(now);
  TimePoint until = parts_.transports.tick(now, parts_.reports);
  until = std::min({until, running_.due(), peering_.due(now)});
  more |= !parts_.reports.empty() || running_.any_changed();
  return more ? now : until;
}

/// True when there were reports.
bool EngineLoop::handle_reports() {
  const bool any = !parts_.reports.empty();
  for (int round = 0; !parts_.reports.empty() && round < 4; ++round) {
    std::swap(handled_, parts_.reports);
    MC_ASSERT(parts_.reports.empty());
    if (std::exchange(handled_.room, false)) parts_.lanes.room();
    for (const SliceDone& done : handled_.done) dispatcher_.on_done(done);
    for (EndpointEvent& event : handled_.events) handle(event);
    handled_.done.clear();
    handled_.events.clear();
  }
  pause_if_full();
  return any;
}

void EngineLoop::handle(EndpointEvent& event) {
  small_.forget();
  const auto peer_of = [&](Count count, Event&& told) {
    const EndpointState* endpoint = parts_.lanes.find(event.endpoint);
    if (endpoint == nullptr) return;
    parts_.tally.add(count);
    told.peer = endpoint->peer;
    parts_.events.push(std::move(told));
  };
  switch (event.kind) {
    case EndpointEvent::Kind::up: return peering_.on_up(event);
    case EndpointEvent::Kind::lost:
      if (const PeerId stranger = peering_.on_lost(event); stranger != PeerId::none)
        commands_.push({.kind = Command::Kind::disconnect, .peer = stranger});
      return;
    case EndpointEvent::Kind::described: return peering_.on_descriptor(event);
    case EndpointEvent::Kind::notify:
      return peer_of(Count::notifies_received, {.kind = Event::Kind::notify, .bytes = std::move(event.bytes)});
    case EndpointEvent::Kind::immediate:
      return peer_of(Count::immediates_received, {.kind = Event::Kind::immediate, .immediate = event.immediate});
  }
}

/// Stops reading peers' notifies while too many events wait for the caller.
void EngineLoop::pause_if_full() {
  if (!parts_.services.reading_notifies || !parts_.events.full_hint()) return;
  parts_.services.reading_notifies = false;
  parts_.transports.pause_notifies(true);
}

bool EngineLoop::doze() {
  (void)small_.join();
  parts_.transports.doze(parts_.reports);
  return parts_.reports.empty();
}

void EngineLoop::shutdown() {
  parts_.transports.shutdown();
}

}  // namespace mc::xfer

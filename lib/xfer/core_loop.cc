// The engine's thread: wait, take commands, hear from transports, hand out work, report.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "xfer/auth.h"
#include "xfer/core.h"

namespace mc::xfer {
namespace {

/// The rows of the table that Options::transport names, in its order.
Result<std::vector<size_t>> rows_of(std::string_view names, std::span<const TransportEntry* const> table) {
  std::vector<size_t> rows;
  std::string known = "auto";
  for (size_t row = 0; row < table.size(); ++row) {
    if (names == "auto") rows.push_back(row);
    known += std::string(", ") + table[row]->scheme;
  }
  if (names == "auto") return rows;
  while (!names.empty()) {
    const std::string_view scheme = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), scheme.size() + 1));
    const auto at =
        std::find_if(table.begin(), table.end(), [&](const auto* entry) { return scheme == entry->scheme; });
    const auto row = static_cast<size_t>(at - table.begin());
    if (at == table.end() || std::find(rows.begin(), rows.end(), row) != rows.end())
      return Error{Code::invalid,
                   "xfer: transport '" + std::string(scheme) + "' is unknown or named twice; there are: " + known};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

Engine::Core::~Core() {
  stop();
  delete spare_.load();
}

Result<void> Engine::Core::start() {
  MC_TRY(poller, Poller::open());
  poller_ = std::move(poller);
  MC_TRY(wake, EventFd::open());
  wake_ = std::move(wake);
  MC_TRY(events_fd, EventFd::open());
  events_fd_ = std::move(events_fd);
  MC_CHECK(poller_.add_wake(wake_.fd()));
  if (options_.instance.is_zero()) static_cast<Id128&>(options_.instance) = random_id();
  home_.options = &options_;
  home_.instance = options_.instance;
  home_.boot = boot_id();
  home_.ticket = random_ticket();
  home_.access = &access_;
  home_.poller = &poller_;
  home_.tally = &tally_;
  home_.endpoints_max = options_.peers_max * 2;
  uint64_t seed;
  std::memcpy(&seed, options_.instance.bytes.data(), sizeof seed);
  home_.rng = Rng(seed);

  const bool automatic = options_.transport == "auto";
  MC_TRY(order, rows_of(options_.transport, table_));
  for (const size_t row : order) {
    const TransportEntry& entry = *table_[row];
    const Reach usable = entry.probe(options_);
    Result<std::string> uri = Error{usable.code, usable.reason};
    std::unique_ptr<Transport> transport;
    if (usable.usable) {
      transport = entry.make(home_, static_cast<uint8_t>(row + 1));
      if (options_.faults.any()) transport = inject_faults(std::move(transport), options_.faults);
      uri = transport->listen();
    }
    if (!uri) {
      // auto leaves out what this machine cannot do; an option that is wrong is the caller's to fix
      if (!automatic || uri.error().code == Code::invalid)
        return within("transport " + std::string(entry.scheme), uri.error());
      transport_texts_.push_back(std::string(entry.scheme) + ": left out: " + uri.error().what);
      continue;
    }
    const std::string remark = transport->remark();
    transport_texts_.push_back(std::string(entry.scheme) + ": " + *uri + (remark.empty() ? "" : " (" + remark + ")"));
    home_.uris.push_back(*uri);
    active_.push_back({&entry, row, std::move(transport)});
  }
  if (active_.empty())
    return Error{Code::unsupported,
                 "xfer: no transport can run here: " + (transport_texts_.empty() ? "none named" : transport_texts_[0])};
  thread_ = std::thread([this] { run(); });
  return {};
}

void Engine::Core::stop() {
  if (!thread_.joinable()) return;
  push({.kind = Command::Kind::stop});
  thread_.join();
}

/// Nobody sees the buffer before every transport can use it.
Result<BufferId> Engine::Core::add_buffer(std::span<std::byte> memory, const Buffer& buffer, int fd) {
  MC_TRY(id, access_.add(memory, buffer, fd, true));
  for (const auto& active : active_) {
    auto attached = active.transport->attach(id, memory, buffer.access);
    if (attached) continue;
    detach(id);
    (void)access_.remove(id, kNever);
    return within("xfer: register buffer '" + buffer.name + "'", attached.error());
  }
  access_.show(id);
  if (buffer.access != AccessClass::private_memory) push({.kind = Command::Kind::publish});
  return id;
}

void Engine::Core::detach(BufferId buffer) {
  for (const auto& active : active_) active.transport->detach(buffer);
}

/// The running transport of that URI; null = none.
const TransportEntry* Engine::Core::speaker_of(std::string_view uri) const {
  for (const auto& active : active_)
    if (uri.starts_with(std::string(active.entry->scheme) + "://")) return active.entry;
  return nullptr;
}

void Engine::Core::push(Command command) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    commanded_.store(true, std::memory_order_relaxed);
    wake = std::exchange(sleeping_, false);
  }
  if (wake) wake_.signal();
}

bool Engine::Core::take_commands() {
  // what another thread is just pushing may be missed: whoever pushes wakes the engine's thread if that sleeps
  if (!commanded_.load(std::memory_order_relaxed)) return false;
  {
    std::lock_guard lock(mutex_);
    commanded_.store(false, std::memory_order_relaxed);
    taken_.swap(commands_);
  }
  for (Command& command : taken_) on_command(command);
  const bool any = !taken_.empty();
  taken_.clear();
  return any;
}

void Engine::Core::on_command(Command& command) {
  switch (command.kind) {
    case Command::Kind::submit: intake(*command.batch); return;
    case Command::Kind::cancel: {
      const auto at = running_.find(command.batch_id);
      if (at != running_.end()) end_batch(*at->second, Code::cancelled, "cancelled by the caller");
      return;
    }
    case Command::Kind::connect: on_connect(command); return;
    case Command::Kind::disconnect: on_disconnect(command.peer, "disconnected by the caller"); return;
    case Command::Kind::notify: on_notify(command.peer, std::move(command.bytes)); return;
    case Command::Kind::publish:
      for (auto& active : active_) active.transport->publish(outbox_);
      return;
    case Command::Kind::secret: options_.secret = std::move(command.uri); return;
    case Command::Kind::resume:
      if (home_.reading_notifies) return;
      home_.reading_notifies = true;
      for (auto& active : active_) active.transport->pause_notifies(false);
      return;
    case Command::Kind::stop: stopping_ = true; return;
  }
}

/// One turn of everything but waiting. Returns when the next is due; `now` is when this one was made.
TimePoint Engine::Core::round(TimePoint& now) {
  handle_outbox();
  bool more = false;
  turn_peers_.assign(busy_.begin(), busy_.end());
  for (const PeerId id : turn_peers_) {
    Peer* peer = find_peer(id);
    if (peer == nullptr) continue;
    seek(*peer);
    more |= pump(*peer);
  }
  more |= handle_outbox();  // a completion makes room, a loss wants another way: look again
  for (const BatchId id : std::exchange(unsettled_, {})) {
    const auto at = running_.find(id);
    if (at != running_.end()) settle(*at->second);
  }
  // after the work, which may have set deadlines; what comes due here is handled in the next round
  now = SystemClock::instance().now();
  const TimePoint until = timers(now);
  more |= !outbox_.empty() || !unsettled_.empty();
  return more ? now : until;
}

/// How long to wait, and says that we do. Whoever pushes a command from now on wakes us.
TimePoint Engine::Core::nap(TimePoint now, TimePoint idle_since, TimePoint until) {
  if (const uint64_t polls = polls_.load(std::memory_order_relaxed); polls != polls_seen_) {
    polls_seen_ = polls;
    driven_ = true;
    nap_until_ = now + kNap;
  } else if (nap_until_ <= now) {
    driven_ = false;
  }
  if (driven_) {
    until = std::min(until, nap_until_);
  } else if (now - idle_since < options_.spin) {
    until = now;
  } else if (until > now) {
    for (auto& active : active_) active.transport->doze(outbox_);
    if (!outbox_.empty()) until = now;
  }
  if (until <= now) return until;
  std::lock_guard lock(mutex_);
  if (!commands_.empty()) return now;
  sleeping_ = true;
  sleep_until_ = until;
  return until;
}

std::unique_lock<std::mutex> Engine::Core::take_turn() {
  turn_wanted_.store(true, std::memory_order_relaxed);
  std::unique_lock turn(turn_);
  turn_wanted_.store(false, std::memory_order_relaxed);
  return turn;
}

void Engine::Core::run() {
  std::array<Poller::Ready, 64> ready;
  TimePoint now{}, until{};
  TimePoint idle_since = SystemClock::instance().now();
  for (;;) {
    {
      const auto turn = take_turn();
      if (stopping_) break;
      until = round(now);
      if (until <= now) idle_since = now;
      until = nap(now, idle_since, until);
    }
    const size_t count = poller_.wait(ready, now, until);
    const auto turn = take_turn();
    if (count > 0) ++round_;
    {
      std::lock_guard lock(mutex_);
      sleeping_ = false;
    }
    for (size_t i = 0; i < count; ++i) {
      if (ready[i].token == Poller::kWakeToken) {
        wake_.drain();
        continue;
      }
      for (auto& active : active_)
        if (active.row + 1 == Poller::owner(ready[i].token))
          active.transport->ready(ready[i].token, ready[i].events, outbox_);
    }
    if (take_commands() || count > 0) idle_since = SystemClock::instance().now();
  }
  for (auto& active : active_) active.transport->shutdown();
}

/// Runs what is due; returns when the next thing is.
TimePoint Engine::Core::timers(TimePoint now) {
  expire(now);
  drain(now);
  TimePoint next = kNever;
  for (auto& active : active_) next = std::min(next, active.transport->tick(now, outbox_));
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!drains_.empty()) next = std::min(next, drains_.begin()->first);
  for (const PeerId id : busy_) {
    // only what lies ahead: what is due now is seen to by seek() in this round, or waits for news
    const auto consider = [&](TimePoint at) {
      if (at > now) next = std::min(next, at);
    };
    const Peer& peer = peers_.at(id);
    if (peer.connecting) consider(peer.connect_deadline);
    for (const Route& route : peer.routes)
      if (route.usable && !route.dead && route.dialling == EndpointId::none) consider(route.next_try);
  }
  return next;
}

/// True when there was anything.
bool Engine::Core::handle_outbox() {
  const bool any = !outbox_.empty();
  for (int round = 0; !outbox_.empty() && round < 4; ++round) {
    std::swap(handled_, outbox_);
    if (std::exchange(handled_.room, false)) ++round_;
    for (SliceDone& done : handled_.done) on_done(done);
    for (News& news : handled_.news) {
      switch (news.kind) {
        case News::Kind::up: on_up(news); break;
        case News::Kind::lost: on_lost(news); break;
        case News::Kind::described: on_descriptor(news); break;
        case News::Kind::notify: {
          const auto at = endpoints_.find(news.endpoint);
          if (at == endpoints_.end()) break;
          tally_.add(Count::notifies_received);
          emit({.kind = Event::Kind::notify, .peer = at->second.peer, .bytes = std::move(news.bytes)});
          break;
        }
        case News::Kind::immediate: {
          const auto at = endpoints_.find(news.endpoint);
          if (at == endpoints_.end()) break;
          tally_.add(Count::immediates_received);
          emit({.kind = Event::Kind::immediate, .peer = at->second.peer, .immediate = news.immediate});
          break;
        }
      }
    }
    handled_.done.clear();
    handled_.news.clear();
  }
  return any;
}

void Engine::Core::emit(Event&& event) {
  report(std::move(event));
  pause_if_full();
}

void Engine::Core::pause_if_full() {
  if (!home_.reading_notifies || event_count_.load(std::memory_order_relaxed) < options_.events_max) return;
  home_.reading_notifies = false;
  for (auto& active : active_) active.transport->pause_notifies(true);
}

}  // namespace mc::xfer

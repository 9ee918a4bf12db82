#include "host/lease_channels.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/log.h"

namespace mc::host {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"auto", "channel", "control"};  // in the order of LeaseBy

constexpr Duration kCallTime = 2s;     // a holder answers at once, or says that the grant comes by control
constexpr Duration kOpenTime = 2s;     // of a channel; a node of an older release never answers
constexpr Duration kReopenMin = 1s;    // a reader's next channel after its last one: each takes memory and its set-up
constexpr Duration kFreeAgain = 20ms;  // between looks at a closed channel that is in use
constexpr uint32_t kGrantFetch = 2048, kRenewedFetch = 128, kEmptyFetch = 64;  // bytes of the first read of a response

/// Both processes sleep in poll(2): pauses are of the length of a wake-up, not of a round trip of the network.
rfp::ClientOptions client_options() {
  rfp::ClientOptions options;
  options.geometry = wire::kLeaseGeometry;
  options.retries_max = 8;
  options.first_after_max = 100us;
  options.retry_after = 15us;
  options.slow_retry_after = 500us;
  options.push_wait = 2ms;
  options.quick_below = 20us;
  return options;
}

TimePoint clock_now() {
  return SystemClock::instance().now();
}

std::span<const uint8_t> as_u8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

uint64_t number_of(const InstanceId& instance) {
  uint64_t out = 0;
  for (size_t i = 8; i < 16; ++i) out = out << 8 | instance.bytes[i];
  return out;
}

}  // namespace

LeaseBy lease_by_of(std::string_view name) {
  const auto at = std::ranges::find(kNames, name);
  MC_ASSERT(at != kNames.end());  // the flag's table
  return static_cast<LeaseBy>(at - kNames.begin());
}

LeaseChannels::LeaseChannels(DataPlane& data, LeaseBy by, std::function<void(const node::Send&)> control)
    : data_(data),
      by_(by),
      control_(std::move(control)),
      reads_(data.engine()),
      accepted_(number_of(data.engine().instance())) {
  MC_ASSERT(control_);
  data_.watch([this](const xfer::Event& event) { return on(event); });
}

/// The channels and the lookup under way end side by side: all are closed first, and the destructors of those in use
/// share one deadline.
LeaseChannels::~LeaseChannels() {
  data_.watch({});
  const TimePoint deadline = after(clock_now(), rfp::kReleaseMax);
  const auto close = [deadline](auto& end) {
    (void)end.close();
    end.release_by(deadline);
  };
  reads_.stop(deadline);
  for (const auto& [holder, channel] : clients_) close(*channel.end);
  for (const auto& [reader, channel] : servers_) close(*channel.end);
  for (const auto& end : closed_clients_) close(*end);
  for (const auto& [reader, end] : closed_servers_) close(*end);
}

// ---- the loop's calls ------------------------------------------------------------------------

void LeaseChannels::flush() {
  for (const node::Send& send : carrier_.take_fallen()) control_(send);
}

bool LeaseChannels::send(const node::Send& send) {
  flush();
  const bool taken = carrier_.send(send, clock_now());
  flush();
  return taken;
}

/// The table of a holder whose memory is mapped; null for another one.
const kv::BlockTableView* LeaseChannels::table_of(const InstanceId& holder) {
  if (const auto known = tables_.find(holder); known != tables_.end()) return &known->second.table;
  const xfer::PeerId peer = data_.peer_of(holder);
  const auto descriptor = peer == xfer::PeerId::none ? nullptr : data_.engine().descriptor(peer);
  const wire::BufferInfo* buffer = descriptor ? descriptor->find(kBlockTableBuffer) : nullptr;
  if (buffer == nullptr) return nullptr;
  auto view = data_.engine().map(peer, buffer->id, 0, buffer->length);
  if (!view) return nullptr;  // reached over another transport
  const auto table = kv::BlockTableView::of(view->bytes(), kv::table_epoch(holder));
  if (!table) return nullptr;
  return &tables_.try_emplace(holder, Mapped{std::move(*view), *table}).first->second.table;
}

/// Whether the holder's table is being read, one-sided.
bool LeaseChannels::read_table(const node::Lookup& lookup) {
  const xfer::PeerId peer = data_.peer_of(lookup.instance);
  const rfp::WindowEntry* window = peer == xfer::PeerId::none ? nullptr : rfp::window_to(data_.engine(), peer);
  if (by_ == LeaseBy::control || window == nullptr || !window->fetches) return false;
  const auto descriptor = data_.engine().descriptor(peer);
  const wire::BufferInfo* buffer = descriptor ? descriptor->find(kBlockTableBuffer) : nullptr;
  return buffer != nullptr && reads_.start(lookup, peer, *buffer, clock_now());
}

void LeaseChannels::end_read() {
  auto ended = reads_.take();
  if (!ended) return;
  if (!ended->held) return carrier_.look_up(ended->lookup, clock_now());
  ++tables_read_;
  read_.push_back({ended->lookup.lookup, Code::ok, *std::move(ended->held)});
}

void LeaseChannels::look_up(const node::Lookup& lookup) {
  const kv::BlockTableView* table = table_of(lookup.instance);
  if (table == nullptr && read_table(lookup)) return;
  if (table == nullptr) return carrier_.look_up(lookup, clock_now());
  ++tables_read_;
  read_.push_back({lookup.lookup, Code::ok, table->find(lookup.hashes)});
}

void LeaseChannels::touch(const node::Touch& touch) {
  carrier_.touch(touch, clock_now());
}

void LeaseChannels::heard(const node::Event& event) {
  if (const auto* received = std::get_if<node::Received>(&event)) carrier_.heard(*received, clock_now());
}

void LeaseChannels::on_peers() {
  const TimePoint now = clock_now();
  const auto is_gone = [&](const InstanceId& holder) { return data_.peer_of(holder) == xfer::PeerId::none; };
  const auto gone = [&](const auto& channels) {
    std::vector<InstanceId> out;
    for (const auto& entry : channels)
      if (is_gone(entry.first)) out.push_back(entry.first);
    return out;
  };
  for (const InstanceId& holder : gone(clients_)) {
    carrier_.forget(holder);
    close_client(holder, now);
  }
  for (const InstanceId& reader : gone(servers_)) {
    carrier_.forget(reader);
    close_server(reader);
  }
  pauses_.forget(is_gone);
  reads_.forget(is_gone);
  for (const InstanceId& holder : gone(tables_)) tables_.erase(holder);
  flush();
}

/// The next event for the machine that is ready.
std::optional<node::Event> LeaseChannels::taken() {
  if (auto message = carrier_.next()) return node::Event(std::move(*message));
  if (!read_.empty()) {
    node::Event event(std::move(read_.front()));
    read_.pop_front();
    return event;
  }
  if (auto answer = carrier_.next_answer()) return node::Event(std::move(*answer));
  if (auto touch = carrier_.next_touch()) return node::Event(std::move(*touch));
  return std::nullopt;
}

std::optional<node::Event> LeaseChannels::next() {
  if (auto event = taken()) return event;
  run(clock_now());
  return taken();
}

TimePoint LeaseChannels::due() const {
  TimePoint at = std::min(carrier_.next_wakeup(), free_at_);
  for (const auto& [holder, channel] : clients_)
    at = std::min(at, channel.end->ready() ? channel.end->client().due() : channel.open_until);
  return at;
}

LeaseChannels::Channels LeaseChannels::channels() const {
  const auto ready = [](const auto& entry) { return entry.second.end->ready(); };
  return {static_cast<size_t>(std::ranges::count_if(clients_, ready)),
          static_cast<size_t>(std::ranges::count_if(servers_, ready))};
}

// ---- channels to holders ---------------------------------------------------------------------

uint64_t LeaseChannels::call(const InstanceId& holder, wire::LeaseMethod method, std::span<const uint8_t> payload,
                             TimePoint now) {
  if (by_ == LeaseBy::control) return 0;
  const auto at = clients_.find(holder);
  if (at == clients_.end()) return open(holder, now), 0;
  rfp::ClientEnd& end = *at->second.end;
  if (!end.ready() || end.refused() != Code::ok || !end.client().free()) return 0;
  uint32_t fetch = method == wire::LeaseMethod::lease   ? kGrantFetch
                   : method == wire::LeaseMethod::renew ? kRenewedFetch
                                                        : kEmptyFetch;
  if (method == wire::LeaseMethod::lookup)  // the answer has one byte for each block
    fetch = static_cast<uint32_t>(wire::kRfpHeaderBytes + payload.size() / sizeof(BlockHash) + 7) / 8 * 8;
  const auto sequence = end.client().call(end.memory(), static_cast<uint16_t>(method), std::as_bytes(payload), fetch,
                                          now, after(now, kCallTime));
  if (!sequence) return 0;
  end.run(now);
  return *sequence;
}

void LeaseChannels::open(const InstanceId& holder, TimePoint now) {
  if (clients_.size() + closed_clients_.size() >= kChannelsMax) return;
  if (pauses_.has(holder, now)) return;
  const xfer::PeerId peer = data_.peer_of(holder);
  const rfp::WindowEntry* window = peer == xfer::PeerId::none ? nullptr : rfp::window_to(data_.engine(), peer);
  if (window == nullptr || (by_ == LeaseBy::automatic && !window->fetches)) return;
  auto end = rfp::ClientEnd::open(data_.engine(), peer, ++opened_, client_options(), true);
  if (!end) {
    pauses_.failed(holder, now);
    return log_debug("lease channel not opened", {{"to", data_.name_of(holder)}, {"why", end.error().what}});
  }
  clients_[holder] = {std::move(*end), after(now, kOpenTime)};
}

bool LeaseChannels::run_client(const InstanceId& holder, ToHolder& channel, TimePoint now) {
  rfp::ClientEnd& end = *channel.end;
  const bool was_ready = end.ready();
  end.run(now);
  if (!end.ready()) return end.refused() == Code::ok && now < channel.open_until;
  if (!was_ready) log_debug("lease channel up", {{"to", data_.name_of(holder)}});
  bool works = end.refused() == Code::ok;
  while (const auto answer = end.client().take(end.memory())) {
    works &= answer->code == Code::ok;
    carrier_.on_answer(holder, answer->sequence, answer->code, answer->status, as_u8(answer->payload), now);
    end.client().finish(answer->sequence);
    if (answer->code == Code::ok) pauses_.answered(holder);
  }
  return works;
}

void LeaseChannels::close_client(const InstanceId& holder, TimePoint now) {
  const auto at = clients_.find(holder);
  MC_ASSERT(at != clients_.end());
  closed_clients_.push_back(std::move(at->second.end));
  clients_.erase(at);
  free_at_ = now;
  pauses_.failed(holder, now);
  carrier_.calls_lost(holder, now);
}

// ---- channels from readers -------------------------------------------------------------------

Code LeaseChannels::why_refused(xfer::PeerId peer, const wire::RfpOpen& asked, TimePoint now) const {
  if (by_ == LeaseBy::control) return Code::unsupported;
  const auto reader = data_.listed(peer);
  if (!reader) return Code::not_found;
  if (asked.geometry != wire::kLeaseGeometry) return Code::invalid;
  const auto last = servers_.find(*reader);
  const bool may = last == servers_.end() ? servers_.size() < kChannelsMax : now - last->second.since >= kReopenMin;
  const bool is_closing = std::ranges::any_of(closed_servers_, [&](const auto& c) { return c.first == *reader; });
  return !may || is_closing || closed_servers_.size() >= kChannelsMax ? Code::busy : Code::ok;
}

void LeaseChannels::accept(xfer::PeerId peer, const wire::RfpOpen& asked, TimePoint now) {
  Code code = why_refused(peer, asked, now);
  if (code == Code::ok) {
    const InstanceId reader = *data_.listed(peer);
    if (servers_.contains(reader)) close_server(reader);
    auto end = rfp::ServerEnd::open(data_.engine(), peer, asked, ++accepted_, true);
    if (end) {
      servers_[reader] = {std::move(*end), peer, now};
      return log_debug("lease channel accepted", {{"from", data_.name_of(reader)}});
    }
    code = end.error().code;
  }
  const wire::RfpOpened refusal{.code = code, .epoch = asked.epoch, .geometry = asked.geometry};
  const Code sent = data_.engine().notify(peer, wire::encode(refusal));  // without it the reader's time is up soon
  log_debug("lease channel refused", {{"why", to_string(code)}, {"answered", sent == Code::ok}});
}

void LeaseChannels::serve(const InstanceId& reader, FromReader& channel, TimePoint now) {
  channel.end->run();
  // A reader that writes without end gets no more than its slots at a time.
  for (uint32_t i = 0; i < wire::kLeaseGeometry.slots; ++i) {
    const auto request = channel.end->poll(now);
    if (!request) break;
    carrier_.on_request(data_.name_of(reader), reader, request->sequence, request->method,
                        as_u8(channel.end->payload(*request)), now);
  }
  channel.end->run();
}

bool LeaseChannels::answer(const InstanceId& reader, uint64_t number, wire::LeaseStatus status,
                           std::span<const uint8_t> payload, TimePoint now) {
  if (payload.size() > wire::kLeaseGeometry.response_room()) return false;
  const auto at = servers_.find(reader);
  if (at == servers_.end()) return true;
  at->second.end->publish(number, static_cast<uint16_t>(status), std::as_bytes(payload), now);
  at->second.end->run();
  return true;
}

void LeaseChannels::close_server(const InstanceId& reader) {
  const auto at = servers_.find(reader);
  MC_ASSERT(at != servers_.end());
  closed_servers_.emplace_back(reader, std::move(at->second.end));
  servers_.erase(at);
  free_at_ = TimePoint{};
  carrier_.requests_lost(reader);
}

// ---- the engine's events ---------------------------------------------------------------------

/// True: the event was for channels alone.
bool LeaseChannels::on(const xfer::Event& event) {
  if (reads_.on(event, clock_now())) {
    end_read();
    return true;
  }
  for (const auto& [holder, channel] : clients_) channel.end->on(event);
  for (const auto& [reader, channel] : servers_) channel.end->on(event);
  for (const auto& end : closed_clients_) end->on(event);
  for (const auto& [reader, end] : closed_servers_) end->on(event);
  if (event.kind == xfer::Event::Kind::peer_lost) {
    const auto lost = std::ranges::find(servers_, event.peer, [](const auto& entry) { return entry.second.peer; });
    if (lost != servers_.end()) close_server(InstanceId(lost->first));
    return false;
  }
  if (event.kind != xfer::Event::Kind::notify) return false;
  if (const auto asked = wire::decode_rfp_open(event.bytes)) {
    accept(event.peer, *asked, clock_now());
    return true;
  }
  return wire::decode_rfp_opened(event.bytes).has_value();  // its channel has taken it
}

void LeaseChannels::run(TimePoint now) {
  std::vector<InstanceId> broken;
  for (auto& [holder, channel] : clients_)
    if (!run_client(holder, channel, now)) broken.push_back(holder);
  for (const InstanceId& holder : broken) {
    const rfp::ClientEnd& end = *clients_.at(holder).end;
    log_debug("lease channel closed",
              {{"to", data_.name_of(holder)}, {"was_up", end.ready()}, {"why", to_string(end.refused())}});
    close_client(holder, now);
  }
  for (auto& [reader, channel] : servers_) serve(reader, channel, now);
  carrier_.on_time(now);
  if (now >= free_at_) free_closed(now);
  flush();
}

void LeaseChannels::free_closed(TimePoint now) {
  std::erase_if(closed_clients_, [](const auto& end) { return end->close(); });
  std::erase_if(closed_servers_, [](const auto& closed) { return closed.second->close(); });
  free_at_ = closed_clients_.empty() && closed_servers_.empty() ? kNever : after(now, kFreeAgain);
}

}  // namespace mc::host

// Paths of the rdma transport: planned and begun by the dialler, answered by the listener, verified by
// both, failed by either; and the slices that travel on them.
//
//   dialler                              listener
//     path_offer (its queue pairs)  -->    makes its own, connects them to the dialler's
//     connects, tests both ways     <--    path_answer
//     path_ready                    -->    looks at what was written here, tests both ways
//     looks, up                     <--    path_ready, up
#include <algorithm>

#include "base/assert.h"
#include "base/hash.h"
#include "base/log.h"
#include "xfer/access.h"
#include "xfer/rdma_transport.h"
#include "xfer/tally.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;
using State = PathMachine::State;

namespace {

TimePoint now() {
  return SystemClock::instance().now();
}

OutFrame frame(FrameType type, std::vector<std::byte> payload) {
  return control_frame(type, std::move(payload));
}

}  // namespace

std::string RdmaTransport::rail_name(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
  const std::string there = rail.remote() < endpoint.nics.size() ? endpoint.nics[rail.remote()].name : "?";
  return hardware_.ports[rail.local()].name() + "-" + there;
}

/// Which port with which: the dialler decides once, when it knows the peer's.
void RdmaTransport::plan(RdmaEndpoint& endpoint) {
  const wire::RdmaNics own = own_nics();
  const PathTimes times{.attempt = home_.options->connect_timeout / 2,
                        .cooldown_min = home_.options->rdma_cooldown_min,
                        .cooldown_max = home_.options->rdma_cooldown_max};
  endpoint.lanes_per_path = static_cast<size_t>(home_.options->rdma_lanes);
  for (const NicPair& pair : pair_nics(own.nics, endpoint.nics, wire::kRdmaPathsMax)) {
    auto rail =
        std::make_unique<RdmaRail>(static_cast<uint32_t>(endpoint.rails.size()), pair.local, pair.remote, times);
    rail->endpoint = endpoint.id;
    for (const GidPair& gids : pair.gids)
      if (rail->choices.size() < kChoicesMax)
        rail->choices.push_back(
            {own.nics[pair.local].gids[gids.local].gid, endpoint.nics[pair.remote].gids[gids.remote].gid});
    endpoint.rails.push_back(std::move(rail));
  }
  if (endpoint.rails.empty()) {
    std::string text = "no port of ours and the peer's have addresses that fit: ours";
    for (const auto& nic : own.nics) text += " " + nic.name + (nic.gids.empty() ? "" : "=" + gid_text(nic.gids[0].gid));
    text += ", its";
    for (const auto& nic : endpoint.nics)
      text += " " + nic.name + (nic.gids.empty() ? "" : "=" + gid_text(nic.gids[0].gid));
    return doom(endpoint, Code::unsupported, false, std::move(text));
  }
  for (const auto& rail : endpoint.rails) {
    if (startable(endpoint, *rail))
      begin(endpoint, *rail);
    else
      rail->last_error = "a port is down";
  }
  check_dial(endpoint);
}

bool RdmaTransport::startable(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
  return hardware_.ports[rail.local()].active && endpoint.nics[rail.remote()].active;
}

void RdmaTransport::begin(RdmaEndpoint& endpoint, RdmaRail& rail) {
  const RdmaPort& port = hardware_.ports[rail.local()];
  rail.machine.begin(now());
  due(rail.machine.due());
  auto offer = rail.open(port, endpoint.lanes_per_path, true);
  if (!offer) {
    rail.last_error = offer.error().what;
    rail.machine.fail(PathCause::nic, now());
    (void)rail.close();
    rail.machine.drained(now());
    return check_dial(endpoint);
  }
  offer->path_count = static_cast<uint32_t>(endpoint.rails.size());
  offer->nic_from = static_cast<uint16_t>(rail.local());
  offer->nic_to = static_cast<uint16_t>(rail.remote());
  offer->gid_from = rail.choices[rail.choice].local;
  offer->gid_to = rail.choices[rail.choice].remote;
  offer->mtu =
      negotiate_mtu(port.mtu, endpoint.nics[rail.remote()].mtu, static_cast<uint16_t>(home_.options->rdma_mtu_max));
  endpoint.push(frame(FrameType::path_offer, wire::encode(*offer)));
}

Code RdmaTransport::on_path(RdmaEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload,
                            const char*& why) {
  why = "malformed or impossible path message";
  if (endpoint.nics.empty()) return Code::corrupt;
  if (header.kind() == FrameType::path_offer) {
    const auto offer = wire::decode_rdma_path_offer(payload);
    return offer ? on_offer(endpoint, *offer, why) : Code::corrupt;
  }
  const auto rail_at = [&](uint32_t path) {
    return path < endpoint.rails.size() ? endpoint.rails[path].get() : nullptr;
  };
  if (header.kind() == FrameType::path_answer) {
    const auto answer = wire::decode_rdma_path_offer(payload);
    RdmaRail* rail = answer && !endpoint.accepted ? rail_at(answer->path) : nullptr;
    if (rail == nullptr) return Code::corrupt;
    if (rail->machine.current(answer->epoch) && rail->machine.state() == State::connecting)
      on_answer(endpoint, *rail, *answer);
  } else if (header.kind() == FrameType::path_ready) {
    const auto ready = wire::decode_rdma_path_ready(payload);
    RdmaRail* rail = ready ? rail_at(ready->path) : nullptr;
    if (rail == nullptr) return Code::corrupt;
    if (rail->machine.current(ready->epoch) && rail->machine.state() == State::verifying) on_ready(endpoint, *rail);
  } else {
    const auto down = wire::decode_rdma_path_down(payload);
    RdmaRail* rail = down ? rail_at(down->path) : nullptr;
    if (rail == nullptr) return Code::corrupt;
    if (rail->machine.current(down->epoch))
      fail(endpoint, *rail, path_cause(down->cause), "the peer says: " + down->text, false, *endpoint.out);
  }
  return Code::ok;
}

Code RdmaTransport::on_offer(RdmaEndpoint& endpoint, const wire::RdmaPathOffer& offer, const char*&) {
  if (!endpoint.accepted || offer.nic_from >= endpoint.nics.size() || offer.nic_to >= hardware_.ports.size())
    return Code::corrupt;
  if (endpoint.rails.empty()) {
    const PathTimes times{.attempt = home_.options->connect_timeout / 2};
    endpoint.lanes_per_path = offer.lanes.size();
    for (uint32_t i = 0; i < offer.path_count; ++i) {
      endpoint.rails.push_back(std::make_unique<RdmaRail>(i, offer.nic_to, offer.nic_from, times));
      endpoint.rails.back()->endpoint = endpoint.id;
    }
  }
  if (offer.path_count != endpoint.rails.size() || offer.lanes.size() != endpoint.lanes_per_path) return Code::corrupt;
  RdmaRail& rail = *endpoint.rails[offer.path];
  if (!rail.machine.newer(offer.epoch)) {
    home_.tally->failure("rdma: stale offer of a path");
    return Code::ok;
  }
  if (rail.machine.live()) fail(endpoint, rail, PathCause::restart, "the peer starts over", false, *endpoint.out);
  if (rail.machine.state() == State::draining)
    rail.pending = offer;
  else
    answer(endpoint, rail, offer);
  return Code::ok;
}

void RdmaTransport::answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& offer) {
  RdmaPort& port = hardware_.ports[offer.nic_to];
  rail.set_ports(offer.nic_to, offer.nic_from);
  if (!rail.machine.accept(offer.epoch, now())) return;
  due(rail.machine.due());
  const auto refuse = [&](PathCause cause, const std::string& text) {
    Outbox nothing;  // no slice was ever posted on this attempt
    fail(endpoint, rail, cause, text, true, nothing);
  };
  if (!port.active) return refuse(PathCause::port, port.name() + " is down");
  if (port.find(offer.gid_to) == nullptr)
    return refuse(PathCause::fault, port.name() + " has no address " + gid_text(offer.gid_to));
  auto own = rail.open(port, endpoint.lanes_per_path, false);
  if (!own) return refuse(PathCause::nic, own.error().what);
  own->path_count = offer.path_count;
  own->nic_from = offer.nic_to;
  own->nic_to = offer.nic_from;
  own->gid_from = offer.gid_to;
  own->gid_to = offer.gid_from;
  own->mtu = negotiate_mtu(port.mtu, offer.mtu, static_cast<uint16_t>(home_.options->rdma_mtu_max));
  if (auto connected = rail.connect(port, offer.gid_to, offer, own->mtu, *home_.options); !connected)
    return refuse(PathCause::fault, connected.error().what);
  rail.machine.connected();
  endpoint.push(frame(FrameType::path_answer, wire::encode(*own)));
}

void RdmaTransport::on_answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& answer) {
  const RdmaPort& port = hardware_.ports[rail.local()];
  const uint16_t mtu = negotiate_mtu(port.mtu, answer.mtu, static_cast<uint16_t>(home_.options->rdma_mtu_max));
  auto connected = rail.connect(port, rail.choices[rail.choice].local, answer, mtu, *home_.options);
  if (connected) {
    rail.machine.connected();
    connected = rail.probe();
  }
  if (!connected) return fail(endpoint, rail, PathCause::fault, connected.error().what, true, *endpoint.out);
  serve(endpoint, rail, *endpoint.out);
}

void RdmaTransport::on_ready(RdmaEndpoint& endpoint, RdmaRail& rail) {
  auto right = rail.check_written();
  if (right && endpoint.accepted && !rail.probing()) {
    right = rail.probe();
    if (right) return serve(endpoint, rail, *endpoint.out);
  } else if (right && !endpoint.accepted && rail.probed()) {
    return rail_up(endpoint, rail, *endpoint.out);
  } else if (right) {
    right = Error{Code::corrupt, "rdma: the peer was ready out of turn"};
  }
  fail(endpoint, rail, PathCause::fault, right.error().what, true, *endpoint.out);
}

/// Our test pattern went there and theirs came here.
void RdmaTransport::on_probed(RdmaEndpoint& endpoint, RdmaRail& rail, Outbox& out) {
  endpoint.push(frame(FrameType::path_ready, wire::encode(wire::RdmaPathReady{rail.id(), rail.machine.epoch()})));
  if (endpoint.accepted) rail_up(endpoint, rail, out);
}

void RdmaTransport::rail_up(RdmaEndpoint& endpoint, RdmaRail& rail, Outbox& out) {
  rail.machine.verified(now());
  rail.last_error.clear();
  // the test needed write access; from now on only whoever has a landing buffer here keeps it
  if (auto done = rail.allow_writes(takes_writes(endpoint, *home_.describe())); !done)
    home_.tally->failure("rdma: the device cannot restrict a connected queue pair");
  endpoint.dark_since = kNever;
  log_info("rdma path up", {{"peer", endpoint.name},
                            {"path", rail_name(endpoint, rail)},
                            {"epoch", uint64_t{rail.machine.epoch()}},
                            {"mtu_bytes", uint64_t{rail.mtu()}},
                            {"lanes", uint64_t{rail.lane_count()}}});
  if (std::exchange(endpoint.up, true)) return;
  endpoint.deadline = kNever;
  out.news.push_back({.kind = News::Kind::up,
                      .endpoint = endpoint.id,
                      .accepted = endpoint.accepted,
                      .row = index_ - 1u,
                      .instance = endpoint.peer,
                      .text = endpoint.name,
                      .descriptor = endpoint.descriptor});
}

/// Takes what has completed on a path and acts on it.
void RdmaTransport::serve(RdmaEndpoint& endpoint, RdmaRail& rail, Outbox& out) {
  polled_.ok.clear();
  polled_.completions = 0;
  polled_.failure = WorkStatus::ok;
  rail.poll(polled_);
  uint64_t moved = 0;
  for (const Slice& slice : polled_.ok) {
    moved += slice.local.size();
    if (!rail.cancelled.empty() && rail.cancelled.erase(slice.id) > 0 && rail.cancelled.empty())
      rail.cancelled_since = kNever;
    report(slice, out);
  }
  if (polled_.completions > 0) rail.progress = round_;
  if (moved > 0) rail.moved(moved, round_);
  if (polled_.failure != WorkStatus::ok && rail.machine.live()) {
    const WorkStatus status = polled_.failure;
    const std::string text = std::string(to_string(status)) + " (lane " + std::to_string(polled_.failed_lane) + ")";
    return fail(endpoint, rail, classify(status).cause, text, true, out);
  }
  if (rail.machine.state() == State::draining && rail.drained()) return finish_drain(endpoint, rail, out);
  if (rail.machine.state() != State::verifying || !rail.probing() || !rail.probed() || rail.told_ready) return;
  rail.told_ready = true;
  if (auto right = rail.check_read(); !right)
    return fail(endpoint, rail, PathCause::fault, right.error().what, true, out);
  on_probed(endpoint, rail, out);
}

void RdmaTransport::report(const Slice& slice, Outbox& out) {
  SliceDone done{.slice = slice.id};
  if (slice.checksum) done.crc32c = crc32c(slice.local);
  home_.tally->add(index_ - 1u, slice.op == Op::read ? Flow::read_bytes : Flow::written_bytes, slice.local.size());
  out.done.push_back(std::move(done));
}

void RdmaTransport::fail(RdmaEndpoint& endpoint, RdmaRail& rail, PathCause cause, const std::string& text, bool tell,
                         Outbox& out) {
  const bool was_up = rail.machine.state() == State::up;
  if (!rail.machine.fail(cause, now())) return;
  rail.last_error = text;
  rail.fail_lanes();
  rail.drain_deadline = now() + kDrainMax;
  due(rail.drain_deadline);
  home_.tally->failure("rdma: " + std::string(to_string(cause)));
  log_warn("rdma path down", {{"peer", endpoint.name},
                              {"path", rail_name(endpoint, rail)},
                              {"epoch", uint64_t{rail.machine.epoch()}},
                              {"cause", to_string(cause)},
                              {"why", text}});
  if (tell)
    endpoint.push(frame(
        FrameType::path_down,
        wire::encode(wire::RdmaPathDown{
            .path = rail.id(), .epoch = rail.machine.epoch(), .cause = static_cast<uint8_t>(cause), .text = text})));
  if (!was_up && !rail.choices.empty()) {  // perhaps another pair of addresses works
    ++rail.choice;
    rail.exhausted |= rail.choice == rail.choices.size() || cause == PathCause::port;
    rail.choice %= rail.choices.size();
    if (!rail.exhausted) rail.machine.wake(now());
  }
  const bool any_up = std::any_of(endpoint.rails.begin(), endpoint.rails.end(),
                                  [](const auto& other) { return other->machine.state() == State::up; });
  if (endpoint.up && !any_up && endpoint.dark_since == kNever) {
    endpoint.dark_since = now();
    due(endpoint.dark_since + home_.options->rdma_blackout);
  }
  // the flushed requests may be there already; an event tells of those that come later
  rail.arm();
  serve(endpoint, rail, out);
}

/// The queue pairs hold nothing any more: slices that did not make it go back to the engine.
void RdmaTransport::finish_drain(RdmaEndpoint& endpoint, RdmaRail& rail, Outbox& out) {
  const std::string where = "rdma path " + rail_name(endpoint, rail) + ": ";
  rail.drain_deadline = kNever;
  for (const RdmaLane::Failed& failed : rail.close()) {
    SliceDone done{.slice = failed.slice.id, .code = classify(failed.status).code};
    // refused, but the peer has changed what it offers since: worth asking with the new keys
    if (done.code == Code::not_found && failed.slice.snapshot < endpoint.keys_version &&
        endpoint.keys.contains(failed.slice.buffer))
      done.code = Code::io;
    done.text =
        where + (failed.status == WorkStatus::flushed ? rail.last_error : std::string(to_string(failed.status)));
    out.done.push_back(std::move(done));
  }
  rail.machine.drained(now());
  due(std::max(rail.machine.due(), now()));
  if (endpoint.accepted && !rail.pending.lanes.empty()) {
    const wire::RdmaPathOffer offer = std::exchange(rail.pending, {});
    return answer(endpoint, rail, offer);
  }
  check_dial(endpoint);
}

/// A dial is over when every path has been tried with every pair of addresses.
void RdmaTransport::check_dial(RdmaEndpoint& endpoint) {
  if (endpoint.up || endpoint.accepted || endpoint.rails.empty()) return;
  std::string why;
  for (const auto& rail : endpoint.rails) {
    if (rail->machine.live() || rail->machine.state() == State::draining) return;
    if (startable(endpoint, *rail) && !rail->exhausted) return;
    why += (why.empty() ? "" : "; ") + rail_name(endpoint, *rail) + ": " + rail->last_error;
  }
  doom(endpoint, Code::io, false, "no path could be set up: " + why);
}

RdmaRail* RdmaTransport::rail_of(EndpointId id, int lane, size_t& index) const {
  const RdmaEndpoint* endpoint = find(id);
  if (endpoint == nullptr || endpoint->lanes_per_path == 0) return nullptr;
  const size_t path = static_cast<size_t>(lane) / endpoint->lanes_per_path;
  index = static_cast<size_t>(lane) % endpoint->lanes_per_path;
  return path < endpoint->rails.size() ? endpoint->rails[path].get() : nullptr;
}

/// False: `refusal` says why, or `later`: the keys are on their way.
bool RdmaTransport::resolve(RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice, PlanItem& item,
                            SliceDone& refusal, bool& later) {
  refusal = {.slice = slice.id, .code = Code::invalid};
  const auto keys = endpoint.keys.find(slice.buffer);
  if (keys == endpoint.keys.end()) {
    later = slice.snapshot > endpoint.keys_version;
    refusal.code = Code::not_found;
    refusal.text = "the peer gives no rdma key for buffer " + std::to_string(slice.buffer) +
                   " (unregistered, or never offered to us)";
    return false;
  }
  const wire::RdmaKeys& there = keys->second;
  if (!inside(slice.offset, slice.local.size(), there.length)) {
    refusal.text = "range beyond the end of the buffer";
    return false;
  }
  if (memory_.local(device_index(rail.local()), slice.local, item.local) != Code::ok) {
    refusal.text = "the local memory is not registered for rdma";
    return false;
  }
  const size_t chunks = there.chunks();
  item.slice = slice;
  item.remote = {there.base, there.length, there.chunk_bytes,
                 std::span(there.rkeys).subspan(rail.remote() * chunks, chunks)};
  return true;
}

/// Bytes a lane of the path may have in flight. A path does not run far ahead of another that has less:
/// a batch that fits one window would use one path only.
uint64_t RdmaTransport::window(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
  uint64_t window = RdmaLane::kWindowBytes;
  for (const auto& other : endpoint.rails) {
    if (other.get() == &rail || other->machine.state() != State::up) continue;
    window = std::min(window, other->bytes() / endpoint.lanes_per_path + kAheadBytes);
  }
  return window;
}

size_t RdmaTransport::post(EndpointId id, int lane_index, std::span<const Slice> slices, Outbox& out) {
  size_t index = 0;
  RdmaRail* rail = rail_of(id, lane_index, index);
  if (rail == nullptr || rail->machine.state() != State::up) return 0;
  RdmaEndpoint& endpoint = *find(id);
  if (endpoint.doomed) return 0;
  RdmaLane& lane = rail->lane(index);
  const uint64_t allowance = rail->allowance();
  size_t room = lane.room(slices, window(endpoint, *rail));
  uint64_t ahead = rail->bytes();
  for (size_t i = 0; i < room; ++i) {
    ahead += slices[i].local.size();
    if (ahead > allowance && ahead > slices[i].local.size()) room = i;  // one slice always
  }
  size_t refused = 0;  // those at the front are answered here; one behind others waits for its turn
  items_.clear();
  for (size_t i = 0; i < room; ++i) {
    PlanItem item;
    SliceDone refusal;
    bool later = false;
    if (resolve(endpoint, *rail, slices[i], item, refusal, later)) {
      items_.push_back(item);
      continue;
    }
    if (later || !items_.empty()) break;
    home_.tally->failure("rdma: " + refusal.text);
    out.done.push_back(std::move(refusal));
    ++refused;
  }
  if (rail->outstanding() == 0) {  // the stall clock starts with work
    rail->progress = now();
    rail->started(rail->progress);
    due(rail->progress + home_.options->stall_timeout);
  }
  const RdmaLane::Posted posted = lane.post(items_);
  if (posted.error != 0) {
    fail(endpoint, *rail, PathCause::fault, errno_error("post", posted.error).what, true, out);
    sweep(out);
  }
  return refused + posted.taken;
}

bool RdmaTransport::cancel(EndpointId id, int lane, uint64_t slice) {
  size_t index = 0;
  RdmaRail* rail = rail_of(id, lane, index);
  if (rail == nullptr || index >= rail->lane_count() || !rail->lane(index).holds(slice)) return true;
  // posted is posted: a SliceDone follows, soon, or the path starts over to get the memory back
  rail->cancelled.insert(slice);
  if (rail->cancelled_since == kNever) rail->cancelled_since = now();
  due(rail->cancelled_since + home_.options->drain_grace / 2);
  return false;
}

// ---- devices ------------------------------------------------------------------------------------

void RdmaTransport::on_completions(RdmaDevice& device, Outbox& out) {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (::ibv_get_cq_event(device.channel(), &queue, &context) == 0) {
    ::ibv_ack_cq_events(queue, 1);  // at once: destroying a queue waits for it
    auto& rail = *static_cast<RdmaRail*>(context);
    RdmaEndpoint* endpoint = find(rail.endpoint);
    MC_ASSERT(endpoint != nullptr);
    rail.arm();  // before polling: what completes in between raises an event
    serve(*endpoint, rail, out);
  }
}

template <class Select>
void RdmaTransport::fail_where(Select select, PathCause cause, const std::string& text, Outbox& out) {
  for (auto& [id, endpoint] : endpoints_)
    for (const auto& rail : endpoint->rails)
      if (!endpoint->doomed && select(*rail)) fail(*endpoint, *rail, cause, text, true, out);
}

void RdmaTransport::on_port_event(RdmaDevice& device, int number, Outbox& out) {
  for (size_t i = 0; i < hardware_.ports.size(); ++i) {
    RdmaPort& port = hardware_.ports[i];
    if (port.device != &device || port.number != number) continue;
    const bool was_active = port.active;
    port.refresh(home_.options->rdma_gid_index);
    if (port.active != was_active) log_warn(port.active ? "rdma port up" : "rdma port down", {{"port", port.name()}});
    if (!port.active)
      fail_where([&](const RdmaRail& rail) { return rail.local() == i; }, PathCause::port, port.name() + " is down",
                 out);
    for (auto& [id, endpoint] : endpoints_)
      for (const auto& rail : endpoint->rails)
        if (port.active && rail->local() == i) rail->machine.wake(now());
    due(now());
  }
  tell_ports();
}

void RdmaTransport::on_device_events(RdmaDevice& device, Outbox& out) {
  ibv_async_event event{};
  while (::ibv_get_async_event(device.context(), &event) == 0) {
    const std::string what = ::ibv_event_type_str(event.event_type);
    const ibv_event_type type = event.event_type;
    const ibv_qp* pair = event.element.qp;
    const ibv_cq* queue = event.element.cq;
    const int port = event.element.port_num;
    ::ibv_ack_async_event(&event);  // at once: destroying its object waits for it
    switch (type) {
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER: on_port_event(device, port, out); break;
      case IBV_EVENT_DEVICE_FATAL:
        device.failed = true;
        log_error("rdma device failed", {{"device", device.name()}});
        for (int number = 1; number <= device.limits().phys_port_cnt; ++number) on_port_event(device, number, out);
        break;
      case IBV_EVENT_CQ_ERR:
        fail_where([&](const RdmaRail& rail) { return rail.queue() == queue; }, PathCause::nic, what, out);
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        fail_where([&](const RdmaRail& rail) { return rail.has(pair); }, PathCause::fault, what, out);
        break;
      default: break;
    }
  }
}

}  // namespace mc::xfer

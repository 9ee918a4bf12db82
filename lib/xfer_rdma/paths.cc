#include "xfer_rdma/paths.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "base/log.h"
#include "xfer/tally.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;
using State = PathMachine::State;

namespace {

std::string addresses(std::span<const wire::RdmaNic> nics) {
  std::string text;
  for (const auto& nic : nics) text += " " + nic.name + (nic.gids.empty() ? "" : "=" + gid_text(nic.gids[0].gid));
  return text;
}

}  // namespace

PathTimes RdmaPaths::times() const {
  const Options& options = *parts_.services.options;
  return {.attempt = options.connect_timeout / 2,
          .cooldown_min = options.rdma_cooldown_min,
          .cooldown_max = options.rdma_cooldown_max};
}

uint16_t RdmaPaths::mtu_with(const RdmaPort& port, uint16_t theirs) const {
  return negotiate_mtu(port.mtu, theirs, static_cast<uint16_t>(parts_.services.options->rdma_mtu_max));
}

void RdmaPaths::plan(RdmaEndpoint& endpoint) {
  MC_ASSERT(endpoint.rails.empty() && !endpoint.accepted);
  const wire::RdmaNics own = parts_.nics();
  const auto& theirs = endpoint.keyring.nics();
  endpoint.lanes_per_path = static_cast<size_t>(parts_.services.options->rdma_lanes);
  for (const NicPair& pair : pair_nics(own.nics, theirs, parts_.paths_max(endpoint.lanes_per_path))) {
    auto rail = std::make_unique<RdmaRail>(endpoint.id, static_cast<uint32_t>(endpoint.rails.size()), pair.local,
                                           pair.remote, times());
    rail->pace = TokenBucket(parts_.services.options->rdma_pace);
    rail->choices = GidChoices(gid_choices(own.nics[pair.local].gids, theirs[pair.remote].gids, kChoicesMax));
    endpoint.rails.push_back(std::move(rail));
  }
  if (endpoint.rails.empty())
    return endpoint.doom({Code::unsupported, false,
                          "no local port and peer port have addresses that fit: local" + addresses(own.nics) +
                              ", peer" + addresses(theirs)});
  parts_.want(endpoint);
}

void RdmaPaths::replan(RdmaEndpoint& endpoint, Reports& out) {
  const auto& theirs = endpoint.keyring.nics();
  if (endpoint.accepted || theirs.empty()) return;
  const wire::RdmaNics own = parts_.nics();
  for (const auto& rail : endpoint.rails) {
    const bool live = rail->machine.live();
    auto pairs = gid_choices(own.nics[rail->local].gids, theirs[rail->remote].gids, kChoicesMax,
                             live ? rail->choices.current() : nullptr);
    const GidChoices::Change change = rail->choices.replan(std::move(pairs), live);
    if (change == GidChoices::Change::none) continue;
    log_info("rdma addresses planned again", {{"peer", endpoint.name},
                                              {"path", parts_.name_of(endpoint, *rail)},
                                              {"pairs", uint64_t{rail->choices.size()}}});
    if (change == GidChoices::Change::gone) {
      fail(endpoint, *rail, PathCause::restart, "one of its addresses is gone", true, out);
      rail->choices.restart();  // a failure moves to the next pair
    }
    if (!rail->machine.live()) rail->machine.wake(now());
    parts_.due(now());
  }
}

bool RdmaPaths::startable(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
  return parts_.port_of(rail).active && endpoint.keyring.nics()[rail.remote].active && !rail.choices.empty();
}

void RdmaPaths::start(RdmaEndpoint& endpoint) {
  for (const auto& rail : endpoint.rails) {
    rail->machine.wake(now());
    if (endpoint.doomed() || !rail->machine.may_begin(now())) continue;
    if (endpoint.accepted)
      answer_pending(endpoint, *rail);
    else if (startable(endpoint, *rail))
      begin(endpoint, *rail);
    else
      rail->last_error = "a port is down";
  }
  check_dial(endpoint);
}

void RdmaPaths::begin(RdmaEndpoint& endpoint, RdmaRail& rail) {
  MC_ASSERT(!endpoint.accepted && parts_.awake(endpoint) && rail.choices.current() != nullptr);
  const RdmaPort& port = parts_.port_of(rail);
  rail.machine.begin(now());
  parts_.due(rail.machine.due());
  auto offer = rail.open(port, endpoint.lanes_per_path, true);
  if (!offer) {
    rail.last_error = offer.error().what;
    rail.machine.fail(PathCause::nic, now());
    (void)rail.close(parts_.reaper);
    rail.machine.drained(now());
    return check_dial(endpoint);
  }
  offer->path_count = static_cast<uint32_t>(endpoint.rails.size());
  offer->nic_from = static_cast<uint16_t>(rail.local);
  offer->nic_to = static_cast<uint16_t>(rail.remote);
  offer->gid_from = rail.choices.current()->local;
  offer->gid_to = rail.choices.current()->remote;
  offer->mtu = mtu_with(port, endpoint.keyring.nics()[rail.remote].mtu);
  endpoint.socket.push(control_frame(FrameType::path_offer, wire::encode(*offer)));
}

Code RdmaPaths::on_frame(RdmaEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload,
                         Reports& out, const char*& why) {
  why = "malformed or impossible path message";
  if (endpoint.keyring.nics().empty()) return Code::corrupt;
  if (header.kind() == FrameType::path_offer) {
    const auto offer = wire::decode_rdma_path_offer(payload);
    return offer ? on_offer(endpoint, *offer, out) : Code::corrupt;
  }
  const auto rail_at = [&](uint32_t path) {
    return path < endpoint.rails.size() ? endpoint.rails[path].get() : nullptr;
  };
  if (header.kind() == FrameType::path_answer) {
    const auto answer = wire::decode_rdma_path_offer(payload);
    RdmaRail* rail = answer && !endpoint.accepted ? rail_at(answer->path) : nullptr;
    if (rail == nullptr) return Code::corrupt;
    on_answer(endpoint, *rail, *answer, out);
  } else if (header.kind() == FrameType::path_ready) {
    const auto ready = wire::decode_rdma_path_ready(payload);
    RdmaRail* rail = ready ? rail_at(ready->path) : nullptr;
    if (rail == nullptr) return Code::corrupt;
    if (rail->machine.current(ready->epoch) && rail->machine.state() == State::verifying)
      on_ready(endpoint, *rail, out);
  } else {
    const auto down = wire::decode_rdma_path_down(payload);
    RdmaRail* rail = down ? rail_at(down->path) : nullptr;
    if (rail == nullptr) return Code::corrupt;
    on_down(endpoint, *rail, *down, out);
  }
  return Code::ok;
}

void RdmaPaths::on_down(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathDown& down, Reports& out) {
  if (rail.answer.pending.epoch == down.epoch) rail.answer.pending = {};  // the dialler no longer waits for the answer
  peer_end_gone(rail, down.epoch, out);
  // Tells the peer that this end is gone as well.
  if (rail.machine.current(down.epoch))
    fail(endpoint, rail, path_cause(down.cause), "reported by the peer: " + down.text, true, out);
}

Code RdmaPaths::on_offer(RdmaEndpoint& endpoint, const wire::RdmaPathOffer& offer, Reports& out) {
  if (!endpoint.accepted || offer.nic_from >= endpoint.keyring.nics().size() ||
      offer.nic_to >= parts_.hardware.ports.size())
    return Code::corrupt;
  if (endpoint.rails.empty()) {
    endpoint.lanes_per_path = offer.lanes.size();
    for (uint32_t i = 0; i < offer.path_count; ++i) {
      endpoint.rails.push_back(
          std::make_unique<RdmaRail>(endpoint.id, i, offer.nic_to, offer.nic_from,
                                     PathTimes{.attempt = parts_.services.options->connect_timeout / 2}));
      endpoint.rails.back()->pace = TokenBucket(parts_.services.options->rdma_pace);
    }
  }
  if (offer.path_count != endpoint.rails.size() || offer.lanes.size() != endpoint.lanes_per_path) return Code::corrupt;
  RdmaRail& rail = *endpoint.rails[offer.path];
  if (!rail.machine.newer(offer.epoch)) {
    parts_.services.tally->failure("rdma: stale offer of a path");
    return Code::ok;
  }
  peer_end_gone(rail, offer.epoch - 1, out);
  if (rail.machine.live()) fail(endpoint, rail, PathCause::restart, "the peer starts over", false, out);
  rail.answer.pending = offer;
  if (parts_.awake(endpoint))
    answer_pending(endpoint, rail);
  else
    parts_.want(endpoint);
  return Code::ok;
}

/// Answers the latest offer of a path when the objects of the last attempt are gone. The rate of answers is limited,
/// because every answer costs queue pairs and a peer may flood.
void RdmaPaths::answer_pending(RdmaEndpoint& endpoint, RdmaRail& rail) {
  if (!endpoint.accepted || rail.answer.pending.lanes.empty() || !parts_.awake(endpoint)) return;
  if (rail.machine.live() || rail.machine.state() == State::draining) return;
  if (rail.answer.next > now()) return parts_.due(rail.answer.next);
  rail.answer.next = now() + kAnswerPause;
  const wire::RdmaPathOffer offer = std::exchange(rail.answer.pending, {});
  answer(endpoint, rail, offer);
}

void RdmaPaths::answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& offer) {
  MC_ASSERT(endpoint.accepted && offer.lanes.size() == endpoint.lanes_per_path);
  MC_ASSERT_LT(offer.nic_to, parts_.hardware.ports.size());
  rail.local = offer.nic_to;
  rail.remote = offer.nic_from;
  const RdmaPort& port = parts_.port_of(rail);
  if (!rail.machine.accept(offer.epoch, now())) return;
  parts_.due(rail.machine.due());
  const auto refuse = [&](PathCause cause, const std::string& text) {
    Reports nothing;  // no slice was posted on this attempt
    fail(endpoint, rail, cause, text, true, nothing);
  };
  const size_t lanes = endpoint.lanes_per_path;
  if (rail.id >= parts_.paths_max(lanes) || lanes > parts_.services.options->rdma_pairs_max)
    return refuse(PathCause::fault, "more queue pairs than rdma_pairs_max allows here");
  if (!port.active) return refuse(PathCause::port, port.name() + " is down");
  if (port.find(offer.gid_to) == nullptr)
    return refuse(PathCause::fault, port.name() + " has no address " + gid_text(offer.gid_to));
  auto own = rail.open(port, lanes, false);
  if (!own) return refuse(PathCause::nic, own.error().what);
  own->path_count = offer.path_count;
  own->nic_from = offer.nic_to;
  own->nic_to = offer.nic_from;
  own->gid_from = offer.gid_to;
  own->gid_to = offer.gid_from;
  own->mtu = mtu_with(port, offer.mtu);
  auto work = rail.attempt.connect(port, offer.gid_to, offer, own->mtu, *parts_.services.options);
  if (!work) return refuse(PathCause::fault, work.error().what);
  rail.answer.own = std::move(*own);
  join(rail, std::move(*work));
}

/// Connects the path's queue pairs on another thread. on_joined() follows.
void RdmaPaths::join(RdmaRail& rail, RdmaAttempt::Work work) {
  MC_ASSERT(!rail.joining);
  rail.joining = true;
  parts_.connector.start({rail.endpoint, rail.id, rail.machine.epoch()}, std::move(work));
}

void RdmaPaths::on_joined(const RdmaConnector::Done& done, Reports& out) {
  auto& orphans = parts_.orphans;
  const auto orphan = std::find_if(orphans.begin(), orphans.end(), [&](const auto& rail) {
    return rail->endpoint == done.attempt.endpoint && rail->id == done.attempt.path;
  });
  if (orphan != orphans.end()) {  // its connection was closed in the meantime
    (void)(*orphan)->close(parts_.reaper);
    orphans.erase(orphan);
    return;
  }
  RdmaEndpoint* endpoint = parts_.find(done.attempt.endpoint);
  MC_ASSERT(endpoint != nullptr && done.attempt.path < endpoint->rails.size());
  RdmaRail& rail = *endpoint->rails[done.attempt.path];
  MC_ASSERT(rail.joining && rail.id == done.attempt.path);
  rail.joining = false;
  // The attempt failed in the meantime.
  if (!rail.machine.current(done.attempt.epoch)) return serve(*endpoint, rail, out);
  if (done.error) return fail(*endpoint, rail, PathCause::fault, done.error->what, true, out);
  rail.machine.connected();
  if (endpoint->accepted)
    return endpoint->socket.push(control_frame(FrameType::path_answer, wire::encode(rail.answer.own)));
  if (auto probed = rail.attempt.start_probe(); !probed)
    return fail(*endpoint, rail, PathCause::fault, probed.error().what, true, out);
  serve(*endpoint, rail, out);
}

void RdmaPaths::on_answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& answer, Reports& out) {
  peer_end_gone(rail, answer.epoch - 1, out);
  if (!rail.machine.current(answer.epoch) || rail.machine.state() != State::connecting || rail.joining) return;
  const RdmaPort& port = parts_.port_of(rail);
  const wire::Gid& own = rail.choices.current()->local;
  auto work = rail.attempt.connect(port, own, answer, mtu_with(port, answer.mtu), *parts_.services.options);
  if (!work) return fail(endpoint, rail, PathCause::fault, work.error().what, true, out);
  join(rail, std::move(*work));
}

void RdmaPaths::on_ready(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  auto right = rail.attempt.probe.check_written();
  if (right && endpoint.accepted && !rail.attempt.probe.posted()) {
    right = rail.attempt.start_probe();
    if (right) return serve(endpoint, rail, out);
  } else if (right && !endpoint.accepted && rail.attempt.probe.done()) {
    return rail_up(endpoint, rail, out);
  } else if (right) {
    right = Error{Code::corrupt, "rdma: the peer sent path_ready out of order"};
  }
  fail(endpoint, rail, PathCause::fault, right.error().what, true, out);
}

void RdmaPaths::rail_up(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  MC_ASSERT(parts_.pool.holds(endpoint.id) && !rail.joining);
  rail.machine.verified(now());
  rail.last_error.clear();
  out.room = true;  // slices that its lanes refused until now may wait
  // The test needed write access. From now on a peer keeps it only if it has a landing buffer here.
  if (auto done = rail.attempt.allow_writes(endpoint.takes_writes(*parts_.services.describe())); !done)
    parts_.services.tally->failure("rdma: the device cannot restrict a connected queue pair");
  endpoint.dark_since = kNever;
  endpoint.used = now();
  const bool woken = rail.machine.cause() == PathCause::rest;  // an ordinary wake-up from rest
  log(woken ? LogLevel::debug : LogLevel::info, "rdma path up",
      {{"peer", endpoint.name},
       {"path", parts_.name_of(endpoint, rail)},
       {"epoch", uint64_t{rail.machine.epoch()}},
       {"mtu_bytes", uint64_t{rail.attempt.mtu()}},
       {"lanes", uint64_t{rail.attempt.lane_count()}}});
  if (!std::exchange(endpoint.up, true)) first_up(endpoint, out);
}

void RdmaPaths::first_up(RdmaEndpoint& endpoint, Reports& out) {
  endpoint.up_at = now();
  endpoint.socket.deadline = kNever;
  out.events.push_back({.kind = EndpointEvent::Kind::up,
                        .endpoint = endpoint.id,
                        .accepted = endpoint.accepted,
                        .proven = endpoint.socket.handshake.proven(),
                        .row = parts_.row(),
                        .instance = endpoint.peer,
                        .text = endpoint.name,
                        .descriptor = endpoint.descriptor});
  endpoint.messages.deliver(out);  // the peer's path may have been up a moment earlier
}

/// Dooms a dial whose paths have all been tried with every pair of addresses.
void RdmaPaths::check_dial(RdmaEndpoint& endpoint) {
  if (endpoint.up || endpoint.accepted || endpoint.rails.empty()) return;
  std::string why;
  for (const auto& rail : endpoint.rails) {
    if (rail->machine.live() || rail->machine.state() == State::draining) return;
    if (startable(endpoint, *rail) && !rail->choices.exhausted()) return;
    why += (why.empty() ? "" : "; ") + parts_.name_of(endpoint, *rail) + ": " + rail->last_error;
  }
  endpoint.doom({Code::io, false, "no path could be set up: " + why});
}

void RdmaPaths::tick(RdmaEndpoint& endpoint, TimePoint at, Reports& out) {
  for (const auto& rail : endpoint.rails)
    if (!endpoint.doomed()) tick(endpoint, *rail, at, out);
}

void RdmaPaths::tick(RdmaEndpoint& endpoint, RdmaRail& rail, TimePoint at, Reports& out) {
  const Options& options = *parts_.services.options;
  PathMachine& machine = rail.machine;
  answer_pending(endpoint, rail);
  if (machine.late(at)) fail(endpoint, rail, PathCause::fault, "not set up and verified in time", true, out);
  if (rail.up() && !rail.attempt.drained() && rail.progress + options.stall_timeout <= at)
    fail(endpoint, rail, PathCause::fault, "no progress with transfers outstanding", true, out);
  if (rail.up() && rail.cancelled.since != kNever) {
    // Earlier than the time at which the engine would close the whole connection.
    const TimePoint limit = rail.cancelled.since + options.drain_grace / 2;
    if (limit <= at)
      fail(endpoint, rail, PathCause::restart, "cancelled transfers take too long", true, out);
    else
      parts_.due(limit);
  }
  if (machine.state() == State::draining) {
    serve(endpoint, rail, out);
    // Overdue: destroying the queue pairs ends the requests that were not flushed.
    if (machine.state() == State::draining && rail.drain_deadline <= at && !rail.joining)
      finish_drain(endpoint, rail, out);
  }
  rail.hold.take(at, out.done);
  if (rail.paced && !rail.pace.open(at)) {
    parts_.due(rail.pace.opens());
  } else if (std::exchange(rail.paced, false)) {
    out.room = true;
  }
  parts_.due(rail.hold.due());
  if (!endpoint.accepted && parts_.awake(endpoint) && machine.may_begin(at) && startable(endpoint, rail))
    begin(endpoint, rail);
  if (rail.up() && !rail.attempt.drained()) parts_.due(rail.progress + options.stall_timeout);
  if (machine.state() == State::draining && !rail.joining) parts_.due(rail.drain_deadline);
  if (machine.due() > at) parts_.due(machine.due());
}

void RdmaPaths::serve(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out, const ibv_wc* first) {
  polled_.ok.clear();
  polled_.completions = 0;
  polled_.failure = WorkStatus::ok;
  polled_.messages.clear();
  if (first != nullptr) rail.attempt.handle(*first, polled_);
  rail.attempt.poll(polled_);
  if (!polled_.messages.empty()) endpoint.messages.take(rail, polled_.messages, out);
  uint64_t moved = 0;
  for (const Slice& slice : polled_.ok) {
    moved += slice.local.size();
    auto& cancelled = rail.cancelled;
    if (!cancelled.slices.empty() && cancelled.slices.erase(slice.id) > 0 && cancelled.slices.empty())
      cancelled.since = kNever;
    report(slice, out);
  }
  if (polled_.completions > 0) rail.progress = parts_.round;
  if (moved > 0) {
    endpoint.used = parts_.round;
    parts_.pool.used(endpoint.id, parts_.round);
    rail.speed.moved(moved, parts_.round);
  }
  if (polled_.failure != WorkStatus::ok && rail.machine.live()) {
    const WorkStatus status = polled_.failure;
    const std::string text = std::string(to_string(status)) + " (lane " + std::to_string(polled_.failed_lane) + ")";
    return fail(endpoint, rail, classify(status).cause, text, true, out);
  }
  if (rail.machine.state() == State::draining && rail.attempt.drained() && rail.attempt.receives_done() &&
      !rail.joining)
    return finish_drain(endpoint, rail, out);
  if (rail.machine.state() != State::verifying || !rail.attempt.probe.finish()) return;
  if (auto right = rail.attempt.probe.check_read(); !right)
    return fail(endpoint, rail, PathCause::fault, right.error().what, true, out);
  endpoint.socket.push(
      control_frame(FrameType::path_ready, wire::encode(wire::RdmaPathReady{rail.id, rail.machine.epoch()})));
  if (endpoint.accepted) rail_up(endpoint, rail, out);
}

void RdmaPaths::report(const Slice& slice, Reports& out) {
  SliceDone done{.slice = slice.id};
  if (slice.checksum) done.crc32c = crc32c(slice.local);
  count(slice);
  out.done.push_back(std::move(done));
}

void RdmaPaths::on_events(RdmaDevice& device, Reports& out) {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (::ibv_get_cq_event(device.channel(), &queue, &context) == 0) {
    // The queue and its anchor cannot be destroyed before the event is acknowledged.
    RdmaRail* rail = static_cast<const RailAnchor*>(context)->rail;
    ::ibv_ack_cq_events(queue, 1);
    if (rail == nullptr) continue;
    RdmaEndpoint* endpoint = parts_.find(rail->endpoint);
    MC_ASSERT(endpoint != nullptr);
    rail->attempt.disarmed();  // until doze(), because the engine polls as long as there is work
    serve(*endpoint, *rail, out);
  }
}

bool RdmaPaths::poll(bool arm, Reports& out) {
  bool changed = false;
  for (auto& [id, endpoint] : parts_.endpoints)
    for (const auto& rail : endpoint->rails) {
      if (rail->attempt.armed() && (arm || rail->attempt.outstanding() == 0)) continue;
      if (arm) rail->attempt.arm();  // armed before the poll, so that a completion in between raises an event
      changed |= !rail->up();
      serve(*endpoint, *rail, out);
      changed |= !rail->up();
    }
  return changed;
}

void RdmaPaths::fail(RdmaEndpoint& endpoint, RdmaRail& rail, PathCause cause, const std::string& text, bool tell,
                     Reports& out) {
  const bool was_up = rail.up();
  if (!rail.machine.fail(cause, now())) return;
  rail.last_error = text;
  rail.attempt.fail_lanes();
  endpoint.messages.path_lost(rail);
  rail.drain_deadline = now() + kDrainMax;
  parts_.due(rail.drain_deadline);
  if (cause != PathCause::rest) {
    parts_.services.tally->failure("rdma: " + std::string(to_string(cause)));
    log_warn("rdma path down", {{"peer", endpoint.name},
                                {"path", parts_.name_of(endpoint, rail)},
                                {"epoch", uint64_t{rail.machine.epoch()}},
                                {"cause", to_string(cause)},
                                {"why", text}});
  }
  if (tell)
    endpoint.socket.push(control_frame(
        FrameType::path_down,
        wire::encode(wire::RdmaPathDown{
            .path = rail.id, .epoch = rail.machine.epoch(), .cause = static_cast<uint8_t>(cause), .text = text})));
  if (!was_up && !rail.choices.empty() && cause != PathCause::rest) {  // another pair of addresses may work
    rail.choices.failed(cause == PathCause::port);
    if (!rail.choices.exhausted()) rail.machine.wake(now());
  }
  if (endpoint.up && !endpoint.any_in({State::up}) && !endpoint.rest.resting && endpoint.dark_since == kNever) {
    endpoint.dark_since = now();
    parts_.due(endpoint.dark_since + parts_.services.options->rdma_blackout);
  }
  // The flushed requests may have completed already. An event reports those that complete later.
  rail.attempt.arm();
  serve(endpoint, rail, out);
}

void RdmaPaths::fail_where(const std::function<bool(const RdmaRail&)>& select, PathCause cause, const std::string& text,
                           Reports& out) {
  for (auto& [id, endpoint] : parts_.endpoints)
    for (const auto& rail : endpoint->rails)
      if (!endpoint->doomed() && select(*rail)) fail(*endpoint, *rail, cause, text, true, out);
}

void RdmaPaths::wake_where(const std::function<bool(const RdmaRail&)>& select) {
  for (auto& [id, endpoint] : parts_.endpoints)
    for (const auto& rail : endpoint->rails)
      if (select(*rail)) rail->machine.wake(now());
  parts_.due(now());
}

void RdmaPaths::peer_end_gone(RdmaRail& rail, uint32_t epoch, Reports& out) const {
  rail.hold.gone(std::min(epoch, rail.machine.epoch()));
  rail.hold.take(now(), out.done);
}

SliceDone RdmaPaths::verdict(const RdmaEndpoint& endpoint, const RdmaRail& rail, const RdmaLane::Failed& failed) const {
  SliceDone done{.slice = failed.slice.id, .code = classify(failed.status).code};
  // The request was refused, but the peer has changed its offer since. A retry uses the new keys.
  if (done.code == Code::not_found && endpoint.keyring.renewed(failed.slice.buffer, failed.slice.snapshot))
    done.code = Code::io;
  done.text = "rdma path " + parts_.name_of(endpoint, rail) + ": " +
              (failed.status == WorkStatus::flushed ? rail.last_error : std::string(to_string(failed.status)));
  done.unseen = failed.immediate == 0;
  return done;
}

/// The queue pairs hold no request any more: failed slices return to the engine.
void RdmaPaths::finish_drain(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  MC_ASSERT(rail.machine.state() == State::draining && !rail.joining);
  rail.drain_deadline = kNever;
  const std::set<uint64_t> cancelled = std::exchange(rail.cancelled.slices, {});
  if (rail.attempt.lane_count() > 0 && !endpoint.doomed()) endpoint.messages.end_landed(rail);
  for (const RdmaLane::Failed& failed : rail.close(parts_.reaper)) {
    SliceDone done = verdict(endpoint, rail, failed);
    const bool again = failed.slice.op == Op::write && done.code == Code::io && !cancelled.contains(done.slice);
    if (again && (failed.immediate > 0 || rail.hold.must_wait(rail.machine.epoch())))
      rail.hold.keep(std::move(done), rail.machine.epoch(), now(), failed.immediate);
    else
      out.done.push_back(std::move(done));
  }
  MC_ASSERT_EQ(rail.attempt.lane_count(), 0u);
  rail.hold.take(now(), out.done);  // the peer may have reported everything earlier
  parts_.due(rail.hold.due());
  rail.machine.drained(now());
  parts_.due(std::max(rail.machine.due(), now()));
  if (endpoint.rest.resting) return parts_.due(now());  // its queue pairs may be given to another connection
  answer_pending(endpoint, rail);
  check_dial(endpoint);
}

bool RdmaPaths::abandon(RdmaEndpoint& endpoint, Reports& out) {
  bool writes = false;
  for (auto& rail : endpoint.rails) {
    rail->attempt.fail_lanes();
    RdmaAttempt::Polled flushed;
    rail->attempt.poll(flushed);
    endpoint.messages.take(*rail, flushed.messages, out);  // messages that the peer sent before it was lost
    writes |= !rail->hold.empty();
    if (rail->joining) {  // no request was posted on it
      rail->attempt.orphan();
      parts_.orphans.push_back(std::move(rail));
      continue;
    }
    // The slices end with `lost`.
    for (const auto& failed : rail->close(parts_.reaper)) writes |= failed.slice.op == Op::write;
  }
  return writes;
}

void RdmaPaths::stop() {
  parts_.connector.stop();
  for (const auto& rail : parts_.orphans) (void)rail->close(parts_.reaper);
  parts_.orphans.clear();
}

}  // namespace mc::xfer

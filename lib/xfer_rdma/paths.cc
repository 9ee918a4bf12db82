// Setting up paths of the rdma transport: planned and begun by the dialler, answered by the listener,
// verified by both. What travels on them, and how they end, is in serve.cc.
//
//   dialler                              listener
//     path_offer (its queue pairs)  -->    makes its own, connects them to the dialler's
//     connects, tests both ways     <--    path_answer
//     path_ready                    -->    looks at what was written here, tests both ways
//     looks, up                     <--    path_ready, up
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;
using State = PathMachine::State;

namespace {

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
  for (const NicPair& pair : pair_nics(own.nics, endpoint.nics, paths_max(endpoint.lanes_per_path))) {
    auto rail =
        std::make_unique<RdmaRail>(static_cast<uint32_t>(endpoint.rails.size()), pair.local, pair.remote, times);
    rail->endpoint = endpoint.id;
    rail->pace = TokenBucket(home_.options->rdma_pace);
    rail->choices = gid_choices(own.nics[pair.local].gids, endpoint.nics[pair.remote].gids, kChoicesMax);
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
  wake(endpoint);
}

bool RdmaTransport::startable(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
  return hardware_.ports[rail.local()].active && endpoint.nics[rail.remote()].active && !rail.choices.empty();
}

void RdmaTransport::begin(RdmaEndpoint& endpoint, RdmaRail& rail) {
  const RdmaPort& port = hardware_.ports[rail.local()];
  rail.machine.begin(now());
  due(rail.machine.due());
  auto offer = rail.open(port, endpoint.lanes_per_path, true);
  if (!offer) {
    rail.last_error = offer.error().what;
    rail.machine.fail(PathCause::nic, now());
    (void)rail.close(reaper_);
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
    peer_end_gone(*rail, answer->epoch - 1, *endpoint.out);
    if (rail->machine.current(answer->epoch) && rail->machine.state() == State::connecting && !rail->joining)
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
    if (rail->pending.epoch == down->epoch) rail->pending = {};  // it will not wait for the answer
    peer_end_gone(*rail, down->epoch, *endpoint.out);
    // told back: that our end is gone as well
    if (rail->machine.current(down->epoch))
      fail(endpoint, *rail, path_cause(down->cause), "the peer says: " + down->text, true, *endpoint.out);
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
      endpoint.rails.back()->pace = TokenBucket(home_.options->rdma_pace);
    }
  }
  if (offer.path_count != endpoint.rails.size() || offer.lanes.size() != endpoint.lanes_per_path) return Code::corrupt;
  RdmaRail& rail = *endpoint.rails[offer.path];
  if (!rail.machine.newer(offer.epoch)) {
    home_.tally->failure("rdma: stale offer of a path");
    return Code::ok;
  }
  peer_end_gone(rail, offer.epoch - 1, *endpoint.out);
  if (rail.machine.live()) fail(endpoint, rail, PathCause::restart, "the peer starts over", false, *endpoint.out);
  rail.pending = offer;
  if (!pool_.holds(endpoint.id) || endpoint.resting)
    wake(endpoint);
  else
    answer_pending(endpoint, rail);
  return Code::ok;
}

/// The latest offer of a path, once it may be answered: what the last attempt left is gone, and not as
/// often as a peer that floods would like, because every answer costs queue pairs.
void RdmaTransport::answer_pending(RdmaEndpoint& endpoint, RdmaRail& rail) {
  if (!endpoint.accepted || rail.pending.lanes.empty() || !pool_.holds(endpoint.id) || endpoint.resting) return;
  if (rail.machine.live() || rail.machine.state() == State::draining) return;
  if (rail.next_answer > now()) return due(rail.next_answer);
  rail.next_answer = now() + kAnswerPause;
  const wire::RdmaPathOffer offer = std::exchange(rail.pending, {});
  answer(endpoint, rail, offer);
}

void RdmaTransport::answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& offer) {
  RdmaPort& port = hardware_.ports[offer.nic_to];
  rail.set_ports(offer.nic_to, offer.nic_from);
  if (!rail.machine.accept(offer.epoch, now())) return;
  due(rail.machine.due());
  const auto refuse = [&](PathCause cause, const std::string& text) {
    Reports nothing;  // no slice was ever posted on this attempt
    fail(endpoint, rail, cause, text, true, nothing);
  };
  if (rail.id() >= paths_max(endpoint.lanes_per_path) || endpoint.lanes_per_path > home_.options->rdma_pairs_max)
    return refuse(PathCause::fault, "more queue pairs than rdma_pairs_max allows here");
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
  auto work = rail.connect(port, offer.gid_to, offer, own->mtu, *home_.options);
  if (!work) return refuse(PathCause::fault, work.error().what);
  rail.own = std::move(*own);
  join(rail, std::move(*work));
}

/// Connects the path's queue pairs, elsewhere; on_joined() follows.
void RdmaTransport::join(RdmaRail& rail, RdmaRail::Work work) {
  rail.joining = true;
  connector_.start({rail.endpoint, rail.id(), rail.machine.epoch()}, std::move(work));
}

void RdmaTransport::on_joined(const RdmaConnector::Done& done, Reports& out) {
  const auto orphan = std::find_if(orphans_.begin(), orphans_.end(), [&](const auto& rail) {
    return rail->endpoint == done.attempt.endpoint && rail->id() == done.attempt.path;
  });
  if (orphan != orphans_.end()) {  // its connection went meanwhile
    (void)(*orphan)->close(reaper_);
    orphans_.erase(orphan);
    return;
  }
  RdmaEndpoint* endpoint = find(done.attempt.endpoint);
  MC_ASSERT(endpoint != nullptr && done.attempt.path < endpoint->rails.size());
  RdmaRail& rail = *endpoint->rails[done.attempt.path];
  rail.joining = false;
  if (!rail.machine.current(done.attempt.epoch)) return serve(*endpoint, rail, out);  // it failed: let go of it
  if (done.error) return fail(*endpoint, rail, PathCause::fault, done.error->what, true, out);
  rail.machine.connected();
  if (endpoint->accepted) return endpoint->push(frame(FrameType::path_answer, wire::encode(rail.own)));
  if (auto probed = rail.probe(); !probed)
    return fail(*endpoint, rail, PathCause::fault, probed.error().what, true, out);
  serve(*endpoint, rail, out);
}

void RdmaTransport::on_answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& answer) {
  const RdmaPort& port = hardware_.ports[rail.local()];
  const uint16_t mtu = negotiate_mtu(port.mtu, answer.mtu, static_cast<uint16_t>(home_.options->rdma_mtu_max));
  auto work = rail.connect(port, rail.choices[rail.choice].local, answer, mtu, *home_.options);
  if (!work) return fail(endpoint, rail, PathCause::fault, work.error().what, true, *endpoint.out);
  join(rail, std::move(*work));
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
void RdmaTransport::on_probed(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  endpoint.push(frame(FrameType::path_ready, wire::encode(wire::RdmaPathReady{rail.id(), rail.machine.epoch()})));
  if (endpoint.accepted) rail_up(endpoint, rail, out);
}

void RdmaTransport::rail_up(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  rail.machine.verified(now());
  rail.last_error.clear();
  out.room = true;  // slices may wait that its lanes refused until now
  // the test needed write access; from now on only whoever has a landing buffer here keeps it
  if (auto done = rail.allow_writes(takes_writes(endpoint, *home_.describe())); !done)
    home_.tally->failure("rdma: the device cannot restrict a connected queue pair");
  endpoint.dark_since = kNever;
  endpoint.used = now();
  const bool woken = rail.machine.cause() == PathCause::rest;  // ordinary
  log(woken ? LogLevel::debug : LogLevel::info, "rdma path up",
      {{"peer", endpoint.name},
       {"path", rail_name(endpoint, rail)},
       {"epoch", uint64_t{rail.machine.epoch()}},
       {"mtu_bytes", uint64_t{rail.mtu()}},
       {"lanes", uint64_t{rail.lane_count()}}});
  if (std::exchange(endpoint.up, true)) return;
  endpoint.up_at = now();
  endpoint.deadline = kNever;
  out.news.push_back({.kind = News::Kind::up,
                      .endpoint = endpoint.id,
                      .accepted = endpoint.accepted,
                      .proven = endpoint.handshake.proven(),
                      .row = index_ - 1u,
                      .instance = endpoint.peer,
                      .text = endpoint.name,
                      .descriptor = endpoint.descriptor});
  deliver(endpoint, out);  // the peer may have been up a moment before us
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

}  // namespace mc::xfer

// Paths of the rdma transport in use: slices in and out, completions, failures, draining. A path that failed hands its
// slices back when its queue pairs have let go of them.
#include <algorithm>

#include "base/assert.h"
#include "base/hash.h"
#include "base/log.h"
#include "xfer/access.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace mc::xfer {

using State = PathMachine::State;

/// Takes what has completed on a path and acts on it.
void RdmaTransport::serve(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  polled_.ok.clear();
  polled_.completions = 0;
  polled_.failure = WorkStatus::ok;
  polled_.messages.clear();
  rail.poll(polled_);
  if (!polled_.messages.empty()) take_messages(endpoint, rail, polled_.messages, out);
  uint64_t moved = 0;
  for (const Slice& slice : polled_.ok) {
    moved += slice.local.size();
    if (!rail.cancelled.empty() && rail.cancelled.erase(slice.id) > 0 && rail.cancelled.empty())
      rail.cancelled_since = kNever;
    report(slice, out);
  }
  if (polled_.completions > 0) rail.progress = round_;
  if (moved > 0) {
    endpoint.used = round_;
    pool_.used(endpoint.id, round_);
  }
  if (moved > 0) rail.moved(moved, round_);
  if (polled_.failure != WorkStatus::ok && rail.machine.live()) {
    const WorkStatus status = polled_.failure;
    const std::string text = std::string(to_string(status)) + " (lane " + std::to_string(polled_.failed_lane) + ")";
    return fail(endpoint, rail, classify(status).cause, text, true, out);
  }
  if (rail.machine.state() == State::draining && rail.drained() && rail.deaf() && !rail.joining)
    return finish_drain(endpoint, rail, out);
  if (rail.machine.state() != State::verifying || !rail.probing() || !rail.probed() || rail.told_ready) return;
  rail.told_ready = true;
  if (auto right = rail.check_read(); !right)
    return fail(endpoint, rail, PathCause::fault, right.error().what, true, out);
  on_probed(endpoint, rail, out);
}

void RdmaTransport::report(const Slice& slice, Reports& out) {
  SliceDone done{.slice = slice.id};
  if (slice.checksum) done.crc32c = crc32c(slice.local);
  home_.tally->add(index_ - 1u, slice.op == Op::read ? Flow::read_bytes : Flow::written_bytes, slice.local.size());
  out.done.push_back(std::move(done));
}

void RdmaTransport::fail(RdmaEndpoint& endpoint, RdmaRail& rail, PathCause cause, const std::string& text, bool tell,
                         Reports& out) {
  const bool was_up = rail.machine.state() == State::up;
  if (!rail.machine.fail(cause, now())) return;
  rail.last_error = text;
  rail.fail_lanes();
  if (endpoint.voice == &rail) voice_lost(endpoint);
  rail.drain_deadline = now() + kDrainMax;
  due(rail.drain_deadline);
  if (cause != PathCause::rest) {
    home_.tally->failure("rdma: " + std::string(to_string(cause)));
    log_warn("rdma path down", {{"peer", endpoint.name},
                                {"path", rail_name(endpoint, rail)},
                                {"epoch", uint64_t{rail.machine.epoch()}},
                                {"cause", to_string(cause)},
                                {"why", text}});
  }
  if (tell)
    endpoint.push(control_frame(
        wire::FrameType::path_down,
        wire::encode(wire::RdmaPathDown{
            .path = rail.id(), .epoch = rail.machine.epoch(), .cause = static_cast<uint8_t>(cause), .text = text})));
  if (!was_up && !rail.choices.empty() && cause != PathCause::rest) {  // perhaps another pair of addresses works
    ++rail.choice;
    rail.exhausted |= rail.choice == rail.choices.size() || cause == PathCause::port;
    rail.choice %= rail.choices.size();
    if (!rail.exhausted) rail.machine.wake(now());
  }
  const bool any_up = std::any_of(endpoint.rails.begin(), endpoint.rails.end(),
                                  [](const auto& other) { return other->machine.state() == State::up; });
  if (endpoint.up && !any_up && !endpoint.resting && endpoint.dark_since == kNever) {
    endpoint.dark_since = now();
    due(endpoint.dark_since + home_.options->rdma_blackout);
  }
  // the flushed requests may be there already; an event tells of those that come later
  rail.arm();
  serve(endpoint, rail, out);
}

/// The peer's queue pairs of that attempt, and of earlier ones, take nothing any more.
void RdmaTransport::peer_end_gone(RdmaRail& rail, uint32_t epoch, Reports& out) {
  if (epoch > rail.machine.epoch()) epoch = rail.machine.epoch();
  rail.hold.gone(epoch);
  rail.hold.take(now(), out.done);
}

/// The queue pairs hold nothing any more: slices that did not make it go back to the engine.
void RdmaTransport::finish_drain(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out) {
  const std::string where = "rdma path " + rail_name(endpoint, rail) + ": ";
  rail.drain_deadline = kNever;
  const std::set<uint64_t> cancelled = std::exchange(rail.cancelled, {});
  if (rail.lane_count() > 0 && !endpoint.doomed)
    send_landed(endpoint, rail, rail.deaf() ? wire::LandedState::over : wire::LandedState::unsure);
  for (const RdmaLane::Failed& failed : rail.close(reaper_)) {
    SliceDone done{.slice = failed.slice.id, .code = classify(failed.status).code};
    // refused, but the peer has changed what it offers since: worth asking with the new keys
    if (done.code == Code::not_found && failed.slice.snapshot < endpoint.keys_version &&
        endpoint.keys.contains(failed.slice.buffer))
      done.code = Code::io;
    done.text =
        where + (failed.status == WorkStatus::flushed ? rail.last_error : std::string(to_string(failed.status)));
    const bool again = failed.slice.op == Op::write && done.code == Code::io && !cancelled.contains(done.slice);
    done.unseen = failed.immediate == 0;
    if (again && (failed.immediate > 0 || rail.hold.must_wait(rail.machine.epoch())))
      rail.hold.keep(std::move(done), rail.machine.epoch(), now(), failed.immediate);
    else
      out.done.push_back(std::move(done));
  }
  rail.hold.take(now(), out.done);  // the peer may have said all before
  due(rail.hold.due());
  rail.machine.drained(now());
  due(std::max(rail.machine.due(), now()));
  if (endpoint.resting) return rested(endpoint);
  answer_pending(endpoint, rail);
  check_dial(endpoint);
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
  const auto keys = endpoint.keys.find(slice.buffer);
  if (keys == endpoint.keys.end()) {
    later = slice.snapshot > endpoint.keys_version;
    refusal = {.slice = slice.id, .code = Code::not_found};
    refusal.text = "the peer gives no rdma key for buffer " + std::to_string(slice.buffer) +
                   " (unregistered, or never offered to us)";
    return false;
  }
  const auto invalid = [&](const char* why) {
    refusal = {.slice = slice.id, .code = Code::invalid, .text = why};
    return false;
  };
  const wire::RdmaKeys& there = keys->second;
  if (!inside(slice.offset, slice.local.size(), there.length)) return invalid("range beyond the end of the buffer");
  if (memory_.local(device_index(rail.local()), slice.local, item.local) != Code::ok)
    return invalid("the local memory is not registered for rdma");
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
    if (other.get() == &rail || other->machine.state() != State::up || other->sated()) continue;
    window = std::min(window, other->bytes() / endpoint.lanes_per_path + kAheadBytes);
  }
  return window;
}

/// Is there a path with room that is nearer to the slice's memory, and will have moved it as soon?
bool RdmaTransport::yields(const RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice) {
  if (!placed_ || endpoint.rails.size() == 1) return false;
  const MemoryPlace memory = memory_.place(slice.local);
  const auto load_of = [&](const RdmaRail& each) {
    return PathLoad{.bytes = each.bytes(),
                    .bytes_per_s = each.bytes_per_s(),
                    .penalty = penalty(hardware_.ports[each.local()].place, memory),
                    .open = each.machine.state() == State::up && !each.sated() && !each.paced};
  };
  loads_.clear();
  for (const auto& other : endpoint.rails)
    if (other.get() != &rail) loads_.push_back(load_of(*other));
  return leaves_to_nearer(load_of(rail), loads_, slice.local.size());
}

/// How many of these slices the path's pace lets go now; the engine is told when more may.
size_t RdmaTransport::paced(RdmaRail& rail, std::span<const Slice> slices) {
  if (!rail.pace.limited()) return slices.size();
  const TimePoint at = now();
  (void)rail.pace.open(at);  // what has flowed in is the rail's, not the copy's
  TokenBucket pace = rail.pace;
  size_t count = 0;
  for (; count < slices.size() && pace.open(at); ++count) pace.spend(slices[count].local.size());
  if (count == slices.size()) return count;
  rail.paced = true;
  due(std::max(pace.opens(), at));
  return count;
}

uint64_t RdmaTransport::slice_bytes(EndpointId id, int lane) const {
  size_t index = 0;
  const RdmaRail* rail = rail_of(id, lane, index);
  return rail == nullptr ? UINT64_MAX : rail->slice_bytes();
}

/// The first lane of a path carries them, as far as the peer has receives for them. A path that rests is to be woken.
size_t RdmaTransport::immediates_ahead(EndpointId id, int lane) const {
  size_t index = 0;
  const RdmaRail* rail = rail_of(id, lane, index);
  if (rail == nullptr || rail->lane_count() == 0) return SIZE_MAX;
  return index == 0 ? rail->tells_left() : 0;
}

/// How many of these slices the lane may have now.
size_t RdmaTransport::room(const RdmaEndpoint& endpoint, RdmaRail& rail, size_t index, std::span<const Slice> slices) {
  const uint64_t allowance = rail.allowance();
  // What one lane holds is not spread over more: they would take turns in being idle.
  if (index > 0 && allowance <= index * RdmaLane::kWindowBytes) return 0;
  size_t room = rail.lane(index).room(slices, window(endpoint, rail));
  uint64_t ahead = rail.bytes();
  for (size_t i = 0; i < room; ++i) {
    ahead += slices[i].local.size();
    if (ahead > allowance && ahead > slices[i].local.size()) room = i;  // one slice always
  }
  return paced(rail, slices.first(room));
}

size_t RdmaTransport::post(EndpointId id, int lane_index, std::span<const Slice> slices, Reports& out) {
  size_t index = 0;
  RdmaRail* rail = rail_of(id, lane_index, index);
  if (rail == nullptr) return 0;
  RdmaEndpoint& endpoint = *find(id);
  if (endpoint.doomed) return 0;
  if (!pool_.holds(id) || endpoint.yielding || endpoint.resting) {
    wake(endpoint);
    return 0;
  }
  if (rail->machine.state() != State::up) return 0;
  RdmaLane& lane = rail->lane(index);
  if (!slices.empty() && yields(endpoint, *rail, slices[0])) return 0;
  round_ = now();
  const bool idle = rail->outstanding() == 0;
  const bool alone = idle && slices.size() == 1 && !rail->pace.limited();  // nothing to share or to hold back
  const size_t room = alone ? 1 : this->room(endpoint, *rail, index, slices);
  size_t refused = 0;  // those at the front are answered here; one behind others waits for its turn
  items_.clear();
  size_t tells = index == 0 ? rail->tells_left() : 0;
  for (size_t i = 0; i < room; ++i) {
    if (slices[i].immediate && tells-- == 0) break;  // `room` when the peer counts what has landed
    SliceDone refusal;
    bool later = false;
    items_.emplace_back();
    if (resolve(endpoint, *rail, slices[i], items_.back(), refusal, later)) continue;
    items_.pop_back();
    if (later || !items_.empty()) break;
    home_.tally->failure("rdma: " + refusal.text);
    out.done.push_back(std::move(refusal));
    ++refused;
  }
  if (idle) {  // the stall clock starts with work
    rail->progress = round_;
    rail->started(rail->progress);
    due(rail->progress + home_.options->stall_timeout);
  }
  const RdmaLane::Posted posted = lane.post(items_, rail->shallow(), rail->burst());
  if (rail->pace.limited())
    for (size_t i = 0; i < posted.taken; ++i) rail->pace.spend(items_[i].slice.local.size());
  if (posted.taken > 0) {
    endpoint.used = round_;
    pool_.used(id, endpoint.used);
  }
  if (posted.error != 0) {
    fail(endpoint, *rail, PathCause::fault, errno_error("post", posted.error).what, true, out);
    sweep(out);
  }
  return refused + posted.taken;
}

bool RdmaTransport::cancel(EndpointId id, int lane, uint64_t slice) {
  size_t index = 0;
  RdmaRail* rail = rail_of(id, lane, index);
  if (rail != nullptr && rail->hold.drop(slice)) return true;
  if (rail == nullptr || index >= rail->lane_count() || !rail->lane(index).holds(slice)) return true;
  // posted is posted: a SliceDone follows, soon, or the path starts over to get the memory back
  rail->cancelled.insert(slice);
  if (rail->cancelled_since == kNever) rail->cancelled_since = now();
  due(rail->cancelled_since + home_.options->drain_grace / 2);
  return false;
}

void RdmaTransport::on_completions(RdmaDevice& device, Reports& out) {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (::ibv_get_cq_event(device.channel(), &queue, &context) == 0) {
    // before the acknowledgement: the queue, and its anchor, cannot be destroyed until that
    RdmaRail* rail = static_cast<const RailAnchor*>(context)->rail;
    ::ibv_ack_cq_events(queue, 1);
    if (rail == nullptr) continue;
    RdmaEndpoint* endpoint = find(rail->endpoint);
    MC_ASSERT(endpoint != nullptr);
    rail->disarmed();  // until doze(): while there is work we look anyway
    serve(*endpoint, *rail, out);
  }
}

/// Takes what has completed on paths that raise no event, or, with `arm`, on those that did not until now.
void RdmaTransport::poll_rails(bool arm, Reports& out) {
  bool changed = false;
  for (auto& [id, endpoint] : endpoints_)
    for (const auto& rail : endpoint->rails) {
      if (rail->armed() && (arm || rail->outstanding() == 0)) continue;
      if (arm) rail->arm();  // before polling: what completes in between raises an event
      changed |= rail->machine.state() != State::up;
      serve(*endpoint, *rail, out);
      changed |= rail->machine.state() != State::up;
    }
  if (changed) sweep(out);
}

TimePoint RdmaTransport::look(Reports& out) {
  poll_rails(false, out);
  return due_;
}

void RdmaTransport::doze(Reports& out) {
  round_ = now();
  poll_rails(true, out);
}

}  // namespace mc::xfer

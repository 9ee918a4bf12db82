#include "xfer_rdma/poster.h"

#include <algorithm>

#include "base/assert.h"
#include "base/fd.h"
#include "xfer/access.h"
#include "xfer/tally.h"

namespace mc::xfer {

void RdmaPoster::opened() {
  const auto& ports = parts_.hardware.ports;
  placed_ = std::any_of(ports.begin(), ports.end(), [&](const auto& port) { return port.place != ports[0].place; });
}

RdmaPoster::Resolved RdmaPoster::resolve(const RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice,
                                         PlanItem& item, SliceDone& refusal) {
  const auto refuse = [&](Code code, std::string why) {
    refusal = {.slice = slice.id, .code = code, .text = std::move(why)};
    return Resolved::refused;
  };
  const wire::RdmaKeys* there = endpoint.keyring.find(slice.buffer);
  if (there == nullptr && endpoint.keyring.awaits(slice.snapshot)) return Resolved::later;
  if (there == nullptr)
    return refuse(Code::not_found, "the peer gives no rdma key for buffer " + std::to_string(slice.buffer) +
                                       " (unregistered, or never offered to this process)");
  if (!inside(slice.offset, slice.local.size(), there->length))
    return refuse(Code::invalid, "range beyond the end of the buffer");
  if (parts_.memory.local(parts_.device_of(rail.local), slice.local, item.local) != Code::ok)
    return refuse(Code::invalid, "the local memory is not registered for rdma");
  const size_t chunks = there->chunks();
  MC_ASSERT_LE((rail.remote + 1) * chunks, there->rkeys.size());
  item.slice = slice;
  item.remote = {there->base, there->length, there->chunk_bytes,
                 std::span(there->rkeys).subspan(rail.remote * chunks, chunks)};
  return Resolved::yes;
}

/// Fills items_ with slices from the front that can be posted now. Slices in front that can never be posted are
/// answered; returns their number. A refused slice behind others waits for its turn.
size_t RdmaPoster::resolve_some(const RdmaEndpoint& endpoint, const RdmaRail& rail, size_t tells,
                                std::span<const Slice> slices, Reports& out) {
  size_t refused = 0;
  items_.clear();
  for (const Slice& slice : slices) {
    // `room` is reported when the peer counts the immediates that have landed.
    if (slice.immediate && tells-- == 0) break;
    SliceDone refusal;
    items_.emplace_back();
    const Resolved resolved = resolve(endpoint, rail, slice, items_.back(), refusal);
    if (resolved == Resolved::yes) continue;
    items_.pop_back();
    if (resolved == Resolved::later || !items_.empty()) break;
    parts_.services.tally->failure("rdma: " + refusal.text);
    out.done.push_back(std::move(refusal));
    ++refused;
  }
  return refused;
}

/// Bytes that a lane of the path may have in flight. A path does not run far ahead of one with fewer bytes, because
/// otherwise a batch that fits one window would use one path only.
uint64_t RdmaPoster::window(const RdmaEndpoint& endpoint, const RdmaRail& rail) const {
  uint64_t window = RdmaLane::kWindowBytes;
  for (const auto& other : endpoint.rails) {
    if (other.get() == &rail || !other->up() || other->sated()) continue;
    window = std::min(window, other->attempt.bytes() / endpoint.lanes_per_path + kAheadBytes);
  }
  return window;
}

/// Whether another path with room is nearer to the slice's memory and would finish it as early.
bool RdmaPoster::yields(const RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice) {
  if (!places(endpoint)) return false;
  const MemoryPlace memory = parts_.memory.place(slice.local);
  const auto load_of = [&](const RdmaRail& each) {
    return PathLoad{.bytes = each.attempt.bytes(),
                    .bytes_per_s = each.speed.bytes_per_s(),
                    .penalty = penalty(parts_.port_of(each).place, memory),
                    .open = each.up() && !each.sated() && !each.paced};
  };
  loads_.clear();
  for (const auto& other : endpoint.rails)
    if (other.get() != &rail) loads_.push_back(load_of(*other));
  return leaves_to_nearer(load_of(rail), loads_, slice.local.size());
}

/// How many of these slices the path's rate limit allows now. The engine is told when more are allowed.
size_t RdmaPoster::paced(RdmaRail& rail, std::span<const Slice> slices) {
  if (!rail.pace.limited()) return slices.size();
  const TimePoint at = now();
  (void)rail.pace.open(at);  // the flow since the last call belongs to the rail's bucket, not to the copy
  TokenBucket pace = rail.pace;
  size_t count = 0;
  for (; count < slices.size() && pace.open(at); ++count) pace.spend(slices[count].local.size());
  if (count == slices.size()) return count;
  rail.paced = true;
  parts_.due(std::max(pace.opens(), at));
  return count;
}

/// How many of these slices the lane may take now.
size_t RdmaPoster::room(const RdmaEndpoint& endpoint, RdmaRail& rail, size_t index, std::span<const Slice> slices) {
  const uint64_t allowance = rail.speed.allowance();
  // Work that fits one lane is not spread over more, because the lanes would be idle in turn.
  if (index > 0 && allowance <= index * RdmaLane::kWindowBytes) return 0;
  size_t room = rail.attempt.lane(index).room(slices, window(endpoint, rail));
  MC_ASSERT_LE(room, slices.size());
  uint64_t ahead = rail.attempt.bytes();
  for (size_t i = 0; i < room; ++i) {
    ahead += slices[i].local.size();
    if (ahead > allowance && ahead > slices[i].local.size()) room = i;  // one slice is always allowed
  }
  return paced(rail, slices.first(room));
}

size_t RdmaPoster::post(RdmaEndpoint& endpoint, int lane_index, std::span<const Slice> slices, Reports& out,
                        bool& failed) {
  failed = false;
  size_t index = 0;
  RdmaRail* rail = endpoint.rail_of(lane_index, index);
  if (rail == nullptr || endpoint.doomed()) return 0;
  if (!parts_.awake(endpoint) || endpoint.rest.yielding) {
    parts_.want(endpoint);
    return 0;
  }
  if (!rail->up()) return 0;
  MC_ASSERT_LT(index, rail->attempt.lane_count());
  RdmaLane& lane = rail->attempt.lane(index);
  if (!slices.empty() && yields(endpoint, *rail, slices[0])) return 0;
  parts_.round = now();
  const bool idle = rail->attempt.outstanding() == 0;
  const bool alone = idle && slices.size() == 1 && !rail->pace.limited();  // no work to share or to hold back
  const size_t room = alone ? 1 : this->room(endpoint, *rail, index, slices);
  const size_t tells = index == 0 ? rail->attempt.tells_left() : 0;
  const size_t refused = resolve_some(endpoint, *rail, tells, slices.first(room), out);
  if (idle) {  // the stall time-out starts when there is work
    rail->progress = parts_.round;
    rail->speed.started(parts_.round);
    parts_.due(rail->progress + parts_.services.options->stall_timeout);
  }
  const RdmaLane::Posted posted = lane.post(items_, rail->shallow(), rail->speed.burst(RdmaLane::kWindowBytes));
  MC_ASSERT_LE(posted.taken, items_.size());
  if (rail->pace.limited())
    for (size_t i = 0; i < posted.taken; ++i) rail->pace.spend(items_[i].slice.local.size());
  if (posted.taken > 0) {
    endpoint.used = parts_.round;
    parts_.pool.used(endpoint.id, parts_.round);
  }
  failed = posted.error != 0;
  if (failed) paths_.fail(endpoint, *rail, PathCause::fault, errno_error("post", posted.error).what, true, out);
  return refused + posted.taken;
}

bool RdmaPoster::cancel(RdmaEndpoint& endpoint, int lane, uint64_t slice) {
  size_t index = 0;
  RdmaRail* rail = endpoint.rail_of(lane, index);
  if (rail == nullptr || rail->hold.drop(slice)) return true;
  if (index >= rail->attempt.lane_count() || !rail->attempt.lane(index).holds(slice)) return true;
  // A posted slice cannot be taken back: a SliceDone follows soon, or the path starts over to release the memory.
  rail->cancelled.slices.insert(slice);
  if (rail->cancelled.since == kNever) rail->cancelled.since = now();
  parts_.due(rail->cancelled.since + parts_.services.options->drain_grace / 2);
  return false;
}

}  // namespace mc::xfer

#include "xfer_rdma/small.h"

#include "base/assert.h"
#include "base/hash.h"
#include "xfer/access.h"

namespace mc::xfer {

bool RdmaSmall::post(RdmaEndpoint& endpoint, int lane, const Slice& slice) {
  MC_ASSERT(rail_ == nullptr);
  size_t index = 0;
  RdmaRail* rail = endpoint.rail_of(lane, index);
  if (rail == nullptr || !rail->up() || endpoint.doomed()) return false;
  if (endpoint.rest.resting || endpoint.rest.yielding) return false;
  if (rail->pace.limited() || rail->attempt.outstanding() > 0 || !rail->cancelled.slices.empty()) return false;
  const wire::RdmaKeys* there = endpoint.keyring.find(slice.buffer);
  if (there == nullptr || !inside(slice.offset, slice.local.size(), there->length)) return false;
  if (parts_.memory.local(parts_.device_of(rail->local), slice.local, local_) != Code::ok) return false;
  const size_t chunks = there->chunks();
  MC_ASSERT_LE((rail->remote + 1) * chunks, there->rkeys.size());
  const KeyRange remote{there->base, there->length, there->chunk_bytes,
                        std::span(there->rkeys).subspan(rail->remote * chunks, chunks)};
  SingleWork work;
  if (!plan_one(slice, local_.keys, remote, work)) return false;
  // The time of the latest round will do: a connection counts as idle after ten times the pause between rounds.
  if (!parts_.pool.used(endpoint.id, parts_.round)) return false;
  if (rail->attempt.lane(index).post_slice(slice, work) != 0) return false;  // RdmaPoster meets the error again
  endpoint.used = parts_.round;
  slice_ = slice.id;
  endpoint_ = &endpoint;
  rail_ = rail;
  lane_ = index;
  return true;
}

bool RdmaSmall::end(uint32_t& crc, bool& changed, Reports& out) {
  MC_ASSERT(rail_ != nullptr);
  ibv_wc done;
  const Slice* slice = nullptr;
  if (!rail_->attempt.take_one(lane_, slice, done)) return false;
  if (slice != nullptr) {
    MC_ASSERT_EQ(slice->id, slice_);
    rail_ = nullptr;
    paths_.count(*slice);
    crc = slice->checksum ? crc32c(slice->local) : 0;
    return true;
  }
  RdmaRail& rail = *rail_;
  keep();
  changed |= !rail.up();
  paths_.serve(*endpoint_, rail, out, &done);
  changed |= !rail.up();
  return false;
}

void RdmaSmall::keep() {
  if (rail_ == nullptr) return;
  parts_.round = now();
  rail_->progress = parts_.round;  // the stall time-out starts
  rail_->speed.started(parts_.round);
  parts_.due(parts_.round + parts_.services.options->stall_timeout);
  rail_ = nullptr;
}

}  // namespace mc::xfer

#include "xfer_rdma/plan.h"

#include <algorithm>

#include "base/assert.h"
#include "xfer/access.h"

namespace mc::xfer {
namespace {

/// The bytes from `at` (an address in the range) to the end of its chunk, and the key of that chunk.
struct Reachable {
  uint64_t bytes;
  uint32_t key;
};
Reachable reach(const KeyRange& range, uint64_t at) {
  const uint64_t offset = at - range.base;
  const uint64_t chunk = offset / range.chunk_bytes;
  MC_ASSERT_LT(chunk, range.keys.size());
  return {range.chunk_bytes - offset % range.chunk_bytes, range.keys[chunk]};
}

/// Adds [local, +bytes) at the remote address. Gathers into the last request where that is allowed. False: no request
/// is left.
bool place(WorkPlan& plan, const PlanLimits& limits, Op op, uint64_t remote, uint32_t remote_key,
           const LocalPiece& piece) {
  if (!plan.works.empty()) {
    RdmaWork& last = plan.works.back();
    LocalPiece& tail = plan.pieces.back();
    const bool follows = !last.immediate && last.op == op && last.key == remote_key &&
                         last.remote + last.bytes == remote &&
                         (last.slices_ended == 0 || last.bytes + piece.bytes <= limits.bytes);
    const bool extends =
        tail.key == piece.key && tail.address + tail.bytes == piece.address && piece.bytes <= UINT32_MAX - tail.bytes;
    if (follows && (extends || last.piece_count < limits.gather)) {
      last.bytes += piece.bytes;
      if (extends) {
        tail.bytes += piece.bytes;
      } else {
        plan.pieces.push_back(piece);
        ++last.piece_count;
      }
      return true;
    }
  }
  if (plan.works.size() >= limits.works) return false;
  plan.works.push_back({.op = op,
                        .remote = remote,
                        .key = remote_key,
                        .bytes = piece.bytes,
                        .first_piece = plan.pieces.size(),
                        .piece_count = 1});
  plan.pieces.push_back(piece);
  return true;
}

bool place_item(WorkPlan& plan, const PlanLimits& limits, const PlanItem& item) {
  uint64_t local = reinterpret_cast<uint64_t>(item.slice.local.data());
  uint64_t remote = item.remote.base + item.slice.offset;
  uint64_t left = item.slice.local.size();
  MC_ASSERT(inside(local - item.local.base, left, item.local.length));
  MC_ASSERT(inside(item.slice.offset, left, item.remote.length));
  while (left > 0) {
    const Reachable from = reach(item.local, local);
    const Reachable to = reach(item.remote, remote);
    const uint64_t bytes = std::min({left, from.bytes, to.bytes});
    const LocalPiece piece{local, static_cast<uint32_t>(bytes), from.key};
    if (!place(plan, limits, item.slice.op, remote, to.key, piece)) return false;
    local += bytes;
    remote += bytes;
    left -= bytes;
  }
  ++plan.works.back().slices_ended;
  plan.works.back().immediate = item.slice.immediate;
  return true;
}

}  // namespace

bool plan_one(const Slice& slice, const KeyRange& local, const KeyRange& remote, SingleWork& work) {
  const auto address = reinterpret_cast<uint64_t>(slice.local.data());
  const uint64_t bytes = slice.local.size();
  MC_ASSERT(inside(address - local.base, bytes, local.length));
  MC_ASSERT(inside(slice.offset, bytes, remote.length));
  work.local.address = address;
  work.local.bytes = static_cast<uint32_t>(bytes);
  work.remote = remote.base + slice.offset;
  return single_key(local, address - local.base, bytes, work.local.key) &&
         single_key(remote, slice.offset, bytes, work.key);
}

void WorkPlan::clear() {
  works.clear();
  pieces.clear();
  taken = 0;
}

void plan_works(std::span<const PlanItem> items, const PlanLimits& limits, WorkPlan& plan) {
  plan.clear();
  for (const PlanItem& item : items) {
    // An item that does not fit leaves no trace, because its slice stays with the caller.
    const size_t works = plan.works.size();
    const size_t pieces = plan.pieces.size();
    const RdmaWork last = works == 0 ? RdmaWork{} : plan.works.back();
    const LocalPiece tail = pieces == 0 ? LocalPiece{} : plan.pieces.back();
    if (!place_item(plan, limits, item)) {
      plan.works.resize(works);
      plan.pieces.resize(pieces);
      if (works > 0) plan.works.back() = last;
      if (pieces > 0) plan.pieces.back() = tail;
      return;
    }
    ++plan.taken;
    MC_ASSERT_LE(plan.works.size(), limits.works);
    MC_ASSERT_LE(plan.works.size(), plan.pieces.size());
  }
}

}  // namespace mc::xfer

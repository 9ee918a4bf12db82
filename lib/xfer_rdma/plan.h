// Makes work requests from slices. The functions are pure, so splitting and gathering are tested without a device.
//
//   a slice that crosses a chunk of the remote registration becomes two requests (an rkey names one)
//   slices with adjacent remote ranges share a request, which gathers their local pieces; a slice with an
//   immediate ends its request
//
// A slice is done when its last request is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"
#include "xfer/transport.h"

namespace mc::xfer {

/// A registered range on one NIC. Chunk i has keys[i].
struct KeyRange {
  uint64_t base = 0;
  uint64_t length = 0;
  uint64_t chunk_bytes = 0;
  std::span<const uint32_t> keys;
};

/// The key of [offset, offset + bytes) of the range, which contains it. False: chunks end inside it, so it has several.
inline bool single_key(const KeyRange& range, uint64_t offset, uint64_t bytes, uint32_t& key) {
  const uint64_t chunk = offset / range.chunk_bytes;
  if (bytes > range.chunk_bytes - offset % range.chunk_bytes) return false;
  MC_ASSERT_LT(chunk, range.keys.size());
  key = range.keys[chunk];
  return true;
}

struct PlanItem {
  Slice slice;
  KeyRange local;   // contains slice.local
  KeyRange remote;  // contains slice.offset + the slice's size
};

struct PlanLimits {
  size_t works = 1;
  size_t gather = 1;                   // local pieces that a request may have
  uint64_t bytes = uint64_t{1} << 20;  // limit of a request that gathers several slices
};

struct LocalPiece {
  uint64_t address = 0;
  uint32_t bytes = 0;
  uint32_t key = 0;
};

struct RdmaWork {
  Op op = Op::read;
  uint64_t remote = 0;
  uint32_t key = 0;
  uint64_t bytes = 0;
  size_t first_piece = 0;
  size_t piece_count = 0;
  size_t slices_ended = 0;              // slices whose last byte is in this request
  std::optional<uint32_t> immediate{};  // immediate of its last slice
};

struct WorkPlan {
  std::vector<RdmaWork> works;
  std::vector<LocalPiece> pieces;
  size_t taken = 0;  // number of front items that were planned completely
  void clear();
};

/// The request of a slice that needs only one.
struct SingleWork {
  LocalPiece local;
  uint64_t remote = 0;
  uint32_t key = 0;
};
/// False: chunks end inside the slice, so it needs several requests. `local` and `remote`: see PlanItem.
bool plan_one(const Slice& slice, const KeyRange& local, const KeyRange& remote, SingleWork& work);
/// Fills `plan` with as many items as fit. An item that needs more local pieces than `gather` is split into more
/// requests.
void plan_works(std::span<const PlanItem> items, const PlanLimits& limits, WorkPlan& plan);

}  // namespace mc::xfer

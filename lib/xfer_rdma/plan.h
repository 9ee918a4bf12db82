// Slices into work requests: pure, so that splitting and gathering are tested without a device.
//
//   a slice that crosses a chunk of the remote registration becomes two requests (an rkey names one)
//   slices whose remote ranges follow each other share a request: their local pieces are gathered;
//   one with an immediate ends its request
//
// A slice is done when its last request is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "xfer/transport.h"

namespace mc::xfer {

/// A registered range on one NIC: chunk i of it has keys[i].
struct KeyRange {
  uint64_t base = 0;
  uint64_t length = 0;
  uint64_t chunk_bytes = 0;
  std::span<const uint32_t> keys;
};

struct PlanItem {
  Slice slice;
  KeyRange local;   // contains slice.local
  KeyRange remote;  // contains slice.offset + the slice's size
};

struct PlanLimits {
  size_t works = 1;
  size_t gather = 1;                   // local pieces a request may have
  uint64_t bytes = uint64_t{1} << 20;  // of a request that gathers several slices
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
  std::optional<uint32_t> immediate{};  // of its last slice
};

struct WorkPlan {
  std::vector<RdmaWork> works;
  std::vector<LocalPiece> pieces;
  size_t taken = 0;  // items planned completely, from the front
  void clear();
};

/// The request that an item is, with its one piece; false: chunks end inside it, so it is several.
bool plan_one(const PlanItem& item, RdmaWork& work, LocalPiece& piece);
/// Fills `plan` with as many items as fit. An item that needs more local pieces than `gather` allows
/// is split into more requests.
void plan_works(std::span<const PlanItem> items, const PlanLimits& limits, WorkPlan& plan);

}  // namespace mc::xfer

// The test of one attempt at a path (internal). Before a path is used, each side writes 64 bytes into the scratch
// memory of the other and reads 64 bytes of it, on every lane. The pattern depends on path, epoch, lane and side, and
// carries a CRC32C. Wrong GIDs, MTUs or filters are found here and not in the first transfer.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "wire/rdma_frame.h"
#include "xfer_rdma/lane.h"
#include "xfer_rdma/own_pages.h"

namespace mc::xfer {

/// The test pattern of a side. `read` = the pattern that the peer reads, else the one that this side writes.
std::array<std::byte, 64> path_pattern(uint32_t path, uint32_t epoch, uint32_t lane, bool dialler, bool read);

class RdmaProbe {
 public:
  struct Attempt {
    uint32_t path = 0;
    uint32_t epoch = 0;
    bool dialler = false;
  };
  /// Makes scratch memory for that many lanes, with the patterns of this side.
  Result<void> open(const RdmaDevice& device, const Attempt& attempt, size_t lanes);
  uint64_t address() const { return reinterpret_cast<uint64_t>(pages_.get()); }
  uint32_t key() const { return region_->rkey; }

  /// Posts the test requests on every lane, to the peer's scratch memory.
  Result<void> post(std::span<const std::unique_ptr<RdmaLane>> lanes, const wire::RdmaPathOffer& peer);
  /// A request has completed. Before the path is up, only the test posts requests.
  void completed() {
    if (left_ > 0) --left_;
  }
  bool posted() const { return posted_; }
  bool done() const { return posted_ && left_ == 0; }
  /// True once: when the test is done and the peer must be told.
  bool finish() { return done() && !std::exchange(finished_, true); }
  /// Checks the pattern that was read.
  Result<void> check_read() const;
  Result<void> check_written() const;

 private:
  std::byte* slot(size_t lane, size_t part) const;

  Attempt attempt_;
  size_t lanes_ = 0;
  OwnPages pages_;  // declared before the region, so destroyed after it
  Verbs<ibv_mr> region_;
  bool posted_ = false;
  bool finished_ = false;
  size_t left_ = 0;  // test requests that have not completed
};

}  // namespace mc::xfer

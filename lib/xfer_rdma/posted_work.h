// The work posted on one queue pair, without verbs: the sequence numbers of its requests, and the slices that they
// carry. A queue pair completes in order, so the completion of one request retires all requests before it.
//
//   posted   1 2 3 4 5 6 7 8      requests 1..retired() have completed
//   slices   a a b c c c d        a slice ends with its last request; a request without a slice is a probe or a message
//
// After an error every posted request completes as flushed. The NIC has then released its memory, and only then are
// failed slices handed back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"
#include "xfer/fifo.h"
#include "xfer/transport.h"
#include "xfer_rdma/path.h"

namespace mc::xfer {

class PostedWork {
 public:
  struct Failed {
    Slice slice;
    WorkStatus status = WorkStatus::flushed;
    uint64_t immediate = 0;  // ordinal of the request that carries the slice's immediate; 0 = it was not posted
  };

  // ---- looking ----
  /// The sequence number of the request that is posted last.
  uint64_t posted() const { return posted_; }
  /// Requests that have not completed.
  uint64_t outstanding() const { return posted_ - retired_; }
  bool drained() const { return retired_ == posted_; }
  size_t slices() const { return pending_.size(); }
  /// Bytes of the slices that have not ended.
  uint64_t bytes() const { return bytes_; }
  /// WRITEs with an immediate so far: the ordinal of the latest.
  uint64_t immediates() const { return immediates_; }
  bool holds(uint64_t slice) const;
  /// How many of these slices have room now: at least two, and more up to `window` bytes in flight.
  size_t room(std::span<const Slice> slices, uint64_t window) const;

  // ---- posting ----
  /// `count` more requests are posted.
  void post(uint64_t count) { posted_ += count; }
  /// The slice ends with request number `last`, which is posted, or is being posted. Slices come in the order of their
  /// requests.
  void carry(const Slice& slice, uint64_t last);
  /// The NIC took the first requests of the slice alone; `last` is the last of them. The slice fails when it completes.
  void carry_part(const Slice& slice, uint64_t last);

  // ---- ending ----
  /// The request completed, and all before it. Appends slices that succeeded to `ok`.
  void complete(uint64_t sequence, WorkStatus status, std::vector<Slice>& ok);
  /// The request succeeded: returns its slice, valid until the next one is posted. Null, and nothing is done: the
  /// request is not the only one that is posted, or carries no whole slice.
  const Slice* complete_only(uint64_t sequence) {
    if (sequence != posted_ || retired_ + 1 != posted_ || pending_.size() != 1) return nullptr;
    const Pending& pending = pending_.front();
    MC_ASSERT_EQ(pending.last, sequence);
    if (pending.partial) return nullptr;
    retired_ = posted_;
    bytes_ = 0;
    pending_.drop_front();
    return &pending.slice;
  }
  /// The slices that did not succeed, once the work is drained or the queue pair is gone: those whose request failed,
  /// those behind them, and those never retired.
  std::vector<Failed> take_failed();

 private:
  struct Pending {
    Slice slice;
    uint64_t last = 0;       // sequence number of the slice's last request
    bool partial = false;    // a part of the slice could not be posted
    uint64_t immediate = 0;  // ordinal; 0 = none, or not posted
  };
  Pending& add(const Slice& slice, uint64_t last);

  uint64_t posted_ = 0, retired_ = 0;  // sequence numbers
  uint64_t immediates_ = 0;
  uint64_t bytes_ = 0;
  Fifo<Pending> pending_;
  std::vector<Failed> failed_;
};

}  // namespace mc::xfer

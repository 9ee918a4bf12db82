// The continuous batch of a decode node: the running requests in order of arrival, and the step that is being computed.
// JoinBatch gives the compute everything that stays constant for a sequence. A row of a step then carries a token, a
// position and, when a page was added, that page. A step in which no block becomes full allocates nothing.
//
//   join --first step--> JoinBatch, then a row in each RunStep --settled after its last step--> LeaveBatch
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "node/decode_request.h"
#include "node/worker.h"

namespace mc::node {

class Batch {
 public:
  using RequestPtr = std::shared_ptr<DecodeRequest>;  // Decode's tables and the step share the request

  struct Limits {
    uint32_t rows_max = 64;
    uint32_t context_tokens = 0;
    uint32_t page_count = 0;
  };
  Batch(Limits limits, Shelf& shelf) : limits_(limits), shelf_(shelf) {}

  const std::vector<RequestPtr>& running() const { return running_; }
  /// Adds a request whose KV is on this node. Its next rows allocate nothing.
  void join(const RequestPtr& r);
  void remove(const RequestPtr& r) { std::erase(running_, r); }

  bool computing() const { return run_ != 0; }
  bool full() const { return rows_.size() >= limits_.rows_max; }
  /// Adds a row to the step that is being prepared. The page for the row's token must be allocated.
  void add(const RequestPtr& r);
  /// Starts the step of all added rows that still run. Does nothing when there are none. Sequences that the compute
  /// does not have yet join first.
  void start(uint64_t run, Actions& out);
  /// Takes the step back from the compute. False when `done` belongs to another step. rows() is valid until the next
  /// add().
  bool finish(const StepDone& done);
  std::span<const RequestPtr> rows() const { return rows_; }
  void clear_rows() { rows_.clear(); }
  /// Books one computed row. False when the request ends with this row. `publish`: a block that becomes full may be
  /// reused.
  bool book(DecodeRequest& r, const StepRow& row, bool publish, wire::TokenRow& token);
  /// Removes the request from the compute. No step has a row of the request any more.
  void leave(DecodeRequest& r, Actions& out);

  /// Smoothed duration of a step; 0 before the first.
  double step_s() const { return step_ewma_s_; }

 private:
  void announce(DecodeRequest& r, Actions& out) const;

  Limits limits_;
  Shelf& shelf_;
  std::vector<RequestPtr> running_;
  std::vector<RequestPtr> rows_;      // rows of the step that is prepared or under way
  std::shared_ptr<StepRows> buffer_;  // null while the compute owns it
  uint64_t run_ = 0;                  // number of the step under way; 0 = none
  double step_ewma_s_ = 0;
};

}  // namespace mc::node

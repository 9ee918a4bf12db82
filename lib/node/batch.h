// The continuous batch of a decode node: the running requests in order of arrival, and the step that the compute has.
// The compute keeps what it was told of a sequence when it joined (JoinBatch), so a step names a token and a position
// a row, and a page when one was added. A step in which no block fills allocates nothing.
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
  using RequestPtr = std::shared_ptr<DecodeRequest>;  // the tables of Decode and the step name the same request

  struct Limits {
    uint32_t rows_max = 64;
    uint32_t context_tokens = 0;
    uint32_t page_count = 0;
  };
  Batch(Limits limits, Shelf& shelf) : limits_(limits), shelf_(shelf) {}

  const std::vector<RequestPtr>& running() const { return running_; }
  /// A request whose KV is here. Its next rows allocate nothing.
  void join(const RequestPtr& r);
  void remove(const RequestPtr& r) { std::erase(running_, r); }

  bool computing() const { return run_ != 0; }
  bool full() const { return rows_.size() >= limits_.rows_max; }
  /// A row of the step being put together; its page must be there.
  void add(const RequestPtr& r);
  /// Starts the step of the rows that were added and still run; nothing when there are none. The compute is told first
  /// of the sequences that it does not have.
  void start(uint64_t run, Actions& out);
  /// Takes the step back from the compute; false when `done` is not of the step under way. rows() is valid until the
  /// next add().
  bool finish(const StepDone& done);
  std::span<const RequestPtr> rows() const { return rows_; }
  void clear_rows() { rows_.clear(); }
  /// Books one computed row; false when the request ends with it. `publish`: a block that it fills may be reused.
  bool book(DecodeRequest& r, const StepRow& row, bool publish, wire::TokenRow& token);
  /// No step has the request any more: the compute forgets it.
  void leave(DecodeRequest& r, Actions& out);

  /// Smoothed time of a step; 0 before the first.
  double step_s() const { return step_ewma_s_; }

 private:
  void announce(DecodeRequest& r, Actions& out) const;

  Limits limits_;
  Shelf& shelf_;
  std::vector<RequestPtr> running_;
  std::vector<RequestPtr> rows_;      // of the step put together or under way
  std::shared_ptr<StepRows> buffer_;  // null while the compute has it
  uint64_t run_ = 0;                  // 0 = none under way
  double step_ewma_s_ = 0;
};

}  // namespace mc::node

// The continuous batch of a decode node: the running requests in order of arrival, and the steps that are being
// computed. JoinBatch gives the compute everything that stays constant for a sequence. A row of a step then carries a
// token, a position and, when a page was added, that page. A step in which no block becomes full allocates nothing.
//
//   join --first step--> JoinBatch, then a row in each RunStep --settled after its last step--> LeaveBatch
//
// With two steps under way the compute begins the second one when it ends the first, and does not wait for this node to
// book the tokens between them. A row of the second step then takes a token that the first one draws. When a request
// ends with the first step, the token of its row in the second one is dropped, and it keeps its pages until the second
// step has ended.
#pragma once

#include <array>
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
    uint32_t steps_max = 1;  // under way, at most kStepsMax
  };
  static constexpr uint32_t kStepsMax = 2;
  Batch(Limits limits, Shelf& shelf, DeviceTier& device);

  const std::vector<RequestPtr>& running() const { return running_; }
  /// Adds a request whose KV is on this node. Its next rows allocate nothing.
  void join(const RequestPtr& r);
  void remove(const RequestPtr& r) { std::erase(running_, r); }

  bool computing() const { return under_way_ > 0; }
  bool may_start() const { return under_way_ < limits_.steps_max; }
  bool full() const { return rows_.size() >= limits_.rows_max; }
  /// Pages that the sequence of one request can have.
  uint32_t capacity_pages() const;
  /// Takes a page of the host for one more block and, where the device is a tier, one of the device. False: there is
  /// none now.
  bool take_page(DecodeRequest& r);
  bool has_rows() const { return !rows_.empty(); }
  /// Position of the token of the request's next row.
  uint32_t next_position(const DecodeRequest& r) const { return r.position + r.in_steps; }
  /// Whether the steps under way leave the request room for another token.
  bool goes_on(const DecodeRequest& r) const;
  /// Adds a row to the step that is being prepared. The page for the row's token must be allocated.
  void add(const RequestPtr& r);
  /// Starts the step of all added rows that still run. Does nothing when there are none. Sequences that the compute
  /// does not have yet join first. `beside_chunk`: a chunk of a prompt is computed with it, so its duration is not that
  /// of a step.
  void start(uint64_t run, Actions& out, bool beside_chunk = false);
  /// Sends CollectSteps if the compute may hold a step back until another one comes.
  void collect(Actions& out);
  /// Takes the oldest step back from the compute. False when `done` belongs to another step. finished() is valid until
  /// the next start().
  bool finish(const StepDone& done);
  std::span<const RequestPtr> finished() const { return finished_; }
  /// Whether the step that was taken back last was alone in its pass. Otherwise its duration is not that of a step.
  bool was_alone() const { return was_alone_; }
  void clear_finished() { finished_.clear(); }
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
  DeviceTier& device_;
  std::vector<RequestPtr> running_;
  std::vector<RequestPtr> rows_;      // rows of the step that is prepared
  std::vector<RequestPtr> finished_;  // rows of the step that was taken back last
  struct Step {
    uint64_t run = 0;
    bool beside_chunk = false;
    std::vector<RequestPtr> rows;
  };
  std::array<Step, kStepsMax> steps_;  // the first under_way_ ones, in the order of their start
  uint32_t under_way_ = 0;
  bool is_awaited_ = false;  // the compute may hold the last step back until RunStep or CollectSteps comes
  std::vector<std::shared_ptr<StepRows>> buffers_;  // those that the compute does not own
  bool was_alone_ = true;
  double step_ewma_s_ = 0;
};

}  // namespace mc::node

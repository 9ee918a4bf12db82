// Short prompts that a decode node computes itself (inlined prefill; Mooncake, arXiv:2407.00079, 5.2). The conductor
// sends such a request straight to the decode node, which needs no other node for it.
//
//   accepted --no other prompt is computed--> a chunk in the pass of the next step --> running
//
// The rest of a prompt that is not cached here is one chunk of at most tokens_max() tokens. One prompt is computed at a
// time, so a step is longer by at most one such chunk. Where the compute has passes of chunks and rows, the chunk and
// the step are one pass.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "node/block_memory.h"
#include "node/decode_request.h"
#include "node/shelf.h"
#include "sched/cost.h"

namespace mc::node {

class InlinePrefills {
 public:
  using RequestPtr = std::shared_ptr<DecodeRequest>;

  struct Stats {
    uint64_t requests = 0;                          // whose prompt was computed here
    uint64_t prompt_tokens = 0, cached_tokens = 0;  // of their prompts; cached: found in this node's memory
  };

  /// `tokens_max`: tokens that are computed for a prompt; 0 = this node computes none. `shelf` must outlive the object.
  InlinePrefills(Shelf& shelf, uint32_t tokens_max) : shelf_(shelf), tokens_max_(tokens_max) {}

  uint32_t tokens_max() const { return tokens_max_; }
  /// The blocks of the request's prompt that may come from this node's memory. Its chain names the prompt's blocks.
  std::span<const BlockHash> reusable(const DecodeRequest& r) const;
  /// Whether the prompt needs no more than tokens_max() tokens behind its first `cached` blocks.
  bool is_short(const DecodeRequest& r, uint32_t cached) const;
  /// Predicted seconds of computing the prompt behind the blocks that are cached now.
  double predicted_s(const DecodeRequest& r, const sched::Cost& cost) const;

  /// The request has its pages. It waits for its turn.
  void add(const RequestPtr& r);
  /// Whether start() has a chunk to start.
  bool has_next() const { return !computing_ && !queue_.empty() && queue_.front()->device.load == 0; }
  /// Appends the chunk of the next prompt as run number `run`. The blocks before it are counted as they are now.
  void start(uint64_t run, const BlockMemory& memory, const NodeId& self, TimePoint now, Actions& out);
  /// The step that was appended last shares the pass of the chunk that start() has appended in `out` at `chunk`.
  void share_pass(size_t chunk, double step_s, Actions& out);
  void on_layer(const LayerDone& done);
  /// Takes the end of a chunk. null: the run is none of these.
  RequestPtr end_run(const ChunkDone& done);
  /// The first token of a prompt whose chunk has ended, with the report of the prefill.
  wire::FirstToken first_token(const DecodeRequest& r, const ChunkDone& done) const;
  /// The request ends now. Its chunk, if it has one under way, is cancelled.
  void cancel(const DecodeRequest& r, Actions& out);

  const Stats& stats() const { return stats_; }
  /// Aborts the process if the books do not agree.
  void check() const;

 private:
  Shelf& shelf_;
  uint32_t tokens_max_;
  std::deque<RequestPtr> queue_;  // in order of acceptance
  RequestPtr computing_;          // its chunk is under way; it may have ended
  double step_s_ = 0;             // part of the pass that is the step's
  Stats stats_;
};

}  // namespace mc::node

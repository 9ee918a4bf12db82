// The physical side of a simulated cluster and its events: nodes, batches, caches and links, and the times that their
// work takes. Router decides where requests go. Inside lib/sim only; see sim/cluster.h for what is simulated.
//
// A prefill begins when its prefix is on its node, and its end is known then. When no prompt of the node is ready, a
// prompt may begin with the first layers of its prefix. EarlyPrefill (sim/early_prefill.h) decides whether it may, and
// finds its end from the arrivals of the other layers. The engine keeps the node occupied meanwhile.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "sim/batch.h"
#include "sim/calendar.h"
#include "sim/cluster.h"
#include "sim/copy_log.h"
#include "sim/disk_reads.h"
#include "sim/early_prefill.h"
#include "sim/outcomes.h"
#include "sim/parcels.h"
#include "sim/prefix_parts.h"
#include "sim/router.h"
#include "sim/sampler.h"
#include "sim/stages.h"
#include "sim/tiers.h"

namespace mc::sim {

class ClusterEngine {
 public:
  ClusterEngine(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks, const ClusterOptions& options);
  ClusterRun run();

 private:
  enum class Kind : uint8_t { pump, ssd_read, prefill_done, arrive, batch, chunk, fail, back };
  using Event = Calendar<Kind>::Event;

  struct Times {
    double arrived_s = 0, started_s = 0, first_token_s = 0, prefill_end_s = 0;
    double expected_s = 0;         // end of prefill, as predicted when it was placed
    double work_s = 0;             // of prefill, as simulated; 0 until the end is known
    double lost_s = 0, gap_s = 0;  // when its last attempt failed, and how long the client then had no token
  };

  struct Live {  // a request that is not over
    Times times;
    uint64_t tokens = 0;  // prompt, and the answer so far after a failure
    uint64_t made = 0;    // answer so far, of earlier attempts
    uint64_t reused = 0;  // tokens
    uint32_t node = 0, decode = 0;
    uint32_t active_at = UINT32_MAX;  // its place in active_
    PrefixParts prefix;
    std::optional<EarlyPrefill> early;  // of a request that began before its prefix was here
    uint16_t attempt = 0;
    bool computing = false, computed = false, sent = false, placed = false, decoding = false;
    std::vector<std::pair<uint32_t, uint32_t>> waiters;  // requests (and attempts) whose fetch waits for this prefill

    /// The request without the nodes that it had. Its client has `answered` tokens.
    Live next_attempt(uint64_t input_tokens, uint64_t answered, double now_s) const {
      Live out;
      out.times = {.arrived_s = times.arrived_s, .first_token_s = times.first_token_s, .gap_s = times.gap_s};
      if (answered > 0) out.times.lost_s = now_s;
      out.tokens = input_tokens + answered;
      out.made = answered;
      out.attempt = static_cast<uint16_t>(attempt + 1);
      return out;
    }
  };

  struct Node {  // prefill, or coupled
    explicit Node(uint32_t stage_count) : stages(stage_count) {}
    std::deque<uint32_t> queue;
    Stages stages;
    DiskReads disk;
    bool up = true;
    // coupled
    uint32_t running = UINT32_MAX;
    uint64_t chunk_begin = 0, chunk_end = 0;
    uint32_t version = 0;
  };

  // ---- requests ----
  void at(double when_s, Kind kind, uint32_t a, uint32_t b = 0);
  void handle(const Event& event);
  void arrive_request(uint32_t r);
  void follow(uint32_t r, const Answer& answer);
  void dispatch(uint32_t r, const Route& route);
  void leave(uint32_t r, uint64_t grown);
  void reject(uint32_t r, Fate fate);
  void finish(uint32_t r, double at_s);
  void count_growth(uint32_t batch);
  void count_all_growth();
  void fill_inflight(std::vector<sched::Inflight>& out) const;
  bool coupled() const { return options_.shape.coupled > 0; }
  uint64_t steps_left(uint32_t r) const;
  /// Whether the first token is sent with the second.
  bool first_waits(uint32_t r) const {
    return options_.sched.first_with_second && !coupled() && live_[r].made == 0 && steps_left(r) > 0;
  }
  /// The full blocks of the prompt, which nodes keep.
  std::span<const uint32_t> kept_blocks(uint32_t r) const;

  // ---- failures ----
  void fail(const NodeFailure& failure);
  void come_back(const NodeFailure& failure);
  void abandon(uint32_t r, uint64_t more_made);
  void lose_holder(uint32_t node);
  void pass_on_blocks(uint32_t r);
  void retry(uint32_t r, uint64_t more_made);

  // ---- prefill ----
  void ask_for_parts(uint32_t r);
  void follow_prefix(uint32_t r);
  void pump(uint32_t node);
  void start(uint32_t node, uint32_t r);
  void expect_end(uint32_t r, double left_s);
  void first_token(uint32_t r);
  void prefill_done(uint32_t r);
  void receive(const Parcel& parcel);
  void hand_over(uint32_t r);
  void send_on(uint32_t r, double bytes, double cap);

  // ---- decode ----
  void arrive_at_decode(uint32_t r);
  void join_batch(uint32_t r);
  void schedule(uint32_t batch);
  void batch_event(uint32_t batch);
  void coupled_pump(uint32_t node);
  void coupled_chunk_done(uint32_t node);
  void coupled_begin(uint32_t node);

  const std::vector<TraceRequest>& trace_;
  const TraceBlocks& blocks_;
  const ClusterOptions& options_;
  const sched::Profile& profile_;
  ClusterRun run_;
  Outcomes outcomes_;  // of run_.requests
  double now_ = 0;
  Calendar<Kind> calendar_;
  std::vector<Live> live_;
  std::vector<Node> nodes_;
  std::vector<Batch> batches_;   // of decode or coupled nodes
  std::vector<uint64_t> grown_;  // tokens of each batch that the router was told of
  TieredCaches caches_;
  Parcels parcels_;
  const LayerCut layer_cut_;
  std::vector<uint32_t> active_;  // dispatched, not over
  CopyLog copies_;
  Router router_;
  Sampler sampler_;
  std::vector<Batch::Done> done_;  // scratch
};

}  // namespace mc::sim

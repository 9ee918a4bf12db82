// The state of a simulated cluster and its events. Inside lib/sim only; see sim/cluster.h for what it is.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "sim/batch.h"
#include "sim/cluster.h"
#include "sim/links.h"
#include "sim/sampler.h"
#include "sim/tiers.h"

namespace mc::sim {

class ClusterEngine {
 public:
  ClusterEngine(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks, const ClusterOptions& options);
  ClusterRun run();

 private:
  static constexpr double kUncapped = 1e300;  // bytes/s
  enum class Kind : uint8_t { pump, ssd_read, prefill_done, arrive, batch, chunk, expire, fail, back };
  struct Event {
    double at_s;
    uint64_t order;  // equal times: in the order they were made
    Kind kind;
    uint32_t a, b;
    bool operator>(const Event& other) const { return at_s != other.at_s ? at_s > other.at_s : order > other.order; }
  };

  struct Live {  // a request that is not over
    double arrived_s = 0, dispatched_s = 0, started_s = 0, first_token_s = 0, prefill_end_s = 0;
    double estimate_s = 0;         // prefill, as predicted
    double estimated_s = 0;        // when, while it is held
    double work_s = 0;             // prefill, as it takes
    double lost_s = 0, gap_s = 0;  // when an attempt failed under it, and how long the client then heard nothing
    uint64_t tokens = 0;           // prompt, and the answer so far after a failure
    uint64_t made = 0;             // answer so far, of earlier attempts
    uint64_t reused = 0;           // tokens
    uint32_t used_blocks = 0;
    uint32_t node = 0, decode = 0;
    uint32_t missing = 0;             // parts of its prefix under way
    uint32_t active_at = UINT32_MAX;  // its place in active_
    bool computing = false, computed = false, sent = false, refused = false, placed = false, decoding = false;
    bool held = false;
    bool missed = false;                                 // will not be good any more
    std::vector<std::pair<uint32_t, uint32_t>> waiters;  // requests (and attempts) whose fetch waits for this prefill
  };

  struct Owner {  // what a request's tenant knows of it; failures do not change that
    uint32_t tenant = 0;
    bool admitted = false, dispatched = false;
    uint64_t charged = 0;  // tokens of its answer
  };

  struct Node {  // prefill, or coupled
    std::deque<uint32_t> queue;
    std::vector<double> stage_free;
    double queued_s = 0;       // predicted work of the queue
    double running_end_s = 0;  // predicted end of what computes
    double ssd_free_s = 0, up_since_s = -1e9;
    uint32_t unfinished = 0;
    bool up = true;
    // coupled
    uint32_t running = UINT32_MAX;
    uint64_t chunk_begin = 0, chunk_end = 0;
    uint32_t version = 0;
  };

  struct Parcel {
    enum class Kind : uint8_t { fetch, handoff, copy } kind = Kind::fetch;
    uint32_t request = 0, attempt = 0;  // or the number of the copy
  };

  struct Decode {
    uint64_t committed = 0, committed_tokens = 0;  // dispatched, KV not arrived
    bool up = true;
  };

  // cluster_engine.cc
  void at(double when_s, Kind kind, uint32_t a, uint32_t b = 0);
  void handle(const Event& event);
  void arrive_request(uint32_t r);
  void miss(uint32_t r);
  void fail(const NodeFailure& failure);
  void come_back(const NodeFailure& failure);
  void retry(uint32_t r, uint64_t more_made);
  bool coupled() const { return options_.shape.coupled > 0; }
  uint64_t steps_left(uint32_t r) const;

  // cluster_tenants.cc
  void init_tenants();
  bool admit(uint32_t r);
  void charge(uint32_t r, uint64_t made);
  void charge_running();
  void settle(uint32_t r, bool rejected);

  // cluster_place.cc
  void init_snapshot();
  void fill_snapshot(uint32_t r, bool idle_only);
  void fill_inflight();
  double queue_of(const Node& node) const;
  bool place(uint32_t r, bool last_chance);
  void dispatch(uint32_t r);
  void reject(uint32_t r, Fate fate);
  void uncommit(uint32_t r);
  void leave(uint32_t r);

  // cluster_hold.cc
  bool holding() const;
  bool by_least_work() const { return options_.hold_order == HoldOrder::least_work; }
  void hold(uint32_t r);
  double least_work(uint32_t r);
  double ahead_s(uint32_t r, double work_s) const;
  bool bounded(uint32_t r) const;
  bool late(uint32_t r) const;
  sched::FairQueue::Entry entry_of(uint32_t r) const;
  void keep_held(uint32_t r, double work_s);
  void refresh_held();
  void expire(uint32_t r);
  void give_up(uint32_t r);
  void bind_held();

  // cluster_copies.cc
  void consider_copy(uint32_t r, const sched::Candidate& chosen);
  std::vector<uint32_t> copies_coming(std::span<const uint32_t> blocks, uint32_t wished) const;
  void copy_over(uint32_t copy);
  void end_copies_of(uint32_t node);
  void count_copied(uint32_t node, std::span<const uint32_t> blocks);

  // cluster_prefill.cc
  void begin_fetch(uint32_t r, uint32_t holder, double bytes);
  void part_arrived(uint32_t r);
  void pump(uint32_t node);
  void start(uint32_t node, uint32_t r);
  double pipeline(Node& node, const Live& live);
  void prefill_done(uint32_t r);
  void transfer_over(uint32_t transfer);
  void hand_over(uint32_t r);
  void send_on(uint32_t r, double bytes, double cap);
  void send(const Parcel& parcel, uint32_t from, uint32_t to, double bytes, double cap);

  // cluster_decode.cc
  void arrive_at_decode(uint32_t r);
  void schedule(uint32_t batch);
  void batch_event(uint32_t batch);
  void finish(uint32_t r, double at_s);
  void coupled_pump(uint32_t node);
  void coupled_chunk_done(uint32_t node);
  void coupled_begin(uint32_t node);
  void stop_computing(uint32_t index);
  void first_token(uint32_t r);
  /// Whether the client has to wait for the second token to hear the first.
  bool first_waits(uint32_t r) const {
    return options_.sched.first_with_second && !coupled() && live_[r].made == 0 && steps_left(r) > 0;
  }
  void record_ttft(uint32_t r, double at_s);

  const std::vector<TraceRequest>& trace_;
  const TraceBlocks& blocks_;
  const ClusterOptions& options_;
  const sched::Profile& profile_;
  ClusterRun run_;
  Rng rng_;
  double now_ = 0, kv_bytes_ = 0;
  uint64_t over_ = 0, missed_ = 0;  // requests
  uint64_t order_ = 0;
  std::vector<Event> events_;  // heap
  std::vector<Live> live_;
  std::vector<uint16_t> attempt_;
  std::vector<Node> nodes_;
  std::vector<Decode> decodes_;
  std::vector<Batch> batches_;  // of decode or coupled nodes
  TieredCaches caches_;
  Links links_;
  std::vector<Parcel> transfer_of_;            // [transfer]
  std::vector<uint32_t> active_;               // dispatched, not over
  sched::FairQueue fair_;                      // the held requests, and every tenant's quota
  std::set<uint32_t> held_;                    // those in it
  std::vector<Owner> owners_;                  // [request]
  uint64_t prioritised_ = 0;                   // unfinished requests with a priority
  std::vector<Batch::Done> done_;              // scratch
  std::vector<uint32_t> resident_, readable_;  // scratch
  sched::Snapshot snapshot_;
  sched::Placement placement_;
  sched::Lengths lengths_;
  double inflight_at_s_ = -1;  // when it was made
  sched::Popularity popularity_;
  struct Copying {
    uint32_t request;  // whose leading blocks these are
    uint32_t source, target, first_block, end_block, last;
    double bytes;
    bool failed = false, used = false;
  };
  std::vector<Copying> copies_;    // all that were begun
  std::vector<uint32_t> copying_;  // those under way
  std::vector<BlockHash> hashes_;  // scratch
  Sampler sampler_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> copy_of_;  // (node, block) -> the last copy that brought it
};

}  // namespace mc::sim

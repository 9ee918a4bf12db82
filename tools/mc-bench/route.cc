// `mc-bench route`: what one routing decision costs, against nodes and indexed blocks. A decision is what the
// conductor does when a request's block ids are known: the walks through the prefix index (lib/kv), the
// snapshot of the cluster brought up to date, policy, decode choice and admission (lib/sched). Half of the
// nodes prefill, half decode. The cluster is played forward in virtual time at 70 % load, so that queues,
// replicas and evictions are those of a cluster at work; keeping the books (blocks stored and evicted, queues)
// is timed apart. One thread.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/histogram.h"
#include "base/units.h"
#include "host/choice_flags.h"
#include "kv/index.h"
#include "print.h"
#include "product/flags.h"
#include "sched/sched.h"
#include "trace.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kRouteNodes{.name = "nodes",
                           .value = "SWEEP",
                           .fallback = "1024",
                           .help = "nodes of the cluster, half of them prefill: 8-1024*2 is a sweep"};
constexpr Flag kRouteBlocks{
    .name = "blocks", .value = "SWEEP", .fallback = "1M", .help = "blocks in the index at the start; may be a sweep"};
constexpr Flag kTrace{
    .name = "trace", .value = "FILE", .help = "trace of the prompts, repeated; without it synthetic sessions"};
constexpr Flag kRoutePolicy{.name = "policy",
                            .kind = FlagKind::choice,
                            .value = "P",
                            .fallback = "kv-centric",
                            .help = "how requests are placed on prefill nodes",
                            .table = flags::policy_names};
constexpr Flag kRouteTime{.name = "time",
                          .letter = 't',
                          .kind = FlagKind::duration,
                          .value = "T",
                          .fallback = "2s",
                          .help = "time to measure each point, at least 1ms",
                          .check = check_measured_time};
constexpr auto kRouteFlagTable = flags::join(flags::list(&kRouteNodes, &kRouteBlocks, &kTrace, &kRoutePolicy,
                                                         &kRouteTime, &flags::kSeed, &kFormat, &flags::kOutput),
                                             flags::kEveryRun);

constexpr uint32_t kBlockTokens = 512;  // of the public traces
constexpr double kLoad = 0.7;           // of the prefill nodes, by the prompts' uncached cost

struct Prompt {
  uint32_t tokens = 0, answer = 0;
  std::vector<BlockHash> hashes;
};

BlockHash hash_of(uint64_t a, uint64_t b) {
  BlockHash out;
  for (uint64_t* word : {&a, &b}) {
    *word += 0x9e3779b97f4a7c15 * (word == &a ? 1 : 2);
    *word = (*word ^ (*word >> 30)) * 0xbf58476d1ce4e5b9;
    *word = (*word ^ (*word >> 27)) * 0x94d049bb133111eb;
    *word ^= *word >> 31;
  }
  b ^= a * 3;
  a ^= b * 0x9e3779b97f4a7c15;  // as in SHA-256, both words differ from block to block of one session
  std::memcpy(out.bytes.data(), &a, 8);
  std::memcpy(out.bytes.data() + 8, &b, 8);
  return out;
}

/// Prompts without end: a trace repeated under new ids, or sessions that look like the conversation trace (one
/// block shared by all, 39 % of requests continue a session, median of 14 blocks).
class Prompts {
 public:
  Prompts(const std::vector<TraceRequest>* trace, uint64_t seed) : trace_(trace), rng_(seed) {
    if (trace_ == nullptr) return;
    const auto first = std::find_if(trace_->begin(), trace_->end(), [](const auto& r) { return !r.hash_ids.empty(); });
    if (first != trace_->end()) shared_ = first->hash_ids[0];
  }

  void next(Prompt& out) {
    out.hashes.clear();
    if (trace_ != nullptr) return from_trace(out);
    if (sessions_.size() > 64 && rng_.chance(0.39)) {
      Session& s = sessions_[sessions_.size() - 1 - rng_.below(std::min<size_t>(sessions_.size(), 2000))];
      s.blocks = std::min<uint32_t>(s.blocks + 1 + static_cast<uint32_t>(rng_.below(3)), 247);
      return fill(s, out);
    }
    const double blocks = 14 * std::exp(0.95 * rng_.normal());
    sessions_.push_back({++session_count_, static_cast<uint32_t>(std::clamp(blocks, 2.0, 247.0))});
    if (sessions_.size() > 4000) sessions_.pop_front();
    fill(sessions_.back(), out);
  }

 private:
  struct Session {
    uint64_t id;
    uint32_t blocks;
  };

  void fill(const Session& s, Prompt& out) {
    out.tokens = s.blocks * kBlockTokens - 100;
    out.answer = 350;
    out.hashes.push_back(hash_of(0, 0));
    for (uint32_t i = 1; i + 1 < s.blocks; ++i) out.hashes.push_back(hash_of(s.id, i));
  }
  void from_trace(Prompt& out) {
    const TraceRequest& r = (*trace_)[at_];
    out.tokens = static_cast<uint32_t>(r.input_tokens), out.answer = static_cast<uint32_t>(r.output_tokens);
    const size_t whole = std::min<size_t>(r.hash_ids.size(), r.input_tokens / kBlockTokens);
    for (size_t i = 0; i < whole; ++i)  // what all requests share stays shared from pass to pass
      out.hashes.push_back(hash_of(r.hash_ids[i] == shared_ ? 0 : pass_, r.hash_ids[i]));
    if (++at_ == trace_->size()) at_ = 0, ++pass_;
  }

  const std::vector<TraceRequest>* trace_;
  Rng rng_;
  std::deque<Session> sessions_;
  uint64_t session_count_ = 0, pass_ = 0;
  uint64_t shared_ = 0;  // the block that a trace's first prompt begins with
  size_t at_ = 0;
};

struct Figures {
  Histogram decision_us, match_us;
  double booking_s = 0;
  uint64_t decisions = 0, fetches = 0, local_blocks = 0, prompt_blocks = 0;
};

class Cluster {
 public:
  Cluster(uint32_t nodes, uint64_t blocks_max, const sched::Policy& policy, uint64_t seed)
      : policy_(policy), rng_(seed), blocks_max_(blocks_max), seq_(nodes) {
    const auto profile = sched::builtin_profile("a800-llama3-70b");
    MC_ASSERT(profile.has_value());
    snapshot_.block_tokens = kBlockTokens;
    snapshot_.block_bytes = kBlockTokens * profile->kv_bytes_per_token;
    options_.fetch_rule = sched::FetchRule::cost;
    prefills_ = nodes / 2;
    for (uint32_t i = 0; i < nodes; ++i) {
      const bool prefill = i < prefills_;
      const std::string name = (prefill ? "p" : "d") + std::to_string(prefill ? i : i - prefills_);
      index_.add_node(name);
      snapshot_.add_holder(name);
      if (prefill) {
        sched::PrefillView view;
        view.name = name, view.cost = profile->cost, view.holder = static_cast<int>(i);
        snapshot_.prefill.push_back(std::move(view));
      } else {
        sched::DecodeView view;
        view.name = name, view.cost = profile->cost, view.capacity_tokens = profile->capacity.kv_tokens;
        snapshot_.decode.push_back(std::move(view));
      }
    }
    busy_until_.resize(prefills_);
  }

  size_t blocks() const { return index_.block_count(); }
  const kv::PrefixIndex& index() const { return index_; }

  /// Blocks without a decision: a session's blocks on one node of each kind, as decisions leave them.
  void fill(const Prompt& prompt) {
    const auto& first = prompt.hashes[std::min<size_t>(1, prompt.hashes.size() - 1)];
    const uint64_t home = Id128Hash{}(first);
    store({static_cast<kv::NodeOrdinal>(home % prefills_),
           static_cast<kv::NodeOrdinal>(prefills_ + home % snapshot_.decode.size()), prompt.hashes});
  }

  void serve(const Prompt& prompt, Figures* figures) {
    const Clock& clock = SystemClock::instance();
    const TimePoint began = clock.now();
    before_.swap(matches_);
    index_.match(prompt.hashes, matches_);
    sched::find_runs<kv::PrefixIndex, BlockHash>(index_, prompt.hashes, matches_, runs_);
    const TimePoint matched = clock.now();
    look(prompt);
    sched::place(snapshot_, policy_, options_, rng_, placement_);
    const TimePoint decided = clock.now();
    book(prompt, placement_);
    if (figures == nullptr) return;
    figures->decision_us.record(to_us(decided - began));
    figures->match_us.record(to_us(matched - began));
    figures->booking_s += to_seconds(clock.now() - decided);
    ++figures->decisions;
    const auto& c = placement_.candidates[static_cast<size_t>(placement_.candidate)];
    figures->fetches += c.fetch_blocks > 0, figures->local_blocks += c.local_blocks;
    figures->prompt_blocks += prompt.hashes.size();
  }

 private:
  struct Answering {
    double ends_s;
    uint32_t node, tokens;
    bool operator>(const Answering& other) const { return ends_s > other.ends_s; }
  };
  struct Stored {
    kv::NodeOrdinal prefill, decode;
    std::vector<BlockHash> hashes;
  };
  struct Use {  // of a block by a node
    kv::NodeOrdinal node;
    BlockHash block;
    bool operator==(const Use&) const = default;
  };
  struct UseHash {
    size_t operator()(const Use& use) const {
      return Id128Hash{}(use.block) ^ size_t { use.node } * 0x9e3779b97f4a7c15;
    }
  };
  static double to_us(Duration d) { return to_seconds(d) * 1e6; }

  // As Conductor::look().
  void look(const Prompt& prompt) {
    kv::for_each_change(before_, matches_, [&](const kv::NodeMatch& m) {
      sched::HolderView& holder = snapshot_.holders[m.node];
      holder.readable_blocks = holder.pending_blocks = m.resident;
      if (m.node < prefills_) snapshot_.prefill[m.node].resident_blocks = m.resident;
    });
    snapshot_.later_runs.clear();
    for (const kv::NodeRun& run : runs_)
      snapshot_.later_runs.push_back({static_cast<int>(run.node), run.first, run.end, run.on_disk});
    snapshot_.tokens = prompt.tokens;
    snapshot_.answer_tokens = prompt.answer;
    for (uint32_t i = 0; i < prefills_; ++i) snapshot_.prefill[i].queue_s = std::max(busy_until_[i], now_s_) - now_s_;
  }

  void book(const Prompt& prompt, const sched::Placement& placement) {
    MC_ASSERT(placement.candidate >= 0);
    const auto& c = placement.candidates[static_cast<size_t>(placement.candidate)];
    busy_until_[c.node] = std::max(busy_until_[c.node], now_s_) + c.prefill_s;
    const auto decode = static_cast<uint32_t>(placement.decode);
    snapshot_.decode[decode].rows += 1, snapshot_.decode[decode].kv_tokens += prompt.tokens;
    answering_.push_back({now_s_ + c.ttft_s + prompt.answer * placement.tbt_s, decode, prompt.tokens});
    std::push_heap(answering_.begin(), answering_.end(), std::greater<>());
    now_s_ += c.prefill_s / (kLoad * prefills_);
    while (!answering_.empty() && answering_.front().ends_s <= now_s_) {
      std::pop_heap(answering_.begin(), answering_.end(), std::greater<>());
      snapshot_.decode[answering_.back().node].rows -= 1;
      snapshot_.decode[answering_.back().node].kv_tokens -= answering_.back().tokens;
      answering_.pop_back();
    }
    store({static_cast<kv::NodeOrdinal>(c.node), static_cast<kv::NodeOrdinal>(prefills_ + decode), prompt.hashes});
  }
  void store(Stored stored) {
    for (const kv::NodeOrdinal node : {stored.prefill, stored.decode}) {
      tell(node, stored.hashes, kv::BlockEvent::Kind::stored);
      ++beginnings_[{node, stored.hashes[0]}];
      newest_[{node, session(stored)}] = evicted_ + order_.size();
    }
    order_.push_back(std::move(stored));
    while (index_.block_count() > blocks_max_) {  // oldest first, tail first
      for (const kv::NodeOrdinal node : {order_.front().prefill, order_.front().decode}) evict_first(node);
      order_.pop_front(), ++evicted_;
    }
  }
  static const BlockHash& session(const Stored& stored) {
    return stored.hashes[std::min<size_t>(1, stored.hashes.size() - 1)];
  }
  /// Evicts the oldest prompt from a node, but no block that a newer one there shares: as in the pools of nodes, what
  /// is left of a chain is its beginning.
  void evict_first(kv::NodeOrdinal node) {
    const Stored& oldest = order_.front();
    const auto newest = newest_.find({node, session(oldest)});
    size_t kept = 0;
    if (newest->second != evicted_) {
      const auto& other = order_[newest->second - evicted_].hashes;
      while (kept < std::min(other.size(), oldest.hashes.size()) && other[kept] == oldest.hashes[kept]) ++kept;
    } else {
      newest_.erase(newest);
    }
    const auto beginning = beginnings_.find({node, oldest.hashes[0]});
    if (--beginning->second == 0)
      beginnings_.erase(beginning);
    else
      kept = std::max<size_t>(kept, 1);
    std::vector<BlockHash> gone(oldest.hashes.rbegin(), oldest.hashes.rend() - static_cast<std::ptrdiff_t>(kept));
    tell(node, gone, kv::BlockEvent::Kind::removed);
  }
  void tell(kv::NodeOrdinal node, std::span<const BlockHash> hashes, kv::BlockEvent::Kind kind) {
    events_.clear();
    for (const BlockHash& hash : hashes) {
      kv::BlockEvent event;
      event.seq = ++seq_[node], event.kind = kind, event.hash = hash;
      events_.push_back(event);
    }
    MC_ASSERT(index_.apply(node, events_) == kv::PrefixIndex::Applied::ok);
  }

  const sched::Policy& policy_;
  sched::Options options_;
  Rng rng_;
  uint64_t blocks_max_;
  uint32_t prefills_ = 0;
  kv::PrefixIndex index_;
  sched::Snapshot snapshot_;
  sched::Placement placement_;
  std::vector<kv::NodeMatch> matches_, before_;            // of this decision and of the one before it
  std::vector<kv::NodeRun> runs_;                          // behind the longest match
  std::unordered_map<Use, uint32_t, UseHash> beginnings_;  // number of prompts in order_
  std::unordered_map<Use, uint64_t, UseHash> newest_;      // number of a session's newest prompt since the start
  std::vector<uint64_t> seq_;
  std::vector<kv::BlockEvent> events_;
  std::vector<double> busy_until_;
  std::vector<Answering> answering_;  // heap
  std::deque<Stored> order_;          // oldest first
  uint64_t evicted_ = 0;              // prompts that left it
  double now_s_ = 0;
};

Json measure(uint32_t nodes, uint64_t blocks, const sched::Policy& policy, const std::vector<TraceRequest>* trace,
             const cli::Args& args) {
  const uint64_t seed = args.count(flags::kSeed);
  Prompts prompts(trace, seed);
  Cluster cluster(nodes, blocks, policy, seed + 1);
  Prompt prompt;
  const Clock& clock = SystemClock::instance();
  // A trace that shares everything would never fill the index: no more than so many requests.
  for (uint64_t i = 0; cluster.blocks() + 256 < blocks && i < blocks; ++i) {
    prompts.next(prompt);
    if (!prompt.hashes.empty()) cluster.fill(prompt);
  }
  for (uint32_t i = 0; i < 2 * nodes; ++i) {  // queues and batches of a cluster at work
    prompts.next(prompt);
    if (!prompt.hashes.empty()) cluster.serve(prompt, nullptr);
  }
  Figures f;
  for (const TimePoint end = clock.now() + args.duration(kRouteTime); clock.now() < end;) {
    prompts.next(prompt);
    if (!prompt.hashes.empty()) cluster.serve(prompt, &f);
  }
  Json out = Json::object({{"type", "point"}, {"nodes", nodes}, {"blocks", cluster.blocks()}});
  const double decisions = static_cast<double>(f.decisions);
  out.set("decisions", f.decisions).set("decisions_per_s", 1e6 / f.decision_us.mean());
  out.set("decision_us_mean", f.decision_us.mean()).set("decision_us_p50", f.decision_us.quantile(.5));
  out.set("decision_us_p99", f.decision_us.quantile(.99)).set("decision_us_max", f.decision_us.max());
  out.set("match_us_mean", f.match_us.mean()).set("booking_us_mean", 1e6 * f.booking_s / decisions);
  out.set("prompt_blocks_mean", static_cast<double>(f.prompt_blocks) / decisions);
  out.set("local_blocks_mean", static_cast<double>(f.local_blocks) / decisions);
  out.set("fetch_share", static_cast<double>(f.fetches) / decisions);
  out.set("index_bytes_per_block",
          static_cast<double>(cluster.index().memory_bytes()) / static_cast<double>(cluster.blocks()));
  out.set("index_sets", cluster.index().set_count());
  return out;
}

Table route_table(const std::vector<Json>& points) {
  Table out({"nodes", "blocks", "per s", "mean us", "p50", "p99", "max", "match", "book", "B/block"});
  for (const Json& p : points) {
    const auto number = [&](const char* key, int decimals) { return fixed(p[key].as_double(), decimals); };
    out.add({thousands(static_cast<uint64_t>(p["nodes"].as_int())),
             thousands(static_cast<uint64_t>(p["blocks"].as_int())),
             thousands(static_cast<uint64_t>(p["decisions_per_s"].as_double())), number("decision_us_mean", 2),
             number("decision_us_p50", 2), number("decision_us_p99", 2), number("decision_us_max", 0),
             number("match_us_mean", 2), number("booking_us_mean", 2), number("index_bytes_per_block", 1)});
  }
  return out;
}

}  // namespace

const cli::FlagList kRouteFlags = kRouteFlagTable;

Result<int> route(const cli::Args& args) {
  MC_TRY(sink, Sink::open(args));
  MC_TRY(nodes, parse_sweep_counts(args.text(kRouteNodes)));
  MC_TRY(blocks, parse_sweep_counts(args.text(kRouteBlocks)));
  const sched::Policy* policy = sched::find_policy(args.text(kRoutePolicy));
  MC_ASSERT(policy != nullptr);
  for (const uint64_t n : nodes)
    if (n < 2 || n > 8192) return out_of_range(kRouteNodes, n, 2, 8192);
  for (const uint64_t b : blocks)
    if (b < 1000 || b > 100'000'000) return out_of_range(kRouteBlocks, b, 1000, 100'000'000);
  std::vector<TraceRequest> trace;
  if (args.present(kTrace)) {
    MC_TRY(read, read_trace(args.text(kTrace)));
    trace = std::move(read);
  }
  std::vector<Json> points;
  for (const uint64_t n : nodes)
    for (const uint64_t b : blocks) {
      points.push_back(measure(static_cast<uint32_t>(n), b, *policy, trace.empty() ? nullptr : &trace, args));
      MC_CHECK(sink.line(points.back()));
    }
  MC_CHECK(sink.table(route_table(points)));
  Json summary = result_head("mc.route.v1", args);
  summary.set("policy", policy->name).set("trace", trace.empty() ? Json() : Json(args.text(kTrace)));
  MC_CHECK(sink.line(with_points(std::move(summary), points)));
  MC_CHECK(sink.finish());
  return 0;
}

}  // namespace mc::bench

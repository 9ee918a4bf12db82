#include "sim/cluster_engine.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/assert.h"

namespace mc::sim {
namespace {

constexpr uint16_t kAttemptsMax = 4;

double kv_bytes(const sched::Profile& profile, uint64_t tokens) {
  return static_cast<double>(tokens) * static_cast<double>(profile.kv_bytes_per_token);
}

/// Tokens that so many reused blocks save. At least one token of the prompt is computed.
uint64_t reused_tokens(uint64_t blocks, uint64_t prompt_tokens) {
  return std::min(blocks * kTraceBlockTokens, prompt_tokens - 1);
}

uint32_t nodes_of(const ClusterOptions& options) {
  if (options.shape.coupled > 0) return options.shape.coupled;
  return (options.shape.prefill + options.pipeline - 1) / options.pipeline;
}

/// Each node of a pipeline keeps its layers of the blocks, so the group holds as many blocks as its nodes together.
uint64_t in_group(uint64_t blocks, const ClusterOptions& options) {
  return blocks > kUnlimitedBlocks / options.pipeline ? kUnlimitedBlocks : blocks * options.pipeline;
}

uint32_t batches_of(const ClusterOptions& options) {
  return options.shape.coupled > 0 ? options.shape.coupled : options.shape.decode;
}

ClusterRun empty_run(size_t requests) {
  ClusterRun run;
  run.requests.resize(requests);
  return run;
}

}  // namespace

ClusterEngine::ClusterEngine(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                             const ClusterOptions& options)
    : trace_(trace),
      blocks_(blocks),
      options_(options),
      profile_(*options.profile),
      run_(empty_run(trace.size())),
      outcomes_(options, run_.requests),
      live_(trace.size()),
      nodes_(nodes_of(options), Node(options.pipeline)),
      grown_(batches_of(options)),
      caches_(nodes_of(options), in_group(options.dram_blocks, options), in_group(options.ssd_blocks, options),
              blocks.unique()),
      parcels_(nodes_of(options) + batches_of(options), options.profile->paths.net.bytes_per_s),
      layer_cut_(layer_cut(options)),
      router_(trace, blocks, options, caches_, nodes_of(options), [this](auto& out) { fill_inflight(out); }),
      sampler_(options, blocks, nodes_of(options)) {
  MC_ASSERT(options.policy != nullptr && options.pipeline > 0 && !nodes_.empty() && !grown_.empty());
  MC_ASSERT_EQ(trace.size(), blocks.size());
  const uint64_t seed = Rng(options.seed).fork("steps").next();
  for (size_t i = 0; i < grown_.size(); ++i) batches_.emplace_back(&profile_, profile_.capacity.kv_tokens, seed + i);
}

void ClusterEngine::at(double when_s, Kind kind, uint32_t a, uint32_t b) {
  calendar_.add(std::max(when_s, now_), kind, a, b);
}

ClusterRun ClusterEngine::run() {
  for (uint32_t i = 0; i < options_.failures.size(); ++i) {
    at(options_.failures[i].at_s, Kind::fail, i);
    if (options_.failures[i].back_s < Batch::kNever) at(options_.failures[i].back_s, Kind::back, i);
  }
  const auto arrival_s = [&](size_t r) {
    return r < trace_.size() ? trace_[r].timestamp_ms / 1000 / options_.speedup : Batch::kNever;
  };
  const auto queue_s = [&](size_t node, double at_s) { return router_.queue_s(static_cast<uint32_t>(node), at_s); };
  const auto followed = [&](uint32_t r, const Answer& answer) { follow(r, answer); };
  uint32_t next = 0;
  for (;;) {
    const double arrival = arrival_s(next), transfer = parcels_.next_s(), event = calendar_.next_s();
    const double first = std::min({arrival, transfer, event, router_.next_s()});
    if (first == Batch::kNever || outcomes_.missed() > options_.misses_max) break;
    if (options_.progress && run_.events % 4096 == 0) options_.progress(outcomes_.over());
    sampler_.sample_until(first, queue_s, batches_, caches_);
    now_ = std::max(now_, first);
    router_.end_due(now_, followed);
    if (transfer == first) {  // before other events of that time, which may need its bytes
      ++run_.events;
      receive(parcels_.take_next());
    } else if (event == first) {
      ++run_.events;
      handle(calendar_.take());
    } else if (arrival == first) {
      arrive_request(next++);
    }
    if (!router_.wants_round(now_)) continue;
    count_all_growth();
    router_.serve_waiting(now_, followed);
  }
  router_.end_held(now_, followed);  // admission refuses them on an idle cluster, too
  run_.span_s = trace_.empty() ? 0 : arrival_s(trace_.size() - 1);
  run_.end_s = now_;
  sampler_.move_to(run_);
  run_.moved_bytes = parcels_.moved_bytes();
  for (const Batch& batch : batches_) {
    run_.row_s += batch.history().row_s(), run_.decode_busy_s += batch.history().busy_s();
    run_.rows_max = std::max(run_.rows_max, batch.rows_max());
    run_.preempted += batch.preempted();
  }
  run_.held = router_.held_count();
  run_.copies = router_.copies().copies, run_.copied_blocks = router_.copies().blocks;
  run_.copied_bytes = kv_bytes(profile_, run_.copied_blocks * kTraceBlockTokens);
  run_.copies_used = copies_.copies_used(), run_.copied_blocks_used = copies_.blocks_used();
  return std::move(run_);
}

void ClusterEngine::handle(const Event& e) {
  switch (e.kind) {
    case Kind::pump: return pump(e.a);
    case Kind::ssd_read:
      if (live_[e.a].attempt != e.b) return;
      live_[e.a].prefix.end_load();
      return follow_prefix(e.a);
    case Kind::prefill_done:
      if (live_[e.a].attempt == e.b) prefill_done(e.a);
      return;
    case Kind::arrive:
      if (live_[e.a].attempt == e.b) arrive_at_decode(e.a);
      return;
    case Kind::batch:
      if (batches_[e.a].plan() == e.b) batch_event(e.a);
      return;
    case Kind::chunk:
      if (nodes_[e.a].version == e.b) coupled_chunk_done(e.a);
      return;
    case Kind::fail: return fail(options_.failures[e.a]);
    case Kind::back: return come_back(options_.failures[e.a]);
  }
}

// ---- requests --------------------------------------------------------------------------------

void ClusterEngine::arrive_request(uint32_t r) {
  Live& live = live_[r];
  live.times.arrived_s = now_;
  live.tokens = trace_[r].input_tokens;
  live.attempt = run_.requests[r].attempts = 1;
  // As at the live front door: prompt and longest answer must fit into the context.
  if (live.tokens + std::max<uint64_t>(1, trace_[r].output_tokens) > profile_.context_tokens)
    return outcomes_.end(r, Fate::rejected_length, now_);
  count_all_growth();
  follow(r, router_.submit(r, now_));
}

void ClusterEngine::follow(uint32_t r, const Answer& answer) {
  if (answer.what == Answer::What::waits) return;
  if (live_[r].attempt == 1) {
    run_.requests[r].predicted_ttft_s = static_cast<float>(answer.predicted_ttft_s);
    run_.requests[r].predicted_tbt_s = static_cast<float>(answer.predicted_tbt_s);
  }
  answer.what == Answer::What::placed ? dispatch(r, answer.route) : outcomes_.end(r, answer.fate, now_);
}

// Reports the tokens that the rows of a batch have made to the router.
void ClusterEngine::count_growth(uint32_t index) {
  const Batch& batch = batches_[index];
  if (batch.tokens_made() > grown_[index]) router_.grow(index, batch.tokens_made() - grown_[index]);
  grown_[index] = batch.tokens_made();
}

void ClusterEngine::count_all_growth() {
  for (uint32_t i = 0; i < batches_.size(); ++i) {
    Batch& batch = batches_[i];
    if (batch.next_s() > now_) batch.advance(now_, done_);
    count_growth(i);
    if (!router_.has_tenants()) continue;
    for (const Batch::Row& row : batch.running())
      router_.charge(row.request, live_[row.request].made + 1 + batch.made(row), now_);
  }
  MC_ASSERT(done_.empty());  // rows that end now have an event
}

void ClusterEngine::fill_inflight(std::vector<sched::Inflight>& out) const {
  for (const uint32_t r : active_) {
    const Live& live = live_[r];
    if (live.decoding) continue;
    const double arrives_s =
        live.computed ? live.times.prefill_end_s - now_ : std::max(0.0, live.times.expected_s - now_);
    const uint32_t answered = static_cast<uint32_t>(live.made + live.computed);
    out.push_back({arrives_s, live.decode, static_cast<uint32_t>(live.tokens + live.computed), answered, 0});
  }
  const auto add = [&](uint32_t batch, uint32_t r, uint64_t context, uint64_t made) {
    const Live& live = live_[r];
    out.push_back({live.times.prefill_end_s - now_, batch, static_cast<uint32_t>(context),
                   static_cast<uint32_t>(live.made + made + 1), 0});
  };
  for (uint32_t i = 0; i < batches_.size(); ++i) {
    const Batch& batch = batches_[i];
    for (const Batch::Row& row : batch.running()) add(i, row.request, batch.context(row), batch.made(row));
    batch.each_waiting([&](uint32_t r, uint64_t context, double, uint64_t made) { add(i, r, context, made); });
  }
}

std::span<const uint32_t> ClusterEngine::kept_blocks(uint32_t r) const {
  const std::span<const uint32_t> all = blocks_.of(r);
  return all.first(std::min<size_t>(all.size(), trace_[r].input_tokens / kTraceBlockTokens));
}

void ClusterEngine::dispatch(uint32_t r, const Route& route) {
  const std::span<const uint32_t> blocks = kept_blocks(r);
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  live.placed = true;
  live.node = record.prefill = route.node, live.decode = record.decode = route.decode;
  live.times.expected_s = now_ + route.ttft_s;
  const uint32_t used_blocks = route.local_blocks + route.fetch_blocks;
  const uint64_t local = reused_tokens(route.local_blocks, live.tokens);
  live.reused = reused_tokens(used_blocks, live.tokens);
  const uint32_t ssd_blocks = caches_.on_ssd(route.node, blocks.first(route.local_blocks));
  record.ssd_tokens = static_cast<uint32_t>(std::min<uint64_t>(local, ssd_blocks * kTraceBlockTokens));
  record.dram_tokens = static_cast<uint32_t>(local) - record.ssd_tokens;
  record.remote_tokens = static_cast<uint32_t>(live.reused - local);
  active_.push_back(r);
  live.active_at = static_cast<uint32_t>(active_.size() - 1);
  Node& node = nodes_[route.node];
  node.queue.push_back(r);
  const double read_s = node.disk.begin(caches_, route.node, blocks.first(route.local_blocks),
                                        kv_bytes(profile_, record.ssd_tokens), profile_.paths.ssd_read, now_);
  if (read_s > now_) {
    live.prefix.begin_load();
    at(read_s, Kind::ssd_read, r, live.attempt);
  }
  if (!route.parts.empty()) {
    ++run_.fetches;
    const uint32_t holder = static_cast<uint32_t>(route.parts.front().holder);
    const uint32_t maker = route.source_computes ? caches_.maker(blocks[used_blocks - 1]) : UINT32_MAX;
    const bool waits = maker != UINT32_MAX && live_[maker].placed && live_[maker].node == holder &&
                       !live_[maker].computed && maker != r;
    if (waits) live_[maker].waiters.push_back({r, live.attempt});
    live.prefix.fetch(route.parts, route.spares, waits, layer_cut_);
    ask_for_parts(r);
  }
  copies_.use(route.node, blocks.first(route.local_blocks), caches_);
  caches_.use(route.node, blocks, r);
  if (coupled()) return coupled_pump(route.node);
  if (const auto& order = route.copy) {
    const double bytes = static_cast<double>(order->bytes);
    parcels_.send(now_, {Parcel::Kind::copy, copies_.begin(r, *order), 0, 0}, order->source, order->target, bytes);
  }
  pump(route.node);
}

// Takes the request off its nodes and out of their queues. Its row made `grown` tokens.
void ClusterEngine::leave(uint32_t r, uint64_t grown) {
  Live& live = live_[r];
  if (!live.placed) return;
  router_.leave(r, grown, now_);
  std::deque<uint32_t>& queue = nodes_[live.node].queue;
  if (const auto queued = std::find(queue.begin(), queue.end(), r); queued != queue.end()) queue.erase(queued);
  active_[live.active_at] = active_.back();
  live_[active_.back()].active_at = live.active_at;
  active_.pop_back();
  live.active_at = UINT32_MAX;
  const auto waiters = std::move(live.waiters);
  live.placed = false;
  for (const auto& [other, attempt] : waiters)  // their blocks will not come, so they are computed
    if (live_[other].attempt == attempt && live_[other].placed) {
      Live& waiting = live_[other];
      waiting.reused =
          std::min<uint64_t>(waiting.reused, run_.requests[other].dram_tokens + run_.requests[other].ssd_tokens);
      run_.requests[other].remote_tokens = 0;
      waiting.prefix.cut();
      follow_prefix(other);
    }
}

void ClusterEngine::reject(uint32_t r, Fate fate) {
  leave(r, 0);
  router_.close(r, true, now_);
  outcomes_.end(r, fate, now_);
}

void ClusterEngine::finish(uint32_t r, double at_s) {
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  if (live.decoding) {
    const bool waited = options_.sched.first_with_second && !coupled();
    const Gaps gaps = batches_[live.decode].history().take_gaps(r, live.times.gap_s, waited);
    record.tbt_s = gaps.longest_s, record.heard_tbt_s = gaps.heard_s;
    record.mean_gap_s = gaps.count > 0 ? gaps.total_s / static_cast<double>(gaps.count) : 0;
    if (waited) outcomes_.first_token(r, live.times.first_token_s + gaps.first_s - live.times.arrived_s);
  }
  router_.answered(static_cast<uint32_t>(trace_[r].output_tokens), at_s - live.times.first_token_s);
  outcomes_.end(r, Fate::served, at_s);
  leave(r, live.decoding ? steps_left(r) : 0);
  router_.close(r, false, now_);
  live.decoding = false;
}

uint64_t ClusterEngine::steps_left(uint32_t r) const {
  const uint64_t made = live_[r].made + 1;  // including the token of prefill
  return trace_[r].output_tokens > made ? trace_[r].output_tokens - made : 0;
}

// ---- failures --------------------------------------------------------------------------------

// Takes a request off its nodes, one of which has failed.
void ClusterEngine::abandon(uint32_t r, uint64_t more_made) {
  const Live& live = live_[r];
  const double spent_s = now_ - live.times.started_s, work_s = live.times.work_s;
  const bool is_booked = !live.early || live.early->has_end();
  const double more_s = !live.computing ? 0 : is_booked ? std::min(spent_s, work_s) - work_s : spent_s;
  run_.requests[r].prefill_s += more_s, run_.prefill_busy_s += more_s;
  if (live.computing && !coupled() && nodes_[live.node].up) {
    // The next request begins now, or when the first stage of a pipeline is free.
    Stages& stages = nodes_[live.node].stages;
    if (!stages.is_pipeline()) stages.set_free(now_);
    at(stages.free_s(), Kind::pump, live.node);
  }
  const bool ends_early = live.placed && !live.computed;
  leave(r, more_made);
  if (ends_early) pass_on_blocks(r);
}

// The blocks that the prefill was to make will not come from it. The next request of the node that has such a block
// makes it, even if it was to reuse the block.
void ClusterEngine::pass_on_blocks(uint32_t r) {
  const uint32_t node = live_[r].node;
  std::unordered_map<uint32_t, uint32_t> maker_of;  // of each block that is still to come
  const auto make = [&](uint32_t other) {
    for (const uint32_t block : kept_blocks(other)) maker_of.try_emplace(block, other);
  };
  for (const uint32_t other : active_)
    if (live_[other].node == node && live_[other].computing) make(other);
  for (const uint32_t other : nodes_[node].queue) {
    RequestRecord& record = run_.requests[other];
    const uint32_t local_tokens = record.dram_tokens + record.ssd_tokens;
    const auto reused = kept_blocks(other).first(local_tokens / kTraceBlockTokens);
    const auto lost = std::find_if(reused.begin(), reused.end(), [&](uint32_t block) {
      return !caches_.is_readable(node, block) && !maker_of.contains(block);
    });
    const auto kept_tokens = static_cast<uint32_t>((lost - reused.begin()) * static_cast<int64_t>(kTraceBlockTokens));
    if (lost != reused.end()) {  // fetched blocks behind them are useless
      live_[other].reused = kept_tokens;
      live_[other].prefix.cut();
      record.remote_tokens = 0;
    }
    record.ssd_tokens = std::min(record.ssd_tokens, kept_tokens);
    record.dram_tokens = kept_tokens - record.ssd_tokens;
    make(other);
  }
  for (const uint32_t block : kept_blocks(r)) {
    const auto maker = maker_of.find(block);
    caches_.pass_on(node, block, maker == maker_of.end() ? std::nullopt : std::optional(maker->second));
  }
}

// Requests of other nodes compute the blocks that the failed node was still to send and no other holder can send.
void ClusterEngine::lose_holder(uint32_t node) {
  for (const uint32_t r : active_) {
    Live& live = live_[r];
    RequestRecord& record = run_.requests[r];
    const auto end = live.prefix.lose(static_cast<int>(node));
    if (!end) continue;
    live.reused = std::min(live.reused, reused_tokens(*end, live.tokens));
    record.remote_tokens = static_cast<uint32_t>(live.reused) - record.dram_tokens - record.ssd_tokens;
    if (live.early) live.early->begin_again(live.reused);
    ask_for_parts(r);
    follow_prefix(r);
  }
}

void ClusterEngine::retry(uint32_t r, uint64_t more_made) {
  Live& live = live_[r];
  RequestRecord& record = run_.requests[r];
  const bool unheard = first_waits(r) && more_made == 0;
  const uint64_t answered = live.made + (live.computed && !unheard ? 1 : 0) + more_made;
  live = live.next_attempt(trace_[r].input_tokens, answered, now_);
  ++run_.retried;
  if (++record.attempts > kAttemptsMax) return reject(r, Fate::rejected_node);
  if (live.made >= trace_[r].output_tokens && live.made > 0) return finish(r, now_);
  follow(r, router_.retry(r, live.tokens, live.made, now_));
}

void ClusterEngine::fail(const NodeFailure& failure) {
  std::vector<std::pair<uint32_t, uint64_t>> victims;
  const uint32_t index = failure.index / (failure.role == 'p' ? options_.pipeline : 1);
  if (failure.role != 'p' && batches_[index].next_s() <= now_) batch_event(index);
  count_all_growth();
  if (failure.role != 'd') {
    Node& node = nodes_[index];
    node.up = false;
    ++node.version;
    caches_.drop(index);
    for (const uint32_t r : active_)
      if (live_[r].node == index && !(live_[r].computed && live_[r].sent) && !live_[r].decoding)
        victims.push_back({r, 0});
    node.queue.clear();
    node.running = UINT32_MAX;
    node.stages.reset(now_);
    node.disk = {};
  }
  if (failure.role != 'p') {
    Batch& batch = batches_[index];
    if (batch.held()) batch.release(now_);
    batch.clear([&](uint32_t r, uint64_t made) { victims.push_back({r, made}); });
    if (!coupled())
      for (const uint32_t r : active_)
        if (live_[r].decode == index && !live_[r].decoding) victims.push_back({r, 0});
  }
  std::sort(victims.begin(), victims.end());
  parcels_.stop(now_, failure.role == 'd' ? static_cast<uint32_t>(nodes_.size()) + index : index);
  for (const auto& [r, made] : victims) abandon(r, made);
  if (failure.role != 'd') lose_holder(index);
  failure.role == 'd' ? router_.set_decode_up(index, false, now_) : router_.set_prefill_up(index, false, now_);
  for (const auto& [r, made] : victims) retry(r, made);
}

void ClusterEngine::come_back(const NodeFailure& failure) {
  if (failure.role == 'd') return router_.set_decode_up(failure.index, true, now_);
  const uint32_t index = failure.index / (failure.role == 'p' ? options_.pipeline : 1);
  router_.set_prefill_up(index, true, now_);
  nodes_[index].up = router_.is_up(index);
}

// ---- prefill ---------------------------------------------------------------------------------

void ClusterEngine::ask_for_parts(uint32_t r) {
  Live& live = live_[r];
  while (const auto piece = live.prefix.ask(now_)) {
    const sched::FetchRun& part = piece->run;
    const uint64_t tokens = reused_tokens(part.end, live.tokens) - reused_tokens(part.first, live.tokens);
    parcels_.send(now_, {Parcel::Kind::fetch, r, live.attempt, part.first}, static_cast<uint32_t>(part.holder),
                  live.node, kv_bytes(profile_, tokens) / piece->of);
  }
}

void ClusterEngine::send_on(uint32_t r, double bytes, double cap) {
  const uint32_t decode = static_cast<uint32_t>(nodes_.size()) + live_[r].decode;
  parcels_.send(now_, {Parcel::Kind::handoff, r, live_[r].attempt, 0}, live_[r].node, decode, bytes, cap);
}

void ClusterEngine::receive(const Parcel& parcel) {
  const uint32_t r = parcel.request;
  if (parcel.kind == Parcel::Kind::copy) {
    const CopyLog::Copy& copy = copies_.at(r);
    if (router_.end_copy(copy.order, now_)) copies_.arrive(r, blocks_.of(copy.request), caches_);
    return;
  }
  if (live_[r].attempt != parcel.attempt || !live_[r].placed) return;
  if (parcel.kind == Parcel::Kind::fetch) {
    live_[r].prefix.arrive(parcel.first_block, now_);
    ask_for_parts(r);
    return follow_prefix(r);
  }
  live_[r].sent = true;
  if (live_[r].computed) hand_over(r);
}

// More of the prefix is here, or no more comes.
void ClusterEngine::follow_prefix(uint32_t r) {
  Live& live = live_[r];
  if (live.early && !live.early->has_end()) {
    if (const auto left_s = live.early->follow(live.prefix, now_)) expect_end(r, *left_s);
    return;
  }
  if (live.computing || live.computed || !(live.prefix.is_here() || live.prefix.arriving(now_))) return;
  coupled() ? coupled_pump(live.node) : pump(live.node);
}

// Computes requests first in, first out among those whose prefix is here, as the live prefill node does. When there is
// none, the first one that may begin with a part of its prefix does.
void ClusterEngine::pump(uint32_t index) {
  Node& node = nodes_[index];
  const auto is_ready = [&](uint32_t r) { return live_[r].prefix.is_here(); };
  const auto begins_early = [&](uint32_t r) {
    Live& live = live_[r];
    live.early = EarlyPrefill::begin(profile_, live.prefix, live.reused, live.tokens, now_);
    return live.early.has_value();
  };
  while (node.up && node.stages.free_s() <= now_) {
    auto next = std::find_if(node.queue.begin(), node.queue.end(), is_ready);
    if (next == node.queue.end()) next = std::find_if(node.queue.begin(), node.queue.end(), begins_early);
    if (next == node.queue.end()) return;
    const uint32_t r = *next;
    node.queue.erase(next);
    start(index, r);
  }
}

void ClusterEngine::start(uint32_t index, uint32_t r) {
  Stages& stages = nodes_[index].stages;
  Live& live = live_[r];
  live.computing = true;
  live.times.started_s = now_;
  run_.requests[r].queue_s = now_ - live.times.arrived_s;
  if (live.early) {
    live.prefix.drop_spares();
    return stages.set_free(Batch::kNever);  // until follow_prefix() has the end
  }
  expect_end(r, stages.is_pipeline() ? stages.compute(profile_, live.reused, live.tokens, now_) - now_
                                     : Stages::alone_s(profile_, live.reused, live.tokens));
}

// The prefill ends in so many seconds. What is computed until then leaves the node at an even rate.
void ClusterEngine::expect_end(uint32_t r, double left_s) {
  Live& live = live_[r];
  Stages& stages = nodes_[live.node].stages;
  live.times.work_s = now_ - live.times.started_s + left_s;
  const double tokens = static_cast<double>(live.tokens), reused = static_cast<double>(live.reused);
  const double gpu_s = stages.is_pipeline() ? profile_.prefill_s(tokens, reused) : live.times.work_s;
  if (!stages.is_pipeline()) stages.set_free(now_ + left_s);
  run_.requests[r].prefill_s += gpu_s;
  run_.prefill_busy_s += gpu_s;
  const double bytes = kv_bytes(profile_, live.tokens);
  if (options_.layer_wise && steps_left(r) > 0) send_on(r, bytes, bytes / left_s);
  at(now_ + left_s, Kind::prefill_done, r, live.attempt);
  if (stages.free_s() < now_ + left_s) at(stages.free_s(), Kind::pump, live.node);
}

void ClusterEngine::first_token(uint32_t r) {
  Live& live = live_[r];
  live.computing = false, live.computed = true;
  live.times.prefill_end_s = now_;
  const auto prefill_s = live.early ? std::nullopt : std::optional(now_ - live.times.started_s);
  for (const auto& [part, seconds] : live.prefix.reads()) router_.fetched(live.node, part, seconds, now_);
  router_.first_token(r, live.reused, prefill_s, now_);
  router_.charge(r, live.made + 1, now_);
  caches_.settle(live.node, kept_blocks(r));
  const bool first = live.attempt == 1 || live.times.first_token_s == 0;
  if (first || first_waits(r)) live.times.first_token_s = now_;
  if (first && !first_waits(r)) outcomes_.first_token(r, now_ - live.times.arrived_s);
  if (live.times.lost_s > 0) live.times.gap_s += now_ - live.times.lost_s;
  const auto waiters = std::move(live.waiters);
  live.waiters.clear();
  for (const auto& [other, attempt] : waiters)
    if (live_[other].attempt == attempt && live_[other].placed) {
      live_[other].prefix.release();
      ask_for_parts(other);
    }
}

void ClusterEngine::prefill_done(uint32_t r) {
  Live& live = live_[r];
  first_token(r);
  const uint32_t node = live.node;
  if (steps_left(r) == 0) {
    finish(r, now_);
  } else if (!options_.layer_wise) {
    send_on(r, kv_bytes(profile_, live.tokens), Parcels::kUncapped);
  } else if (live.sent) {
    hand_over(r);
  }
  pump(node);
}

// The KV is in the decode node's DRAM but for the tail. The tail goes on to the device: the last layer's KV of the last
// chunk (5.2), or all KV when it does not leave layer by layer.
void ClusterEngine::hand_over(uint32_t r) {
  const Live& live = live_[r];
  const uint64_t chunk = std::min(profile_.chunk_tokens, live.tokens - live.reused);
  const double layers = static_cast<double>(profile_.layers);
  const double part = options_.layer_wise ? kv_bytes(profile_, chunk) / layers : kv_bytes(profile_, live.tokens);
  const double sent_s = options_.layer_wise ? profile_.paths.net.seconds(part) : profile_.paths.net.latency_s;
  at(now_ + sent_s + profile_.paths.load.seconds(part), Kind::arrive, r, live_[r].attempt);
}

// ---- decode ----------------------------------------------------------------------------------

void ClusterEngine::schedule(uint32_t index) {
  const Batch& batch = batches_[index];
  if (batch.next_s() < Batch::kNever) at(batch.next_s(), Kind::batch, index, batch.plan());
}

// Checks the bound of TBT again (arXiv:2407.00079, 7), because the load may have changed since admission.
void ClusterEngine::arrive_at_decode(uint32_t r) {
  Live& live = live_[r];
  Batch& batch = batches_[live.decode];
  if (batch.next_s() <= now_) batch_event(live.decode);
  batch.advance(now_, done_);
  const double rows = static_cast<double>(batch.rows() + batch.waiting() + 1);
  const double context = static_cast<double>(batch.context() + batch.waiting_context() + live.tokens);
  const bool slow = options_.sched.tbt_slo_s > 0 && profile_.step_s(rows, context) > options_.sched.tbt_slo_s;
  const bool full = context > static_cast<double>(profile_.capacity.kv_tokens);
  if (options_.sched.admission->checks_again && live.attempt == 1 && r != options_.force && (slow || full))
    return reject(r, Fate::rejected_after);
  run_.requests[r].handoff_s = now_ - live.times.prefill_end_s;
  const uint32_t plan = batch.plan();
  join_batch(r);
  if (batch.plan() != plan) schedule(live.decode);
}

void ClusterEngine::join_batch(uint32_t r) {
  Live& live = live_[r];
  live.decoding = true;
  batches_[live.decode].add(now_, r, live.tokens + 1, steps_left(r), live.times.prefill_end_s);
}

void ClusterEngine::batch_event(uint32_t index) {
  Batch& batch = batches_[index];
  std::vector<Batch::Done> done;
  batch.advance(now_, done);
  count_growth(index);
  for (const Batch::Done& d : done) finish(d.request, d.at_s);
  if (coupled()) {
    if (nodes_[index].running == UINT32_MAX) return coupled_begin(index);
    batch.hold(now_);
    return coupled_chunk_done(index);
  }
  schedule(index);
}

// ---- coupled nodes ---------------------------------------------------------------------------

// A prompt waits to be computed: stops the batch at its next step boundary, where coupled_begin decides.
void ClusterEngine::coupled_pump(uint32_t index) {
  Node& node = nodes_[index];
  Batch& batch = batches_[index];
  if (!node.up || node.running != UINT32_MAX) return;
  if (batch.rows() == 0) return coupled_begin(index);
  if (batch.next_s() <= now_) return;  // its event is due now
  batch.advance(now_, done_);
  batch.step_singly(true);
  batch.stop_at_boundary();
  schedule(index);
}

// Decides at a step boundary what the next pass computes.
void ClusterEngine::coupled_begin(uint32_t index) {
  Node& node = nodes_[index];
  Batch& batch = batches_[index];
  if (node.running == UINT32_MAX && !node.queue.empty()) {
    const uint32_t r = node.queue.front();
    const uint64_t room = profile_.capacity.kv_tokens;
    const bool fits =
        batch.rows() + batch.waiting() == 0 || batch.context() + batch.waiting_context() + live_[r].tokens < room;
    if (fits) {
      node.queue.pop_front();
      node.running = r;
      Live& live = live_[r];
      live.computing = true;
      live.times.started_s = now_;
      live.times.work_s = profile_.prefill_s(static_cast<double>(live.tokens), static_cast<double>(live.reused));
      run_.requests[r].queue_s = now_ - live.times.arrived_s;
      run_.requests[r].prefill_s += live.times.work_s;
      run_.prefill_busy_s += live.times.work_s;
      node.chunk_begin = node.chunk_end = live.reused;
    }
  }
  if (node.running == UINT32_MAX) {
    batch.step_singly(false);
    if (batch.held()) batch.release(now_);
    return schedule(index);
  }
  const Live& live = live_[node.running];
  if (!batch.held()) batch.hold(now_);
  if (options_.coupled_way == CoupledWay::prefill_first) {
    at(now_ + live.times.work_s, Kind::chunk, index, ++node.version);
    return;
  }
  // One pass computes the batch and a chunk of the prompt.
  node.chunk_begin = node.chunk_end;
  node.chunk_end = std::min<uint64_t>(live.tokens, node.chunk_begin + options_.coupled_chunk_tokens);
  const double begin = static_cast<double>(node.chunk_begin), end = static_cast<double>(node.chunk_end);
  const double rows = static_cast<double>(batch.rows() + batch.waiting());
  const double context = static_cast<double>(batch.context() + batch.waiting_context());
  const double first_s = node.chunk_begin == live.reused ? profile_.fixed_s() : 0;
  const double pass_s = first_s + profile_.mixed_step_s(rows, context, begin, end);
  if (rows == 0) {
    at(now_ + pass_s, Kind::chunk, index, ++node.version);
    return;
  }
  batch.lengthen_next(std::max(0.0, pass_s - profile_.step_s(rows, context)));
  batch.step_singly(true);
  batch.release(now_);
  schedule(index);
}

void ClusterEngine::coupled_chunk_done(uint32_t index) {
  Node& node = nodes_[index];
  const uint32_t r = node.running;
  Live& live = live_[r];
  if (options_.coupled_way == CoupledWay::prefill_first) node.chunk_end = live.tokens;
  if (node.chunk_end < live.tokens) return coupled_begin(index);
  first_token(r);
  node.running = UINT32_MAX;
  if (steps_left(r) == 0) {
    finish(r, now_);
  } else {
    join_batch(r);
  }
  coupled_begin(index);
}

}  // namespace mc::sim

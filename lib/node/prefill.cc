// Life of a request on the prefill node: arrival, turn, failure, end. Fetching the prefix is in
// prefill_fetch.cc, computing and handing over in prefill_compute.cc.

#include "node/prefill.h"

#include <algorithm>

#include "base/assert.h"
#include "wire/notify.h"

namespace mc::node {

Prefill::Prefill(WorkerOptions worker, PrefillOptions options)
    : Worker(std::move(worker)), prefill_(options), copies_(*shelf_) {
  MC_ASSERT(shelf_);
  if (leads()) never_demote();  // a cache node would read our layers alone
  MC_ASSERT(prefill_.chunk_tokens > 0 && prefill_.chunk_tokens % options_.layout.block_tokens == 0);
}

Prefill::Request* Prefill::find(const RequestId& req, uint32_t attempt) {
  const auto it = requests_.find(req);
  return it != requests_.end() && it->second->spec.attempt == attempt ? it->second.get() : nullptr;
}

void Prefill::on_message(const Received& event, TimePoint now, Actions& out) {
  if (const auto* start = std::get_if<wire::PrefillStart>(&event.message)) {
    if (event.from == kConductor) on_start(event, *start, now, out);
  } else if (const auto* accept = std::get_if<wire::KvAccept>(&event.message)) {
    Request* r = find(accept->req, accept->attempt);
    if (!r || event.instance != r->decode_instance || r->accepted) return;
    r->accepted = true;
    r->accepted_at = now;
    r->decode_has = std::min(accept->have_blocks, static_cast<uint32_t>(r->hashes.size()));
  } else if (const auto* refuse = std::get_if<wire::KvRefuse>(&event.message)) {
    on_refuse(event, *refuse, now, out);
  } else if (const auto* done = std::get_if<wire::KvDone>(&event.message)) {
    Request* r = find(done->req, done->attempt);
    if (r && event.instance == r->decode_instance && r->phase == Phase::handing_over) {
      ++stats_.finished;
      stats_.exposed_s.add(to_seconds(now - r->computed_at));
      end(*r, out);
    }
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&event.message)) {
    const auto it = requests_.find(cancel->req);
    if (it == requests_.end() || it->second->spec.attempt > cancel->attempt) return;
    Request& r = *it->second;
    if (event.from != kConductor && event.instance != r.decode_instance) return;
    if (event.from == kConductor && r.offered)
      send(r.decode, r.decode_instance, wire::Cancel{r.spec.req, r.spec.attempt, cancel->reason}, out);
    end(r, out);
  } else if (const auto* grant = std::get_if<wire::LeaseGrant>(&event.message)) {
    const auto it = by_op_.find(grant->lease);
    if (it != by_op_.end()) {
      const RequestPtr r = it->second;
      on_grant(*r, *grant, now, out);
    } else if (copies_.on_grant(*grant, next_id(), now, out)) {
    } else if (!grant->blocks.empty()) {  // we gave up waiting: hand it back
      send(event.from, event.instance, wire::LeaseRelease{grant->lease}, out);
    }
  } else if (const auto* order = std::get_if<wire::CopyBlocks>(&event.message)) {
    if (event.from == kConductor && !leads())
      copies_.start(*order, next_id(), peers().has(order->node, order->instance), now, out);
  } else if (const auto* taken = std::get_if<wire::StageTaken>(&event.message)) {
    if (is_stage_of(event.from, name())) free_slot(taken->run);
  } else if (const auto* staged = std::get_if<wire::StageDone>(&event.message)) {
    on_stage_done(event, *staged, now, out);
  } else if (const auto* rotten = std::get_if<wire::StageRotten>(&event.message)) {
    if (leads() && is_stage_of(event.from, name()) && peers().has(event.from, event.instance))
      on_stage_rotten(*rotten, now, out);
  } else if (const auto* failed = std::get_if<wire::Failed>(&event.message)) {  // a stage could not announce
    Request* r = find(failed->req, failed->attempt);
    if (r && is_stage_of(event.from, name()) && peers().has(event.from, event.instance))
      fail(*r, failed->stage, failed->code, failed->message, failed->retryable, now, out);
  }
  pump(now, out);
}

void Prefill::on_start(const Received& event, const wire::PrefillStart& start, TimePoint now, Actions& out) {
  const wire::RequestSpec& spec = start.spec;
  const auto it = requests_.find(spec.req);
  if (it != requests_.end()) {
    if (it->second->spec.attempt >= spec.attempt) return;  // a repeat, or late
    end(*it->second, out);
  }
  auto r = std::make_shared<Request>();
  r->spec = spec;
  r->decode = start.decode;
  r->decode_instance = start.decode_instance;
  if (!leads()) r->sources = start.sources;  // what it fetched its later stages would not have
  r->arrived = now;
  r->deadline = after(now, std::chrono::milliseconds(std::min<uint64_t>(spec.deadline_ms, 1ull << 40)));
  ++stats_.requests;
  requests_[spec.req] = r;
  const uint32_t bt = options_.layout.block_tokens;
  kv::Namespace ns = options_.kv.with_salt(spec.salt);
  ns.attention = spec.prefill_attention;
  if (ns.id() != spec.ns)
    return fail(*r, "queue", "layout",
                "the conductor names another KV namespace than this node computes for the "
                "same model, attention and salt; restart the node",
                false, now, out);
  if (spec.req.empty() || spec.req.size() > wire::kNotifyRequestBytes)
    return fail(*r, "queue", "invalid",
                "request id of " + std::to_string(spec.req.size()) + " bytes, 1 to " +
                    std::to_string(wire::kNotifyRequestBytes) + " fit a notify",
                false, now, out);
  if (spec.ids.empty() || spec.resumed > spec.ids.size() ||
      !fits_context(spec.ids.size(), spec.resumed, spec.stopping.max_tokens, options_.context_tokens))
    return fail(*r, "queue", "invalid",
                "prompt of " + std::to_string(spec.ids.size()) + " tokens, this node holds " +
                    std::to_string(options_.context_tokens),
                false, now, out);
  if (kv::blocks_for(spec.ids.size(), bt) > options_.page_count)
    return fail(*r, "queue", "no_space",
                "prompt needs " + std::to_string(kv::blocks_for(spec.ids.size(), bt)) + " pages, the pool has " +
                    std::to_string(options_.page_count) + "; raise --kv-mem",
                false, now, out);
  if (draining_) return fail(*r, "queue", "draining", "node " + name() + " is draining", true, now, out);
  if (queue_.size() >= prefill_.queue_max)
    return fail(*r, "queue", "queue_full", std::to_string(queue_.size()) + " requests wait here", true, now, out);
  r->hashes = kv::chain(spec.ns, spec.ids, bt);
  r->reusable = spec.no_cache || spec.prompt_logprobs >= 0 ? 0 : kv::reusable_blocks(spec.ids.size(), bt);
  if (!spec.no_cache)
    for (const auto& hash : r->hashes) ++pending_[hash];
  queue_.push_back(r);
}

void Prefill::on_refuse(const Received& event, const wire::KvRefuse& refuse, TimePoint now, Actions& out) {
  Request* r = find(refuse.req, refuse.attempt);
  if (!r || event.instance != r->decode_instance) return;
  wire::Failed failed{r->spec.req,
                      r->spec.attempt,
                      "accept",
                      refuse.reason,
                      "decode node " + r->decode + " refused: " + refuse.reason,
                      true,
                      refuse.predicted_ms,
                      refuse.allowed_ms};
  ++stats_.failed;
  to_conductor(std::move(failed), out);
  end(*r, out);
}

void Prefill::on_event(const Event& event, TimePoint now, Actions& out) {
  if (const auto* layer = std::get_if<LayerDone>(&event)) {
    const auto it = by_op_.find(layer->run);
    if (it != by_op_.end()) on_layer(*it->second, *layer, out);
  } else if (const auto* chunk = std::get_if<ChunkDone>(&event)) {
    const auto it = by_op_.find(chunk->run);
    if (it != by_op_.end()) {
      const RequestPtr r = it->second;
      by_op_.erase(it);
      on_chunk(*r, *chunk, now, out);
    }
  } else if (const auto* read = std::get_if<ReadDone>(&event)) {
    const auto it = by_op_.find(read->read);
    if (it != by_op_.end()) {
      const RequestPtr r = it->second;
      by_op_.erase(it);
      on_read(*r, *read, now, out);
    } else {
      (void)copies_.on_read(*read, out);
    }
  }
  pump(now, out);
}

void Prefill::on_tick(TimePoint now, Actions& out) {
  free_late_slots(now);
  copies_.on_tick(now, out);
  std::vector<RequestPtr> late;
  for (const auto& [id, r] : requests_) {
    if (now >= after(r->deadline, prefill_.grace))
      late.push_back(r);
    else if (now >= r->deadline && r->phase != Phase::handing_over)
      late.push_back(r);
  }
  for (const auto& r : late) {
    if (r->phase == Phase::handing_over) {
      end(*r, out);
    } else {
      fail(*r, stage_of(*r), "timeout", "deadline passed in stage " + stage_of(*r), false, now, out);
    }
  }
  for (const auto& r : std::vector<RequestPtr>(queue_.begin(), queue_.end()))
    if ((r->fetch == Fetch::leasing || r->fetch == Fetch::reading) && now >= r->fetch_until)
      fetch_failed(*r, r->fetch == Fetch::leasing ? wire::Fallback::lease_timeout : wire::Fallback::read_timeout, now,
                   out);
  pump(now, out);
}

TimePoint Prefill::role_wakeup() const {
  TimePoint at = std::min(*std::min_element(std::begin(slot_until_), std::end(slot_until_)), copies_.next_wakeup());
  for (const auto& [id, r] : requests_) {
    at = std::min(at, r->phase == Phase::handing_over ? after(r->deadline, prefill_.grace) : r->deadline);
    if (r->fetch == Fetch::leasing || r->fetch == Fetch::reading) at = std::min(at, r->fetch_until);
  }
  return at;
}

void Prefill::drop_all(TimePoint, Actions& out) {
  copies_.drop_all(out);
  const auto all = requests_;
  for (const auto& [id, r] : all) {
    if (r->offered) send(r->decode, r->decode_instance, wire::Cancel{id, r->spec.attempt, "failed"}, out);
    end(*r, out);
  }
}

void Prefill::on_peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out) {
  if (leads() && is_stage_of(node, name())) on_stage_gone(node, now, out);
  copies_.on_peer_gone(instance, out);
  const auto all = requests_;
  for (const auto& [id, r] : all) {
    if (r->phase == Phase::ended) continue;
    if (r->decode_instance == instance && r->offered) {
      fail(*r,
           r->phase == Phase::computing      ? "prefill"
           : r->phase == Phase::handing_over ? "transfer"
                                             : "accept",
           "peer_lost", "decode node " + node + " was lost", true, now, out);
    } else if ((r->fetch == Fetch::leasing || r->fetch == Fetch::reading) && r->source < r->sources.size() &&
               r->sources[r->source].instance == instance) {
      fetch_failed(*r, wire::Fallback::peer_lost, now, out);
    }
  }
  pump(now, out);
}

void Prefill::fill_load(wire::Load& load) const {
  double queue_s = 0;
  for (const auto& r : queue_) queue_s += estimate(*r);
  if (computing_) queue_s += estimate(*computing_);
  load.queue_s = queue_s;
  load.running = computing_ ? 1 : 0;
  load.waiting = static_cast<uint32_t>(queue_.size());
  load.hit_tokens = stats_.local_tokens + stats_.remote_tokens;
  load.prompt_tokens = stats_.prompt_tokens;
}

double Prefill::estimate(const Request& r) const {
  const uint32_t bt = options_.layout.block_tokens;
  const uint32_t reused = r.next > 0 ? r.next
                                     : std::min(shelf_->pool.match(std::span(r.hashes).first(r.reusable)) * bt,
                                                static_cast<uint32_t>(r.spec.ids.size()) - 1);
  return options_.cost.prefill(static_cast<double>(r.spec.ids.size()), reused);
}

std::string Prefill::stage_of(const Request& r) const {
  switch (r.phase) {
    case Phase::queued: return "queue";
    case Phase::preparing: return !r.accepted ? "accept" : r.fetch != Fetch::done ? "fetch" : "queue";
    case Phase::computing: return "prefill";
    case Phase::handing_over:
    case Phase::ended: return "transfer";
  }
  return "queue";
}

// Requests take their turn in order: prepare the first few, compute the first that is ready.
void Prefill::pump(TimePoint now, Actions& out) {
  std::map<InstanceId, uint32_t> preparing;  // by decode node: a full one holds back only its own
  for (const auto& r : queue_) preparing[r->decode_instance] += r->phase == Phase::preparing;
  for (const auto& r : std::vector<RequestPtr>(queue_.begin(), queue_.end())) {
    if (r->phase == Phase::ended) continue;
    if (r->phase == Phase::queued && leads() && !stages_here(*r, now, out)) continue;
    const bool may_wait = now < after(r->arrived, prefill_.peer_wait) && !peers().has(r->decode, r->decode_instance);
    if (r->phase != Phase::queued || preparing[r->decode_instance] >= prefill_.prepare_max || may_wait) continue;
    prepare(*r, now, out);
    preparing[r->decode_instance] += r->phase == Phase::preparing;
  }
  if (leads() && computing_ && computing_->phase == Phase::computing && computing_->run == 0)
    run_chunk(*computing_, out);  // waited for the next stage to take what we computed before
  if (computing_) return;
  for (const auto& r : std::vector<RequestPtr>(queue_.begin(), queue_.end())) {
    if (r->phase != Phase::preparing || !r->accepted || r->fetch != Fetch::done || prefix_is_coming(*r)) continue;
    bool started = start_compute(*r, now, out);
    // No pages. If some request is handing over, its pages come free: wait, so that a large request
    // is not overtaken for ever. If none is, only those that prepare hold any.
    if (!started && std::any_of(requests_.begin(), requests_.end(),
                                [](const auto& other) { return other.second->phase == Phase::handing_over; }))
      return;
    if (!started && unpin_others(*r)) started = start_compute(*r, now, out);
    if (!started) continue;
    std::erase(queue_, r);
    computing_ = r;
    return;
  }
}

// An earlier request is fetching blocks that this one needs too and would compute: it was sent here because of them.
// The fetch has its own time limit.
bool Prefill::prefix_is_coming(const Request& r) const {
  const uint32_t here = shelf_->pool.match(std::span(r.hashes).first(r.reusable));
  if (here == r.reusable) return false;
  for (const auto& other : queue_) {
    if (other.get() == &r) return false;
    if (other->fetch != Fetch::leasing && other->fetch != Fetch::reading) continue;
    const wire::Source& source = other->sources[other->source];
    const bool covers = here >= source.first_block && here < source.first_block + source.block_count;
    if (covers && here < other->reusable && other->hashes[here] == r.hashes[here]) return true;
  }
  return false;
}

// Two requests that prepare could pin so much that neither can start. The others let go: their blocks
// stay cached, and are matched again when their turn comes.
bool Prefill::unpin_others(const Request& r) {
  bool any = false;
  for (const auto& other : queue_) {
    if (other.get() == &r || other->fetch != Fetch::done || other->pages.empty()) continue;
    shelf_->pool.unpin(other->pages);
    other->pages.clear(), other->pinned.clear();
    any = true;
  }
  return any;
}

void Prefill::prepare(Request& r, TimePoint now, Actions& out) {
  if (!peers().has(r.decode, r.decode_instance))
    return fail(r, "accept", "peer_lost", "decode node " + r.decode + " is not in the cluster", true, now, out);
  r.phase = Phase::preparing;
  r.prepare_at = now;
  r.offered = true;
  wire::RequestSpec spec = r.spec;
  spec.deadline_ms = static_cast<uint64_t>(std::max<int64_t>(0, (r.deadline - now) / 1ms));
  send(r.decode, r.decode_instance, wire::KvOffer{std::move(spec)}, out);
  // What is here now stays here; the match is made again, and may be longer, when computing starts.
  r.pages = shelf_->pool.pin_prefix(std::span(r.hashes).first(r.reusable));
  r.pinned.assign(r.pages.size(), true);
  shelf_->pool.touch(std::span(r.hashes).first(r.pages.size()));
  r.fetch_began = now;
  fetch_next(r, now, out);
}

void Prefill::fail(Request& r, std::string stage, std::string code, std::string message, bool retryable, TimePoint,
                   Actions& out) {
  if (r.phase == Phase::ended) return;
  last_error_ = message;
  ++stats_.failed;
  to_conductor(
      wire::Failed{r.spec.req, r.spec.attempt, std::move(stage), std::move(code), std::move(message), retryable, 0, 0},
      out);
  if (r.offered) send(r.decode, r.decode_instance, wire::Cancel{r.spec.req, r.spec.attempt, "failed"}, out);
  end(r, out);
}

void Prefill::end(Request& r, Actions& out) {
  if (r.phase == Phase::ended) return;
  const RequestPtr keep = requests_.at(r.spec.req);
  MC_ASSERT(keep.get() == &r);
  if (r.lease != 0 && r.source < r.sources.size())
    send(r.sources[r.source].node, r.sources[r.source].instance, wire::LeaseRelease{r.lease}, out);
  by_op_.erase(r.lease);
  r.lease = 0;
  if (r.read != 0) out.push_back(CancelRead{r.read});
  if (r.run != 0) out.push_back(CancelRun{r.run});
  if (!r.flowing.empty())
    for (uint32_t stage = 1; stage < prefill_.stages; ++stage)
      if (const wire::Peer* member = stage_peer(stage))
        send(member->name, member->instance, wire::Cancel{r.spec.req, r.spec.attempt, "failed"}, out);
  if (!r.spec.no_cache && !r.hashes.empty())
    for (const auto& hash : r.hashes) {
      const auto it = pending_.find(hash);
      if (it != pending_.end() && --it->second == 0) pending_.erase(it);
    }
  r.phase = Phase::ended;
  requests_.erase(r.spec.req);
  std::erase(queue_, keep);
  ended_.push_back(keep);
  settle(r);
}

// The host still reads or computes into the pages until it says otherwise: they go only after that.
void Prefill::settle(Request& r) {
  if (r.phase != Phase::ended || r.read != 0 || r.run != 0) return;
  // What later stages still compute into these pages is written before any later run of theirs: no wait.
  for (const auto& [run, flowing] : r.flowing) flowing_.erase(run);
  r.flowing.clear();
  if (r.page_lease != 0) (void)shelf_->leases.release(r.page_lease);
  r.page_lease = 0;
  for (size_t i = 0; i < r.pages.size(); ++i) {
    if (r.pinned[i])
      shelf_->pool.unpin(r.pages[i]);
    else
      shelf_->pool.release(r.pages[i]);
  }
  shelf_->pool.release(r.fetched);
  r.pages.clear(), r.pinned.clear(), r.fetched.clear();
  if (computing_.get() == &r) computing_ = nullptr;
  std::erase_if(ended_, [&](const RequestPtr& e) { return e.get() == &r; });
}

void Prefill::role_check() const {
  uint64_t pins = 0;
  auto count = [&](const Request& r) {
    MC_ASSERT_EQ(r.pages.size(), r.pinned.size());
    for (bool pinned : r.pinned) pins += pinned;
    if (r.run != 0) MC_ASSERT(by_op_.contains(r.run));
    if (r.read != 0) MC_ASSERT(by_op_.contains(r.read));
  };
  for (const auto& [id, r] : requests_) count(*r);
  for (const auto& r : ended_) count(*r);
  uint64_t pool_pins = 0;
  for (kv::PageIndex page = 0; page < options_.page_count; ++page) pool_pins += shelf_->pool.pins(page);
  MC_ASSERT_EQ(pins, pool_pins);
  // A slot has a run that fills it, or a moment at which it is free.
  for (uint32_t i = 0; i < ActivationSlots::kEach; ++i)
    MC_ASSERT(slot_runs_[i] == 0 || slot_until_[i] != kNever || by_op_.contains(slot_runs_[i]));
}

}  // namespace mc::node

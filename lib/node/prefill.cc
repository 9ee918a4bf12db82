#include "node/prefill.h"

#include <algorithm>

#include "base/assert.h"
#include "node/handover.h"
#include "node/miss_reasons.h"
#include "node/stopping.h"
#include "wire/notify.h"

namespace mc::node {

Prefill::Prefill(WorkerOptions worker, PrefillOptions options)
    : Worker(std::move(worker)),
      prefill_(options),
      fetches_(*shelf_, peers(), disk_, reads_, numbers_, prefill_.fetch_timeout,
               prefill_.stages > 1 ? UINT64_MAX : prefill_.by_layer_bytes),
      pipeline_(name(), peers(), prefill_.stages, options_.layout.layers),
      copies_(*shelf_, reads_) {
  MC_ASSERT(shelf_);
  MC_ASSERT(!pipeline_.leads() || disk().state() == DiskTier::State::none);
  MC_ASSERT(!device_.exists() || (!pipeline_.leads() && prefill_.by_layer_bytes == UINT64_MAX));
  if (pipeline_.leads()) shelf_->keep_lost_parts();
  MC_ASSERT(prefill_.chunk_tokens > 0 && prefill_.chunk_tokens % options_.layout.block_tokens == 0);
}

void Prefill::on_message(const Received& event, TimePoint now, Actions& out) {
  const bool by_conductor = event.from == kConductor;
  if (const auto* start = std::get_if<wire::PrefillStart>(&event.message)) {
    if (by_conductor || event.from == kOperators) on_start(event.from, *start, now, out);
  } else if (const auto* accept = std::get_if<wire::KvAccept>(&event.message)) {
    Request* r = requests_.find(accept->req, accept->attempt);
    if (!r || event.instance != r->decode.instance || r->decode.accepted) return;
    r->decode.accepted = true;
    r->times.accepted_at = now;
    r->decode.has = std::min(accept->have_blocks, static_cast<uint32_t>(r->hashes.size()));
  } else if (const auto* refuse = std::get_if<wire::KvRefuse>(&event.message)) {
    on_refuse(event, *refuse, out);
  } else if (const auto* done = std::get_if<wire::KvDone>(&event.message)) {
    Request* r = requests_.find(done->req, done->attempt);
    if (!r || event.instance != r->decode.instance || r->phase != Phase::handing_over) return;
    ++stats_.finished;
    last_error_.served();
    stats_.exposed_s.add(to_seconds(now - r->times.computed_at));
    end(*r, out);
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&event.message)) {
    on_cancel(event, *cancel, out);
  } else if (const auto* grant = std::get_if<wire::LeaseGrant>(&event.message)) {
    const bool ours = fetches_.on_grant(event.instance, *grant, now, out) ||
                      copies_.on_grant(event.instance, *grant, numbers_.next(), now, out);
    if (!ours && !grant->blocks.empty())  // the grant arrived after its fetch had been given up
      send(event.from, event.instance, wire::LeaseRelease{grant->lease}, out);
  } else if (const auto* renewed = std::get_if<wire::LeaseRenewed>(&event.message)) {
    (void)(fetches_.on_renewed(event, *renewed, now) || copies_.on_renewed(event, *renewed, now));
  } else if (const auto* order = std::get_if<wire::CopyBlocks>(&event.message)) {
    if (by_conductor) copies_.start(*order, numbers_.next(), peers().has(order->node, order->instance), now, out);
  } else if (const auto* taken = std::get_if<wire::StageTaken>(&event.message)) {
    if (pipeline_.sender(event) == 1u) slots_.free(taken->run);
  } else if (const auto* staged = std::get_if<wire::StageDone>(&event.message)) {
    on_stage_done(event, *staged, now, out);
  } else if (const auto* rotten = std::get_if<wire::StageRotten>(&event.message)) {
    if (pipeline_.sender(event)) on_stage_rotten(*rotten, out);
  } else if (const auto* read = std::get_if<wire::StageReadDone>(&event.message)) {
    if (read->refused && pipeline_.sender(event))
      last_error_.note("stage " + event.from + " refused a read: " + read->message);
    if (const auto whole = reads_.on_stage_read(event.from, event.instance, *read)) on_event(*whole, now, out);
    // A stage could not announce its extents.
  } else if (const auto* failed = std::get_if<wire::Failed>(&event.message)) {
    Request* r = requests_.find(failed->req, failed->attempt);
    if (r && pipeline_.sender(event)) fail(*r, failure_of(*failed), failed->message, out);
  }
  pump(now, out);
}

void Prefill::on_start(const NodeId& from, const wire::PrefillStart& start, TimePoint now, Actions& out) {
  const wire::RequestSpec& spec = start.spec;
  if (Request* older = requests_.find(spec.req)) {
    if (older->spec.attempt >= spec.attempt) return;  // a repeated or late message
    end(*older, out);
  }
  auto r = std::make_shared<Request>();
  r->spec = spec;
  r->alone = from == kOperators;
  MC_ASSERT(!r->alone || (start.decode.empty() && spec.stopping.max_tokens == 1));
  r->decode.node = start.decode;
  r->decode.instance = start.decode_instance;
  r->decode.sources = start.decode_sources;
  r->sources = start.sources;
  r->times.arrived = now;
  r->times.deadline = after(now, std::chrono::milliseconds(std::min<uint64_t>(spec.deadline_ms, 1ull << 40)));
  ++stats_.requests;
  requests_.add(r);
  check_start(*r, out);
  if (r->phase == Phase::ended) return;
  const uint32_t bt = options_.layout.block_tokens;
  r->hashes = kv::chain(spec.ns, spec.ids, bt);
  const bool reuses = !spec.no_cache && !spec.reuse_nothing && spec.prompt_logprobs < 0;
  r->reusable = reuses ? kv::reusable_blocks(spec.ids.size(), bt) : 0;
  requests_.enqueue(*r);
}

/// Fails a request that this node can never compute, or cannot take now.
void Prefill::check_start(Request& r, Actions& out) {
  const wire::RequestSpec& spec = r.spec;
  const auto refuse = [&](Reason cause, bool retryable, std::string message) {
    fail(r, {RequestStage::queue, cause, retryable}, std::move(message), out);
  };
  const uint32_t blocks = kv::blocks_for(spec.ids.size(), options_.layout.block_tokens);
  kv::Namespace ns = options_.kv.with_salt(spec.salt);
  ns.attention = spec.prefill_attention;
  if (ns.id() != spec.ns)
    return refuse(Reason::layout, false,
                  "the conductor names another KV namespace than this node computes for the same model, attention and "
                  "salt; restart the node");
  blocks_.names().add(spec.ns, ns, options_.model);
  if (spec.req.empty() || spec.req.size() > wire::kNotifyRequestBytes)
    return refuse(Reason::invalid, false,
                  "request id of " + std::to_string(spec.req.size()) + " bytes, 1 to " +
                      std::to_string(wire::kNotifyRequestBytes) + " fit a notify");
  if (spec.ids.empty() || spec.resumed > spec.ids.size() ||
      !fits_context(spec.ids.size(), spec.resumed, spec.stopping.max_tokens, options_.context_tokens))
    return refuse(Reason::invalid, false,
                  "prompt of " + std::to_string(spec.ids.size()) + " tokens, this node holds " +
                      std::to_string(options_.context_tokens));
  if (blocks > options_.page_count)
    return refuse(Reason::no_space, false,
                  "prompt needs " + std::to_string(blocks) + " pages, the pool has " +
                      std::to_string(options_.page_count) + "; raise --kv-mem");
  if (!device_.fits(blocks))
    return refuse(Reason::no_space, false,
                  "prompt needs " + std::to_string(blocks) + " pages on the device, which has " +
                      std::to_string(options_.device_pages) + "; raise --device-mem");
  if (draining_) return refuse(Reason::draining, true, "node " + name() + " is draining");
  // The members of a pipeline come from the conductor alone, and operators do not wait for one.
  if (const auto missing = r.alone ? pipeline_.missing() : std::nullopt)
    return refuse(Reason::peer_lost, true,
                  "this node leads a pipeline of " + std::to_string(pipeline_.stages()) +
                      " stages and gets the others from the conductor, which lists no stage " +
                      std::to_string(*missing) + "; start the conductor and the stages");
  if (requests_.queue().size() >= prefill_.queue_max)
    return refuse(Reason::queue_full, true,
                  std::to_string(requests_.queue().size()) + " requests wait on this node, its limit");
}

void Prefill::on_refuse(const Received& event, const wire::KvRefuse& refuse, Actions& out) {
  Request* r = requests_.find(refuse.req, refuse.attempt);
  if (!r || r->alone || event.instance != r->decode.instance) return;
  const Reason cause = reason_named(refuse.reason);
  wire::Failed failed = report_of(r->spec.req, r->spec.attempt, {RequestStage::accept, cause, true},
                                  "decode node " + r->decode.node + " refused: " + std::string(to_string(cause)));
  failed.predicted_ms = refuse.predicted_ms;
  failed.allowed_ms = refuse.allowed_ms;
  ++stats_.failed;
  report(*r, std::move(failed), out);
  end(*r, out);
}

void Prefill::on_cancel(const Received& event, const wire::Cancel& cancel, Actions& out) {
  Request* r = requests_.find(cancel.req);
  if (!r || r->spec.attempt > cancel.attempt) return;
  const bool by_client = event.from == (r->alone ? kOperators : kConductor);
  if (!by_client && (r->alone || event.instance != r->decode.instance)) return;
  if (by_client) handover::cancel(*r, cancel.reason, out);
  end(*r, out);
}

void Prefill::on_event(const Event& event, TimePoint now, Actions& out) {
  if (const auto* layer = std::get_if<LayerDone>(&event)) {
    Request* r = requests_.of_run(layer->run);
    if (r && r->phase == Phase::computing && r->arriving)
      r->arriving->sealed.push_back(*layer);
    else if (r && r->phase == Phase::computing)
      handover::announce_layer(*r, *shelf_, *layer, out);
  } else if (const auto* chunk = std::get_if<ChunkDone>(&event)) {
    if (const RequestPtr r = requests_.end_run(chunk->run)) on_chunk(*r, *chunk, now, out);
  } else if (const auto* read = std::get_if<ReadDone>(&event)) {
    if (!fetches_.on_read(*read, now, out)) (void)copies_.on_read(*read, now, out);
    for (const RequestPtr& r : RequestPtrs(computing_)) settle(*r);  // one may have waited for the read
  } else if (const auto* loaded = std::get_if<PagesLoaded>(&event)) {
    const RequestPtr r = requests_.of_load(loaded->load);
    const auto rotten = device_.ended(r->device, *loaded, r->reusable_hashes(), r->spec.ns);
    blocks_.drop_rotten(shelf_->pool, r->hashes, r->pages.all(), rotten);
    stats_.checksum_failures += rotten.size();
    // A failed load is the node's trouble, whatever the code: another node may serve the request.
    if (loaded->code != Code::ok) fail(*r, {RequestStage::prefill, reason_of(loaded->code), true}, loaded->what, out);
    settle(*r);
    if (r->phase == Phase::handing_over) device_.release(r->device);
  } else if (std::holds_alternative<DiskLoaded>(event)) {
    fetches_.on_disk(now, out);
  }
  pump(now, out);
}

void Prefill::on_tick(TimePoint now, Actions& out) {
  slots_.free_late(now);
  for (const ReadDone& late : reads_.on_tick(now)) on_event(late, now, out);
  copies_.on_tick(now, out);
  for (const auto& r : requests_.late(now, prefill_.grace)) {
    if (r->phase == Phase::handing_over) {
      end(*r, out);
    } else {
      const RequestStage stage = stage_of(*r, fetches_);
      fail(*r, {stage, Reason::timeout, false}, "deadline passed in stage " + std::string(to_string(stage)), out);
    }
  }
  fetches_.on_tick(now, out);
  pump(now, out);
}

TimePoint Prefill::role_wakeup() const {
  return std::min({slots_.next_wakeup(), copies_.next_wakeup(), fetches_.next_wakeup(), reads_.next_wakeup(),
                   requests_.next_deadline(prefill_.grace)});
}

void Prefill::drop_all(TimePoint, Actions& out) {
  copies_.drop_all(out);
  const auto all = requests_.all();
  for (const auto& [id, r] : all) {
    if (r->alone) continue;
    handover::cancel(*r, "failed", out);
    end(*r, out);
  }
}

void Prefill::on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) {
  const auto stage = peer.role == wire::Role::stage ? parse_stage_name(peer.name) : std::nullopt;
  if (stage && stage->leader == name() && stage->stage < prefill_.stages)
    on_stage_gone(*stage, peer.instance, now, out);
  copies_.on_peer_gone(peer.instance, out);
  const auto all = requests_.all();
  for (const auto& [id, r] : all) {
    if (r->phase == Phase::ended || !r->decode.offered || r->decode.instance != peer.instance) continue;
    const RequestStage at = r->phase == Phase::preparing ? RequestStage::accept : stage_of(*r, fetches_);
    fail(*r, {at, Reason::peer_lost, true}, "decode node " + peer.name + " was lost", out);
  }
  fetches_.on_peer_gone(peer.instance, now, out);
  pump(now, out);
}

void Prefill::fill_load(wire::Load& load) const {
  for (const auto& r : requests_.queue()) load.queue_s += predicted_s(*r, disk(), *shelf_, options_.cost);
  for (const auto& r : computing_) load.queue_s += predicted_s(*r, disk(), *shelf_, options_.cost);
  load.running = static_cast<uint32_t>(computing_.size());
  load.waiting = static_cast<uint32_t>(requests_.queue().size());
  load.hit_tokens = stats_.local_tokens + stats_.remote_tokens;
  load.disk_hit_tokens = stats_.disk_tokens;
  load.prompt_tokens = stats_.prompt_tokens;
}

// Prepares the first few requests in order, and computes the first one that is ready.
void Prefill::pump(TimePoint now, Actions& out) {
  std::map<InstanceId, uint32_t> preparing;  // by decode node: a full decode node holds back its own requests only
  const auto queue = requests_.queue();
  for (const auto& r : queue) preparing[r->decode.instance] += r->phase == Phase::preparing;
  for (const auto& r : queue) {
    if (r->phase == Phase::ended) continue;
    if (r->phase == Phase::queued && pipeline_.leads() && !stages_here(*r, now, out)) continue;
    const bool partner_here = r->alone || peers().has(r->decode.node, r->decode.instance);
    const bool may_wait = now < after(r->times.arrived, prefill_.peer_wait) && !partner_here;
    if (r->phase != Phase::queued || preparing[r->decode.instance] >= prefill_.prepare_max || may_wait) continue;
    prepare(*r, now, out);
    preparing[r->decode.instance] += r->phase == Phase::preparing;
  }
  for (const RequestPtr& r : RequestPtrs(computing_)) {
    if (r->phase != Phase::computing) continue;
    if (pipeline_.leads() && r->work.run == 0)
      run_chunk(*r, out);  // the run waited for a slot, which the next stage frees by reading it
    if (r->arriving) follow_prefix(*r, now, out);
  }
  if (!computing_.empty()) return;
  const auto compute = [&](const RequestPtr& r) {
    requests_.leave_queue(*r);
    computing_.push_back(r);
    share_pass(now, out);
  };
  const auto waiting = requests_.queue();
  for (const auto& r : waiting) {
    if (!requests_.is_ready(*r, shelf_->pool, fetches_)) continue;
    bool started = start_compute(*r, now, out);
    // The pool is out of pages. A request that is handing over will free some: the queue waits for them, so that a
    // large request is not overtaken for ever. Otherwise only requests that prepare hold pages.
    if (!started && requests_.any_in(Phase::handing_over)) return;
    // Two preparing requests could pin so many pages that neither can start. Unpinned blocks stay cached and are
    // matched again at each request's turn.
    if (!started && requests_.unpin_others(*r, fetches_, shelf_->pool)) started = start_compute(*r, now, out);
    if (started) return compute(r);
  }
  for (const auto& r : waiting)
    if (r->phase == Phase::preparing && r->decode.accepted &&
        hides_the_rest(*r, fetches_, options_.cost, options_.layout.block_tokens, prefill_.chunk_tokens, now) &&
        start_compute(*r, now, out))
      return compute(r);
}

// Other short prompts join the pass of the run that has just begun.
void Prefill::share_pass(TimePoint now, Actions& out) {
  const PassRoom::Limits limits{pipeline_.leads() ? 0 : prefill_.pass_tokens, options_.context_tokens,
                                options_.layout.block_tokens};
  const auto waiting = requests_.queue();
  for (const auto& r : waiting) {
    const PassRoom room(limits, computing_);
    if (!room.is_shared()) break;
    if (!requests_.is_ready(*r, shelf_->pool, fetches_)) continue;
    if (!room.takes(*r, shelf_->pool.match(r->reusable_hashes()))) continue;
    const size_t before = last_run(out);
    if (!start_compute(*r, now, out)) break;
    std::get<RunChunk>(out[before]).is_followed = true;
    requests_.leave_queue(*r);
    computing_.push_back(r);
  }
  share_time(computing_);
}

void Prefill::prepare(Request& r, TimePoint now, Actions& out) {
  if (!r.alone && !peers().has(r.decode.node, r.decode.instance))
    return fail(r, {RequestStage::accept, Reason::peer_lost, true},
                "decode node " + r.decode.node + " is not in the cluster", out);
  if (const std::string why = r.alone ? "" : refused_links_.why(r.decode.instance); !why.empty())
    return fail(r, {RequestStage::accept, Reason::peer_lost, true},
                "no data connection to decode node " + r.decode.node + ": " + why, out);
  handover::offer(r, now, out);
  disk_.hit(shelf_->pool, r.reusable_hashes());
  // Pins the blocks that are here now. The match is repeated when computing starts, and may then be longer.
  const uint32_t here = r.pages.pin_prefix(shelf_->pool, r.reusable_hashes());
  shelf_->pool.touch(std::span(r.hashes).first(here));
  fetches_.start(r.spec.req, {r.spec.ns, r.reusable_hashes(), r.spec.ids, r.sources, r.times.deadline, &r.pages}, now,
                 out);
}

void Prefill::report(const Request& r, wire::Message message, Actions& out) const {
  if (!r.alone) return to_conductor(std::move(message), out);
  send(NodeId(kOperators), options_.instance, std::move(message), out);
}

void Prefill::fail(Request& r, Failure failure, std::string message, Actions& out) {
  if (r.phase == Phase::ended) return;
  last_error_.note(message);
  ++stats_.failed;
  report(r, report_of(r.spec.req, r.spec.attempt, failure, std::move(message)), out);
  handover::cancel(r, "failed", out);
  end(r, out);
}

void Prefill::end(Request& r, Actions& out) {
  if (r.phase == Phase::ended) return;
  fetches_.end(r.spec.req, out);
  if (r.work.run != 0) out.push_back(CancelRun{r.work.run});
  if (!r.work.flow.empty()) pipeline_.cancel(r.spec, out);
  const RequestPtr keep = requests_.end(r);
  settle(r);
}

// The host writes into the pages until it reports the end of the run. The pages are released only then.
void Prefill::settle(Request& r) {
  if (r.phase != Phase::ended || r.work.run != 0 || fetches_.is_lent(r.loan) || r.device.load != 0) return;
  device_.release(r.device);
  // Later stages write their chunks into these pages before any later run, so the release does not wait for them.
  for (const auto& [run, chunk] : r.work.flow.all()) flowing_.erase(run);
  r.work.flow.clear();
  if (r.decode.lease != 0) (void)shelf_->leases.release(r.decode.lease);
  r.decode.lease = 0;
  r.pages.release(shelf_->pool);
  std::erase_if(computing_, [&](const RequestPtr& other) { return other.get() == &r; });
  requests_.drop(r);
}

void Prefill::role_check() const {
  uint64_t pins = 0;
  std::vector<const DevicePages*> on_device;
  const auto count = [&](const Request& r) {
    pins += r.pages.pinned_count();
    on_device.push_back(&r.device);
    MC_ASSERT_LE(r.prefix.remote, r.prefix.blocks);
    for (const auto& [run, chunk] : r.work.flow.all()) MC_ASSERT(flowing_.contains(run));
  };
  for (const auto& [id, r] : requests_.all()) count(*r);
  for (const auto& r : requests_.ended()) count(*r);
  uint64_t pool_pins = 0;
  for (kv::PageIndex page = 0; page < options_.page_count; ++page) pool_pins += shelf_->pool.pins(page);
  MC_ASSERT_EQ(pins + disk().pins(shelf_->pool), pool_pins);
  device_.check(on_device);
  requests_.check();
  MC_ASSERT(slots_.is_sound(computing_.empty() ? 0 : computing_.front()->work.run));
  fetches_.check();
}

// ---- computing and handing over ----------------------------------------------------------------

/// Pins the cached prefix, allocates pages for the rest, and leases all of them to the decode node. False when the pool
/// cannot give the pages yet.
bool Prefill::take_pages(Request& r) {
  // Another request may have found one of the pinned blocks corrupt. From that block on, the prompt is computed again.
  const auto held = r.pages.all();
  const auto gone = std::find_if(held.begin(), held.end(),
                                 [&](kv::PageIndex page) { return shelf_->pool.state(page) != kv::PageState::cached; });
  const bool early = !fetches_.done(r.spec.req);
  if (early && gone != held.end()) return false;  // the fetch counts on them
  r.pages.release_from(shelf_->pool, static_cast<uint32_t>(gone - held.begin()));
  // Pins blocks that were published since this request prepared.
  if (!early) r.pages.pin_prefix(shelf_->pool, r.reusable_hashes().subspan(r.pages.size()));
  const uint32_t here = r.pages.size();
  std::vector<std::vector<uint32_t>> lent;  // checksums of the blocks that arrive
  if (early) lent = fetches_.lend(r.spec.req, r.loan = numbers_.next());
  const auto give_back = [&] {
    if (early) fetches_.take_back(r.spec.req), r.loan = 0;
    device_.release(r.device);
    return false;
  };
  const uint32_t blocks = kv::blocks_for(r.tokens(), options_.layout.block_tokens);
  if (!device_.take(r.device, r.reusable_hashes().first(here), blocks)) return give_back();
  const uint32_t shared = r.pages.size();
  const uint32_t own = blocks - shared;
  if (shelf_->make_room) shelf_->make_room(own);
  if (!r.pages.allocate(shelf_->pool, own)) return give_back();
  r.prefix.blocks = shared;
  r.crcs.assign(r.pages.size(), std::vector<uint32_t>(options_.layout.layers, 0));
  std::move(lent.begin(), lent.end(), r.crcs.begin() + here);
  if (early) r.arriving = ArrivingPrefix{.here = here};
  if (r.alone) return true;
  const std::vector<kv::PageIndex> pages(r.pages.all().begin(), r.pages.all().end());
  const auto lease = shelf_->leases.grant(r.decode.instance.hex(), pages, after(r.times.deadline, prefill_.grace));
  if (!lease) {  // the limit of leases is reached: wait until some end
    r.pages.release_from(shelf_->pool, shared);
    r.arriving.reset();
    return give_back();
  }
  r.decode.lease = *lease;
  return true;
}

/// False when the pool cannot give the pages yet. The request then stays ready.
bool Prefill::start_compute(Request& r, TimePoint now, Actions& out) {
  if (!take_pages(r)) return false;
  MC_ASSERT_LE(r.prefix.blocks, r.pages.size());
  r.phase = Phase::computing;
  r.times.compute_at = now;
  flush_events(now, out);  // evictions for these pages are booked before the miss reasons are read
  r.work.next = r.prefix.blocks * options_.layout.block_tokens;
  if (r.arriving) {
    r.arriving->layers = fetches_.layers_here(r.spec.req);
  } else {
    book_prefix(r, now);
    for (uint32_t stage = 1; stage < prefill_.stages && r.prefix.blocks > 0; ++stage)
      if (const wire::Peer* member = pipeline_.member(stage))
        send(member->name, member->instance, r.stage_announce(shelf_->pool, pipeline_.layers_of(stage)), out);
    handover::announce_prefix(r, *shelf_, pipeline_.own_layers(), out);
  }
  if (device_.exists())
    device_.load(r.device, r.pages.all(), r.prefix.blocks,
                 shelf_->prefix_crcs(r.pages.all(), r.prefix.blocks, {0, options_.layout.layers}), out);
  run_chunk(r, out);
  return true;
}

/// Counts what of the prompt is not computed, and why the rest is.
void Prefill::book_prefix(Request& r, TimePoint now) {
  const uint32_t bt = options_.layout.block_tokens;
  const PrefixFetches::Outcome& fetched = fetches_.outcome(r.spec.req);
  // Requests that are computed here or in a later stage of the pipeline.
  std::vector<MissReasons::Prompt> computing;
  for (const Request* other : requests_.computing_besides(r)) computing.push_back(MissReasons::prompt_of(*other));
  const MissReasons reasons(*shelf_, blocks_.memory(), name());
  r.prefix.misses = reasons.of(MissReasons::prompt_of(r), fetched.given_up, computing, now);
  r.prefix.remote = std::min(fetched.blocks, r.prefix.blocks);  // fetched blocks may have been evicted again
  r.prefix.disk = std::min(fetched.disk_blocks, r.prefix.blocks - r.prefix.remote);
  stats_.prompt_tokens += r.tokens();
  stats_.remote_tokens += r.prefix.remote * bt;
  stats_.local_tokens += (r.prefix.blocks - r.prefix.remote) * bt;
  stats_.disk_tokens += r.prefix.disk * bt;
  stats_.computed_tokens += r.tokens() - r.prefix.blocks * bt;
}

/// Reports the layers that have arrived to the compute. When all have, the prefix and what was computed meanwhile are
/// announced to the decode node. When a block does not arrive, the run is cancelled, and the blocks from there on are
/// computed into the same pages.
void Prefill::follow_prefix(Request& r, TimePoint now, Actions& out) {
  ArrivingPrefix& coming = *r.arriving;
  const RequestId& req = r.spec.req;
  if (!fetches_.done(req)) {
    const uint32_t layers = fetches_.layers_here(req);
    if (r.work.run != 0 && layers > coming.layers) out.push_back(PrefixLayers{r.work.run, coming.layers = layers});
    return;
  }
  const uint32_t have = fetches_.have(req);
  const bool is_whole = have == r.prefix.blocks;
  if (is_whole) {
    out.push_back(PrefixLayers{r.work.run, options_.layout.layers});
  } else if (r.work.run != 0) {
    if (!std::exchange(coming.failed, true)) out.push_back(CancelRun{r.work.run});
    return;  // the run ends, and then the reads that still write into its pages
  } else if (fetches_.is_lent(r.loan)) {
    return;
  }
  r.prefix.blocks = have;
  book_prefix(r, now);
  handover::announce_prefix(r, *shelf_, pipeline_.own_layers(), out);
  const ArrivingPrefix arrived = std::move(coming);
  r.arriving.reset();
  if (is_whole) {
    for (const LayerDone& layer : arrived.sealed) handover::announce_layer(r, *shelf_, layer, out);
    return;
  }
  r.work.next = have * options_.layout.block_tokens;
  run_chunk(r, out);
}

void Prefill::run_chunk(Request& r, Actions& out) {
  MC_ASSERT(r.work.run == 0 && r.work.next < r.tokens());
  const uint64_t number = numbers_.next();
  const auto slot = pipeline_.leads() ? slots_.take(number) : std::nullopt;
  if (pipeline_.leads() && !slot) return;  // the run continues when the next stage has read a slot
  r.work.end = std::min(r.tokens(), r.work.next + prefill_.chunk_tokens);
  RunChunk run = r.chunk(options_.layout.block_tokens);
  run.run = r.work.run = number;
  if (slot) {
    run.end_layer = pipeline_.own_layers().end;
    run.slots.out = *slot;
  } else {
    run.sample = r.is_last_chunk();
    run.targets = r.targets();
  }
  const uint32_t here = r.arriving ? r.arriving->here : r.prefix.blocks;  // what arrives is checked on its way
  // A load checks its blocks. The others are checked in the host's pages, where the decode node reads them.
  const uint32_t checked = r.device.pages.empty() ? here : r.device.first;
  if (r.work.chunks == 0) run.prefix_crcs = shelf_->prefix_crcs(r.pages.all(), checked, pipeline_.own_layers());
  if (r.arriving) run.layers_here = r.arriving->layers;
  ++r.work.chunks;
  requests_.begin_run(r);
  out.push_back(std::move(run));
}

void Prefill::on_chunk(Request& r, const ChunkDone& done, TimePoint now, Actions& out) {
  MC_ASSERT_EQ(r.work.run, done.run);
  r.work.run = 0;
  if (r.phase == Phase::ended || done.code != Code::ok) slots_.free(done.run);  // no stage will read its activations
  // Corrupt blocks are dropped even when the request is over.
  blocks_.drop_rotten(shelf_->pool, r.hashes, r.pages.all(), done.rotten);
  stats_.checksum_failures += done.rotten.size();
  if (r.phase == Phase::ended) return settle(r);
  if (r.arriving && r.arriving->failed) return;  // pump() goes on with it
  if (done.code != Code::ok)
    return fail(r, {RequestStage::prefill, reason_of(done.code), may_retry(done.code)}, done.what, out);
  ++stats_.chunks;
  if (pipeline_.leads()) return hand_on(r, done, now, out);
  const uint32_t bt = options_.layout.block_tokens;
  if (!done.prompt_logprobs.empty()) report(r, r.prompt_logprobs(r.work.next, done.prompt_logprobs), out);
  publish(r, r.work.next / bt, r.work.end / bt);
  r.work.next = r.work.end;
  if (r.work.next < r.tokens()) return run_chunk(r, out);
  first_token(r, done.sampled, now, out);
}

// Publishes full blocks. When a fetch of another request brought the block here in the meantime, that page is kept and
// this request's page stays private, because its address has been announced.
void Prefill::publish(Request& r, uint32_t first_block, uint32_t end_block) {
  if (r.spec.no_cache) return;
  MC_ASSERT(first_block <= end_block && end_block <= r.hashes.size());
  MC_ASSERT_LE(end_block, r.crcs.size());
  const uint32_t bt = options_.layout.block_tokens;
  for (uint32_t block = first_block; shelf_->lost && block < end_block; ++block) shelf_->lost->forget(r.hashes[block]);
  for (uint32_t block = first_block; block < end_block; ++block) {
    r.pages.publish(shelf_->pool, block,
                    {r.hashes[block], r.parent(block), r.spec.ns, block * bt, r.crcs[block], block_ids(r, block, bt)});
    device_.publish(r.device, block, r.hashes, r.spec.ns);
  }
  if (first_block == 0 && end_block > 0)
    blocks_.memory().computed(std::span(r.spec.ids).first(bt), r.spec.prefill_attention, r.spec.salt);
  shelf_->pool.touch(std::span(r.hashes).first(end_block), 0);
}

void Prefill::first_token(Request& r, const SampledToken& sampled, TimePoint now, Actions& out) {
  MC_ASSERT(r.phase == Phase::computing && r.work.run == 0 && r.work.next == r.tokens());
  wire::FirstToken first = r.first_token(sampled, fetches_.outcome(r.spec.req), options_.layout.block_tokens, now);
  const Finish finish =
      finish_with(r.spec.stopping, sampled.token, r.spec.resumed, r.tokens(), options_.context_tokens);
  first.finish_reason = to_string(finish);
  flush_events(now, out);  // requests that are held for these blocks find them in the index when the token arrives
  report(r, std::move(first), out);
  std::erase_if(computing_, [&](const RequestPtr& other) { return other.get() == &r; });
  r.phase = Phase::handing_over;
  r.times.computed_at = now;
  if (r.device.load == 0) device_.release(r.device);
  if (finish != Finish::none) {  // the request ends with its first token and needs no decode node
    handover::cancel(r, "finished", out);
    ++stats_.finished;
    last_error_.served();
    return end(r, out);
  }
  handover::complete(r, sampled.token, out);
}

// ---- leader of a pipeline ----------------------------------------------------------------------

// The leader may learn of a lost stage before the conductor, which would send the request here again at once. So the
// request waits until the conductor must have noticed, or until the stage is back.
bool Prefill::stages_here(Request& r, TimePoint now, Actions& out) {
  const auto missing = pipeline_.missing();
  if (!missing) return true;
  if (now >= after(r.times.arrived, 2 * prefill_.peer_wait))
    fail(r, {RequestStage::queue, Reason::peer_lost, true},
         "pipeline stage " + stage_name(name(), *missing) + " is not in the cluster", out);
  return false;
}

// The leader's layers of a chunk are computed: the next stage receives the chunk, and the leader goes on with the next
// chunk or request.
void Prefill::hand_on(Request& r, const ChunkDone& done, TimePoint now, Actions& out) {
  const uint32_t bt = options_.layout.block_tokens;
  const wire::Peer* member = pipeline_.member(1);
  const auto slot = slots_.slot_of(done.run);
  if (!member) slots_.free(done.run);
  if (!member || !slot) {  // a member was lost in the meantime, and may be back
    const auto missing = pipeline_.missing();
    const std::string stage = missing ? "pipeline stage " + stage_name(name(), *missing) : "a stage of the pipeline";
    return fail(r, {RequestStage::prefill, Reason::peer_lost, true}, stage + " was lost", out);
  }
  wire::StageRun run = r.stage_run(bt);
  run.run = done.run;
  run.leader = name(), run.leader_instance = options_.instance, run.stages = prefill_.stages;
  run.activations_offset = prefill_.slots.offset(*slot);
  run.activations_crc = done.activations_crc;
  run.budget_ms = static_cast<uint32_t>(std::clamp<int64_t>((r.times.deadline - now) / 1ms, 1, 3'600'000));
  slots_.handed_on(done.run, after(now, std::chrono::milliseconds(run.budget_ms)));
  r.work.flow.add(done.run, r.work.next / bt, r.work.end / bt, prefill_.stages);
  flowing_[done.run] = requests_.shared(r);
  send(member->name, member->instance, std::move(run), out);
  r.work.next = r.work.end;
  if (r.work.next < r.tokens()) return run_chunk(r, out);
  computing_.clear();  // the leader may compute another request; this one passes through the later stages
}

void Prefill::on_stage_done(const Received& event, const wire::StageDone& done, TimePoint now, Actions& out) {
  const auto it = flowing_.find(done.run);
  const auto stage = pipeline_.sender(event);
  if (it == flowing_.end() || !stage) return;
  const RequestPtr r = it->second;
  ChunkFlow::Chunk& chunk = r->work.flow.at(done.run);
  if (done.code != Code::ok) {
    return fail(*r, {RequestStage::prefill, reason_of(done.code), may_retry(done.code)}, done.message, out);
  }
  if (!ChunkFlow::waits_for(chunk, *stage)) return;  // the stage reported this chunk before
  if (const std::string why = pipeline_.objection(done, *stage, chunk.end_block - chunk.first_block); !why.empty())
    return fail(*r, {RequestStage::prefill, Reason::internal, false}, "stage " + event.from + " " + why, out);
  for (size_t layer = 0; layer < done.crcs.size(); ++layer)
    for (size_t i = 0; i < done.crcs[layer].size(); ++i)
      if (chunk.first_block + i < r->crcs.size())
        r->crcs[chunk.first_block + i][done.first_layer + layer] = done.crcs[layer][i];
  if (*stage + 1 == prefill_.stages) {
    chunk.sampled = {done.token, done.logprobs, done.embedding};
    const uint32_t first = chunk.first_block * options_.layout.block_tokens;
    if (!done.prompt_logprobs.empty()) report(*r, r->prompt_logprobs(first, done.prompt_logprobs), out);
  }
  ChunkFlow::told(chunk, *stage);
  std::optional<SampledToken> last;
  while (const auto finished = r->work.flow.take_done()) {
    publish(*r, finished->second.first_block, finished->second.end_block);
    last = finished->second.sampled;
    flowing_.erase(finished->first);
  }
  if (last && r->work.flow.empty() && r->work.next == r->tokens() && r->work.run == 0) first_token(*r, *last, now, out);
}

// Every request that reuses one of the pages has read, or will read, wrong bytes.
void Prefill::on_stage_rotten(const wire::StageRotten& found, Actions& out) {
  std::vector<BlockHash> hashes;
  std::vector<kv::PageIndex> pages;
  std::vector<uint32_t> rotten;
  for (const uint32_t page : found.pages) {
    if (page >= options_.page_count || shelf_->pool.state(page) != kv::PageState::cached) continue;
    rotten.push_back(static_cast<uint32_t>(pages.size()));
    hashes.push_back(shelf_->pool.meta(page).hash), pages.push_back(page);
  }
  blocks_.drop_rotten(shelf_->pool, hashes, pages, rotten);
  stats_.checksum_failures += rotten.size();
  const auto all = requests_.all();
  for (const auto& [id, r] : all) {
    const auto reused = r->pages.all().first(std::min(r->prefix.blocks, r->pages.size()));
    const bool reads = std::find_first_of(reused.begin(), reused.end(), pages.begin(), pages.end()) != reused.end();
    if (reads && r->phase == Phase::computing)
      fail(*r, {RequestStage::prefill, Reason::corrupt, true},
           "cached blocks of a pipeline stage changed in memory; they were dropped", out);
  }
}

// The lost member had its layers of every block, so all requests under way are lost, and no block can be used as it is.
// Blocks that are still held drain.
void Prefill::on_stage_gone(const StageName& stage, const InstanceId& instance, TimePoint now, Actions& out) {
  const std::string why = "pipeline stage " + stage_name(stage.leader, stage.stage) + " was lost";
  const auto all = requests_.all();
  for (const auto& [id, r] : all)
    if (r->phase != Phase::ended) fail(*r, {stage_of(*r, fetches_), Reason::peer_lost, true}, why, out);
  for (const auto& r : requests_.ended()) r->work.flow.clear();  // requests whose run on the leader has not ended
  flowing_.clear();
  // The leader's compute still writes the slot of its run.
  slots_.free_others(computing_.empty() ? 0 : computing_.front()->work.run);
  for (const ReadDone& ended : reads_.on_stage_gone(instance)) on_event(ended, now, out);
  shelf_->lost->lose(stage.stage);
}

}  // namespace mc::node

#include "node/decode.h"

#include <algorithm>

#include "base/assert.h"
#include "node/stage.h"
#include "node/stopping.h"

namespace mc::node {
namespace {

/// Whether a peer is the request's prefill node, or a stage of its pipeline.
bool sends_for(const DecodeRequest& r, const Peers& peers, const NodeId& node, const InstanceId& instance) {
  if (instance == r.prefill_instance) return true;
  const wire::Peer* member = peers.find(node);
  return member && member->instance == instance && member->role == wire::Role::stage && is_stage_of(node, r.prefill);
}

/// An empty message for the tokens of a step. It reuses the memory of an older message.
wire::Tokens& fresh(std::shared_ptr<wire::Tokens>& tokens) {
  if (!tokens || tokens.use_count() > 1) tokens = std::make_shared<wire::Tokens>();
  return *tokens;
}

}  // namespace

Decode::Decode(WorkerOptions worker, DecodeOptions options)
    : Worker(std::move(worker)),
      decode_(options),
      unlisted_(peers(), decode_.peer_wait),
      batch_({decode_.batch_max, options_.context_tokens, options_.page_count, decode_.steps_max}, *shelf_, device_),
      holders_(options_.layout, reads_, numbers_, peers(), decode_.fetch_timeout),
      inlined_(*shelf_, decode_.inline_tokens) {
  MC_ASSERT(decode_.batch_max > 0);
  options_.inline_tokens = decode_.inline_tokens;
}

Decode::Request* Decode::find(const RequestId& req, uint32_t attempt) {
  const auto it = requests_.find(req);
  return it != requests_.end() && it->second->spec.attempt == attempt ? it->second.get() : nullptr;
}

void Decode::on_message(const Received& event, TimePoint now, Actions& out) {
  if (const auto* offer = std::get_if<wire::KvOffer>(&event.message)) {
    if (!unlisted_.keep(event, now)) on_offer(event, *offer, now, out);
  } else if (const auto* start = std::get_if<wire::PrefillStart>(&event.message)) {
    if (event.from == kConductor) {
      auto r = std::make_shared<Request>(start->spec, options_.layout.block_tokens);
      r->inlined.emplace().arrived = now;
      take(r, now, out);
    }
  } else if (const auto* complete = std::get_if<wire::KvComplete>(&event.message)) {
    on_complete(event, *complete, now, out);
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&event.message)) {
    if (event.from == kConductor) unlisted_.cancel(*cancel);
    const auto it = requests_.find(cancel->req);
    if (it == requests_.end() || it->second->spec.attempt > cancel->attempt) return;
    if (event.from != kConductor && event.instance != it->second->prefill_instance) return;
    end(*it->second, out);
  } else if (const auto* grant = std::get_if<wire::LeaseGrant>(&event.message)) {
    if (!holders_.on_grant(event, *grant, now, out) && !grant->blocks.empty())  // its part had been given up
      send(event.from, event.instance, wire::LeaseRelease{grant->lease}, out);
  } else if (const auto* renewed = std::get_if<wire::LeaseRenewed>(&event.message)) {
    (void)holders_.on_renewed(event, *renewed, now);
  }
  take_from_holders(now, out);
  admit(now, out);
  step(now, out);
}

void Decode::on_complete(const Received& event, const wire::KvComplete& complete, TimePoint now, Actions& out) {
  Request* r = find(complete.req, complete.attempt);
  if (!r || event.instance != r->prefill_instance || r->phase != Phase::receiving || r->complete) return;
  if (complete.tokens != r->spec.ids.size())
    return fail(*r, {RequestStage::transfer, Reason::corrupt, true},
                "prefill node " + event.from + " completed " + std::to_string(complete.tokens) + " tokens of " +
                    std::to_string(r->spec.ids.size()),
                out);
  r->complete = true;
  r->stalled_at = after(now, decode_.stall);
  r->answer.push_back(complete.first_token);
  holders_.give_up_unread(*r, out);
  try_join(*r, out);
}

void Decode::on_offer(const Received& event, const wire::KvOffer& offer, TimePoint now, Actions& out) {
  auto r = std::make_shared<Request>(offer.spec, options_.layout.block_tokens);
  r->prefill = event.from;
  r->prefill_instance = event.instance;
  r->sources = offer.sources;
  take(r, now, out);
}

// Puts the request behind those that wait for pages, or refuses it.
void Decode::take(const RequestPtr& r, TimePoint now, Actions& out) {
  const wire::RequestSpec& spec = r->spec;
  const auto it = requests_.find(spec.req);
  if (it != requests_.end()) {
    if (it->second->spec.attempt >= spec.attempt) return;
    end(*it->second, out);
  }
  r->order = ++orders_;
  r->deadline = after(now, std::chrono::milliseconds(std::min<uint64_t>(spec.deadline_ms, 1ull << 40)));
  ++stats_.requests;
  kv::Namespace ns = options_.kv.with_salt(spec.salt);
  ns.attention = spec.prefill_attention;
  if (!r->inlined && !peers().has(r->prefill, r->prefill_instance)) return refuse(*r, Reason::unknown_peer, 0, 0, out);
  if (ns.id() != spec.ns) return refuse(*r, Reason::layout, 0, 0, out);
  blocks_.names().add(spec.ns, ns, options_.model);
  if (draining_) return refuse(*r, Reason::draining, 0, 0, out);
  // The first answer token needs a row as well, so a prompt that fills the pool exactly does not fit.
  if (spec.ids.empty() || spec.resumed > spec.ids.size() ||
      !fits_context(spec.ids.size(), spec.resumed, spec.stopping.max_tokens, options_.context_tokens) ||
      kv::blocks_for(spec.ids.size() + 1, options_.layout.block_tokens) > batch_.capacity_pages())
    return refuse(*r, Reason::too_long, static_cast<double>(spec.ids.size()), options_.context_tokens, out);
  if (r->inlined && (inlined_.tokens_max() == 0 || spec.prompt_logprobs >= 0))
    return refuse(*r, Reason::unsupported, 0, 0, out);
  if (waiting_.size() >= decode_.waiting_max) return refuse(*r, Reason::queue_full, 0, 0, out);
  r->chain.append(spec.ids);
  const double step_ms = 1e3 * options_.cost.step(static_cast<double>(requests_.size() + 1),
                                                  static_cast<double>(batch_tokens() + spec.ids.size()));
  if (spec.tbt_slo_ms > 0 && step_ms > spec.tbt_slo_ms)
    return refuse(*r, Reason::predicted_slo_miss, step_ms, spec.tbt_slo_ms, out);
  // The other requests wait for the chunk between two of their tokens.
  const double gap_ms = r->inlined ? step_ms + 1e3 * inlined_.predicted_s(*r, options_.cost) : 0;
  for (const auto& [id, other] : requests_)
    if (other->spec.tbt_slo_ms > 0 && gap_ms > other->spec.tbt_slo_ms)
      return refuse(*r, Reason::predicted_slo_miss, gap_ms, other->spec.tbt_slo_ms, out);
  r->answer.assign(spec.ids.end() - spec.resumed, spec.ids.end());
  requests_[spec.req] = r;
  waiting_.push_back(r);
}

void Decode::refuse(const Request& r, Reason reason, double predicted_ms, double allowed_ms, Actions& out) {
  ++stats_.refused;
  if (r.inlined) {
    wire::Failed failed =
        report_of(r.spec.req, r.spec.attempt, {RequestStage::accept, reason, true},
                  "decode node " + name() + " does not compute the prompt: " + std::string(to_string(reason)));
    failed.predicted_ms = predicted_ms, failed.allowed_ms = allowed_ms;
    return to_conductor(std::move(failed), out);
  }
  send(r.prefill, r.prefill_instance,
       wire::KvRefuse{r.spec.req, r.spec.attempt, std::string(to_string(reason)), predicted_ms, allowed_ms}, out);
}

uint64_t Decode::batch_tokens() const {
  uint64_t tokens = 0;
  for (const auto& [id, r] : requests_) tokens += std::max<uint64_t>(r->position, r->spec.ids.size());
  return tokens;
}

// Accepts requests in order of arrival, as soon as the pool can hold the prompt and the first token.
void Decode::admit(TimePoint now, Actions& out) {
  while (!waiting_.empty()) {
    const RequestPtr r = waiting_.front();
    if (!accept(r, now, out)) return;
    std::erase(waiting_, r);
  }
}

bool Decode::accept(const RequestPtr& r, TimePoint now, Actions& out) {
  const uint32_t bt = options_.layout.block_tokens;
  const bool reuses = !r->spec.no_cache && !r->spec.reuse_nothing;
  const auto hashes = r->inlined ? inlined_.reusable(*r) : r->chain.hashes();
  const uint32_t here = reuses ? r->pages.pin_prefix(shelf_->pool, hashes) : 0;
  if (r->inlined && !inlined_.is_short(*r, here)) {  // the conductor counted on blocks that are gone
    r->pages.release(shelf_->pool);
    refuse(*r, Reason::busy, 0, 0, out);
    end(*r, out);
    return true;
  }
  const uint32_t need = kv::blocks_for(r->spec.ids.size() + 1, bt) - here;
  // One page for each running request stays in reserve, so that the accepted request does not cause a preemption at
  // once.
  const uint32_t reserve = static_cast<uint32_t>(batch_.running().size());
  if (need + reserve > shelf_->pool.available() || !r->pages.allocate(shelf_->pool, need)) {
    r->pages.release(shelf_->pool);
    return false;
  }
  MC_ASSERT_EQ(r->pages.size(), here + need);
  if (r->inlined && !device_.take(r->device, hashes.first(here), r->pages.size(), reserve)) {
    r->pages.release(shelf_->pool);
    return false;
  }
  r->have_blocks = here;
  stats_.local_blocks += here;
  disk_.hit(shelf_->pool, hashes.first(here));
  shelf_->pool.touch(hashes.first(here));
  if (r->inlined) {
    r->phase = Phase::computing;
    if (device_.exists()) device_.load(r->device, r->pages.all(), here, r->prompt_crcs(shelf_->pool, here), out);
    inlined_.add(r);
    return true;
  }
  r->arrivals = Arrivals(kv::blocks_for(r->spec.ids.size(), bt), here, options_.layout.layers);
  r->phase = Phase::receiving;
  send(r->prefill, r->prefill_instance, wire::KvAccept{r->spec.req, r->spec.attempt, r->have_blocks}, out);
  if (reuses) holders_.start(r, hashes.first(kv::reusable_blocks(r->spec.ids.size(), bt)), now, out);
  return true;
}

void Decode::on_event(const Event& event, TimePoint now, Actions& out) {
  if (const auto* notified = std::get_if<Notified>(&event)) {
    on_ready(*notified, now, out);
  } else if (const auto* read = std::get_if<ReadDone>(&event)) {
    if (const auto it = by_read_.find(read->read); it != by_read_.end()) {
      const RequestPtr r = it->second;
      by_read_.erase(it);
      on_read(*r, *read, now, out);
    } else if (!holders_.on_read(*read, now, out)) {
      return;
    }
  } else if (const auto* done = std::get_if<StepDone>(&event)) {
    on_step(*done, now, out);
  } else if (const auto* layer = std::get_if<LayerDone>(&event)) {
    return inlined_.on_layer(*layer);
  } else if (const auto* chunk = std::get_if<ChunkDone>(&event)) {
    on_chunk(*chunk, now, out);
  } else if (const auto* loaded = std::get_if<PagesLoaded>(&event)) {
    on_loaded(*loaded, out);
  }
  take_from_holders(now, out);
  admit(now, out);
  step(now, out);
}

void Decode::on_tick(TimePoint now, Actions& out) {
  for (const Received& event : unlisted_.take_ready(now))
    on_offer(event, std::get<wire::KvOffer>(event.message), now, out);
  holders_.on_tick(now, out);
  take_from_holders(now, out);
  std::vector<RequestPtr> late, stalled;
  for (const auto& [id, r] : requests_) {
    if (now >= after(r->deadline, decode_.grace))
      late.push_back(r);
    else if (r->stalls() && now >= r->stalled_at)
      stalled.push_back(r);
  }
  for (const auto& r : stalled) {
    const std::string refusal = refused_links_.why(r->prefill_instance);
    fail(*r, {RequestStage::transfer, Reason::timeout, true},
         "prefill node " + r->prefill + " ended the hand-over without announcing " +
             std::to_string(r->arrivals.missing()) + " extents of the KV" +
             (refusal.empty() ? "" : "; no data connection to it: " + refusal),
         out);
  }
  for (const auto& r : late) {
    const RequestStage stage = r->has_kv()  ? RequestStage::decode
                               : r->inlined ? RequestStage::prefill
                                            : RequestStage::transfer;
    fail(*r, {stage, Reason::timeout, false}, "deadline passed", out);
  }
  admit(now, out);
  step(now, out);
}

TimePoint Decode::role_wakeup() const {
  TimePoint at = std::min(holders_.next_wakeup(), unlisted_.next_wakeup());
  for (const auto& [id, r] : requests_)
    at = std::min({at, after(r->deadline, decode_.grace), r->stalls() ? r->stalled_at : kNever});
  return at;
}

void Decode::drop_all(TimePoint, Actions& out) {
  unlisted_.clear();
  const auto all = requests_;
  for (const auto& [id, r] : all) end(*r, out);
}

// A request needs its prefill node only while KV is still to be read from it.
void Decode::on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) {
  const auto all = requests_;
  for (const auto& [id, r] : all) {
    if (r->inlined || r->has_kv() || r->phase == Phase::ended) continue;
    // With a lost stage of the pipeline, the KV that was not read from it is lost too.
    const bool stage =
        r->phase == Phase::receiving && peer.role == wire::Role::stage && is_stage_of(peer.name, r->prefill);
    if (r->prefill_instance != peer.instance && !stage) continue;
    fail(*r, {RequestStage::transfer, Reason::peer_lost, true}, "prefill node " + peer.name + " was lost", out);
  }
  holders_.on_peer_gone(peer.instance, now, out);
  take_from_holders(now, out);
  admit(now, out);
  step(now, out);
}

void Decode::fill_load(wire::Load& load) const {
  load.running = static_cast<uint32_t>(batch_.running().size());
  load.waiting = static_cast<uint32_t>(requests_.size() - batch_.running().size());
  load.kv_tokens = batch_tokens();
  load.tbt_s = batch_.step_s();
  load.prompt_tokens = inlined_.stats().prompt_tokens;
  load.hit_tokens = inlined_.stats().cached_tokens;
}

void Decode::fail(Request& r, Failure failure, std::string message, Actions& out) {
  if (r.phase == Phase::ended) return;
  last_error_.note(message);
  ++stats_.failed;
  if (!r.has_kv() && !r.inlined)
    send(r.prefill, r.prefill_instance, wire::Cancel{r.spec.req, r.spec.attempt, "failed"}, out);
  to_conductor(report_of(r.spec.req, r.spec.attempt, failure, std::move(message)), out);
  end(r, out);
}

void Decode::end(Request& r, Actions& out) {
  if (r.phase == Phase::ended) return;
  const RequestPtr keep = requests_.at(r.spec.req);
  MC_ASSERT(keep.get() == &r);
  for (const auto& [read, reading] : r.arrivals.reads()) out.push_back(CancelRead{read});
  inlined_.cancel(r, out);
  r.phase = Phase::ended;
  holders_.end(r, out);
  requests_.erase(r.spec.req);
  std::erase(waiting_, keep);
  std::erase(loading_, keep);
  batch_.remove(keep);
  ended_.push_back(keep);
  settle(r, out);
}

// Releases the pages of an ended request once no read or chunk writes into them and no step uses them.
void Decode::settle(Request& r, Actions& out) {
  if (r.phase != Phase::ended || r.in_use()) return;
  batch_.leave(r, out);
  // The blocks were in use until now. Pinned blocks cannot be evicted, so their age was not kept.
  if (r.position > 0 && !r.spec.no_cache) shelf_->pool.touch(r.chain.hashes(), 0);
  r.pages.release(shelf_->pool);
  device_.release(r.device);
  const size_t left = std::erase_if(ended_, [&](const RequestPtr& e) { return e.get() == &r; });
  MC_ASSERT_EQ(left, 1u);
}

void Decode::role_check() const {
  uint64_t pins = 0;
  std::vector<const DevicePages*> on_device;
  for (const auto& r : loading_) MC_ASSERT(r->phase == Phase::loading && device_.exists());
  for (const auto& r : batch_.running()) MC_ASSERT(r->phase == Phase::running && r->arrivals.missing() == 0);
  for (const auto& r : waiting_) MC_ASSERT(r->pages.empty());
  for (const auto& r : ended_) MC_ASSERT(r->phase == Phase::ended && r->in_use());
  holders_.check();
  inlined_.check();
  auto count = [&](const Request& r) {
    pins += r.pages.pinned_count();
    on_device.push_back(&r.device);
    for (const auto& [read, reading] : r.arrivals.reads()) MC_ASSERT(by_read_.contains(read));
  };
  for (const auto& [id, r] : requests_) count(*r);
  for (const auto& r : ended_) count(*r);
  device_.check(on_device);
  uint64_t pool_pins = 0;
  for (kv::PageIndex page = 0; page < options_.page_count; ++page) pool_pins += shelf_->pool.pins(page);
  MC_ASSERT_EQ(pins + disk().pins(shelf_->pool), pool_pins);
}

// ---- receiving KV ------------------------------------------------------------------------------
// Each notify of the prefill node names sealed extents. The extents are read at once, while the prefill node computes
// the next layer, and are checked against their CRC32C.

void Decode::on_ready(const Notified& event, TimePoint now, Actions& out) {
  const wire::ExtentsReady& ready = event.ready;
  Request* r = find(ready.req, ready.attempt);
  if (!r || !sends_for(*r, peers(), event.from, event.instance) || r->phase != Phase::receiving) return;
  if (!r->arrivals.names_ours(ready))
    return fail(*r, {RequestStage::transfer, Reason::corrupt, true},
                "prefill node " + event.from + " announced layer " + std::to_string(ready.layer) + ", blocks " +
                    std::to_string(ready.first_block) + "+" + std::to_string(ready.extents.size()) + " of " +
                    std::to_string(r->arrivals.blocks()),
                out);
  if (r->arrivals.expects(ready)) holders_.begin_waiting(*r, now, out);
  start_read(*r, {ready, event.from, event.instance}, now, out);
}

void Decode::start_read(Request& r, const Arrivals::Reading& reading, TimePoint now, Actions& out) {
  const wire::ExtentsReady& ready = reading.ready;
  const ExtentLayout& layout = options_.layout;
  Read read;
  r.arrivals.keep(reading);
  const auto wanted = r.arrivals.wanted(ready);
  for (const auto& extent : wanted)
    read.slices.push_back({r.pages[extent.block], layout.layer_offset(ready.layer), extent.offset,
                           static_cast<uint32_t>(layout.layer_bytes()), extent.crc});
  if (read.slices.empty()) return;
  read.read = numbers_.next();
  read.peer = reading.from;
  read.instance = reading.instance;
  read.budget = r.deadline - now;
  // An urgent read: the prefill is done, and decoding waits for the last chunk or for blocks that are read again. Reads
  // of earlier chunks are not urgent and yield to the last chunks of other requests.
  read.urgent = r.complete || ready.first_block + ready.extents.size() == r.arrivals.blocks();
  r.arrivals.started(read.read, reading, wanted);
  const bool fresh = by_read_.try_emplace(read.read, requests_.at(r.spec.req)).second;
  MC_ASSERT(fresh);
  out.push_back(std::move(read));
}

void Decode::on_read(Request& r, const ReadDone& done, TimePoint now, Actions& out) {
  const auto [reading, extents] = r.arrivals.ended(done.read, done.code == Code::ok);
  if (r.phase == Phase::ended) return settle(r, out);
  if (done.code == Code::ok) {
    if (r.complete) r.stalled_at = after(now, decode_.stall);
    stats_.transferred_bytes += extents * options_.layout.layer_bytes();
    return try_join(r, out);
  }
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  if (done.code == Code::corrupt && r.arrivals.may_read_again()) return start_read(r, reading, now, out);
  fail(r, {RequestStage::transfer, reason_of(done.code), true},
       "reading layer " + std::to_string(reading.ready.layer) + " from " + reading.from + ": " + done.what, out);
}

// Blocks that a holder has not brought are read from the prefill node, as far as it has announced them.
void Decode::take_from_holders(TimePoint now, Actions& out) {
  for (const HolderReads::Ended& part : holders_.take_ended()) {
    Request& r = *part.request;
    if (r.phase == Phase::ended) {
      settle(r, out);
      continue;
    }
    MC_ASSERT(r.phase == Phase::receiving);
    const uint32_t came = part.first + static_cast<uint32_t>(part.blocks.size());
    r.arrivals.brought(part.first, part.blocks);
    if (came < part.end)
      for (const Arrivals::Reading& announced : r.arrivals.give_up(came, part.end)) start_read(r, announced, now, out);
    if (r.complete) r.stalled_at = after(now, decode_.stall);
    try_join(r, out);
  }
}

void Decode::try_join(Request& r, Actions& out) {
  if (r.phase != Phase::receiving || !r.complete || r.arrivals.missing() > 0) return;
  MC_ASSERT(!r.arrivals.reading() && r.from_holders.parts == 0 && r.position == 0);
  if (!r.sources.empty()) to_conductor(r.kv_report(options_.layout.block_tokens), out);
  send(r.prefill, r.prefill_instance, wire::KvDone{r.spec.req, r.spec.attempt}, out);
  r.phase = Phase::loading;
  r.position = static_cast<uint32_t>(r.spec.ids.size());
  MC_ASSERT_EQ(r.chain.token_count(), r.spec.ids.size());
  publish_prompt(r);
  loading_.push_back(requests_.at(r.spec.req));
  seat(out);
}

// Gives pages of the device to the requests whose KV is here, in the order in which it came, and copies their blocks
// there. A request whose blocks are all on the device joins the batch.
void Decode::seat(Actions& out) {
  if (loading_.empty()) return;  // as in nearly every step, which must not allocate memory
  const auto waiting = loading_;
  bool is_full = false;  // a request waits for room, and later ones wait behind it
  for (const RequestPtr& r : waiting) {
    if (r->device.load != 0) continue;
    const uint32_t blocks = kv::blocks_for(r->spec.ids.size(), options_.layout.block_tokens);
    if (device_.exists() && r->device.pages.empty()) {
      const bool reuses = !r->spec.no_cache && !r->spec.reuse_nothing;
      const auto cached = reuses ? r->chain.hashes() : std::span<const BlockHash>();
      // One page for each request there stays in reserve, as in accept().
      const auto loading = std::ranges::count_if(loading_, [](const auto& l) { return !l->device.pages.empty(); });
      const auto reserve = static_cast<uint32_t>(batch_.running().size()) + static_cast<uint32_t>(loading);
      is_full = is_full || !device_.take(r->device, cached, r->pages.size(), reserve);
      if (is_full) continue;
      device_.load(r->device, r->pages.all(), blocks, r->prompt_crcs(shelf_->pool, blocks), out);
      if (r->device.load != 0) continue;
    }
    std::erase(loading_, r);
    r->phase = Phase::running;
    batch_.join(r);
  }
}

void Decode::on_loaded(const PagesLoaded& done, Actions& out) {
  const auto has_load = [&](const RequestPtr& other) { return other->device.load == done.load; };
  RequestPtr r;
  for (const auto& [id, other] : requests_)
    if (has_load(other)) r = other;
  for (const RequestPtr& other : ended_)
    if (has_load(other)) r = other;
  MC_ASSERT(r != nullptr);
  const auto names = r->spec.no_cache ? std::span<const BlockHash>() : r->chain.hashes();
  const auto rotten = device_.ended(r->device, done, names, r->spec.ns);
  blocks_.drop_rotten(shelf_->pool, r->chain.hashes(), r->pages.all(), rotten);
  stats_.checksum_failures += done.rotten.size();
  if (r->phase == Phase::ended) return settle(*r, out);
  // A failed load is the node's trouble, whatever the code: another node may serve the request.
  if (done.code != Code::ok) fail(*r, {RequestStage::decode, reason_of(done.code), true}, done.what, out);
}

// Publishes the prompt's full blocks, so that other nodes can read them here. A block that another request has
// published since keeps its page, and this request's page stays private.
void Decode::publish_prompt(Request& r) {
  if (r.spec.no_cache) return;
  const auto hashes = r.chain.hashes();
  for (uint32_t block = r.have_blocks; block < hashes.size(); ++block)
    r.pages.publish(
        shelf_->pool, block,
        {hashes[block], block == 0 ? BlockHash{} : hashes[block - 1], r.spec.ns, block * options_.layout.block_tokens,
         r.crcs(block), r.block_ids(block, options_.layout.block_tokens)});
  for (uint32_t block = 0; block < hashes.size(); ++block)  // of an inlined prompt, which is computed on the device
    device_.publish(r.device, block, hashes, r.spec.ns);
  shelf_->pool.touch(hashes, 0);
}

// ---- the batch ---------------------------------------------------------------------------------

// The next chunk of a prompt goes to the compute together with the next step, so that they can be one pass.
void Decode::step(TimePoint now, Actions& out) {
  seat(out);
  while (batch_.may_start()) {
    const bool has_chunk = inlined_.has_next();
    size_t chunk = 0;
    if (has_chunk) {
      flush_events(now, out);  // evictions for its pages are booked before the miss reasons are read
      chunk = out.size();
      inlined_.start(numbers_.next(), blocks_.memory(), name(), now, out);
    }
    if (!prepare_step(out)) break;
    batch_.start(numbers_.next(), out, has_chunk);
    if (has_chunk && std::holds_alternative<RunStep>(out.back())) inlined_.share_pass(chunk, batch_.step_s(), out);
  }
  batch_.collect(out);
}

// Adds the rows of the next step to the batch. False when the step has none.
bool Decode::prepare_step(Actions& out) {
  // The mask of a grammar is made from the token before, which is here only when no step is under way.
  const auto has_grammar = [](const RequestPtr& r) { return !r->spec.sampling.grammar.empty(); };
  if (batch_.computing() && std::ranges::any_of(batch_.running(), has_grammar)) return false;
  const uint32_t bt = options_.layout.block_tokens;
  batch_.clear_rows();
  // A preempted request leaves running(), which is in order of arrival. Requests before it keep their index, and the
  // next request moves to the index of the preempted one.
  for (size_t i = 0; i < batch_.running().size() && !batch_.full();) {
    const RequestPtr r = batch_.running()[i];
    const bool goes_on = batch_.goes_on(*r);
    const bool has_page = goes_on && (batch_.next_position(*r) / bt < r->pages.size() || give_page(r, out));
    if (r->phase != Phase::running) continue;  // the request itself was preempted
    if (has_page) batch_.add(r);
    ++i;
  }
  return batch_.has_rows();
}

// Gives `r` one more page. Preempts the newest request if necessary. False when `r` itself was preempted. No request is
// preempted for the second row of `r` under way, because `r` may end with the first one. The second row then waits for
// the end of that step.
bool Decode::give_page(const RequestPtr& r, Actions& out) {
  if (r->in_steps > 0) return batch_.take_page(*r);
  for (;;) {
    if (batch_.take_page(*r)) return true;
    // Only requests that hold pages of the kind that is short can give one up.
    const bool on_device = shelf_->pool.available() > 0;
    const auto holds = [&](const Request& other) {
      return on_device ? !other.device.pages.empty() : other.phase != Phase::waiting;
    };
    Request* last = nullptr;
    for (const auto& [id, other] : requests_)
      if (holds(*other) && (!last || other->order > last->order)) last = other.get();
    const bool alone = std::none_of(requests_.begin(), requests_.end(),
                                    [&](const auto& other) { return other.second != r && holds(*other.second); });
    if (alone && r->pages.size() >= batch_.capacity_pages()) {
      fail(*r, {RequestStage::decode, Reason::no_space, false},
           "a context of " + std::to_string(r->position + 1) + " tokens needs more than the " +
               std::to_string(batch_.capacity_pages()) + " pages of this node; raise " +
               (batch_.capacity_pages() < options_.page_count ? "--device-mem" : "--kv-mem"),
           out);
      return false;
    }
    // No other request can be preempted. Leases or reads of ended requests hold the pages and end without help.
    if (alone) return false;
    // Pages of an ended request come free with the run that still uses them.
    if (std::ranges::any_of(ended_, [](const RequestPtr& ended) { return ended->in_run() || ended->device.load != 0; }))
      return false;
    MC_ASSERT(last != nullptr);
    preempt(*last, out);
    if (last == r.get()) return false;
    if (r->phase == Phase::ended) return false;
    // A read in flight may still hold the victim's pages. The row then waits for one step.
    if (shelf_->pool.available() == 0 || device_.available() == 0) return false;
  }
}

void Decode::preempt(Request& r, Actions& out) {
  MC_ASSERT(r.phase != Phase::waiting && r.phase != Phase::ended);
  ++stats_.preempted;
  if (r.phase == Phase::receiving)
    send(r.prefill, r.prefill_instance, wire::Cancel{r.spec.req, r.spec.attempt, "preempted"}, out);
  to_conductor(wire::Preempted{r.spec.req, r.spec.attempt}, out);
  end(r, out);
}

void Decode::on_step(const StepDone& done, TimePoint, Actions& out) {
  if (!batch_.finish(done)) return;
  const auto rows = batch_.finished();
  if (done.code != Code::ok) {
    for (const auto& r : rows) {
      if (r->phase == Phase::ended)
        settle(*r, out);
      else
        fail(*r, {RequestStage::decode, reason_of(done.code), true}, done.what, out);
    }
    return batch_.clear_finished();
  }
  ++stats_.steps;
  wire::Tokens& tokens = fresh(tokens_);
  tokens.step_ms = batch_.was_alone() ? to_ms(done.elapsed) : 0;
  tokens.batch = static_cast<uint32_t>(rows.size());
  tokens.kv_tokens = 0;
  size_t told = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Request& r = *rows[i];
    const StepRow& row = done.rows->out[i];
    tokens.kv_tokens += r.position;
    if (r.phase == Phase::ended) {
      settle(r, out);
      continue;
    }
    if (!row.rotten.empty()) {
      on_rotten(r, row.rotten, out);
      continue;
    }
    if (row.refusal) {
      const Code code = row.refusal->code;
      const bool is_short = code == Code::busy || code == Code::no_space;  // else the fault is the request's
      fail(r, {RequestStage::decode, is_short ? reason_of(code) : Reason::invalid, is_short}, row.refusal->what, out);
      continue;
    }
    if (told == tokens.rows.size()) tokens.rows.emplace_back();
    ++stats_.tokens;
    if (!batch_.book(r, row, r.publishes_answer(), tokens.rows[told++])) finished_.push_back(rows[i]);
  }
  tokens.rows.resize(told);
  if (told > 0) to_conductor(tokens_, out);
  for (const auto& r : finished_) {
    ++stats_.finished;
    last_error_.served();
    end(*r, out);
  }
  finished_.clear();
  batch_.clear_finished();
}

// The prompt of an inlined request is computed: its first token goes to the client, and it decodes from the next step
// on.
void Decode::on_chunk(const ChunkDone& done, TimePoint now, Actions& out) {
  const RequestPtr r = inlined_.end_run(done);
  if (!r) return;
  const wire::RequestSpec& spec = r->spec;
  stats_.checksum_failures += done.rotten.size();
  blocks_.drop_rotten(shelf_->pool, r->chain.hashes(), r->pages.all(), done.rotten);
  if (r->phase == Phase::ended) return settle(*r, out);
  if (done.code != Code::ok)
    return fail(*r, {RequestStage::prefill, reason_of(done.code), may_retry(done.code)}, done.what, out);
  r->position = static_cast<uint32_t>(spec.ids.size());
  publish_prompt(*r);
  const uint32_t bt = options_.layout.block_tokens;
  if (!spec.no_cache && r->have_blocks == 0 && spec.ids.size() >= bt)
    blocks_.memory().computed(std::span(spec.ids).first(bt), spec.prefill_attention, spec.salt);
  wire::FirstToken first = inlined_.first_token(*r, done);
  const Finish finish = finish_with(spec.stopping, first.token, spec.resumed, r->position, options_.context_tokens);
  first.finish_reason = to_string(finish);
  r->answer.push_back(first.token);
  flush_events(now, out);
  to_conductor(std::move(first), out);
  if (finish == Finish::none) {
    r->phase = Phase::running;
    return batch_.join(r);
  }
  ++stats_.finished;
  last_error_.served();
  end(*r, out);
}

// Cached blocks have changed in memory. The conductor places the request again, and the prefill node then sends the
// blocks.
void Decode::on_rotten(Request& r, std::span<const uint32_t> rotten, Actions& out) {
  stats_.checksum_failures += rotten.size();
  blocks_.drop_rotten(shelf_->pool, r.chain.hashes(), r.pages.all(), rotten);
  fail(r, {RequestStage::decode, Reason::corrupt, true},
       std::to_string(rotten.size()) + " cached blocks changed in memory; they were dropped", out);
}

}  // namespace mc::node

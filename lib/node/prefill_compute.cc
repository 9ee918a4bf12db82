// Computing the missing part chunk by chunk, announcing each layer as soon as it is sealed, and
// handing the request over (Mooncake 6.2: transfer overlaps compute layer by layer).

#include <algorithm>

#include "base/assert.h"
#include "node/prefill.h"

namespace mc::node {
// False when the pool cannot give the pages yet: the request stays ready.
bool Prefill::start_compute(Request& r, TimePoint now, Actions& out) {
  const uint32_t bt = options_.layout.block_tokens;
  const uint32_t tokens = static_cast<uint32_t>(r.spec.ids.size());
  // Another request may have found one of the blocks rotten: from that one on they are computed again.
  const auto gone = std::find_if(r.pages.begin(), r.pages.end(),
                                 [&](kv::PageIndex page) { return shelf_->pool.state(page) != kv::PageState::cached; });
  for (auto page = gone; page != r.pages.end(); ++page) shelf_->pool.unpin(*page);
  r.pages.erase(gone, r.pages.end());
  r.pinned.resize(r.pages.size());
  // Blocks published since this request prepared (by the request before it) are taken now.
  const auto more = std::span(r.hashes).first(r.reusable).subspan(r.pages.size());
  for (kv::PageIndex page : shelf_->pool.pin_prefix(more)) r.pages.push_back(page), r.pinned.push_back(true);
  const uint32_t shared = static_cast<uint32_t>(r.pages.size());
  auto own = shelf_->pool.allocate(kv::blocks_for(tokens, bt) - shared);
  if (!own) return false;
  r.pages.insert(r.pages.end(), own->begin(), own->end());
  r.pinned.resize(r.pages.size(), false);
  auto lease = shelf_->leases.grant(r.decode_instance.hex(), r.pages, after(r.deadline, prefill_.grace));
  if (!lease) {  // too many leases at once: wait for some to end
    for (size_t i = shared; i < r.pages.size(); ++i) shelf_->pool.release(r.pages[i]);
    r.pages.resize(shared), r.pinned.resize(shared);
    return false;
  }
  r.page_lease = *lease;
  r.phase = Phase::computing;
  r.compute_at = now;
  r.prefix_blocks = shared;
  flush_events(now, out);  // what was evicted for these pages is remembered as such
  r.misses = misses(r, now);
  r.remote_blocks = std::min(r.remote_blocks, shared);  // what was fetched may be gone again
  r.next = shared * bt;
  r.crcs.assign(r.pages.size(), std::vector<uint32_t>(options_.layout.layers, 0));
  stats_.prompt_tokens += tokens;
  stats_.remote_tokens += r.remote_blocks * bt;
  stats_.local_tokens += (shared - r.remote_blocks) * bt;
  stats_.computed_tokens += tokens - r.next;
  announce_prefix(r, out);
  run_chunk(r, out);
  return true;
}

// The runs of blocks that are computed, each with the reason why none of it was reused.
std::vector<wire::Miss> Prefill::misses(const Request& r, TimePoint now) const {
  using wire::MissKind;
  const uint32_t bt = options_.layout.block_tokens;
  const uint32_t tokens = static_cast<uint32_t>(r.spec.ids.size());
  const uint32_t all = kv::blocks_for(tokens, bt), reusable = kv::reusable_blocks(tokens, bt);
  const BlockMemory& memory = blocks().memory();
  MissRuns runs;
  const auto given_up = [&](uint32_t block) {  // by a fetch that tells more than that the blocks are not there
    return std::find_if(r.given_up.begin(), r.given_up.end(), [&](const auto& up) {
      return block >= up.first_block && block < up.end_block && miss_of(up.why) != MissKind::cold;
    });
  };
  // Another request's chunk with this block is being computed, here or in a later stage of the pipeline.
  const auto computed_by_another = [&](uint32_t block) {
    return std::any_of(requests_.begin(), requests_.end(), [&](const auto& entry) {
      const Request& other = *entry.second;
      return &other != &r && other.phase == Phase::computing && !other.spec.no_cache && block >= other.prefix_blocks &&
             block < other.hashes.size() && other.hashes[block] == r.hashes[block];
    });
  };
  // Blocks of one prompt have one name, so its beginning speaks for all that follows.
  const MissKind other_name =
      r.prefix_blocks > 0 || reusable == 0
          ? MissKind::cold
          : memory.other_name(std::span(r.spec.ids).first(bt), r.spec.prefill_attention, r.spec.salt);
  for (uint32_t block = r.prefix_blocks; block < reusable; ++block) {
    const BlockHash& hash = r.hashes[block];
    const auto ago = memory.evicted_ago(hash, now);
    if (r.spec.no_cache)
      runs.add(block, MissKind::no_cache);
    else if (r.spec.prompt_logprobs >= 0)
      runs.add(block, MissKind::prompt_logprobs);
    else if (!runs.empty() && shelf_->pool.find(hash) != kv::kNoPage)  // it is here, but not what it follows
      runs.extend();
    else if (memory.was_rotten(hash))
      runs.add(block, MissKind::checksum, name());
    else if (const auto up = given_up(block); up != r.given_up.end())
      runs.add(block, miss_of(up->why), up->node, up->age_ms);
    else if (ago)
      runs.add(block, MissKind::evicted, name(), static_cast<uint64_t>(*ago / 1ms));
    else if (computed_by_another(block))
      runs.add(block, MissKind::not_published_yet, name());
    else
      runs.add(block, other_name, other_name == MissKind::cold ? "" : name());
  }
  for (uint32_t block = reusable; block < all; ++block)
    runs.add(block, tokens < bt ? MissKind::shorter_than_block : MissKind::tail_partial);
  return runs.take();
}

void Prefill::announce_prefix(const Request& r, Actions& out) const {
  if (leads()) announce_stages(r, out);
  for (uint32_t layer = 0; layer < own_layers().end; ++layer) {
    std::vector<wire::ReadyExtent> extents;
    for (uint32_t block = r.decode_has; block < r.prefix_blocks; ++block) {
      const kv::BlockMeta& meta = shelf_->pool.meta(r.pages[block]);
      extents.push_back({shelf_->page_offset(r.pages[block]) + options_.layout.layer_offset(layer),
                         meta.layer_crcs.empty() ? 0 : meta.layer_crcs[layer]});
    }
    if (!extents.empty()) announce(r, layer, r.decode_has, std::move(extents), out);
  }
}

void Prefill::announce(const Request& r, uint32_t layer, uint32_t first_block, std::vector<wire::ReadyExtent> extents,
                       Actions& out) const {
  out.push_back(
      SendNotify{r.decode, r.decode_instance, {r.spec.req, r.spec.attempt, layer, first_block, std::move(extents)}});
}

void Prefill::run_chunk(Request& r, Actions& out) {
  const uint32_t tokens = static_cast<uint32_t>(r.spec.ids.size());
  const uint32_t bt = options_.layout.block_tokens;
  MC_ASSERT(r.next < tokens && r.next % bt == 0);
  RunChunk run;
  run.run = next_id();
  if (leads() && !take_slot(run)) return;  // goes on when the next stage has read one
  r.run_end = std::min(tokens, r.next + prefill_.chunk_tokens);
  run.start = r.next;
  run.reused = r.prefix_blocks * bt;
  run.tokens.assign(r.spec.ids.begin() + r.next, r.spec.ids.begin() + r.run_end);
  run.pages.assign(r.pages.begin(), r.pages.begin() + kv::blocks_for(r.run_end, bt));
  run.attention = r.spec.prefill_attention;
  run.sample = r.run_end == tokens && !leads();
  run.sampling = r.spec.sampling;
  run.prompt_tokens = tokens - r.spec.resumed;
  if (r.spec.sampling.has_penalties()) run.history = r.spec.ids;
  if (r.spec.resumed < r.spec.stopping.min_tokens) run.banned = r.spec.stopping.stop_ids;
  run.prompt_logprobs = r.spec.prompt_logprobs;
  if (!leads()) run.targets = r.targets();
  if (r.next == r.prefix_blocks * bt) run.prefix_crcs = shelf_->prefix_crcs(r.pages, r.prefix_blocks, own_layers());
  r.run = run.run;
  ++r.chunks;
  by_op_[r.run] = requests_.at(r.spec.req);
  out.push_back(std::move(run));
}

std::vector<uint32_t> Prefill::Request::targets() const {
  if (spec.prompt_logprobs < 0) return {};
  const auto& ids = spec.ids;
  return {ids.begin() + next + 1, ids.begin() + std::min<std::ptrdiff_t>(run_end + 1, std::ssize(ids))};
}

void Prefill::tell_prompt_logprobs(const Request& r, uint32_t start, std::vector<wire::PromptLogprob> rows,
                                   Actions& out) const {
  if (!rows.empty()) to_conductor(wire::PromptLogprobs{r.spec.req, r.spec.attempt, start + 1, std::move(rows)}, out);
}

void Prefill::on_layer(Request& r, const LayerDone& done, Actions& out) {
  if (r.phase != Phase::computing || done.run != r.run) return;
  std::vector<wire::ReadyExtent> extents;
  uint32_t first = done.first_block;
  for (size_t i = 0; i < done.crcs.size(); ++i) {
    const uint32_t block = done.first_block + static_cast<uint32_t>(i);
    MC_ASSERT(block < r.pages.size() && !r.pinned[block]);
    r.crcs[block][done.layer] = done.crcs[i];
    if (block < r.decode_has) {
      ++first;
      continue;
    }
    extents.push_back({shelf_->page_offset(r.pages[block]) + options_.layout.layer_offset(done.layer), done.crcs[i]});
  }
  if (!extents.empty()) announce(r, done.layer, first, std::move(extents), out);
}

void Prefill::on_chunk(Request& r, const ChunkDone& done, TimePoint now, Actions& out) {
  MC_ASSERT_EQ(r.run, done.run);
  r.run = 0;
  if (leads() && (r.phase == Phase::ended || done.code != Code::ok))  // nobody will read its activations
    free_slot(done.run);
  blocks().drop_rotten(shelf_->pool, r.hashes, r.pages, done.rotten);  // also of a request that is over
  stats_.checksum_failures += done.rotten.size();
  if (r.phase == Phase::ended) return settle(r);
  if (done.code != Code::ok)
    return fail(r, "prefill", std::string(to_string(done.code)), done.what, done.code != Code::invalid, now, out);
  ++stats_.chunks;
  if (leads()) return hand_on(r, done, now, out);
  const uint32_t bt = options_.layout.block_tokens;
  tell_prompt_logprobs(r, r.next, done.prompt_logprobs, out);
  publish(r, r.next / bt, r.run_end / bt);
  r.next = r.run_end;
  if (r.next < r.spec.ids.size()) return run_chunk(r, out);
  first_token(r, done, now, out);
}

// Full blocks become findable. A block that came here by another way meanwhile (a fetch of a request
// that prepares) keeps its page, and ours stays private: its address is already announced.
void Prefill::publish(Request& r, uint32_t first_block, uint32_t end_block) {
  if (r.spec.no_cache) return;
  for (uint32_t block = first_block; block < end_block; ++block) {
    if (shelf_->pool.find(r.hashes[block]) != kv::kNoPage) continue;
    kv::BlockMeta meta{r.hashes[block], block == 0 ? BlockHash{} : r.hashes[block - 1], r.spec.ns,
                       block * options_.layout.block_tokens, r.crcs[block]};
    const auto published = shelf_->pool.publish(r.pages[block], std::move(meta));
    MC_ASSERT(!published.duplicate);
    r.pinned[block] = true;
  }
  if (first_block == 0 && end_block > 0)
    blocks().memory().computed(std::span(r.spec.ids).first(options_.layout.block_tokens), r.spec.prefill_attention,
                               r.spec.salt);
  shelf_->pool.touch(std::span(r.hashes).first(end_block));
}

void Prefill::first_token(Request& r, const ChunkDone& done, TimePoint now, Actions& out) {
  const auto& stopping = r.spec.stopping;
  const uint32_t index = r.spec.resumed;
  const uint32_t bt = options_.layout.block_tokens;
  wire::FirstToken first;
  first.req = r.spec.req;
  first.attempt = r.spec.attempt;
  first.token = done.sampled.token;
  first.logprobs = done.sampled.logprobs;
  const bool stop = index >= stopping.min_tokens && std::find(stopping.stop_ids.begin(), stopping.stop_ids.end(),
                                                              first.token) != stopping.stop_ids.end();
  if (stop)
    first.finish_reason = "stop";
  else if (index + 1 >= stopping.max_tokens || r.spec.ids.size() + 1 >= options_.context_tokens)
    first.finish_reason = "length";
  first.report.cached_remote = r.remote_blocks * bt;
  first.report.cached_local = (r.prefix_blocks - r.remote_blocks) * bt;
  first.report.sources = r.from;
  first.report.fallback = r.fallback;
  // Waiting for its turn to prepare, and then for the compute that an earlier request had.
  first.report.queue_ms = to_ms(r.prepare_at - r.arrived) + to_ms(r.compute_at - std::max(r.accepted_at, r.fetched_at));
  first.report.fetch_ms = r.fetch_ms;
  first.report.accept_ms = to_ms(r.accepted_at - r.prepare_at);
  first.report.compute_ms = to_ms(now - r.compute_at);
  first.report.chunks = r.chunks;
  first.report.misses = r.misses;
  const bool finished = !first.finish_reason.empty();
  const uint32_t token = first.token;
  flush_events(now, out);  // who waits at the conductor for these blocks finds them when it hears of the token
  to_conductor(std::move(first), out);
  if (computing_.get() == &r) computing_ = nullptr;
  r.phase = Phase::handing_over;
  r.computed_at = now;
  if (finished) {  // the request never reaches the decode batch
    send(r.decode, r.decode_instance, wire::Cancel{r.spec.req, r.spec.attempt, "finished"}, out);
    ++stats_.finished;
    return end(r, out);
  }
  send(r.decode, r.decode_instance,
       wire::KvComplete{r.spec.req, r.spec.attempt, static_cast<uint32_t>(r.spec.ids.size()), token}, out);
}

}  // namespace mc::node

#include "node/prefill_request.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

std::vector<uint32_t> PrefillRequest::targets() const {
  if (spec.prompt_logprobs < 0) return {};
  const auto& ids = spec.ids;
  return {ids.begin() + work.next + 1, ids.begin() + std::min<std::ptrdiff_t>(work.end + 1, std::ssize(ids))};
}

std::vector<uint32_t> block_ids(const PrefillRequest& request, uint32_t block, uint32_t block_tokens) {
  const size_t begin = size_t{block} * block_tokens;
  MC_ASSERT_LE(begin + block_tokens, request.spec.ids.size());
  const auto first = request.spec.ids.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + block_tokens};
}

namespace {

// The fields that RunChunk and StageRun share.
template <class Chunk>
Chunk chunk_of(const PrefillRequest& r, uint32_t block_tokens) {
  MC_ASSERT(r.work.next < r.work.end && r.work.end <= r.tokens() && r.work.next % block_tokens == 0);
  Chunk chunk;
  chunk.start = r.work.next;
  chunk.tokens.assign(r.spec.ids.begin() + r.work.next, r.spec.ids.begin() + r.work.end);
  const auto pages = r.pages.all().first(kv::blocks_for(r.work.end, block_tokens));
  chunk.pages.assign(pages.begin(), pages.end());
  chunk.attention = r.spec.prefill_attention;
  chunk.sampling = r.spec.sampling;
  chunk.prompt_tokens = r.tokens() - r.spec.resumed;
  const bool draws = r.work.end == r.tokens();  // the others need neither grammar nor history, which are large
  if (!draws) chunk.sampling.grammar = {};
  if (draws && r.spec.sampling.needs_history()) chunk.history = r.spec.ids;
  if (r.spec.resumed < r.spec.stopping.min_tokens) chunk.banned = r.spec.stopping.stop_ids;
  chunk.prompt_logprobs = r.spec.prompt_logprobs;
  return chunk;
}

}  // namespace

RunChunk PrefillRequest::chunk(uint32_t block_tokens) const {
  RunChunk chunk = chunk_of<RunChunk>(*this, block_tokens);
  const auto on_device = device.pages.all().first(device.pages.empty() ? 0 : chunk.pages.size());
  chunk.device_pages.assign(on_device.begin(), on_device.end());
  chunk.reused = prefix.blocks * block_tokens;
  return chunk;
}

wire::StageRun PrefillRequest::stage_run(uint32_t block_tokens) const {
  wire::StageRun chunk = chunk_of<wire::StageRun>(*this, block_tokens);
  chunk.req = spec.req, chunk.attempt = spec.attempt;
  chunk.decode = decode.node, chunk.decode_instance = decode.instance, chunk.decode_has = decode.has;
  chunk.reused = work.next == prefix.blocks * block_tokens ? work.next : 0;
  chunk.sample = is_last_chunk();
  chunk.targets = targets();
  return chunk;
}

wire::StageAnnounce PrefillRequest::stage_announce(const kv::Pool& pool, LayerRange layers) const {
  wire::StageAnnounce message{spec.req, spec.attempt, decode.node, decode.instance, std::min(decode.has, prefix.blocks),
                              {},       layers.first, {}};
  message.crcs.resize(layers.end - layers.first);
  for (uint32_t block = 0; block < prefix.blocks; ++block) {
    const kv::BlockMeta& meta = pool.meta(pages[block]);
    message.pages.push_back(pages[block]);
    for (uint32_t layer = layers.first; layer < layers.end; ++layer)
      message.crcs[layer - layers.first].push_back(meta.layer_crcs.empty() ? 0 : meta.layer_crcs[layer]);
  }
  return message;
}

bool PrefillRequest::seal(uint32_t block, uint32_t layer, uint32_t crc) {
  MC_ASSERT(block < pages.size() && !pages.pinned(block));
  crcs.at(block).at(layer) = crc;
  return block >= decode.has;
}

wire::FirstToken PrefillRequest::first_token(const SampledToken& sampled, const PrefixFetches::Outcome& fetched,
                                             uint32_t block_tokens, TimePoint now) const {
  MC_ASSERT_LE(prefix.remote, prefix.blocks);
  wire::FirstToken first;
  first.req = spec.req;
  first.attempt = spec.attempt;
  first.token = sampled.token;
  first.logprobs = sampled.logprobs;
  first.embedding = sampled.embedding;
  wire::PrefillReport& report = first.report;
  report.cached_remote = prefix.remote * block_tokens;
  report.cached_disk = prefix.disk * block_tokens;
  report.load_ms = fetched.load_ms;
  report.cached_local = (prefix.blocks - prefix.remote) * block_tokens;
  report.sources = fetched.from, report.reads = fetched.reads;
  report.fallback = fetched.fallback;
  // Waits for preparation, and then for the compute while it serves an earlier request.
  report.queue_ms = to_ms(times.prepare_at - times.arrived) +
                    to_ms(times.compute_at - std::max(times.accepted_at, std::min(fetched.ended, times.compute_at)));
  report.fetch_ms = fetched.ms(times.compute_at);
  report.fetch_hidden_ms = fetched.ms(kNever) - report.fetch_ms;
  report.accept_ms = to_ms(times.accepted_at - times.prepare_at);
  report.compute_ms = to_ms(now - times.compute_at) * work.share;
  report.chunks = work.chunks;
  report.misses = prefix.misses;
  return first;
}

RequestStage stage_of(const PrefillRequest& r, const PrefixFetches& fetches) {
  switch (r.phase) {
    case PrefillRequest::Phase::queued: return RequestStage::queue;
    case PrefillRequest::Phase::preparing:
      if (!r.decode.accepted) return RequestStage::accept;
      return fetches.done(r.spec.req) ? RequestStage::queue : RequestStage::fetch;
    case PrefillRequest::Phase::computing: return RequestStage::prefill;
    case PrefillRequest::Phase::handing_over:
    case PrefillRequest::Phase::ended: return RequestStage::transfer;
  }
  return RequestStage::queue;
}

double predicted_s(const PrefillRequest& r, const DiskTier& disk, const Shelf& shelf, const sched::Cost& cost) {
  const uint32_t cached = disk.match(shelf.pool, r.reusable_hashes()) * shelf.layout.block_tokens;
  const uint32_t reused = r.work.next > 0 ? r.work.next : std::min(cached, r.tokens() - 1);
  return cost.prefill(static_cast<double>(r.tokens()), reused);
}

bool hides_the_rest(const PrefillRequest& r, const PrefixFetches& fetches, const sched::Cost& cost,
                    uint32_t block_tokens, uint32_t chunk_tokens, TimePoint now) {
  const auto coming = fetches.arriving(r.spec.req, now);
  if (!coming) return false;
  const uint32_t prefix = (fetches.have(r.spec.req) + coming->blocks) * block_tokens;
  const uint32_t end = std::min(r.tokens(), prefix + chunk_tokens);
  return to_seconds(coming->rest) <= cost.prefill(end, prefix);
}

}  // namespace mc::node

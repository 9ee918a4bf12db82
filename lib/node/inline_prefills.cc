#include "node/inline_prefills.h"

#include <algorithm>

#include "base/assert.h"
#include "node/miss_reasons.h"
#include "node/stopping.h"

namespace mc::node {
namespace {

// The compute reports the time of the whole pass. The step's part is taken for its usual time, and the chunk's is never
// taken for less than this share of the pass.
constexpr double kChunkShareMin = 0.1;

}  // namespace

std::span<const BlockHash> InlinePrefills::reusable(const DecodeRequest& r) const {
  if (r.spec.no_cache || r.spec.reuse_nothing || r.spec.prompt_logprobs >= 0) return {};
  return r.chain.hashes().first(kv::reusable_blocks(r.spec.ids.size(), shelf_.layout.block_tokens));
}

bool InlinePrefills::is_short(const DecodeRequest& r, uint32_t cached) const {
  const uint64_t reused = uint64_t{cached} * shelf_.layout.block_tokens;
  MC_ASSERT_LT(reused, r.spec.ids.size());
  return r.spec.ids.size() - reused <= tokens_max_;
}

double InlinePrefills::predicted_s(const DecodeRequest& r, const sched::Cost& cost) const {
  const uint32_t reused = shelf_.pool.match(reusable(r)) * shelf_.layout.block_tokens;
  return cost.prefill(static_cast<double>(r.spec.ids.size()), reused);
}

void InlinePrefills::add(const RequestPtr& r) {
  MC_ASSERT(r->inlined && r->phase == DecodeRequest::Phase::computing && r->inlined->run == 0);
  MC_ASSERT(is_short(*r, r->have_blocks));
  queue_.push_back(r);
}

void InlinePrefills::start(uint64_t run, const BlockMemory& memory, const NodeId& self, TimePoint now, Actions& out) {
  MC_ASSERT(has_next() && run != 0);
  computing_ = std::move(queue_.front());
  queue_.pop_front();
  step_s_ = 0;
  DecodeRequest& r = *computing_;
  InlineWork& work = *r.inlined;
  const ExtentLayout& layout = shelf_.layout;
  const MissReasons reasons(shelf_, memory, self);
  work.misses = reasons.of({&r.spec, r.chain.hashes(), r.have_blocks}, {}, {}, now);
  work.run = run;
  work.compute_at = now;
  work.crcs.assign(kv::blocks_for(r.spec.ids.size(), layout.block_tokens), std::vector<uint32_t>(layout.layers));
  RunChunk chunk = r.chunk(layout.block_tokens);
  chunk.run = run;
  if (chunk.device_pages.empty())  // else the prefix was checked on its way to the device
    chunk.prefix_crcs = shelf_.prefix_crcs(r.pages.all(), r.have_blocks, {0, layout.layers});
  out.push_back(std::move(chunk));
}

void InlinePrefills::share_pass(size_t chunk, double step_s, Actions& out) {
  MC_ASSERT(chunk < out.size() && std::holds_alternative<RunStep>(out.back()));
  std::get<RunChunk>(out[chunk]).is_followed = true;
  step_s_ = step_s;
}

void InlinePrefills::on_layer(const LayerDone& done) {
  if (!computing_ || computing_->inlined->run != done.run) return;
  InlineWork& work = *computing_->inlined;
  for (size_t i = 0; i < done.crcs.size(); ++i) work.crcs.at(done.first_block + i).at(done.layer) = done.crcs[i];
}

InlinePrefills::RequestPtr InlinePrefills::end_run(const ChunkDone& done) {
  if (!computing_ || computing_->inlined->run != done.run) return nullptr;
  computing_->inlined->run = 0;
  if (done.code == Code::ok && computing_->phase != DecodeRequest::Phase::ended) {
    ++stats_.requests;
    stats_.prompt_tokens += computing_->spec.ids.size();
    stats_.cached_tokens += uint64_t{computing_->have_blocks} * shelf_.layout.block_tokens;
  }
  return std::move(computing_);
}

wire::FirstToken InlinePrefills::first_token(const DecodeRequest& r, const ChunkDone& done) const {
  const InlineWork& work = *r.inlined;
  const double pass_s = to_seconds(done.elapsed);
  wire::FirstToken first;
  first.req = r.spec.req, first.attempt = r.spec.attempt;
  first.token = done.sampled.token;
  first.logprobs = done.sampled.logprobs;
  first.embedding = done.sampled.embedding;
  first.report.cached_local = r.have_blocks * shelf_.layout.block_tokens;
  first.report.queue_ms = to_ms(work.compute_at - work.arrived);
  first.report.compute_ms = 1e3 * std::max(pass_s - step_s_, kChunkShareMin * pass_s);
  first.report.chunks = 1;
  first.report.misses = work.misses;
  return first;
}

void InlinePrefills::cancel(const DecodeRequest& r, Actions& out) {
  if (!r.inlined) return;
  if (r.inlined->run != 0) out.push_back(CancelRun{r.inlined->run});
  std::erase_if(queue_, [&](const RequestPtr& other) { return other.get() == &r; });
}

void InlinePrefills::check() const {
  for (const RequestPtr& r : queue_) {
    MC_ASSERT(r->inlined && r->inlined->run == 0 && r->phase == DecodeRequest::Phase::computing);
    MC_ASSERT(!r->pages.empty());
  }
  if (!computing_) return;
  MC_ASSERT(computing_->inlined && computing_->inlined->run != 0);
  MC_ASSERT(computing_->phase == DecodeRequest::Phase::computing || computing_->phase == DecodeRequest::Phase::ended);
}

}  // namespace mc::node

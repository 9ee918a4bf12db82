#include "node/batch.h"

#include <algorithm>

#include "base/assert.h"
#include "node/stopping.h"

namespace mc::node {

Batch::Batch(Limits limits, Shelf& shelf, DeviceTier& device) : limits_(limits), shelf_(shelf), device_(device) {
  MC_ASSERT(limits.steps_max > 0 && limits.steps_max <= kStepsMax);
  buffers_.reserve(kStepsMax);
}

void Batch::join(const RequestPtr& r) {
  MC_ASSERT(r->phase == DecodeRequest::Phase::running && r->told_pages == 0);
  MC_ASSERT(!r->answer.empty() && r->arrivals.missing() == 0);
  const uint64_t prompt = r->spec.ids.size(), most = prompt + r->spec.stopping.max_tokens;
  const uint64_t end = std::min<uint64_t>(most, limits_.context_tokens) + 1;
  const uint32_t bt = shelf_.layout.block_tokens;
  r->answer.reserve(end - r->prompt_tokens());
  r->pages.reserve(std::min<uint64_t>(kv::blocks_for(end, bt), limits_.page_count));
  if (device_.exists()) r->device.pages.reserve(std::min<uint64_t>(kv::blocks_for(end, bt), limits_.page_count));
  r->chain.reserve(end);
  const auto at = std::upper_bound(running_.begin(), running_.end(), r,
                                   [](const auto& a, const auto& b) { return a->order < b->order; });
  MC_ASSERT(at == running_.begin() || (*std::prev(at))->order < r->order);
  running_.insert(at, r);
}

uint32_t Batch::capacity_pages() const {
  return device_.exists() ? std::min(limits_.page_count, device_.pool().counts().total) : limits_.page_count;
}

bool Batch::take_page(DecodeRequest& r) {
  if (!r.pages.allocate(shelf_.pool, 1)) return false;
  if (device_.grow(r.device)) return true;
  r.pages.release_from(shelf_.pool, r.pages.size() - 1);
  return false;
}

// book() ends a request at the same lengths.
bool Batch::goes_on(const DecodeRequest& r) const {
  if (r.in_steps == 0) return true;
  return r.answer.size() + r.in_steps < r.spec.stopping.max_tokens && next_position(r) + 1 < limits_.context_tokens;
}

void Batch::add(const RequestPtr& r) {
  MC_ASSERT(may_start() && !full());
  MC_ASSERT(r->phase == DecodeRequest::Phase::running && r->in_steps <= under_way_);
  MC_ASSERT_LT(next_position(*r) / shelf_.layout.block_tokens, r->pages.size());
  rows_.push_back(r);
}

void Batch::announce(DecodeRequest& r, Actions& out) const {
  JoinBatch join;
  join.sequence = r.order;
  join.position = r.position;
  join.tokens_max = static_cast<uint32_t>(
      std::min<uint64_t>(limits_.context_tokens, uint64_t{r.prompt_tokens()} + r.spec.stopping.max_tokens));
  r.told_pages = r.position / shelf_.layout.block_tokens + 1;
  const auto pages = r.pages.all().first(r.told_pages);
  join.pages.assign(pages.begin(), pages.end());
  if (device_.exists()) {
    MC_ASSERT_EQ(r.device.load, 0u);
    const auto on_device = r.device.pages.all().first(r.told_pages);
    join.device_pages.assign(on_device.begin(), on_device.end());
  }
  join.attention = r.spec.decode_attention;
  join.sampling = r.spec.sampling;
  join.prompt_tokens = r.prompt_tokens();
  if (r.spec.sampling.needs_history()) join.history = r.spec.ids;
  join.banned = r.spec.stopping.stop_ids;
  join.min_tokens = r.spec.stopping.min_tokens;
  if (!device_.exists())  // else they were checked on their way to the device
    join.prefix_crcs = shelf_.prefix_crcs(r.pages.all(), r.have_blocks, {0, shelf_.layout.layers});
  out.push_back(std::move(join));
}

void Batch::start(uint64_t run, Actions& out, bool beside_chunk) {
  MC_ASSERT(may_start() && run != 0);
  // An older request may have preempted a request of this step after its row was added.
  std::erase_if(rows_, [](const RequestPtr& r) { return r->phase != DecodeRequest::Phase::running; });
  if (rows_.empty()) return;
  for (const auto& r : rows_)
    if (r->told_pages == 0) announce(*r, out);
  if (buffers_.empty()) buffers_.push_back(std::make_shared<StepRows>());
  std::shared_ptr<StepRows> buffer = std::move(buffers_.back());
  buffers_.pop_back();
  buffer->in.clear();
  for (const auto& r : rows_) {
    RunRow row;
    row.sequence = r->order;
    row.token = r->in_steps > 0 ? RunRow::kFed : r->answer.back();
    row.position = next_position(*r);
    row.joined = row.position == r->spec.ids.size();
    const uint32_t block = row.position / shelf_.layout.block_tokens;
    MC_ASSERT_LE(block, r->told_pages);
    if (block == r->told_pages) {
      row.page = r->pages[r->told_pages++];
      if (device_.exists()) row.device_page = r->device.pages[block];
    }
    ++r->in_steps;
    buffer->in.push_back(row);
  }
  Step& step = steps_[under_way_++];
  step.run = run;
  step.beside_chunk = beside_chunk;
  step.rows.swap(rows_);
  rows_.clear();
  is_awaited_ = limits_.steps_max > 1;
  out.push_back(RunStep{run, std::move(buffer), is_awaited_});
}

void Batch::collect(Actions& out) {
  if (!is_awaited_ || !computing() || !may_start()) return;
  is_awaited_ = false;
  out.push_back(CollectSteps{});
}

bool Batch::finish(const StepDone& done) {
  if (under_way_ == 0 || done.run != steps_[0].run) return false;
  finished_.swap(steps_[0].rows);
  was_alone_ = !steps_[0].beside_chunk;
  steps_[0].rows.clear();
  std::rotate(steps_.begin(), steps_.begin() + 1, steps_.begin() + under_way_);
  --under_way_;
  for (const auto& r : finished_) {
    MC_ASSERT(r->in_steps > 0);
    --r->in_steps;
  }
  if (done.rows) buffers_.push_back(done.rows);
  if (done.code != Code::ok) return true;
  MC_ASSERT(done.rows && done.rows->out.size() == finished_.size());
  if (!was_alone_) return true;
  const double elapsed_s = to_seconds(done.elapsed);
  step_ewma_s_ = step_ewma_s_ == 0 ? elapsed_s : step_ewma_s_ + 0.125 * (elapsed_s - step_ewma_s_);
  return true;
}

bool Batch::book(DecodeRequest& r, const StepRow& row, bool publish, wire::TokenRow& token) {
  const uint32_t bt = shelf_.layout.block_tokens;
  MC_ASSERT_LT(r.position / bt, r.pages.size());
  r.chain.append(r.answer.back());
  ++r.position;
  MC_ASSERT_EQ(r.position, r.chain.token_count());
  if (r.position % bt == 0 && publish) {
    const uint32_t block = r.position / bt - 1;
    const auto hashes = r.chain.hashes();
    MC_ASSERT_EQ(row.sealed_crcs.size(), shelf_.layout.layers);
    r.pages.publish(shelf_.pool, block,
                    {hashes[block], block == 0 ? BlockHash{} : hashes[block - 1], r.spec.ns, block * bt,
                     row.sealed_crcs, r.block_ids(block, bt)});
    device_.publish(r.device, block, hashes, r.spec.ns);
  }
  const uint32_t index = static_cast<uint32_t>(r.answer.size());
  r.answer.push_back(row.sampled.token);
  token.req = r.spec.req;
  token.attempt = r.spec.attempt;
  token.index = index;
  token.token = row.sampled.token;
  token.logprobs = row.sampled.logprobs;
  token.finish_reason = to_string(finish_with(r.spec.stopping, token.token, index, r.position, limits_.context_tokens));
  return token.finish_reason.empty();
}

void Batch::leave(DecodeRequest& r, Actions& out) {
  MC_ASSERT_EQ(r.in_steps, 0u);
  if (r.told_pages != 0) out.push_back(LeaveBatch{r.order});
  r.told_pages = 0;
}

}  // namespace mc::node

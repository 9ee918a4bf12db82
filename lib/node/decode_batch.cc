// The continuous batch: one step at a time over all running requests, pages as they are needed,
// preemption when there are none, and the publication of the answer's blocks.

#include <algorithm>

#include "base/assert.h"
#include "node/decode.h"

namespace mc::node {

// Blocks of an answer may be reused only where prefill would have computed the same.
bool Decode::may_publish(const Request& r) const {
  return !r.spec.no_cache && r.spec.decode_attention == r.spec.prefill_attention;
}

void Decode::step(TimePoint, Actions& out) {
  if (step_run_ != 0 || running_.empty()) return;
  const uint32_t bt = options_.layout.block_tokens;
  RunStep run;
  std::vector<RequestPtr> rows;
  for (const auto& r : std::vector<RequestPtr>(running_)) {
    if (rows.size() == decode_.batch_max) break;
    if (r->phase != Phase::running) continue;  // preempted by an older row of this loop
    if (r->position / bt >= r->pages.size() && !give_page(r, out)) continue;
    rows.push_back(r);
  }
  std::erase_if(rows, [](const RequestPtr& r) { return r->phase != Phase::running; });
  if (rows.empty()) return;
  run.run = step_run_ = next_id();
  for (const auto& r : rows) {
    RunRow row;
    row.token = r->answer.back();
    row.position = r->position;
    row.sequence = r->order;
    row.joined = r->position == r->spec.ids.size();
    row.pages.assign(r->pages.begin(), r->pages.begin() + r->position / bt + 1);
    row.attention = r->spec.decode_attention;
    row.sampling = r->spec.sampling;
    row.prompt_tokens = static_cast<uint32_t>(r->spec.ids.size()) - r->spec.resumed;
    if (r->spec.sampling.has_penalties()) {
      row.history.assign(r->spec.ids.begin(), r->spec.ids.begin() + row.prompt_tokens);
      row.history.insert(row.history.end(), r->answer.begin(), r->answer.end());
    }
    if (r->answer.size() < r->spec.stopping.min_tokens) row.banned = r->spec.stopping.stop_ids;
    if (row.joined) row.prefix_crcs = prefix_crcs(r->pages, r->have_blocks, {0, options_.layout.layers});
    r->in_step = true;
    run.rows.push_back(std::move(row));
  }
  step_rows_ = std::move(rows);
  out.push_back(std::move(run));
}

// One more page for `r`, if need be from the request that came last. False when `r` itself had to go.
bool Decode::give_page(const RequestPtr& r, Actions& out) {
  for (;;) {
    if (auto page = shelf_->pool.allocate(1)) {
      r->pages.push_back(page->front());
      r->pinned.push_back(false);
      return true;
    }
    Request* last = nullptr;
    for (const auto& [id, other] : requests_)
      if (other->phase != Phase::waiting && (!last || other->order > last->order)) last = other.get();
    const bool alone = std::none_of(requests_.begin(), requests_.end(), [&](const auto& other) {
      return other.second != r && other.second->phase != Phase::waiting;
    });
    if (alone && r->pages.size() >= options_.page_count) {
      fail(*r, "decode", "no_space",
           "a context of " + std::to_string(r->position + 1) + " tokens needs more than the " +
               std::to_string(options_.page_count) + " pages of this node; raise --kv-mem",
           false, out);
      return false;
    }
    // Nobody can give way, so leases or reads of ended requests hold the pages: they end by themselves.
    if (alone) return false;
    preempt(*last, out);
    if (last == r.get()) return false;
    if (r->phase == Phase::ended) return false;
    // The victim's pages may still be held by a read in flight; then this row waits a step.
    if (shelf_->pool.available() == 0) return false;
  }
}

void Decode::preempt(Request& r, Actions& out) {
  ++stats_.preempted;
  if (r.phase == Phase::receiving)
    send(r.prefill, r.prefill_instance, wire::Cancel{r.spec.req, r.spec.attempt, "preempted"}, out);
  to_conductor(wire::Preempted{r.spec.req, r.spec.attempt}, out);
  end(r, out);
}

void Decode::on_step(const StepDone& done, TimePoint, Actions& out) {
  if (done.run != step_run_) return;
  step_run_ = 0;
  const auto rows = std::move(step_rows_);
  step_rows_.clear();
  for (const auto& r : rows) r->in_step = false;
  if (done.code != Code::ok) {
    for (const auto& r : rows) {
      if (r->phase == Phase::ended)
        settle(*r);
      else
        fail(*r, "decode", std::string(to_string(done.code)), done.what, true, out);
    }
    return;
  }
  MC_ASSERT_EQ(rows.size(), done.rows.size());
  ++stats_.steps;
  const double elapsed_s = to_seconds(done.elapsed);
  step_ewma_s_ = step_ewma_s_ == 0 ? elapsed_s : step_ewma_s_ + 0.125 * (elapsed_s - step_ewma_s_);
  wire::Tokens tokens;
  tokens.step_ms = to_ms(done.elapsed);
  tokens.batch = static_cast<uint32_t>(rows.size());
  std::vector<RequestPtr> finished;
  for (size_t i = 0; i < rows.size(); ++i) {
    Request& r = *rows[i];
    tokens.kv_tokens += r.position;
    if (r.phase == Phase::ended) {
      settle(r);
      continue;
    }
    if (!done.rows[i].rotten.empty()) {
      on_rotten(r, done.rows[i].rotten, out);
      continue;
    }
    wire::TokenRow token;
    if (!on_row(r, done.rows[i], token)) finished.push_back(rows[i]);
    tokens.rows.push_back(std::move(token));
  }
  if (!tokens.rows.empty()) to_conductor(std::move(tokens), out);
  for (const auto& r : finished) {
    ++stats_.finished;
    end(*r, out);
  }
}

// Cached blocks changed in memory. The conductor places the request again, and its prefill node sends the block.
void Decode::on_rotten(Request& r, std::span<const uint32_t> rotten, Actions& out) {
  stats_.checksum_failures += rotten.size();
  drop_rotten(r.chain.hashes(), r.pages, rotten);
  fail(r, "decode", "corrupt", std::to_string(rotten.size()) + " cached blocks changed in memory; they were dropped",
       true, out);
}

bool Decode::on_row(Request& r, const StepRow& row, wire::TokenRow& token) {
  const uint32_t bt = options_.layout.block_tokens;
  const uint32_t fed = r.answer.back();
  r.chain.append(fed);
  ++r.position;
  if (r.position % bt == 0 && may_publish(r)) {
    const uint32_t block = r.position / bt - 1;
    const auto hashes = r.chain.hashes();
    MC_ASSERT_EQ(row.sealed_crcs.size(), options_.layout.layers);
    if (!r.pinned[block] && shelf_->pool.find(hashes[block]) == kv::kNoPage) {
      shelf_->pool.publish(r.pages[block], {hashes[block], block == 0 ? BlockHash{} : hashes[block - 1], r.spec.ns,
                                            block * bt, row.sealed_crcs});
      r.pinned[block] = true;
    }
    shelf_->pool.touch(hashes);
  }
  const uint32_t index = static_cast<uint32_t>(r.answer.size());
  r.answer.push_back(row.sampled.token);
  ++stats_.tokens;
  const auto& stopping = r.spec.stopping;
  token.req = r.spec.req;
  token.attempt = r.spec.attempt;
  token.index = index;
  token.token = row.sampled.token;
  token.logprobs = row.sampled.logprobs;
  const bool stop = index >= stopping.min_tokens && std::find(stopping.stop_ids.begin(), stopping.stop_ids.end(),
                                                              token.token) != stopping.stop_ids.end();
  if (stop)
    token.finish_reason = "stop";
  else if (index + 1 >= stopping.max_tokens || r.position + 1 >= options_.context_tokens)
    token.finish_reason = "length";
  return token.finish_reason.empty();
}

}  // namespace mc::node

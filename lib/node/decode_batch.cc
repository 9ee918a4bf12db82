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
  if (batch_.computing() || batch_.running().empty()) return;
  const uint32_t bt = options_.layout.block_tokens;
  batch_.clear_rows();
  // A request that is preempted for a page leaves running(), which is in order of arrival: those before it stay where
  // they are, and the next one takes its place.
  for (size_t i = 0; i < batch_.running().size() && !batch_.full();) {
    const RequestPtr r = batch_.running()[i];
    const bool has_page = r->position / bt < r->pages.size() || give_page(r, out);
    if (r->phase != Phase::running) continue;  // it gave way itself
    if (has_page) batch_.add(r);
    ++i;
  }
  batch_.start(next_id(), out);
}

// One more page for `r`, if need be from the request that came last. False when `r` itself had to go.
bool Decode::give_page(const RequestPtr& r, Actions& out) {
  for (;;) {
    if (r->pages.allocate(shelf_->pool, 1)) return true;
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
  if (!batch_.finish(done)) return;
  const auto rows = batch_.rows();
  if (done.code != Code::ok) {
    for (const auto& r : rows) {
      if (r->phase == Phase::ended)
        settle(*r, out);
      else
        fail(*r, "decode", std::string(to_string(done.code)), done.what, true, out);
    }
    return batch_.clear_rows();
  }
  ++stats_.steps;
  wire::Tokens& tokens = fresh_tokens();
  tokens.step_ms = to_ms(done.elapsed);
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
    if (told == tokens.rows.size()) tokens.rows.emplace_back();
    ++stats_.tokens;
    if (!batch_.book(r, row, may_publish(r), tokens.rows[told++])) finished_.push_back(rows[i]);
  }
  tokens.rows.resize(told);
  if (told > 0) to_conductor(tokens_, out);
  for (const auto& r : finished_) {
    ++stats_.finished;
    end(*r, out);
  }
  finished_.clear();
  batch_.clear_rows();
}

/// The message that the step's tokens go into; its rows are those of an older step.
wire::Tokens& Decode::fresh_tokens() {
  if (!tokens_ || tokens_.use_count() > 1) tokens_ = std::make_shared<wire::Tokens>();
  return *tokens_;
}

// Cached blocks changed in memory. The conductor places the request again, and its prefill node sends the block.
void Decode::on_rotten(Request& r, std::span<const uint32_t> rotten, Actions& out) {
  stats_.checksum_failures += rotten.size();
  drop_rotten(r.chain.hashes(), r.pages.all(), rotten);
  fail(r, "decode", "corrupt", std::to_string(rotten.size()) + " cached blocks changed in memory; they were dropped",
       true, out);
}

}  // namespace mc::node

#include "node/prefill_requests.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

PrefillRequest* PrefillRequests::find(const RequestId& req) const {
  const auto it = requests_.find(req);
  return it != requests_.end() ? it->second.get() : nullptr;
}

PrefillRequest* PrefillRequests::find(const RequestId& req, uint32_t attempt) const {
  PrefillRequest* newest = find(req);
  return newest && newest->spec.attempt == attempt ? newest : nullptr;
}

const PrefillRequests::Ptr& PrefillRequests::shared(const PrefillRequest& r) const {
  const Ptr& shared = requests_.at(r.spec.req);
  MC_ASSERT(shared.get() == &r);
  return shared;
}

bool PrefillRequests::any_in(Phase phase) const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [&](const auto& entry) { return entry.second->phase == phase; });
}

std::vector<const PrefillRequest*> PrefillRequests::computing_besides(const PrefillRequest& r) const {
  std::vector<const PrefillRequest*> computing;
  for (const auto& [id, other] : requests_)
    if (other.get() != &r && other->phase == Phase::computing) computing.push_back(other.get());
  return computing;
}

std::vector<PrefillRequests::Ptr> PrefillRequests::late(TimePoint now, Duration grace) const {
  std::vector<Ptr> late;
  for (const auto& [id, r] : requests_)
    if (now >= deadline_of(*r, grace)) late.push_back(r);
  return late;
}

TimePoint PrefillRequests::next_deadline(Duration grace) const {
  TimePoint at = kNever;
  for (const auto& [id, r] : requests_) at = std::min(at, deadline_of(*r, grace));
  return at;
}

bool PrefillRequests::is_ready(const PrefillRequest& r, const kv::Pool& pool, const PrefixFetches& fetches) const {
  if (r.phase != Phase::preparing || !r.decode.accepted || !fetches.done(r.spec.req)) return false;
  const uint32_t here = pool.match(r.reusable_hashes());
  return here == r.reusable || !is_fetched_before(r, here, fetches);
}

bool PrefillRequests::is_fetched_before(const PrefillRequest& r, uint32_t block, const PrefixFetches& fetches) const {
  MC_ASSERT_LT(block, r.hashes.size());
  for (const auto& other : queue_) {
    if (other.get() == &r) return false;
    if (fetches.may_bring(other->spec.req, block) && other->hashes[block] == r.hashes[block]) return true;
  }
  return false;
}

void PrefillRequests::add(Ptr r) {
  MC_ASSERT(r->phase == Phase::queued && r->work.run == 0);
  const RequestId req = r->spec.req;
  const bool fresh = requests_.try_emplace(req, std::move(r)).second;
  MC_ASSERT(fresh);
}

void PrefillRequests::enqueue(PrefillRequest& r) {
  MC_ASSERT(r.phase == Phase::queued);
  if (!r.spec.no_cache)
    for (const auto& hash : r.hashes) ++pending_[hash];
  queue_.push_back(shared(r));
}

void PrefillRequests::leave_queue(const PrefillRequest& r) {
  std::erase_if(queue_, [&](const Ptr& other) { return other.get() == &r; });
}

bool PrefillRequests::unpin_others(const PrefillRequest& r, const PrefixFetches& fetches, kv::Pool& pool) {
  bool any = false;
  for (const auto& other : queue_) {
    if (other.get() == &r || !fetches.done(other->spec.req) || other->pages.empty()) continue;
    other->pages.release(pool);
    any = true;
  }
  return any;
}

PrefillRequests::Ptr PrefillRequests::end(PrefillRequest& r) {
  MC_ASSERT(r.phase != Phase::ended);
  Ptr keep = shared(r);
  if (!r.spec.no_cache)
    for (const auto& hash : r.hashes) {
      const auto it = pending_.find(hash);
      MC_ASSERT(it != pending_.end() && it->second > 0);
      if (--it->second == 0) pending_.erase(it);
    }
  r.phase = Phase::ended;
  requests_.erase(r.spec.req);
  leave_queue(r);
  ended_.push_back(keep);
  return keep;
}

void PrefillRequests::drop(const PrefillRequest& r) {
  MC_ASSERT(r.phase == Phase::ended && r.work.run == 0);
  const size_t dropped = std::erase_if(ended_, [&](const Ptr& other) { return other.get() == &r; });
  MC_ASSERT_EQ(dropped, 1u);
}

void PrefillRequests::begin_run(PrefillRequest& r) {
  MC_ASSERT(r.work.run != 0 && r.phase == Phase::computing);
  const bool fresh = by_run_.try_emplace(r.work.run, shared(r)).second;
  MC_ASSERT(fresh);
}

PrefillRequests::Ptr PrefillRequests::of_load(uint64_t load) const {
  for (const auto& [id, r] : requests_)
    if (r->device.load == load) return r;
  const auto found = std::ranges::find_if(ended_, [&](const Ptr& r) { return r->device.load == load; });
  MC_ASSERT(found != ended_.end());
  return *found;
}

PrefillRequest* PrefillRequests::of_run(uint64_t run) const {
  const auto it = by_run_.find(run);
  return it != by_run_.end() ? it->second.get() : nullptr;
}

PrefillRequests::Ptr PrefillRequests::end_run(uint64_t run) {
  const auto it = by_run_.find(run);
  if (it == by_run_.end()) return nullptr;
  MC_ASSERT_EQ(it->second->work.run, run);
  Ptr r = std::move(it->second);
  by_run_.erase(it);
  return r;
}

void PrefillRequests::check() const {
  std::map<BlockHash, uint32_t> pending;
  size_t runs = 0;
  for (const auto& [req, r] : requests_) {
    MC_ASSERT(r->phase != Phase::ended && r->spec.req == req);
    runs += r->work.run != 0;
    if (r->work.run != 0) MC_ASSERT(of_run(r->work.run) == r.get());
    if (!r->spec.no_cache)
      for (const auto& hash : r->hashes) ++pending[hash];
  }
  MC_ASSERT(pending == pending_);
  for (const auto& r : queue_) {
    MC_ASSERT(r->phase == Phase::queued || r->phase == Phase::preparing);
    MC_ASSERT(find(r->spec.req) == r.get());
  }
  for (const auto& r : ended_) {
    MC_ASSERT(r->phase == Phase::ended && (r->work.run != 0 || r->loan != 0 || r->device.load != 0));
    if (r->work.run == 0) continue;
    MC_ASSERT(of_run(r->work.run) == r.get());
    ++runs;
  }
  MC_ASSERT_EQ(by_run_.size(), runs);
}

}  // namespace mc::node

#include "node/prefix_fetches.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {

wire::Fallback fallback_of(Code code) {
  switch (code) {
    case Code::corrupt: return wire::Fallback::corrupt;
    case Code::timeout: return wire::Fallback::read_timeout;
    case Code::peer_lost: return wire::Fallback::peer_lost;
    default: return wire::Fallback::transfer;
  }
}

}  // namespace

uint32_t PrefixFetches::Fetch::end_block() const {
  const uint64_t end = uint64_t{asked().first_block} + asked().block_count;
  return static_cast<uint32_t>(std::min<uint64_t>(end, wanted.hashes.size()));
}

void PrefixFetches::Fetch::give_up(uint32_t first_block, wire::Fallback why, uint64_t age_ms) {
  if (first_block < end_block()) outcome.given_up.push_back({first_block, end_block(), why, asked().node, age_ms});
}

void PrefixFetches::start(const RequestId& req, Wanted wanted, TimePoint now, Actions& out) {
  MC_ASSERT(wanted.pages != nullptr && wanted.pages->size() <= wanted.hashes.size());
  const auto [it, fresh] = fetches_.try_emplace(req);
  MC_ASSERT(fresh);
  Fetch& f = it->second;
  f.wanted = std::move(wanted);
  f.outcome.began = now;
  f.load = disk_.load(shelf_, f.wanted.ns, f.wanted.hashes, now, out);
  if (f.load == 0) return ask_next(req, f, now, out);
  f.load_end = disk_.match(shelf_.pool, f.wanted.hashes);
  f.state = State::loading;
  f.until = std::min(f.wanted.deadline, now + timeout_);
  if (!disk_.done(f.load)) return;
  end_load(f, now);  // memory has no free page: nothing is under way, and no event of the disk will come
  ask_next(req, f, now, out);
}

/// Takes over the blocks that the load has brought, up to the first one that is not there.
void PrefixFetches::end_load(Fetch& f, TimePoint now) {
  MC_ASSERT(f.load != 0 && f.state == State::loading);
  const auto hashes = f.wanted.hashes.subspan(f.wanted.pages->size());
  f.outcome.disk_blocks = f.wanted.pages->pin_prefix(shelf_.pool, hashes);
  f.outcome.load_ms = to_ms(now - f.outcome.began);
  f.outcome.began = now;
  const uint32_t have = f.wanted.pages->size();
  if (!disk_.done(f.load) && have < f.load_end) {
    f.outcome.fallback = wire::Fallback::disk;
    f.outcome.given_up.push_back({have, f.load_end, wire::Fallback::disk, "", 0});
  }
  disk_.end(f.load);
  f.load = 0;
}

void PrefixFetches::on_disk(TimePoint now, Actions& out) {
  for (auto& [req, f] : fetches_) {
    if (f.state != State::loading || !disk_.done(f.load)) continue;
    end_load(f, now);
    ask_next(req, f, now, out);
  }
}

void PrefixFetches::end(const RequestId& req, Actions& out) {
  const auto it = fetches_.find(req);
  if (it == fetches_.end()) return;
  if (it->second.load != 0) disk_.end(it->second.load);
  release_lease(it->second, out);
  abandon_read(it->second, out);
  fetches_.erase(it);
}

bool PrefixFetches::done(const RequestId& req) const {
  const auto it = fetches_.find(req);
  return it != fetches_.end() && it->second.state == State::done;
}

bool PrefixFetches::may_bring(const RequestId& req, uint32_t block) const {
  const auto it = fetches_.find(req);
  if (it == fetches_.end() || it->second.state == State::done) return false;
  if (it->second.state == State::loading && block < it->second.load_end) return true;
  if (it->second.source >= it->second.wanted.sources.size()) return false;
  return block >= it->second.asked().first_block && block < it->second.end_block();
}

/// Asks the next source that has useful blocks. Without one the fetch is done.
void PrefixFetches::ask_next(const RequestId& req, Fetch& f, TimePoint now, Actions& out) {
  MC_ASSERT(f.lease == 0 && f.read == 0 && f.pages.empty());
  for (; f.source < f.wanted.sources.size(); ++f.source) {
    const wire::Source& source = f.asked();
    const uint32_t have = f.wanted.pages->size(), end = f.end_block();
    if (end <= have) continue;
    if (!peers_.has(source.node, source.instance)) {
      if (f.outcome.fallback == wire::Fallback::none) f.outcome.fallback = wire::Fallback::peer_lost;
      f.give_up(std::max(have, source.first_block), wire::Fallback::peer_lost, 0);
      continue;
    }
    if (source.first_block > have) continue;
    wire::LeaseRequest request;
    request.lease = f.lease = numbers_.next();
    request.ns = f.wanted.ns;
    request.hashes.assign(f.wanted.hashes.begin() + have, f.wanted.hashes.begin() + end);
    request.ttl_ms = static_cast<uint32_t>(timeout_ * 2 / 1ms);
    request.wait_ms = source.wait_ms;
    f.state = State::leasing;
    f.until = std::min(f.wanted.deadline, now + timeout_ + std::chrono::milliseconds(source.wait_ms));
    by_operation_[f.lease] = req;
    ++stats_.fetches;
    out.push_back(Send{source.node, source.instance, std::move(request)});
    return;
  }
  f.state = State::done;
  f.until = kNever;
  f.outcome.ended = now;
}

/// A holder may grant fewer blocks than requested, but no others.
bool PrefixFetches::is_as_asked(const Fetch& f, const wire::LeaseGrant& grant) const {
  const uint32_t have = f.wanted.pages->size();
  if (have + grant.blocks.size() > f.wanted.hashes.size()) return false;
  for (size_t i = 0; i < grant.blocks.size(); ++i)
    if (grant.blocks[i].hash != f.wanted.hashes[have + i] || grant.blocks[i].layer_crcs.size() != shelf_.layout.layers)
      return false;
  return true;
}

bool PrefixFetches::on_grant(const wire::LeaseGrant& grant, TimePoint now, Actions& out) {
  const auto it = by_operation_.find(grant.lease);
  if (it == by_operation_.end()) return false;
  const RequestId req = it->second;
  Fetch& f = fetches_.at(req);
  if (f.state != State::leasing || grant.lease != f.lease) return true;
  const auto fail_with = [&](wire::Fallback why, uint64_t age_ms = 0) { fail(req, f, why, age_ms, now, out); };
  if (grant.blocks.empty()) {
    fail_with(grant.reason == wire::Fallback::none ? wire::Fallback::absent : grant.reason, grant.age_ms);
  } else if (!is_as_asked(f, grant)) {
    fail_with(wire::Fallback::bad_grant);
  } else if (auto pages = shelf_.pool.allocate(static_cast<uint32_t>(grant.blocks.size())); !pages) {
    fail_with(wire::Fallback::no_pages);
  } else {
    f.pages = std::move(*pages);
    read(f, grant, now, out);
    by_operation_[f.read] = req;
  }
  return true;
}

void PrefixFetches::read(Fetch& f, const wire::LeaseGrant& grant, TimePoint now, Actions& out) {
  const ExtentLayout& layout = shelf_.layout;
  const uint32_t got = f.wanted.pages->size() + static_cast<uint32_t>(grant.blocks.size());
  if (got < f.end_block() && grant.reason != wire::Fallback::none) f.give_up(got, grant.reason, grant.age_ms);
  MC_ASSERT(f.state == State::leasing && f.read == 0);
  MC_ASSERT_EQ(f.pages.size(), grant.blocks.size());
  f.granted = grant.blocks;
  Read read;
  read.read = f.read = numbers_.next();
  read.peer = f.asked().node;
  read.instance = f.asked().instance;
  // The holder may reuse the pages after the lease, so the read must end before the lease does.
  read.budget = std::min<Duration>({timeout_, std::chrono::milliseconds(grant.ttl_ms), f.wanted.deadline - now});
  for (size_t i = 0; i < grant.blocks.size(); ++i)
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      read.slices.push_back({f.pages[i], layout.layer_offset(layer),
                             grant.blocks[i].page_offset + layout.layer_offset(layer),
                             static_cast<uint32_t>(layout.layer_bytes()), grant.blocks[i].layer_crcs[layer]});
  // A short prefix does not queue behind a long one, whose request waits for its last byte anyway.
  read.urgent = grant.blocks.size() * layout.layers * layout.layer_bytes() <= kUrgentBytes;
  f.state = State::reading;
  f.until = now + read.budget + 1s;  // the host answers every read; this time-out is the last resort
  out.push_back(std::move(read));
}

bool PrefixFetches::on_read(const ReadDone& done, TimePoint now, Actions& out) {
  if (const auto abandoned = abandoned_.find(done.read); abandoned != abandoned_.end()) {
    shelf_.pool.release(abandoned->second);
    abandoned_.erase(abandoned);
    return true;
  }
  const auto it = by_operation_.find(done.read);
  if (it == by_operation_.end()) return false;
  const RequestId req = it->second;
  by_operation_.erase(it);
  Fetch& f = fetches_.at(req);
  MC_ASSERT(f.state == State::reading && f.read == done.read);
  f.read = 0;
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  if (done.code != Code::ok) {
    fail(req, f, fallback_of(done.code), 0, now, out);
    return true;
  }
  publish(f);
  release_lease(f, out);
  ++f.source;
  ask_next(req, f, now, out);
  return true;
}

void PrefixFetches::publish(Fetch& f) {
  MC_ASSERT_EQ(f.pages.size(), f.granted.size());
  MC_ASSERT_LE(f.wanted.pages->size() + f.pages.size(), f.wanted.hashes.size());
  const uint32_t bt = shelf_.layout.block_tokens;
  for (size_t i = 0; i < f.pages.size(); ++i) {
    const uint32_t block = f.wanted.pages->size();
    const BlockHash parent = block == 0 ? BlockHash{} : f.wanted.hashes[block - 1];
    const auto ids = f.wanted.ids.subspan(size_t{block} * bt, bt);
    f.wanted.pages->adopt(
        shelf_.pool, f.pages[i],
        {f.wanted.hashes[block], parent, f.wanted.ns, block * bt, f.granted[i].layer_crcs, {ids.begin(), ids.end()}});
  }
  const auto count = static_cast<uint32_t>(f.pages.size());
  f.outcome.blocks += count;
  f.outcome.from.emplace_back(f.asked().node, std::to_string(count * bt));
  f.pages.clear();
}

void PrefixFetches::fail(const RequestId& req, Fetch& f, wire::Fallback why, uint64_t age_ms, TimePoint now,
                         Actions& out) {
  MC_ASSERT(f.state != State::done && why != wire::Fallback::none);
  ++stats_.failures;
  f.outcome.fallback = why;
  f.give_up(f.wanted.pages->size(), why, age_ms);
  abandon_read(f, out);
  release_lease(f, out);
  ++f.source;
  ask_next(req, f, now, out);
}

void PrefixFetches::release_lease(Fetch& f, Actions& out) {
  if (f.lease == 0) return;
  by_operation_.erase(f.lease);
  out.push_back(Send{f.asked().node, f.asked().instance, wire::LeaseRelease{f.lease}});
  f.lease = 0;
  f.granted.clear();
}

/// Keeps the pages of an unfinished read until it ends.
void PrefixFetches::abandon_read(Fetch& f, Actions& out) {
  if (f.read == 0) {
    shelf_.pool.release(f.pages);
  } else {
    out.push_back(CancelRead{f.read});
    by_operation_.erase(f.read);
    const bool fresh = abandoned_.emplace(f.read, std::move(f.pages)).second;
    MC_ASSERT(fresh);
    f.read = 0;
  }
  f.pages.clear();
}

void PrefixFetches::on_tick(TimePoint now, Actions& out) {
  for (auto& [req, f] : fetches_)
    if (f.state == State::loading && now >= f.until) {
      end_load(f, now);
      ask_next(req, f, now, out);
    } else if (f.state != State::done && now >= f.until)
      fail(req, f, f.state == State::leasing ? wire::Fallback::lease_timeout : wire::Fallback::read_timeout, 0, now,
           out);
}

void PrefixFetches::on_peer_gone(const InstanceId& instance, TimePoint now, Actions& out) {
  for (auto& [req, f] : fetches_)
    if ((f.state == State::leasing || f.state == State::reading) && f.asked().instance == instance)
      fail(req, f, wire::Fallback::peer_lost, 0, now, out);
}

TimePoint PrefixFetches::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [req, f] : fetches_) at = std::min(at, f.until);
  return at;
}

void PrefixFetches::check() const {
  size_t operations = 0;
  for (const auto& [req, f] : fetches_) {
    MC_ASSERT_EQ(f.lease != 0, f.state == State::leasing || f.state == State::reading);
    MC_ASSERT_EQ(f.load != 0, f.state == State::loading);
    MC_ASSERT_EQ(f.read != 0, f.state == State::reading);
    MC_ASSERT_EQ(f.pages.empty(), f.state != State::reading);
    if (f.state != State::done) MC_ASSERT_LE(f.wanted.pages->size(), f.wanted.hashes.size());
    operations += (f.lease != 0) + (f.read != 0);
  }
  MC_ASSERT_EQ(operations, by_operation_.size());
}

}  // namespace mc::node

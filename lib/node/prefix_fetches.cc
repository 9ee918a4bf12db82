#include "node/prefix_fetches.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/assert.h"
#include "node/lease_grant.h"
#include "sched/sched.h"

namespace mc::node {
namespace {

/// Puts reads into the order of their first layers.
void order_by_layer(Actions& actions) {
  std::vector<Read> reads;
  for (Action& action : actions)
    if (auto* read = std::get_if<Read>(&action)) reads.push_back(std::move(*read));
  std::ranges::stable_sort(reads, {}, [](const Read& read) { return read.slices.front().page_offset; });
  auto next = reads.begin();
  for (Action& action : actions)
    if (auto* read = std::get_if<Read>(&action)) *read = std::move(*next++);
}

void renew_leases(FetchParts& parts, TimePoint now, Actions& out) {
  for (auto& [first, part] : parts.all())
    if (auto renewal = part.term.renew(part.lease, now))
      out.push_back(Send{part.source.node, part.source.instance, *renewal});
}

/// A read into pages that had some of their layers already took less time than its tokens say, and is left out.
void note_read(PrefixFetches::Outcome& outcome, const FetchPart& part, uint32_t block_tokens, TimePoint now) {
  if (!part.held.empty() || outcome.reads.size() == wire::kEndedReadsMax) return;
  outcome.reads.push_back({part.source.node, part.source.block_count * block_tokens, to_ms(now - part.read_at)});
}

}  // namespace

void PrefixFetches::Fetch::give_up(const FetchPart& part, uint32_t first_block, wire::Fallback why, uint64_t age_ms) {
  const NodeId& node = why == wire::Fallback::stage ? NodeId() : part.source.node;
  if (first_block < part.end()) outcome.given_up.push_back({first_block, part.end(), why, node, age_ms});
}

void PrefixFetches::start(const RequestId& req, Wanted wanted, TimePoint now, Actions& out) {
  MC_ASSERT(wanted.pages != nullptr && wanted.pages->size() <= wanted.hashes.size());
  const auto [it, fresh] = fetches_.try_emplace(req);
  MC_ASSERT(fresh);
  Fetch& f = it->second;
  f.wanted = std::move(wanted);
  f.outcome.began = now;
  f.load = disk_.load(shelf_, f.wanted.ns, f.wanted.hashes, now, out);
  if (f.load != 0) {
    f.load_end = std::max(disk_.ahead(f.load).end, f.have());
    f.load_until = std::min(f.wanted.deadline, now + timeout_);
  }
  // Memory may have no free page. Then nothing is under way, and no event of the disk will come.
  if (f.load != 0 && disk_.done(f.load)) end_load(req, f, now, out);
  f.parts = FetchParts(f.wanted.sources, f.first_fetched(), static_cast<uint32_t>(f.wanted.hashes.size()));
  cut(f, f.parts.end_of_prefix(f.first_fetched()), out);
  go_on(req, f, now, out);
}

/// Takes over the blocks that the load has brought, up to the first one that is not there. Holders bring the others as
/// far as they have them.
void PrefixFetches::end_load(const RequestId& req, Fetch& f, TimePoint now, Actions& out) {
  MC_ASSERT(f.load != 0);
  const uint32_t before = f.wanted.pages->size();
  f.outcome.disk_blocks = f.wanted.pages->pin_prefix(shelf_.pool, f.wanted.hashes.subspan(before, f.load_end - before));
  f.outcome.load_ms = to_ms(now - f.outcome.began);
  f.outcome.began = now;
  const uint32_t have = f.wanted.pages->size();
  if (!disk_.done(f.load) && have < f.load_end) {
    f.outcome.fallback = wire::Fallback::disk;
    f.outcome.given_up.push_back({have, f.load_end, wire::Fallback::disk, "", 0});
  }
  disk_.end(f.load);
  f.load = 0;
  f.load_until = kNever;
  f.parts.fill(have, f.load_end);
  cut(f, f.parts.end_of_prefix(have), out);
  go_on(req, f, now, out);
  on_pages(now, out);
}

void PrefixFetches::on_disk(TimePoint now, Actions& out) {
  for (auto& [req, f] : fetches_)
    if (f.load != 0 && disk_.done(f.load)) end_load(req, f, now, out);
  on_pages(now, out);  // a load that goes on wants fewer pages
}

void PrefixFetches::end(const RequestId& req, Actions& out) {
  const auto it = fetches_.find(req);
  if (it == fetches_.end()) return;
  if (it->second.load != 0) disk_.end(it->second.load);
  cut(it->second, 0, out);
  fetches_.erase(it);
}

bool PrefixFetches::done(const RequestId& req) const {
  const auto it = fetches_.find(req);
  return it != fetches_.end() && it->second.is_done();
}

std::optional<PrefixFetches::Arriving> PrefixFetches::arriving(const RequestId& req, TimePoint now) const {
  if (by_layer_bytes_ == UINT64_MAX) return std::nullopt;
  const auto it = fetches_.find(req);
  if (it == fetches_.end() || it->second.parts.empty() || it->second.lent_have) return std::nullopt;
  const Fetch& f = it->second;
  if (f.load != 0) return std::nullopt;
  Arriving coming{0, layers_here(req), {}};
  if (coming.layers == 0) return std::nullopt;
  for (const auto& [first, part] : f.parts.all()) {
    if (part.state != FetchPart::State::reading && part.state != FetchPart::State::here) return std::nullopt;
    coming.blocks += part.source.block_count;
    if (part.read == 0) continue;
    const uint32_t here = reads_.layers_here(part.read), left = shelf_.layout.layers - here;
    coming.rest = std::max(coming.rest, Duration((now - part.read_at).count() / here * left));
  }
  return coming;
}

uint32_t PrefixFetches::layers_here(const RequestId& req) const {
  uint32_t layers = shelf_.layout.layers;
  for (const auto& [first, part] : fetches_.at(req).parts.all())
    if (part.state != FetchPart::State::here)
      layers = std::min(layers, part.read == 0 ? 0 : reads_.layers_here(part.read));
  return layers;
}

std::vector<std::vector<uint32_t>> PrefixFetches::lend(const RequestId& req, uint64_t loan) {
  Fetch& f = fetches_.at(req);
  MC_ASSERT(!f.is_done() && f.load == 0 && !f.lent_have && loan != 0);
  f.lent_have = f.have();
  std::vector<std::vector<uint32_t>> crcs;
  for (auto& [first, part] : f.parts.all()) {
    MC_ASSERT_EQ(f.wanted.pages->size(), first);
    MC_ASSERT_EQ(part.pages.size(), part.source.block_count);
    part.loan = loan;
    f.wanted.pages->append(part.pages);
    for (const wire::LeasedBlock& block : part.grant.blocks) crcs.push_back(block.layer_crcs);
  }
  return crcs;
}

void PrefixFetches::take_back(const RequestId& req) {
  Fetch& f = fetches_.at(req);
  MC_ASSERT(f.lent_have.has_value());
  f.wanted.pages->forget_from(*f.lent_have);
  f.lent_have.reset();
  for (auto& [first, part] : f.parts.all()) part.loan = 0;
}

bool PrefixFetches::is_lent(uint64_t loan) const {
  return std::any_of(lent_reads_.begin(), lent_reads_.end(), [&](const auto& read) { return read.second == loan; });
}

bool PrefixFetches::may_bring(const RequestId& req, uint32_t block) const {
  const auto it = fetches_.find(req);
  if (it == fetches_.end()) return false;
  const Fetch& f = it->second;
  return (f.load != 0 && block < f.load_end) || f.parts.covers(block);
}

std::optional<PrefixFetches::Found> PrefixFetches::find(uint64_t operation) {
  const auto it = by_operation_.find(operation);
  if (it == by_operation_.end()) return std::nullopt;
  const auto fetch = fetches_.find(it->second);
  MC_ASSERT(fetch != fetches_.end());
  FetchPart* part = fetch->second.parts.find(operation);
  MC_ASSERT(part != nullptr);
  return Found{fetch->first, fetch->second, *part};
}

/// Publishes the parts that are here, in order, and asks for waiting parts. Without any part left, and without a load,
/// the fetch is done.
void PrefixFetches::go_on(const RequestId& req, Fetch& f, TimePoint now, Actions& out) {
  while (const auto part = f.parts.take(f.have())) publish(f, *part);
  while (FetchPart* part = f.parts.next_waiting(sched::kPartsAtOnce)) {
    if (peers_.has(part->source.node, part->source.instance)) {
      ask(req, f, *part, now, out);
      continue;
    }
    if (f.outcome.fallback == wire::Fallback::none) f.outcome.fallback = wire::Fallback::peer_lost;
    f.give_up(*part, part->first(), wire::Fallback::peer_lost, 0);
    f.parts.replace(*part, part->first());
    cut(f, f.parts.end_of_prefix(f.first_fetched()), out);
  }
  if (f.is_done()) f.outcome.ended = now;
}

void PrefixFetches::ask(const RequestId& req, Fetch& f, FetchPart& part, TimePoint now, Actions& out) {
  MC_ASSERT(part.state == FetchPart::State::waiting && part.lease == 0);
  wire::LeaseRequest request;
  request.lease = part.lease = numbers_.next();
  request.ns = f.wanted.ns;
  request.hashes.assign(f.wanted.hashes.begin() + part.first(), f.wanted.hashes.begin() + part.end());
  request.ttl_ms = static_cast<uint32_t>(timeout_ * 2 / 1ms);
  request.wait_ms = part.source.wait_ms;
  part.state = FetchPart::State::leasing;
  part.asked_at = now;
  part.until = std::min(f.wanted.deadline, now + timeout_ + std::chrono::milliseconds(part.source.wait_ms));
  by_operation_[part.lease] = req;
  ++stats_.fetches;
  out.push_back(Send{part.source.node, part.source.instance, std::move(request)});
}

/// Pages that come back to the pool when reads that were given up end.
uint32_t PrefixFetches::returning() const {
  size_t pages = 0;
  for (const auto& [read, owned] : abandoned_) pages += owned.size();
  return static_cast<uint32_t>(pages);
}

/// Takes a page for each granted block, or none. A block of which a member lost its layers has its page already, and
/// part.held then has the members that still have theirs.
bool PrefixFetches::allocate(FetchPart& part) {
  MC_ASSERT(part.pages.empty());
  const auto& blocks = part.grant.blocks;
  std::vector<kv::PageIndex> kept;
  std::vector<uint64_t> has(blocks.size(), 0);
  for (size_t i = 0; shelf_.lost && i < blocks.size(); ++i)
    if (const auto block = shelf_.lost->take(blocks[i].hash, blocks[i].layer_crcs))
      kept.push_back(block->page), has[i] = ~block->lost;
  std::vector<kv::PageIndex> fresh(blocks.size() - kept.size());
  if (shelf_.make_room) shelf_.make_room(static_cast<uint32_t>(fresh.size()));
  if (!shelf_.pool.allocate(fresh)) {
    shelf_.pool.release(kept);
    return false;
  }
  size_t next_kept = 0, next_fresh = 0;
  for (const uint64_t members : has) part.pages.push_back(members != 0 ? kept[next_kept++] : fresh[next_fresh++]);
  if (!kept.empty()) part.held = std::move(has);
  return true;
}

/// Takes pages for the blocks of a grant. When the pool has none, later parts of the prefix give up theirs; those of an
/// unfinished read come back with its end, and the part waits for them. False: there are not enough.
///
/// The blocks on disk come before those of every part. So a part waits while the load still has to take pages that it
/// would lack then.
bool PrefixFetches::take_pages(Fetch& f, FetchPart& part, Actions& out) {
  const auto count = static_cast<uint32_t>(part.grant.blocks.size());
  const uint32_t wanted = f.load != 0 ? disk_.ahead(f.load).pages : 0;
  if (wanted > 0 && shelf_.pool.available() < count + wanted) return true;
  for (;;) {
    if (allocate(part)) return true;
    if (shelf_.pool.available() + returning() >= count) return true;
    const FetchPart* last = nullptr;
    for (const auto& [first, other] : f.parts.all())
      if (first > part.first() && !other.pages.empty()) last = &other;
    if (!last) return false;
    f.outcome.fallback = wire::Fallback::no_pages;
    f.give_up(*last, last->first(), wire::Fallback::no_pages, 0);
    cut(f, last->first(), out);
  }
}

bool PrefixFetches::on_grant(const InstanceId& holder, const wire::LeaseGrant& grant, TimePoint now, Actions& out) {
  const auto at = find(grant.lease);
  if (!at) return false;
  auto& [req, f, part] = *at;
  if (part.source.instance != holder) return true;
  if (part.state != FetchPart::State::leasing || grant.lease != part.lease) return true;
  if (grant.blocks.empty()) {
    fail(f, part, grant.reason == wire::Fallback::none ? wire::Fallback::absent : grant.reason, grant.age_ms, out);
  } else if (!is_as_asked(grant, f.wanted.hashes.subspan(part.first(), part.source.block_count),
                          shelf_.layout.layers)) {
    fail(f, part, wire::Fallback::bad_grant, 0, out);
  } else {
    part.state = FetchPart::State::granted;
    part.grant = grant;
    part.term = LeaseTerm::of(grant, part.asked_at, now);
    part.until = std::min({f.wanted.deadline, now + timeout_, part.term.end()});
    const uint64_t bytes = grant.blocks.size() * shelf_.layout.layers * shelf_.layout.layer_bytes();
    part.hold_until = bytes >= by_layer_bytes_ ? std::min(part.until, now + kGrantsApart) : now;
  }
  read_held(req, f, now, out);
  go_on(req, f, now, out);
  return true;
}

/// Reads the granted parts that need not wait for the grants of other parts.
void PrefixFetches::read_held(const RequestId& req, Fetch& f, TimePoint now, Actions& out) {
  const auto& parts = f.parts.all();
  const bool more_come =
      f.parts.next_waiting(sched::kPartsAtOnce) != nullptr ||
      std::ranges::any_of(parts, [](const auto& entry) { return entry.second.state == FetchPart::State::leasing; });
  std::vector<uint64_t> leases;  // a part that is read or fails changes the parts of its fetch
  for (const auto& [first, part] : parts)
    if (part.hold_until != kNever && (now >= part.hold_until || !more_come)) leases.push_back(part.lease);
  Actions begun;
  for (const uint64_t lease : leases) {
    const auto at = find(lease);
    if (!at) continue;
    MC_ASSERT(at->req == req);
    at->part.hold_until = kNever;
    if (now < at->part.until)
      read_granted(*at, now, begun);
    else  // this process has not run for so long that the holder may have reused the pages
      fail(at->fetch, at->part, wire::Fallback::lease_timeout, 0, begun);
  }
  if (leases.size() > 1) order_by_layer(begun);
  std::ranges::move(begun, std::back_inserter(out));
}

/// Reads the blocks of a grant if there are pages for them now.
void PrefixFetches::read_granted(const Found& at, TimePoint now, Actions& out) {
  MC_ASSERT(at.part.state == FetchPart::State::granted);
  if (!take_pages(at.fetch, at.part, out)) return fail(at.fetch, at.part, wire::Fallback::no_pages, 0, out);
  if (!at.part.pages.empty() && !read(at, now, out)) fail(at.fetch, at.part, wire::Fallback::peer_lost, 0, out);
}

/// Goes on with parts that wait for pages, because some have come back to the pool.
void PrefixFetches::on_pages(TimePoint now, Actions& out) {
  std::vector<uint64_t> leases;  // a part that is read or fails changes the parts of its fetch
  for (auto& [req, f] : fetches_) {
    leases.clear();
    for (const auto& [first, part] : f.parts.all())
      if (part.state == FetchPart::State::granted && part.hold_until == kNever && now < part.until)
        leases.push_back(part.lease);
    for (const uint64_t lease : leases)
      if (const auto at = find(lease)) read_granted(*at, now, out);
    if (!leases.empty()) go_on(req, f, now, out);
  }
}

/// False: a member of a pipeline is missing, and nothing is read.
bool PrefixFetches::read(const Found& at, TimePoint now, Actions& out) {
  auto& [req, f, part] = at;
  const ExtentLayout& layout = shelf_.layout;
  const wire::LeaseGrant& grant = part.grant;
  MC_ASSERT(part.state == FetchPart::State::granted && part.read == 0);
  MC_ASSERT_EQ(part.pages.size(), grant.blocks.size());
  const uint32_t got = part.first() + static_cast<uint32_t>(grant.blocks.size());
  const bool lacks_rest = got < part.end() && grant.reason != wire::Fallback::none;
  BlockRead read{.read = numbers_.next(), .node = part.source.node, .instance = part.source.instance};
  read.parts = grant.parts;
  read.blocks = grant.blocks;
  read.pages = part.pages;
  read.held = part.held;
  const TimePoint limit = std::min(now + timeout_, f.wanted.deadline);
  read.budget = limit - now;
  // A short prefix does not queue behind a long one, whose request waits for its last byte anyway.
  const uint64_t bytes = grant.blocks.size() * layout.layers * layout.layer_bytes();
  read.urgent = bytes <= kUrgentBytes;
  read.by_layer = bytes >= by_layer_bytes_;
  if (!reads_.start(read, layout, now, out)) return false;
  if (got < part.end() && !lacks_rest) f.parts.ask_again(part, got);  // one grant has a limit of blocks
  part.read = read.read;
  part.read_at = now;
  part.state = FetchPart::State::reading;
  part.term.read_until(limit);
  part.until = part.term.give_up_at();
  by_operation_[part.read] = req;
  if (!lacks_rest) return true;
  ++stats_.failures;
  if (f.outcome.fallback == wire::Fallback::none) f.outcome.fallback = grant.reason;
  f.give_up(part, got, grant.reason, grant.age_ms);
  f.parts.replace(part, got);
  cut(f, f.parts.end_of_prefix(f.first_fetched()), out);
  return true;
}

bool PrefixFetches::on_read(const ReadDone& done, TimePoint now, Actions& out) {
  if (lent_reads_.erase(done.read) > 0) return true;
  if (const auto abandoned = abandoned_.find(done.read); abandoned != abandoned_.end()) {
    shelf_.pool.release(abandoned->second);
    abandoned_.erase(abandoned);
    on_pages(now, out);
    return true;
  }
  const auto at = find(done.read);
  if (!at) return false;
  auto& [req, f, part] = *at;
  MC_ASSERT(part.state == FetchPart::State::reading && part.read == done.read);
  by_operation_.erase(part.read);
  part.read = 0;
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  const bool is_late = done.code == Code::ok && part.term.is_over(now);
  part.term = {};
  if (is_late) {  // the holder may have put other blocks into the pages meanwhile
    fail(f, part, wire::Fallback::read_timeout, 0, out);
  } else if (done.code == Code::ok) {
    note_read(f.outcome, part, shelf_.layout.block_tokens, now);
    part.state = FetchPart::State::here;
    part.until = kNever;
    release_lease(part, out);
  } else {
    fail(f, part, fallback_of(done), 0, out);
  }
  go_on(req, f, now, out);
  return true;
}

bool PrefixFetches::on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now) {
  const auto at = find(answer.lease);
  if (!at) return false;
  FetchPart& part = at->part;
  if (part.lease != answer.lease || part.state != FetchPart::State::reading || part.source.instance != event.instance)
    return true;
  part.term.renewed(answer, now);
  part.until = part.term.give_up_at();  // at once when the lease has ended
  return true;
}

void PrefixFetches::publish(Fetch& f, const FetchPart& part) {
  MC_ASSERT_EQ(part.pages.size(), part.grant.blocks.size());
  MC_ASSERT_EQ(f.have(), part.first());
  MC_ASSERT_LE(part.end(), f.wanted.hashes.size());
  const uint32_t bt = shelf_.layout.block_tokens;
  for (size_t i = 0; i < part.pages.size(); ++i) {
    const uint32_t block = f.have();
    const BlockHash parent = block == 0 ? BlockHash{} : f.wanted.hashes[block - 1];
    const auto ids = f.wanted.ids.subspan(size_t{block} * bt, bt);
    kv::BlockMeta meta{f.wanted.hashes[block],  parent, f.wanted.ns, block * bt, part.grant.blocks[i].layer_crcs,
                       {ids.begin(), ids.end()}};
    if (f.lent_have) {
      (void)f.wanted.pages->publish(shelf_.pool, block, std::move(meta));
      ++*f.lent_have;
    } else {
      f.wanted.pages->adopt(shelf_.pool, part.pages[i], std::move(meta));
    }
  }
  f.outcome.blocks += part.source.block_count;
  add_tokens(f.outcome.from, part.source.node, part.source.block_count * bt);
}

/// The holder does not bring the part. Other holders replace it, unless this node has no pages or the request computes
/// the blocks itself, because it has begun.
void PrefixFetches::fail(Fetch& f, FetchPart& part, wire::Fallback why, uint64_t age_ms, Actions& out) {
  MC_ASSERT(why != wire::Fallback::none);
  ++stats_.failures;
  f.outcome.fallback = why;
  f.give_up(part, part.first(), why, age_ms);
  drop(part, out);
  if (why == wire::Fallback::no_pages || f.lent_have)
    f.parts.remove(part);
  else
    f.parts.replace(part, part.first());
  cut(f, f.parts.end_of_prefix(f.first_fetched()), out);
}

/// Drops the parts from block `end` on.
void PrefixFetches::cut(Fetch& f, uint32_t end, Actions& out) {
  auto& parts = f.parts.all();
  const auto first = parts.lower_bound(end);
  for (auto it = first; it != parts.end(); ++it) drop(it->second, out);
  parts.erase(first, parts.end());
}

void PrefixFetches::drop(FetchPart& part, Actions& out) {
  abandon_read(part, out);
  release_lease(part, out);
}

void PrefixFetches::release_lease(FetchPart& part, Actions& out) {
  if (part.lease == 0) return;
  by_operation_.erase(part.lease);
  out.push_back(Send{part.source.node, part.source.instance, wire::LeaseRelease{part.lease}});
  part.lease = 0;
}

/// Keeps the pages of an unfinished read until it ends. Lent pages stay with the request.
void PrefixFetches::abandon_read(FetchPart& part, Actions& out) {
  if (part.read == 0) {
    if (part.loan == 0) shelf_.pool.release(part.pages);
  } else if (part.loan != 0) {
    reads_.cancel(part.read, out);
    by_operation_.erase(part.read);
    lent_reads_[part.read] = part.loan;
    part.read = 0;
  } else {
    reads_.cancel(part.read, out);
    by_operation_.erase(part.read);
    const bool fresh = abandoned_.emplace(part.read, std::move(part.pages)).second;
    MC_ASSERT(fresh);
    part.read = 0;
  }
  part.pages.clear();
}

/// Fails the parts for which why(part) names a cause.
template <class Why>
void PrefixFetches::fail_where(const RequestId& req, Fetch& f, TimePoint now, Actions& out, const Why& why) {
  bool failed = false;
  for (bool found = true; found;) {  // a failure changes the parts
    found = false;
    for (auto& [first, part] : f.parts.all()) {
      const wire::Fallback cause = why(std::as_const(part));
      if (cause == wire::Fallback::none) continue;
      fail(f, part, cause, 0, out);
      found = failed = true;
      break;
    }
  }
  if (failed) go_on(req, f, now, out);
}

void PrefixFetches::on_tick(TimePoint now, Actions& out) {
  for (auto& [req, f] : fetches_) {
    if (now >= f.load_until) end_load(req, f, now, out);
    if (std::ranges::any_of(f.parts.all(), [&](const auto& entry) { return entry.second.hold_until <= now; })) {
      read_held(req, f, now, out);
      go_on(req, f, now, out);
    }
    renew_leases(f.parts, now, out);
    fail_where(req, f, now, out, [&](const FetchPart& part) {
      if (now < part.until) return wire::Fallback::none;
      if (part.state == FetchPart::State::granted) return wire::Fallback::no_pages;
      return part.read != 0 ? wire::Fallback::read_timeout : wire::Fallback::lease_timeout;
    });
  }
}

void PrefixFetches::on_peer_gone(const InstanceId& instance, TimePoint now, Actions& out) {
  for (auto& [req, f] : fetches_)
    fail_where(req, f, now, out, [&](const FetchPart& part) {
      return part.lease != 0 && part.source.instance == instance ? wire::Fallback::peer_lost : wire::Fallback::none;
    });
}

TimePoint PrefixFetches::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [req, f] : fetches_) {
    at = std::min(at, f.load_until);
    for (const auto& [first, part] : f.parts.all())
      at = std::min({at, part.until, part.hold_until, part.term.next_renewal()});
  }
  return at;
}

void PrefixFetches::check() const {
  size_t operations = 0;
  for (const auto& [req, f] : fetches_) {
    f.parts.check(f.first_fetched());
    if (!f.is_done()) MC_ASSERT_LE(f.have(), f.wanted.hashes.size());
    MC_ASSERT_EQ(f.load != 0, f.load_until != kNever);
    for (const auto& [first, part] : f.parts.all()) operations += (part.lease != 0) + (part.read != 0);
  }
  MC_ASSERT_EQ(operations, by_operation_.size());
}

}  // namespace mc::node

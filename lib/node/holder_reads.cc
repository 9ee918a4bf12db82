#include "node/holder_reads.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "node/lease_grant.h"

namespace mc::node {

void HolderReads::start(const RequestPtr& r, std::span<const BlockHash> hashes, TimePoint now, Actions& out) {
  MC_ASSERT(r->from_holders.parts == 0);
  uint32_t next = r->have_blocks;
  for (const wire::Source& source : r->sources) {
    const auto end =
        static_cast<uint32_t>(std::min<uint64_t>(uint64_t{source.first_block} + source.block_count, hashes.size()));
    const uint32_t first = std::max(next, source.first_block);
    if (first >= end) continue;
    next = end;
    r->arrivals.expect(first, end);
    wire::Source run = source;
    run.first_block = first, run.block_count = end - first;
    add(r, std::move(run), hashes.subspan(first, end - first), now, out);
  }
}

void HolderReads::add(const RequestPtr& r, wire::Source source, std::span<const BlockHash> hashes, TimePoint now,
                      Actions& out) {
  MC_ASSERT_EQ(source.block_count, hashes.size());
  Part part{.request = r, .source = std::move(source), .hashes = {hashes.begin(), hashes.end()}};
  const auto [at, fresh] = parts_.emplace(numbers_.next(), std::move(part));
  MC_ASSERT(fresh);
  ++r->from_holders.parts;
  if (!at->second.source.after_prefix) ask(at->first, at->second, now, out);
}

void HolderReads::ask(uint64_t lease, Part& part, TimePoint now, Actions& out) {
  MC_ASSERT(part.state == State::waiting && part.read == 0);
  if (!peers_.has(part.source.node, part.source.instance)) {  // the part ends at the next tick
    part.why = wire::Fallback::peer_lost;
    part.until = now;
    return;
  }
  FromHolders& all = part.request->from_holders;
  all.began = std::min(all.began, now);
  wire::LeaseRequest request;
  request.lease = lease;
  request.ns = part.request->spec.ns;
  request.hashes = part.hashes;
  request.ttl_ms = static_cast<uint32_t>(timeout_ * 2 / 1ms);
  part.state = State::asked;
  part.asked_at = now;
  part.why = wire::Fallback::lease_timeout;
  part.until = now + timeout_;
  out.push_back(Send{part.source.node, part.source.instance, std::move(request)});
}

void HolderReads::begin_waiting(const DecodeRequest& r, TimePoint now, Actions& out) {
  if (r.from_holders.parts == 0) return;
  for (auto& [lease, part] : parts_)
    if (part.request.get() == &r && part.state == State::waiting) ask(lease, part, now, out);
}

void HolderReads::give_up_unread(const DecodeRequest& r, Actions& out) {
  if (r.from_holders.parts == 0) return;
  for (auto at = parts_.begin(); at != parts_.end();) {
    const bool is_unread = at->second.state == State::waiting || at->second.state == State::asked;
    if (at->second.request.get() == &r && is_unread)
      at = give_up(at, wire::Fallback::lease_timeout, out);
    else
      ++at;
  }
}

void HolderReads::end(const DecodeRequest& r, Actions& out) {
  MC_ASSERT(r.phase == DecodeRequest::Phase::ended);
  give_up_unread(r, out);
  if (r.from_holders.parts == 0) return;
  for (auto& [lease, part] : parts_)
    if (part.request.get() == &r && part.state == State::reading) cancel(part, wire::Fallback::transfer, out);
}

bool HolderReads::on_grant(const Received& event, const wire::LeaseGrant& grant, TimePoint now, Actions& out) {
  const auto at = parts_.find(grant.lease);
  if (at == parts_.end()) return false;
  Part& part = at->second;
  if (part.state != State::asked || part.source.instance != event.instance) return true;
  part.term = LeaseTerm::of(grant, part.asked_at, now);
  if (grant.blocks.empty()) {
    give_up(at, grant.reason == wire::Fallback::none ? wire::Fallback::absent : grant.reason, out);
  } else if (!is_as_asked(grant, part.hashes, layout_.layers)) {
    give_up(at, wire::Fallback::bad_grant, out);
  } else if (part.term.end() <= now) {
    give_up(at, wire::Fallback::lease_timeout, out);
  } else {
    if (grant.blocks.size() < part.hashes.size()) split(part, grant, now, out);
    part.grant = grant;
    if (!read(part, now, out)) give_up(at, wire::Fallback::peer_lost, out);
  }
  return true;
}

/// Shortens a part to the blocks that were granted. The holder is asked again for the others, unless it lacks them: one
/// grant has a limit of blocks.
void HolderReads::split(Part& part, const wire::LeaseGrant& grant, TimePoint now, Actions& out) {
  const auto got = static_cast<uint32_t>(grant.blocks.size());
  MC_ASSERT(got > 0 && got < part.source.block_count);
  wire::Source rest = part.source;
  rest.first_block += got, rest.block_count -= got;
  rest.after_prefix = false;
  const std::vector<BlockHash> hashes(part.hashes.begin() + got, part.hashes.end());
  part.source.block_count = got;
  part.hashes.resize(got);
  if (grant.reason == wire::Fallback::none) return add(part.request, std::move(rest), hashes, now, out);
  ++part.request->from_holders.parts;  // the rest is a part that ends at once
  note_end({.request = part.request, .source = std::move(rest)}, {}, grant.reason);
}

/// False: a member of the holder's pipeline is missing, and nothing is read.
bool HolderReads::read(Part& part, TimePoint now, Actions& out) {
  const DecodeRequest& r = *part.request;
  MC_ASSERT_LE(part.end(), r.pages.size());
  BlockRead read{.read = numbers_.next(), .node = part.source.node, .instance = part.source.instance};
  read.parts = part.grant.parts;
  read.blocks = part.grant.blocks;
  read.pages = r.pages.all().subspan(part.source.first_block, part.source.block_count);
  const TimePoint limit = std::min(now + timeout_, r.deadline);
  read.budget = limit - now;
  const uint64_t bytes = part.grant.blocks.size() * layout_.layers * layout_.layer_bytes();
  read.urgent = bytes <= kUrgentBytes;
  if (!reads_.start(read, layout_, now, out)) return false;
  part.read = read.read;
  part.read_at = now;
  part.state = State::reading;
  part.term.read_until(limit);
  part.until = part.term.give_up_at();
  part.why = wire::Fallback::none;
  by_read_[part.read] = part.grant.lease;
  ++part.request->from_holders.reading;
  return true;
}

bool HolderReads::on_read(const ReadDone& done, TimePoint now, Actions& out) {
  const auto read = by_read_.find(done.read);
  if (read == by_read_.end()) return false;
  const auto at = parts_.find(read->second);
  MC_ASSERT(at != parts_.end() && at->second.read == done.read);
  Part& part = at->second;
  FromHolders& all = part.request->from_holders;
  MC_ASSERT(all.reading > 0);
  --all.reading;
  std::vector<wire::LeasedBlock> blocks;
  wire::Fallback why = part.why;
  if (part.state == State::reading) {  // otherwise the holder may have put other blocks into the pages meanwhile
    out.push_back(Send{part.source.node, part.source.instance, wire::LeaseRelease{at->first}});
    if (done.code == Code::ok && part.term.is_over(now)) {
      why = wire::Fallback::read_timeout;
    } else if (done.code == Code::ok) {
      all.ended = std::max(all.ended, now);
      const uint32_t tokens = part.source.block_count * layout_.block_tokens;
      if (all.reads.size() < wire::kEndedReadsMax)
        all.reads.push_back({part.source.node, tokens, to_ms(now - part.read_at)});
      blocks = std::move(part.grant.blocks);
    } else {
      why = fallback_of(done);
    }
    if (done.code == Code::corrupt) ++stats_.checksum_failures;
  }
  note_end(part, std::move(blocks), why);
  by_read_.erase(read);
  parts_.erase(at);
  return true;
}

bool HolderReads::on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now) {
  const auto at = parts_.find(answer.lease);
  if (at == parts_.end()) return false;
  Part& part = at->second;
  if (part.state != State::reading || part.source.instance != event.instance) return true;
  part.term.renewed(answer, now);
  part.until = part.term.give_up_at();  // at once when the lease has ended
  return true;
}

HolderReads::Parts::iterator HolderReads::give_up(Parts::iterator at, wire::Fallback why, Actions& out) {
  const Part& part = at->second;
  MC_ASSERT(part.read == 0 && why != wire::Fallback::none);
  if (part.state == State::asked)
    out.push_back(Send{part.source.node, part.source.instance, wire::LeaseRelease{at->first}});
  note_end(part, {}, why);
  return parts_.erase(at);
}

void HolderReads::cancel(Part& part, wire::Fallback why, Actions& out) {
  MC_ASSERT(part.state == State::reading);
  reads_.cancel(part.read, out);
  out.push_back(Send{part.source.node, part.source.instance, wire::LeaseRelease{part.grant.lease}});
  part.state = State::leaving;
  part.term = {};
  part.until = kNever;
  part.why = why;
}

void HolderReads::note_end(const Part& part, std::vector<wire::LeasedBlock> blocks, wire::Fallback why) {
  FromHolders& all = part.request->from_holders;
  MC_ASSERT(all.parts > 0);
  --all.parts;
  if (why != wire::Fallback::none) {
    stats_.failures += part.request->phase != DecodeRequest::Phase::ended;
    all.fallback = why;
  } else {
    MC_ASSERT_EQ(blocks.size(), part.source.block_count);
    stats_.blocks += blocks.size();
    all.blocks += static_cast<uint32_t>(blocks.size());
    add_tokens(all.tokens, part.source.node, blocks.size() * layout_.block_tokens);
  }
  // When the request has ended, its pages wait for the end of a part only if the part was being read.
  if (part.request->phase != DecodeRequest::Phase::ended || part.read != 0)
    ended_.push_back({part.request, part.source.first_block, part.end(), std::move(blocks)});
}

void HolderReads::on_tick(TimePoint now, Actions& out) {
  for (auto at = parts_.begin(); at != parts_.end();) {
    Part& part = at->second;
    if (auto renewal = part.term.renew(at->first, now))
      out.push_back(Send{part.source.node, part.source.instance, *renewal});
    if (now < part.until) {
      ++at;
    } else if (part.state == State::reading) {
      cancel(part, wire::Fallback::read_timeout, out);
      ++at;
    } else {
      at = give_up(at, part.why, out);
    }
  }
}

void HolderReads::on_peer_gone(const InstanceId& instance, TimePoint, Actions& out) {
  for (auto at = parts_.begin(); at != parts_.end();) {
    Part& part = at->second;
    const bool is_gone = part.source.instance == instance && part.state != State::leaving;
    if (is_gone && part.state == State::reading) cancel(part, wire::Fallback::peer_lost, out);
    if (is_gone && part.state != State::leaving)
      at = give_up(at, wire::Fallback::peer_lost, out);
    else
      ++at;
  }
}

TimePoint HolderReads::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [lease, part] : parts_) at = std::min({at, part.until, part.term.next_renewal()});
  return at;
}

void HolderReads::check() const {
  size_t reads = 0;
  for (const auto& [lease, part] : parts_) {
    const bool is_read = part.state == State::reading || part.state == State::leaving;
    MC_ASSERT_EQ(part.read != 0, is_read);
    MC_ASSERT_EQ(part.hashes.size(), part.source.block_count);
    MC_ASSERT(part.request->from_holders.parts > 0);
    reads += is_read;
  }
  MC_ASSERT_EQ(reads, by_read_.size());
}

}  // namespace mc::node

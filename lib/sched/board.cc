#include "sched/board.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sched {
namespace {

constexpr double kDiskBlockMax = 60;      // seconds; a disk may report anything
constexpr double kDeviceBlockMax = 1;     // seconds; likewise, of a copy to a device
constexpr Duration kTransferAgeMax = 1s;  // learnt rates fade slowly, so views may be so old

/// The rate of reads into a node from nodes that it has not read from; 0 = nothing is learnt of any.
double learnt_rate(const TransferCosts& transfers, uint32_t reader, TimePoint now) {
  return transfers.empty() ? 0 : 1 / transfers.s_per_byte(reader, now);
}

}  // namespace

Board::Node& Board::at(int slot) {
  MC_ASSERT(slot >= 0 && static_cast<size_t>(slot) < nodes_.size());
  MC_ASSERT(nodes_[static_cast<size_t>(slot)].here);
  return nodes_[static_cast<size_t>(slot)];
}

// ---- members ---------------------------------------------------------------------------------

void Board::set_members(std::span<const BoardMember> members, uint32_t block_tokens, uint64_t block_bytes) {
  std::vector<Node> nodes;
  std::vector<NodeCosts::Member> costs;
  Snapshot s;
  s.block_tokens = block_tokens, s.block_bytes = block_bytes;
  s.lengths = &lengths_;
  slots_.clear(), holders_.clear(), prefills_.clear(), decodes_.clear(), inlines_.clear();
  ready_prefills_ = ready_decodes_ = 0;
  for (const BoardMember& member : members) {
    if (nodes.size() <= member.slot) nodes.resize(member.slot + size_t{1});
    Node& node = nodes[member.slot];
    MC_ASSERT(!node.here);
    if (member.slot < nodes_.size() && nodes_[member.slot].here) {
      node = std::move(nodes_[member.slot]);
      nodes_[member.slot].here = false;
    } else {
      node.since = member.since;
    }
    node.here = true;
    node.name = member.name, node.model = member.model;
    node.draining = member.draining, node.readable = member.readable;
    node.holder = static_cast<int>(s.holders.size());
    node.prefill = node.decode = -1;
    s.add_holder(member.name, {.slot = member.slot});
    slots_.emplace(member.name, member.slot);
    holders_.push_back(member.slot);
    if (member.prefill) {
      node.prefill = static_cast<int>(s.prefill.size());
      PrefillView view;
      view.name = member.name, view.holder = node.holder;
      s.prefill.push_back(std::move(view));
      s.devices.emplace_back();
      prefills_.push_back({member.slot, !member.draining, node.since, kIdle});
      ready_prefills_ += !member.draining;
    }
    if (member.decode) {
      node.decode = static_cast<int>(s.decode.size());
      DecodeView view;
      view.name = member.name, view.capacity_tokens = member.capacity_tokens;
      view.holder = node.holder;
      s.decode.push_back(std::move(view));
      decodes_.push_back({member.slot, !member.draining});
      ready_decodes_ += !member.draining;
      if (member.inline_tokens > 0) inlines_.push_back({member.slot, member.inline_tokens});
    }
    const bool computes_prompts = member.prefill || member.inline_tokens > 0;
    costs.push_back({member.slot, computes_prompts, member.decode, member.readable, member.announced, member.model});
  }
  for (const Node& gone : nodes_) MC_ASSERT(!gone.here || (gone.unfinished == 0 && gone.rows == 0));
  MC_ASSERT_EQ(slots_.size(), holders_.size());
  MC_ASSERT_LE(ready_prefills_, prefills_.size());
  MC_ASSERT_LE(ready_decodes_, decodes_.size());
  nodes_ = std::move(nodes);
  snapshot_ = std::move(s);
  matches_.clear();
  decode_restricted_ = false;
  costs_.set_members(costs);
  std::vector<TransferCosts::Member> readers;
  for (const uint32_t slot : holders_) {
    const double rate = costs_.cost(static_cast<int>(slot)).read_bytes_per_s;
    readers.push_back({slot, nodes_[slot].readable, 1 / std::max(rate, 1.0)});
  }
  transfers_.set_members(readers);
  for (const uint32_t slot : holders_) {
    nodes_[slot].read_bytes_per_s = learnt_rate(transfers_, slot, transfers_at_);
    show(nodes_[slot]), show_costs(static_cast<int>(slot));
  }
}

int Board::find(const NodeId& name) const {
  const auto known = slots_.find(name);
  return known == slots_.end() ? -1 : static_cast<int>(known->second);
}

// ---- costs -----------------------------------------------------------------------------------

// Writes the present load of a node into the snapshot. Tokens change the load thousands of times a second.
void Board::show(const Node& node) {
  MC_ASSERT_LE(node.arrived_rows, node.rows);
  MC_ASSERT_LE(node.arrived_tokens, node.kv_tokens);
  snapshot_.holders[static_cast<size_t>(node.holder)].transfers_leaving = node.transfers;
  if (node.prefill >= 0) {
    snapshot_.prefill[static_cast<size_t>(node.prefill)].unfinished = node.prefill_load();
    prefills_[static_cast<size_t>(node.prefill)].busy_until = node.busy_until;
  }
  if (node.decode >= 0) {
    DecodeView& view = snapshot_.decode[static_cast<size_t>(node.decode)];
    view.rows = node.rows, view.kv_tokens = node.kv_tokens;
    view.arrived_rows = node.arrived_rows, view.arrived_kv_tokens = node.arrived_tokens;
    if (!decode_restricted_) view.accepting = decodes_[static_cast<size_t>(node.decode)].ready;
  }
}

void Board::show_costs(int slot) {
  const Node& node = at(slot);
  Cost cost = costs_.cost(slot);
  if (node.read_bytes_per_s > 0) cost.read_bytes_per_s = node.read_bytes_per_s;
  if (node.prefill >= 0) {
    PrefillView& view = snapshot_.prefill[static_cast<size_t>(node.prefill)];
    view.cost = cost, view.measured = costs_.has_prefilled(slot);
    view.has_device = node.block_s.device > 0;
    snapshot_.devices[static_cast<size_t>(node.prefill)].block_s = node.block_s.device;
  }
  if (node.decode >= 0) {
    DecodeView& view = snapshot_.decode[static_cast<size_t>(node.decode)];
    view.cost = cost, view.measured = costs_.has_stepped(slot);
  }
}

void Board::prefilled(int slot, double tokens, double reused, double seconds) {
  costs_.prefilled(slot, tokens, reused, seconds);
  show_costs(slot);
}

void Board::stepped(int slot, double rows, double kv_tokens, double seconds) {
  costs_.stepped(slot, rows, kv_tokens, seconds);
  show_costs(slot);
}

void Board::read(int source, int reader, double bytes, double seconds, TimePoint now) {
  const uint32_t leaving = std::max(at(source).transfers, 1u) - 1;  // one of them is this read
  transfers_.add(static_cast<uint32_t>(source), static_cast<uint32_t>(reader), {bytes, seconds, leaving}, now);
  at(reader).read_bytes_per_s = learnt_rate(transfers_, static_cast<uint32_t>(reader), now);
  show_costs(reader);
}

void Board::loads(int slot, BlockSeconds block) {
  Node& node = at(slot);
  if (!(block.disk >= 0) || !(block.device >= 0)) return;
  node.block_s = {std::min(block.disk, kDiskBlockMax), std::min(block.device, kDeviceBlockMax)};
  snapshot_.holders[static_cast<size_t>(node.holder)].disk_block_s = node.block_s.disk;
  if (node.prefill < 0) return;
  PrefillView& view = snapshot_.prefill[static_cast<size_t>(node.prefill)];
  view.load_s = disk_blocks_of(snapshot_, view) * node.block_s.disk;
  show_costs(slot);
}

void Board::answered(uint32_t tokens, double seconds) {
  lengths_.observe(tokens);
  if (tokens > 1) lengths_.observe_seconds(seconds);
}

// ---- books -----------------------------------------------------------------------------------

void Board::place(Booking& booking, TimePoint now) {
  MC_ASSERT(!booking.placed && !booking.queued && !booking.arrived);
  MC_ASSERT(booking.prefill >= 0 && booking.decode >= 0 && booking.prefill_s >= 0);
  booking.placed = booking.queued = true;
  Node& prefill = at(booking.prefill);
  MC_ASSERT(prefill.prefill >= 0 || booking.prefill == booking.decode);
  ++prefill.unfinished;
  prefill.queued_s += booking.prefill_s;
  prefill.busy_until = after(std::max(prefill.busy_until, now), from_seconds(booking.prefill_s));
  booking.ends = prefill.busy_until;
  Node& decode = at(booking.decode);
  MC_ASSERT(decode.decode >= 0);
  ++decode.rows;
  decode.kv_tokens += booking.tokens;
  for (const int source : booking.sources) begin_transfer(source);
  show(prefill), show(decode);
}

void Board::end_prefill(Booking& booking, TimePoint now, bool finished) {
  MC_ASSERT(booking.placed || (!booking.queued && booking.sources.empty()));
  for (const int source : booking.sources) end_transfer(source);
  booking.sources.clear();
  if (!booking.queued) return;
  booking.queued = false;
  Node& node = at(booking.prefill);
  MC_ASSERT(node.unfinished > 0);
  --node.unfinished;
  ++node.ended_prefills;
  node.queued_s = node.unfinished == 0 ? 0 : std::max(0.0, node.queued_s - booking.prefill_s);
  if (node.unfinished == 0) {
    node.busy_until = kIdle;
  } else if (finished) {  // the next prefill begins now
    node.busy_until = after(now, from_seconds(node.queued_s));
  } else {  // only the part of the queue that was predicted for this request is free again
    const Duration rest = std::clamp(booking.ends - now, Duration(0), from_seconds(booking.prefill_s));
    node.busy_until = std::max(now, node.busy_until - rest);
  }
  show(node);
}

void Board::arrive(Booking& booking) {
  MC_ASSERT(booking.placed && !booking.arrived);
  booking.arrived = true;
  Node& node = at(booking.decode);
  ++node.arrived_rows;
  node.arrived_tokens += booking.tokens;
  show(node);
}

void Board::add_tokens(Booking& booking, uint64_t tokens) {
  MC_ASSERT(booking.placed);
  booking.tokens += tokens;
  if (booking.arrived) return grow(booking.decode, tokens);
  Node& node = at(booking.decode);
  node.kv_tokens += tokens;
  show(node);
}

void Board::grow(int slot, uint64_t tokens) {
  Node& node = at(slot);
  MC_ASSERT(tokens == 0 || node.arrived_rows > 0);
  node.kv_tokens += tokens;
  node.arrived_tokens += tokens;
  show(node);
}

void Board::end(Booking& booking, TimePoint now, uint64_t grown) {
  if (!booking.placed) return;
  MC_ASSERT(grown == 0 || booking.arrived);
  end_prefill(booking, now, false);
  booking.tokens += grown;
  Node& node = at(booking.decode);
  MC_ASSERT(node.rows > 0 && node.kv_tokens >= booking.tokens);
  --node.rows;
  node.kv_tokens -= booking.tokens;
  if (booking.arrived) {
    MC_ASSERT(node.arrived_rows > 0 && node.arrived_tokens >= booking.tokens);
    --node.arrived_rows;
    node.arrived_tokens -= booking.tokens;
  }
  booking = {};
  show(node);
}

void Board::begin_transfer(int slot) {
  ++at(slot).transfers;
  show(at(slot));
}

void Board::end_transfer(int slot) {
  MC_ASSERT(at(slot).transfers > 0);
  --at(slot).transfers;
  show(at(slot));
}

// ---- looking ---------------------------------------------------------------------------------

Snapshot& Board::look(const Ask& ask, TimePoint now) {
  for (const uint32_t slot : costs_.refresh()) show_costs(static_cast<int>(slot));
  Snapshot& s = snapshot_;
  s.now = now;
  s.transfers = transfers_.empty() ? nullptr : &transfers_;
  if (!transfers_.empty() && now >= after(transfers_at_, kTransferAgeMax)) {
    for (const uint32_t slot : holders_) {
      nodes_[slot].read_bytes_per_s = learnt_rate(transfers_, slot, now);
      show_costs(static_cast<int>(slot));
    }
    transfers_at_ = now;
  }
  MC_ASSERT_EQ(s.prefill.size(), prefills_.size());
  MC_ASSERT_EQ(s.decode.size(), decodes_.size());
  s.tokens = ask.tokens;
  s.answer_tokens = ask.answer_tokens;
  for (size_t i = 0; i < s.prefill.size(); ++i) {
    PrefillView& view = s.prefill[i];
    // Branch-free, because a processor cannot predict the comparison.
    view.queue_s = to_seconds(std::max(prefills_[i].busy_until, now) - now);
    view.accepting = prefills_[i].ready;
  }
  if (slow_start_s_ > 0)
    for (size_t i = 0; i < s.prefill.size(); ++i) s.prefill[i].up_s = to_seconds(now - prefills_[i].since);
  look_at_blocks(ask);
  restrict_nodes(ask);
  set_bars(ask, now);
  s.inlines.clear();
  for (const InlinePlace& place : inlines_) {
    const Node& node = nodes_[place.slot];
    const HolderView& here = s.holders[static_cast<size_t>(node.holder)];
    s.inlines.push_back({static_cast<uint32_t>(node.decode), place.tokens_max,
                         here.readable_blocks - std::min(here.readable_blocks, here.disk_blocks),
                         to_seconds(std::max(node.busy_until, now) - now),
                         costs_.has_prefilled(static_cast<int>(place.slot))});
  }
  if (ask.queue_max_s)
    for (PrefillView& view : s.prefill) view.accepting &= view.queue_s <= *ask.queue_max_s;
  return s;
}

// Writes the matches of this prompt into the snapshot where they differ from those of the request before.
void Board::look_at_blocks(const Ask& ask) {
  Snapshot& s = snapshot_;
  kv::for_each_change(matches_, ask.matches, [&](const kv::NodeMatch& m) {
    MC_ASSERT(m.node < nodes_.size() && nodes_[m.node].here);
    MC_ASSERT_LE(m.resident, m.expected);
    const Node& node = nodes_[m.node];
    HolderView& holder = s.holders[static_cast<size_t>(node.holder)];
    const bool prefill = node.prefill >= 0;
    holder.readable_blocks = node.readable ? m.resident : 0;
    holder.pending_blocks = node.readable ? (prefill ? m.expected : m.resident) : 0;
    holder.pending_s = 0;
    holder.disk_blocks = m.on_disk, holder.disk_block_s = node.block_s.disk;
    if (!prefill) return;
    PrefillView& view = s.prefill[static_cast<size_t>(node.prefill)];
    view.resident_blocks = m.expected;
    view.load_s = m.on_disk * node.block_s.disk;
    s.devices[static_cast<size_t>(node.prefill)].blocks = m.on_device;
    if (m.expected > m.resident) holder.pending_s = view.queue_s;
  });
  matches_.assign(ask.matches.begin(), ask.matches.end());
  s.later_runs.clear();
  for (const kv::NodeRun& run : ask.runs) {
    MC_ASSERT(run.node < nodes_.size() && nodes_[run.node].here);
    if (nodes_[run.node].readable) s.later_runs.push_back({nodes_[run.node].holder, run.first, run.end, run.on_disk});
  }
}

// Restricts the nodes for this request by its pins, its model, and the node that failed last.
void Board::restrict_nodes(const Ask& ask) {
  Snapshot& s = snapshot_;
  if (decode_restricted_)
    for (size_t i = 0; i < s.decode.size(); ++i) s.decode[i].accepting = decodes_[i].ready;
  decode_restricted_ = false;
  const auto only = [](auto& views, const NodeId& name) {
    for (auto& view : views) view.accepting = view.accepting && view.name == name;
  };
  if (ask.prefill && !ask.prefill->empty()) only(s.prefill, *ask.prefill);
  if (ask.decode && !ask.decode->empty()) only(s.decode, *ask.decode), decode_restricted_ = true;
  if (ask.avoid >= 0) {
    const Node& avoid = at(ask.avoid);
    if (avoid.prefill >= 0 && ready_prefills_ > (avoid.draining ? 0u : 1u))
      s.prefill[static_cast<size_t>(avoid.prefill)].accepting = false;
    if (avoid.decode >= 0 && ready_decodes_ > (avoid.draining ? 0u : 1u))
      s.decode[static_cast<size_t>(avoid.decode)].accepting = false, decode_restricted_ = true;
  }
  if (!ask.model || ask.model->empty()) return;
  for (size_t i = 0; i < s.prefill.size(); ++i) s.prefill[i].accepting &= nodes_[prefills_[i].slot].model == *ask.model;
  for (size_t i = 0; i < s.decode.size(); ++i) s.decode[i].accepting &= nodes_[decodes_[i].slot].model == *ask.model;
  decode_restricted_ = true;
}

// Bars the pairs that fail requests. When no other pair is left, the least bad one is allowed.
void Board::set_bars(const Ask& ask, TimePoint now) {
  Snapshot& s = snapshot_;
  s.bars.clear();
  if ((!ask.breakers || ask.breakers->empty()) && ask.failed_on.empty()) return;
  const auto bar = [&](const Part& part, double left_s) {
    const Bar out{prefill_at(find(part.prefill)), decode_at(find(part.decode)), left_s};
    if ((out.prefill >= 0 || part.prefill.empty()) && (out.decode >= 0 || part.decode.empty())) s.bars.push_back(out);
  };
  if (ask.breakers)
    for (const auto& [part, entry] : ask.breakers->entries())
      if (Breakers::is_shut(entry)) bar(part, std::max(0.0, to_seconds(entry.until - now)));
  for (const Part& part : ask.failed_on) bar(part, 0);
  lift_least_bad(s);
}

bool Board::any_idle(Duration queue_max, TimePoint now) const {
  return std::any_of(prefills_.begin(), prefills_.end(),
                     [&](const PrefillPlace& p) { return p.ready && p.busy_until <= now + queue_max; });
}

double Board::queue_s(int slot, TimePoint now) const {
  return to_seconds(std::max(at(slot).busy_until, now) - now);
}

Board::Queues Board::queues(const std::string& model, TimePoint now) const {
  Queues out;
  for (const PrefillPlace& p : prefills_) {
    const Node& node = nodes_[p.slot];
    if (!p.ready || (!model.empty() && node.model != model)) continue;
    ++out.nodes;
    out.least_s = std::min(out.least_s, to_seconds(std::max(p.busy_until, now) - now));
  }
  return out;
}

TimePoint Board::next_idle(Duration queue_max, TimePoint now) const {
  TimePoint next = kNever;
  for (const PrefillPlace& p : prefills_) {
    if (p.busy_until == kIdle) continue;
    const TimePoint idle_at = p.busy_until - queue_max;
    if (idle_at > now) next = std::min(next, idle_at + 1us);
  }
  return next;
}

void Board::check(std::span<const Booking* const> bookings, std::span<const int> transfers) const {
  transfers_.check();
  struct Sum {
    uint32_t unfinished = 0, rows = 0, arrived_rows = 0, transfers = 0;
    uint64_t tokens = 0, arrived_tokens = 0;
    double queued_s = 0;
  };
  std::vector<Sum> sums(nodes_.size());
  for (const Booking* b : bookings) {
    MC_ASSERT(b->placed || (!b->queued && !b->arrived && b->sources.empty()));
    for (const int source : b->sources) ++sums.at(static_cast<size_t>(source)).transfers;
    if (!b->placed) continue;
    if (b->queued) {
      Sum& prefill = sums.at(static_cast<size_t>(b->prefill));
      ++prefill.unfinished;
      prefill.queued_s += b->prefill_s;
    }
    Sum& decode = sums.at(static_cast<size_t>(b->decode));
    ++decode.rows;
    decode.tokens += b->tokens;
    if (b->arrived) ++decode.arrived_rows, decode.arrived_tokens += b->tokens;
  }
  for (const int slot : transfers) ++sums.at(static_cast<size_t>(slot)).transfers;
  for (size_t slot = 0; slot < nodes_.size(); ++slot) {
    const Node& node = nodes_[slot];
    if (!node.here) continue;
    const Sum& sum = sums[slot];
    MC_ASSERT_EQ(sum.unfinished, node.unfinished);
    MC_ASSERT(std::abs(sum.queued_s - node.queued_s) <= 1e-6 * (1 + sum.queued_s));
    MC_ASSERT_EQ(sum.transfers, node.transfers);
    MC_ASSERT_EQ(sum.rows, node.rows);
    MC_ASSERT_EQ(sum.tokens, node.kv_tokens);
    MC_ASSERT_EQ(sum.arrived_rows, node.arrived_rows);
    MC_ASSERT_EQ(sum.arrived_tokens, node.arrived_tokens);
    MC_ASSERT_EQ(snapshot_.holders[static_cast<size_t>(node.holder)].transfers_leaving, node.transfers);
    if (node.prefill >= 0) {
      const size_t i = static_cast<size_t>(node.prefill);
      MC_ASSERT_EQ(snapshot_.prefill[i].unfinished, node.prefill_load());
      MC_ASSERT(prefills_[i].busy_until == node.busy_until && prefills_[i].slot == slot);
    }
    if (node.decode >= 0) {
      const DecodeView& view = snapshot_.decode[static_cast<size_t>(node.decode)];
      MC_ASSERT_EQ(view.rows, node.rows);
      MC_ASSERT_EQ(view.kv_tokens, node.kv_tokens);
      MC_ASSERT_EQ(view.arrived_rows, node.arrived_rows);
      MC_ASSERT_EQ(view.arrived_kv_tokens, node.arrived_tokens);
    }
  }
}

}  // namespace mc::sched

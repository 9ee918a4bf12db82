#include "sim/router.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/assert.h"
#include "kv/kv.h"

namespace mc::sim {
namespace {

sched::LineOptions line_options(const ClusterOptions& options) {
  using Hold = sched::LineOptions::Hold;
  sched::LineOptions out;
  out.hold = options.hold ? Hold::on : Hold::automatic;
  out.lead = from_seconds(options.hold_lead_s);
  if (options.hold_order == HoldOrder::work) out.fair.stretch = sched::kWorkStretch;
  return out;
}

RequestId id_of(uint32_t r) {
  return std::to_string(r);
}

uint32_t request_of(const RequestId& id) {
  uint32_t out = 0;
  std::from_chars(id.data(), id.data() + id.size(), out);
  return out;
}

/// The hash of a TraceBlocks number, which stands for its whole prefix.
BlockHash hash_of(uint32_t block) {
  BlockHash out;
  std::memcpy(out.bytes.data(), &block, sizeof block);
  return out;
}

}  // namespace

Router::Router(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks, const ClusterOptions& options,
               TieredCaches& caches, uint32_t nodes, FillInflight inflight)
    : trace_(trace),
      blocks_(blocks),
      options_(options),
      caches_(caches),
      nodes_(options, nodes),
      fill_inflight_(std::move(inflight)),
      board_(options.sched.slow_start_s),
      line_(line_options(options)),
      copies_(options.replicate),
      rng_(options.seed),
      requests_(trace.size()),
      found_(nodes) {
  line_.tenants().set_tenants(options.tenants);
  for (uint32_t r = 0; r < trace.size(); ++r) requests_[r].tenant = line_.tenants().find(trace[r].tenant);
  show_members(TimePoint{});
}

// ---- members ---------------------------------------------------------------------------------

void Router::show_members(TimePoint now) {
  const uint64_t block_bytes = kTraceBlockTokens * options_.profile->kv_bytes_per_token;
  const std::vector<sched::BoardMember> members = nodes_.members();
  board_.set_members(members, kTraceBlockTokens, block_bytes);
  if (caches_.has_ssd())
    for (const sched::BoardMember& member : members)
      if (member.prefill)
        board_.loads(static_cast<int>(member.slot),
                     {.disk = options_.profile->paths.ssd_read.seconds(static_cast<double>(block_bytes))});
  inflight_at_.reset();
  line_.room_changed();
  bound_held(now);
}

void Router::set_prefill_up(uint32_t node, bool up, double now_s) {
  if (!nodes_.set_up(node, up, now_s)) return;
  const TimePoint now = time_of(now_s);
  if (!up) {
    for (Request& r : requests_) sched::Board::forget_source(r.booking, static_cast<int>(node));
    copies_.end_of(node, board_, now);
  }
  show_members(now);
}

void Router::set_decode_up(uint32_t decode, bool up, double now_s) {
  if (nodes_.set_decode_up(decode, up)) show_members(time_of(now_s));
}

// A held request that has no node left waits for one, at most for Waits::kParkMax.
void Router::bound_held(TimePoint now) {
  const bool has_nodes = nodes_.serves();
  for (const uint32_t r : waits_.held()) {
    line_.set_has_nodes(id_of(r), has_nodes);
    has_nodes ? waits_.unpark(r) : waits_.park(r, now);
  }
  waits_.recall();
}

// ---- looking ---------------------------------------------------------------------------------

/// The blocks at the front of its prompt that it may take from caches. The trace names a last block that is not full,
/// too. Caches keep full blocks alone, also when the answer so far has filled that block.
std::span<const uint32_t> Router::blocks_of(uint32_t r) const {
  const std::span<const uint32_t> all = blocks_.of(r);
  const uint64_t reusable = kv::reusable_blocks(requests_[r].tokens, static_cast<uint32_t>(kTraceBlockTokens));
  return all.first(std::min<size_t>(all.size(), std::min(reusable, trace_[r].input_tokens / kTraceBlockTokens)));
}

sched::Snapshot& Router::look(uint32_t r, TimePoint now, bool idle_only) {
  const std::span<const uint32_t> blocks = blocks_of(r);
  caches_.match(blocks, found_);
  matches_.clear();
  for (uint32_t i = 0; i < nodes_.count(); ++i)
    if (found_.resident[i] > 0)
      matches_.push_back({.node = static_cast<kv::NodeOrdinal>(i),
                          .resident = found_.readable[i],
                          .expected = found_.resident[i],
                          .on_disk = found_.on_ssd[i]});
  sched::Board::Ask ask;
  ask.tokens = static_cast<uint32_t>(requests_[r].tokens);
  sched::find_runs(caches_, blocks, matches_, runs_);
  ask.matches = matches_, ask.runs = runs_;  // the length of the answer is unknown
  if (idle_only) ask.queue_max_s = options_.hold_lead_s;
  sched::Snapshot& snapshot = board_.look(ask, now);
  add_inflight(snapshot, now);
  return snapshot;
}

// Lists every request on its way to a decode node, or there. At one time only a placement changes the list.
void Router::add_inflight(sched::Snapshot& snapshot, TimePoint now) {
  if (!options_.sched.admission->looks_ahead || inflight_at_ == now) return;
  inflight_at_ = now;
  snapshot.inflight.clear();
  fill_inflight_(snapshot.inflight);
  for (sched::Inflight& one : snapshot.inflight)
    one.decode = static_cast<uint32_t>(board_.decode_at(nodes_.slot_of_decode(one.decode)));
}

sched::Options Router::options_for(uint32_t r) const {
  static const sched::Admission* const everybody = sched::find_admission("none");
  sched::Options out = options_.sched;
  if (r == options_.force) out.admission = everybody;
  if (!requests_[r].dispatched) return out;
  out.ttft_slo_s = 0;  // it was admitted once
  if (requests_[r].made > 0) out.tbt_slo_s = 0;
  return out;
}

double Router::queue_s(uint32_t node, double now_s) const {
  return nodes_.is_up(node) ? board_.queue_s(static_cast<int>(node), time_of(now_s)) : 0;
}

// ---- requests --------------------------------------------------------------------------------

Answer Router::submit(uint32_t r, double now_s) {
  const TimePoint now = time_of(now_s);
  Request& request = requests_[r];
  request.arrived = now;
  request.tokens = trace_[r].input_tokens;
  if (r != options_.force) {
    if (line_.admit(request.tenant, trace_[r].priority, static_cast<double>(request.tokens), now))
      return {.what = Answer::What::rejected, .fate = Fate::rejected_quota};
    request.admitted = true;
  }
  return line_.holds() ? hold(r, now) : place(r, now, false);
}

Answer Router::retry(uint32_t r, uint64_t tokens, uint64_t made, double now_s) {
  MC_ASSERT(!requests_[r].booking.placed && requests_[r].dispatched);
  requests_[r].tokens = tokens, requests_[r].made = made;
  return place(r, time_of(now_s), false);
}

sched::HeldRequest Router::held_request(uint32_t r) const {
  const Request& request = requests_[r];
  sched::HeldRequest out;
  out.id = id_of(r);
  out.tenant = request.tenant, out.priority = trace_[r].priority;
  out.tokens = static_cast<double>(request.tokens);
  out.work_s = request.work_s;
  out.arrived = request.arrived, out.expires = request.expires;
  return out;
}

// Rejects a request at once when its turn would come too late.
Answer Router::hold(uint32_t r, TimePoint now) {
  static const sched::Admission* const everybody = sched::find_admission("none");
  Request& request = requests_[r];
  sched::Options options = options_for(r);
  const bool bounded = options.ttft_slo_s > 0 && options.admission != everybody;
  options.admission = everybody;
  Rng draw = rng_;
  sched::place(look(r, now, false), *options_.policy, options, draw, placement_);
  if (placement_.candidate < 0) return place(r, now, false);  // rejects it with the reason
  request.work_s = placement_.candidates[static_cast<size_t>(placement_.candidate)].prefill_s;
  if (bounded) {
    const auto queues = board_.queues("", now);
    if (line_.predicted_miss_s(held_request(r), options.ttft_slo_s, queues, now))
      return reject(r, Fate::rejected_prefill, now);
    request.expires = after(request.arrived, from_seconds(std::max(0.0, options.ttft_slo_s - request.work_s) + 1e-3));
  }
  line_.push(held_request(r));
  waits_.hold(r, request.expires);
  return {};
}

void Router::end_wait(uint32_t r) {
  if (waits_.holds(r)) line_.erase(id_of(r));
  waits_.erase(r);
}

Answer Router::reject(uint32_t r, Fate fate, TimePoint now) {
  end_wait(r);
  close(r, true, to_seconds(now - TimePoint{}));
  return {.what = Answer::What::rejected, .fate = fate};
}

void Router::end_due(double now_s, const Answered& answered) {
  const TimePoint now = time_of(now_s);
  if (copies_.size() > 0) copies_.end_late(board_, now);
  while (const auto r = waits_.due(now)) {
    const bool late = waits_.holds(*r) && requests_[*r].expires <= now;
    answered(*r, reject(*r, late ? Fate::rejected_prefill : Fate::rejected_node, now));
  }
}

void Router::end_held(double now_s, const Answered& answered) {
  for (const uint32_t r : waits_.held()) answered(r, reject(r, Fate::rejected_decode, time_of(now_s)));
}

void Router::serve_waiting(double now_s, const Answered& answered) {
  const TimePoint now = time_of(now_s);
  for (const uint32_t r : waits_.take_recalled())
    if (const Answer answer = place(r, now, false); answer.what != Answer::What::waits) answered(r, answer);
  line_.begin_round(board_, now);
  while (const auto id = line_.take_turn(board_, now)) {
    const uint32_t r = request_of(*id);
    const Answer answer = place(r, now, true);
    if (answer.what == Answer::What::waits)
      line_.put_back(*id, board_, now);
    else
      answered(r, answer);
  }
  line_.end_round(board_, now);
}

double Router::next_s() const {
  TimePoint next = line_.next_wakeup();
  next = std::min(next, waits_.next_wakeup());
  if (copies_.size() > 0) next = std::min(next, copies_.next_wakeup());
  return next == kNever ? std::numeric_limits<double>::infinity() : to_seconds(next - TimePoint{});
}

/// `idle_only` leaves out prefill nodes with a queue. A request waits only then, or when it has run before.
Answer Router::place(uint32_t r, TimePoint now, bool idle_only) {
  const sched::Snapshot& snapshot = look(r, now, idle_only);
  sched::Options options = options_for(r);
  const double waited_s = to_seconds(now - requests_[r].arrived);
  if (options.ttft_slo_s > 0) options.ttft_slo_s = std::max(1e-9, options.ttft_slo_s - waited_s);
  sched::place(snapshot, *options_.policy, options, rng_, placement_);
  using Turn = sched::Line::Turn;
  const Turn turn = idle_only ? line_.turn_of(id_of(r), placement_) : Turn::go;
  if (turn == Turn::wait) return {};
  if (turn == Turn::wait_for_nodes) {
    waits_.park(r, now);
    line_.set_has_nodes(id_of(r), false);
    return {};
  }
  Answer out;
  if (placement_.candidate >= 0) {
    const auto& chosen = placement_.candidates[static_cast<size_t>(placement_.candidate)];
    if (idle_only && waits_for_prefix(r, snapshot, chosen, now)) return {};
    out.what = Answer::What::placed;
    out.route = dispatch(r, snapshot, now);
  } else if (placement_.reason != sched::NoPlace::predicted_slo_miss && requests_[r].dispatched) {
    waits_.park(r, now);  // as a conductor does, so that the client keeps the answer so far
    return {};
  } else if (placement_.reason != sched::NoPlace::predicted_slo_miss) {
    out = reject(r, Fate::rejected_node, now);
  } else {
    const bool ttft = placement_.verdict.bound == sched::Bound::ttft;
    out = reject(r, ttft ? Fate::rejected_prefill : Fate::rejected_decode, now);
  }
  out.predicted_ttft_s = placement_.ttft_s + waited_s, out.predicted_tbt_s = placement_.tbt_s;
  return out;
}

// Like a conductor, lets a request wait for a prefix that another node computes while that is worth it (sched/line.h).
bool Router::waits_for_prefix(uint32_t r, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                              TimePoint now) {
  const RequestId id = id_of(r);
  if (const NodeId* name = line_.prefix_node(id, now)) {
    const int slot = board_.find(*name);
    const size_t node = static_cast<size_t>(slot);
    if (slot >= 0 && found_.resident[node] > found_.readable[node]) return line_.keep_waiting(id, board_), true;
  }
  return line_.wait_for_prefix(id, snapshot, chosen, board_, now).has_value();
}

Route Router::dispatch(uint32_t r, const sched::Snapshot& snapshot, TimePoint now) {
  const sched::Candidate& c = placement_.candidates[static_cast<size_t>(placement_.candidate)];
  Request& request = requests_[r];
  end_wait(r);
  held_count_ += !request.dispatched && now > request.arrived;
  Route out;
  out.node = board_.prefill_slot(c.node);
  out.decode =
      nodes_.coupled() ? out.node : nodes_.decode_of_slot(board_.decode_slot(static_cast<size_t>(placement_.decode)));
  out.local_blocks = c.local_blocks;
  out.prefill_s = c.prefill_s, out.ttft_s = placement_.ttft_s;
  sched::Booking& booking = request.booking;
  booking.prefill = static_cast<int>(out.node), booking.decode = nodes_.slot_of_decode(out.decode);
  booking.prefill_s = c.prefill_s;
  booking.tokens = request.tokens;
  if (c.holder >= 0 && c.fetch_blocks > 0) {
    const auto slot_of = [&](int holder) { return static_cast<int>(board_.holder_slot(static_cast<size_t>(holder))); };
    const uint32_t begin = sched::first_fetched(matches_, static_cast<kv::NodeOrdinal>(out.node), c);
    const uint32_t end = c.local_blocks + c.fetch_blocks;
    sched::FetchPlan plan = sched::plan_fetch(snapshot, c, begin);
    for (const int holder : plan.holders()) booking.sources.push_back(slot_of(holder));
    for (std::vector<sched::FetchRun>* runs : {&plan.parts, &plan.spares})
      for (sched::FetchRun& run : *runs) run.holder = slot_of(run.holder);
    out.parts = std::move(plan.parts), out.spares = std::move(plan.spares);
    out.local_blocks = begin, out.fetch_blocks = end - begin;
    const auto holder = static_cast<size_t>(out.parts.front().holder);
    out.source_computes = out.parts.size() == 1 && found_.readable[holder] < end && found_.resident[holder] >= end;
  }
  const bool first = !request.dispatched;
  request.dispatched = true;
  inflight_at_.reset();
  board_.place(booking, now);
  if (!first || options_.replicate.replicas_max == 0) return out;
  hashes_.clear();
  for (const uint32_t block : blocks_of(r)) hashes_.push_back(hash_of(block));
  out.copy = copies_.consider(hashes_, snapshot, c, board_, now);
  return out;
}

// ---- what happens to placed requests ---------------------------------------------------------

void Router::first_token(uint32_t r, uint64_t reused, std::optional<double> seconds, double now_s) {
  sched::Booking& booking = requests_[r].booking;
  const auto tokens = static_cast<double>(requests_[r].tokens);
  if (seconds) board_.prefilled(booking.prefill, tokens, static_cast<double>(reused), *seconds);
  board_.end_prefill(booking, time_of(now_s));
  line_.room_changed();
  board_.arrive(booking);
  board_.add_tokens(booking, 1);
  inflight_at_.reset();
}

void Router::leave(uint32_t r, uint64_t grown, double now_s) {
  sched::Booking& booking = requests_[r].booking;
  if (!booking.placed) return;
  board_.end(booking, time_of(now_s), grown);
  line_.room_changed();
  inflight_at_.reset();
}

void Router::close(uint32_t r, bool rejected, double now_s) {
  Request& request = requests_[r];
  MC_ASSERT(!request.booking.placed && !waits_.holds(r));
  if (!request.admitted) return;
  if (!rejected) charge(r, std::max<uint64_t>(1, trace_[r].output_tokens), now_s);
  request.admitted = false;
  std::optional<double> refund;  // when it was turned away before any work was spent on it
  if (rejected && !request.dispatched) refund = static_cast<double>(trace_[r].input_tokens);
  line_.leave(request.tenant, trace_[r].priority, refund, time_of(now_s));
}

bool Router::end_copy(const sched::CopyOrders::Order& order, double now_s) {
  return copies_.end(order.number, true, order.end_block - order.first_block, board_, time_of(now_s));
}

void Router::charge(uint32_t r, uint64_t made, double now_s) {
  Request& request = requests_[r];
  if (!request.admitted || made <= request.charged) return;
  line_.tenants().charge(request.tenant, static_cast<double>(made - request.charged), now_s);
  request.charged = made;
}

}  // namespace mc::sim

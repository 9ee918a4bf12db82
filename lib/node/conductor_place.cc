// From a request to a placement: snapshot of the cluster, the policy's decision, dispatch, retry.

#include <algorithm>

#include "base/assert.h"
#include "node/conductor.h"

namespace mc::node {

namespace {

constexpr size_t kConsideredMax = 8;  // kept of each decision: enough to answer "why there?"
// In a larger cluster nodes that could not win are listed as they are without a fetch.
constexpr size_t kCompleteMax = 64;

std::vector<Considered> considered(const sched::Snapshot& snapshot, const sched::Placement& placement,
                                   std::span<const uint32_t> best) {
  std::vector<Considered> out;
  for (const uint32_t i : best) {
    const sched::Candidate& c = placement.candidates[i];
    const std::string from = c.holder < 0 ? "" : snapshot.holder_names[static_cast<size_t>(c.holder)];
    out.push_back({snapshot.prefill[c.node].name, from, c.local_blocks, c.fetch_blocks, c.queue_s, c.fetch_s,
                   c.prefill_s, c.ttft_s});
  }
  return out;
}

}  // namespace

void Conductor::on_submit(const Submit& submit, TimePoint now, Actions& out) {
  if (requests_.contains(submit.req)) return;
  ++stats_.submitted;
  Request& r = requests_[submit.req];
  r.submit = submit;
  r.arrived = now;
  r.deadline = after(now, std::min(submit.deadline, options_.deadline_max));
  watch(r);
  r.tenant = fair_.find(submit.tenant);  // whoever is turned away is so as its tenant
  ++tenant_counts_.at(r.tenant).submitted;
  const auto reject = [&](Refusal why) {
    fail(r, Reply::Kind::rejected, RequestStage::route, std::move(why), now, out);
  };
  if (const Reason reason = unready(submit.model); reason != Reason::none)
    return reject({reason, reason == Reason::no_prefill ? "no prefill node is ready" : "no decode node is ready"});
  if (requests_.size() > options_.request_max)
    return reject({Reason::queue_full, std::to_string(options_.request_max) + " requests are unfinished"});
  if (auto refused = refusal_of(r, now)) return reject(std::move(*refused));
  const bool prepared = prepare(r);
  MC_ASSERT(prepared);
  r.admitted = !fair_.admit(r.tenant, static_cast<double>(submit.ids.size()), to_seconds(now - TimePoint{}));
  MC_ASSERT(r.admitted);
  prioritised_ += submit.priority != 0;
  stats_.prompt_tokens += submit.ids.size();
  if (holding()) return hold(r, now, out);
  (void)place(r, now, out);
}

// Names the request's blocks: the same namespace and chain that the workers compute.
bool Conductor::prepare(Request& r) const {
  const kv::Namespace* ns = namespace_of(r.submit.model);
  if (!ns) return false;
  const auto worker = std::find_if(nodes_.begin(), nodes_.end(),
                                   [&](const auto& n) { return serves(n.second, wire::Role::decode, r.submit.model); });
  r.prefill_attention = r.submit.attention.empty() ? ns->attention : r.submit.attention;
  r.decode_attention = !r.submit.attention.empty() ? r.submit.attention
                       : worker != nodes_.end()    ? worker->second.hello.decode_attention
                                                   : ns->attention;
  kv::Namespace own = ns->with_salt(r.submit.salt);
  own.attention = r.prefill_attention;
  r.ns = own.id();
  std::vector<uint32_t> ids = r.submit.ids;
  ids.insert(ids.end(), r.answer.begin(), r.answer.end());
  r.hashes = kv::chain(r.ns, ids, own.block_tokens);
  return true;
}

sched::Options Conductor::options_for(const Request& r) const {
  sched::Options options = options_.sched;
  if (r.submit.ttft_slo_s > 0) options.ttft_slo_s = r.submit.ttft_slo_s;
  if (r.submit.tbt_slo_s > 0) options.tbt_slo_s = r.submit.tbt_slo_s;
  if (r.attempt > 0) options.ttft_slo_s = 0;  // it was admitted; what failed is not the client's fault
  if (r.attempt > 0 && !r.answer.empty()) options.tbt_slo_s = 0;  // nor is a slow stream worse than none
  if (const auto seen = sessions_.find({r.tenant, r.submit.session}); seen != sessions_.end())
    options.prefer = seen->second.first;
  return options;
}

bool Conductor::place(Request& r, TimePoint now, Actions& out, bool idle_only) {
  const sched::Snapshot& snapshot = look(r, now, idle_only);
  const double waited_s = to_seconds(now - r.arrived);
  sched::Options options = options_for(r);
  if (options.ttft_slo_s > 0) options.ttft_slo_s = std::max(1e-9, options.ttft_slo_s - waited_s);
  options.complete = snapshot.prefill.size() <= kCompleteMax;
  sched::Placement& placement = placement_;
  sched::place(snapshot, *options_.policy, options, rng_, placement);
  using sched::NoPlace;
  if (idle_only && (placement.reason == NoPlace::no_prefill || placement.reason == NoPlace::no_pair)) return false;
  if (idle_only && placement.reason == NoPlace::no_decode) {  // decode may come back, as for one that ran already
    if (r.parked_until == kNever) park(r, now);
    return false;
  }
  // Whether decode has room may change before the request would be late.
  const sched::Bound bound = placement.verdict.bound;
  if (idle_only && (bound == sched::Bound::tbt || bound == sched::Bound::kv) && r.expires != kNever) return false;
  sched::best_candidates(placement, kConsideredMax, best_);
  r.summary.considered = considered(snapshot, placement, best_);
  r.summary.set_aside = static_cast<uint32_t>(snapshot.bars.size());
  if (placement.candidate >= 0) {
    const auto& chosen = placement.candidates[static_cast<size_t>(placement.candidate)];
    if (idle_only && wait_for_prefix(r, snapshot, chosen, now)) return false;
    dispatch(r, snapshot, placement, now, out);
    return true;
  }
  const bool missed = placement.reason == NoPlace::predicted_slo_miss;
  if (r.attempt > 0 && !missed) {
    // It ran once already: wait for a node to come back rather than lose what the client has.
    park(r, now);
    return true;
  }
  const Miss miss = missed ? miss_of(placement) : Miss{};
  fail(r, Reply::Kind::rejected, RequestStage::route,
       {reason_of(placement.reason),
        missed ? miss.text() : "no node can take the request: " + std::string(to_string(placement.reason)), miss},
       now, out);
  return true;
}

void Conductor::dispatch(Request& r, const sched::Snapshot& snapshot, const sched::Placement& placement, TimePoint now,
                         Actions& out) {
  const sched::Candidate& c = placement.candidates[static_cast<size_t>(placement.candidate)];
  Node& prefill = nodes_.at(snapshot.prefill[c.node].name);
  Node& decode = nodes_.at(snapshot.decode[static_cast<size_t>(placement.decode)].name);
  ++r.attempt;
  r.placed = true;
  r.placed_at = now;
  r.first_token = r.handed_over = false;
  r.early.clear();
  r.prompt_logprobs.clear();
  r.finish = Finish::none;  // of an attempt whose end came before its beginning was lost
  r.parked_until = kNever;
  if (r.attempt == 1) {
    tenant_counts_.at(r.tenant).tokens += r.submit.ids.size();
    r.summary.held_s = to_seconds(now - r.arrived);
    if (now > r.arrived && r.summary.held_for.kind == Held::Kind::none)
      r.summary.held_for.kind = Held::Kind::turn, ++stats_.held_turn;
  }
  r.prefill = prefill.name, r.prefill_instance = prefill.instance;
  remember_session(r);
  r.decode = decode.name, r.decode_instance = decode.instance;
  probe_parts(r);
  r.predicted_prefill_s = c.prefill_s;
  r.expected_at = after(now, from_seconds(placement.ttft_s));
  r.summary.prefill = r.prefill, r.summary.decode = r.decode, r.summary.attempts = r.attempt;
  if (r.attempt == 1) {
    r.summary.predicted_ttft_s = r.summary.held_s + placement.ttft_s;
    r.summary.predicted_tbt_s = placement.tbt_s;
  }

  wire::PrefillStart start;
  wire::RequestSpec& spec = start.spec;
  spec.req = r.submit.req;
  spec.attempt = r.attempt;
  spec.ids = r.submit.ids;
  spec.ids.insert(spec.ids.end(), r.answer.begin(), r.answer.end());
  spec.resumed = static_cast<uint32_t>(r.answer.size());
  spec.ns = r.ns;
  spec.salt = r.submit.salt;
  spec.prefill_attention = r.prefill_attention;
  spec.decode_attention = r.decode_attention;
  spec.sampling = r.submit.sampling;
  spec.stopping = r.submit.stopping;
  spec.deadline_ms = static_cast<uint64_t>(std::max<int64_t>(1, (r.deadline - now) / 1ms));
  const bool again = !options_.sched.admission || options_.sched.admission->checks_again;
  spec.tbt_slo_ms = r.attempt > 1 || !again ? 0 : 1e3 * options_for(r).tbt_slo_s;
  spec.no_cache = r.submit.no_cache;
  if (r.answer.empty()) spec.prompt_logprobs = r.submit.prompt_logprobs;  // else the client has them
  start.decode = decode.name;
  start.decode_instance = decode.instance;
  if (c.holder >= 0 && c.fetch_blocks > 0) {
    Node& source = nodes_.at(snapshot.holder_names[static_cast<size_t>(c.holder)]);
    // What prefill still has to compute for earlier requests is asked for as well: it may come sooner.
    uint32_t first = 0;
    for (const auto& match : index_.match(std::span(r.hashes).first(c.local_blocks)))
      if (match.node == prefill.ordinal) first = match.resident;
    const uint32_t wait_ms = c.wait_s > 0 ? static_cast<uint32_t>(2e3 * c.wait_s) + 100 : 0;
    r.fetch_waited = wait_ms > 0;
    start.sources.push_back({source.name, source.instance, first, c.local_blocks + c.fetch_blocks - first, wait_ms});
    r.fetch_from = source.name;
    ++source.egress;
    changed(source);
  }
  prefill.queued[spec.req] = c.prefill_s;
  prefill.busy_until = after(std::max(prefill.busy_until, now), from_seconds(c.prefill_s));
  if (!spec.no_cache) index_.add_pending(prefill.ordinal, r.hashes);
  changed(prefill);
  count_row(r, 1);
  out.push_back(Send{prefill.name, prefill.instance, std::move(start)});
  consider_copy(r, snapshot, c, now, out);
}

/// The prefill node has done its part (or is out): its queue estimate and promises shrink.
void Conductor::leave_prefill(Request& r, TimePoint now) {
  if (Node* source = find_node(r.fetch_from)) --source->egress, changed(*source);
  r.fetch_from.clear();
  Node* node = find_node(r.prefill);
  if (!node || node->queued.erase(r.submit.req) == 0) return;
  if (!r.submit.no_cache) index_.settle_pending(node->ordinal, r.hashes);
  double rest_s = 0;
  for (const auto& [id, seconds] : node->queued) rest_s += seconds;
  node->busy_until = after(now, from_seconds(rest_s));
  ++node->left;
  changed(*node);
  room_changed();
}

void Conductor::unplace(Request& r, TimePoint now) {
  leave_prefill(r, now);
  leave_parts(r);
  count_row(r, -1);
  r.placed = false;
  room_changed();  // at its decode node
}

// The same request once more, with the tokens the client has already as part of the prompt.
void Conductor::retry(Request& r, RequestStage stage, Refusal why, const NodeId& avoid, TimePoint now, Actions& out) {
  if (r.placed) unplace(r, now);
  // Where it must go is not avoided: it would find no node at all.
  r.avoid = avoid == r.submit.pin_prefill || avoid == r.submit.pin_decode ? NodeId() : avoid;
  r.early.clear();
  if (++r.failures >= options_.attempts_max) return fail(r, Reply::Kind::failed, stage, std::move(why), now, out);
  ++stats_.retried;
  if (!prepare(r)) {
    park(r, now);
    return;
  }
  (void)place(r, now, out);
}

// It waits for a node to come back.
void Conductor::park(Request& r, TimePoint now) {
  r.parked_until = std::min(r.deadline, after(now, options_.park_max));
  watch(r);
}

void Conductor::place_parked(TimePoint now, Actions& out) {
  std::vector<RequestId> parked;
  for (const auto& [id, r] : requests_)
    if (!r.placed && !r.held && r.parked_until != kNever) parked.push_back(id);
  for (const auto& id : parked)
    if (const auto it = requests_.find(id); it != requests_.end())
      if (unready(it->second.submit.model) == Reason::none && prepare(it->second)) (void)place(it->second, now, out);
}

Conductor::Explanation Conductor::explain(const Submit& submit, TimePoint now) {
  Explanation e;
  Request r;
  r.submit = submit;
  r.arrived = now;
  r.tenant = fair_.find(submit.tenant);
  e.unready = unready(submit.model);
  e.refusal = refusal_of(r, now);
  // What the quota keeps out is placed all the same, for looking.
  if ((e.refusal && e.refusal->reason != Reason::tenant_quota) || !prepare(r)) return e;
  e.hashes = r.hashes;
  e.snapshot = look(r, now);
  e.reusable_blocks = !submit.may_reuse() ? 0 : kv::reusable_blocks(submit.ids.size(), e.snapshot.block_tokens);
  Rng draw = rng_;  // a dry run must not change the next real decision
  sched::Options options = options_for(r);
  options.complete = true;
  e.placement = sched::place(e.snapshot, *options_.policy, options, draw);
  e.held = fair_.size();
  e.holds = (holding() || (options_.hold == ConductorOptions::Hold::automatic && submit.priority != 0)) &&
            (!any_idle(now) || !fair_.empty());
  if (e.holds) e.before_s = ahead_s(r, now);
  if (options_.replicate.replicas_max > 0 && submit.may_reuse()) {
    e.demand = popularity_.demand(std::span(r.hashes).first(std::min<size_t>(e.reusable_blocks, r.hashes.size())),
                                  to_seconds(now - TimePoint{}));
    const auto coming = copies_coming(r.hashes, e.demand.blocks);
    if (const auto copy = sched::plan_copy(e.snapshot, e.demand, options_.replicate.replicas_max, -1, coming)) {
      e.copy_from = e.snapshot.holder_names[copy->source];
      e.copy_to = e.snapshot.prefill[copy->target].name;
    }
  }
  return e;
}

}  // namespace mc::node

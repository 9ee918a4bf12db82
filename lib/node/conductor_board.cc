// The board: the cluster as policies see it (sched::Snapshot), kept up to date as things change, so that a decision
// only looks up what nodes hold of its prompt and how far their queues have come. It is rebuilt when a node comes,
// goes, drains or changes its pipeline; check() compares it with a new one.

#include <algorithm>

#include "base/assert.h"
#include "node/conductor.h"

namespace mc::node {

namespace {

constexpr TimePoint kIdle = TimePoint::min();  // no queue

}  // namespace

Conductor::Usual Conductor::usual() const {
  double prefill = 0, prefills = 0, step = 0, steps = 0;
  for (const auto& [name, node] : nodes_) {
    if (node.predictor.prefill_error().samples() > 0) prefill += node.predictor.prefill_factor(), ++prefills;
    if (node.predictor.step_error().samples() > 0) step += node.predictor.step_factor(), ++steps;
  }
  return {prefills > 0 ? prefill / prefills : 1, steps > 0 ? step / steps : 1};
}

// A node that has served nothing yet is taken to be like the others, not better than all of them. A pipeline's
// members hold layer ranges: nobody fetches blocks from it, nor it from others.
sched::Cost Conductor::cost_of(const Node& node, const Usual& usual) {
  sched::Cost cost = node.predictor.cost();
  if (node.predictor.prefill_error().samples() == 0)
    for (double* part : {&cost.prefill_s, &cost.prefill_s_per_token, &cost.prefill_s_per_token2})
      *part *= usual.prefill_factor;
  if (node.predictor.step_error().samples() == 0)
    for (double* part : {&cost.decode_s, &cost.decode_s_per_row, &cost.decode_s_per_kv_token})
      *part *= usual.step_factor;
  if (node.hello.stages > 1) cost.read_bytes_per_s = 1;
  return cost;
}

Conductor::Board Conductor::make_board(const Usual& usual) const {
  Board b;
  sched::Snapshot& s = b.snapshot;
  const kv::Namespace* ns = namespace_of("");
  s.block_tokens = ns ? ns->block_tokens : 64;
  s.lengths = &lengths_;
  for (const auto& [name, node] : nodes_) {
    Place at;
    if (node.hello.role != wire::Role::cache) s.block_bytes = std::max(s.block_bytes, node.hello.page_bytes);
    at.holder = static_cast<int>(s.holders.size());
    at.readable = node.hello.stages <= 1;  // members of a pipeline hold layer ranges, whether all are here or not
    s.add_holder(name);
    if (serves(node, wire::Role::prefill, "")) {
      at.prefill = static_cast<int>(s.prefill.size());
      sched::PrefillView view;
      view.name = name, view.holder = at.holder;
      s.prefill.push_back(std::move(view));
      b.busy_until.push_back(kIdle);
      b.since.push_back(node.since);
      b.ready_prefill.push_back(!node.draining);
      b.ready_prefills += !node.draining;
    } else if (serves(node, wire::Role::decode, "")) {
      at.decode = static_cast<int>(s.decode.size());
      sched::DecodeView view;
      view.name = name, view.capacity_tokens = node.hello.page_count * s.block_tokens;
      s.decode.push_back(std::move(view));
      b.ready_decode.push_back(!node.draining);
      b.ready_decodes += !node.draining;
    }
    if (b.places.size() <= node.ordinal) b.places.resize(node.ordinal + size_t{1});
    b.places[node.ordinal] = at;
    put(b, node, usual);
  }
  return b;
}

// What the node's books say now.
void Conductor::put(Board& b, const Node& node, const Usual& usual) {
  const Place at = b.places[node.ordinal];
  b.snapshot.holders[static_cast<size_t>(at.holder)].transfers_leaving = node.egress;
  if (at.prefill >= 0) {
    sched::PrefillView& view = b.snapshot.prefill[static_cast<size_t>(at.prefill)];
    view.unfinished = static_cast<uint32_t>(node.queued.size());
    view.cost = cost_of(node, usual);
    b.busy_until[static_cast<size_t>(at.prefill)] = node.queued.empty() ? kIdle : node.busy_until;
  } else if (at.decode >= 0) {
    sched::DecodeView& view = b.snapshot.decode[static_cast<size_t>(at.decode)];
    view.rows = node.rows, view.kv_tokens = node.kv_tokens;
    view.arrived_rows = node.arrived_rows, view.arrived_kv_tokens = node.arrived_tokens;
    view.cost = cost_of(node, usual);
    view.accepting = b.ready_decode[static_cast<size_t>(at.decode)];
  }
}

void Conductor::changed(const Node& node) {
  if (!board_stale_) put(board_, node, usual_);
}

void Conductor::refresh_board() {
  if (board_stale_) {
    usual_ = usual();
    board_ = make_board(usual_);
    board_stale_ = usual_stale_ = false;
    unserved_.clear();
    for (const auto& [name, node] : nodes_)
      if (!has_served(node)) unserved_.push_back(name);
    return;
  }
  if (!usual_stale_ || unserved_.empty()) return;
  usual_ = usual();
  usual_stale_ = false;
  std::erase_if(unserved_, [&](const NodeId& name) { return has_served(nodes_.at(name)); });
  for (const NodeId& name : unserved_) put(board_, nodes_.at(name), usual_);
}

bool Conductor::has_served(const Node& node) {
  const bool prefill = node.hello.role == wire::Role::prefill, decode = node.hello.role == wire::Role::decode;
  return (!prefill || node.predictor.prefill_error().samples() > 0) &&
         (!decode || node.predictor.step_error().samples() > 0);
}

// The board for one request: valid until the next look().
sched::Snapshot& Conductor::look(const Request& r, TimePoint now, bool idle_only) {
  refresh_board();
  Board& b = board_;
  sched::Snapshot& s = b.snapshot;
  s.tokens = static_cast<uint32_t>(r.submit.ids.size() + r.answer.size());
  s.answer_tokens = r.submit.stopping.max_tokens;
  for (size_t i = 0; i < s.prefill.size(); ++i) {
    sched::PrefillView& view = s.prefill[i];
    view.queue_s = to_seconds(std::max(b.busy_until[i], now) - now);  // no branch: no processor foresees it
    view.accepting = b.ready_prefill[i];
  }
  if (options_.sched.slow_start_s > 0)
    for (size_t i = 0; i < s.prefill.size(); ++i) s.prefill[i].up_s = to_seconds(now - b.since[i]);
  look_at_blocks(r);
  restrict_nodes(r);
  set_bars(r, now);
  if (idle_only) {
    const double lead_s = to_seconds(options_.hold_lead);
    for (sched::PrefillView& view : s.prefill) view.accepting &= view.queue_s <= lead_s;
  }
  add_inflight(now);
  return s;
}

// Who holds what of the prompt, where that is not what the request before was told.
void Conductor::look_at_blocks(const Request& r) {
  Board& b = board_;
  sched::Snapshot& s = b.snapshot;
  const uint32_t reusable = !r.submit.may_reuse() ? 0 : kv::reusable_blocks(s.tokens, s.block_tokens);
  b.before.swap(b.matches);
  index_.match(std::span(r.hashes).first(std::min<size_t>(reusable, r.hashes.size())), b.matches);
  kv::for_each_change(b.before, b.matches, [&](const kv::NodeMatch& m) {
    const Place at = b.places[m.node];
    sched::HolderView& holder = s.holders[static_cast<size_t>(at.holder)];
    const bool prefill = at.prefill >= 0;
    holder.readable_blocks = at.readable ? m.resident : 0;
    holder.pending_blocks = at.readable ? (prefill ? m.expected : m.resident) : 0;
    holder.pending_s = 0;
    if (!prefill) return;
    sched::PrefillView& view = s.prefill[static_cast<size_t>(at.prefill)];
    view.resident_blocks = m.expected;
    if (m.expected > m.resident) holder.pending_s = view.queue_s;
  });
}

// Pins, the node that failed last, another model: only some nodes may take this request.
void Conductor::restrict_nodes(const Request& r) {
  Board& b = board_;
  if (b.decode_restricted)
    for (size_t i = 0; i < b.snapshot.decode.size(); ++i) b.snapshot.decode[i].accepting = b.ready_decode[i];
  b.decode_restricted = false;
  const auto only = [&](auto& views, const std::string& name) {
    for (auto& view : views) view.accepting = view.accepting && view.name == name;
  };
  if (!r.submit.pin_prefill.empty()) only(b.snapshot.prefill, r.submit.pin_prefill);
  if (!r.submit.pin_decode.empty()) only(b.snapshot.decode, r.submit.pin_decode), b.decode_restricted = true;
  if (const Node* avoid = r.avoid.empty() ? nullptr : find_node(r.avoid)) {
    const Place at = b.places[avoid->ordinal];
    if (at.prefill >= 0 && b.ready_prefills > (avoid->draining ? 0u : 1u))
      b.snapshot.prefill[static_cast<size_t>(at.prefill)].accepting = false;
    if (at.decode >= 0 && b.ready_decodes > (avoid->draining ? 0u : 1u))
      b.snapshot.decode[static_cast<size_t>(at.decode)].accepting = false, b.decode_restricted = true;
  }
  if (r.submit.model.empty()) return;
  for (auto& view : b.snapshot.prefill) view.accepting &= nodes_.at(view.name).hello.model == r.submit.model;
  for (auto& view : b.snapshot.decode) view.accepting &= nodes_.at(view.name).hello.model == r.submit.model;
  b.decode_restricted = true;
}

// What admission looks at beyond sums: every request on its way to a decode node, or there.
void Conductor::add_inflight(TimePoint now) {
  sched::Snapshot& s = board_.snapshot;
  s.inflight.clear();
  if (!options_.sched.admission || !options_.sched.admission->looks_ahead) return;
  for (const auto& [id, other] : requests_) {
    const Node* node = other.placed ? find_node(other.decode) : nullptr;
    const int at = node ? board_.places[node->ordinal].decode : -1;
    if (at < 0) continue;
    const uint32_t tokens = static_cast<uint32_t>(other.submit.ids.size() + other.answer.size());
    const double arrives_s = other.first_token ? -to_seconds(now - other.first_token_at)
                                               : std::max(0.0, to_seconds(other.expected_at - now));
    s.inflight.push_back({arrives_s, static_cast<uint32_t>(at), tokens, static_cast<uint32_t>(other.answer.size()),
                          other.submit.stopping.max_tokens});
  }
}

// A placed request counts at its decode node; `sign` -1 takes it off.
void Conductor::count_row(const Request& r, int sign) {
  Node* node = find_node(r.decode);
  if (!node) return;
  const uint64_t tokens = r.submit.ids.size() + r.answer.size();
  const auto add = [&](uint32_t& rows, uint64_t& kv_tokens) {
    rows += static_cast<uint32_t>(sign);
    kv_tokens = sign > 0 ? kv_tokens + tokens : kv_tokens - tokens;
  };
  add(node->rows, node->kv_tokens);
  if (r.first_token) add(node->arrived_rows, node->arrived_tokens);
  changed(*node);
}

bool Conductor::any_idle(TimePoint now) {
  refresh_board();
  for (size_t i = 0; i < board_.busy_until.size(); ++i)
    if (board_.ready_prefill[i] && board_.busy_until[i] <= now + options_.hold_lead) return true;
  return false;
}

void Conductor::check_board() const {
  if (board_stale_) return;
  const Board fresh = make_board(usual_);
  const sched::Snapshot &a = board_.snapshot, &b = fresh.snapshot;
  MC_ASSERT_EQ(a.prefill.size(), b.prefill.size());
  MC_ASSERT_EQ(a.decode.size(), b.decode.size());
  MC_ASSERT_EQ(a.holders.size(), b.holders.size());
  for (size_t i = 0; i < a.holders.size(); ++i) {
    MC_ASSERT_EQ(a.holder_names[i], b.holder_names[i]);
    MC_ASSERT_EQ(a.holders[i].transfers_leaving, b.holders[i].transfers_leaving);
  }
  for (size_t i = 0; i < a.prefill.size(); ++i) {
    MC_ASSERT_EQ(a.prefill[i].name, b.prefill[i].name);
    MC_ASSERT_EQ(a.prefill[i].unfinished, b.prefill[i].unfinished);
    MC_ASSERT_EQ(a.prefill[i].cost.prefill_s_per_token, b.prefill[i].cost.prefill_s_per_token);
    MC_ASSERT((board_.busy_until[i] == fresh.busy_until[i]));
    MC_ASSERT_EQ(board_.ready_prefill[i], fresh.ready_prefill[i]);
  }
  for (size_t i = 0; i < a.decode.size(); ++i) {
    MC_ASSERT_EQ(a.decode[i].rows, b.decode[i].rows);
    MC_ASSERT_EQ(a.decode[i].kv_tokens, b.decode[i].kv_tokens);
    MC_ASSERT_EQ(a.decode[i].arrived_rows, b.decode[i].arrived_rows);
    MC_ASSERT_EQ(a.decode[i].arrived_kv_tokens, b.decode[i].arrived_kv_tokens);
    MC_ASSERT_EQ(a.decode[i].cost.decode_s, b.decode[i].cost.decode_s);
  }
}

}  // namespace mc::node

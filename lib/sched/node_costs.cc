#include "sched/node_costs.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/assert.h"

namespace mc::sched {
namespace {

// The reference work: a prompt of one usual chunk, and a step of a small batch.
constexpr double kPromptTokens = 1024, kRows = 8, kKvTokens = 8 * 1024;

/// The middle value, the lower one of two; infinity without values.
double middle(std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::infinity();
  const auto at = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// The factor that brings an announced time down to the usual one; 1 for a time that is not above it.
double capped(double usual_s, double announced_s) {
  return announced_s > usual_s ? usual_s / announced_s : 1;
}

}  // namespace

NodeCosts::Node& NodeCosts::at(int slot) {
  MC_ASSERT(slot >= 0 && static_cast<size_t>(slot) < nodes_.size());
  MC_ASSERT(nodes_[static_cast<size_t>(slot)].here);
  return nodes_[static_cast<size_t>(slot)];
}

bool NodeCosts::Node::has_served() const {
  return (!prefill || predictor.prefill_error().samples() > 0) && (!decode || predictor.step_error().samples() > 0);
}

void NodeCosts::set_members(std::span<const Member> members) {
  std::vector<Node> nodes;
  std::map<std::string_view, size_t> models;
  unserved_.clear();
  for (const Member& member : members) {
    if (nodes.size() <= member.slot) nodes.resize(member.slot + size_t{1});
    Node& node = nodes[member.slot];
    MC_ASSERT(!node.here);
    const bool stays = member.slot < nodes_.size() && nodes_[member.slot].here;
    node = {.here = true, .prefill = member.prefill, .decode = member.decode, .readable = member.readable};
    node.predictor = stays ? nodes_[member.slot].predictor : Predictor(member.announced);
    node.announced =
        stays ? nodes_[member.slot].announced
              : Reference{member.announced.prefill(kPromptTokens, 0), member.announced.step(kRows, kKvTokens)};
    node.model = models.try_emplace(member.model, models.size()).first->second;
    if (!node.has_served()) unserved_.push_back(member.slot);
  }
  nodes_ = std::move(nodes);
  is_stale_ = false;
  corrections_ = mean();
  usual_.resize(models.size());
  find_usual();
}

void NodeCosts::find_usual() {
  std::vector<std::vector<double>> prefills(usual_.size()), steps(usual_.size());
  for (const Node& node : nodes_) {
    if (!node.here) continue;
    if (node.predictor.prefill_error().samples() > 0) prefills[node.model].push_back(node.announced.prefill_s);
    if (node.predictor.step_error().samples() > 0) steps[node.model].push_back(node.announced.step_s);
  }
  for (size_t model = 0; model < usual_.size(); ++model)
    usual_[model] = {middle(prefills[model]), middle(steps[model])};
}

NodeCosts::Corrections NodeCosts::mean() const {
  double prefill = 0, prefills = 0, step = 0, steps = 0;
  for (const Node& node : nodes_) {
    if (!node.here) continue;
    if (node.predictor.prefill_error().samples() > 0) prefill += node.predictor.prefill_factor(), ++prefills;
    if (node.predictor.step_error().samples() > 0) step += node.predictor.step_factor(), ++steps;
  }
  return {prefills > 0 ? prefill / prefills : 1, steps > 0 ? step / steps : 1};
}

// Nothing is fetched into a node whose blocks other nodes cannot read, because the members of a pipeline hold ranges of
// layers.
Cost NodeCosts::cost(int slot) const {
  const Node& node = at(slot);
  Cost cost = node.predictor.cost();
  const Reference& usual = usual_[node.model];
  if (!has_prefilled(slot))
    for (double* part : {&cost.prefill_s, &cost.prefill_s_per_token, &cost.prefill_s_per_token2})
      *part *= corrections_.prefill * capped(usual.prefill_s, node.announced.prefill_s);
  if (!has_stepped(slot))
    for (double* part : {&cost.decode_s, &cost.decode_s_per_row, &cost.decode_s_per_kv_token})
      *part *= corrections_.step * capped(usual.step_s, node.announced.step_s);
  if (!node.readable) cost.read_bytes_per_s = 1;
  return cost;
}

void NodeCosts::prefilled(int slot, double tokens, double reused, double seconds) {
  const bool is_first = !has_prefilled(slot);
  at(slot).predictor.prefilled(tokens, reused, seconds);
  is_stale_ = true;
  if (is_first) find_usual();
}

void NodeCosts::stepped(int slot, double rows, double kv_tokens, double seconds) {
  const bool is_first = !has_stepped(slot);
  at(slot).predictor.stepped(rows, kv_tokens, seconds);
  is_stale_ = true;
  if (is_first) find_usual();
}

std::span<const uint32_t> NodeCosts::refresh() {
  if (!is_stale_ || unserved_.empty()) return {};
  corrections_ = mean();
  is_stale_ = false;
  std::erase_if(unserved_, [this](uint32_t slot) { return nodes_[slot].has_served(); });
  return unserved_;
}

}  // namespace mc::sched

#include "sim/paper_decode.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "base/assert.h"
#include "sim/paper_prefill.h"

namespace mc::sim {
namespace {

double step_s(uint64_t rows, uint64_t context) {
  return kPaperCost.step(static_cast<double>(rows), static_cast<double>(context));
}

double longest_mean(std::span<const double> gaps, std::vector<double>& scratch) {
  const size_t count = (gaps.size() + 9) / 10;
  scratch.assign(gaps.begin(), gaps.end());
  std::nth_element(scratch.begin(), scratch.begin() + static_cast<ptrdiff_t>(count - 1), scratch.end(),
                   std::greater<>());
  return std::accumulate(scratch.begin(), scratch.begin() + static_cast<ptrdiff_t>(count), 0.0) /
         static_cast<double>(count);
}

}  // namespace

PaperDecode::PaperDecode(uint32_t node_count, size_t request_count) : nodes_(node_count), tbt_s_(request_count) {
  MC_ASSERT(node_count > 0);
}

void PaperDecode::begin_step(Node& node, double now_s) {
  for (const Waiting& w : node.waiting) {
    node.rows.push_back({node.steps.size() + w.steps, w.request, node.steps.size(), w.context + w.steps, w.arrived_s});
    std::push_heap(node.rows.begin(), node.rows.end(), std::greater<>());
  }
  node.context += node.waiting_context;
  node.waiting.clear();
  node.waiting_context = 0;
  node.busy = !node.rows.empty();
  if (!node.busy) return;
  const uint64_t rows = node.rows.size();
  node.step_s = step_s(rows, node.context);
  node.step_end_s = now_s + node.step_s;
  node.busy_s += node.step_s;
  node.row_s += node.step_s * static_cast<double>(rows);
  node.rows_max = std::max(node.rows_max, rows);
}

void PaperDecode::end_step(Node& node) {
  node.steps.push_back(node.step_s);
  node.context += node.rows.size();
  while (!node.rows.empty() && node.rows.front().last_step == node.steps.size()) {
    const Row row = node.rows.front();
    node.context -= row.context;
    tbt_s_[row.request] = longest_mean(std::span(node.steps).subspan(row.first_step), gaps_);
    std::pop_heap(node.rows.begin(), node.rows.end(), std::greater<>());
    node.rows.pop_back();
  }
  begin_step(node, node.step_end_s);
}

void PaperDecode::advance(Node& node, double now_s) {
  while (node.busy && node.step_end_s <= now_s) end_step(node);
}

void PaperDecode::arrive(double at_s, size_t request, uint64_t input_tokens, uint64_t output_tokens) {
  if (output_tokens < 2) return;
  advance_to(at_s);
  uint32_t chosen = 0;
  double least = step_s(rows(0), context(0));
  for (uint32_t i = 1; i < nodes_.size(); ++i)
    if (const double s = step_s(rows(i), context(i)); s < least) chosen = i, least = s;
  join(at_s, chosen, request, input_tokens, output_tokens);
}

void PaperDecode::advance_to(double now_s) {
  for (Node& node : nodes_) advance(node, now_s);
}

void PaperDecode::join(double at_s, uint32_t node, size_t request, uint64_t input_tokens, uint64_t output_tokens) {
  if (output_tokens < 2) return;
  Node& chosen = nodes_[node];
  advance(chosen, at_s);
  chosen.waiting.push_back({request, input_tokens + 1, output_tokens - 1, at_s});
  chosen.waiting_context += input_tokens + 1;
  if (!chosen.busy) begin_step(chosen, at_s);
}

void PaperDecode::finish() {
  for (Node& node : nodes_) advance(node, std::numeric_limits<double>::infinity());
}

double PaperDecode::batch_mean() const {
  double rows = 0, busy = 0;
  for (const Node& node : nodes_) rows += node.row_s, busy += node.busy_s;
  return busy > 0 ? rows / busy : 0;
}

uint64_t PaperDecode::batch_max() const {
  uint64_t most = 0;
  for (const Node& node : nodes_) most = std::max(most, node.rows_max);
  return most;
}

}  // namespace mc::sim

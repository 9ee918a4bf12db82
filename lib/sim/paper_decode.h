// The reference rules of the decode simulation (held to the digit): a request goes at the end of
// its prefill to the node whose step would take least over running and waiting requests, joins at the next
// step boundary with a context of input + 1, and makes the remaining output - 1 tokens, one a step.
//
// A node keeps the length of every step it made, and a request the number of its first step. So a step costs O(1) for
// the whole batch, and a request's gaps are a slice of its node's steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace mc::sim {

class PaperDecode {
 public:
  PaperDecode(uint32_t node_count, size_t request_count);

  /// `at_s` never decreases. A request of at most one output token is done with its prefill.
  void arrive(double at_s, size_t request, uint64_t input_tokens, uint64_t output_tokens);
  /// Runs until every request has ended.
  void finish();

  // ---- looking, for admission ----
  size_t size() const { return nodes_.size(); }
  void advance_to(double now_s);
  /// Running and waiting requests of a node and their context, as of the last advance_to.
  uint64_t rows(uint32_t node) const { return nodes_[node].rows.size() + nodes_[node].waiting.size(); }
  uint64_t context(uint32_t node) const { return nodes_[node].context + nodes_[node].waiting_context; }
  /// A request whose decode node was chosen before.
  void join(double at_s, uint32_t node, size_t request, uint64_t input_tokens, uint64_t output_tokens);
  /// each(arrived_s, context) for every running and waiting request of all nodes.
  template <typename Each>
  void for_each(const Each& each) const {
    for (const Node& node : nodes_) {
      for (const Row& row : node.rows) each(row.arrived_s, row.context - (row.last_step - node.steps.size()));
      for (const Waiting& w : node.waiting) each(w.arrived_s, w.context);
    }
  }

  /// Mean of the longest ceil(10 %) gaps of each request; 0 for one that made no step here.
  const std::vector<double>& tbt_s() const { return tbt_s_; }
  /// Requests in the batch, averaged over the time nodes were busy; and the most there ever were.
  double batch_mean() const;
  uint64_t batch_max() const;

 private:
  struct Row {
    uint64_t last_step;  // the node's steps when the row leaves
    size_t request;
    uint64_t first_step;
    uint64_t context;  // tokens when the row leaves
    double arrived_s;
    bool operator>(const Row& other) const {
      return last_step != other.last_step ? last_step > other.last_step : request > other.request;
    }
  };
  struct Waiting {
    size_t request;
    uint64_t context, steps;
    double arrived_s;
  };
  struct Node {
    std::vector<double> steps;  // seconds each
    std::vector<Row> rows;      // heap: the first leaves first
    std::vector<Waiting> waiting;
    uint64_t context = 0, waiting_context = 0;
    bool busy = false;
    double step_s = 0, step_end_s = 0;
    double busy_s = 0, row_s = 0;
    uint64_t rows_max = 0;
  };

  void begin_step(Node& node, double now_s);
  void end_step(Node& node);
  void advance(Node& node, double now_s);

  std::vector<Node> nodes_;
  std::vector<double> tbt_s_;
  std::vector<double> gaps_;  // scratch
};

}  // namespace mc::sim

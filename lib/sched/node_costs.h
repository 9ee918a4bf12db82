// The cost of each node's work: what the node announced, corrected by its own reports (sched/predict.h). A node that
// has not served yet is assumed to be as fast as the mean of the others, relative to what each announced.
//
// An announcement may come from a calibration on a busy machine, and a node that looks slow serves nothing that could
// correct it. So a node that has not served is also never assumed to be slower than the median node of its model
// that has: it is tried, and its first report decides.
//
// Nodes are named by the slots of sched/board.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sched/predict.h"

namespace mc::sched {

class NodeCosts {
 public:
  struct Member {
    uint32_t slot = 0;
    bool prefill = false, decode = false;  // phases that the node serves
    bool readable = true;                  // others may fetch its blocks, and it may fetch theirs
    Cost announced;
    std::string_view model = {};  // nodes of one model are compared
  };
  /// Sets the nodes. A slot that stays keeps its reports, and its announcement is not read again.
  void set_members(std::span<const Member> members);

  /// The node's cost, as announced and corrected by its own reports alone.
  const Predictor& predictor(int slot) const { return at(slot).predictor; }
  /// The cost for the policies.
  Cost cost(int slot) const;
  /// Whether the node has reported this kind of work. Otherwise its cost is an assumption.
  bool has_prefilled(int slot) const { return at(slot).predictor.prefill_error().samples() > 0; }
  bool has_stepped(int slot) const { return at(slot).predictor.step_error().samples() > 0; }

  /// The node has computed `tokens` prompt tokens, `reused` of them from a cache, in this time.
  void prefilled(int slot, double tokens, double reused, double seconds);
  void stepped(int slot, double rows, double kv_tokens, double seconds);
  /// Applies the reports since the last call to the nodes that have not served. Returns their slots when cost() may
  /// have changed for them; valid until the next change.
  std::span<const uint32_t> refresh();

 private:
  /// Observed / announced cost: the mean over nodes that have served, applied to nodes that have not.
  struct Corrections {
    double prefill = 1, step = 1;
  };
  /// Announced seconds of a reference prompt and of a reference step.
  struct Reference {
    double prefill_s = 0, step_s = 0;
  };
  struct Node {
    bool here = false, prefill = false, decode = false, readable = true;
    size_t model = 0;  // index in usual_
    Reference announced;
    Predictor predictor;
    /// Whether the node has done each kind of work that it serves.
    bool has_served() const;
  };

  Node& at(int slot);
  const Node& at(int slot) const { return const_cast<NodeCosts*>(this)->at(slot); }
  Corrections mean() const;
  void find_usual();

  std::vector<Node> nodes_;  // index: slot
  Corrections corrections_;
  // For each model: what the median of the nodes announced that have served; infinity = none has.
  std::vector<Reference> usual_;
  bool is_stale_ = false;           // a report came since corrections_ was computed
  std::vector<uint32_t> unserved_;  // slots whose costs follow corrections_
};

}  // namespace mc::sched

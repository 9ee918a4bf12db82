// A simulated prefill that begins before its prefix has arrived, as on a live prefill node (node/prefill.h). The first
// chunk of the prompt needs a layer of the prefix when it computes that layer of its own, so computing may begin with
// the first layers, and waits for each later one (arXiv:2407.00079, 5.2). Later chunks find the whole prefix.
//
//   prefix   layer 0 | layer 1  | layer 2        | layer 3  |
//   compute            chunk, 0 | chunk, 1 | ... | chunk, 2 | chunk, 3 | other chunks
//                    begin                   wait
//
// The owner of the request asks EarlyPrefill::begin() whether the request may begin, and keeps the object until the
// prefill ends. It calls follow() each time that more of the prefix is here. The node computes nothing else meanwhile.
// The end is known when the whole prefix is here. A block that does not come is computed: begin_again() is called, and
// the part of the chunk that was computed is lost.
//
// Loading by layers is for a node alone. The members of a pipeline load a prefix as a whole.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/cluster.h"
#include "sim/prefix_parts.h"

namespace mc::sim {

/// The parts of prefixes that come layer by layer under these options, as node/block_reads.h cuts them.
LayerCut layer_cut(const ClusterOptions& options);

class EarlyPrefill {
 public:
  /// Begins a prompt of so many tokens, of which the prefix has the first `reused`. nullopt: it has to wait, because a
  /// part of the prefix has no layer here, or because the rest is expected to take longer than the first chunk.
  /// `profile` must outlive the object.
  static std::optional<EarlyPrefill> begin(const sched::Profile& profile, const PrefixParts& prefix, uint64_t reused,
                                           uint64_t tokens, double now_s);

  /// More of the prefix is here, or no more comes. Returns the seconds from now until the prompt is computed; nullopt:
  /// they are unknown, because a part of the prefix is still on its way.
  std::optional<double> follow(const PrefixParts& prefix, double now_s);
  /// Blocks of the prefix do not come, which leaves it `reused` tokens. Computing begins again when all of those are
  /// here.
  void begin_again(uint64_t reused);
  /// Whether follow() has returned the end.
  bool has_end() const { return has_end_; }

 private:
  EarlyPrefill(const sched::Profile& profile, uint64_t reused, uint64_t tokens)
      : profile_(&profile), reused_(reused), tokens_(tokens) {}

  const sched::Profile* profile_;
  uint64_t reused_, tokens_;
  uint32_t layers_ = 0;                // of the prefix that are here
  double layers_end_s_ = 0;            // when as many layers of the first chunk are computed
  double layer_s_ = 0, others_s_ = 0;  // to compute a layer of the first chunk, and all other chunks
  bool again_ = false, has_end_ = false;
};

}  // namespace mc::sim

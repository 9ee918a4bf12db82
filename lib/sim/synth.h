// A generator of traces fitted to a given trace. It shares a workload's shape without the workload, and makes small
// traces for tests. Whole observations are drawn, so that their parts stay correlated. Kept are
//   arrivals       instants and how many requests come at each
//   first turns    prompt and answer lengths, the blocks all prompts begin with
//   later turns    time since the parent, its turn number and length, growth of the prompt, how much of the
//                  parent's blocks it shares, answer length
//   owners         a first turn's tenant and priority; a session keeps its tenant, and each turn its priority
// Observations are drawn from around the same place in the original, so that a workload that changes with time changes
// in the copy too. A later turn continues a request of about the same age that is most like its parent in the original.
// Where there is none, as at the start of the trace, it becomes a first turn. No id of the original remains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "sim/sharing.h"
#include "sim/trace.h"

namespace mc::sim {

class TraceModel {
 public:
  /// `trace` has at least one request.
  explicit TraceModel(const std::vector<TraceRequest>& trace);
  /// `count` requests from time 0; ids dense, in the order of their appearance. Same model, same rng, same trace.
  std::vector<TraceRequest> generate(uint64_t count, Rng& rng) const;

 private:
  struct Instant {
    double gap_ms;  // since the instant before
    uint32_t requests;
  };
  struct Turn {
    uint64_t input_tokens, output_tokens;
    uint32_t turn;      // 1 = the first of its session
    double age_ms;      // since the parent
    int64_t growth;     // tokens more than the parent
    double shared;      // of the parent's whole blocks beyond the common ones, 0 to 1
    bool exact_repeat;  // all of its blocks are known, the partial one too
    std::string tenant;
    int priority;
  };

  uint32_t common_blocks_ = 0;
  uint64_t input_tokens_max_ = 0;
  std::vector<Instant> instants_;
  std::vector<Turn> turns_;          // one a request
  std::vector<size_t> first_turns_;  // those of them that begin a session
  std::vector<size_t> instant_of_;   // of each request
};

}  // namespace mc::sim

// A generator of traces fitted to one: for sharing a workload's shape without the workload, and for small
// traces to test with. What is kept, by drawing whole observations so that their parts stay correlated:
//   arrivals       instants and how many requests come at each
//   first turns    prompt and answer lengths, the blocks all prompts begin with
//   later turns    time since the parent, its turn number and length, growth of the prompt, how much of the
//                  parent's blocks it shares, answer length
//   owners         a first turn's tenant and priority; a session keeps its tenant, and each turn its priority
// Observations are drawn from around the same place in the original, so that a workload that changes with
// time does so here. A later turn continues the request most like the parent it had, of about that age;
// where there is none (the start of the trace) it becomes a first turn. No id of the original remains.
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

// The requests of a load run and their times: a workload turns flags (and a trace) into a plan, a list of requests in
// order of time whose prompts are token ids drawn from counters. A plan is a pure function of flags and
// seed: the same ones give the same bytes on the wire. To add a workload: one file workload_<name>.cc and
// one line in workloads.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/json.h"

namespace mc::bench {

/// `count` tokens from the start of a stream: equal streams give equal tokens, whatever the request.
struct PromptPiece {
  uint64_t stream = 0;
  uint32_t count = 0;
  bool operator==(const PromptPiece&) const = default;
};

struct PlannedRequest {
  Duration at{};  // from the start of the run
  std::vector<PromptPiece> prompt;
  std::string text;  // of a data set, in place of token ids
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
};

struct Plan {
  std::vector<PlannedRequest> requests;  // by time
  double rate_per_s = 0;                 // asked; infinity = all at once
  Json facts = Json::object();           // what the summary repeats about where the plan comes from
};

/// Ids that prompts may hold: [kFirstToken, end). The first few are special tokens in many models.
struct TokenRange {
  static constexpr uint32_t kFirstToken = 16;
  uint64_t seed = 0;
  uint32_t end = 1024;
};
std::vector<uint32_t> prompt_ids(std::span<const PromptPiece> prompt, const TokenRange& range);

struct Workload {
  std::string_view name;
  std::string_view help;
  /// One plan; `rate_per_s` is the point of a sweep over --request-rate, unused by traces.
  Result<Plan> (*plan)(const cli::Args& args, double rate_per_s);
};

/// All workloads, in the order of the table; nullptr for an unknown name. For tests.
std::span<const Workload* const> workloads();
const Workload* find_workload(std::string_view name);

extern const Workload kSyntheticWorkload;
extern const Workload kTraceWorkload;

/// Flags of the two, listed by the verbs that use them.
namespace flag {
extern const Flag kNumPrompts, kInputLen, kOutputLen, kRangeRatio, kPrefixShare, kRequestRate, kBurstiness, kDataset;
extern const Flag kSpeedup, kLimit, kMaxInput, kMaxOutput;
}  // namespace flag

}  // namespace mc::bench

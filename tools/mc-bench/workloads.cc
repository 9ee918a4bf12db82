// The table of workloads, and how a prompt's token ids come from counters.

#include <algorithm>

#include "base/assert.h"
#include "base/rng.h"
#include "workload.h"

namespace mc::bench {
namespace {

constexpr const Workload* kWorkloads[] = {&kSyntheticWorkload, &kTraceWorkload};

}  // namespace

std::span<const Workload* const> workloads() {
  return kWorkloads;
}

const Workload* find_workload(std::string_view name) {
  for (const Workload* workload : kWorkloads)
    if (workload->name == name) return workload;
  return nullptr;
}

std::vector<uint32_t> prompt_ids(std::span<const PromptPiece> prompt, const TokenRange& range) {
  MC_ASSERT(range.end > TokenRange::kFirstToken);
  const uint32_t choices = range.end - TokenRange::kFirstToken;
  std::vector<uint32_t> out;
  for (const PromptPiece& piece : prompt)
    for (uint32_t i = 0; i < piece.count; i += 4) {
      const auto words = philox4x32(range.seed, i / 4, piece.stream);
      for (uint32_t j = i; j < std::min(i + 4, piece.count); ++j)
        // The high half of a product spreads a word evenly over any range.
        out.push_back(TokenRange::kFirstToken + static_cast<uint32_t>(uint64_t{words[j - i]} * choices >> 32));
    }
  return out;
}

}  // namespace mc::bench

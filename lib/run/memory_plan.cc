#include "run/memory_plan.h"

#include <algorithm>
#include <string>

#include "base/errors.h"

namespace mc::run {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string mib(uint64_t bytes) {
  return std::to_string((bytes + kMiB - 1) / kMiB) + " MiB";
}

}  // namespace

Result<void> check_memory(const MemoryPlan& plan) {
  const uint64_t fixed = plan.weight_bytes + plan.scratch_bytes;
  const uint64_t least = kPagesMin * plan.page_bytes;
  const uint64_t kv = std::max(plan.kv_bytes, least);
  if (fixed + kv <= plan.free_bytes) return {};
  const std::string needed = "the model needs " + mib(plan.weight_bytes) + " for weights, " + mib(plan.scratch_bytes) +
                             " of scratch and " + mib(kv) + " for KV, together " + mib(fixed + kv) + "; free are " +
                             std::to_string(plan.free_bytes / kMiB) + " MiB";
  if (fixed + least > plan.free_bytes)
    return user_error(err::kNotEnoughMemory, needed, "--model",
                      "no --kv-mem fits; use --weight-dtype int8, a smaller model, or free memory");
  const uint64_t largest = plan.free_bytes - fixed;
  return user_error(err::kNotEnoughMemory, needed, "--kv-mem",
                    "the largest --kv-mem that fits is " +
                        (largest >= kMiB ? std::to_string(largest / kMiB) + "MiB" : std::to_string(largest)));
}

}  // namespace mc::run

#include "host/memory_plan.h"

#include <algorithm>
#include <string>

#include "attn/attn.h"
#include "base/assert.h"
#include "base/errors.h"

namespace mc::host {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string mib(uint64_t bytes) {
  return std::to_string((bytes + kMiB - 1) / kMiB) + " MiB";
}

/// bytes * share / of, rounded down; exact where the product exceeds 64 bits.
uint64_t scaled(uint64_t bytes, uint64_t share, uint64_t of) {
  MC_ASSERT(of > 0);
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * share / of);
}

}  // namespace

CentroidBytes centroid_bytes(const attn::Plan& plan, const ExtentLayout& layout) {
  if (plan.mode.kind != attn::ModeKind::moba || plan.full_last >= plan.layers) return {};
  const uint64_t block = uint64_t{2} * layout.held().count() * layout.kv_heads * layout.head_dim;  // bf16
  MC_ASSERT(plan.mode.block > 0);
  const auto tokens = static_cast<uint64_t>(plan.mode.block);
  return {(block * layout.block_tokens + tokens - 1) / tokens, block * attn::CentroidView::kStripBlocks};
}

uint64_t device_pages_asked(const ByteSize& asked, uint64_t fit, uint64_t page_bytes, gpu::DeviceKind kind) {
  MC_ASSERT(page_bytes > 0);
  if (asked.percent <= 0) return asked.bytes / page_bytes;
  const uint64_t share = asked.of(fit);
  if (kind != gpu::DeviceKind::emu) return share;
  return std::min(share, std::max(kPagesMin, 64 * kMiB / page_bytes));
}

uint64_t DevicePlan::pages() const {
  MC_ASSERT(page_bytes > 0);
  const uint64_t fixed = weight_bytes + scratch_bytes;
  return fixed >= free_bytes ? 0 : (free_bytes - fixed) / (page_bytes + beside_page_bytes);
}

Result<void> check_device_memory(const DevicePlan& plan) {
  if (plan.pages() >= kPagesMin) return {};
  const uint64_t least = kPagesMin * (plan.page_bytes + plan.beside_page_bytes);
  const uint64_t beside = plan.scratch_bytes + least;
  return user_error(
      err::kDeviceMemory,
      plan.device + ": the model needs " + mib(plan.weight_bytes) + " for weights, " + mib(plan.scratch_bytes) +
          " of scratch and " + mib(least) + " for KV, together " + mib(plan.weight_bytes + beside) + "; " +
          std::to_string(plan.free_bytes / kMiB) + " of " + std::to_string(plan.total_bytes / kMiB) + " MiB are free",
      "--device",
      "weights of at most " + std::to_string((plan.free_bytes - std::min(plan.free_bytes, beside)) / kMiB) +
          " MiB fit; use a smaller model, --chunk-tokens or --batch-max, or another GPU");
}

Result<void> check_memory(const MemoryPlan& plan) {
  const uint64_t fixed = plan.weight_bytes + plan.scratch_bytes;
  const uint64_t least = kPagesMin * plan.page_bytes;
  const uint64_t kv = std::max(plan.kv_bytes, least);
  const uint64_t with = plan.page_bytes + plan.beside_page_bytes;
  const uint64_t beside = scaled(kv, plan.beside_page_bytes, std::max<uint64_t>(plan.page_bytes, 1));
  if (fixed + kv + beside <= plan.free_bytes) return {};
  const std::string needed = "the model needs " + mib(plan.weight_bytes) + " for weights, " + mib(plan.scratch_bytes) +
                             " of scratch and " + mib(kv) + " for KV" +
                             (beside > 0 ? " and " + mib(beside) + " for its MoBA centroids" : "") + ", together " +
                             mib(fixed + kv + beside) + "; " + std::to_string(plan.free_bytes / kMiB) + " MiB are free";
  if (fixed + kPagesMin * with > plan.free_bytes)
    return user_error(err::kNotEnoughMemory, needed, "--model",
                      "no --kv-mem fits; use --weight-dtype int8 or int4, a smaller model, or free memory");
  MC_ASSERT_LE(fixed, plan.free_bytes);
  const uint64_t largest = scaled(plan.free_bytes - fixed, plan.page_bytes, with);
  return user_error(err::kNotEnoughMemory, needed, "--kv-mem",
                    "the largest --kv-mem that fits is " +
                        (largest >= kMiB ? std::to_string(largest / kMiB) + "MiB" : std::to_string(largest)));
}

}  // namespace mc::host

#include "gpu_mutants.h"

#include <algorithm>

namespace mc::bench {
namespace {

using gpu::AttentionKernel;
using gpu::Fault;
using gpu::emu::Instruction;
using Edit = gpu::emu::Mutation::Edit;
constexpr auto kPrefill = AttentionKernel::prefill, kDecode = AttentionKernel::decode,
               kCluster = AttentionKernel::cluster, kHopper = AttentionKernel::hopper,
               kRouted = AttentionKernel::routed, kWide = AttentionKernel::wide,
               kStationary = AttentionKernel::stationary, kTransposed = AttentionKernel::transposed,
               kUnited = AttentionKernel::united;
constexpr std::string_view kPrefillEntry = "attention_prefill_d64", kDecodeEntry = "attention_decode_d64",
                           kClusterEntry = "attention_cluster_d64", kHopperEntry = "attention_hopper_d64",
                           kGateEntry = "moba_gate_d64", kCentroidEntry = "moba_centroids",
                           kCombineEntry = "attention_combine", kRoutedEntry = "moba_routed_d64",
                           kMergeEntry = "moba_merge_d64", kWideEntry = "moba_wide_d64",
                           kMergeHopperEntry = "moba_merge_hopper_d64", kStationaryEntry = "moba_stationary_d64",
                           kTransposedEntry = "moba_transposed_d64",
                           kPrefillCodesEntry = "attention_prefill_e4m3_d64",
                           kDecodeCodesEntry = "attention_decode_e4m3_d64";
constexpr GpuRun kMoba{.attention = "moba:block=64,top_k=2"}, kMobaOfThree{.attention = "moba:block=64,top_k=3"};
constexpr GpuRun kCodes{.dtype = Dtype::f8_e4m3};
// More blocks than the first CTA scores: eight warps, eight blocks each.
constexpr GpuRun kClusterMoba{.attention = "moba:block=64,top_k=3", .tokens = 6000};

constexpr GpuMutant kMutants[] = {
#include "gpu_mutants.inc"
};

constexpr GpuSweep kSweeps[] = {
    {kPrefill, "attention_prefill_d64", {.attention = "moba:block=64,top_k=2"}},
    {kDecode, "attention_decode_d64", {.attention = "moba:block=64,top_k=2"}},
    {kPrefill, "moba_gate_d64", {.attention = "moba:block=64,top_k=3", .tokens = 4400}},
    {kDecode, "moba_scores_d64", {.attention = "moba:block=64,top_k=2"}},
    {kDecode, "moba_choose_d64", {.attention = "moba:block=64,top_k=3"}},
    {kPrefill, "attention_prefill_e4m3_d64", {.dtype = Dtype::f8_e4m3}},
    {kDecode, "attention_decode_e4m3_d64", {.dtype = Dtype::f8_e4m3}},
    {kCluster, "attention_cluster_d64", {.attention = "moba:block=64,top_k=2"}},
    {kHopper, "attention_hopper_d64", {.attention = "moba:block=64,top_k=3", .tokens = 460}},
    {kRouted, "moba_count", {.attention = "moba:block=64,top_k=2"}},
    {kRouted, "moba_offsets", {.attention = "moba:block=64,top_k=2", .tokens = 8300}},
    {kRouted, "moba_lists", {.attention = "moba:block=64,top_k=2"}},
    {kRouted, "moba_routed_d64", kLargeBlocks},
    {kRouted, "moba_merge_d64", kLargeBlocks},
    {kWide, "moba_wide_d64", kLargeBlocks},
    {kWide, "moba_merge_hopper_d64", kLargeBlocks},
    {kStationary, "moba_stationary_d64", kLongList},
    {kTransposed, "moba_transposed_d64", kLargeBlocks},
    {kUnited, "moba_unite", {.attention = "moba:block=64,top_k=3"}},
    {kUnited, "moba_merge_hopper_d64", {.attention = "moba:block=64,top_k=3"}},
};

}  // namespace

std::span<const GpuMutant> gpu_mutants() {
  return kMutants;
}

std::span<const GpuSweep> gpu_sweeps() {
  return kSweeps;
}

Result<gpu::emu::Mutation> mutate(const GpuMutant& mutant, const std::vector<gpu::emu::Site>& sites) {
  std::vector<gpu::emu::Site> found;
  std::copy_if(sites.begin(), sites.end(), std::back_inserter(found), [&](const gpu::emu::Site& site) {
    return site.instruction == mutant.instruction && site.function == mutant.function;
  });
  std::sort(found.begin(), found.end());
  if (found.size() >= static_cast<size_t>(mutant.nth))
    return gpu::emu::Mutation{
        .site = found[static_cast<size_t>(mutant.nth) - 1], .edit = mutant.edit, .argument = mutant.argument};
  return Error{Code::not_found, "mutant '" + std::string(mutant.name) + "': " + std::string(mutant.function) +
                                    " has no call " + std::to_string(mutant.nth) + " of " +
                                    std::string(to_string(mutant.instruction)) + " that the run passes"};
}

bool is_synchronisation(Instruction instruction) {
  constexpr Instruction kAll[] = {Instruction::cp_async_commit, Instruction::cp_async_wait,
                                  Instruction::bar_sync,        Instruction::bar_arrive,
                                  Instruction::warp_sync,       Instruction::mbarrier_init_fence,
                                  Instruction::mbarrier_arrive, Instruction::mbarrier_arrive_expect,
                                  Instruction::mbarrier_wait,   Instruction::fence_async,
                                  Instruction::wgmma_fence,     Instruction::wgmma_commit,
                                  Instruction::wgmma_wait,      Instruction::cp_async_arrive,
                                  Instruction::fence_gpu,       Instruction::bulk_commit,
                                  Instruction::bulk_wait,       Instruction::cluster_arrive,
                                  Instruction::cluster_wait,    Instruction::griddep_wait};
  return std::find(std::begin(kAll), std::end(kAll), instruction) != std::end(kAll);
}

}  // namespace mc::bench

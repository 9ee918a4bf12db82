// The table of the kernels that the host compiler compiled.
#include <utility>
#include <vector>

#include "gpu/kernels/attention.h"
#include "gpu/kernels/decode.h"
#include "gpu/kernels/draw.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/gate.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/layer.h"
#include "gpu/kernels/quantise.h"
#include "gpu/kernels/trial.h"
#include "gpu/ptx/base.cuh"

namespace mc::gpu {

void attention_prefill_d64(const AttentionArgs& args);
void attention_prefill_d128(const AttentionArgs& args);
void attention_decode_d64(const AttentionArgs& args);
void attention_decode_d128(const AttentionArgs& args);
void attention_prefill_e4m3_d64(const AttentionArgs& args);
void attention_prefill_e4m3_d128(const AttentionArgs& args);
void attention_decode_e4m3_d64(const AttentionArgs& args);
void attention_decode_e4m3_d128(const AttentionArgs& args);
void attention_combine(const AttentionArgs& args, int32_t head_dim);
void attention_hopper_d64(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void attention_hopper_d128(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_unite(const AttentionArgs& args);
void moba_count(const AttentionArgs& args);
void moba_offsets(const AttentionArgs& args);
void moba_lists(const AttentionArgs& args);
void moba_routed_d64(const AttentionArgs& args);
void moba_routed_d128(const AttentionArgs& args);
void moba_merge_d64(const AttentionArgs& args);
void moba_merge_d128(const AttentionArgs& args);
void moba_wide_d64(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_wide_d128(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_stationary_d64(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_stationary_d128(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_transposed_d64(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_transposed_d128(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_merge_hopper_d64(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void moba_merge_hopper_d128(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map);
void attention_cluster_d64(const AttentionArgs& args, int32_t keeps_selection);
void attention_cluster_d128(const AttentionArgs& args, int32_t keeps_selection);
void moba_centroids(const CentroidArgs& args);
void moba_gate_d64(const GateArgs& args);
void moba_gate_d128(const GateArgs& args);
void moba_scores_d64(const ScoreArgs& args);
void moba_scores_d128(const ScoreArgs& args);
void moba_choose_d64(const ScoreArgs& args);
void moba_choose_d128(const ScoreArgs& args);
void embed_rows(const EmbedArgs& args);
void rms_norm(const NormArgs& args);
void add_to_rows(const AddArgs& args);
void silu_mul(const SiluArgs& args);
void rotate_and_keep(const RotateArgs& args);
void code_rows(const CodeArgs& args);
void gather_rows(const GatherArgs& args);
void seal_pages(const SealArgs& args);
void checksum_extents(const ChecksumArgs& args);
void count_tokens(const CountArgs& args);
void draw_rows(const DrawArgs& args);
void product_64(const ProductArgs& args);
void product_16(const ProductArgs& args);
void quantise_rows(const QuantiseArgs& args);
void take_rows(const TakeRowsArgs& args);
void route_rows(const RouteArgs& args);
void group_rows(const GroupArgs& args);
void combine_experts(const CombineArgs& args);
void expert_product_64(const ExpertProductArgs& args);
void expert_product_16(const ExpertProductArgs& args);
void trial_ldmatrix(const TrialArgs& args);
void trial_mma(const TrialArgs& args);
void trial_shuffle(const TrialArgs& args);
void trial_shuffle_from(const TrialArgs& args);
void trial_bits(const TrialArgs& args);
void trial_place(const TrialArgs& args);
void trial_shared(const TrialArgs& args);
void trial_numbers(const TrialArgs& args);
void trial_pack(const TrialArgs& args);
void trial_exp2(const TrialArgs& args);
void trial_cp_async(const TrialArgs& args);
void trial_atomics(const TrialArgs& args);
void trial_message(const TrialArgs& args);
void trial_barriers(const TrialArgs& args);
void trial_mbarrier(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_cp_async_arrive(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_load_box(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_store_box(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_reduce_box(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_stmatrix(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_shared(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_columns(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_transposed(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_transposed_64(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_groups(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_registers_64(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_registers_k(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_wgmma_registers_128(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_registers(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_dependents(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_cluster(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);
void trial_multicast(const TrialArgs& args, const TensorMap& in_map, const TensorMap& out_map);

namespace {

std::vector<emu::Kernel> serving_kernels() {
  return {
      emu::make_kernel("attention_prefill_d64", kThreads, attention_prefill_d64),
      emu::make_kernel("attention_prefill_d128", kThreads, attention_prefill_d128),
      emu::make_kernel("attention_decode_d64", kThreads, attention_decode_d64),
      emu::make_kernel("attention_decode_d128", kThreads, attention_decode_d128),
      emu::make_kernel("attention_prefill_e4m3_d64", kThreads, attention_prefill_e4m3_d64),
      emu::make_kernel("attention_prefill_e4m3_d128", kThreads, attention_prefill_e4m3_d128),
      emu::make_kernel("attention_decode_e4m3_d64", kThreads, attention_decode_e4m3_d64),
      emu::make_kernel("attention_decode_e4m3_d128", kThreads, attention_decode_e4m3_d128),
      emu::make_kernel("attention_combine", kThreads, attention_combine),
      emu::make_kernel("attention_hopper_d64", kHopperThreads, attention_hopper_d64),
      emu::make_kernel("attention_hopper_d128", kHopperThreads, attention_hopper_d128),
      emu::make_kernel("moba_unite", kThreads, moba_unite),
      emu::make_kernel("moba_count", kIndexThreads, moba_count),
      emu::make_kernel("moba_offsets", kOffsetsThreads, moba_offsets),
      emu::make_kernel("moba_lists", kIndexThreads, moba_lists),
      emu::make_kernel("moba_routed_d64", kThreads, moba_routed_d64),
      emu::make_kernel("moba_routed_d128", kThreads, moba_routed_d128),
      emu::make_kernel("moba_merge_d64", kThreads, moba_merge_d64),
      emu::make_kernel("moba_merge_d128", kThreads, moba_merge_d128),
      emu::make_kernel("moba_wide_d64", kHopperThreads, moba_wide_d64),
      emu::make_kernel("moba_wide_d128", kHopperThreads, moba_wide_d128),
      emu::make_kernel("moba_stationary_d64", kStationaryThreads, moba_stationary_d64),
      emu::make_kernel("moba_stationary_d128", kStationaryThreads, moba_stationary_d128),
      emu::make_kernel("moba_transposed_d64", kThreads, moba_transposed_d64),
      emu::make_kernel("moba_transposed_d128", kThreads, moba_transposed_d128),
      emu::make_kernel("moba_merge_hopper_d64", kHopperThreads, moba_merge_hopper_d64),
      emu::make_kernel("moba_merge_hopper_d128", kHopperThreads, moba_merge_hopper_d128),
      emu::make_kernel("attention_cluster_d64", kClusterThreads, attention_cluster_d64, kClusterCtas),
      emu::make_kernel("attention_cluster_d128", kClusterThreads, attention_cluster_d128, kClusterCtas),
      emu::make_kernel("moba_centroids", kThreads, moba_centroids),
      emu::make_kernel("moba_gate_d64", kThreads, moba_gate_d64),
      emu::make_kernel("moba_gate_d128", kThreads, moba_gate_d128),
      emu::make_kernel("moba_scores_d64", kThreads, moba_scores_d64),
      emu::make_kernel("moba_scores_d128", kThreads, moba_scores_d128),
      emu::make_kernel("moba_choose_d64", kChooseThreads, moba_choose_d64),
      emu::make_kernel("moba_choose_d128", kChooseThreads, moba_choose_d128),
      emu::make_kernel("embed_rows", kThreads, embed_rows),
      emu::make_kernel("rms_norm", kThreads, rms_norm),
      emu::make_kernel("add_to_rows", kThreads, add_to_rows),
      emu::make_kernel("silu_mul", kThreads, silu_mul),
      emu::make_kernel("rotate_and_keep", kThreads, rotate_and_keep),
      emu::make_kernel("code_rows", kThreads, code_rows),
      emu::make_kernel("gather_rows", kThreads, gather_rows),
      emu::make_kernel("seal_pages", kThreads, seal_pages),
      emu::make_kernel("checksum_extents", kThreads, checksum_extents),
      emu::make_kernel("count_tokens", kThreads, count_tokens),
      emu::make_kernel("draw_rows", kDrawThreads, draw_rows),
      emu::make_kernel("product_64", kThreads, product_64),
      emu::make_kernel("product_16", kThreads, product_16),
      emu::make_kernel("quantise_rows", kThreads, quantise_rows),
      emu::make_kernel("take_rows", kThreads, take_rows),
      emu::make_kernel("route_rows", kThreads, route_rows),
      emu::make_kernel("group_rows", kThreads, group_rows),
      emu::make_kernel("combine_experts", kThreads, combine_experts),
      emu::make_kernel("expert_product_64", kThreads, expert_product_64),
      emu::make_kernel("expert_product_16", kThreads, expert_product_16),
  };
}
std::vector<emu::Kernel> trial_kernels() {
  return {
      emu::make_kernel("trial_ldmatrix", kTrialThreads, trial_ldmatrix),
      emu::make_kernel("trial_mma", kTrialThreads, trial_mma),
      emu::make_kernel("trial_shuffle", kTrialThreads, trial_shuffle),
      emu::make_kernel("trial_shuffle_from", kTrialThreads, trial_shuffle_from),
      emu::make_kernel("trial_bits", kTrialThreads, trial_bits),
      emu::make_kernel("trial_place", kTrialThreads, trial_place),
      emu::make_kernel("trial_shared", kTrialThreads, trial_shared),
      emu::make_kernel("trial_numbers", kTrialThreads, trial_numbers),
      emu::make_kernel("trial_pack", kTrialThreads, trial_pack),
      emu::make_kernel("trial_exp2", kTrialThreads, trial_exp2),
      emu::make_kernel("trial_cp_async", kTrialThreads, trial_cp_async),
      emu::make_kernel("trial_atomics", kTrialThreads, trial_atomics),
      emu::make_kernel("trial_message", kTrialThreads, trial_message),
      emu::make_kernel("trial_barriers", kTrialThreads, trial_barriers),
      emu::make_kernel("trial_mbarrier", kTrialThreads, trial_mbarrier),
      emu::make_kernel("trial_cp_async_arrive", kTrialThreads, trial_cp_async_arrive),
      emu::make_kernel("trial_load_box", kTrialThreads, trial_load_box),
      emu::make_kernel("trial_store_box", kTrialThreads, trial_store_box),
      emu::make_kernel("trial_reduce_box", kTrialThreads, trial_reduce_box),
      emu::make_kernel("trial_stmatrix", kTrialThreads, trial_stmatrix),
      emu::make_kernel("trial_wgmma_shared", kTrialThreads, trial_wgmma_shared),
      emu::make_kernel("trial_wgmma_columns", kTrialThreads, trial_wgmma_columns),
      emu::make_kernel("trial_wgmma_transposed", kTrialThreads, trial_wgmma_transposed),
      emu::make_kernel("trial_wgmma_transposed_64", kTrialThreads, trial_wgmma_transposed_64),
      emu::make_kernel("trial_wgmma_groups", kTrialThreads, trial_wgmma_groups),
      emu::make_kernel("trial_wgmma_registers_64", kTrialThreads, trial_wgmma_registers_64),
      emu::make_kernel("trial_wgmma_registers_k", kTrialThreads, trial_wgmma_registers_k),
      emu::make_kernel("trial_wgmma_registers_128", kTrialThreads, trial_wgmma_registers_128),
      emu::make_kernel("trial_registers", kTrialGroups * kTrialThreads, trial_registers),
      emu::make_kernel("trial_dependents", kTrialThreads, trial_dependents),
      emu::make_kernel("trial_cluster", kTrialThreads, trial_cluster, 2),
      emu::make_kernel("trial_multicast", kTrialThreads, trial_multicast, 2),
  };
}

}  // namespace

std::span<const emu::Kernel> emulated_kernels() {
  static const std::vector<emu::Kernel> kKernels = [] {
    std::vector<emu::Kernel> all = serving_kernels();
    for (emu::Kernel& trial : trial_kernels()) all.push_back(std::move(trial));
    return all;
  }();
  return kKernels;
}

}  // namespace mc::gpu

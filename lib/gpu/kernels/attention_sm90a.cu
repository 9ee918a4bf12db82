// Prefill attention for Hopper (attend_hopper.cuh), for head dimensions 64 and 128. Code for sm_90a runs on compute
// capability 9.0 alone.
#include "gpu/kernels/attend_hopper.cuh"

namespace mc::gpu {

MC_KERNEL(attention_hopper_d64, (kHopperThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_hopper<64>(args, k_map, v_map);
}
MC_KERNEL(attention_hopper_d128, (kHopperThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_hopper<128>(args, k_map, v_map);
}

}  // namespace mc::gpu

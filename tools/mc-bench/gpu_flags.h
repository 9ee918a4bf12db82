// The flags of `mc-bench gpu`.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn_case.h"
#include "base/errors.h"
#include "gpu/attention.h"
#include "gpu/devices.h"
#include "gpu_model.h"
#include "print.h"
#include "product/flags.h"

namespace mc::bench {

inline constexpr std::pair<std::string_view, gpu::AttentionKernel> kGpuKernelNames[] = {
    {"prefill", gpu::AttentionKernel::prefill},       {"decode", gpu::AttentionKernel::decode},
    {"cluster", gpu::AttentionKernel::cluster},       {"hopper", gpu::AttentionKernel::hopper},
    {"routed", gpu::AttentionKernel::routed},         {"wide", gpu::AttentionKernel::wide},
    {"stationary", gpu::AttentionKernel::stationary}, {"transposed", gpu::AttentionKernel::transposed},
    {"united", gpu::AttentionKernel::united},         {"mixed", gpu::AttentionKernel::automatic}};
inline std::vector<std::string_view> gpu_kernels() {
  std::vector<std::string_view> names;
  for (const auto& [name, kernel] : kGpuKernelNames) names.push_back(name);
  return names;
}
inline constexpr Flag kGpuKernels{
    .name = "kernel",
    .kind = FlagKind::list,
    .value = "K,K",
    .fallback = "prefill,decode,cluster,hopper,routed,wide,stationary,transposed,united",
    .help =
        "prefill and decode of sm_80; cluster: decode in one launch and hopper: prefill by TMA "
        "and wgmma, both of sm_90a; routed, on sm_80, and wide, stationary, transposed and united, "
        "on sm_90a: MoBA prefill by key blocks; "
        "mixed: chunks of prompts beside decode rows, each with the kernel that its rows ask for",
    .table = gpu_kernels};
inline Result<void> check_device(std::string_view value) {
  MC_TRY(choice, gpu::parse_device(value));
  const bool is_plain = choice == gpu::DeviceChoice{.kind = choice.kind, .index = choice.index};
  if (choice.kind != gpu::DeviceKind::cpu && is_plain) return {};
  return user_error(err::kBadValue, "'" + std::string(value) + "' is no GPU", "--device", "write emu or cuda:0");
}
inline constexpr Flag kGpuDevice{.name = "device",
                                 .value = "D",
                                 .fallback = "emu",
                                 .help = "emu: the emulator; cuda:N: GPU number N",
                                 .check = check_device};
inline constexpr Flag kGpuTokens{.name = "tokens",
                                 .letter = 'n',
                                 .kind = FlagKind::sweep_counts,
                                 .value = "N,N",
                                 .fallback = "1,65,200",
                                 .help = "lengths of the longest sequence"};
inline constexpr Flag kGpuPlans{.name = "attention",
                                .kind = FlagKind::list,
                                .value = "PLAN,PLAN",
                                .fallback = "full,window:tokens=70,moba:block=64,top_k=2",
                                .help = "plans, each a case of its own"};
inline constexpr Flag kGpuDims{.name = "head-dim",
                               .kind = FlagKind::sweep_counts,
                               .value = "N,N",
                               .fallback = "64,128",
                               .help = "head dimensions"};
inline std::vector<std::string_view> gpu_dtypes() {
  return {to_string(Dtype::bf16), to_string(Dtype::f8_e4m3)};
}
inline constexpr Flag kGpuDtypes{.name = "dtype",
                                 .kind = FlagKind::list,
                                 .value = "T,T",
                                 .fallback = "bf16",
                                 .help = "types of K and V; prefill and decode of sm_80 read fp8_e4m3",
                                 .table = gpu_dtypes};
inline constexpr Flag kGpuSplits{
    .name = "splits",
    .kind = FlagKind::sweep_counts,
    .value = "N,N",
    .fallback = "1",
    .help = "CTAs that share the keys of a row tile, 1 to 64; 0, with --speed: by the length"};
inline constexpr Flag kGpuWave{.name = "wave",
                               .kind = FlagKind::bytes,
                               .value = "SIZE",
                               .fallback = "0",
                               .help = "bytes of a wave of MoBA prefill by key blocks; 0: by the device's memory"};
inline constexpr Flag kGpuSchedules{.name = "schedules",
                                    .kind = FlagKind::count,
                                    .value = "N",
                                    .fallback = "1",
                                    .help =
                                        "seeds of each policy and case, up to 10000; 0: each attention case and each "
                                        "mutant of one runs under one policy, by turns",
                                    .check = flags::check_between<0, 10'000>};
inline constexpr Flag kGpuChecks{.name = "no-checks",
                                 .kind = FlagKind::boolean,
                                 .help = "switch the ordering rules off, to see what schedules alone find"};

inline constexpr Flag kGpuMutants{
    .name = "mutants",
    .kind = FlagKind::boolean,
    .help =
        "run broken variants of the kernels in --kernel; each must be reported. With all "
        "kernels of the default, those of mixtures of experts and of instruction trials run too"};

inline constexpr Flag kGpuInstructions{.name = "instructions",
                                       .kind = FlagKind::boolean,
                                       .help = "run each instruction alone and compare it with the emulator"};
inline constexpr Flag kGpuExperts{
    .name = "experts", .kind = FlagKind::boolean, .help = "run mixtures of experts and compare them with a reference"};
inline constexpr Flag kGpuProducts{
    .name = "products",
    .kind = FlagKind::boolean,
    .help = "run matrix products of bf16 and fp8 by the own kernels and by cuBLASLt; on a GPU they are timed as well"};
inline constexpr Flag kGpuSpeed{
    .name = "speed",
    .kind = FlagKind::boolean,
    .help = "time the kernels on a GPU and compare nothing; the emulator only rehearses it"};
inline constexpr Flag kGpuSteps{.name = "steps",
                                .kind = FlagKind::boolean,
                                .help = "time decode steps of mc-tiny: one by one, queued ahead, and as graphs"};
inline constexpr Flag kGpuShape{.name = "shape",
                                .kind = FlagKind::choice,
                                .value = "S",
                                .fallback = "mc-tiny",
                                .help = "--steps: mc-tiny, or a Llama of this shape with random weights",
                                .table = shape_names};
inline constexpr Flag kGpuBatch{.name = "batch",
                                .kind = FlagKind::sweep_counts,
                                .value = "N,N",
                                .fallback = "1",
                                .help = "--speed, --steps: sequences of a batch"};
inline constexpr Flag kGpuHeads =
    with_default(kHeads, "32/8", "--speed: query heads and KV heads; other cases draw theirs");

inline constexpr Flag kGpuRouting{
    .name = "routing",
    .kind = FlagKind::choice,
    .value = "R",
    .fallback = "random",
    .help =
        "--speed: random: each query head of a row chooses its own MoBA blocks; coherent: the heads of a group and "
        "neighbouring rows choose alike",
    .choices = "random|coherent"};

inline constexpr auto kGpuFlagTable =
    flags::join(flags::list(&kGpuDevice, &kGpuKernels, &kGpuTokens, &kGpuPlans, &kGpuDims, &kGpuDtypes, &kGpuSplits,
                            &kGpuWave, &kGpuSchedules, &kGpuChecks, &kGpuMutants, &kGpuInstructions, &kGpuExperts,
                            &kGpuProducts, &kGpuSpeed, &kGpuSteps, &kGpuShape, &kGpuBatch, &kGpuRouting, &kGpuHeads,
                            &flags::kBlockTokens, &flags::kSeed, &kFormat, &flags::kOutput, &flags::kQuiet),
                flags::kEveryRun);

}  // namespace mc::bench

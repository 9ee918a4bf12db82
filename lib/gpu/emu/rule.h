// The rules whose breach ends a run of the emulator. shadow.h and emu.h say when each is broken.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mc::gpu::emu {

enum class Rule : uint8_t {
  accumulator,
  alignment,
  bank_conflict,
  barrier,
  bounds,
  cluster,
  cublaslt,
  deadlock,
  dependency,
  divergence,
  endless,
  exit,
  in_flight,
  launch,
  nccl,
  proxy,
  race,
  registers,
  reused,
  stream_order,
  tensor_map,
  uninitialised,
  wgmma,
  wgmma_fence,
};

inline constexpr std::array<std::string_view, 24> kRuleNames = {
    "accumulator", "alignment",    "bank conflict", "barrier",       "bounds",  "cluster",
    "cublasLt",    "deadlock",     "dependency",    "divergence",    "endless", "exit",
    "in-flight",   "launch",       "nccl",          "proxy",         "race",    "registers",
    "reused",      "stream order", "tensor map",    "uninitialised", "wgmma",   "wgmma fence"};
static_assert(kRuleNames.size() == static_cast<size_t>(Rule::wgmma_fence) + 1);

constexpr std::string_view to_string(Rule rule) {
  return kRuleNames[static_cast<size_t>(rule)];
}

}  // namespace mc::gpu::emu

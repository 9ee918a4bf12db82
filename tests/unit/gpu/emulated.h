// A kernel of a few lines in the emulator: the body of a thread, a buffer `out` of 32-bit words, and a tensor map.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gpu/emu/emu.h"
#include "gpu/emu/tensor_map.h"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/bulk.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "test.h"

namespace mc::gpu::tested {

/// The parameters of a test kernel.
struct Args {
  uint32_t* out = nullptr;
  TensorMap map;
};
using Body = std::function<void(const Args&)>;

inline uint32_t tid() {
  return ptx::tid_x();
}

struct Outcome {
  std::string rule;  // empty: no rule was broken
  std::string text;
  std::vector<uint32_t> out;
  std::vector<uint16_t> tensor;  // after the run
  emu::Counters counters;
};

struct Setting {
  uint32_t threads = 32, shared = 16384, words = 1024;
  emu::Policy policy = emu::Policy::in_order;
  uint64_t seed = 0;
  uint32_t ctas = 1, cluster = 1;
  uint32_t conflicts_max = 31;
  std::vector<uint16_t> tensor;  // a matrix of rows of 128 bytes, which the kernel parameter describes
  bool is_f32 = false;           // its elements; else they are bf16
  uint32_t box_rows = 8;
};

inline Outcome run_body(const Body& body, const Setting& setting = {}) {
  Outcome out;
  emu::DeviceMemory memory;
  const uint64_t address = memory.allocate(setting.words * 4, "out");
  out.out.assign(setting.words, 0);
  memory.write(address, std::as_bytes(std::span(out.out)));
  Args args{.out = reinterpret_cast<uint32_t*>(address)};
  uint64_t tensor = 0;
  if (!setting.tensor.empty()) {
    tensor = memory.allocate(setting.tensor.size() * 2, "tensor");
    memory.write(tensor, std::as_bytes(std::span(setting.tensor)));
    emu::TensorMapBytes map{.base = tensor, .rank = 4, .swizzled = 1};
    map.is_f32 = setting.is_f32 ? 1 : 0;
    map.dims[0] = map.box[0] = setting.is_f32 ? 32 : 64;
    map.dims[1] = setting.tensor.size() / 64;
    map.strides[0] = setting.is_f32 ? 4 : 2;
    map.strides[1] = map.strides[2] = map.strides[3] = 128;
    map.box[1] = setting.box_rows;
    std::memcpy(args.map.bytes, &map, sizeof map);
  }
  const emu::Kernel kernel{"k", 1024, sizeof args, setting.conflicts_max,
                           [&](const std::byte* params) { body(*reinterpret_cast<const Args*>(params)); }};
  const emu::Launch launch{.grid = {setting.ctas, 1, 1},
                           .block = setting.threads,
                           .dynamic_shared = setting.shared,
                           .cluster = setting.cluster,
                           .params = std::as_bytes(std::span(&args, 1))};
  const emu::Report report =
      emu::run(kernel, memory, launch, {.seed = setting.seed, .policy = setting.policy, .steps_max = 1'000'000});
  if (report.failure) {
    out.rule = to_string(report.failure->rule);
    out.text = report.failure->text;
  }
  out.counters = report.counters;
  memory.read(address, std::as_writable_bytes(std::span(out.out)));
  out.tensor.resize(setting.tensor.size());
  if (tensor != 0) memory.read(tensor, std::as_writable_bytes(std::span(out.tensor)));
  return out;
}

/// Runs under every policy and three seeds; "" when no run broke a rule, else the rule, which must be one for all runs.
inline std::string rule_of(const Body& body, Setting setting = {}) {
  std::vector<std::string> found;
  int runs = 0, broken = 0;
  for (int policy = 0; policy < emu::kPolicies; ++policy)
    for (uint64_t seed = 0; seed < 3; ++seed, ++runs) {
      setting.policy = static_cast<emu::Policy>(policy);
      setting.seed = test::seed() + seed;
      const Outcome o = run_body(body, setting);
      if (o.rule.empty()) continue;
      ++broken;
      if (std::find(found.begin(), found.end(), o.rule) == found.end()) found.push_back(o.rule);
    }
  std::sort(found.begin(), found.end());
  std::string all;
  for (const std::string& rule : found) all += (all.empty() ? "" : "|") + rule;
  return broken == 0 || broken == runs ? all : "sometimes " + all;
}

}  // namespace mc::gpu::tested

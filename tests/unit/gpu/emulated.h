// A kernel of a few lines in the emulator: PTX text around a body, a buffer `out` of 32-bit words as its one parameter
// (%rd1 holds its address), and the registers that bodies use.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "gpu/emu/emu.h"
#include "gpu/emu/tensor_map.h"
#include "gpu/ptx/ptx.h"
#include "test.h"

namespace mc::gpu::tested {

inline std::string kernel_text(const std::string& body) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"
         ".visible .entry k(.param .u64 k_out, .param .align 64 .b8 k_map[128])\n{\n"
         ".reg .pred %p<16>;\n.reg .b16 %h<16>;\n.reg .b32 %r<64>;\n.reg .f32 %f<64>;\n.reg .b64 %rd<16>;\n"
         "ld.param.u64 %rd1, [k_out];\nmov.u32 %r0, %tid.x;\n" +
         body + "\nret;\n}\n";
}

struct Outcome {
  std::string rule;  // empty: no rule was broken
  std::string text;
  std::vector<uint32_t> out;
  emu::Counters counters;
};

struct Setting {
  uint32_t threads = 32, shared = 16384, words = 1024;
  emu::Policy policy = emu::Policy::in_order;
  uint64_t seed = 0;
  uint32_t ctas = 1;
  std::vector<uint16_t> tensor;  // a matrix of 64 columns, which the kernel parameter describes
  uint32_t box_rows = 8;
};

inline Outcome run_body(const std::string& body, const Setting& setting = {}) {
  Outcome out;
  const std::string text = kernel_text(body);
  auto module = ptx::parse(text);
  REQUIRE_OK(module);
  auto program = emu::Program::load(*module, "k");
  REQUIRE_OK(program);
  emu::DeviceMemory memory;
  const uint64_t address = memory.allocate(setting.words * 4, "out");
  out.out.assign(setting.words, 0);
  memory.write(address, std::as_bytes(std::span(out.out)));
  std::vector<std::byte> params(192);
  std::memcpy(params.data(), &address, 8);
  if (!setting.tensor.empty()) {
    const uint64_t tensor = memory.allocate(setting.tensor.size() * 2, "tensor");
    memory.write(tensor, std::as_bytes(std::span(setting.tensor)));
    emu::TensorMapBytes map{.base = tensor, .rank = 2, .swizzled = 1};
    map.dims[0] = 64;
    map.dims[1] = setting.tensor.size() / 64;
    map.strides[0] = 2;
    map.strides[1] = 128;
    map.box[0] = 64;
    map.box[1] = setting.box_rows;
    std::memcpy(params.data() + 64, &map, sizeof map);
  }
  const emu::Launch launch{
      .grid = {setting.ctas, 1, 1}, .block = setting.threads, .dynamic_shared = setting.shared, .params = params};
  const emu::Report report =
      emu::run(*program, memory, launch, {.seed = setting.seed, .policy = setting.policy, .steps_max = 1'000'000});
  if (report.failure) {
    out.rule = report.failure->rule;
    out.text = report.failure->text;
  }
  out.counters = report.counters;
  memory.read(address, std::as_writable_bytes(std::span(out.out)));
  return out;
}

}  // namespace mc::gpu::tested

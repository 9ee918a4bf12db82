// links: gpu
// PTX text: whatever parses and decodes runs for a bounded number of instructions, and no byte outside the emulated
// memories is touched (the sanitizers' builds watch). Each input is tried as text, and once more as a choice of
// statements, to get behind the parser.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/emu/emu.h"

namespace {

using namespace mc::gpu;

const std::string kHead =
    ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"
    ".visible .entry k(.param .u64 a, .param .align 64 .b8 map[128])\n{\n.reg .pred %p<4>;\n.reg .b32 %r<16>;\n"
    ".reg .f32 %f<16>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [a];\nmov.u32 %r0, %tid.x;\nshl.b32 %r1, %r0, 4;\n"
    "mov.u32 %r2, 2048;\nmov.u32 %r3, 0;\nmov.b64 %rd2, 0x4000004000010000;\nmov.f32 %f0, 0f00000000;\n"
    "setp.lt.u32 %p1, %r0, 7;\nstart:\n";
const std::string_view kStatements[] = {
    "st.shared.u32 [%r1], %r0;",
    "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r1];",
    "bar.sync 0;",
    "bar.warp.sync -1;",
    "@%p1 bra start;",
    "@!%p1 bra end;",
    "setp.lt.u32 %p1, %r0, %r3;",
    "add.s32 %r3, %r3, 5;",
    "cp.async.cg.shared.global [%r1], [%rd1], 16, %r3;",
    "cp.async.cg.shared.global [%r1], [%rd1+32], 16;",
    "cp.async.commit_group;",
    "cp.async.wait_group 0;",
    "cp.async.wait_group 1;",
    "@%p1 ret;",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r1];",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r4,%r5,%r6,%r7}, {%r4,%r5}, "
    "{%f0,%f1,%f2,%f3};",
    "shfl.sync.bfly.b32 %r3|%p2, %r0, 3, 31, -1;",
    "atom.shared.add.u32 %r4, [%r3], 1;",
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 7;",
    "mbarrier.arrive.shared::cta.b64 _, [%r2];",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;",
    "fence.mbarrier_init.release.cluster;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;",
    "fence.proxy.async;",
    "st.global.u32 [%rd1+8], %r0;",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd1, {%r3, %r3}], "
    "[%r2];",
    "wgmma.fence.sync.aligned;",
    "wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group.sync.aligned 0;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0,%f1,%f2,%f3}, %rd2, %rd2, %p1, 1, 1, 0, 0;",
    "mad.wide.u32 %rd1, %r0, 16, %rd1;",
    "div.s32 %r3, %r3, %r0;",
    "shl.b32 %r3, %r3, %r0;",
    "ld.u32 %r3, [%rd1];"};

void try_text(std::string_view text, uint64_t seed) {
  const auto module = ptx::parse(text);
  if (!module) return;
  for (const ptx::Kernel& kernel : module->kernels) {
    const auto program = emu::Program::load(*module, kernel.name);
    if (!program) continue;
    emu::DeviceMemory memory;
    const uint64_t address = memory.allocate(4096, "buffer");
    memory.write(address, std::vector<std::byte>(4096));
    std::vector<std::byte> params(kernel.param_bytes);
    for (size_t at = 0; at + 8 <= params.size(); at += 8)
      for (size_t i = 0; i < 8; ++i) params[at + i] = static_cast<std::byte>(address >> (8 * i));
    emu::run(*program, memory, {.block = 128, .dynamic_shared = 4096, .params = params},
             {.seed = seed, .policy = static_cast<emu::Policy>(seed % 3), .checks = seed % 5 != 0, .steps_max = 500});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try_text({reinterpret_cast<const char*>(data), size}, size);
  std::string text = kHead;
  for (size_t i = 0; i < size && i < 40; ++i) text += std::string(kStatements[data[i] % std::size(kStatements)]) + "\n";
  try_text(text + "end: ret;\n}\n", size);
  return 0;
}

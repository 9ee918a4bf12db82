// Instructions of one lane that read and write memory (PTX ISA 9.0, sections 9.7.9.8 to 9.7.9.12 and 9.7.13.6).
#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

void touch_shared(uint32_t address, uint32_t bytes, Access access) {
  Cta& cta = running_cta();
  if (!cta.grid.options.checks) return;
  if (const Conflict found =
          cta.shadow.touch(running_warp().agent, running().bit(), address, bytes, access, Proxy::generic))
    fail(found);
}

void check_aligned(uint64_t address, uint32_t alignment) {
  if (address % alignment != 0)
    fail("alignment", "the address " + hex(address) + " is no multiple of " + std::to_string(alignment));
}

}  // namespace

std::byte* shared_bytes(uint32_t address, uint32_t bytes, uint32_t alignment, int lane) {
  Cta& cta = running_cta();
  const uint32_t size = cta.grid.launch.dynamic_shared;
  if (address < cta.dynamic_start || address - cta.dynamic_start > size || bytes > size - (address - cta.dynamic_start))
    fail("bounds",
         std::to_string(bytes) + " bytes at shared " + hex(address) + " lie outside the " + std::to_string(size) +
             " bytes from " + hex(cta.dynamic_start),
         lane);
  if (address % alignment != 0)
    fail("alignment", "shared " + hex(address) + " is no multiple of " + std::to_string(alignment), lane);
  return cta.shared.data() + address;
}

/// The start is drawn: a kernel that wants more alignment than it states fails under some seeds.
uint32_t dynamic_shared(uint32_t alignment) {
  Cta& cta = running_cta();
  if (!cta.dynamic_known) {
    MC_ASSERT_LE(alignment + cta.grid.launch.dynamic_shared, cta.shared.size());
    cta.dynamic_known = true;
    cta.dynamic_start = alignment * static_cast<uint32_t>(cta.grid.rng.below(2));
  }
  return cta.dynamic_start;
}

void load_global(uint64_t from, void* to, uint32_t bytes, uint32_t alignment, const Where& where) {
  std::memset(to, 0, bytes);
  if (!begin(Instruction::ld_global, where)) return;
  check_aligned(from, alignment);
  std::memcpy(to, global_bytes(from, bytes, Access::read), bytes);
}

void store_global(uint64_t to, const void* from, uint32_t bytes, const Where& where) {
  if (!begin(Instruction::st_global, where)) return;
  check_aligned(to, bytes);
  std::memcpy(global_bytes(to, bytes, Access::write), from, bytes);
}

void load_shared(uint32_t from, void* to, uint32_t bytes, const Where& where) {
  std::memset(to, 0, bytes);
  if (!begin(Instruction::ld_shared, where)) return;
  from = mutated(from);
  const std::byte* at = shared_bytes(from, bytes, bytes);
  touch_shared(from, bytes, Access::read);
  std::memcpy(to, at, bytes);
}

void store_shared(uint32_t to, const void* from, uint32_t bytes, const Where& where) {
  if (!begin(Instruction::st_shared, where)) return;
  to = mutated(to);
  std::byte* at = shared_bytes(to, bytes, bytes);
  touch_shared(to, bytes, Access::write);
  std::memcpy(at, from, bytes);
}

uint32_t atomic_shared(AtomicOp op, uint32_t at, uint32_t value, const Where& where) {
  if (!begin(Instruction::atom_shared, where)) return 0;
  std::byte* bytes = shared_bytes(at, 4, 4);
  touch_shared(at, 4, Access::atomic);
  uint32_t old;
  std::memcpy(&old, bytes, 4);
  const uint32_t made = op == AtomicOp::add ? old + value : old | value;
  std::memcpy(bytes, &made, 4);
  return old;
}

}  // namespace mc::gpu::emu

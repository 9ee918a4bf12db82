// The host bodies of lib/gpu/ptx: every function here is one instruction, executed by the lane that calls it. A lane
// of the emulated GPU is a fiber; an instruction of a whole warp waits until its other lanes have come. An instruction
// that breaks a rule ends the run and does not return.
#pragma once

#include <bit>
#include <cstdint>

#include "gpu/emu/instruction.h"
#include "gpu/ptx/banks.h"

namespace mc::gpu::emu {

/// The running lane, and the launch as it sees it.
struct Place {
  uint32_t thread = 0;  // of the CTA
  uint32_t cta[3] = {};
  uint32_t rank = 0;     // of the CTA in its cluster
  uint8_t fault = 0;     // gpu::Fault of this run
  bool watched = false;  // calls are compared with a mutation, or noted
};
extern thread_local constinit const Place* running_place;
inline const Place& place() {
  return *running_place;
}

/// False when a mutation changes this call of an instruction that touches no memory.
bool watch_arithmetic(Instruction instruction, const Where& where);
inline bool sound(Instruction instruction, const Where& where) {
  return !place().watched || watch_arithmetic(instruction, where);
}

// ---- memory ----
void load_global(uint64_t from, void* to, uint32_t bytes, uint32_t alignment, const Where& where);
void store_global(uint64_t to, const void* from, uint32_t bytes, const Where& where);
uint32_t dynamic_shared(uint32_t alignment);
void load_shared(uint32_t from, void* to, uint32_t bytes, Banks banks, const Where& where);
void store_shared(uint32_t to, const void* from, uint32_t bytes, Banks banks, const Where& where);
enum class AtomicOp : uint8_t { add, add_f32, bit_or, max };
uint32_t atomic_shared(AtomicOp op, uint32_t at, uint32_t value, const Where& where);
/// Relaxed atomics take part in the order of CTAs through fence_gpu; the others by themselves.
enum class Semantics : uint8_t { relaxed, acq_rel };
uint32_t atomic_global(AtomicOp op, uint64_t at, uint32_t value, Semantics semantics, const Where& where);
uint32_t load_acquire(uint64_t from, const Where& where);
void store_release(uint64_t to, uint32_t value, const Where& where);
void fence_gpu(const Where& where);
/// The lane gives up its turn: it waits for another CTA.
void pause(const Where& where);

// ---- cp.async ----
void cp_async(uint32_t to, uint64_t from, uint32_t bytes, uint32_t source_bytes, const Where& where);
void cp_async_commit(const Where& where);
void cp_async_wait(uint32_t left, const Where& where);
void cp_async_arrive(uint32_t barrier, bool increments, const Where& where);

// ---- warps and CTAs ----
/// `threads` 0: all of the CTA.
void barrier_sync(uint32_t id, uint32_t threads, bool arrive_only, const Where& where);
void warp_sync(uint32_t lanes, const Where& where);
enum class Shuffle : uint8_t { up, down, bfly, idx };
/// Replaces the 4 or 8 bytes of `value` by those of another lane.
void shuffle(Shuffle mode, void* value, uint32_t bytes, uint32_t by, uint32_t lanes, const Where& where);
void ldmatrix(uint32_t* d, uint32_t count, bool transposed, uint32_t from, const Where& where);
void stmatrix(const uint32_t* values, uint32_t count, bool transposed, uint32_t to, const Where& where);
uint32_t ballot(bool value, uint32_t lanes, const Where& where);
void mma_16816(float* d, const uint32_t* a, const uint32_t* b, const Where& where);

// ---- mbarriers and bulk copies ----
void mbarrier_init(uint32_t barrier, uint32_t arrivals, const Where& where);
void mbarrier_init_fence(const Where& where);
void mbarrier_arrive(uint32_t barrier, const Where& where);
void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes, const Where& where);
void mbarrier_wait(uint32_t barrier, uint32_t parity, const Where& where);
void fence_async(const Where& where);
struct Coordinates {
  int32_t at[5] = {};
};
/// `multicast`: a bit for each CTA of the cluster that gets the bytes; 0: the own one.
void load_tensor(uint32_t to, const void* map, const Coordinates& at, uint32_t rank, uint32_t barrier,
                 uint32_t multicast, const Where& where);
/// `reduce`: adds f32 to what is there.
void store_tensor(uint32_t from, const void* map, const Coordinates& at, uint32_t rank, bool reduce,
                  const Where& where);
void bulk_commit(const Where& where);
/// `read_only`: waits until the sources have been read; else until the bytes are written.
void bulk_wait(uint32_t left, bool read_only, const Where& where);

// ---- clusters, registers, programmatic launch ----
uint32_t mapa(uint32_t address, uint32_t rank, const Where& where);
void cluster_arrive(const Where& where);
void cluster_wait(const Where& where);
uint32_t load_cluster(uint32_t from, const Where& where);
void store_cluster(uint32_t to, uint32_t value, const Where& where);
void set_max_registers(uint32_t registers, bool increase, const Where& where);
void grid_launch_dependents(const Where& where);
void grid_wait(const Where& where);

// ---- wgmma ----
/// Stops the run: an accumulator was touched between its wgmma and the wait.
[[noreturn]] void touched_in_flight();

/// A 32-bit float that a wgmma may be writing: then it holds a poison, and touching it is an error.
class Acc {
 public:
  static constexpr uint32_t kPoison = 0x7fbadbad;  // a signalling NaN
  Acc() = default;
  Acc(float value) : bits_(std::bit_cast<uint32_t>(value)) {}
  Acc(const Acc& other) : bits_(other.checked()) {}
  Acc& operator=(const Acc& other) { return *this = static_cast<float>(other); }
  Acc& operator=(float value) {
    checked();
    bits_ = std::bit_cast<uint32_t>(value);
    return *this;
  }
  Acc& operator*=(float by) { return *this = *this * by; }
  operator float() const { return std::bit_cast<float>(checked()); }

 private:
  uint32_t checked() const {
    if (bits_ == kPoison) [[unlikely]]
      touched_in_flight();
    return bits_;
  }
  uint32_t bits_ = 0;
};
static_assert(sizeof(Acc) == 4);

/// One form of wgmma.mma_async: m64nNk16, bf16 with f32 sums. `a_k_major` is for A in shared memory.
struct ProductForm {
  uint32_t columns = 0;
  bool b_k_major = true, a_k_major = true;
};
void wgmma_fence(Acc* d, uint32_t registers, const Where& where);
void wgmma_hold(uint32_t* a);
void wgmma_commit(const Where& where);
void wgmma_wait(uint32_t left, const Where& where);
/// `a_registers` is null when A comes from shared memory.
void wgmma(const ProductForm& form, Acc* d, const uint32_t* a_registers, uint64_t a, uint64_t b, bool add,
           const Where& where);

}  // namespace mc::gpu::emu

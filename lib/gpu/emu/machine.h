// The inside of the emulator: decoded instructions, warps and CTAs. A warp is a set of strands: lanes with one program
// counter. A branch that lanes decide differently splits a strand, and strands at one instruction merge. The scheduler
// runs them in any order (independent thread scheduling, since compute capability 7.0).
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <type_traits>

#include "base/rng.h"
#include "gpu/emu/emu.h"
#include "gpu/emu/shadow.h"

namespace mc::gpu::emu {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
// Generic addresses of the other spaces; global memory lies below.
constexpr uint64_t kSharedWindow = uint64_t{1} << 46, kParamWindow = uint64_t{1} << 47, kWindowBytes = 1u << 24;

class Warp;
struct Op;
struct Grid;

/// The effect of an instruction on its strand.
enum class Flow : uint8_t {
  next,   // go on behind it
  jump,   // the handler set the strands
  block,  // not done: run it again when something has changed
  wait,   // done, but the strand sleeps until a barrier wakes it
};
using Handler = Flow (*)(Warp&, const Op&, uint32_t mask);

/// A decoded instruction. `a` are operands in order, lists laid open: the first word of a register's 32 lanes in the
/// warp's registers, the number of a predicate, or an immediate index; the row of the instruction table decides.
struct Op {
  Handler run = nullptr;
  const uint32_t* a = nullptr;
  int32_t guard = -1;
  bool guard_negated = false;
  bool aligned = false;                        // all lanes of the warp must execute it together
  uint8_t width = 0;                           // bytes of an element
  uint8_t count = 0;                           // elements or matrices
  uint8_t variant = 0;                         // by handler
  uint32_t target = 0;                         // of a branch
  uint32_t base = 0;                           // register of an address
  bool wide_base = false, wide_value = false;  // 64-bit registers hold the address, or the values
  const uint32_t* rows = nullptr;              // registers that it names, the written ones first
  uint16_t row_count = 0, written_count = 0;
  bool is_product = false;  // wgmma.mma_async, which may name accumulators in flight
  int64_t offset = 0;       // of the address
  int64_t second = 0;       // of a second address, whose register is in `a`
  uint32_t at = 0;          // its number
};

/// A 32- or 64-bit constant, or a special register, that fills one row of every warp.
struct FixedRow {
  uint32_t row = 0;
  bool wide = false;
  uint64_t value = 0;
  uint8_t special = 0;  // 0: the constant `value`; else number in kSpecials
};

struct Decoded {
  const ptx::Module* module = nullptr;
  const ptx::Kernel* kernel = nullptr;
  std::vector<Op> ops;
  std::deque<std::vector<uint32_t>> operands;  // storage of Op::a
  std::vector<FixedRow> fixed;
  uint32_t words = 0;  // of a warp's registers
  uint32_t predicates = 0;
  bool uses_wgmma = false;
  uint32_t dynamic_offset = 0;  // of dynamic shared memory

  std::string place(uint32_t op) const;  // "ld.shared.u32 at attend.cuh:88"
};

struct Cta;

/// Lanes of a warp with one program counter.
struct Strand {
  enum class State : uint8_t { ready, blocked, waiting };
  uint32_t mask = 0, pc = 0;
  State state = State::ready;
};

/// Operation of cp.async that its lanes have not waited for. All lanes that issued it together share one record.
struct AsyncCopy {
  uint32_t mask = 0;  // lanes that still own it
  uint32_t group[kLanes] = {};
  uint32_t to[kLanes] = {};
  uint8_t bytes = 0;
  uint16_t tag = 0;
};

/// Accumulators of wgmma that a warp may not touch: rows 16 w .. of the 64 that its warpgroup computes.
struct Accumulation {
  const Op* op = nullptr;     // whose operands name the registers
  std::vector<float> values;  // [16][columns]
  uint32_t open = 0;          // products not yet waited for
};
/// One wgmma.mma_async between its issue and its wait.
struct Product {
  const Op* op = nullptr;
  uint64_t a = 0, b = 0;  // descriptors
  uint32_t a_registers[4][kLanes] = {};
  bool add = false;
  uint32_t group = 0;
  size_t accumulation = 0;      // in Warp::accumulations
  std::vector<uint32_t> reads;  // 16-byte chunks of shared memory
};

class Warp {
 public:
  Warp(Cta& cta, uint32_t number);

  /// Runs strands for at most `budget` instructions, or until none can run. `shuffle` draws strands by the seed.
  void run(uint32_t budget, bool shuffle);
  bool runnable() const;
  /// Something changed that a blocked strand may wait for.
  void wake_blocked();
  bool exited() const { return alive == 0; }
  Grid& grid() const;

  template <class T>
  auto* row(uint32_t at) {
    using Slot = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return reinterpret_cast<Slot*>(registers.data() + at);
  }
  uint32_t word(uint32_t at, uint32_t lane) const { return registers[at + lane]; }
  uint64_t wide(uint32_t at, uint32_t lane) const {
    uint64_t value;
    std::memcpy(&value, registers.data() + at + 2 * lane, 8);
    return value;
  }
  /// Ends the run with a broken rule at the current instruction. Always Flow::block.
  Flow fail(std::string_view rule, const std::string& text, uint32_t lanes);
  Flow fail(const Conflict& conflict, uint32_t lanes);

  Cta& cta;
  uint32_t number;
  uint32_t alive = kAllLanes;
  std::vector<uint32_t> registers;
  std::vector<uint32_t> predicates;
  std::vector<Strand> strands;
  size_t current = 0;  // strand that runs

  std::vector<AsyncCopy> copies;
  uint32_t open_group[kLanes] = {};  // cp.async groups committed by each lane

  // wgmma; empty in kernels without it
  std::vector<Product> products;
  std::vector<Accumulation> accumulations;
  uint32_t product_group = 0;
  uint64_t fenced_at = 0;            // instruction count at the last wgmma.fence
  std::vector<uint64_t> written_at;  // by row of registers: instruction count
  std::vector<uint8_t> in_flight;    // by row: an accumulator that was not waited for
  uint32_t issued = 0;               // products, to compare with the other warps of the warpgroup

 private:
  Flow step(const Op& op, Strand& strand);
  void merge();
  bool pick(bool shuffle);
};

/// Host bytes of a read of global memory after its checks, or null after a failure.
const std::byte* read_global(Warp& w, uint64_t address, uint32_t bytes, uint32_t lane);

struct NamedBarrier {
  uint32_t expected = 0, arrived = 0;  // warps
  uint32_t warps = 0;                  // that arrived
  View released;
};

struct Mbarrier {
  uint32_t address = 0, expected = 0, pending = 0, phase = 0;
  int64_t bytes = 0;  // announced and not yet copied
  View open, done;    // released into the open phase; into the last complete one
  Event init;
  bool fenced = false;  // fence.mbarrier_init by the lane that made it
};

/// A bulk copy into shared memory between its issue and its end.
struct BulkCopy {
  uint32_t to = 0, barrier = 0;
  bool swizzled = false;
  std::vector<std::byte> bytes;
};

struct Grid;

struct Cta {
  Cta(Grid& grid, uint32_t number);
  Cta(const Cta&) = delete;

  uint32_t id[3] = {};
  Grid& grid;
  uint32_t number;
  std::vector<std::byte> shared;
  Shadow shadow;
  std::vector<Warp> warps;
  NamedBarrier barriers[16];
  uint16_t next_tag = 1;
  std::vector<Mbarrier> mbarriers;  // by number
  std::vector<BulkCopy> bulk;
  struct Issue {
    uint32_t at = 0;
    uint64_t a = 0, b = 0;
  };
  std::vector<Issue> issues[8];  // products of each warpgroup

  /// Ends one of the pending bulk copies.
  void complete_bulk(size_t number);
  /// Ends the phase of a barrier if nothing is missing.
  void try_complete(uint32_t barrier);
  uint16_t tag();

  /// Runs until every warp has exited or a rule is broken.
  void run();

 private:
  Warp* pick();
  void report_deadlock();

  std::vector<uint64_t> priorities_;  // of warps; Policy::sticky
  uint32_t turn_ = 0;
  int mood_ = 0;  // 0: bulk copies end early, 1: at random, 2: late
};

/// Values of the special registers in kSpecials order, of one thread.
constexpr std::string_view kSpecials[] = {"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",  "%ntid.y",
                                          "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z", "%nctaid.x",
                                          "%nctaid.y", "%nctaid.z", "%laneid",  "%warpid"};

struct Grid {
  const Decoded& code;
  DeviceMemory& memory;
  const Launch& launch;
  const Options& options;
  Rng rng;
  Report report;
  uint32_t shared_bytes = 0;
  std::vector<std::byte> params;
};

/// Calls f(lane) for each lane of the mask.
template <class F>
void for_lanes(uint32_t mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<uint32_t>(std::countr_zero(mask)));
}

/// One line of the instruction table. `shape` lists the operands: r 32-bit register, h 16-bit, w either, d 64-bit,
/// x any of them, p predicate, q predicate that may be negated, n the same and taken negated, i immediate, l label,
/// m address, g a second address of 64 bits, b one of 32, t a tensor map and its coordinates, {..} a list; r, h, w, d,
/// x in capitals are written. Where `decode` is given, `name` may be the beginning of a name; `decode` reads the
/// modifiers behind it, may set the shape, and refuses by false.
struct Row {
  std::string_view name;
  std::string_view shape;
  Handler run = nullptr;
  bool (*decode)(Op& op, std::string_view modifiers, std::string& shape) = nullptr;
  bool aligned = false;
};
std::span<const Row> arithmetic_rows();
std::span<const Row> memory_rows();
std::span<const Row> warp_rows();
std::span<const Row> async_rows();
std::span<const Row> bulk_rows();
std::span<const Row> wgmma_rows();

}  // namespace mc::gpu::emu

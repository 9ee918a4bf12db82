// The inside of the emulator: lanes, warps and CTAs. Every lane is a fiber that runs the kernel's C++; the functions of
// lane.h act on the running one. A lane runs until it blocks or its turn ends. Blocking hands over to the next ready
// lane of the same warp; when the warp has none, the scheduler (run.cc) picks a warp.
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/assert.h"
#include "base/rng.h"
#include "gpu/emu/emu.h"
#include "gpu/emu/fiber.h"
#include "gpu/emu/lane.h"
#include "gpu/emu/shadow.h"

namespace mc::gpu::emu {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint32_t kMbarriersMax = 32;  // of a CTA: agents that the order has room for

struct Cluster;
struct Cta;
struct Grid;
struct Warp;

/// The events of other clusters' warps that happened before, by cluster.
using Known = std::map<uint32_t, std::vector<Stamp>>;

/// The effect of a collective on the lanes that took part.
enum class Flow : uint8_t {
  next,   // they go on
  sleep,  // they wait until something wakes them
};
/// Runs when the last of its lanes has come. Lane i gave operands[i].
using Collective = Flow (*)(Warp& warp, uint32_t lanes, void* const* operands);

/// Every instruction passes all lanes of a warp: what a collective uses of a lane lies in one cache line.
struct alignas(64) Lane {
  Fiber fiber;
  Warp* warp = nullptr;
  uint32_t number = 0;
  // The instruction that it executes.
  Instruction instruction = Instruction::none;
  bool of_alive = false;  // the members of its collective are the lanes that have not exited
  bool watched = false;   // as Place::watched
  Where where;
  uint64_t way = 0;  // hash of its instructions since all lanes of the warp ran one together
  // The collective that it waits in.
  void* operand = nullptr;
  Collective collective = nullptr;
  uint32_t members = 0;

  Place place;
  uint32_t open_group = 0;       // cp.async groups that it committed
  uint32_t open_bulk_group = 0;  // bulk groups likewise
  std::byte* stack = nullptr;  // from its first turn to its exit
  Known published;  // at its last fence.acq_rel.gpu: a relaxed write behind it publishes this
  Known observed;   // by relaxed reads since then: the next fence acquires this

  uint32_t bit() const { return 1u << number; }
  /// Before each switch to the lane.
  void prepare() {
    if (stack == nullptr) take_stack();
  }
  void take_stack();
};

/// Bytes of a lane's cp.async that it has not waited for.
struct AsyncCopy {
  uint32_t group = 0, to = 0;
  uint32_t bytes = 0;
  uint64_t arrival = 0;  // the AsyncArrival that tracks it; 0: none
};

/// Register values of one lane as they were at a wgmma.fence.
struct Fenced {
  const void* at = nullptr;
  std::vector<uint32_t> bits;
  bool is_a = false;  // a fragment of A, not accumulators
};

/// Accumulators of wgmma that a warp may not touch: rows 16 w .. of the 64 that its warpgroup computes.
struct Accumulation {
  Acc* d[kLanes] = {};
  uint32_t columns = 0;
  Where where;                // of the last product
  std::vector<float> values;  // [16][columns]
  uint32_t open = 0;          // products not yet waited for
};
/// One wgmma.mma_async between its issue and its wait.
struct Product {
  ProductForm form;
  Where where;
  uint64_t a = 0, b = 0;                 // descriptors
  const uint32_t* a_at[kLanes] = {};     // A in registers, else null
  uint32_t a_registers[kLanes][4] = {};  // as they were at the issue
  bool add = false;
  uint32_t group = 0;
  size_t accumulation = 0;      // in Warp::accumulations
  std::vector<uint32_t> reads;  // 16-byte chunks of shared memory
};

/// A bulk copy out of shared memory, of the lane that issued it.
struct BulkStore {
  uint32_t lane = 0, group = 0;
  uint32_t from = 0, bytes = 0;
  bool read = false;  // the source may be written again
  struct Piece {
    uint64_t to = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Piece> pieces;  // rows that lie in the tensor
  bool reduce = false;        // f32 sums
};

/// Accesses to shared memory at one place of the source, or one copy of it: the nth calls of the lanes belong together.
struct SiteRounds {
  struct Round {
    uint32_t lanes = 0, bytes = 0;
    uint32_t at[kLanes] = {};
  };
  uint32_t calls[kLanes] = {};
  uint32_t first = 0;  // number of rounds.front()
  std::deque<Round> rounds;
  // The last call's own, which a failure names that is found when the warp ends.
  Instruction instruction = Instruction::none;
  Where where;
  Banks banks;
};

/// The rounds of a warp by the place of the source. A few places are found without a search.
struct WarpRounds {
  std::unordered_map<uint64_t, SiteRounds> all;
  std::pair<uint64_t, SiteRounds*> recent[16] = {};

  SiteRounds& of(Instruction instruction, const Where& where, uint32_t copy) {
    const uint64_t key = uint64_t{copy} << 56 | uint64_t{where.line()} << 32 | where.column() << 8 |
                         static_cast<uint64_t>(instruction);
    auto& [last, rounds] = recent[(where.line() ^ where.column() ^ copy) % std::size(recent)];
    if (last != key || rounds == nullptr) {
      last = key;
      rounds = &all[key];
    }
    return *rounds;
  }
};

/// The registers of a warp's threads.
struct WarpRegisters {
  /// A setmaxnreg.
  struct Change {
    Where where;
    uint32_t count = 0;
    Event at;
  };
  uint32_t count = 0;   // of a thread
  uint32_t wanted = 0;  // that the warp waits for; 0: none
  std::vector<Change> changes;
};

/// The wgmma instructions of a warp; empty in kernels without them.
struct WarpProducts {
  std::vector<Product> products;
  std::vector<Accumulation> accumulations;
  std::vector<Fenced> fenced[kLanes], held[kLanes];
  uint32_t group = 0;   // of the next product
  uint32_t issued = 0;  // products, to compare with the other warps of the warpgroup
};

struct Warp {
  Warp(Cta& cta, uint32_t number);
  ~Warp();

  Cta& cta;
  uint32_t number;  // in its CTA
  uint32_t agent;   // in the order of the cluster
  uint32_t alive = kAllLanes, ready = kAllLanes, arrived = 0;
  uint32_t at_mbarrier = 0;  // lanes that wait for a phase
  uint32_t budget = 0;       // instructions until the end of its turn
  uint32_t first_lane = 0;   // that runs when several can
  Lane lanes[kLanes];

  std::vector<AsyncCopy> copies[kLanes];
  uint32_t copies_clock = 0;  // of Order::copy_agent()
  std::vector<BulkStore> stores;
  WarpRounds rounds;
  WarpRegisters registers;
  uint32_t cluster_generation = 0;  // of the cluster barrier that it arrived at
  bool cluster_arrived = false, waits_for_cluster = false;

  WarpProducts wgmma;

  /// The ready lane that runs next; there is one.
  Lane& next_lane() {
    MC_ASSERT_EQ(ready & ~alive, 0u);
    return lanes[(static_cast<uint32_t>(std::countr_zero(std::rotr(ready, static_cast<int>(first_lane)))) +
                  first_lane) %
                 kLanes];
  }
};

struct NamedBarrier {
  uint32_t expected = 0, arrived = 0;  // warps
  uint32_t warps = 0;                  // that wait
  uint32_t here = 0;                   // warps that have arrived
  View released;
};

struct Mbarrier {
  uint32_t address = 0, expected = 0, pending = 0, phase = 0;
  uint32_t tracking = 0;  // of `pending`: arrivals of cp.async.mbarrier.arrive that are under way
  int64_t bytes = 0;      // announced and not yet copied
  View open, done;        // released into the open phase; into the last complete one
  Event init;
  bool fenced = false;           // fence.mbarrier_init by the lane that made it
  std::vector<uint32_t> waited;  // by warp: lanes that have acquired the last complete phase
};

/// A bulk copy into shared memory between its issue and its end.
struct BulkCopy {
  uint32_t to = 0, barrier = 0;
  bool swizzled = false;
  std::vector<std::byte> bytes;
};

/// A cp.async.mbarrier.arrive between its issue and the arrival, which comes when the lane's copies so far have ended.
struct AsyncArrival {
  uint64_t id = 0;
  uint32_t barrier = 0;
  Warp* warp = nullptr;
  uint32_t lane = 0;
};

/// The mbarriers of a CTA, and the copies into its shared memory that complete on them.
struct BulkEngine {
  explicit BulkEngine(Cta& cta) : cta(cta) {}

  Cta& cta;
  std::vector<Mbarrier> mbarriers;  // by number
  std::vector<BulkCopy> pending;
  std::vector<AsyncArrival> arrivals;  // by their issue
  uint64_t last_arrival = 0;           // id

  /// Copies and arrivals that are under way.
  size_t open() const { return pending.size() + arrivals.size(); }
  /// Ends one of them.
  void complete(size_t number);
  void complete_copy(size_t number);
  void complete_arrival(size_t number);
  /// Ends the phase of a barrier if nothing is missing.
  void try_complete(uint32_t barrier);
};

/// The registers of a CTA that no warp has.
struct FreeRegisters {
  uint32_t count = 0;  // of a warp's threads

  /// Gives registers to warps that wait for them.
  void hand_out(std::deque<Warp>& warps);
};

/// A thread block.
struct Cta {
  Cta(Cluster& cluster, uint32_t rank, uint32_t number);
  Cta(const Cta&) = delete;

  Cluster& cluster;
  Grid& grid;
  uint32_t rank;  // in the cluster
  uint32_t number;
  uint32_t id[3] = {};
  uint32_t dynamic_start = 0;  // shared address of the dynamic part; unknown before the kernel asks for it
  bool dynamic_known = false;
  std::vector<std::byte> shared;
  Order& order;
  Shadow shadow;
  std::deque<Warp> warps;
  NamedBarrier barriers[16];
  BulkEngine bulk{*this};
  struct Issue {
    Where where;
    uint64_t a = 0, b = 0;
  };
  std::vector<Issue> issues[8];  // products of each warpgroup
  std::vector<Event> remote;     // accesses of other CTAs to its shared memory
  FreeRegisters free_registers;
  bool spins = false;  // a lane gave up its turn to wait for another CTA

  bool exited() const;
  uint32_t barrier_agent(uint32_t barrier) const { return rank * kMbarriersMax + barrier; }

  enum class Step : uint8_t { moved, stuck, over };
  /// Lets one warp run, or ends a bulk copy.
  Step step();
  void report_deadlock();

 private:
  Warp* pick();
  void run_warp(Warp& warp);

  std::vector<uint64_t> priorities_;  // of warps; Policy::sticky
  uint32_t turn_ = 0;
  int mood_ = 0;  // 0: bulk copies end early, 1: at random, 2: late
};

/// Reads of global memory that no lane of a CTA needs to have checked again before something writes.
struct SoundReads {
  struct Read {
    uint64_t address = 0, writes = 0;
    uint32_t bytes = 0;
    std::byte* at = nullptr;
  };
  Read last[16];  // by address
};

/// Whether the grids before this one had ended when the CTA let those behind it start, by griddepcontrol or at its end.
struct Dependents {
  bool waited = false;  // griddepcontrol.wait
  bool early = false;   // griddepcontrol.launch_dependents of a lane without a wait before it
};

/// CTAs that run together and reach each other's shared memory.
struct Cluster {
  Cluster(Grid& grid, uint32_t first_cta);

  Grid& grid;
  Order order;
  std::deque<Cta> ctas;
  struct Acquired {
    Event at;  // what happens after it, in any CTA of the cluster, knows
    Known known;
  };
  std::vector<Acquired> acquired;
  std::vector<Event> grid_waits;         // griddepcontrol.wait
  std::vector<SoundReads> reads;         // by the CTA's rank
  std::vector<Dependents> dependents;    // likewise
  uint32_t generation = 0, arrived = 0;  // of its barrier: warps
  View open, released;

  uint32_t alive() const;  // warps
  /// Ends the barrier's generation when every warp has arrived.
  void try_complete();
};

struct Grid {
  const Kernel& kernel;
  DeviceMemory& memory;
  const Launch& launch;
  const Options& options;
  Rng rng;
  Report report;
  Fiber scheduler;
  std::set<std::tuple<const char*, uint32_t, uint32_t, Instruction>> noted;  // places in options.sites
  std::unordered_map<uint64_t, Known> released;  // by global address: what its last writers published
  std::vector<std::byte> params;                 // with room to align
  const std::byte* param_start = nullptr;
};

/// The lane that runs, and what it belongs to.
extern thread_local constinit Lane* running_lane;
inline Lane& running() {
  return *running_lane;
}
inline Warp& running_warp() {
  return *running().warp;
}
inline Cta& running_cta() {
  return running_warp().cta;
}

/// Every instruction begins here: it is counted, and the lane's turn may end. False: a mutation leaves it out.
bool begin(Instruction instruction, const Where& where);
/// The argument of the running instruction, or a mutation's in its place.
uint32_t mutated(uint32_t argument);
bool mutation_transposes();

/// Waits until all `members` are in the same instruction; the last one runs it for all. `of_alive`: the members are
/// the lanes of the warp that have not exited.
void gather(uint32_t members, bool of_alive, void* operand, Collective collective);
/// The running lane waits: it is no longer ready. Returns when it is.
void block();

/// Ends the run with a broken rule at the running instruction. `lane`: of the running warp, if another one did it.
[[noreturn]] void fail(Rule rule, const std::string& text, int lane = -1);
[[noreturn]] void fail(const Conflict& conflict, int lane = -1);
/// "ldmatrix at attend.cuh:131"
std::string place_of(Instruction instruction, const Where& where);
std::string hex(uint64_t value);
std::string_view file_of(const Where& where);

/// Host bytes of an access to global memory after its checks.
std::byte* global_bytes(uint64_t address, uint32_t bytes, Access access);
/// Host bytes of an access to the CTA's shared memory after its checks of bounds and alignment.
std::byte* shared_bytes(uint32_t address, uint32_t bytes, uint32_t alignment, int lane = -1);
std::byte* shared_bytes_of(Cta& cta, uint32_t address, uint32_t bytes, uint32_t alignment, int lane = -1);

/// A shared::cluster address: the CTA that it lies in, and the address there.
void check_peer(Cta& cta);
struct Target {
  Cta& cta;
  uint32_t address;
};
Target resolve(uint32_t address);
/// Whether griddepcontrol.wait came before the running lane's instruction.
bool has_waited_for_grids();
/// The tensor map at a parameter of the kernel.
struct TensorMapBytes;
TensorMapBytes read_map(const void* at, uint32_t rank);
/// The warp's last lane has exited: the other warps of its warpgroup have not run setmaxnreg more often.
void check_register_changes(const Warp& warp);
/// The lane exits: its bulk stores end.
void finish_stores(Lane& lane);
/// Notes one lane's access for the count of bank conflicts.
void note_banks(uint32_t address, uint32_t bytes, Banks banks);
/// The warp's last lane exits: counts the numbered accesses that some lanes never made.
void count_left_rounds(Lane& last);
/// The access states how many extra wavefronts it may cost.
void count_conflicts(uint32_t conflicts, uint32_t stated = 0);

/// The value behind a read-modify-write.
uint32_t apply(AtomicOp op, uint32_t old, uint32_t value);
/// Publishes the past of the running lane for others; acquire is the way back.
Known publish();
void acquire(const Known& known);
void join(Known& into, const Known& from);

/// sums += a b for `a` of [16][16], `b` of [16][n] and `sums` of [16][n]: product_rows.h.
void multiply_tile(const float* a, const float* b, float* sums, uint32_t n);

/// Calls f(lane) for each lane of the mask.
template <class F>
void for_lanes(uint32_t mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<uint32_t>(std::countr_zero(mask)));
}

}  // namespace mc::gpu::emu

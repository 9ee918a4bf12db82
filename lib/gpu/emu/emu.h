// A GPU that runs the kernels of lib/gpu/kernels on the host, under a seed, and checks the chip's ordering rules. The
// host compiler compiles the kernels; lib/gpu/ptx gives every instruction a host body. One run is one thread and one
// interleaving: the seed draws the order of CTAs, warps, lanes and asynchronous copies, so a failure repeats.
//
//   const Kernel kernel = make_kernel("attention_prefill_d64", 128, attention_prefill_d64);
//   DeviceMemory memory;
//   auto q = memory.allocate(bytes, "q");
//   Report report = run(kernel, memory, {.grid = {4, 8, 1}, .block = 128, .params = bytes_of(args)}, {.seed = 1});
//
// The rules are those of the PTX ISA 9.0 memory consistency model (section 8) as far as CTAs and asynchronous copies
// need them: shadow.h lists them. Timing, caches, rounding inside the tensor cores and weak global memory are not
// modelled. On an H200, 21 instructions once gave the results of the emulator (the figure `gpu` of mc-figures(7)). The
// ordering rules have not been compared with a chip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/emu/instruction.h"
#include "gpu/emu/rule.h"
#include "gpu/emu/zeroed.h"

namespace mc::gpu::emu {

/// A kernel that the host compiler compiled.
struct Kernel {
  std::string_view name;
  uint32_t threads_max = 0;  // of its launch bounds
  size_t param_bytes = 0;
  uint32_t conflicts_max = 0;  // extra wavefronts of an access to shared memory that states fewer itself
  /// The body of one thread. Parameters lie at the offsets that a launch on a chip gives them.
  std::function<void(const std::byte* params)> enter;
  uint32_t cluster = 1;  // CTAs of a cluster
};

/// Offsets of parameters in the bytes of a launch: each is aligned to itself.
template <class... P>
struct ParamOffsets {
  size_t at[sizeof...(P)] = {};
  size_t end = 0;
  constexpr ParamOffsets() {
    size_t i = 0;
    ((end = (end + alignof(P) - 1) / alignof(P) * alignof(P), at[i++] = end, end += sizeof(P)), ...);
  }
};

template <class... P>
Kernel make_kernel(std::string_view name, uint32_t threads_max, void (*body)(P...), uint32_t cluster = 1) {
  using Offsets = ParamOffsets<std::remove_cvref_t<P>...>;
  const auto enter = [body](const std::byte* params) {
    [&]<size_t... kI>(std::index_sequence<kI...>) {
      body(*reinterpret_cast<const std::remove_cvref_t<P>*>(params + Offsets().at[kI])...);
    }
    (std::index_sequence_for<P...>{});
  };
  return {name, threads_max, Offsets().end, 0, enter, cluster};
}

/// The order between grids and copies of several streams (streams.h).
class GridOrder {
 public:
  /// Whether grid `earlier` ends before the running one may start.
  virtual bool ends_before(uint32_t earlier) const = 0;
  /// "rms_norm (operation 4 of stream 1)"
  virtual std::string describe(uint32_t grid) const = 0;

 protected:
  ~GridOrder() = default;
};

/// Global memory: allocations with unmapped space between them. Fresh bytes are undefined and may not be read.
class DeviceMemory {
 public:
  /// Address of `bytes` bytes, aligned to 256.
  uint64_t allocate(size_t bytes, std::string name);
  void release(uint64_t address);
  /// Copies from the host, which defines the bytes; and to the host. MC_ASSERTs the range.
  void write(uint64_t address, std::span<const std::byte> from);
  void read(uint64_t address, std::span<std::byte> to) const;

  /// The last write of a word by a kernel, an event of a warp in a cluster's order (shadow.h).
  struct Writer {
    uint32_t cta = 0, agent = 0, clock = 0, lanes = 0;
    bool atomic = false, in_flight = false;
  };
  struct Reader {
    uint32_t grid = 0, cta = 0;
  };
  struct Block {
    uint64_t address = 0;
    std::string name;
    mutable PoisonedBytes bytes;
    ZeroedArray<uint64_t> defined;     // a bit for each byte
    size_t undefined = 0;              // bytes that are not
    ZeroedArray<uint32_t> last_write;  // by 4 bytes: the grid or copy that made it
    ZeroedArray<Writer> writer;        // likewise, the last write by a kernel
    ZeroedArray<Reader> reader;        // likewise; kManyReaders: several CTAs
    /// Words that grids read side by side: the grids but the last.
    std::map<size_t, std::vector<uint32_t>> beside;
  };
  static constexpr uint32_t kManyReaders = UINT32_MAX;
  /// The block that holds all of the range, or null.
  Block* find(uint64_t address, size_t bytes);
  const Block* find(uint64_t address, size_t bytes) const;
  /// A new grid starts. What earlier grids wrote is visible to all; to a programmatic launch it is when it has waited
  /// for them (griddepcontrol.wait).
  void start_grid(bool programmatic);
  uint32_t grid() const { return grid_; }
  /// The first of the grids that may still be running when the current one starts.
  uint32_t unfinished() const { return unfinished_; }
  /// Grids behind the current one start when those before it have ended: one of its CTAs waited first.
  void note_wait() { waited_ = true; }
  /// A kernel writes; the number of its writes so far.
  void note_write() { ++writes_; }
  uint64_t writes() const { return writes_; }

  /// Without an order every grid ends before the next one starts. `order` must outlive the memory.
  void set_order(const GridOrder* order) { order_ = order; }
  const GridOrder* order() const { return order_; }
  /// The grid whose access to a word conflicts with that of grid `self`, which runs, because nothing orders the two; 0
  /// when there is none.
  uint32_t unordered(const Block& block, size_t word, uint32_t self, bool writes) const;
  /// Whether a grid that may still be running beside the current one has read a word.
  bool is_read_beside(const Block& block, size_t word) const;
  /// Notes that grid `self` reads a word; its record in Block::reader is the caller's. True: beside another grid.
  bool note_read(Block& block, size_t word, uint32_t self) const;
  /// Bytes of a block that were written.
  static void define(Block& block, size_t at, size_t bytes);
  /// The first of the bytes that was not written; at + bytes when all were.
  static size_t first_undefined(const Block& block, size_t at, size_t bytes);
  /// Grids and copies share the numbers: the number of a copy that starts.
  uint32_t start_copy() {
    start_grid(false);
    return grid_;
  }

 private:
  /// Whether grid `earlier` ends before grid `self`, which runs.
  bool ends_before(uint32_t earlier, uint32_t self) const;

  std::vector<std::unique_ptr<Block>> blocks_;
  uint64_t next_ = uint64_t{1} << 32;
  uint32_t grid_ = 0, unfinished_ = 0;
  uint64_t writes_ = 0;
  bool waited_ = true;       // the current grid, for those before it
  mutable uint32_t found_[64] = {};  // in blocks_, by the address in units of the gap between blocks
  const GridOrder* order_ = nullptr;
  // Pairs of grids that ends_before() found to be ordered, by the earlier one: the writers of a kernel's operands.
  mutable std::pair<uint32_t, uint32_t> ordered_[16] = {};
};

/// How interleavings are drawn.
enum class Policy : uint8_t {
  in_order,  // warps by turns, without preemption; the fastest
  random,    // uniform, 1 to 8 instructions at a time
  sticky,    // priorities that change rarely (after PCT, ASPLOS 2010): one warp runs far ahead of the others
};
constexpr int kPolicies = 3;
std::string_view to_string(Policy policy);

/// One place in the source of a kernel that calls an instruction.
struct Site {
  Instruction instruction = Instruction::none;
  std::string file, function;  // names without folders and namespaces
  uint32_t line = 0, column = 0;
  auto operator<=>(const Site&) const = default;
};

/// A deliberate error: one call of an instruction, changed.
struct Mutation {
  enum class Edit : uint8_t {
    skip,        // nobody executes it; one that computes gives another result
    skip_lane,   // lane 3 of each warp leaves it out
    skip_warp,   // warp 0 leaves it out
    argument,    // its number is `argument`
    doubled,     // its number is twice as large
    halved,      // half as large
    transposed,  // ldmatrix transposes, or no longer does
  };
  Site site;
  Edit edit = Edit::skip;
  uint32_t argument = 0;
};

struct Options {
  uint64_t seed = 0;
  Policy policy = Policy::in_order;
  /// The rules of order. Without them the emulator does not check
  ///   - the order of accesses to shared memory, in the own CTA and in the others of a cluster, by lanes, copies and
  ///     products (shadow.h), and of accesses to global memory within a grid and between streams,
  ///   - that a lane exits with no open cp.async, and a CTA behind the accesses of its cluster,
  ///   - that the init of an mbarrier is fenced and comes before its use,
  ///   - that the lanes of a warp come by one way to the cluster's barrier,
  ///   - that the warps of a warpgroup meet between two setmaxnreg.
  /// Off: to see what schedules alone find.
  bool checks = true;
  /// Without `checks`, accesses of kernels to global memory are checked all the same, and recorded for later grids.
  bool global_checks = false;
  bool strict = true;                      // proxy rules that practice disputes (see shadow.h)
  uint64_t steps_max = uint64_t{1} << 34;  // instructions of all lanes of a grid
  uint8_t fault = 0;                       // gpu::Fault
  const Mutation* mutation = nullptr;      // the kernel is run with it; must outlive the run
  std::vector<Site>* sites = nullptr;      // the run adds the places that it passes, each once
};

struct Launch {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block = 0;  // threads, a multiple of 32
  uint32_t dynamic_shared = 0;
  uint32_t cluster = 1;       // CTAs of a cluster, along x
  bool programmatic = false;  // it may start before the grid before it has ended
  std::span<const std::byte> params;
};

/// The first broken rule of a run. Beside the rules of shadow.h:
///   barrier        a count, an id, a second arrival, an init that is missing, not fenced or not ordered
///   deadlock       nothing can run; the text has the line where each warp waits
///   divergence     lanes of a warp are in different collectives, or one has exited; or lanes that took different ways
///                  reach the cluster's barrier, which is .aligned, and have not met in a collective before it
///   wgmma          warps or lanes issue different products, or there is no full warpgroup
///   wgmma fence    registers of a product were written since the last wgmma.fence
///   accumulator    registers of an unfinished product are touched
///   exit           a lane leaves copies, products or barriers open
///   cluster        another CTA's shared memory is used before it has started or after it has exited
///   dependency     a programmatic launch touches what an earlier grid wrote, or writes what it read, before
///                  griddepcontrol.wait
///   registers      setmaxnreg names a count that is not allowed; or the warps of a warpgroup do not all run it, run
///                  different ones, or do not meet between two
///   bank conflict  an access costs more wavefronts than it states
///   bounds, alignment, tensor map, launch, endless
struct Failure {
  Rule rule;
  std::string text;  // the name of the rule, with kernel, place, CTA, warp, lane, seed and policy
};

struct Counters {
  uint64_t instructions = 0;  // of lanes, through lib/gpu/ptx
  uint64_t switches = 0;      // of fibers
  uint64_t matrix_products = 0, async_bytes = 0, barriers = 0;
  uint64_t multiply_adds = 0;  // of matrix products, padding included
  uint64_t stored_bytes = 0;   // by ordinary stores to global memory
  uint64_t bank_conflicts = 0;  // extra wavefronts of accesses to shared memory
  void add(const Counters& other);
};

struct Report {
  std::optional<Failure> failure;
  Counters counters;
};

/// Runs a grid to its end or to its first failure.
Report run(const Kernel& kernel, DeviceMemory& memory, const Launch& launch, const Options& options);

}  // namespace mc::gpu::emu

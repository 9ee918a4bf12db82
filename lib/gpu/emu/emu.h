// A GPU that runs PTX on the host under a seed and checks the chip's ordering rules. One run is one thread and one
// interleaving: the seed draws the order of CTAs, warps and asynchronous copies, so a failure repeats.
//
//   auto module = ptx::parse(text);
//   auto program = Program::load(*module, "attention_prefill_d64");
//   DeviceMemory memory;
//   auto q = memory.allocate(bytes, "q");
//   Report report = run(*program, memory, {.grid = {4, 8, 1}, .block = 128, .params = bytes_of(args)}, {.seed = 1});
//
// The rules are those of the PTX ISA 9.0 memory consistency model (section 8) as far as CTAs and asynchronous copies
// need them: docs of each rule stand in shadow.h. Timing, caches, rounding inside the tensor cores and weak global
// memory are not modelled. Nothing here has been compared with a chip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/ptx/ptx.h"

namespace mc::gpu::emu {

struct Decoded;

/// A kernel with its instructions decoded. The module must outlive it.
class Program {
 public:
  /// Code::not_found: no such kernel; Code::unsupported: an instruction that the emulator does not know, with its name
  /// and its line in the PTX text and in the CUDA source.
  static Result<Program> load(const ptx::Module& module, std::string_view kernel);
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  const Decoded& code() const { return *code_; }

 private:
  Program();
  std::unique_ptr<Decoded> code_;
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

  struct Block {
    uint64_t address = 0;
    std::string name;
    std::vector<std::byte> bytes;
    std::vector<bool> defined;     // by byte
    size_t undefined = 0;          // bytes that are not
    std::vector<uint32_t> writer;  // by 4 bytes: CTA + 1 of the current grid
    std::vector<uint32_t> reader;  // likewise; kManyReaders: several CTAs
  };
  static constexpr uint32_t kManyReaders = UINT32_MAX;
  /// The block that holds all of the range, or null.
  Block* find(uint64_t address, size_t bytes);
  const Block* find(uint64_t address, size_t bytes) const;
  /// A new grid starts: what earlier grids wrote is visible to all.
  void start_grid();

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
  uint64_t next_ = uint64_t{1} << 32;
  mutable size_t last_ = 0;  // found last
};

/// How interleavings are drawn.
enum class Policy : uint8_t {
  in_order,  // warps by turns, without preemption; the fastest
  random,    // uniform, 1 to 8 instructions at a time
  sticky,    // priorities that change rarely (after PCT, ASPLOS 2010): one warp runs far ahead of the others
};
constexpr int kPolicies = 3;
std::string_view to_string(Policy policy);

struct Options {
  uint64_t seed = 0;
  Policy policy = Policy::in_order;
  bool checks = true;                      // the ordering rules; off: to see what schedules alone find
  bool strict = true;                      // proxy rules that practice disputes (see shadow.h)
  uint64_t steps_max = uint64_t{1} << 34;  // instructions of a grid
};

struct Launch {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block = 0;  // threads, a multiple of 32
  uint32_t dynamic_shared = 0;
  std::span<const std::byte> params;
};

/// The first broken rule of a run.
struct Failure {
  std::string rule;  // a short name: "race", "in-flight", "deadlock"
  std::string text;  // the rule, with kernel, place, CTA, warp, lane, seed and policy
};

struct Counters {
  uint64_t instructions = 0;  // of warps
  uint64_t matrix_products = 0, async_bytes = 0, barriers = 0;
  uint64_t bank_conflicts = 0;  // extra wavefronts of ldmatrix
  void add(const Counters& other);
};

struct Report {
  std::optional<Failure> failure;
  Counters counters;
};

/// Runs a grid to its end or to its first failure.
Report run(const Program& program, DeviceMemory& memory, const Launch& launch, const Options& options);

}  // namespace mc::gpu::emu

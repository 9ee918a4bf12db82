// Instructions of one lane that read and write memory (PTX ISA 9.0, sections 9.7.9.8 to 9.7.9.12 and 9.7.13.6).
#include <algorithm>

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
    fail(Rule::alignment, "the address " + hex(address) + " is no multiple of " + std::to_string(alignment));
}

}  // namespace

namespace {

[[noreturn, gnu::cold, gnu::noinline]] void fail_shared(const Cta& cta, uint32_t address, uint32_t bytes,
                                                        uint32_t alignment, int lane) {
  if (address % alignment != 0 && address >= cta.dynamic_start &&
      uint64_t{address} + bytes <= uint64_t{cta.dynamic_start} + cta.grid.launch.dynamic_shared)
    fail(Rule::alignment, "shared " + hex(address) + " is no multiple of " + std::to_string(alignment), lane);
  fail(Rule::bounds,
       std::to_string(bytes) + " bytes at shared " + hex(address) + " lie outside the " +
           std::to_string(cta.grid.launch.dynamic_shared) + " bytes from " + hex(cta.dynamic_start),
       lane);
}

}  // namespace

std::byte* shared_bytes_of(Cta& cta, uint32_t address, uint32_t bytes, uint32_t alignment, int lane) {
  const uint32_t size = cta.grid.launch.dynamic_shared;
  if (address < cta.dynamic_start || address - cta.dynamic_start > size ||
      bytes > size - (address - cta.dynamic_start) || address % alignment != 0) [[unlikely]]
    fail_shared(cta, address, bytes, alignment, lane);
  return cta.shared.data() + address;
}

std::byte* shared_bytes(uint32_t address, uint32_t bytes, uint32_t alignment, int lane) {
  return shared_bytes_of(running_cta(), address, bytes, alignment, lane);
}

void count_conflicts(uint32_t conflicts, uint32_t stated) {
  Grid& grid = running_cta().grid;
  grid.report.counters.bank_conflicts += conflicts;
  const uint32_t most = std::max(stated, grid.kernel.conflicts_max);
  if (conflicts > most)
    fail(Rule::bank_conflict, "the access costs " + std::to_string(conflicts) +
                                  " extra wavefronts, the access states " + std::to_string(most));
}

namespace {

/// Extra wavefronts of the lanes from `first`: one serves lanes whose words lie in different banks, and lanes that name
/// one word share it.
uint32_t conflicts_of(const SiteRounds::Round& round, uint32_t first, uint32_t lanes) {
  // Mostly all lanes name one word, or neighbours that fill the banks once.
  const uint32_t group = (lanes == kLanes ? kAllLanes : (1u << lanes) - 1) << first;
  if ((round.lanes & group) == group && round.bytes >= 4) {
    const uint32_t* at = &round.at[first];
    uint32_t apart = 0, beside = 0;
    for (uint32_t i = 0; i < lanes; ++i) {
      apart |= at[i] ^ at[0];
      beside |= (at[i] - at[0]) ^ (i * round.bytes);
    }
    if (beside == 0 || apart == 0) return 0;
  }
  uint32_t words[kLanes], banks[kLanes] = {}, count = 0, most = 1;
  for (uint32_t i = first; i < first + lanes; ++i)
    for (uint32_t w = 0; (round.lanes >> i & 1) != 0 && w < std::max(round.bytes / 4, 1u); ++w) {
      const uint32_t word = round.at[i] / 4 + w;
      uint32_t& bank = banks[word % 32];
      if (bank > 0 && std::find(words, words + count, word) != words + count) continue;
      MC_ASSERT_LT(count, kLanes);
      words[count++] = word;
      most = std::max(most, ++bank);
    }
  return most - 1;
}

/// Counts the extra wavefronts of the first round of a place, which ends.
void count_front(SiteRounds& site) {
  const SiteRounds::Round& done = site.rounds.front();
  const uint32_t lanes_at_once = 128 / std::max(done.bytes, 4u);
  uint32_t conflicts = 0;
  for (uint32_t first = 0; first < kLanes; first += lanes_at_once)
    conflicts += conflicts_of(done, first, lanes_at_once);
  site.rounds.pop_front();
  ++site.first;
  count_conflicts(conflicts, site.banks.lanes - 1);
}

}  // namespace

/// Counts the extra wavefronts of the accesses at one place: the nth ones of the lanes are one access.
void note_banks(uint32_t address, uint32_t bytes, Banks banks) {
  MC_ASSERT(banks.lanes >= 1 && banks.lanes <= kLanes);
  MC_ASSERT_LE(banks.copy, kUnnumbered);
  const Lane& lane = running();
  Warp& warp = *lane.warp;
  SiteRounds& site = warp.rounds.of(lane.instruction, lane.where, banks.copy);
  site.instruction = lane.instruction, site.where = lane.where, site.banks = banks;
  const uint32_t call = site.calls[lane.number]++;
  if (call < site.first) return;  // its round was given up
  while (site.rounds.size() <= call - site.first) site.rounds.emplace_back();
  SiteRounds::Round& round = site.rounds[call - site.first];
  round.lanes |= lane.bit();
  round.bytes = bytes;
  round.at[lane.number] = address;
  constexpr size_t kRoundsMax = 1024;  // of lanes that run ahead of others, which may never come
  while (!site.rounds.empty() &&
         ((site.rounds.front().lanes & warp.alive) == warp.alive || site.rounds.size() > kRoundsMax))
    count_front(site);
}

/// Lanes that skip iterations of a loop do not meet in its accesses, so only numbered ones are counted: the number says
/// that lanes which make the access nth make one access.
void count_left_rounds(Lane& last) {
  for (auto& [key, site] : last.warp->rounds.all) {
    if (site.banks.copy == kUnnumbered) continue;
    last.instruction = site.instruction, last.where = site.where;  // of a failure
    while (!site.rounds.empty()) count_front(site);
  }
  last.instruction = Instruction::exit;
}

/// The start is drawn: a kernel that wants more alignment than it states fails under some seeds. It is one address in
/// all CTAs of a cluster, because mapa and multicast copies name other CTAs by it.
uint32_t dynamic_shared(uint32_t alignment) {
  Cta& cta = running_cta();
  if (cta.dynamic_known) return cta.dynamic_start;
  MC_ASSERT_LE(alignment + cta.grid.launch.dynamic_shared, cta.shared.size());
  const auto& peers = cta.cluster.ctas;
  const auto peer = std::find_if(peers.begin(), peers.end(), [](const Cta& other) { return other.dynamic_known; });
  cta.dynamic_start =
      peer != peers.end() ? peer->dynamic_start : alignment * static_cast<uint32_t>(cta.grid.rng.below(2));
  cta.dynamic_known = true;
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
  running_cta().grid.report.counters.stored_bytes += bytes;
}

void load_shared(uint32_t from, void* to, uint32_t bytes, Banks banks, const Where& where) {
  std::memset(to, 0, bytes);
  if (!begin(Instruction::ld_shared, where)) return;
  from = mutated(from);
  const std::byte* at = shared_bytes(from, bytes, bytes);
  note_banks(from, bytes, banks);
  touch_shared(from, bytes, Access::read);
  std::memcpy(to, at, bytes);
}

void store_shared(uint32_t to, const void* from, uint32_t bytes, Banks banks, const Where& where) {
  if (!begin(Instruction::st_shared, where)) return;
  to = mutated(to);
  std::byte* at = shared_bytes(to, bytes, bytes);
  note_banks(to, bytes, banks);
  touch_shared(to, bytes, Access::write);
  std::memcpy(at, from, bytes);
}

uint32_t apply(AtomicOp op, uint32_t old, uint32_t value) {
  switch (op) {
    case AtomicOp::add: return old + value;
    case AtomicOp::add_f32: return std::bit_cast<uint32_t>(std::bit_cast<float>(old) + std::bit_cast<float>(value));
    case AtomicOp::bit_or: return old | value;
    case AtomicOp::max: return std::max(old, value);
  }
  return old;
}

uint32_t atomic_shared(AtomicOp op, uint32_t at, uint32_t value, const Where& where) {
  if (!begin(Instruction::atom_shared, where)) return 0;
  std::byte* bytes = shared_bytes(at, 4, 4);
  touch_shared(at, 4, Access::atomic);
  uint32_t old;
  std::memcpy(&old, bytes, 4);
  const uint32_t made = apply(op, old, value);
  std::memcpy(bytes, &made, 4);
  return old;
}

}  // namespace mc::gpu::emu

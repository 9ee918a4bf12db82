// Instructions of a whole warp or CTA: barriers, exchange between lanes, votes, matrix fragments and products (PTX ISA
// 9.0, sections 9.7.9.6, 9.7.13 and 9.7.14).
#include <algorithm>

#include "base/dtype.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

/// bar.sync id{, threads}: the warp arrives, and sleeps until the others have.
Flow barrier_sync(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t id = op.a[0];
  const uint32_t threads = op.count == 2 ? op.a[1] : static_cast<uint32_t>(w.cta.warps.size()) * kLanes;
  if (id > 15 || threads == 0 || threads % kLanes != 0 || threads > w.cta.warps.size() * kLanes)
    return w.fail("barrier", "bar.sync " + std::to_string(id) + " for " + std::to_string(threads) + " threads", mask);
  NamedBarrier& barrier = w.cta.barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = threads / kLanes;
    barrier.released = View(w.cta.shadow.warps() + 32);
    barrier.warps = 0;
  }
  if (barrier.expected != threads / kLanes)
    return w.fail("barrier", "warps name different counts of threads at bar.sync " + std::to_string(id), mask);
  w.cta.shadow.sync_warp(w.number);
  w.cta.shadow.release(w.number, kAllLanes, barrier.released);
  ++barrier.arrived;
  ++w.cta.grid.report.counters.barriers;
  const bool arrive_only = op.variant == 1;
  if (!arrive_only) barrier.warps |= 1u << w.number;
  if (barrier.arrived < barrier.expected) return arrive_only ? Flow::next : Flow::wait;
  barrier.arrived = 0;
  for (Warp& other : w.cta.warps) {
    if ((barrier.warps >> other.number & 1) == 0) continue;
    w.cta.shadow.acquire(other.number, kAllLanes, barrier.released);
    w.cta.shadow.sync_warp(other.number);
    for (Strand& strand : other.strands)
      if (strand.state == Strand::State::waiting) strand.state = Strand::State::ready;
  }
  return Flow::next;
}

bool decode_arrive(Op& op, std::string_view modifiers, std::string&) {
  op.variant = 1;
  return modifiers.empty();
}

/// Whether a collective with a mask may run: Flow::next. Its lanes wait for each other; one that has exited never
/// comes.
Flow gather(Warp& w, uint32_t members, uint32_t mask) {
  if ((mask & ~members) != 0) return w.fail("divergence", "a lane runs a collective whose mask does not name it", mask);
  if ((members & ~w.alive) != 0 && (members & w.alive) == mask)
    return w.fail("divergence", "the mask of a collective names a lane that has exited", members & ~w.alive);
  return members == mask ? Flow::next : Flow::block;
}

Flow warp_sync(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t members = w.word(op.a[0], static_cast<uint32_t>(std::countr_zero(mask)));
  if (const Flow flow = gather(w, members, mask); flow != Flow::next) return flow;
  if (mask == w.alive)
    w.cta.shadow.sync_warp(w.number);
  else
    w.cta.shadow.sync_lanes(w.number, mask);
  return Flow::next;
}

/// shfl.sync d{|p}, a, b, c, membermask. The lanes of the mask wait for each other.
template <char kMode>
Flow shuffle(Warp& w, const Op& op, uint32_t mask) {
  const bool with_predicate = op.count == 6;
  const uint32_t* a = op.a + (with_predicate ? 2 : 1);
  const uint32_t members = w.word(a[3], static_cast<uint32_t>(std::countr_zero(mask)));
  if (const Flow flow = gather(w, members, mask); flow != Flow::next) return flow;
  uint32_t values[kLanes], inside = 0;
  std::memcpy(values, w.registers.data() + a[0], sizeof values);
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const uint32_t b = w.word(a[1], lane), c = w.word(a[2], lane);
    const uint32_t segment = c >> 8 & 31, most = (lane & segment) | (c & 31 & ~segment), least = lane & segment;
    const uint32_t by = b & 31;
    uint32_t from = 0;
    bool valid = false;
    if (kMode == 'u') valid = static_cast<int>(lane - by) >= static_cast<int>(most), from = lane - by;
    if (kMode == 'd') valid = lane + by <= most, from = lane + by;
    if (kMode == 'b') valid = (lane ^ by) <= most, from = lane ^ by;
    if (kMode == 'i') from = least | (by & ~segment), valid = from <= most;
    if (!valid) from = lane;
    if ((mask >> from & 1) == 0)
      return w.fail("divergence", "shfl.sync reads lane " + std::to_string(from) + ", which does not take part",
                    1u << lane);
    w.registers[op.a[0] + lane] = values[from];
    inside |= static_cast<uint32_t>(valid) << lane;
  }
  if (with_predicate) {
    uint32_t& p = w.predicates[op.a[1]];
    p = (p & ~mask) | (inside & mask);
  }
  return Flow::next;
}

enum class Vote : uint8_t { any, all, uni };
template <Vote kVote>
Flow vote(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t members = w.word(op.a[2], static_cast<uint32_t>(std::countr_zero(mask)));
  if (const Flow flow = gather(w, members, mask); flow != Flow::next) return flow;
  uint32_t source = w.predicates[op.a[1] & 0x7fffffffu];
  if ((op.a[1] >> 31) != 0) source = ~source;
  const uint32_t set = source & mask;
  const bool result = kVote == Vote::any ? set != 0 : kVote == Vote::all ? set == mask : set == 0 || set == mask;
  uint32_t& p = w.predicates[op.a[0]];
  p = result ? p | mask : p & ~mask;
  return Flow::next;
}
Flow ballot(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t members = w.word(op.a[2], static_cast<uint32_t>(std::countr_zero(mask)));
  if (const Flow flow = gather(w, members, mask); flow != Flow::next) return flow;
  uint32_t source = w.predicates[op.a[1] & 0x7fffffffu];
  if ((op.a[1] >> 31) != 0) source = ~source;
  for_lanes(mask, [&](uint32_t i) { w.registers[op.a[0] + i] = source & mask; });
  return Flow::next;
}
Flow active_mask(Warp& w, const Op& op, uint32_t mask) {
  for_lanes(mask, [&](uint32_t i) { w.registers[op.a[0] + i] = mask; });
  return Flow::next;
}

Flow leave(Warp& w, const Op&, uint32_t mask) {
  if (w.cta.grid.options.checks)
    for (const AsyncCopy& copy : w.copies)
      if ((copy.mask & mask) != 0)
        return w.fail("exit", "a lane exits with a cp.async that it has not waited for", copy.mask & mask);
  if (!w.products.empty()) return w.fail("exit", "a warp exits before the wait of a wgmma", mask);
  w.alive &= ~mask;
  Strand& strand = w.strands[w.current];
  strand.mask &= ~mask;
  ++strand.pc;
  w.wake_blocked();  // lanes may have waited for those that left
  return Flow::jump;
}
Flow trap(Warp& w, const Op&, uint32_t mask) {
  return w.fail("trap", "the kernel gave up", mask);
}
Flow nothing(Warp&, const Op&, uint32_t) {
  return Flow::next;
}
Flow fence_async(Warp& w, const Op&, uint32_t mask) {
  w.cta.shadow.fence_async(w.number, mask);
  return Flow::next;
}

/// ldmatrix: lanes 8j .. 8j + 7 name the rows of matrix j; lane t gets elements 2 (t % 4) and the next of row t / 4,
/// or, transposed, of column t / 4 (9.7.14.5.15).
Flow load_matrix(Warp& w, const Op& op, uint32_t mask) {
  if (mask != kAllLanes) return w.fail("divergence", "lanes of the warp have exited", mask);
  std::byte rows[32][16];
  for (uint32_t i = 0; i < 8u * op.count; ++i) {
    const uint64_t address = w.word(op.base, i) + static_cast<uint64_t>(op.offset);
    if (address % 16 != 0 || address + 16 > w.cta.shared.size())
      return w.fail("bounds",
                    "ldmatrix: a row at shared " + std::to_string(address) + " is not aligned to 16 or lies outside",
                    1u << i);
    // Row i is read by the four lanes that get its elements, of each matrix; all are in this instruction.
    if (w.cta.grid.options.checks)
      if (const Conflict found =
              w.cta.shadow.touch(w.number, kAllLanes, static_cast<uint32_t>(address), 16, Access::read, Proxy::generic))
        return w.fail(found, 1u << i);
    std::memcpy(rows[i], w.cta.shared.data() + address, 16);
  }
  for (uint32_t matrix = 0; matrix < op.count; ++matrix) {
    uint32_t banks = 0, conflicts = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t bank = 1u << (w.word(op.base, 8 * matrix + i) / 16 % 8);
      conflicts += (banks & bank) != 0 ? 1 : 0;
      banks |= bank;
    }
    w.cta.grid.report.counters.bank_conflicts += conflicts;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      uint16_t low, high;
      const uint32_t row = lane / 4, column = 2 * (lane % 4);
      if (op.variant == 0) {
        std::memcpy(&low, rows[8 * matrix + row] + 2 * column, 2);
        std::memcpy(&high, rows[8 * matrix + row] + 2 * column + 2, 2);
      } else {
        std::memcpy(&low, rows[8 * matrix + column] + 2 * row, 2);
        std::memcpy(&high, rows[8 * matrix + column + 1] + 2 * row, 2);
      }
      w.registers[op.a[matrix] + lane] = static_cast<uint32_t>(high) << 16 | low;
    }
  }
  return Flow::next;
}
bool decode_load_matrix(Op& op, std::string_view modifiers, std::string& shape) {
  for (const auto& [name, count] : {std::pair{".x1", 1}, {".x2", 2}, {".x4", 4}}) {
    if (!modifiers.starts_with(name)) continue;
    modifiers.remove_prefix(3);
    op.count = static_cast<uint8_t>(count);
    op.variant = modifiers.starts_with(".trans") ? 1 : 0;
    if (op.variant == 1) modifiers.remove_prefix(6);
    shape = "{" + std::string(static_cast<size_t>(count), 'R') + "}m";
    return modifiers == ".shared.b16" || modifiers == ".shared::cta.b16";
  }
  return false;
}

float low_half(uint32_t pair) {
  return bf16_to_f32(static_cast<bf16_t>(pair));
}
float high_half(uint32_t pair) {
  return bf16_to_f32(static_cast<bf16_t>(pair >> 16));
}

/// mma.m16n8k16, bf16 with f32 sums (9.7.14.5.8). Products are exact; the sum runs over k in ascending order, which the
/// chip does not promise.
Flow multiply_tile(Warp& w, const Op& op, uint32_t mask) {
  if (mask != kAllLanes) return w.fail("divergence", "lanes of the warp have exited", mask);
  float a[16][16], b[16][8], d[16][8];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t g = lane / 4, q = 2 * (lane % 4);
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t pair = w.word(op.a[4 + r], lane), row = g + 8 * (r & 1), k = q + 8 * (r >> 1);
      a[row][k] = low_half(pair);
      a[row][k + 1] = high_half(pair);
      d[g + 8 * (r >> 1)][q + (r & 1)] = std::bit_cast<float>(w.word(op.a[10 + r], lane));
    }
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t pair = w.word(op.a[8 + r], lane);
      b[q + 8 * r][g] = low_half(pair);
      b[q + 8 * r + 1][g] = high_half(pair);
    }
  }
  for (auto row = 0; row < 16; ++row)
    for (auto k = 0; k < 16; ++k)
      for (auto n = 0; n < 8; ++n) d[row][n] += a[row][k] * b[k][n];
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    for (uint32_t r = 0; r < 4; ++r)
      w.registers[op.a[r] + lane] = std::bit_cast<uint32_t>(d[lane / 4 + 8 * (r >> 1)][2 * (lane % 4) + (r & 1)]);
  ++w.cta.grid.report.counters.matrix_products;
  return Flow::next;
}

constexpr Row kWarpRows[] = {
    {"bar.sync", "i", barrier_sync, nullptr, true},
    {"bar.sync", "ii", barrier_sync, nullptr, true},
    {"bar.arrive", "ii", barrier_sync, decode_arrive, true},
    {"barrier.sync", "i", barrier_sync, nullptr, true},
    {"barrier.sync", "ii", barrier_sync, nullptr, true},
    {"bar.warp.sync", "r", warp_sync},
    {"shfl.sync.up.b32", "Rrrrr", shuffle<'u'>},
    {"shfl.sync.down.b32", "Rrrrr", shuffle<'d'>},
    {"shfl.sync.bfly.b32", "Rrrrr", shuffle<'b'>},
    {"shfl.sync.idx.b32", "Rrrrr", shuffle<'i'>},
    {"shfl.sync.up.b32", "RPrrrr", shuffle<'u'>},
    {"shfl.sync.down.b32", "RPrrrr", shuffle<'d'>},
    {"shfl.sync.bfly.b32", "RPrrrr", shuffle<'b'>},
    {"shfl.sync.idx.b32", "RPrrrr", shuffle<'i'>},
    {"vote.sync.any.pred", "Pqr", vote<Vote::any>},
    {"vote.sync.all.pred", "Pqr", vote<Vote::all>},
    {"vote.sync.uni.pred", "Pqr", vote<Vote::uni>},
    {"vote.sync.ballot.b32", "Rqr", ballot},
    {"activemask.b32", "R", active_mask},
    {"ret", "", leave},
    {"exit", "", leave},
    {"trap", "", trap},
    {"membar.cta", "", nothing},
    {"fence.acq_rel.cta", "", nothing},
    {"prefetch.global.L2", "m", nothing},
    {"fence.proxy.async", "", fence_async},
    {"fence.proxy.async.shared::cta", "", fence_async},
    {"ldmatrix.sync.aligned.m8n8", "", load_matrix, decode_load_matrix, true},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "{RRRR}{rrrr}{rr}{rrrr}", multiply_tile, nullptr, true},
};

}  // namespace

std::span<const Row> warp_rows() {
  return kWarpRows;
}

}  // namespace mc::gpu::emu

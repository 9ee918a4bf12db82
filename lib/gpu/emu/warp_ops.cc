// Instructions of a whole warp or CTA: barriers, exchange between lanes, matrix fragments and products (PTX ISA 9.0,
// sections 9.7.9.6, 9.7.13 and 9.7.14).
#include <algorithm>

#include "base/assert.h"
#include "base/dtype.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

template <class T>
const T& operand(void* const* operands, uint32_t lane) {
  return *static_cast<const T*>(operands[lane]);
}

struct BarrierOperand {
  uint32_t id = 0, threads = 0;
  bool arrive_only = false;
};

/// bar.sync id{, threads}: the warp arrives, and sleeps until the others have.
Flow arrive_at_barrier(Warp& w, uint32_t lanes, void* const* operands) {
  Cta& cta = w.cta;
  const auto [id, count, arrive_only] =
      operand<BarrierOperand>(operands, static_cast<uint32_t>(std::countr_zero(lanes)));
  const uint32_t all = static_cast<uint32_t>(cta.warps.size()) * kLanes, threads = count == 0 ? all : count;
  if (id > 15 || threads % kLanes != 0 || threads > all)
    fail(Rule::barrier, "barrier " + std::to_string(id) + " for " + std::to_string(threads) + " of " +
                            std::to_string(all) + " threads");
  NamedBarrier& barrier = cta.barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = threads / kLanes;
    cta.order.reset(barrier.released);
    barrier.warps = barrier.here = 0;
  }
  if (barrier.here >> w.number & 1)
    fail(Rule::barrier,
         "warp " + std::to_string(w.number) + " arrives twice at barrier " + std::to_string(id) + " before it is over");
  barrier.here |= 1u << w.number;
  if (barrier.expected != threads / kLanes)
    fail(Rule::barrier, "warps name different counts of threads at barrier " + std::to_string(id));
  cta.order.sync_warp(w.agent);
  cta.order.release(w.agent, kAllLanes, barrier.released);
  ++barrier.arrived;
  MC_ASSERT_LE(barrier.arrived, barrier.expected);
  ++cta.grid.report.counters.barriers;
  if (!arrive_only) barrier.warps |= 1u << w.number;
  if (barrier.arrived < barrier.expected) return arrive_only ? Flow::next : Flow::sleep;
  barrier.arrived = 0;
  for (Warp& other : cta.warps) {
    if ((barrier.warps >> other.number & 1) == 0) continue;
    cta.order.acquire(other.agent, kAllLanes, barrier.released);
    cta.order.sync_warp(other.agent);
    other.ready |= other.alive;
  }
  return Flow::next;
}

Flow order_lanes(Warp& w, uint32_t lanes, void* const*) {
  if (lanes == w.alive)
    w.cta.order.sync_warp(w.agent);
  else
    w.cta.order.sync_lanes(w.agent, lanes);
  return Flow::next;
}

struct ShuffleOperand {
  Shuffle mode;
  uint32_t* value;
  uint32_t words, by;
};

/// shfl.sync of the whole warp: a lane that names one outside of the warp keeps its own value.
Flow exchange(Warp& w, uint32_t lanes, void* const* operands) {
  uint32_t values[kLanes][2];
  for_lanes(lanes, [&](uint32_t lane) {
    const auto& o = operand<ShuffleOperand>(operands, lane);
    std::copy_n(o.value, o.words, values[lane]);
  });
  for_lanes(lanes, [&](uint32_t lane) {
    const auto& o = operand<ShuffleOperand>(operands, lane);
    uint32_t from = lane;
    if (o.mode == Shuffle::up) from = lane >= o.by ? lane - o.by : lane;
    if (o.mode == Shuffle::down) from = lane + o.by < kLanes ? lane + o.by : lane;
    if (o.mode == Shuffle::bfly) from = (lane ^ o.by) % kLanes;
    if (o.mode == Shuffle::idx) from = o.by % kLanes;
    if ((lanes >> from & 1) == 0)
      fail(Rule::divergence, "the exchange reads lane " + std::to_string(from) + ", which does not take part",
           static_cast<int>(lane));
    std::copy_n(values[from], o.words, o.value);
  });
  return Flow::next;
}

struct MatrixOperand {
  uint32_t* d;
  uint32_t count, from;
  bool transposed;
};

/// Extra wavefronts: rows of one matrix in the same group of four banks.
uint32_t conflicts_of(void* const* operands, uint32_t matrix) {
  uint32_t banks = 0, conflicts = 0;
  for (uint32_t i = 8 * matrix; i < 8 * matrix + 8; ++i) {
    const uint32_t bank = 1u << (operand<MatrixOperand>(operands, i).from / 16 % 8);
    conflicts += (banks & bank) != 0 ? 1 : 0;
    banks |= bank;
  }
  return conflicts;
}

/// ldmatrix: lanes 8j .. 8j + 7 name the rows of matrix j; lane t gets elements 2 (t % 4) and the next of row t / 4,
/// or, transposed, of column t / 4 (9.7.14.5.15).
Flow load_matrices(Warp& w, uint32_t, void* const* operands) {
  const auto& first = operand<MatrixOperand>(operands, 0);
  uint16_t rows[32][8];
  for (uint32_t i = 0; i < 8 * first.count; ++i) {
    const uint32_t address = operand<MatrixOperand>(operands, i).from;
    const std::byte* from = shared_bytes(address, 16, 16, static_cast<int>(i));
    // Row i is read by the four lanes that get its elements, of each matrix; all are in this instruction.
    if (w.cta.grid.options.checks)
      if (const Conflict found = w.cta.shadow.touch(w.agent, kAllLanes, address, 16, Access::read, Proxy::generic))
        fail(found, static_cast<int>(i));
    std::memcpy(rows[i], from, 16);
  }
  for (uint32_t matrix = 0; matrix < first.count; ++matrix) {
    count_conflicts(conflicts_of(operands, matrix));
    const uint16_t(*m)[8] = rows + 8 * matrix;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t a = lane / 4, b = 2 * (lane % 4);
      const uint32_t low = first.transposed ? m[b][a] : m[a][b], high = first.transposed ? m[b + 1][a] : m[a][b + 1];
      operand<MatrixOperand>(operands, lane).d[matrix] = high << 16 | low;
    }
  }
  return Flow::next;
}

/// stmatrix, the way back (9.7.14.5.16).
Flow store_matrices(Warp& w, uint32_t, void* const* operands) {
  const auto& first = operand<MatrixOperand>(operands, 0);
  for (uint32_t matrix = 0; matrix < first.count; ++matrix) {
    count_conflicts(conflicts_of(operands, matrix));
    uint16_t m[8][8];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t value = operand<MatrixOperand>(operands, lane).d[matrix], a = lane / 4, b = 2 * (lane % 4);
      (first.transposed ? m[b][a] : m[a][b]) = static_cast<uint16_t>(value);
      (first.transposed ? m[b + 1][a] : m[a][b + 1]) = static_cast<uint16_t>(value >> 16);
    }
    for (uint32_t row = 0; row < 8; ++row) {
      const uint32_t address = operand<MatrixOperand>(operands, 8 * matrix + row).from;
      std::byte* to = shared_bytes(address, 16, 16, static_cast<int>(8 * matrix + row));
      // The four lanes whose elements make the row write it.
      if (w.cta.grid.options.checks)
        if (const Conflict found =
                w.cta.shadow.touch(w.agent, 15u << (4 * row), address, 16, Access::write, Proxy::generic))
          fail(found, static_cast<int>(8 * matrix + row));
      std::memcpy(to, m[row], 16);
    }
  }
  return Flow::next;
}

struct BallotOperand {
  bool value;
  uint32_t result;
};

Flow count_votes(Warp&, uint32_t lanes, void* const* operands) {
  uint32_t votes = 0;
  for_lanes(lanes, [&](uint32_t i) { votes |= operand<BallotOperand>(operands, i).value ? 1u << i : 0; });
  for_lanes(lanes, [&](uint32_t i) { static_cast<BallotOperand*>(operands[i])->result = votes; });
  return Flow::next;
}

struct TileOperand {
  float* d;
  const uint32_t *a, *b;
};

float low_half(uint32_t pair) {
  return bf16_to_f32(static_cast<bf16_t>(pair));
}
float high_half(uint32_t pair) {
  return bf16_to_f32(static_cast<bf16_t>(pair >> 16));
}

/// mma.m16n8k16, bf16 with f32 sums (9.7.14.5.8). Products are exact; the sum runs over k in ascending order, which the
/// chip does not promise.
Flow multiply_fragments(Warp& w, uint32_t, void* const* operands) {
  float a[16][16], b[16][8], d[16][8];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const auto& o = operand<TileOperand>(operands, lane);
    const uint32_t g = lane / 4, q = 2 * (lane % 4);
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t row = g + 8 * (r & 1), k = q + 8 * (r >> 1);
      a[row][k] = low_half(o.a[r]);
      a[row][k + 1] = high_half(o.a[r]);
      d[g + 8 * (r >> 1)][q + (r & 1)] = o.d[r];
    }
    for (uint32_t r = 0; r < 2; ++r) {
      b[q + 8 * r][g] = low_half(o.b[r]);
      b[q + 8 * r + 1][g] = high_half(o.b[r]);
    }
  }
  multiply_tile(a[0], b[0], d[0], 8);
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    for (uint32_t r = 0; r < 4; ++r)
      operand<TileOperand>(operands, lane).d[r] = d[lane / 4 + 8 * (r >> 1)][2 * (lane % 4) + (r & 1)];
  ++w.cta.grid.report.counters.matrix_products;
  w.cta.grid.report.counters.multiply_adds += 16 * 8 * 16;
  return Flow::next;
}

}  // namespace

void barrier_sync(uint32_t id, uint32_t threads, bool arrive_only, const Where& where) {
  if (!begin(arrive_only ? Instruction::bar_arrive : Instruction::bar_sync, where)) return;
  BarrierOperand o{id, mutated(threads), arrive_only};
  gather(0, true, &o, arrive_at_barrier);
}

void warp_sync(uint32_t lanes, const Where& where) {
  if (!begin(Instruction::warp_sync, where)) return;
  gather(lanes, false, nullptr, order_lanes);
}

void shuffle(Shuffle mode, void* value, uint32_t bytes, uint32_t by, uint32_t lanes, const Where& where) {
  if (!begin(Instruction::shfl, where)) return;
  MC_ASSERT(bytes == 4 || bytes == 8);
  uint32_t words[2];
  std::memcpy(words, value, bytes);
  ShuffleOperand o{mode, words, bytes / 4, by};
  gather(lanes, false, &o, exchange);
  std::memcpy(value, words, bytes);
}

void ldmatrix(uint32_t* d, uint32_t count, bool transposed, uint32_t from, const Where& where) {
  MC_ASSERT(count == 1 || count == 2 || count == 4);
  std::fill_n(d, count, 0u);
  if (!begin(Instruction::ldmatrix, where)) return;
  MatrixOperand o{d, count, from, transposed != mutation_transposes()};
  gather(kAllLanes, false, &o, load_matrices);
}

void stmatrix(const uint32_t* values, uint32_t count, bool transposed, uint32_t to, const Where& where) {
  if (!begin(Instruction::stmatrix, where)) return;
  MatrixOperand o{const_cast<uint32_t*>(values), count, to, transposed};
  gather(kAllLanes, false, &o, store_matrices);
}

uint32_t ballot(bool value, uint32_t lanes, const Where& where) {
  if (!begin(Instruction::ballot, where)) return 0;
  BallotOperand o{value, 0};
  gather(lanes, false, &o, count_votes);
  return o.result;
}

void mma_16816(float* d, const uint32_t* a, const uint32_t* b, const Where& where) {
  if (!begin(Instruction::mma, where)) return;
  TileOperand o{d, a, b};
  gather(kAllLanes, false, &o, multiply_fragments);
}

}  // namespace mc::gpu::emu

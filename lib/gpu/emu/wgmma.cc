// wgmma (PTX ISA 9.0, section 9.7.15). A warp computes its 16 of the 64 rows alone: that lets one warp of a warpgroup
// run further ahead than a chip would, which is harsher. From issue to wait the accumulators hold a poison, registers
// of A may not change, and shared memory of the operands may not be written.
#include <algorithm>

#include "base/assert.h"
#include "base/dtype.h"
#include "gpu/emu/machine.h"

// Registers that the kernel named may lie in a frame that it has left: reading them shows the error.
#if defined(__clang__) || defined(__GNUC__)
#define MC_UNCHECKED __attribute__((no_sanitize("address")))
#endif

namespace mc::gpu::emu {
namespace {

/// A shared memory descriptor with swizzling by 128 bytes.
struct Tile {
  uint32_t start = 0, leading = 0, stride = 0;
  bool sound = false;
};
Tile tile_of(uint64_t descriptor) {
  Tile out;
  out.start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  out.leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  out.stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  // Mode 1, no base offset, and a start on the first of 8 rows: what else means, nobody here has tested.
  out.sound = descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0 && (out.start & 0x380) == 0;
  return out;
}
/// Byte of element (x, k), x along M or N.
uint32_t element_at(const Tile& tile, bool k_major, uint32_t x, uint32_t k) {
  const uint32_t linear =
      k_major ? tile.start + x / 8 * tile.stride + x % 8 * 128 + 2 * k
              : tile.start + 2 * x / 128 * tile.leading + 2 * x % 128 + k % 8 * 128 + k / 8 * tile.stride;
  return linear ^ (linear >> 3 & 0x70);
}

/// 16 x `count` elements of a tile as f32, [k][x] when it is B and [x][k] when it is A.
void read_tile(const Cta& cta, const Tile& tile, bool k_major, uint32_t first, uint32_t count, bool by_x, float* out) {
  const uint32_t step_x = k_major ? 1 : 8, step_k = k_major ? 8 : 1;
  for (uint32_t x = 0; x < count; x += step_x)
    for (uint32_t k = 0; k < 16; k += step_k) {
      bf16_t chunk[8];
      std::memcpy(chunk, cta.shared.data() + element_at(tile, k_major, first + x, k), 16);
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t at_x = k_major ? x : x + i, at_k = k_major ? k + i : k;
        out[by_x ? at_x * 16 + at_k : at_k * count + at_x] = bf16_to_f32(chunk[i]);
      }
    }
}

/// The 16-byte chunks of shared memory that a warp's part of the product reads.
std::vector<uint32_t> chunks_of(const Warp& w, const Product& product, bool a_in_registers) {
  std::vector<uint32_t> out;
  const auto add = [&](const Tile& tile, bool k_major, uint32_t first, uint32_t count) {
    const uint32_t step_x = k_major ? 1 : 8, step_k = k_major ? 8 : 1;
    for (uint32_t x = first; x < first + count; x += step_x)
      for (uint32_t k = 0; k < 16; k += step_k) out.push_back(element_at(tile, k_major, x, k));
  };
  add(tile_of(product.b), product.form.b_k_major, 0, product.form.columns);
  if (!a_in_registers) add(tile_of(product.a), product.form.a_k_major, 16 * (w.number % 4), 16);
  return out;
}

/// The warps of a warpgroup issue the same products.
void compare_issue(Warp& w, const Product& product) {
  const uint32_t group = w.number / 4;
  if (group >= std::size(w.cta.issues) || w.cta.warps.size() < 4 * (group + 1))
    fail(Rule::wgmma, "the warp is in no full warpgroup");
  std::vector<Cta::Issue>& issues = w.cta.issues[group];
  if (w.wgmma.issued == issues.size()) issues.push_back({product.where, product.a, product.b});
  const Cta::Issue& first = issues[w.wgmma.issued++];
  if (first.where.line() != product.where.line() || first.a != product.a || first.b != product.b)
    fail(Rule::wgmma, "the warps of a warpgroup issue different products");
}

/// Checks the shared operands and marks what the product reads.
void start_reads(Warp& w, Product& product, bool a_in_registers) {
  if (!tile_of(product.b).sound || (!a_in_registers && !tile_of(product.a).sound))
    fail(Rule::alignment, "a descriptor that is not swizzled by 128 bytes, or starts inside 8 rows");
  compare_issue(w, product);
  product.reads = chunks_of(w, product, a_in_registers);
  for (const uint32_t chunk : product.reads) {
    shared_bytes(chunk, 16, 16);
    if (!w.cta.grid.options.checks) continue;
    if (const Conflict found = w.cta.shadow.start_read(w.agent, kAllLanes, chunk, 16)) fail(found);
  }
}

struct IssueOperand {
  const ProductForm& form;
  Acc* d;
  const uint32_t* a_registers;
  uint64_t a, b;
  bool add;
};
const IssueOperand& issue_of(void* const* operands, uint32_t lane) {
  return *static_cast<const IssueOperand*>(operands[lane]);
}

/// Column-major place of accumulator register v of a lane in [16][columns].
size_t place_in_rows(uint32_t lane, uint32_t v, uint32_t columns) {
  return size_t{lane / 4 + 8 * (v >> 1 & 1)} * columns + 8 * (v >> 2) + 2 * (lane % 4) + (v & 1);
}

void check_fenced(const std::vector<Fenced>& fenced, const void* at, uint32_t registers, uint32_t lane) {
  const auto found = std::find_if(fenced.begin(), fenced.end(), [&](const Fenced& f) { return f.at == at; });
  if (found == fenced.end())
    fail(Rule::wgmma_fence, "no wgmma.fence came before that names these registers", static_cast<int>(lane));
  if (found->bits.size() < registers || std::memcmp(found->bits.data(), at, size_t{registers} * 4) != 0)
    fail(Rule::wgmma_fence, "registers were written since the last wgmma.fence", static_cast<int>(lane));
}

/// Moves the sums out of the accumulators and leaves the poison there.
Accumulation take_accumulators(const Warp&, void* const* operands, uint32_t columns, const Where& where) {
  Accumulation made{.columns = columns, .where = where, .values = std::vector<float>(size_t{16} * columns)};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    made.d[lane] = issue_of(operands, lane).d;
    for (uint32_t v = 0; v < columns / 2; ++v) {
      std::memcpy(&made.values[place_in_rows(lane, v, columns)], made.d[lane] + v, 4);
      std::memcpy(static_cast<void*>(made.d[lane] + v), &Acc::kPoison, 4);
    }
  }
  return made;
}

Flow issue_product(Warp& w, uint32_t, void* const* operands) {
  const IssueOperand& first = issue_of(operands, 0);
  const bool registers = first.a_registers != nullptr;
  Product product{.form = first.form,
                  .where = running().where,
                  .a = first.a,
                  .b = first.b,
                  .add = first.add,
                  .group = w.wgmma.group};
  size_t at = 0;
  while (at < w.wgmma.accumulations.size() && w.wgmma.accumulations[at].d[0] != first.d) ++at;
  const bool chained = at < w.wgmma.accumulations.size() && w.wgmma.accumulations[at].open > 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const IssueOperand& o = issue_of(operands, lane);
    if (o.a != first.a || o.b != first.b || o.add != first.add)
      fail(Rule::wgmma, "lanes name different descriptors", static_cast<int>(lane));
    if (!chained) check_fenced(w.wgmma.fenced[lane], o.d, first.form.columns / 2, lane);
    if (!registers) continue;
    check_fenced(w.wgmma.fenced[lane], o.a_registers, 4, lane);
    product.a_at[lane] = o.a_registers;
    std::copy_n(o.a_registers, 4, product.a_registers[lane]);
  }
  start_reads(w, product, registers);
  if (!chained) {
    Accumulation made = take_accumulators(w, operands, first.form.columns, product.where);
    if (at < w.wgmma.accumulations.size())
      w.wgmma.accumulations[at] = std::move(made);
    else
      w.wgmma.accumulations.push_back(std::move(made));
  }
  MC_ASSERT_EQ(w.wgmma.accumulations[at].columns, first.form.columns);
  product.accumulation = at;
  ++w.wgmma.accumulations[at].open;
  w.wgmma.products.push_back(std::move(product));
  return Flow::next;
}

/// values (+)= a b.
void multiply_product(const Warp& w, const Product& product, std::vector<float>& values) {
  const uint32_t n = product.form.columns;
  MC_ASSERT(n % 8 == 0 && n <= 256);
  float a[16][16];
  if (product.a_at[0] != nullptr) {
    for (uint32_t row = 0; row < 16; ++row)
      for (uint32_t k = 0; k < 16; ++k) {
        const uint32_t pair = product.a_registers[row % 8 * 4 + k % 8 / 2][(row >> 3) + 2 * (k >> 3)];
        a[row][k] = bf16_to_f32(static_cast<bf16_t>(k % 2 == 0 ? pair : pair >> 16));
      }
  } else {
    read_tile(w.cta, tile_of(product.a), product.form.a_k_major, 16 * (w.number % 4), 16, true, &a[0][0]);
  }
  if (!product.add) std::fill(values.begin(), values.end(), 0.f);
  float b[16 * 256];
  read_tile(w.cta, tile_of(product.b), product.form.b_k_major, 0, n, false, b);
  multiply_tile(a[0], b, values.data(), n);
}

/// Whether a lane's registers are no longer what they were.
MC_UNCHECKED bool differ(const uint32_t* now, const uint32_t* then, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    if (now[i] != then[i]) return true;
  return false;
}
MC_UNCHECKED bool is_poisoned(const Acc* d, uint32_t count) {
  const auto* bits = reinterpret_cast<const uint32_t*>(d);
  for (uint32_t i = 0; i < count; ++i)
    if (bits[i] != Acc::kPoison) return false;
  return true;
}

/// Ends the oldest product.
void finish_product(Warp& w) {
  Product product = std::move(w.wgmma.products.front());
  w.wgmma.products.erase(w.wgmma.products.begin());
  for (uint32_t lane = 0; lane < kLanes && product.a_at[0] != nullptr; ++lane)
    if (differ(product.a_at[lane], product.a_registers[lane], 4))
      fail(Rule::accumulator,
           "registers of A changed before the wait of " + place_of(Instruction::wgmma, product.where),
           static_cast<int>(lane));
  MC_ASSERT_LT(product.accumulation, w.wgmma.accumulations.size());
  Accumulation& sum = w.wgmma.accumulations[product.accumulation];
  MC_ASSERT(sum.open > 0);
  multiply_product(w, product, sum.values);
  if (w.cta.grid.options.checks)
    for (const uint32_t chunk : product.reads) w.cta.shadow.end_read(w.agent, kAllLanes, chunk, 16);
  ++w.cta.grid.report.counters.matrix_products;
  w.cta.grid.report.counters.multiply_adds += uint64_t{16} * 16 * sum.columns;
  if (--sum.open > 0) return;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!is_poisoned(sum.d[lane], sum.columns / 2))
      fail(Rule::accumulator,
           "an accumulator of " + place_of(Instruction::wgmma, sum.where) + " changed before its wait",
           static_cast<int>(lane));
    for (uint32_t v = 0; v < sum.columns / 2; ++v)
      std::memcpy(static_cast<void*>(sum.d[lane] + v), &sum.values[place_in_rows(lane, v, sum.columns)], 4);
  }
}

struct FenceOperand {
  Acc* d;
  uint32_t registers;
};

Flow fence_products(Warp& w, uint32_t lanes, void* const* operands) {
  for_lanes(lanes, [&](uint32_t lane) {
    const auto& o = *static_cast<const FenceOperand*>(operands[lane]);
    std::vector<Fenced>& fenced = w.wgmma.fenced[lane];
    std::erase_if(fenced, [&](const Fenced& f) { return f.at == o.d || f.is_a; });
    Fenced made{.at = o.d, .bits = std::vector<uint32_t>(o.registers)};
    std::memcpy(made.bits.data(), static_cast<const void*>(o.d), size_t{o.registers} * 4);
    fenced.push_back(std::move(made));
    for (Fenced& held : w.wgmma.held[lane]) fenced.push_back(std::move(held));
    w.wgmma.held[lane].clear();
  });
  return Flow::next;
}
Flow commit_products(Warp& w, uint32_t, void* const*) {
  ++w.wgmma.group;
  return Flow::next;
}
Flow wait_products(Warp& w, uint32_t, void* const* operands) {
  const uint32_t left = *static_cast<const uint32_t*>(operands[0]);
  while (!w.wgmma.products.empty() && w.wgmma.products.front().group + left < w.wgmma.group) finish_product(w);
  if (w.wgmma.products.empty()) w.wgmma.accumulations.clear();
  return Flow::next;
}

}  // namespace

void touched_in_flight() {
  for (const Accumulation& sum : running_warp().wgmma.accumulations)
    if (sum.open > 0)
      fail(Rule::accumulator, "a register of the unfinished " + place_of(Instruction::wgmma, sum.where) +
                                  " is read or written before its wait");
  fail(Rule::accumulator, "a register holds the poison of an unfinished wgmma");
}

void wgmma_fence(Acc* d, uint32_t registers, const Where& where) {
  if (!begin(Instruction::wgmma_fence, where)) return;
  FenceOperand o{d, registers};
  gather(kAllLanes, false, &o, fence_products);
}

void wgmma_hold(uint32_t* a) {
  running_warp().wgmma.held[running().number].push_back({.at = a, .bits = {a, a + 4}, .is_a = true});
}

void wgmma_commit(const Where& where) {
  if (!begin(Instruction::wgmma_commit, where)) return;
  gather(kAllLanes, false, nullptr, commit_products);
}

void wgmma_wait(uint32_t left, const Where& where) {
  if (!begin(Instruction::wgmma_wait, where)) return;
  left = mutated(left);
  gather(kAllLanes, false, &left, wait_products);
}

void wgmma(const ProductForm& form, Acc* d, const uint32_t* a_registers, uint64_t a, uint64_t b, bool add,
           const Where& where) {
  if (!begin(Instruction::wgmma, where)) return;
  IssueOperand o{form, d, a_registers, a, b, add};
  gather(kAllLanes, false, &o, issue_product);
}

}  // namespace mc::gpu::emu

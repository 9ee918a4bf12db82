// wgmma (PTX ISA 9.0, section 9.7.15). A warp computes its 16 of the 64 rows alone: that lets one warp of a warpgroup
// run further ahead than a chip would, which is harsher. From issue to wait the accumulators hold a poison and may not
// be named, registers of A may not change, and shared memory of the operands may not be written.
#include <algorithm>
#include <charconv>

#include "base/dtype.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

constexpr uint32_t kPoison = 0x7fbadbad;  // a signalling NaN

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

float bf16_at(const Cta& cta, uint32_t address) {
  bf16_t value;
  std::memcpy(&value, cta.shared.data() + address, 2);
  return bf16_to_f32(value);
}

uint32_t columns(const Op& op) {
  return op.target;
}
bool a_in_registers(const Op& op) {
  return (op.variant & 1) != 0;
}
/// Operands behind the accumulators.
const uint32_t* rest_of(const Op& op) {
  return op.a + columns(op) / 2;
}
bool a_k_major(const Op& op) {
  return rest_of(op)[5] == 0;
}
bool b_k_major(const Op& op) {
  return (a_in_registers(op) ? rest_of(op)[8] : rest_of(op)[6]) == 0;
}

/// The 16-byte chunks of shared memory that a warp's part of the product reads.
std::vector<uint32_t> chunks_of(const Warp& w, const Product& product) {
  std::vector<uint32_t> out;
  const auto add = [&](const Tile& tile, bool k_major, uint32_t first, uint32_t count) {
    const uint32_t step_x = k_major ? 1 : 8, step_k = k_major ? 8 : 1;
    for (uint32_t x = first; x < first + count; x += step_x)
      for (uint32_t k = 0; k < 16; k += step_k) out.push_back(element_at(tile, k_major, x, k));
  };
  add(tile_of(product.b), b_k_major(*product.op), 0, columns(*product.op));
  if (!a_in_registers(*product.op)) add(tile_of(product.a), a_k_major(*product.op), 16 * (w.number % 4), 16);
  return out;
}

/// The warps of a warpgroup issue the same products.
Flow compare_issue(Warp& w, const Product& product, uint32_t mask) {
  const uint32_t group = w.number / 4;
  if (group >= std::size(w.cta.issues) || w.cta.warps.size() < 4 * (group + 1))
    return w.fail("wgmma", "the warp is in no full warpgroup", mask);
  std::vector<Cta::Issue>& issues = w.cta.issues[group];
  if (w.issued == issues.size()) issues.push_back({product.op->at, product.a, product.b});
  const Cta::Issue& first = issues[w.issued++];
  if (first.at != product.op->at || first.a != product.a || first.b != product.b)
    return w.fail("wgmma", "the warps of a warpgroup issue different products", mask);
  return Flow::next;
}

/// Checks the operands and marks what the product reads. Flow::block after a failure.
Flow check_product(Warp& w, Product& product, uint32_t mask) {
  const Op& op = *product.op;
  const uint32_t* rest = rest_of(op);
  const uint32_t a_count = a_in_registers(op) ? 4 : 1;
  for (uint32_t lane = 1; lane < kLanes; ++lane)
    if (w.wide(rest[a_count], lane) != product.b || (a_count == 1 && w.wide(rest[0], lane) != product.a))
      return w.fail("wgmma", "lanes name different descriptors", 1u << lane);
  if (!tile_of(product.b).sound || (a_count == 1 && !tile_of(product.a).sound))
    return w.fail("alignment", "wgmma: a descriptor that is not swizzled by 128 bytes, or starts inside 8 rows", mask);
  if (compare_issue(w, product, mask) != Flow::next) return Flow::block;
  product.reads = chunks_of(w, product);
  for (const uint32_t chunk : product.reads) {
    if (chunk + 16 > w.cta.shared.size()) return w.fail("bounds", "wgmma reads outside of shared memory", mask);
    if (!w.cta.grid.options.checks) continue;
    if (const Conflict found = w.cta.shadow.start_read(w.number, chunk, 16)) return w.fail(found, mask);
  }
  return Flow::next;
}

Flow issue_product(Warp& w, const Op& op, uint32_t mask) {
  const uint32_t n = columns(op);
  const uint32_t* rest = rest_of(op);
  Product product{.op = &op, .group = w.product_group};
  const uint32_t a_count = a_in_registers(op) ? 4 : 1;
  product.b = w.wide(rest[a_count], 0);
  if (a_count == 1) product.a = w.wide(rest[0], 0);
  const uint32_t scale = rest[a_count + 1];
  product.add = ((w.predicates[scale & 0x7fffffffu] ^ (scale >> 31 != 0 ? kAllLanes : 0)) & 1) != 0;
  if (rest[a_count + 2] != 1 || rest[a_count + 3] != 1)
    return w.fail("wgmma", "a negated operand, which the emulator does not know", mask);
  size_t at = 0;
  while (at < w.accumulations.size() && w.accumulations[at].op->a[0] != op.a[0]) ++at;
  const bool chained = at < w.accumulations.size() && w.accumulations[at].open > 0;
  for (uint32_t i = 0; i < op.row_count; ++i)
    if (w.written_at[op.rows[i]] > w.fenced_at && i < n / 2 + (a_count == 4 ? 4 : 0))
      return w.fail("wgmma fence", "registers were written since the last wgmma.fence", mask);
  if (w.fenced_at == 0) return w.fail("wgmma fence", "no wgmma.fence came before", mask);
  if (check_product(w, product, mask) != Flow::next) return Flow::block;
  for (uint32_t i = 0; i < 4 && a_count == 4; ++i)
    std::memcpy(product.a_registers[i], w.registers.data() + rest[i], sizeof product.a_registers[i]);
  if (!chained) {
    Accumulation made{.op = &op, .values = std::vector<float>(16 * n)};
    for (uint32_t v = 0; v < n / 2; ++v)
      for (uint32_t lane = 0; lane < kLanes; ++lane)
        made.values[(lane / 4 + 8 * (v >> 1 & 1)) * n + 8 * (v >> 2) + 2 * (lane % 4) + (v & 1)] =
            std::bit_cast<float>(w.word(op.a[v], lane));
    for (uint32_t v = 0; v < n / 2; ++v) {
      std::fill_n(w.registers.begin() + op.a[v], kLanes, kPoison);
      w.in_flight[op.a[v] / kLanes] = 1;
    }
    if (at < w.accumulations.size())
      w.accumulations[at] = std::move(made);
    else
      w.accumulations.push_back(std::move(made));
  }
  product.accumulation = at;
  ++w.accumulations[at].open;
  w.products.push_back(std::move(product));
  return Flow::next;
}

/// values (+)= a b, sums over k in ascending order.
void multiply_product(const Warp& w, const Product& product, std::vector<float>& values) {
  const Op& op = *product.op;
  const uint32_t n = columns(op);
  float a[16][16];
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t k = 0; k < 16; ++k) {
      if (a_in_registers(op)) {
        const uint32_t pair = product.a_registers[(row >> 3) + 2 * (k >> 3)][row % 8 * 4 + k % 8 / 2];
        a[row][k] = bf16_to_f32(static_cast<bf16_t>(k % 2 == 0 ? pair : pair >> 16));
      } else {
        a[row][k] = bf16_at(w.cta, element_at(tile_of(product.a), a_k_major(op), 16 * (w.number % 4) + row, k));
      }
    }
  if (!product.add) std::fill(values.begin(), values.end(), 0.f);
  std::vector<float> b(n);
  for (uint32_t k = 0; k < 16; ++k) {
    for (uint32_t x = 0; x < n; ++x) b[x] = bf16_at(w.cta, element_at(tile_of(product.b), b_k_major(op), x, k));
    for (uint32_t row = 0; row < 16; ++row)
      for (uint32_t x = 0; x < n; ++x) values[row * n + x] += a[row][k] * b[x];
  }
}

/// Ends the oldest product. False after a failure.
bool finish_product(Warp& w) {
  Product product = std::move(w.products.front());
  w.products.erase(w.products.begin());
  const Op& op = *product.op;
  for (uint32_t i = 0; i < 4 && a_in_registers(op); ++i)
    if (std::memcmp(product.a_registers[i], w.registers.data() + rest_of(op)[i], sizeof product.a_registers[i]) != 0) {
      w.fail("accumulator", "registers of A changed before the wait of a wgmma", kAllLanes);
      return false;
    }
  Accumulation& sum = w.accumulations[product.accumulation];
  multiply_product(w, product, sum.values);
  if (w.cta.grid.options.checks)
    for (const uint32_t chunk : product.reads) w.cta.shadow.end_read(w.number, chunk, 16);
  ++w.cta.grid.report.counters.matrix_products;
  if (--sum.open > 0) return true;
  const uint32_t n = columns(op);
  for (uint32_t v = 0; v < n / 2; ++v) {
    for (uint32_t lane = 0; lane < kLanes; ++lane)
      w.registers[op.a[v] + lane] = std::bit_cast<uint32_t>(
          sum.values[(lane / 4 + 8 * (v >> 1 & 1)) * n + 8 * (v >> 2) + 2 * (lane % 4) + (v & 1)]);
    w.in_flight[op.a[v] / kLanes] = 0;
  }
  return true;
}

Flow product_fence(Warp& w, const Op&, uint32_t) {
  w.fenced_at = w.cta.grid.report.counters.instructions;
  return Flow::next;
}
Flow commit_products(Warp& w, const Op&, uint32_t) {
  ++w.product_group;
  return Flow::next;
}
Flow wait_products(Warp& w, const Op& op, uint32_t) {
  while (!w.products.empty() && w.products.front().group + op.a[0] < w.product_group)
    if (!finish_product(w)) return Flow::block;
  if (w.products.empty()) w.accumulations.clear();
  return Flow::next;
}

/// m64nNk16.f32.bf16.bf16
bool decode_product(Op& op, std::string_view modifiers, std::string& shape, bool registers) {
  if (!modifiers.starts_with(".m64n") || !modifiers.ends_with("k16.f32.bf16.bf16")) return false;
  const std::string_view digits = modifiers.substr(5, modifiers.size() - 5 - 17);
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), op.target);
  if (digits.empty() || read.ptr != digits.data() + digits.size()) return false;
  if (op.target % 8 != 0 || op.target < 8 || op.target > 256) return false;
  op.variant = registers ? 1 : 0;
  op.is_product = true;
  shape = "{" + std::string(op.target / 2, 'R') + "}" + (registers ? "{rrrr}dqiii" : "ddqiiii");
  return true;
}
bool decode_shared(Op& op, std::string_view modifiers, std::string& shape) {
  return decode_product(op, modifiers, shape, false);
}
bool decode_registers(Op& op, std::string_view modifiers, std::string& shape) {
  return decode_product(op, modifiers, shape, true);
}

constexpr Row kProductRows[] = {
    {"wgmma.fence.sync.aligned", "", product_fence, nullptr, true},
    {"wgmma.commit_group.sync.aligned", "", commit_products, nullptr, true},
    {"wgmma.wait_group.sync.aligned", "i", wait_products, nullptr, true},
    {"wgmma.mma_async.sync.aligned", "", issue_product, decode_shared, true},
    {"wgmma.mma_async.sync.aligned", "", issue_product, decode_registers, true},
};

}  // namespace

std::span<const Row> wgmma_rows() {
  return kProductRows;
}

}  // namespace mc::gpu::emu

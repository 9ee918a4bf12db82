// Weights as whole numbers of 8, 6 or 4 bits: every variant's kernels against the definition, packing
// against its bounds or bit for bit against the blocks of GGUF types, and products of both shapes against the sum over
// the packed weights.
#include "ops/quant.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/matmul.h"
#include "ops/quant_pack.h"
#include "test.h"
#include "values.h"

namespace quant {

using namespace mc;
using namespace mc::ops;

namespace {

constexpr QuantForm kForms[] = {QuantForm::four, QuantForm::eight};
constexpr gguf::Type kOwnForms[] = {gguf::Type::q4_k, gguf::Type::q5_k, gguf::Type::q6_k};
constexpr size_t k256 = 256;  // inputs that share a scale in the forms of K types
constexpr size_t kDepths[] = {1, 3, 31, 32, 33, 64, 100, 544, 1030};

std::vector<std::byte> panel_of(const std::vector<float>& weights, size_t rows, size_t k, QuantForm form) {
  std::vector<std::byte> panel(quant_panel_bytes(k, form));
  for (size_t row = 0; row < rows; ++row) pack_floats(weights.data() + row * k, k, form, row, panel.data());
  return panel;
}

std::vector<std::byte> inputs_of(const QuantKernels& kernels, const std::vector<float>& x, size_t k, QuantForm form) {
  const size_t rows = x.size() / k;
  std::vector<std::byte> out(quant_rows_bytes(rows, k));
  for (size_t row = 0; row < rows; ++row) kernels.quantise_row(x.data() + row * k, k, form, row, out.data());
  return out;
}

/// Where a block has its f16 factors.
std::vector<size_t> half_offsets(gguf::Type type) {
  switch (type) {
    case gguf::Type::q2_k: return {80, 82};
    case gguf::Type::q3_k: return {108};
    case gguf::Type::q6_k: return {208};
    case gguf::Type::q4_1:
    case gguf::Type::q5_1:
    case gguf::Type::q4_k:
    case gguf::Type::q5_k: return {0, 2};
    default: return {0};
  }
}

/// Random bytes of a row of blocks whose f16 factors are finite and of the size that models have.
std::vector<std::byte> blocks_of(Rng& rng, const gguf::TypeInfo& type, size_t k) {
  std::vector<std::byte> row(gguf::row_bytes(type.type, k));
  for (std::byte& byte : row) byte = static_cast<std::byte>(rng.below(256));
  for (size_t block = 0; block < row.size(); block += type.bytes)
    for (size_t offset : half_offsets(type.type)) {
      const double size = std::ldexp(1.0, -static_cast<int>(rng.below(12)));
      const uint16_t half = f32_to_f16(static_cast<float>((2 * rng.uniform() - 1) * size));
      std::memcpy(row.data() + block + offset, &half, sizeof half);
    }
  return row;
}

/// Random bytes of a row of blocks; factors are often zero, subnormal, the largest, infinite or no number.
std::vector<std::byte> edge_blocks_of(Rng& rng, const gguf::TypeInfo& type, size_t k) {
  constexpr uint16_t kEdges[] = {0,      0x8000, 1,      0x8001, 0x03ff, 0x0400, 0x0fff, 0x1000, 0x7bff,
                                 0xfbff, 0x6bff, 0x6c00, 0x5c00, 0x5bff, 0x7c00, 0xfc00, 0x7e00, 0xfdff};
  auto row = blocks_of(rng, type, k);
  for (std::byte& byte : row)
    if (rng.chance(0.1)) byte = rng.chance(0.5) ? std::byte{255} : std::byte{0};
  for (size_t block = 0; block < row.size(); block += type.bytes)
    for (size_t offset : half_offsets(type.type))
      if (rng.chance(0.5)) std::memcpy(row.data() + block + offset, &kEdges[rng.below(std::size(kEdges))], 2);
  return row;
}

}  // namespace

TEST_CASE("ops/quant: every f16 makes the round through f32, and others round to the nearest") {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = f16_to_f32(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      CHECK(std::isnan(f16_to_f32(f32_to_f16(value))));
      continue;
    }
    REQUIRE(f32_to_f16(value) == half);
    const float next = f16_to_f32(static_cast<uint16_t>(half + 1));
    if (std::isfinite(value) && std::isfinite(next) && half != 0x7fff) {
      const float middle = value + (next - value) / 2;  // a tie goes to the even one
      REQUIRE(f32_to_f16(middle) == (half % 2 ? half + 1 : half));
      REQUIRE(f32_to_f16(std::nextafter(middle, value)) == half);
    }
  }
  CHECK(f32_to_f16(65520) == 0x7c00);
}

/// Checks a variant's product of a panel against the definition. `largest[c]` bounds the weights of output c and both
/// parts of each.
void check_product(Rng& rng, const QuantKernels& kernels, const std::vector<std::byte>& panel, QuantForm form, size_t k,
                   const std::vector<double>& largest) {
  constexpr size_t kRows = 7, kGuard = 3;
  const size_t columns = largest.size(), stride = columns + kGuard;
  const auto x = values(rng, kRows * k);
  std::vector<float> want(kRows * stride, 7), got(want), alone(stride, 7);
  const QuantKernels& ref = *quant_variants()[0];
  const auto ref_x = inputs_of(ref, x, k, form), own_x = inputs_of(kernels, x, k, form);
  ref.panel(ref_x.data(), kRows, panel.data(), k, form, want.data(), stride, columns);
  kernels.panel(own_x.data(), kRows, panel.data(), k, form, got.data(), stride, columns);
  for (size_t row = 0; row < kRows; ++row) {
    const auto at = x.begin() + static_cast<std::ptrdiff_t>(row * k);
    const auto one = inputs_of(kernels, {at, at + static_cast<std::ptrdiff_t>(k)}, k, form);
    kernels.panel(one.data(), 1, panel.data(), k, form, alone.data(), stride, columns);
    for (size_t c = 0; c < stride; ++c) {
      if (c >= columns) {
        CHECK(got[row * stride + c] == 7);  // nothing is written beyond the columns
        continue;
      }
      double terms = 0;
      for (size_t i = 0; i < k; ++i) terms += std::abs(double{x[row * k + i]}) * largest[c];
      const double bound = 4 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms + 1e-30);
      CHECK(std::abs(double{got[row * stride + c]} - want[row * stride + c]) <= bound);
      CHECK(alone[c] == got[row * stride + c]);
    }
  }
}

TEST_CASE("ops/quant: every variant's panel product agrees with the definition, alone and in a batch") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const QuantKernels* kernels : quant_variants()) {
    if (!kernels->supported()) continue;
    for (QuantForm form : kForms)
      for (size_t k : kDepths)
        for (size_t columns : {size_t{1}, size_t{17}, size_t{63}, size_t{64}}) {
          INFO(kernels->name << " form " << static_cast<int>(form) << " k " << k << " columns " << columns);
          const auto weights = values(rng, columns * k);
          // The terms of the sum are at most (levels scale + |minimum|) |x|, which twice the largest weight bounds.
          std::vector<double> largest(columns);
          for (size_t i = 0; i < columns * k; ++i)
            largest[i / k] = std::max(largest[i / k], 4 * std::abs(double{weights[i]}));
          check_product(rng, *kernels, panel_of(weights, columns, k, form), form, k, largest);
        }
  }
}

TEST_CASE("ops/quant: every variant's product of the forms of K types agrees with the definition") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const QuantKernels* kernels : quant_variants()) {
    if (!kernels->supported()) continue;
    for (gguf::Type own : kOwnForms)
      for (size_t k : {size_t{256}, size_t{1280}})
        for (size_t columns : {size_t{1}, size_t{17}, size_t{64}}) {
          const gguf::TypeInfo& type = gguf::info(own);
          INFO(kernels->name << " " << type.name << " k " << k << " columns " << columns);
          std::vector<std::byte> panel(quant_panel_bytes(k, *kept_form(own)));
          std::vector<double> largest(columns);
          for (size_t c = 0; c < columns; ++c) {
            const auto row = blocks_of(rng, type, k);
            pack_blocks(own, row.data(), k, *kept_form(own), c, panel.data());
            gguf::Block block;
            for (size_t at = 0; at < row.size(); at += type.bytes) {
              type.unpack(row.data() + at, block);
              for (size_t g = 0; g < type.weights / block.group; ++g)
                largest[c] = std::max(largest[c], 63 * std::abs(block.scale[g]) + std::abs(block.minimum[g]));
            }
          }
          check_product(rng, *kernels, panel, *kept_form(own), k, largest);
        }
  }
}

TEST_CASE("ops/quant: the variants for few and for many rows give the same bits") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  constexpr size_t kRows = 143, k = 768, columns = 50;  // more rows than the largest tile, and every smaller strip
  const auto x = values(rng, kRows * k);
  const auto product = [&](const QuantKernels& table, const std::vector<std::byte>& panel, QuantForm form) {
    std::vector<float> y(kRows * columns);
    const auto codes = inputs_of(table, x, k, form);
    table.panel(codes.data(), kRows, panel.data(), k, form, y.data(), columns, columns);
    return y;
  };
  for (const Kernels* kernels : variants()) {
    if (!kernels->supported()) continue;
    const QuantChoice choice(*kernels);
    const QuantKernels &few = choice.table(1), &many = choice.table(kTileRows);
    INFO(kernels->name << ": " << few.name << " beside " << many.name);
    for (QuantForm form : kForms) {
      const auto panel = panel_of(values(rng, columns * k), columns, k, form);
      CHECK(product(few, panel, form) == product(many, panel, form));
    }
    for (gguf::Type own : kOwnForms) {
      const QuantForm form = *kept_form(own);
      std::vector<std::byte> panel(quant_panel_bytes(k, form));
      for (size_t c = 0; c < columns; ++c)
        pack_blocks(own, blocks_of(rng, gguf::info(own), k).data(), k, form, c, panel.data());
      CHECK(product(few, panel, form) == product(many, panel, form));
    }
  }
}

TEST_CASE("ops/quant: the largest codes, scales and inputs of K types do not overflow") {
  constexpr size_t k = 256, kRows = 2;
  std::vector<float> x(kRows * k, 1.0f);
  std::fill(x.begin() + k, x.end(), -1.0f);
  for (gguf::Type own : kOwnForms) {
    const gguf::TypeInfo& type = gguf::info(own);
    const QuantForm form = *kept_form(own);
    std::vector<std::byte> block(type.bytes, std::byte{255});  // every code and every scale is the largest one
    const uint16_t one = f32_to_f16(1), least = f32_to_f16(0);
    if (own == gguf::Type::q6_k) {
      std::fill_n(block.begin(), 192, std::byte{0});  // codes of -32, with scales of -128
      std::fill_n(block.begin() + 192, 16, std::byte{128});
      std::memcpy(block.data() + 208, &one, sizeof one);
    } else {
      std::memcpy(block.data(), &one, sizeof one);
      std::memcpy(block.data() + 2, &least, sizeof least);
    }
    std::vector<std::byte> panel(quant_panel_bytes(k, form));
    pack_blocks(own, block.data(), k, form, 0, panel.data());
    const float weight = quant_weight(panel.data(), form, 0, 0);
    CHECK(weight == (own == gguf::Type::q4_k ? 15 * 63 : own == gguf::Type::q5_k ? 31 * 63 : 32 * 128));
    for (const QuantKernels* kernels : quant_variants()) {
      if (!kernels->supported()) continue;
      INFO(type.name << " " << kernels->name);
      float y[kRows] = {};
      kernels->panel(inputs_of(*kernels, x, k, form).data(), kRows, panel.data(), k, form, y, 1, 1);
      CHECK(y[0] == doctest::Approx(double{weight} * k));
      CHECK(y[1] == doctest::Approx(-double{weight} * k));
    }
  }
}

TEST_CASE("ops/quant: inputs of K types move by at most half a step of the largest of their 256") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  constexpr size_t k = 768, kRows = 5;
  auto x = values(rng, kRows * k);
  x[300] *= 1000;  // costs its block alone the precision
  for (gguf::Type own : kOwnForms) {
    const gguf::TypeInfo& type = gguf::info(own);
    const QuantForm form = *kept_form(own);
    std::vector<std::byte> panel(quant_panel_bytes(k, form));
    pack_blocks(own, blocks_of(rng, type, k).data(), k, form, 0, panel.data());
    for (const QuantKernels* kernels : quant_variants()) {
      if (!kernels->supported()) continue;
      INFO(type.name << " " << kernels->name);
      float y[kRows] = {};
      kernels->panel(inputs_of(*kernels, x, k, form).data(), kRows, panel.data(), k, form, y, 1, 1);
      for (size_t row = 0; row < kRows; ++row) {
        double sum = 0, terms = 0, rounding = 0;
        for (size_t i = 0; i < k; ++i) {
          const double weight = quant_weight(panel.data(), form, 0, i), input = x[row * k + i];
          double largest = 0;
          for (size_t j = i / k256 * k256; j < i / k256 * k256 + k256; ++j)
            largest = std::max(largest, std::abs(double{x[row * k + j]}));
          sum += input * weight;
          terms += std::abs(largest * weight);
          rounding += std::abs(weight) * largest / 16382;
        }
        CHECK(std::abs(y[row] - sum) <= 1.001 * rounding + 256 * kUlp * terms);
      }
    }
  }
}

TEST_CASE("ops/quant: packing floats moves no weight by more than half a step") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (QuantForm form : kForms)
    for (size_t k : kDepths) {
      const size_t rows = 1 + rng.below(64);
      auto weights = values(rng, rows * k);
      if (rng.chance(0.5))
        std::fill(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(std::min(k, kQuantGroup)), 0.0f);
      const auto panel = panel_of(weights, rows, k, form);
      for (size_t row = 0; row < rows; ++row)
        for (size_t first = 0; first < k; first += kQuantGroup) {
          const float* group = weights.data() + row * k + first;
          const size_t count = std::min(kQuantGroup, k - first);
          const auto [least, largest] = std::minmax_element(group, group + count);
          const double levels = form == QuantForm::four ? 15 : 255;
          // The minimum is rounded down, by at most a part in 1024 of itself, and the scale up.
          const double range = double{*largest} - *least + std::abs(double{*least}) / 1024 + 0x1p-24;
          const double step = range / levels * (1 + 1.0 / 1024) + 0x1p-24;
          for (size_t i = 0; i < count; ++i)
            CHECK(std::abs(double{quant_weight(panel.data(), form, row, first + i)} - group[i]) <=
                  step / 2 + std::abs(group[i]) * kUlp);
        }
    }
}

TEST_CASE("ops/quant: blocks that fit are kept bit for bit, and others within the bound of their type") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  constexpr size_t kColumns = 512;
  for (const gguf::TypeInfo& type : gguf::types()) {
    if (type.plain) {
      CHECK_FALSE(kept_form(type.type).has_value());
      continue;
    }
    const QuantForm own = *kept_form(type.type);
    for (QuantForm held : {own, QuantForm::eight}) {
      const bool is_k = held == QuantForm::eight && held != own;
      const bool rounded = is_k && (type.type == gguf::Type::q4_k || type.type == gguf::Type::q5_k);
      const bool anew =
          type.type == gguf::Type::q2_k || type.type == gguf::Type::q3_k || (is_k && type.type == gguf::Type::q6_k);
      INFO(type.name << " in form " << static_cast<int>(held));
      std::vector<std::byte> panel(quant_panel_bytes(kColumns, held));
      std::vector<float> want(kColumns);
      for (size_t lane : {size_t{0}, size_t{5}, size_t{63}}) {
        const auto row = blocks_of(rng, type, kColumns);
        pack_blocks(type.type, row.data(), kColumns, held, lane, panel.data());
        gguf::widen_row(type.type, row.data(), kColumns, want.data());
        gguf::Block block;
        for (size_t i = 0; i < kColumns; ++i) {
          const double got = quant_weight(panel.data(), held, lane, i);
          double bound = 0;
          if (rounded) {
            type.unpack(row.data() + i / type.weights * type.bytes, block);
            const size_t group = i % type.weights / kQuantGroup;
            const double levels = type.type == gguf::Type::q4_k ? 15 : 31;
            bound = (levels * std::abs(block.scale[group]) + std::abs(block.minimum[group])) / 2048 + 0x1p-20;
          } else if (anew) {
            const auto first = want.begin() + static_cast<std::ptrdiff_t>(i / kQuantGroup * kQuantGroup);
            const auto [least, largest] = std::minmax_element(first, first + kQuantGroup);
            bound = (double{*largest} - *least) / 510 * 1.01 + std::abs(*least) / 1024 / 510 + 0x1p-24;
          }
          CHECK(std::abs(got - want[i]) <= bound);
        }
      }
    }
  }
}

/// Packs `count` rows by `pack` and one by one, into panels whose other bytes are random, and compares these.
template <class Pack>
void check_rows(Rng& rng, const gguf::TypeInfo& type, size_t k, size_t count, size_t lane, const Pack& pack) {
  const QuantForm form = *kept_form(type.type);
  INFO(type.name << " k " << k << " rows " << count << " from lane " << lane);
  std::vector<std::byte> want(quant_panel_bytes(k, form));
  for (std::byte& byte : want) byte = static_cast<std::byte>(rng.below(256));
  auto got = want;
  std::vector<std::vector<std::byte>> rows;
  std::vector<const std::byte*> lines;
  for (size_t i = 0; i < count; ++i) rows.push_back(edge_blocks_of(rng, type, k));
  for (const auto& row : rows) lines.push_back(row.data());
  for (size_t i = 0; i < count; ++i) pack_blocks(type.type, lines[i], k, form, lane + i, want.data());
  pack(form, lines, got.data());
  const auto [left, right] = std::mismatch(got.begin(), got.end(), want.begin());
  INFO("first difference at byte " << left - got.begin());
  CHECK(got == want);
}

TEST_CASE("ops/quant: rows packed many at a time are those packed one by one, bit for bit") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const gguf::TypeInfo& type : gguf::types()) {
    if (type.plain) continue;
    for (int turn = 0; turn < 6; ++turn) {
      const size_t k = type.weights * (1 + rng.below(turn == 0 ? 24 : 4));
      const size_t count = turn == 0 ? 64 : 1 + rng.below(64), lane = rng.below(64 - count + 1);
      check_rows(rng, type, k, count, lane, [&](QuantForm form, const auto& lines, std::byte* panel) {
        pack_rows(type.type, lines, k, form, lane, panel);
      });
    }
    for (const PackKernels* variant : pack_variants()) {
      INFO(variant->name);
      const PackRows pack = variant->supported() ? variant->rows_of(type.type) : nullptr;
      if (!pack) continue;
      for (size_t count = variant->lanes; count <= 64; count += variant->lanes) {
        const size_t k = type.weights * (1 + rng.below(4)), lane = rng.below(64 - count + 1);
        check_rows(rng, type, k, count, lane, [&](QuantForm, const auto& lines, std::byte* panel) {
          pack(lines.data(), count, k, lane, panel);
        });
      }
    }
  }
}

/// Compares bits, but one NaN with any other.
bool is_same(float left, float right) {
  return std::isnan(left) ? std::isnan(right) : std::bit_cast<uint32_t>(left) == std::bit_cast<uint32_t>(right);
}

/// Checks products of rows of Q8_0 blocks in place, each in memory of its own, against those of their panel.
void check_lines(Rng& rng, const QuantKernels& kernels, size_t k, size_t rows, size_t columns, bool has_edges) {
  constexpr size_t kGuard = 3;
  const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);
  std::vector<std::vector<std::byte>> blocks;
  std::vector<const std::byte*> lines;
  std::vector<std::byte> panel(quant_panel_bytes(k, QuantForm::eight));
  for (size_t lane = 0; lane < columns; ++lane) {
    blocks.push_back(has_edges ? edge_blocks_of(rng, type, k) : blocks_of(rng, type, k));
    pack_blocks(type.type, blocks.back().data(), k, QuantForm::eight, lane, panel.data());
  }
  for (size_t lane = 0; lane < kPanelColumns; ++lane) lines.push_back(blocks[std::min(lane, columns - 1)].data());
  const auto x = values(rng, rows * k);
  const auto codes = inputs_of(kernels, x, k, QuantForm::eight);
  const size_t stride = columns + kGuard;
  std::vector<float> want(rows * stride, 7), got(want);
  kernels.panel(codes.data(), rows, panel.data(), k, QuantForm::eight, want.data(), stride, columns);
  kernels.lines(codes.data(), rows, lines.data(), k, got.data(), stride, columns);
  CHECK(std::equal(got.begin(), got.end(), want.begin(), is_same));
}

TEST_CASE("ops/quant: every variant gives rows in place the bits of their panel") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const QuantKernels* kernels : quant_variants()) {
    if (!kernels->supported()) continue;
    CHECK(kernels->lines_min <= kernels->lines_max);
    for (size_t k : {32, 96, 256, 544})
      for (size_t columns : {1, 17, 32, 33, 63, 64})
        for (size_t rows : {1, 2, 3, 4, 5, 8, 13, 30, 130}) {
          if (rows > kernels->lines_max) continue;
          INFO(kernels->name << " k " << k << " columns " << columns << " rows " << rows);
          check_lines(rng, *kernels, k, rows, columns, false);
          check_lines(rng, *kernels, k, rows, columns, true);
        }
  }
}

/// The largest absolute value of each 32 inputs of a row.
std::vector<float> largest_of(const float* x, size_t k) {
  std::vector<float> out((k + 31) / 32);
  for (size_t i = 0; i < k; ++i) out[i / 32] = std::max(out[i / 32], std::abs(x[i]));
  return out;
}

/// Checks the outputs of one row of inputs x [k] against the definition of its Q8_0 weights in double.
void check_defined(const std::vector<std::vector<float>>& weights, const float* x, size_t k, const float* y) {
  const std::vector<float> largest = largest_of(x, k);
  for (size_t out = 0; out < weights.size(); ++out) {
    double sum = 0, terms = 0, rounding = 0;
    for (size_t i = 0; i < k; ++i) {
      const double weight = weights[out][i];
      sum += x[i] * weight;
      terms += std::abs(x[i] * weight);
      rounding += std::abs(weight) * largest[i / 32] / 65024;  // half a step of an input
    }
    // Sums of codes without their minimum are larger than the terms: up to 16 times is generous.
    CHECK(std::abs(y[out] - sum) <=
          64 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms + 1e-30) + 1.001 * rounding);
  }
}

TEST_CASE("ops/quant: a matrix in place has the bits of its packed form, and its definition within the bound") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);
  for (const Kernels* kernels : variants()) {
    if (!kernels->supported()) continue;
    for (size_t n : {40, 256})
      for (size_t k : {64, 544}) {
        INFO(kernels->name << " n " << n << " k " << k);
        const auto first = blocks_of(rng, type, n * k), second = blocks_of(rng, type, 3 * k);
        const WeightRows parts[] = {{.data = first.data(), .rows = n, .blocks = type.type, .paired_head = 8},
                                    {.data = second.data(), .rows = 3, .blocks = type.type}};
        REQUIRE(PackedMatrix::fits_in_place(parts));
        Parallel parallel(2);
        const auto packed = PackedMatrix::quantise(parallel, parts, k, QuantForm::eight);
        REQUIRE_OK(packed);
        const auto placed = PackedMatrix::in_place(parts, k);
        CHECK(placed.is_in_place());
        CHECK(placed.quantised() == QuantForm::eight);
        CHECK(placed.bytes() == first.size() + second.size());
        std::vector<std::vector<float>> weights(n + 3, std::vector<float>(k));
        for (size_t row = 0; row < n + 3; ++row) {
          placed.row(row, weights[row].data());
          std::vector<float> other(k);
          packed->row(row, other.data());
          CHECK(weights[row] == other);
          CHECK(placed.at(row, k - 1) == other[k - 1]);
        }
        Matmul matmul(*kernels, parallel);
        REQUIRE_OK(matmul.prepare(placed));
        const auto x = values(rng, 5 * kTileRows * k);
        std::vector<float> want(5 * kTileRows * (n + 3)), got(want.size());
        matmul.prefill(*packed, x.data(), 5, want.data());
        matmul.prefill(placed, x.data(), 5, got.data());
        CHECK(got == want);
        for (size_t row = 0; row < 3; ++row) check_defined(weights, x.data() + row * k, k, got.data() + row * (n + 3));
        for (size_t rows : {1, 3, 4, 5, 23, 24, 64, 65, 300}) {
          std::fill(got.begin(), got.end(), 0.0f);
          matmul.decode(placed, x.data(), rows, got.data());
          CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(rows * (n + 3)), want.begin()));
        }
      }
  }
}

TEST_CASE("ops/quant: a block whose minimum f16 cannot hold is no number in place and in a panel") {
  const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);
  for (const auto& [scale, is_held] : {std::pair{511.75f, true}, std::pair{-511.75f, true}, std::pair{512.0f, false},
                                       std::pair{-512.0f, false}, std::pair{INFINITY, false}, std::pair{NAN, false}}) {
    INFO(scale);
    std::vector<std::byte> row(2 * type.bytes, std::byte{1});
    const uint16_t half = f32_to_f16(scale);
    std::memcpy(row.data() + type.bytes, &half, sizeof half);
    const WeightRows part{.data = row.data(), .rows = 1, .blocks = type.type};
    Parallel parallel(1);
    const auto packed = PackedMatrix::quantise(parallel, {&part, 1}, 64, QuantForm::eight);
    REQUIRE_OK(packed);
    const auto placed = PackedMatrix::in_place({&part, 1}, 64);
    CHECK(std::isnan(placed.at(0, 63)) == !is_held);
    for (size_t i = 0; i < 64; ++i) CHECK(is_same(placed.at(0, i), packed->at(0, i)));
  }
}

TEST_CASE("ops/quant: a weight or an input that is not finite makes its output not a number") {
  std::vector<float> weights(2 * 200, 1.0f);
  weights[150] = std::numeric_limits<float>::infinity();
  for (QuantForm form : kForms) {
    const auto panel = panel_of(weights, 2, 200, form);
    for (const QuantKernels* kernels : quant_variants()) {
      if (!kernels->supported()) continue;
      INFO(kernels->name);
      for (const float odd : {1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> x(200, 1.0f);
        x[70] = odd;
        const auto codes = inputs_of(*kernels, x, 200, form);
        float y[2] = {};
        kernels->panel(codes.data(), 1, panel.data(), 200, form, y, 2, 2);
        CHECK(std::isnan(y[0]));
        if (odd == 1)
          CHECK(y[1] == doctest::Approx(200));
        else
          CHECK(std::isnan(y[1]));
      }
    }
  }
}

TEST_CASE("ops/quant: prefill and decode agree with the packed weights and, bit for bit, with each other") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const Kernels* kernels : variants()) {
    if (!kernels->supported()) continue;
    for (QuantForm form : kForms)
      for (size_t n : {40, 256})
        for (size_t k : {50, 544}) {
          INFO(kernels->name << " form " << static_cast<int>(form) << " n " << n << " k " << k);
          Parallel parallel(2);
          const auto first = values(rng, n * k), second = values(rng, 3 * k);
          const WeightRows parts[] = {{first.data(), Dtype::f32, n}, {second.data(), Dtype::f32, 3}};
          const auto packed = PackedMatrix::quantise(parallel, parts, k, form);
          REQUIRE_OK(packed);
          CHECK(packed->quantised() == form);
          CHECK(packed->bytes() >= PackedMatrix::quantised_bytes(n + 3, k, form));
          Matmul matmul(*kernels, parallel);
          REQUIRE_OK(matmul.prepare(*packed));
          const auto x = values(rng, kTileRows * k);
          std::vector<float> tile(kTileRows * (n + 3)), rows(5 * (n + 3)), weight(k);
          matmul.prefill(*packed, x.data(), 1, tile.data());
          matmul.decode(*packed, x.data(), 5, rows.data());
          std::vector<float> many(2 * x.size() + k), all(many.size() / k * (n + 3));
          for (size_t i = 0; i < many.size(); ++i) many[i] = x[i % x.size()];
          matmul.decode(*packed, many.data(), many.size() / k, all.data());
          bool is_equal = true;
          for (size_t i = 0; i < all.size(); ++i) is_equal = is_equal && all[i] == tile[i % tile.size()];
          CHECK(is_equal);
          std::vector<float> apart(5 * (k + 7), 1e9f), same(rows.size());
          for (size_t row = 0; row < 5; ++row) std::copy_n(x.data() + row * k, k, apart.data() + row * (k + 7));
          matmul.decode(*packed, apart.data(), 5, same.data(), k + 7);
          CHECK(same == rows);
          std::vector<std::vector<float>> largest;
          for (size_t row = 0; row < 5; ++row) largest.push_back(largest_of(x.data() + row * k, k));
          for (size_t out = 0; out < n + 3; ++out) {
            packed->row(out, weight.data());
            CHECK(weight[k - 1] == packed->at(out, k - 1));
            for (size_t row = 0; row < 5; ++row) {
              double sum = 0, terms = 0, rounding = 0;
              for (size_t i = 0; i < k; ++i) {
                sum += double{x[row * k + i]} * weight[i];
                terms += std::abs(double{x[row * k + i]} * weight[i]);
                rounding += std::abs(weight[i]) * largest[row][i / 32] / 65024;  // half a step of an input
              }
              // Sums of codes without their minimum are larger than the terms: up to 16 times is generous.
              const double bound =
                  64 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms + 1e-30) + 1.001 * rounding;
              CHECK(std::abs(rows[row * (n + 3) + out] - sum) <= bound);
              CHECK(tile[row * (n + 3) + out] == rows[row * (n + 3) + out]);
            }
          }
        }
  }
}

}  // namespace quant

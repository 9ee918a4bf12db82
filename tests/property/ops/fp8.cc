// Weights that stay fp8: every variant's kernels against the definition on codes that lean to the edges
// (subnormals, both zeros, the largest, NaN), and products of both shapes against the sum over what the codes are
// worth.
#include "ops/fp8.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/matmul.h"
#include "test.h"
#include "values.h"

using namespace mc;
using namespace mc::ops;

namespace {

std::vector<uint8_t> codes(Rng& rng, size_t n) {
  std::vector<uint8_t> v(n);
  for (uint8_t& code : v) {
    do code = static_cast<uint8_t>(rng.below(256));
    while ((code & 0x7f) == 0x7f);
    if (rng.chance(0.3)) code &= 0x87;   // zeros and subnormals
    if (rng.chance(0.02)) code |= 0x7e;  // 448, and -448; a NaN of it is none
    if ((code & 0x7f) == 0x7f) code &= 0xfe;
  }
  return v;
}

std::vector<float> scales(Rng& rng, size_t n) {
  std::vector<float> v(n);
  for (float& x : v)
    x = rng.chance(0.05) ? 0.0f : static_cast<float>(std::exp(rng.normal() * 3) * (rng.chance(0.1) ? -1 : 1));
  return v;
}

struct Panel {
  std::vector<uint8_t> codes;  // [columns][k]
  std::vector<float> scales;   // [columns][groups]
  std::vector<std::byte> bytes;
};

void fill(Panel& panel, size_t columns, size_t k, size_t group) {
  std::vector<const uint8_t*> rows;
  for (size_t c = 0; c < columns; ++c) rows.push_back(panel.codes.data() + c * k);
  panel.bytes.resize(fp8_panel_bytes(k, group));
  fp8_fill_panel(rows, panel.scales, k, group, panel.bytes.data());
}

Panel random_panel(Rng& rng, size_t columns, size_t k, size_t group) {
  Panel panel{codes(rng, columns * k), scales(rng, columns * fp8_groups(k, group)), {}};
  fill(panel, columns, k, group);
  return panel;
}

double worth(const Panel& panel, size_t column, size_t i, size_t k, size_t group) {
  return double{e4m3_to_f32(panel.codes[column * k + i])} * panel.scales[column * fp8_groups(k, group) + i / group];
}

constexpr size_t kDepths[] = {1, 2, 15, 127, 128, 129, 256, 300, 1030};

std::vector<size_t> groups_of(size_t k) {
  std::vector<size_t> groups = {k};
  for (size_t group : {size_t{2}, size_t{32}, size_t{128}, size_t{512}})
    if (group < k) groups.push_back(group);
  return groups;
}

}  // namespace

TEST_CASE("ops/fp8: every variant widens every code to its value, whatever the flush modes are") {
  Parallel parallel(1);
  for (const Fp8Kernels* kernels : fp8_variants()) {
    if (!kernels->supported()) continue;
    INFO(kernels->name);
    Panel panel;
    for (size_t column = 0; column < kPanelColumns; ++column) {
      for (size_t i = 0; i < 256; ++i)
        panel.codes.push_back(static_cast<uint8_t>((i & 0x7f) == 0x7f ? column : i));  // NaN has its own test
      panel.scales.push_back(column % 2 == 0 ? 1.0f : -0.3f);
    }
    fill(panel, kPanelColumns, 256, 256);
    std::vector<float> wide(256 * kPanelColumns);
    std::vector<bf16_t> narrow(wide.size());
    parallel.for_each(1, [&](int64_t, int) {  // with denormals flushed
      kernels->widen(panel.bytes.data(), 256, 256, wide.data());
      kernels->widen_bf16(panel.bytes.data(), 256, 256, narrow.data());
    });
    for (size_t column = 0; column < kPanelColumns; ++column)
      for (size_t i = 0; i < 256; ++i) {
        const float want = e4m3_to_f32(panel.codes[column * 256 + i]) * panel.scales[column];
        CHECK(std::bit_cast<uint32_t>(wide[i * kPanelColumns + column]) == std::bit_cast<uint32_t>(want));
        CHECK(narrow[(i / 2 * kPanelColumns + column) * 2 + i % 2] == f32_to_bf16(want));
      }
  }
}

TEST_CASE("ops/fp8: every variant's panel product agrees with the definition, and a row's bits are its own") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const Fp8Kernels* kernels : fp8_variants()) {
    if (!kernels->supported()) continue;
    for (size_t k : kDepths)
      for (size_t group : groups_of(k)) {
        const size_t columns = rng.chance(0.3) ? 64 : 1 + rng.below(64), rows = 1 + rng.below(16);
        INFO(kernels->name << " k " << k << " group " << group << " columns " << columns << " rows " << rows);
        const Panel panel = random_panel(rng, columns, k, group);
        constexpr size_t kGuard = 3;
        const size_t stride = columns + kGuard;
        const auto x = values(rng, rows * k);
        std::vector<float> want(rows * stride, 7), got(want), alone(stride, 7);
        fp8_variants()[0]->panel(x.data(), k, rows, panel.bytes.data(), k, group, want.data(), stride, columns);
        kernels->panel(x.data(), k, rows, panel.bytes.data(), k, group, got.data(), stride, columns);
        for (size_t row = 0; row < rows; ++row) {
          kernels->panel(x.data() + row * k, k, 1, panel.bytes.data(), k, group, alone.data(), stride, columns);
          for (size_t c = 0; c < stride; ++c) {
            if (c >= columns) {
              CHECK(got[row * stride + c] == 7);  // nothing is written beyond the columns
              continue;
            }
            double terms = 0;
            for (size_t i = 0; i < k; ++i) terms += std::abs(x[row * k + i] * worth(panel, c, i, k, group));
            const double bound = 4 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms + 1e-30);
            CHECK(std::abs(double{got[row * stride + c]} - want[row * stride + c]) <= bound);
            CHECK(alone[c] == got[row * stride + c]);
          }
        }
      }
  }
}

TEST_CASE("ops/fp8: the code of NaN makes its output not a number, and no other") {
  Rng rng(test::seed());
  for (uint8_t nan : {uint8_t{0x7f}, uint8_t{0xff}})
    for (const Fp8Kernels* kernels : fp8_variants()) {
      if (!kernels->supported()) continue;
      for (size_t at : {size_t{0}, size_t{150}, size_t{200}}) {
        INFO(kernels->name << " at " << at);
        Panel panel = random_panel(rng, 40, 201, 128);
        panel.codes[17 * 201 + at] = nan;
        fill(panel, 40, 201, 128);
        const std::vector<float> x(201, 0.0f);  // even 0 x NaN is NaN
        std::vector<float> y(40);
        kernels->panel(x.data(), 201, 1, panel.bytes.data(), 201, 128, y.data(), 40, 40);
        for (size_t c = 0; c < 40; ++c) CHECK(std::isnan(y[c]) == (c == 17));
        std::vector<float> wide(201 * kPanelColumns);
        kernels->widen(panel.bytes.data(), 201, 128, wide.data());
        CHECK(std::isnan(wide[at * kPanelColumns + 17]));
        CHECK_FALSE(std::isnan(wide[at * kPanelColumns + 16]));
      }
    }
}

TEST_CASE("ops/fp8: prefill and decode agree with what the codes are worth, in every variant and input type") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (const Kernels* kernels : variants()) {
    if (!kernels->supported()) continue;
    for (Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (size_t n : {40, 256})
        for (size_t k : {51, 544}) {
          const size_t block_rows = rng.chance(0.5) ? 128 : n, block_columns = rng.chance(0.7) ? 128 : k;
          INFO(kernels->name << " n " << n << " k " << k << " blocks " << block_rows << " x " << block_columns);
          Parallel parallel(2);
          const size_t across = (k + block_columns - 1) / block_columns;
          const auto first = codes(rng, n * k), second = codes(rng, 3 * k);
          const auto first_scales = scales(rng, (n + block_rows - 1) / block_rows * across),
                     second_scales = scales(rng, 3 * across);
          const WeightRows parts[] = {
              {first.data(), Dtype::f8_e4m3, n, {first_scales.data(), block_rows, block_columns, across}},
              {second.data(), Dtype::f8_e4m3, 3, {second_scales.data(), 1, block_columns, across}}};
          REQUIRE(PackedMatrix::fp8_group(parts, k).has_value());
          const auto packed = PackedMatrix::keep_fp8(parallel, parts, k, dtype);
          REQUIRE_OK(packed);
          CHECK(packed->is_fp8());
          CHECK(packed->bytes() == PackedMatrix::fp8_bytes(n + 3, k, *PackedMatrix::fp8_group(parts, k)));
          const auto widened = PackedMatrix::pack(parallel, parts, k, Dtype::f32);
          REQUIRE_OK(widened);
          Matmul matmul(*kernels, parallel);
          REQUIRE_OK(matmul.prepare(*packed));
          auto x = values(rng, 9 * kTileRows * k);
          std::vector<float> tiles(9 * kTileRows * (n + 3)), rows(16 * (n + 3)), weight(k);
          matmul.prefill(*packed, x.data(), 9, tiles.data());
          matmul.decode(*packed, x.data(), 16, rows.data());
          if (dtype == Dtype::bf16)
            for (float& value : x) value = bf16_to_f32(f32_to_bf16(value));
          // Only tiles multiplied as bf16 round the weights: to 8 bits.
          const bool narrow = dtype == Dtype::bf16 && kernels->tile_gemm == TileGemm::onednn;
          for (size_t out = 0; out < n + 3; ++out) {
            packed->row(out, weight.data());
            for (size_t i = 0; i < k; i += 13) CHECK(weight[i] == widened->at(out, i));
            for (size_t row = 0; row < 16; ++row) {
              double sum = 0, terms = 0;
              for (size_t i = 0; i < k; ++i) {
                sum += double{x[row * k + i]} * weight[i];
                terms += std::abs(double{x[row * k + i]} * weight[i]);
              }
              const double bound = 4 * kUlp * std::sqrt(static_cast<double>(k) + 4) * (terms + 1e-30);
              CHECK(std::abs(rows[row * (n + 3) + out] - sum) <= bound);
              CHECK(std::abs(tiles[row * (n + 3) + out] - sum) <= bound + (narrow ? terms / 256 : 0));
            }
          }
          // A tile's bits do not depend on how many there are.
          std::vector<float> alone(kTileRows * (n + 3));
          auto again = values(rng, 0);
          again.assign(x.begin() + static_cast<std::ptrdiff_t>(8 * kTileRows * k), x.end());
          matmul.prefill(*packed, again.data(), 1, alone.data());
          CHECK(std::equal(alone.begin(), alone.end(), tiles.end() - static_cast<std::ptrdiff_t>(alone.size())));
        }
  }
}

TEST_CASE("ops/fp8: parts stay fp8 only where all are and their scales cover the same long runs of columns") {
  const uint8_t code = 0;
  const float scale = 1;
  const auto fp8 = [&](size_t block_rows, size_t block_columns) {
    return WeightRows{&code, Dtype::f8_e4m3, 256, {&scale, block_rows, block_columns, 1}};
  };
  const auto group = [](std::initializer_list<WeightRows> parts, size_t columns) {
    return PackedMatrix::fp8_group({parts.begin(), parts.size()}, columns).value_or(0);
  };
  CHECK(group({fp8(128, 128), fp8(128, 128)}, 1000) == 128);
  CHECK(group({fp8(256, 999), fp8(1, 999)}, 999) == 999);  // of a tensor and of rows
  CHECK(group({fp8(128, 128)}, 100) == 100);
  CHECK(group({fp8(128, 128), fp8(1, 1000)}, 1000) == 0);
  CHECK(group({fp8(128, 128), WeightRows{&scale, Dtype::f32, 1}}, 1000) == 0);
  CHECK(group({fp8(128, 16)}, 1000) == 0);  // scales of a quarter of the bytes
  CHECK(group({fp8(128, 33)}, 1000) == 0);  // a pair would have two
}

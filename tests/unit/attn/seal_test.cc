#include "attn/seal.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "property/attn/case.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

std::vector<std::byte> bytes_of(Pages& pages, const ExtentLayout& layout, int64_t page) {
  const std::byte* at = pages.layer(page);
  return {at, at + layout.layer_bytes()};
}

/// K of a page of fp8_e4m3: its code times the scale.
float stored_k(const ExtentLayout& layout, const std::byte* record, size_t row, size_t i) {
  float scale;
  std::memcpy(&scale, record + layout.scale_offset(), 4);
  return e4m3_to_f32(static_cast<uint8_t>(record[row * layout.row_bytes() + i])) * scale;
}

/// The tree by its definition: halves of the list of pair sums.
float tree(std::vector<float> values) {
  for (; values.size() > 1; values.resize(values.size() / 2))
    for (size_t i = 0; i < values.size() / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
  return values[0];
}

}  // namespace

TEST_CASE("attn/seal: bytes of full pages do not depend on how the tokens arrived") {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3})
    for (uint32_t block_tokens : {16u, 64u, 512u}) {
      Rng rng(test::seed());
      const ExtentLayout layout = layout_of(2, 40, dtype, block_tokens);
      const int64_t tokens = 2 * block_tokens;
      Rows rows = random_rows(layout, tokens, Data::normal, rng);
      // Rows of very different sizes, so that a page of fp8_e4m3 takes a larger scale more than once.
      for (int64_t t = 0; t < tokens; ++t) {
        const int power = static_cast<int>(rng.below(24)) - 12;
        for (size_t i = 0; i < 80; ++i) {
          rows.k[static_cast<size_t>(t) * 80 + i] = std::ldexp(rows.k[static_cast<size_t>(t) * 80 + i], power);
          rows.v[static_cast<size_t>(t) * 80 + i] = std::ldexp(rows.v[static_cast<size_t>(t) * 80 + i], -power);
        }
      }
      Pages at_once(layout, tokens, false, rng), one_by_one(layout, tokens, true, rng),
          chunks(layout, tokens, true, rng);
      Parallel pool(2);
      at_once.append(rows, 0, tokens, &pool);
      for (int64_t t = 0; t < tokens; ++t) one_by_one.append(rows, t, t + 1);
      for (int64_t t = 0; t < tokens; t += 7) chunks.append(rows, t, std::min(t + 7, tokens));
      for (int64_t page = 0; page < 2; ++page) {
        CHECK(bytes_of(at_once, layout, page) == bytes_of(one_by_one, layout, page));
        CHECK(bytes_of(at_once, layout, page) == bytes_of(chunks, layout, page));
      }
    }
}

TEST_CASE("attn/seal: ksum is the pairwise tree over the stored keys and kmean its rounded mean") {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
    Rng rng(test::seed() + 1);
    const ExtentLayout layout = layout_of(1, 64, dtype);
    const Rows rows = random_rows(layout, 64, Data::normal, rng);
    Pages pages(layout, 64, false, rng);
    pages.append(rows, 0, 64);
    const auto* ksum = reinterpret_cast<const float*>(pages.layer(0) + layout.ksum_offset());
    const auto* kmean = reinterpret_cast<const bf16_t*>(pages.layer(0) + layout.kmean_offset());
    for (size_t i = 0; i < 64; ++i) {
      std::vector<float> column;
      for (size_t t = 0; t < 64; ++t) {
        const float k = rows.k[t * 64 + i];
        column.push_back(dtype == Dtype::f32    ? k
                         : dtype == Dtype::bf16 ? bf16_to_f32(f32_to_bf16(k))
                                                : stored_k(layout, pages.layer(0), t, i));
      }
      CHECK(ksum[i] == tree(column));
      CHECK(kmean[i] == f32_to_bf16(tree(column) / 64));
    }
  }
}

TEST_CASE("attn/seal: a stored value of E4M3 is within a 16th of itself and a 512th of the scale") {
  Rng rng(test::seed() + 5);
  const ExtentLayout layout = layout_of(1, 64, Dtype::f8_e4m3);
  for (const float size : {0.0f, 1e-40f, 1e-30f, 1.0f, 448.0f, 3e4f, 1e38f}) {
    Rows rows = random_rows(layout, 64, Data::normal, rng);
    float largest = 0;
    for (float& k : rows.k) largest = std::max(largest, std::abs(k *= size * rng.uniform()));
    Pages pages(layout, 64, false, rng);
    pages.append(rows, 0, 64);
    float scale;
    std::memcpy(&scale, pages.layer(0) + layout.scale_offset(), 4);
    INFO("size " << size << ", scale " << scale);
    CHECK(scale == e4m3_scale(e4m3_exponent(largest)));
    bool all_within = true;
    for (size_t t = 0; t < 64; ++t)
      for (size_t i = 0; i < 64; ++i) {
        const double k = double{rows.k[t * 64 + i]}, stored = double{stored_k(layout, pages.layer(0), t, i)};
        all_within = all_within && std::abs(stored - k) <= std::abs(k) / 16 + double{scale} / 512;
      }
    CHECK(all_within);
  }
}

TEST_CASE("attn/seal: a value that is not finite is stored as NaN, and the others keep their scale") {
  Rng rng(test::seed() + 6);
  const ExtentLayout layout = layout_of(1, 16, Dtype::f8_e4m3, 16);
  Rows rows = random_rows(layout, 16, Data::normal, rng);
  Pages sound(layout, 16, false, rng), broken(layout, 16, false, rng);
  rows.k[16] = rows.k[33] = 0;
  sound.append(rows, 0, 16);
  rows.k[16] = std::numeric_limits<float>::infinity();
  rows.k[33] = std::nanf("");
  broken.append(rows, 0, 16);
  size_t differing = 0;
  for (size_t i = 0; i < 256; ++i) {
    const float a = stored_k(layout, sound.layer(0), i / 16, i % 16),
                b = stored_k(layout, broken.layer(0), i / 16, i % 16);
    if (i == 16 || i == 33)
      CHECK(std::isnan(b));
    else
      differing += a != b;
  }
  CHECK(differing == 0);
}

TEST_CASE("attn/seal: a sealed partial tail has zero rows beyond its tokens and sums only what is there") {
  for (Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    Rng rng(test::seed() + 2);
    const ExtentLayout layout = layout_of(2, 64, dtype);
    const Rows rows = random_rows(layout, 64, Data::normal, rng);
    Pages pages(layout, 64, false, rng);
    pages.append(rows, 0, 5);
    seal(layout, pages.layer(0), 5);
    for (uint32_t head = 0; head < 2; ++head) {
      const std::byte* record = pages.layer(0) + head * layout.head_bytes();
      for (size_t part : {layout.k_offset(), layout.v_offset()})
        for (size_t i = 5 * layout.row_bytes(); i < 64 * layout.row_bytes(); ++i)
          REQUIRE(record[part + i] == std::byte{});
      std::vector<float> column(64, 0.0f);
      for (size_t t = 0; t < 5; ++t)
        column[t] = dtype == Dtype::bf16 ? bf16_to_f32(f32_to_bf16(rows.k[(t * 2 + head) * 64]))
                                         : stored_k(layout, record, t, 0);
      CHECK(reinterpret_cast<const float*>(record + layout.ksum_offset())[0] == tree(column));
    }
    // Growing on from the sealed tail gives the page that prefill would have made.
    Pages whole(layout, 64, false, rng);
    whole.append(rows, 0, 64);
    pages.append(rows, 5, 64);
    CHECK(bytes_of(pages, layout, 0) == bytes_of(whole, layout, 0));
  }
}

TEST_CASE("attn/seal: an appended row keeps its neighbours, heads and strides apart") {
  Rng rng(test::seed() + 3);
  const ExtentLayout layout = layout_of(2, 16, Dtype::f32, 16);
  Pages pages(layout, 16, false, rng);
  std::vector<float> fused(3 * 100);  // k at +10, v at +50 of rows of 100 floats
  for (size_t i = 0; i < fused.size(); ++i) fused[i] = static_cast<float>(i);
  append({.layout = layout,
          .target = pages.target(),
          .position = 2,
          .tokens = 3,
          .k = fused.data() + 10,
          .v = fused.data() + 50,
          .k_stride = 100,
          .v_stride = 100});
  const KvView kv = pages.view(5);
  for (int64_t t = 0; t < 3; ++t)
    for (int head = 0; head < 2; ++head)
      for (int64_t i = 0; i < 16; ++i) {
        CHECK(reinterpret_cast<const float*>(k_row(layout, kv, 2 + t, head))[i] ==
              static_cast<float>(t * 100 + 10 + head * 16 + i));
        CHECK(reinterpret_cast<const float*>(v_row(layout, kv, 2 + t, head))[i] ==
              static_cast<float>(t * 100 + 50 + head * 16 + i));
      }
}

TEST_CASE("attn/seal: the centroid of a moba block adds its pages in order and rounds once") {
  Rng rng(test::seed() + 4);
  const ExtentLayout layout = layout_of(1, 64, Dtype::bf16);
  const Rows rows = random_rows(layout, 384, Data::normal, rng);
  Pages pages(layout, 384, true, rng);
  pages.append(rows, 0, 384);
  std::vector<bf16_t> one(64), three(64);
  centroid(layout, pages.view(384), 0, 64, 4, one.data());
  CHECK(std::memcmp(one.data(), pages.layer(4) + layout.kmean_offset(), 128) == 0);
  centroid(layout, pages.view(384), 0, 192, 1, three.data());
  for (size_t i = 0; i < 64; ++i) {
    const auto sum = [&](int64_t page) {
      return reinterpret_cast<const float*>(pages.layer(page) + layout.ksum_offset())[i];
    };
    CHECK(three[i] == f32_to_bf16((sum(3) + sum(4) + sum(5)) / 192));
  }
}

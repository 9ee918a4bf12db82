#include "base/e4m3.h"

#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/rng.h"
#include "test.h"

using namespace mc;

namespace {

/// The value of a code by the fields of OFP8.
double value_of(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -size : size;
}

/// The code nearest to a finite value of at most 448, ties to the even code.
int nearest(double value) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double distance = std::abs(value_of(code) - std::abs(value)),
                 best_distance = std::abs(value_of(best) - std::abs(value));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return std::signbit(value) ? best | 0x80 : best;
}

/// Magnitudes around every code and every middle of two, at any scale.
float edge_biased(Rng& rng) {
  const auto code = static_cast<int>(rng.below(0x7e));
  const double middle = rng.chance(0.5) ? value_of(code) : (value_of(code) + value_of(code + 1)) / 2;
  const auto value = static_cast<float>(middle);
  const float moved = rng.chance(0.3)   ? value
                      : rng.chance(0.5) ? std::nextafter(value, 1000.0f)
                                        : std::nextafter(value, 0.0f);
  return rng.chance(0.5) ? moved : -moved;
}

}  // namespace

TEST_CASE("base/e4m3: a code has the value of its fields, and is NaN where all bits are ones") {
  for (int code = 0; code < 256; ++code) {
    INFO(code);
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
      continue;
    }
    CHECK(double{value} == value_of(code));
    CHECK(std::signbit(value) == (code >= 0x80));
    CHECK(f32_to_e4m3(value) == code);
  }
}

TEST_CASE("base/e4m3: rounding gives the nearest code and of two the even one, beyond 448 the largest") {
  Rng rng(test::seed());
  for (int n = 0; n < 20000; ++n) {
    const float value = edge_biased(rng);
    INFO(value);
    CHECK(f32_to_e4m3(value) == nearest(double{value}));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(f32_to_e4m3(448.0f) == 0x7e);
  CHECK(f32_to_e4m3(1e30f) == 0x7e);
  CHECK(f32_to_e4m3(-465.0f) == 0xfe);
  CHECK(f32_to_e4m3(0.0f) == 0);
  CHECK(f32_to_e4m3(-0.0f) == 0x80);
  CHECK(f32_to_e4m3(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(f32_to_e4m3(kInfinity) == 0x7f);
  CHECK(f32_to_e4m3(-kInfinity) == 0xff);
  CHECK((f32_to_e4m3(std::nanf("")) & 0x7f) == 0x7f);
}

TEST_CASE("base/e4m3: the scale of a row is the smallest power of two that covers it") {
  Rng rng(test::seed() + 1);
  for (int n = 0; n < 20000; ++n) {
    const int power = static_cast<int>(rng.below(200)) - 100;
    const float value = std::ldexp(edge_biased(rng), power);
    if (value == 0) continue;
    const int exponent = e4m3_exponent(value);
    INFO(value);
    CHECK(std::abs(double{value}) <= std::ldexp(448, exponent));
    if (exponent > kE4m3ExponentMin) CHECK(std::abs(double{value}) > std::ldexp(448, exponent - 1));
    CHECK(e4m3_exponent_of(e4m3_scale(exponent)) == exponent);
  }
  CHECK(e4m3_exponent(0) == kE4m3ExponentMin);
  CHECK(e4m3_exponent(std::numeric_limits<float>::denorm_min()) == kE4m3ExponentMin);
  CHECK(e4m3_exponent(std::numeric_limits<float>::max()) == kE4m3ExponentMax);
  CHECK(e4m3_exponent(448) == 0);
  CHECK(e4m3_exponent(std::nextafter(448.0f, 449.0f)) == 1);
  for (const float hostile : {0.0f, -1.0f, 1e38f, 1e-45f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    CHECK(e4m3_exponent_of(hostile) >= kE4m3ExponentMin);
    CHECK(e4m3_exponent_of(hostile) <= kE4m3ExponentMax);
  }
}

TEST_CASE("base/e4m3: a shift divides towards zero, and two shifts equal one by their sum") {
  for (int code = 0; code < 256; ++code)
    for (int by = 0; by < 30; ++by) {
      INFO(code << " by " << by);
      const uint8_t shifted = e4m3_shift(static_cast<uint8_t>(code), by);
      if ((code & 0x7f) == 0x7f) {
        CHECK(shifted == code);
        continue;
      }
      const double exact = std::ldexp(std::abs(value_of(code)), -by);
      const double kept = std::ldexp(std::floor(std::ldexp(exact, 9)), -9);
      CHECK(std::abs(value_of(shifted)) == (exact >= std::ldexp(1, -6) ? exact : kept));
      CHECK((shifted & 0x80) == (code & 0x80));
      for (int more = 0; more < 30; ++more) CHECK(e4m3_shift(shifted, more) == e4m3_shift(uint8_t(code), by + more));
    }
  CHECK(e4m3_shift(0x7e, 235) == 0);
}

TEST_CASE("base/e4m3: a stored value is within a 16th and a 512th of the scale, and exact in bf16") {
  Rng rng(test::seed() + 2);
  for (int n = 0; n < 20000; ++n) {
    const int power = static_cast<int>(rng.below(220)) - 115;
    const float value = std::ldexp(edge_biased(rng), power);
    const int row = e4m3_exponent(value), page = std::min(row + static_cast<int>(rng.below(20)), kE4m3ExponentMax);
    const uint8_t code = e4m3_shift(e4m3_code(value, row), page - row);
    const float stored = e4m3_to_f32(code) * e4m3_scale(page);
    INFO(value << " under 2^" << page);
    CHECK(std::abs(double{stored} - double{value}) <= std::abs(double{value}) / 16 + std::ldexp(1, page - 9));
    CHECK(bf16_to_f32(f32_to_bf16(stored)) == stored);
    if (stored != 0) CHECK(std::isnormal(stored));
  }
}

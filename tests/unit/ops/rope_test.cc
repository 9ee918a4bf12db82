#include "ops/rope.h"

#include <cmath>
#include <vector>

#include "test.h"

using namespace mc::ops;

TEST_CASE("ops/rope: default frequencies are theta^(-2i/d)") {
  const Rope rope({.theta = 10000}, 8);
  REQUIRE(rope.half() == 4);
  CHECK(rope.frequency()[0] == 1.0f);
  CHECK(rope.frequency()[1] == 0.1f);
  CHECK(rope.frequency()[2] == 0.01f);
  float c[4], s[4];
  rope.at(7, c, s);
  CHECK(c[0] == doctest::Approx(std::cos(7.0)).epsilon(1e-7));
  CHECK(s[2] == doctest::Approx(std::sin(0.07)).epsilon(1e-7));
  rope.at(0, c, s);
  CHECK(c[3] == 1.0f);
  CHECK(s[3] == 0.0f);
}

TEST_CASE("ops/rope: llama3 scaling keeps high, divides low and blends middle frequencies") {
  const RopeConfig config{.kind = RopeConfig::Kind::llama3,
                          .theta = 500000,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_positions = 8192};
  const Rope plain({.theta = 500000}, 128), scaled(config, 128);
  CHECK(scaled.frequency()[0] == plain.frequency()[0]);
  CHECK(scaled.frequency()[63] == doctest::Approx(plain.frequency()[63] / 8).epsilon(1e-6));
  size_t blended = 0;
  for (size_t i = 0; i < 64; ++i) {
    const float ratio = scaled.frequency()[i] / plain.frequency()[i];
    CHECK(ratio <= 1.0f + 1e-6f);
    CHECK(ratio >= 0.125f - 1e-6f);
    blended += ratio > 0.13f && ratio < 0.99f;
  }
  CHECK(blended > 0);
}

TEST_CASE("ops/rope: linear divides every frequency by the factor") {
  const Rope plain({.theta = 10000}, 64), scaled({.kind = RopeConfig::Kind::linear, .theta = 10000, .factor = 4}, 64);
  for (size_t i = 0; i < 32; ++i)
    CHECK(scaled.frequency()[i] == doctest::Approx(plain.frequency()[i] / 4).epsilon(1e-6));
}

TEST_CASE("ops/rope: yarn keeps fast dimensions, divides slow ones, and scales sine and cosine") {
  const RopeConfig config{
      .kind = RopeConfig::Kind::yarn, .theta = 1e6, .factor = 4, .original_positions = 32768, .attention_factor = 1.25};
  const Rope plain({.theta = 1e6}, 128), scaled(config, 128);
  CHECK(scaled.frequency()[0] == plain.frequency()[0]);
  CHECK(scaled.frequency()[63] == doctest::Approx(plain.frequency()[63] / 4).epsilon(1e-6));
  for (size_t i = 1; i < 64; ++i)
    CHECK(scaled.frequency()[i] / plain.frequency()[i] <= scaled.frequency()[i - 1] / plain.frequency()[i - 1] + 1e-6f);
  float c[64], s[64];
  scaled.at(0, c, s);
  CHECK(c[5] == 1.25f);
  scaled.at(3, c, s);
  CHECK(s[0] == doctest::Approx(1.25 * std::sin(3.0)).epsilon(1e-6));
}

TEST_CASE("ops/rope: two configurations have the same text only if they rotate alike") {
  CHECK(RopeConfig{.theta = 1e4}.text() == "default:theta=10000");
  CHECK(RopeConfig{.theta = 1e4}.text() != RopeConfig{.theta = 1e6}.text());
  RopeConfig a{.kind = RopeConfig::Kind::llama3, .theta = 1e4, .factor = 8}, b = a;
  b.factor = 32;
  CHECK(a.text() != b.text());
  a.kind = b.kind = RopeConfig::Kind::yarn;
  b.factor = a.factor;
  b.beta_fast = 16;
  CHECK(a.text() != b.text());
}

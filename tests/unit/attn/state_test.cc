#include "attn/state.h"

#include <cmath>
#include <limits>
#include <vector>

#include "test.h"

using namespace mc::attn;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct One {
  float o, m, d;
};

One merged(One a, One b) {
  merge({&a.o, &a.m, &a.d}, {&b.o, &b.m, &b.d}, 1, 1);
  return a;
}

float value(One s) {
  float out = 99;
  normalise({&s.o, &s.m, &s.d}, 1, 1, &out);
  return out;
}

}  // namespace

TEST_CASE("attn/state: two equal parts merge to the same value with twice the sum") {
  const One s = merged({6, 3, 2}, {6, 3, 2});
  CHECK(s.m == 3);
  CHECK(s.d == 4);
  CHECK(value(s) == 3);
}

TEST_CASE("attn/state: merging weighs parts by 2^m d") {
  // exp2(1) * 1 of value 10 and exp2(0) * 2 of value 40.
  const One s = merged({10, 1, 1}, {80, 0, 2});
  CHECK(value(s) == doctest::Approx((2.0 * 10 + 2.0 * 40) / 4.0));
  const One t = merged({80, 0, 2}, {10, 1, 1});
  CHECK(value(t) == value(s));
}

TEST_CASE("attn/state: a part without keys has weight exactly zero, whatever its output holds") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(value(merged({6, 3, 2}, {nan, kNone, nan})) == 3);
  CHECK(value(merged({nan, kNone, nan}, {6, 3, 2})) == 3);
  const One none = merged({0, kNone, 0}, {0, kNone, 0});
  CHECK(none.m == kNone);
  CHECK(value(none) == 0);
  CHECK(lse(none.m, none.d) == kNone);
}

TEST_CASE("attn/state: parts more than 200 powers of two apart leave the larger one untouched") {
  const One s = merged({6, 250, 2}, {1e9f, 0, 1});
  CHECK(value(s) == 3);
  CHECK(value(merged({1e9f, -300, 1}, {6, -20, 2})) == 3);
}

TEST_CASE("attn/state: the cleared state is neutral on both sides") {
  std::vector<float> o(6, 7.0f), m(2, 1.0f), d(2, 1.0f);
  clear({o.data(), m.data(), d.data()}, 2, 3);
  std::vector<float> o2 = {1, 2, 3, 4, 5, 6}, m2 = {0, -5}, d2 = {1, 2};
  merge({o.data(), m.data(), d.data()}, {o2.data(), m2.data(), d2.data()}, 2, 3);
  CHECK(o == o2);
  CHECK(m == m2);
  CHECK(d == d2);
}

TEST_CASE("attn/state: lse is the natural logarithm of the sum of exponentials") {
  CHECK(lse(0, 4) == doctest::Approx(std::log(4.0)));
  CHECK(lse(10, 1) == doctest::Approx(10 * std::log(2.0)));
}

#include "attn/peak.h"

#include "attn/attn.h"
#include "base/parallel.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;

namespace {

/// The sum of min(i, c) over the rows i = 0 .. n - 1.
double chosen(double n, double c) {
  return n > c ? c * (c + 1) / 2 + c * (n - c - 1) : n * (n - 1) / 2;
}

}  // namespace

TEST_CASE("attn/peak: the counted keys of a prefill equal the closed form") {
  for (int64_t n : {1, 64, 1000, 4096}) CHECK(prefill_keys({}, 0, n) == n * (n + 1) / 2);
  CHECK(prefill_keys({.kind = ModeKind::window, .window = 64}, 0, 1000) == 64 * 65 / 2 + 936 * 64);
  for (int32_t block : {64, 128, 512})
    for (int32_t top_k : {1, 2, 3, 8}) {
      const double n = 4096, b = block;
      CHECK(prefill_keys({ModeKind::moba, block, top_k}, 0, 4096) ==
            n * (b + 1) / 2 + b * b * chosen(n / b, top_k - 1));
    }
}

TEST_CASE("attn/peak: chunks of a prefill add up to the whole, and the gate costs nothing in full attention") {
  const Mode mode = {ModeKind::moba, 64, 3};
  double keys = 0, gate = 0;
  for (int64_t begin = 0; begin < 1000; begin += 100) {
    keys += prefill_keys(mode, begin, 100);
    gate += gate_flop(mode, 8, 64, begin, 100);
  }
  CHECK(keys == prefill_keys(mode, 0, 1000));
  CHECK(gate == gate_flop(mode, 8, 64, 0, 1000));
  CHECK(gate > 0);
  CHECK(gate_flop({}, 8, 64, 0, 1000) == 0);
  CHECK(prefill_flop({}, 8, 64, 0, 1) == 4 * 8 * 64);
}

TEST_CASE("attn/peak: every fast variant that runs here has a rate that bounds it") {
  Parallel pool(1);
  const MachinePeak peak{.threads = 1, .rates = measure_rates(pool, 3ms)};
  for (const Variant* variant : variants()) {
    if (name_of(*variant) == "ref" || !lacking(*variant).empty()) continue;
    for (Dtype dtype : {Dtype::f32, Dtype::bf16}) CHECK(peak.rate(bounding_rate(name_of(*variant), dtype)) > 0);
  }
  CHECK(peak.rate("no such instruction") == 0);
}

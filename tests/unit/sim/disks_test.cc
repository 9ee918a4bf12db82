// The disks of simulated nodes: what the scheduler sees of them, and how long requests wait for them.
#include "cluster_bench.h"
#include "test.h"

namespace disks_test {

using namespace mc;
using namespace mc::sim;
using sim_test::Bench;

namespace {

constexpr uint64_t kStem = 20;  // blocks

/// At 60 s the stem is on the disk of the only node that has computed it.
Bench with_stem_on_disk(const char* shape, double disk_bytes_per_s) {
  Bench b(shape);
  b.options.dram_blocks = 24, b.options.ssd_blocks = 1000;
  b.profile.ssd_read.bytes_per_s = disk_bytes_per_s;
  b.add(0, kStem, 2);
  for (int i = 0; i < 8; ++i) b.add(20 + 5 * i, 0, 24);
  return b;
}

double stem_bytes(const Bench& b) {
  return static_cast<double>(kStem * 512 * b.profile.kv_bytes_per_token);
}

}  // namespace

TEST_CASE("sim/disks: the predicted TTFT contains the time in which the node reads its disk") {
  Bench b = with_stem_on_disk("1p1d", 1e9);
  b.add(80, kStem, 2);
  const RequestRecord r = b.run().requests.back();
  CHECK(r.ssd_tokens == kStem * 512);
  CHECK(r.ttft_s > stem_bytes(b) / 1e9);
  CHECK(r.predicted_ttft_s == doctest::Approx(r.ttft_s).epsilon(0.05));
}

TEST_CASE("sim/disks: a prefix on a slow disk does not draw requests, and one on a fast disk does") {
  for (const bool slow : {false, true}) {
    CAPTURE(slow);
    Bench b = with_stem_on_disk("2p1d", slow ? 1e7 : 1e11);
    b.add(80, kStem, 2);
    const RequestRecord r = b.run().requests.back();
    CHECK(r.ssd_tokens == (slow ? 0 : kStem * 512));
    CHECK(r.ttft_s < 30);
  }
}

}  // namespace disks_test

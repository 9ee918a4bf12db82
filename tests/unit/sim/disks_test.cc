// The disks of simulated nodes: what the scheduler sees of them, and how long requests wait for them.
#include "cluster_bench.h"
#include "sim/disk_reads.h"
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
  b.profile.paths.ssd_read.bytes_per_s = disk_bytes_per_s;
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

TEST_CASE("sim/disks: a second request for blocks that are being read from disk waits until they are read") {
  Bench b = with_stem_on_disk("1p1d", 1e9);
  b.add(80, kStem, 2), b.add(80.1, kStem, 2), b.add(80.2, 0, 2);
  const ClusterRun run = b.run();
  const double read_s = stem_bytes(b) / 1e9;
  const auto of = [&](size_t back) { return run.requests[run.requests.size() - back]; };
  CHECK(of(3).ttft_s > read_s);
  CHECK(of(2).ttft_s > read_s - 0.1);
  CHECK(of(2).ssd_tokens == 0);
  CHECK(of(1).ttft_s < read_s);  // it reads nothing
}

TEST_CASE("sim/disks: the reads of a node follow each other, and a block that is there waits for none") {
  TieredCaches caches(1, 2, 8, 8);
  const std::vector<uint32_t> first = {0, 1}, second = {2, 3}, third = {4, 5};
  for (const auto& blocks : {first, second, third}) caches.use(0, blocks, 1), caches.settle(0, blocks);
  REQUIRE(caches.on_ssd(0, first) == 2);
  REQUIRE(caches.on_ssd(0, second) == 2);
  const sched::Path path{.bytes_per_s = 10, .latency_s = 1};
  DiskReads reads;
  CHECK(reads.begin(caches, 0, third, 0, path, 5) == 5);
  CHECK(reads.begin(caches, 0, first, 20, path, 5) == doctest::Approx(8));
  CHECK(reads.begin(caches, 0, second, 20, path, 6) == doctest::Approx(11));
  CHECK(reads.begin(caches, 0, first, 0, path, 7) == doctest::Approx(8));
  CHECK(reads.begin(caches, 0, third, 0, path, 7) == 7);
  CHECK(reads.begin(caches, 0, first, 0, path, 9) == 9);
  CHECK(reads.begin(caches, 0, second, 0, path, 12) == 12);
}

}  // namespace disks_test

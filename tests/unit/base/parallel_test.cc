#include "base/parallel.h"

#include <atomic>
#include <vector>

#include "test.h"

using namespace mc;

TEST_CASE("base/parallel: every index runs once, whatever the count and the threads") {
  for (int threads : {1, 2, 3, 5}) {
    Parallel pool(threads);
    CHECK(pool.threads() == threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      pool.for_each(count, [&](int64_t index, int worker) {
        REQUIRE(worker < threads);
        runs[static_cast<size_t>(index)].fetch_add(1);
      });
      for (const auto& run : runs) CHECK(run.load() == 1);
    }
  }
}

TEST_CASE("base/parallel: for_ranges cuts at multiples of the grain, for any number of threads") {
  for (int threads : {1, 4}) {
    Parallel pool(threads);
    std::vector<int64_t> end_of(100, -1);
    pool.for_ranges(97, 10, [&](int64_t begin, int64_t end, int) { end_of[static_cast<size_t>(begin)] = end; });
    for (int64_t begin = 0; begin < 100; ++begin)
      CHECK(end_of[static_cast<size_t>(begin)] == (begin % 10 == 0 ? std::min<int64_t>(begin + 10, 97) : -1));
  }
}

TEST_CASE("base/parallel: two bodies never hold one worker number at the same time") {
  Parallel pool(3);
  std::atomic<int> busy[3] = {};
  std::atomic<int> clashes{0};
  pool.for_each(2000, [&](int64_t, int worker) {
    if (busy[worker].fetch_add(1) != 0) clashes.fetch_add(1);
    busy[worker].fetch_sub(1);
  });
  CHECK(clashes.load() == 0);
}

TEST_CASE("base/parallel: what the bodies of one loop wrote is seen by the next loop") {
  Parallel pool(2);
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round)
    pool.for_each(64, [&](int64_t index, int) {
      values[static_cast<size_t>(index)] += values[static_cast<size_t>(index)] == round;
    });
  for (int64_t value : values) CHECK(value == 2000);
}

TEST_CASE("base/parallel: bodies flush denormals on every thread, and the caller gets its own mode back") {
  volatile float tiny = 1e-38f;
  volatile float fraction = 0.1f;
  Parallel pool(3);
  std::vector<float> product(200, 1.0f);
  pool.for_each(200, [&](int64_t index, int) { product[static_cast<size_t>(index)] = tiny * fraction; });
  for (float value : product) CHECK(value == 0.0f);
  CHECK(tiny * fraction > 0.0f);
}

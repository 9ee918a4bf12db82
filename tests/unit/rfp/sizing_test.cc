#include "rfp/sizing.h"

#include "test.h"

using namespace mc;
using namespace mc::rfp;

namespace {

/// Reads per second of a NIC that is limited by operations up to 1 KiB and by bandwidth beyond.
const ReadRates kNic = {11e6, 11e6, 11e6, 10.5e6, 10.2e6, 10e6, 9e6, 6e6, 4.5e6};

}  // namespace

TEST_CASE("rfp/sizing: R is bounded by what a push costs the server's NIC") {
  CHECK(retries_bound(11.26e6, 2.11e6) == 5);  // the rates of the paper's NIC
  CHECK(retries_bound(2e6, 2e6) == 1);
  CHECK(retries_bound(4e6, 2e6) == 1);
  CHECK(retries_bound(4.1e6, 2e6) == 2);
  CHECK(retries_bound(0, 0) == 1);
  CHECK(retries_bound(1e30, 1) == 1000);
}

TEST_CASE("rfp/sizing: a size counts for the smallest candidate that holds it") {
  SizeCounts counts;
  for (const uint32_t bytes : {64u, 65u, 128u, 5000u}) counts.record(bytes);
  CHECK(counts.rate(0, kNic) == doctest::Approx(11e6 * (0.25 + 0.375)));
  CHECK(counts.rate(1, kNic) == doctest::Approx(11e6 * (0.75 + 0.125)));
  CHECK(counts.rate(8, kNic) == doctest::Approx(4.5e6 * (0.75 + 0.125)));
}

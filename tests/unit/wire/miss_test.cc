// The tables of misses and fallbacks: the row of each kind is at the kind's place.

#include "wire/miss.h"

#include "test.h"

using namespace mc;
using namespace mc::wire;

TEST_CASE("wire/miss: names lead back to their kinds, and a strange name to none") {
  for (const MissRow& row : miss_rows()) {
    CHECK(to_string(row.kind) == row.name);
    CHECK(miss_from(row.name) == row.kind);
  }
  for (const FallbackRow& row : fallback_rows()) {
    CHECK(to_string(row.fallback) == row.name);
    CHECK(fallback_from(row.name) == row.fallback);
    CHECK(fallback_from(describe(row.fallback)) == row.fallback);
    CHECK((miss_of(row.fallback) == MissKind::none) == (row.fallback == Fallback::none));
  }
  CHECK(miss_from("corrupt") == MissKind::none);
  CHECK(fallback_from("fetch:") == Fallback::none);
}

TEST_CASE("wire/miss: a run is described with its node, and an eviction with its age") {
  CHECK(describe({MissKind::evicted, 3, 2, "p0", 3249}) == "evicted by p0 3.2 s ago");
  CHECK(describe({MissKind::checksum, 0, 1, "p1", 0}) == "checksum at p1");
  CHECK(describe({MissKind::cold, 0, 1, "", 0}) == "cold");
}

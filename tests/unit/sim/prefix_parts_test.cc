// The parts of one fetch, without a network.
#include "sim/prefix_parts.h"

#include "test.h"

namespace prefix_parts_test {

using namespace mc;
using namespace mc::sim;

TEST_CASE("sim/prefix_parts: no more parts are on their way than a live node asks for at once") {
  PrefixParts prefix;
  CHECK(prefix.is_here());
  std::vector<sched::FetchRun> parts;
  for (uint32_t i = 0; i < sched::kPartsAtOnce + 2; ++i) parts.push_back({static_cast<int>(i), i, i + 1});
  prefix.fetch(parts, false, 0);
  for (uint32_t i = 0; i < sched::kPartsAtOnce; ++i) CHECK(prefix.ask() == parts[i]);
  CHECK_FALSE(prefix.ask());
  prefix.arrive(0);
  CHECK(prefix.ask() == parts[sched::kPartsAtOnce]);
  CHECK_FALSE(prefix.ask());
  prefix.arrive(0);
  CHECK(prefix.ask() == parts.back());
  for (uint32_t i = 0; i < sched::kPartsAtOnce; ++i) {
    CHECK_FALSE(prefix.is_here());
    prefix.arrive(0);
  }
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: a held fetch asks for nothing before its holder has the blocks, or is given up") {
  for (const bool comes : {false, true}) {
    CAPTURE(comes);
    PrefixParts prefix;
    prefix.fetch({{3, 10, 20}}, true, 0);
    CHECK_FALSE(prefix.ask());
    CHECK_FALSE(prefix.is_here());
    comes ? prefix.release() : prefix.cut();
    CHECK(prefix.ask().has_value() == comes);
    if (comes) prefix.arrive(0);
    CHECK(prefix.is_here());
  }
}

TEST_CASE("sim/prefix_parts: parts that are on their way when the rest is given up are waited for") {
  PrefixParts prefix;
  std::vector<sched::FetchRun> parts;
  for (uint32_t i = 0; i < sched::kPartsAtOnce + 1; ++i) parts.push_back({1, i, i + 1});
  prefix.fetch(parts, false, 0);
  while (prefix.ask()) {
  }
  prefix.cut();
  for (uint32_t i = 0; i < sched::kPartsAtOnce; ++i) {
    CHECK_FALSE(prefix.is_here());
    prefix.arrive(0);
    CHECK_FALSE(prefix.ask());
  }
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: a prefix is here when its own disk and all holders have brought their blocks") {
  PrefixParts prefix;
  prefix.begin_load();
  prefix.fetch({{1, 0, 4}}, false, 0);
  REQUIRE(prefix.ask());
  prefix.arrive(0);
  CHECK_FALSE(prefix.is_here());
  prefix.end_load();
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: a fetch has a duration if one holder sent it and had it, and else none") {
  for (const size_t holders : {1u, 2u}) {
    for (const bool held : {false, true}) {
      CAPTURE(holders);
      CAPTURE(held);
      PrefixParts prefix;
      CHECK_FALSE(prefix.seconds());
      std::vector<sched::FetchRun> parts;
      for (uint32_t i = 0; i < holders; ++i) parts.push_back({static_cast<int>(i), i, i + 1});
      prefix.fetch(parts, held, 10);
      if (held) prefix.release();
      while (prefix.ask()) prefix.arrive(12);
      CHECK(prefix.is_here());
      CHECK(prefix.seconds().has_value() == (holders == 1 && !held));
      if (prefix.seconds()) CHECK(*prefix.seconds() == 2);
    }
  }
}

}  // namespace prefix_parts_test

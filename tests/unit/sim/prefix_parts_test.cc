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
  prefix.fetch(parts, {}, false);
  for (uint32_t i = 0; i < sched::kPartsAtOnce; ++i) CHECK(prefix.ask(0)->run == parts[i]);
  CHECK_FALSE(prefix.ask(0));
  prefix.arrive(0, 0);
  CHECK(prefix.ask(0)->run == parts[sched::kPartsAtOnce]);
  CHECK_FALSE(prefix.ask(0));
  prefix.arrive(1, 0);
  CHECK(prefix.ask(0)->run == parts.back());
  for (uint32_t i = 2; i < parts.size(); ++i) {
    CHECK_FALSE(prefix.is_here());
    prefix.arrive(i, 0);
  }
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: a held fetch asks for nothing before its holder has the blocks, or is given up") {
  for (const bool comes : {false, true}) {
    CAPTURE(comes);
    PrefixParts prefix;
    prefix.fetch({{3, 10, 20}}, {}, true);
    CHECK_FALSE(prefix.ask(0));
    CHECK_FALSE(prefix.is_here());
    comes ? prefix.release() : prefix.cut();
    CHECK(prefix.ask(0).has_value() == comes);
    if (comes) prefix.arrive(10, 0);
    CHECK(prefix.is_here());
  }
}

TEST_CASE("sim/prefix_parts: parts that are on their way when the rest is given up are waited for") {
  PrefixParts prefix;
  std::vector<sched::FetchRun> parts;
  for (uint32_t i = 0; i < sched::kPartsAtOnce + 1; ++i) parts.push_back({1, i, i + 1});
  prefix.fetch(parts, {}, false);
  while (prefix.ask(0)) {
  }
  prefix.cut();
  for (uint32_t i = 0; i < sched::kPartsAtOnce; ++i) {
    CHECK_FALSE(prefix.is_here());
    prefix.arrive(i, 0);
    CHECK_FALSE(prefix.ask(0));
  }
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: a prefix is here when its own disk and all holders have brought their blocks") {
  PrefixParts prefix;
  prefix.begin_load();
  prefix.fetch({{1, 0, 4}}, {}, false);
  REQUIRE(prefix.ask(0));
  prefix.arrive(0, 0);
  CHECK_FALSE(prefix.is_here());
  prefix.end_load();
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: the time of a part counts from its first layer, without the wait for its holder") {
  for (const bool held : {false, true}) {
    CAPTURE(held);
    PrefixParts prefix;
    CHECK(prefix.reads().empty());
    prefix.fetch({{1, 0, 4}, {2, 4, 6}}, {}, held, {.layers = 2, .blocks_min = 3});
    if (held) prefix.release();
    REQUIRE(prefix.ask(10));
    REQUIRE(prefix.ask(10));
    prefix.arrive(0, 11);
    REQUIRE(prefix.ask(11));
    prefix.arrive(4, 12);
    CHECK(prefix.reads().size() == 1);
    prefix.arrive(0, 13);
    const auto reads = prefix.reads();
    REQUIRE(reads.size() == 2);
    CHECK((reads[0].run == sched::FetchRun{1, 0, 4} && reads[0].seconds == 3));
    CHECK((reads[1].run == sched::FetchRun{2, 4, 6} && reads[1].seconds == 2));
    CHECK(prefix.lose(1) == std::nullopt);
  }
}

TEST_CASE("sim/prefix_parts: other holders replace a holder that fails, up to the first block that none of them has") {
  const std::vector<sched::FetchRun> parts = {{1, 0, 4}, {2, 4, 8}, {3, 8, 12}, {2, 12, 16}};
  struct Case {
    std::vector<sched::FetchRun> spares;
    uint32_t end;
    std::vector<sched::FetchRun> asked;
  };
  const Case cases[] = {{{}, 4, {}},
                        {{{2, 0, 16}}, 4, {}},  // the holder does not replace itself
                        {{{4, 4, 16}}, 16, {{4, 4, 8}, {4, 12, 16}}},
                        {{{4, 2, 6}, {5, 0, 8}}, 12, {{4, 4, 6}, {5, 6, 8}}},
                        {{{4, 4, 6}}, 6, {{4, 4, 6}}}};
  for (const Case& c : cases) {
    CAPTURE(c.end);
    PrefixParts prefix;
    prefix.fetch(parts, c.spares, false);
    while (prefix.ask(0)) {
    }
    CHECK(prefix.lose(2) == c.end);
    CHECK_FALSE(prefix.lose(2));
    std::vector<sched::FetchRun> asked;
    while (const auto part = prefix.ask(0)) asked.push_back(part->run);
    CHECK(asked == c.asked);
    prefix.arrive(0, 0);
    prefix.arrive(8, 0);
    for (const sched::FetchRun& part : asked) {
      CHECK_FALSE(prefix.is_here());
      prefix.arrive(part.first, 0);
    }
    CHECK(prefix.is_here());
  }
}

TEST_CASE(
    "sim/prefix_parts: long parts come layer by layer, each layer after the last one, and short parts as a whole") {
  PrefixParts prefix;
  prefix.fetch({{1, 0, 4}, {2, 4, 7}}, {}, false, {.layers = 3, .blocks_min = 4});
  const auto first = prefix.ask(0), second = prefix.ask(0);
  REQUIRE((first && second));
  CHECK(first->of == 3);
  CHECK(second->of == 1);
  CHECK_FALSE(prefix.ask(0));
  prefix.arrive(4, 1);
  for (int layer = 1; layer < 3; ++layer) {
    prefix.arrive(0, layer);
    CHECK_FALSE(prefix.is_here());
    const auto next = prefix.ask(layer);
    REQUIRE(next);
    CHECK(next->run == first->run);
    CHECK_FALSE(prefix.ask(layer));
  }
  prefix.arrive(0, 3);
  CHECK(prefix.is_here());
}

TEST_CASE("sim/prefix_parts: a request may begin when a layer of every part is here, and then no holder is replaced") {
  PrefixParts prefix;
  prefix.fetch({{1, 0, 4}, {2, 4, 8}}, {{3, 0, 8}}, false, {.layers = 4, .blocks_min = 1});
  REQUIRE(prefix.ask(1));
  REQUIRE(prefix.ask(1));
  prefix.arrive(0, 2);
  CHECK_FALSE(prefix.arriving(2));
  prefix.arrive(4, 3);
  const auto coming = prefix.arriving(3);
  REQUIRE(coming);
  CHECK(coming->layers == 1);
  CHECK(coming->rest_s == doctest::Approx(6));  // three layers more, of two seconds each
  prefix.drop_spares();
  for (int layer = 1; layer < 4; ++layer) {
    REQUIRE(prefix.ask(3));
    prefix.arrive(0, 4);
  }
  CHECK(prefix.layers_here() == 1);
  CHECK(prefix.lose(2) == 4);
  CHECK(prefix.is_here());
  prefix.arrive(4, 5);  // ignored
}

TEST_CASE(
    "sim/prefix_parts: a prefix that comes as a whole, waits for its holder or is read from disk is not arriving") {
  for (const char* why : {"whole", "held", "disk"}) {
    CAPTURE(why);
    const bool whole = why == std::string_view("whole"), held = why == std::string_view("held");
    PrefixParts prefix;
    prefix.fetch({{1, 0, 4}}, {}, held, {.layers = 2, .blocks_min = whole ? 5u : 4u});
    if (why == std::string_view("disk")) prefix.begin_load();
    if (prefix.ask(0) && !whole) prefix.arrive(0, 1);
    CHECK_FALSE(prefix.arriving(1));
  }
}

TEST_CASE("sim/prefix_parts: parts that are here stay when their holder fails") {
  PrefixParts prefix;
  prefix.fetch({{1, 0, 4}, {2, 4, 8}, {1, 8, 12}}, {}, false);
  while (prefix.ask(0)) {
  }
  prefix.arrive(0, 0);
  CHECK(prefix.lose(1) == 8);
  CHECK_FALSE(prefix.is_here());
  prefix.arrive(4, 0);
  CHECK(prefix.is_here());
  CHECK_FALSE(prefix.lose(2));
}

}  // namespace prefix_parts_test

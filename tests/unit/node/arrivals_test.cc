// Which extents of a prompt have come: announcements, reads, and what may be wrong with either.

#include "node/arrivals.h"

#include "test.h"

using namespace mc;
using namespace mc::node;

namespace {

wire::ExtentsReady ready(uint32_t layer, uint32_t first, std::vector<uint32_t> crcs) {
  wire::ExtentsReady out{"r", 1, layer, first, {}};
  for (const uint32_t crc : crcs) out.extents.push_back({uint64_t{4096} * crc, crc});
  return out;
}

/// Announces, starts the read of what is wanted, and says how many extents that were.
size_t read(Arrivals& arrivals, uint64_t number, const wire::ExtentsReady& announced) {
  const auto wanted = arrivals.wanted(announced);
  if (!wanted.empty()) arrivals.started(number, {announced, "p0", {}}, wanted);
  return wanted.size();
}

}  // namespace

TEST_CASE("node/arrivals: blocks that are here from the start are neither missing nor read") {
  Arrivals arrivals(3, 2, 2);
  CHECK(arrivals.missing() == 2);
  const auto wanted = arrivals.wanted(ready(0, 0, {1, 2, 3}));
  REQUIRE(wanted.size() == 1);
  CHECK(wanted[0].block == 2);
  CHECK(wanted[0].crc == 3);
  CHECK(wanted[0].offset == 3 * 4096);
  arrivals.check();
}

TEST_CASE("node/arrivals: an announcement outside the prompt is not ours") {
  const Arrivals arrivals(3, 0, 2);
  CHECK(arrivals.names_ours(ready(1, 2, {1})));
  CHECK_FALSE(arrivals.names_ours(ready(2, 0, {1})));
  CHECK_FALSE(arrivals.names_ours(ready(0, 3, {1})));
  CHECK_FALSE(arrivals.names_ours(ready(0, 0xffffffff, {1})));
  CHECK_FALSE(arrivals.names_ours(ready(0, 2, {1, 2})));
}

TEST_CASE("node/arrivals: an extent announced twice is read once, and after its read failed again") {
  Arrivals arrivals(2, 0, 1);
  CHECK(read(arrivals, 1, ready(0, 0, {7, 8})) == 2);
  CHECK(read(arrivals, 2, ready(0, 1, {8})) == 0);
  CHECK(arrivals.ended(1, false).extents == 2);
  CHECK(arrivals.missing() == 2);
  CHECK(read(arrivals, 3, ready(0, 1, {9})) == 1);
  const auto ended = arrivals.ended(3, true);
  CHECK(ended.extents == 1);
  CHECK(ended.reading.from == "p0");
  CHECK(arrivals.missing() == 1);
  CHECK_FALSE(arrivals.reading());
  CHECK(arrivals.crcs(1) == std::vector<uint32_t>{9});
  CHECK(read(arrivals, 4, ready(0, 1, {9})) == 0);
  arrivals.check();
}

TEST_CASE("node/arrivals: two overlapping announcements count each extent for the read that brings it") {
  Arrivals arrivals(3, 0, 1);
  CHECK(read(arrivals, 1, ready(0, 0, {1, 2})) == 2);
  CHECK(read(arrivals, 2, ready(0, 1, {2, 3})) == 1);
  CHECK(arrivals.ended(2, true).extents == 1);
  CHECK(arrivals.ended(1, true).extents == 2);
  CHECK(arrivals.missing() == 0);
}

TEST_CASE("node/arrivals: wrong checksums are worth three more reads") {
  Arrivals arrivals(1, 0, 1);
  for (int i = 0; i < 3; ++i) CHECK(arrivals.may_read_again());
  CHECK_FALSE(arrivals.may_read_again());
}

TEST_CASE("node/arrivals: an announced block that a holder is to bring is read when the holder does not") {
  Arrivals arrivals(3, 0, 2);
  arrivals.expect(0, 2);
  const Arrivals::Reading announced{ready(0, 0, {7, 8, 9}), "p0", {}};
  CHECK(arrivals.expects(announced.ready));
  CHECK_FALSE(arrivals.expects(ready(1, 2, {9})));
  for (int i = 0; i < 3; ++i) arrivals.keep(announced);  // one announcement is kept, however often it comes
  CHECK(read(arrivals, 1, announced.ready) == 1);
  arrivals.ended(1, true);
  CHECK(arrivals.missing() == 5);
  arrivals.brought(0, std::vector<wire::LeasedBlock>{{.layer_crcs = {21, 22}}});
  CHECK(arrivals.missing() == 3);
  CHECK(arrivals.crcs(0) == std::vector<uint32_t>{21, 22});
  const auto kept = arrivals.give_up(1, 2);
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].ready == ready(0, 0, {7, 8}));
  CHECK(read(arrivals, 2, kept[0].ready) == 1);
  arrivals.ended(2, true);
  CHECK(arrivals.missing() == 2);
  CHECK(arrivals.crcs(1)[0] == 8);
  CHECK(arrivals.give_up(1, 1).empty());
  arrivals.check();
}

TEST_CASE("node/arrivals: an announcement of a block that is still expected can be given back") {
  Arrivals arrivals(2, 0, 1);
  arrivals.expect(0, 1);
  arrivals.expect(1, 2);
  const Arrivals::Reading announced{ready(0, 0, {7, 8}), "p0", {}};
  arrivals.keep(announced);
  const auto kept = arrivals.give_up(0, 1);
  REQUIRE(kept.size() == 1);
  arrivals.keep(kept[0]);
  CHECK(read(arrivals, 1, kept[0].ready) == 1);
  REQUIRE(arrivals.give_up(1, 2).size() == 1);
  CHECK(read(arrivals, 2, kept[0].ready) == 1);
}

TEST_CASE(
    "node/arrivals: announcements that name an extent again and again are kept once, with what the first one says") {
  constexpr uint32_t kBlocks = 40;
  Arrivals arrivals(kBlocks, 0, 2);
  arrivals.expect(0, kBlocks);
  for (uint32_t layer = 0; layer < 2; ++layer)
    for (uint32_t reach = 0; reach <= kBlocks / 2; ++reach) {  // from the middle on, one more block on each side
      std::vector<uint32_t> crcs(size_t{2} * reach, 100 + reach);
      arrivals.keep({ready(layer, kBlocks / 2 - reach, crcs), "p0", {}});
    }
  size_t extents = 0;
  const auto kept = arrivals.give_up(0, kBlocks);
  for (const Arrivals::Reading& run : kept) {
    extents += run.ready.extents.size();
    CHECK(read(arrivals, extents, run.ready) == run.ready.extents.size());
    arrivals.ended(extents, true);
  }
  CHECK(extents == size_t{2} * kBlocks);
  CHECK(arrivals.missing() == 0);
  CHECK(arrivals.crcs(0) == std::vector<uint32_t>(2, 100 + kBlocks / 2));
  CHECK(arrivals.crcs(kBlocks / 2) == std::vector<uint32_t>(2, 101));
  arrivals.check();
}

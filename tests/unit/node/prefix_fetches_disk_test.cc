// Fetches of missing prefix blocks of which some are on the node's own disk.

#include "fetch_bench.h"

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::Fallback;

TEST_CASE("node/prefix_fetches: a holder sends its blocks while this node's disk brings those before them") {
  FetchBench b;
  b.find_on_disk(2);
  b.start({{"p0", instance(1), 2, 1, 0}});
  const auto loads = all<DiskLoad>(b.out);
  REQUIRE(loads.size() == 2);
  CHECK(b.fetches.may_bring("r", 1));
  CHECK(b.fetches.may_bring("r", 2));
  const wire::LeaseRequest asked = b.asked("p0");
  CHECK(asked.hashes == std::vector<BlockHash>{b.hashes[2]});
  SUBCASE("the disk ends last: the fetch has cost no time of its own") {
    b.ends(b.read_of(b.grant_for(asked, 1)));
    CHECK(b.pages.size() == 0);
    b.now += 3ms;
    for (const auto& load : loads) b.loaded(load);
    CHECK(b.fetches.outcome("r").ms(kNever) == 0);
  }
  SUBCASE("the holder ends last") {
    const Read read = b.read_of(b.grant_for(asked, 1));
    b.now += 3ms;
    for (const auto& load : loads) b.loaded(load);
    CHECK(b.pages.size() == 2);
    CHECK_FALSE(b.fetches.done("r"));
    b.now += 4ms;
    b.ends(read);
    CHECK(b.fetches.outcome("r").ms(kNever) == doctest::Approx(4));
  }
  CHECK(b.fetches.done("r"));
  CHECK(b.pages.size() == 3);
  CHECK(b.fetches.outcome("r").disk_blocks == 2);
  CHECK(b.fetches.outcome("r").blocks == 1);
  CHECK(b.fetches.outcome("r").load_ms == doctest::Approx(3));
  CHECK(b.fetches.outcome("r").fallback == Fallback::none);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
  CHECK(b.disk.idle());
}

TEST_CASE("node/prefix_fetches: blocks that the disk does not bring are read from a holder, or end the prefix") {
  FetchBench b;
  b.find_on_disk(2);
  bool has_other = false, is_late = false;
  SUBCASE("the disk is late, and another holder has them") {
    has_other = is_late = true;
  }
  SUBCASE("the disk is late, and no other holder has them") {
    is_late = true;
  }
  SUBCASE("a block is damaged, and another holder has it") {
    has_other = true;
  }
  SUBCASE("a block is damaged, and no other holder has it") {}
  std::vector<wire::Source> sources = {{"p0", instance(1), 2, 1, 0}};
  if (has_other) sources.push_back({"c0", instance(7), 0, 2, 0});
  b.start(sources);
  const auto loads = all<DiskLoad>(b.out);
  REQUIRE(loads.size() == 2);
  const Read behind = b.read_of(b.grant_for(b.asked("p0"), 1));
  b.ends(behind);
  b.out.clear();
  b.loaded(loads[0]);
  if (is_late) {
    b.now += 5s;
    b.fetches.on_tick(b.now, b.out);
    CHECK(b.fetches.outcome("r").fallback == Fallback::disk);
    REQUIRE(b.fetches.outcome("r").given_up.size() >= 1);
    CHECK(b.fetches.outcome("r").given_up[0].node.empty());
  }
  b.loaded(loads[1], is_late ? Code::io : Code::corrupt);
  CHECK(b.pages.size() == 1);
  CHECK(b.fetches.done("r") == !has_other);
  if (has_other) {
    const wire::LeaseRequest asked = b.asked("c0");
    CHECK(asked.hashes == std::vector<BlockHash>{b.hashes[1]});
    b.ends(b.read_of(b.grant_for(asked, 1)));
  }
  CHECK(b.fetches.done("r"));
  CHECK(b.pages.size() == (has_other ? 3 : 1));
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
  CHECK(b.owned() == 0);
  CHECK(b.disk.idle());
}

TEST_CASE("node/prefix_fetches: a holder's part leaves the pages that the blocks on disk will still take") {
  FetchBench b(UINT64_MAX, 1);  // one load at a time
  b.find_on_disk(2);
  auto own = b.shelf.pool.allocate(6);  // two pages are left, one for each load
  REQUIRE_OK(own);
  b.start({{"p0", instance(1), 2, 1, 0}});
  const auto first = all<DiskLoad>(b.out);
  REQUIRE(first.size() == 1);
  CHECK(b.on_grant(b.grant_for(b.asked("p0"), 1)));
  CHECK(all<Read>(b.out).empty());
  SUBCASE("a page comes free: the part is read beside the last load") {
    b.shelf.pool.release(std::span(*own).first(1));
    own->erase(own->begin());
    b.loaded(first[0]);
    const auto reads = all<Read>(b.out);
    REQUIRE(reads.size() == 1);
    b.loaded(all<DiskLoad>(b.out).at(0));
    b.ends(reads[0]);
    CHECK(b.pages.size() == 3);
  }
  SUBCASE("none comes free: the prefix ends with the blocks on disk") {
    b.loaded(first[0]);
    CHECK(b.fetches.outcome("r").fallback == Fallback::no_pages);
    b.loaded(all<DiskLoad>(b.out).at(0));
    CHECK(b.pages.size() == 2);
  }
  CHECK(b.fetches.done("r"));
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
  b.shelf.pool.release(*own);
  CHECK(b.owned() == 0);
}

TEST_CASE("node/prefix_fetches: with no page free for a block on disk the fetch goes on at once") {
  FetchBench b;
  b.find_on_disk(1);
  auto own = b.shelf.pool.allocate(8);
  REQUIRE_OK(own);
  SUBCASE("to another holder") {
    b.start({{"p0", instance(1), 0, 1, 0}});
    CHECK_FALSE(b.fetches.done("r"));
    CHECK(b.asked("p0").hashes == std::vector<BlockHash>{b.hashes[0]});
  }
  SUBCASE("to its end") {
    b.start({});
    CHECK(b.fetches.done("r"));
  }
  CHECK(b.disk.idle());
  b.fetches.end("r", b.out);
  b.shelf.pool.release(*own);
}

// Lookups by RDMA READs of the table that another node publishes. Runs inside scripts/rdma-vm.
#include <algorithm>

#include "count.h"
#include "unit/host/table_bench.h"

namespace table_reads_test {

using namespace mc;
using namespace mc::host;
using namespace mc::host::table_bench;

namespace {

struct RdmaEnds : TableEnds {
  RdmaEnds() : TableEnds("rdma", 100, "rxe1", "rxe0") {}
};

}  // namespace

TEST_CASE("rdma/table_reads: lookups by RDMA READs find what the table has") {
  RdmaEnds ends;
  check_lookups(ends, 20);
}

TEST_CASE("rdma/table_reads: a table that changes meanwhile yields no block where it never was") {
  RdmaEnds ends;
  const int rounds = test::count(40, 2000);
  CHECK(check_changing_table(ends, rounds) > 0);
  MESSAGE("lookups of a torn table: ", ends.reads->torn());
}

TEST_CASE("rdma/table_reads: a node looks up few blocks by reads without a call, and many or torn ones by a call") {
  RdmaEnds ends;
  ends.table->apply({.hash = block_of(3)});
  std::vector<node::Send> by_control;
  const auto control = [&](const node::Send& send) { by_control.push_back(send); };
  LeaseChannels leases(*ends.reader.plane, LeaseBy::channel, control);
  const auto look = [&](std::vector<BlockHash> hashes) {
    leases.look_up(ends.lookup(std::move(hashes)));
    std::optional<node::Event> event;
    ends.turn_until([&] { return (event = leases.next()).has_value(); });
    return std::get<node::LookedUp>(*event);
  };
  const node::LookedUp few = look(blocks_of(2, 3));
  REQUIRE(few.code == Code::ok);
  CHECK(few.held == std::vector{wire::HeldIn::none, wire::HeldIn::memory, wire::HeldIn::none});
  CHECK(leases.tables_read() == 1);
  CHECK(leases.carrier().stats().lookups_asked == 0);
  CHECK(look(blocks_of(0, TableReads::kBlocksMax + 1)).code == Code::busy);  // no channel is open yet
  CHECK(leases.carrier().stats().lookups_asked == 1);
  std::ranges::fill(ends.memory.bytes(), std::byte{0xff});
  CHECK(look(blocks_of(2, 3)).code != Code::ok);  // the holder has no channels
  CHECK(leases.reads().torn() == 1);
  CHECK(leases.carrier().stats().lookups_asked == 2);
  CHECK(leases.tables_read() == 1);
}

}  // namespace table_reads_test

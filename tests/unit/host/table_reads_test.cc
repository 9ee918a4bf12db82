// Lookups by reads of a published table, over the transports that every machine has. tests/rdma/host has the same over
// RDMA.
#include <algorithm>

#include "table_bench.h"

namespace table_reads_test {

using namespace mc;
using namespace mc::host;
using namespace mc::host::table_bench;

TEST_CASE("host/table_reads: lookups by reads find what the table has") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    TableEnds ends(transport);
    check_lookups(ends, 60);
  }
}

TEST_CASE("host/table_reads: a table that changes meanwhile yields no block where it never was") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    TableEnds ends(transport);
    CHECK(check_changing_table(ends, 200) > 0);
  }
}

TEST_CASE("host/table_reads: what is too large, second at once or no table is refused, and garbage costs few reads") {
  TableEnds ends("shm");
  const auto starts = [&](std::vector<BlockHash> hashes, const wire::BufferInfo& buffer) {
    return ends.reads->start(ends.lookup(std::move(hashes)), ends.peer(), buffer, clock_now());
  };
  CHECK_FALSE(starts(blocks_of(0, TableReads::kBlocksMax + 1), ends.published()));
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{256}, uint64_t{768}, uint64_t{1} << 40}) {
    wire::BufferInfo wrong = ends.published();
    wrong.length = bytes;
    CHECK_FALSE(starts(blocks_of(0, 1), wrong));
  }
  REQUIRE(starts(blocks_of(0, 1), ends.published()));
  CHECK_FALSE(starts(blocks_of(0, 1), ends.published()));
  std::optional<TableReads::Ended> ended;
  ends.turn_until([&] { return (ended = ends.reads->take()).has_value(); });
  CHECK(ended->held == std::vector<wire::HeldIn>{wire::HeldIn::none});
  std::ranges::fill(ends.memory.bytes(), std::byte{0xff});
  CHECK_FALSE(ends.look(blocks_of(0, 1)).has_value());
  CHECK(ends.reads->torn() == 1);  // of 16 torn copies
}

TEST_CASE("host/table_reads: a lookup ends without an answer when the buffer or the holder is gone") {
  TableEnds ends("tcp");
  wire::BufferInfo other = ends.published();
  other.id += 1000;
  REQUIRE(ends.reads->start(ends.lookup(blocks_of(0, 2)), ends.peer(), other, clock_now()));
  std::optional<TableReads::Ended> ended;
  ends.turn_until([&] { return (ended = ends.reads->take()).has_value(); });
  CHECK_FALSE(ended->held.has_value());
  const wire::BufferInfo table = ends.published();
  ends.table.reset();
  ends.holder.plane.reset();
  REQUIRE(ends.reads->start(ends.lookup(blocks_of(0, 2)), ends.peer(), table, clock_now() + Pauses::kMin));
  ends.turn_until([&] { return (ended = ends.reads->take()).has_value(); });
  CHECK_FALSE(ended->held.has_value());
}

TEST_CASE("host/table_reads: all rounds of a lookup share one time, however often the table is torn") {
  TableEnds ends("tcp", 100, "", "", {.delay = 1, .delay_for = 300ms});
  std::ranges::fill(ends.memory.bytes(), std::byte{0xff});
  REQUIRE(ends.reads->start(ends.lookup(blocks_of(0, 2)), ends.peer(), ends.published(), clock_now() - 1500ms));
  std::optional<TableReads::Ended> ended;
  ends.turn_until([&] { return (ended = ends.reads->take()).has_value(); });
  CHECK_FALSE(ended->held.has_value());
  const uint64_t rounds = ends.reader.plane->engine().counters().batches_submitted;
  CHECK(rounds >= 1);
  CHECK(rounds <= 2);  // half a second was left, and a round takes more than half of that
}

TEST_CASE("host/table_reads: a holder that did not answer is not read before its pause is over, each one longer") {
  TableEnds ends("tcp");
  wire::BufferInfo other = ends.published();
  other.id += 1000;
  const auto starts = [&](const wire::BufferInfo& buffer, TimePoint now) {
    const bool started = ends.reads->start(ends.lookup(blocks_of(0, 2)), ends.peer(), buffer, now);
    if (started) ends.turn_until([&] { return ends.reads->take().has_value(); });
    return started;
  };
  const TimePoint begin = clock_now();
  REQUIRE(starts(other, begin));
  const TimePoint first_end = clock_now() + Pauses::kMin;
  CHECK_FALSE(starts(ends.published(), begin + Pauses::kMin / 2));
  REQUIRE(starts(other, first_end));
  CHECK_FALSE(starts(ends.published(), begin + 2 * Pauses::kMin - 1ms));
  const TimePoint second_end = clock_now() + 2 * Pauses::kMin;
  REQUIRE(starts(ends.published(), second_end));  // the holder answers, which ends its pauses
  CHECK(starts(ends.published(), begin));
  REQUIRE(starts(other, begin));
  ends.reads->forget([&](const InstanceId& holder) { return holder == ends.holder.instance; });
  CHECK(starts(ends.published(), begin));
}

TEST_CASE("host/table_reads: a stop ends the lookup under way at once, although no answer comes") {
  TableEnds ends("tcp", 100, "", "", {.drop_completion = 1});
  const TimePoint begin = clock_now();
  REQUIRE(ends.reads->start(ends.lookup(blocks_of(0, 2)), ends.peer(), ends.published(), begin + 60s));
  ends.reads->stop(begin + 10s);
  ends.reader.plane->watch({});
  ends.reads.reset();
  CHECK(clock_now() - begin < 9s);
}

}  // namespace table_reads_test

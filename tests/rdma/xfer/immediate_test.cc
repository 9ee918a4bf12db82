// WRITEs with an immediate over queue pairs: credit, and exactly once through paths that fail.
#include "unit/xfer/immediate.h"

#include "machine.h"

namespace immediate_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

TEST_CASE("rdma/xfer: an immediate is told when every byte of its write is in place") {
  RdmaPair pair(Pair::kDefaultBytes);
  check_in_place(pair);
}

TEST_CASE("rdma/xfer: each of many immediates is told once, and never finds the peer without a receive") {
  Options holder = holder_options();
  holder.events_max = 8;
  // A peer without a receive is a path fault, each time. So is a peer that gets no processor for a second.
  uint64_t faults = 1;
  for (int turn = 0; turn < 3 && faults > 0; ++turn) {
    RdmaPair pair(Pair::kDefaultBytes, holder);
    check_each_once(pair, 500);
    faults = failures(pair.reader, "rdma: path fault");
  }
  CHECK(faults == 0);
}

TEST_CASE("rdma/xfer: immediates that wait for credit hold up no other request of their class") {
  Options holder = holder_options("rxe1");
  holder.events_max = 8;
  for (const int lanes : {1, 2}) {
    CAPTURE(lanes);
    Options reader = reader_options("rxe0");
    reader.rdma_lanes = holder.rdma_lanes = lanes;
    RdmaPair pair(Pair::kDefaultBytes, holder, reader);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 300; ++i) requests.push_back(telling(pair.write(0, 0, 512), i));
    auto batch = pair.reader->submit(requests, in(kLong));
    REQUIRE_OK(batch);
    // the holder takes no event: of the immediates no more than its credit and its queue are told
    CHECK(pair.reader.run({{pair.read(65536, 65536, size_t{1} << 20)}}) == Code::ok);
    CHECK(pair.reader.run({{pair.write(0, 65536, size_t{256} << 10)}}) == Code::ok);
    CHECK(pair.holder->counters().immediates_received < 150);
    std::vector<Event> events;
    size_t told = 0;
    while (told < requests.size() && pair.holder->poll(events, in(kLong)) > 0) {
      for (const Event& event : std::exchange(events, {})) told += event.kind == Event::Kind::immediate;
    }
    CHECK(told == requests.size());
    CHECK(pair.reader.done(*batch).code == Code::ok);
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
  }
}

TEST_CASE("rdma/xfer: a write that is refused tells no immediate") {
  RdmaPair pair;
  check_refused(pair);
}

TEST_CASE("rdma/xfer: immediates on a link that is cut are told once, and none of their writes fails") {
  RdmaPair pair;
  std::map<uint32_t, int> told;
  uint32_t next = 0;
  std::vector<Event> events;
  const auto hear = [&](size_t count) {
    return until([&] {
      events.clear();
      (void)pair.holder->poll(events, in(1ms));
      for (const Event& event : events)
        if (event.kind == Event::Kind::immediate) ++told[event.immediate];
      return told.size() >= count;
    });
  };
  for (int round = 0; round < count(2, 30); ++round) {
    const std::string cut = round % 2 == 0 ? "v0" : "v3";
    std::vector<Request> requests;
    for (int i = 0; i < 256; ++i) requests.push_back(telling(pair.write(0, 0, i % 4 == 0 ? 65536 : 512), next++));
    auto batch = pair.reader->submit(requests, in(kLong));
    REQUIRE_OK(batch);
    REQUIRE(hear(next - 200));
    set_link(cut, false);
    REQUIRE(hear(next));
    const Event done = pair.reader.done(*batch);
    CHECK_MESSAGE(done.code == Code::ok, done.text);
    REQUIRE(pair.reader->close(*batch, in(kLong)).has_value());
    set_link(cut, true);
    const std::string back = round % 2 == 0 ? "v0" : "v2";
    CHECK(carries(back, size_t{1} << 17,
                  [&] { (void)pair.reader.run({{pair.write(0, 0, pair.local.bytes().size())}}); }));
  }
  for (const auto& each : told) CHECK_MESSAGE(each.second == 1, each.first);
  CHECK(told.size() == next);
  CHECK(pair.reader->counters().batches_failed == 0);
  CHECK(pair.reader->counters().peers_lost == 0);
}

}  // namespace immediate_test

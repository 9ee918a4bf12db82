// The parts of the engine that stand alone: slices, lanes, the queue of a route, batches, commands, events, peers.
#include <array>

#include "test.h"
#include "xfer/batch_table.h"
#include "xfer/commands.h"
#include "xfer/directory.h"
#include "xfer/events.h"
#include "xfer/lanes.h"
#include "xfer/route_queue.h"

using namespace mc;
using namespace mc::xfer;

namespace {

constexpr SliceSizes kSizes{.least = 4096, .most = 16384};

struct Bench {
  Tally tally;
  SliceTable slices{tally};
  RouteQueue queue{slices, kSizes};
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  OpenBatch batch;

  uint32_t add(size_t bytes, TransferClass transfer_class = TransferClass::bulk,
               std::optional<uint32_t> immediate = {}) {
    batch.requests.push_back({.op = Op::write,
                              .local = std::span(memory).first(bytes),
                              .transfer_class = transfer_class,
                              .immediate = immediate});
    batch.states.emplace_back();
    batch.results.emplace_back();
    ++batch.unfinished;
    const auto index = static_cast<uint32_t>(batch.requests.size() - 1);
    return index;
  }
  void push(uint32_t request) { queue.push({&batch, request}); }
  LaneOffer lane(uint64_t wanted = UINT64_MAX, size_t tells = SIZE_MAX) const {
    return {.lane_count = 1, .wanted = wanted, .tells = tells, .now = TimePoint{} + 1s};
  }
};

}  // namespace

TEST_CASE("xfer/slices: a number of an earlier attempt finds no slice") {
  Bench bench;
  const uint32_t index = bench.slices.make(bench.batch, bench.add(8192), 0, 8192);
  const uint64_t first = bench.slices.id(index);
  uint32_t found = 0;
  CHECK(bench.slices.find(first, found) == nullptr);  // not posted yet
  bench.slices.posted(index, EndpointId{1}, 0);
  REQUIRE(bench.slices.find(first, found) != nullptr);
  CHECK(found == index);
  bench.slices.retry(index);
  bench.slices.posted(index, EndpointId{1}, 0);
  CHECK(bench.slices.find(first, found) == nullptr);
  CHECK(bench.slices.find(bench.slices.id(index), found) != nullptr);
  CHECK(bench.slices[index].attempts == 2);
  bench.slices.release(index);
  CHECK(bench.slices.find(bench.slices.id(index), found) == nullptr);
  CHECK(bench.slices.count() == 0);
  CHECK(bench.batch.slices == 0);
}

TEST_CASE("xfer/slices: quarantined bytes are counted until the slice is released") {
  Bench bench;
  const uint32_t index = bench.slices.make(bench.batch, bench.add(8192), 0, 8192);
  bench.slices.posted(index, EndpointId{1}, 0);
  bench.slices.quarantine(index);
  CHECK(bench.batch.quarantined == 8192);
  CHECK(bench.tally.get(Count::quarantined_bytes) == 8192);
  bench.slices.release(index);
  CHECK(bench.batch.quarantined == 0);
  CHECK(bench.tally.get(Count::quarantined_bytes) == 0);
  CHECK(bench.tally.get(Count::slices_in_flight) == 0);
}

TEST_CASE("xfer/route: the slices of a request cover it exactly") {
  Bench bench;
  const uint32_t request = bench.add(100'000);
  bench.push(request);
  uint64_t at = 0;
  while (const auto index = bench.queue.next(bench.lane())) {
    const SliceRecord& slice = bench.slices[*index];
    CHECK(slice.at == at);
    CHECK(slice.bytes <= kSizes.most);
    at += slice.bytes;
  }
  CHECK(at == 100'000);
  CHECK(bench.queue.idle());
}

TEST_CASE("xfer/route: a slice that failed is cut again for a slower lane") {
  Bench bench;
  bench.push(bench.add(16384));
  const auto first = bench.queue.next({.lane_count = 1, .wanted = UINT64_MAX, .tells = 0, .now = TimePoint{} + 1s});
  REQUIRE(first);
  bench.slices.posted(*first, EndpointId{1}, 0);
  const uint32_t bytes = bench.slices[*first].bytes;
  bench.slices.retry(*first);
  bench.queue.put_back(*first, false);
  uint64_t sum = 0;
  while (const auto next = bench.queue.next(bench.lane(4096))) {
    CHECK(bench.slices[*next].bytes <= 4096);
    sum += bench.slices[*next].bytes;
  }
  CHECK(sum == 16384);
  CHECK(bytes <= 16384);
}

TEST_CASE("xfer/route: an immediate waits for the other slices of its request and for a lane that takes it") {
  Bench bench;
  const uint32_t request = bench.add(8192, TransferClass::bulk, 7);
  bench.push(request);
  const auto first = bench.queue.next(bench.lane(4096));
  REQUIRE(first);
  CHECK_FALSE(bench.slices[*first].tells());
  CHECK_FALSE(bench.queue.next(bench.lane(4096)));  // its last slice is cut when the first is done
  bench.slices.release(*first);
  bench.push(request);
  CHECK_FALSE(bench.queue.next(bench.lane(4096, 0)));
  const auto last = bench.queue.next(bench.lane(4096, 1));
  REQUIRE(last);
  CHECK(bench.slices[*last].tells());
}

TEST_CASE("xfer/route: urgent requests go first") {
  Bench bench;
  bench.push(bench.add(4096));
  const uint32_t urgent = bench.add(4096, TransferClass::urgent);
  bench.push(urgent);
  const auto first = bench.queue.next(bench.lane());
  REQUIRE(first);
  CHECK(bench.slices[*first].request == urgent);
}

TEST_CASE("xfer/route: slices that no lane took wait in their order") {
  Bench bench;
  bench.push(bench.add(4096));
  bench.push(bench.add(4096));
  const RouteQueue::Turn turn = bench.queue.turn();
  std::vector<uint32_t> given;
  while (const auto next = bench.queue.next(bench.lane())) given.push_back(*next);
  REQUIRE(given.size() == 2);
  bench.queue.taken(turn, given, 0, TimePoint{} + 1s);
  CHECK(bench.queue.next(bench.lane()) == given[0]);
  CHECK(bench.queue.next(bench.lane()) == given[1]);
}

TEST_CASE("xfer/route: a dropped batch leaves nothing behind") {
  Bench bench;
  bench.push(bench.add(4096));
  bench.push(bench.add(4096, TransferClass::urgent, 1));
  bench.queue.drop(bench.batch);
  CHECK(bench.queue.idle());
}

TEST_CASE("xfer/lanes: work goes to the lane with the fewest bytes that may have room") {
  Lanes lanes;
  const EndpointId endpoint{5};
  lanes.add(endpoint, PeerId{1}, 0);
  lanes.up(endpoint, 2);
  const std::array up = {endpoint};
  CHECK(lanes.count(up) == 2);
  lanes.new_pass();
  const Lanes::Lane first = lanes.emptiest(up);
  REQUIRE(first.state != nullptr);
  Lanes::enter(*first.state, 100);
  const Lanes::Lane second = lanes.emptiest(up);
  REQUIRE(second.state != nullptr);
  CHECK(second.index != first.index);
  lanes.full(*second.state);
  CHECK(lanes.emptiest(up).index == first.index);
  lanes.pass(*first.state);
  CHECK(lanes.emptiest(up).state == nullptr);
  lanes.new_pass();
  CHECK(lanes.emptiest(up).index == first.index);
  lanes.room();
  CHECK(lanes.emptiest(up).index == second.index);
  CHECK(lanes.any_of(PeerId{1}));
  lanes.erase(endpoint);
  CHECK_FALSE(lanes.any_of(PeerId{1}));
}

TEST_CASE("xfer/batches: a batch is reported once as done and once as released") {
  Tally tally;
  BatchTable table(2, tally);
  auto batch = table.make();
  batch->id = table.reserve();
  OpenBatch& open = *batch;
  open.requests.resize(1);
  open.states.resize(1);
  open.results.resize(1);
  table.keep(std::move(batch));
  CHECK(table.results(open.id).empty());
  CHECK(table.cancel(open.id));
  CHECK_FALSE(table.cancel(open.id));
  CHECK(table.close(open.id, TimePoint{}).error().code == Code::busy);
  open.slices = 1;
  const auto done = table.report(open, false);
  REQUIRE(done);
  CHECK(done->kind == Event::Kind::batch_done);
  CHECK(done->quarantined);
  CHECK(table.results(open.id).size() == 1);
  CHECK_FALSE(table.report(open, false));
  CHECK(table.close(open.id, TimePoint{}).error().code == Code::busy);
  open.slices = 0;
  const auto released = table.report(open, true);
  REQUIRE(released);
  CHECK(released->kind == Event::Kind::batch_released);
  const BatchId id = open.id;
  CHECK(table.close(id, TimePoint{}));
  CHECK(table.close(id, TimePoint{}).error().code == Code::not_found);
  CHECK(tally.get(Count::batches_open) == 0);
}

TEST_CASE("xfer/batches: no more are open than may be") {
  Tally tally;
  BatchTable table(1, tally);
  auto batch = table.make();
  batch->id = table.reserve();
  CHECK(table.reserve() == BatchId::none);
  const BatchId id = batch->id;
  const Event event = table.keep_done(std::move(batch));
  CHECK(event.kind == Event::Kind::batch_done);
  CHECK(event.batch == id);
  CHECK(table.close(id, TimePoint{}));
  CHECK(table.reserve() != BatchId::none);
}

TEST_CASE("xfer/commands: a thread does not fall asleep while commands wait") {
  CommandQueue commands;
  REQUIRE(commands.open());
  std::vector<Command> taken;
  CHECK_FALSE(commands.take(taken));
  commands.push({.kind = Command::Kind::publish});
  CHECK_FALSE(commands.may_sleep());
  CHECK(commands.take(taken));
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].kind == Command::Kind::publish);
  CHECK(commands.may_sleep());
  commands.push({.kind = Command::Kind::stop});
  commands.awake();
  CHECK(commands.take(taken));
}

TEST_CASE("xfer/events: a queue that was full says when it has room") {
  EventQueue events(2);
  REQUIRE(events.open());
  events.push({.cookie = 1});
  CHECK_FALSE(events.full_hint());
  events.push({.cookie = 2});
  CHECK(events.full_hint());
  std::vector<Event> out;
  bool made_room = false;
  CHECK(events.poll(out, TimePoint{}, 1, made_room) == 1);
  CHECK(made_room);
  made_room = false;
  CHECK(events.poll(out, TimePoint{}, 64, made_room) == 1);
  CHECK_FALSE(made_room);
  CHECK(events.poll(out, TimePoint{}, 64, made_room) == 0);
  REQUIRE(out.size() == 2);
  CHECK(out[1].cookie == 2);
}

TEST_CASE("xfer/peers: an instance is one peer until it is disconnected") {
  PeerDirectory directory(2);
  InstanceId instance{};
  instance.bytes[0] = 1;
  const auto first = directory.add(instance);
  REQUIRE(first);
  CHECK(*directory.add(instance) == *first);
  CHECK(directory.admit(instance) == *first);
  directory.leave(*first);
  const auto second = directory.add(instance);
  REQUIRE(second);
  CHECK(*second != *first);
  CHECK(directory.add({}).error().code == Code::busy);
  directory.forget(*first);
  CHECK(directory.add({}));
}

TEST_CASE("xfer/peers: a peer that is not up takes no notify") {
  PeerDirectory directory(2);
  const auto peer = directory.add({});
  REQUIRE(peer);
  CHECK(directory.add_notify(*peer) == Code::peer_lost);
  directory.publish(*peer, {.up = true});
  CHECK(directory.route(*peer) == size_t{0});
  for (size_t i = 0; i < PeerDirectory::kNotifiesMax; ++i) CHECK(directory.add_notify(*peer) == Code::ok);
  CHECK(directory.add_notify(*peer) == Code::busy);
  directory.notifies_gone(*peer, 1);
  CHECK(directory.add_notify(*peer) == Code::ok);
}

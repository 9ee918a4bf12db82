#include "xfer/class_order.h"

#include "pair.h"

namespace class_order_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

TEST_CASE("xfer/class_order: urgent goes first, bulk after at most 10 ms without a turn, one slice a turn") {
  ClassOrder order;
  TimePoint now = TimePoint{} + 1000s;
  CHECK(order.next(false, true, now) == TransferClass::bulk);
  CHECK(order.next(true, true, now) == TransferClass::urgent);
  now += ClassOrder::kPromoteAfter - 1us;
  CHECK(order.next(true, true, now) == TransferClass::urgent);
  now += 1us;
  CHECK(order.next(true, true, now) == TransferClass::bulk);
  CHECK(order.next(true, true, now) == TransferClass::urgent);
}

TEST_CASE("xfer/class_order: bulk that comes late waits from its coming, and a turn no lane took was none") {
  ClassOrder order;
  TimePoint now = TimePoint{} + 1000s;
  CHECK(order.next(true, false, now) == TransferClass::urgent);
  now += 1s;
  CHECK(order.next(true, true, now) == TransferClass::urgent);
  now += ClassOrder::kPromoteAfter;
  const TimePoint since = order.bulk_since();
  CHECK(order.next(true, true, now) == TransferClass::bulk);
  order.restore(since);
  CHECK(order.next(true, true, now) == TransferClass::bulk);
}

TEST_CASE("xfer: an urgent read overtakes a bulk one that was submitted before, over every transport") {
  constexpr size_t kBytes = size_t{64} << 20;
  for (const std::string transport : {"tcp", "shm-engine"}) {
    CAPTURE(transport);
    Pair pair(transport, kBytes);
    int judged = 0;
    for (int round = 0; judged < 3; ++round) {
      REQUIRE(round < 100);
      Request first = pair.read(4096, 4096, kBytes - 4096);
      Request second = pair.read(0, 0, 4096);
      second.transfer_class = TransferClass::urgent;
      const TimePoint begin = in(Duration{});
      auto bulk = pair.reader->submit({&first, 1}, in(kLong));
      auto urgent = pair.reader->submit({&second, 1}, in(kLong));
      const bool at_once = in(Duration{}) - begin < 1ms;  // else the bulk one may be over before the urgent one comes
      REQUIRE_OK(bulk);
      REQUIRE_OK(urgent);
      const Event done = pair.reader.wait(Event::Kind::batch_done);
      if (at_once) {
        ++judged;
        CHECK(done.batch == *urgent);
      }
      CHECK(done.code == Code::ok);
      CHECK(pair.reader.done(done.batch == *urgent ? *bulk : *urgent).code == Code::ok);
      CHECK(pair.reader->close(*urgent, in(kLong)).has_value());
      CHECK(pair.reader->close(*bulk, in(kLong)).has_value());
    }
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  }
}

TEST_CASE("xfer: a stream of urgent reads does not stop a bulk one") {
  constexpr size_t kBytes = size_t{16} << 20;
  Pair pair("tcp", kBytes);
  const auto urgent = [&](size_t at) {
    Request request = pair.read(at, at, size_t{4} << 20);
    request.transfer_class = TransferClass::urgent;
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    return *batch;
  };
  std::vector<BatchId> stream = {urgent(0), urgent(size_t{4} << 20)};
  Request request = pair.read(size_t{8} << 20, 0, size_t{8} << 20);
  auto bulk = pair.reader->submit({&request, 1}, in(kLong));
  REQUIRE_OK(bulk);
  bool bulk_done = false;
  for (int i = 0; !bulk_done; ++i) {  // two urgent ones are always waiting
    const Event done = pair.reader.wait(Event::Kind::batch_done);
    CHECK(done.code == Code::ok);
    CHECK(pair.reader->close(done.batch, in(kLong)).has_value());
    bulk_done = done.batch == *bulk;
    if (bulk_done) break;
    std::erase(stream, done.batch);
    stream.push_back(urgent(i % 2 == 0 ? 0 : size_t{4} << 20));
  }
  for (const BatchId batch : stream) {
    CHECK(pair.reader.done(batch).code == Code::ok);
    CHECK(pair.reader->close(batch, in(kLong)).has_value());
  }
}

}  // namespace class_order_test

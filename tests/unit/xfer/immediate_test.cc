#include "immediate.h"

namespace immediate_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr const char* kTransports[] = {"tcp", "shm", "shm-engine"};

Options few_events() {
  Options options;
  options.events_max = 8;
  return options;
}

Options faulty() {
  Options options;
  options.faults = {.seed = 11, .fail_submit = 0.1, .fail_completion = 0.1, .lose_peer = 0.05};
  options.backoff_min = 1ms;
  return options;
}

/// Writes of a page each, with immediates 0, 1, ...
std::vector<Request> many_telling(Pair& pair, uint32_t count) {
  std::vector<Request> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(telling(pair.write(i % 64 * 4096, i % 64 * 4096, 4096), i));
  return out;
}

/// A peer that never has room for an immediate.
Options no_credit() {
  Options options;
  options.faults.immediates_max = 0;
  return options;
}

/// Other requests are served meanwhile, and nothing of the writes is left.
void check_others_go_on(Pair& pair) {
  CHECK(pair.reader.run({{pair.read(0, 4096, 65536)}}) == Code::ok);
  CHECK(equal(pair.local.bytes().first(65536), pair.kv.bytes().subspan(4096, 65536)));
  CHECK(pair.holder->counters().immediates_received == 0);
}

}  // namespace

TEST_CASE("xfer: an immediate is told when every byte of its write is in place") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport);
    check_in_place(pair);
  }
}

TEST_CASE("xfer: each of many immediates is told once to a peer that takes few events") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport, Pair::kDefaultBytes, few_events());
    check_each_once(pair, 3000);
  }
}

TEST_CASE("xfer: a write that is refused tells no immediate") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport);
    check_refused(pair);
  }
}

TEST_CASE("xfer: no immediate is told twice through lost connections and completions that lie") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport, Pair::kDefaultBytes, {}, faulty());
    check_at_most_once(pair, 200);
  }
}

TEST_CASE("xfer: immediates that wait for credit end at their deadline, and hold up nothing beside them") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport, Pair::kDefaultBytes, {}, no_credit());
    const auto requests = many_telling(pair, 20);
    const TimePoint deadline = in(30ms);
    auto batch = pair.reader->submit(requests, deadline);
    REQUIRE_OK(batch);
    check_others_go_on(pair);
    CHECK(pair.reader.done(*batch).code == Code::timeout);
    CHECK(in(Duration{}) >= deadline);
    REQUIRE(pair.reader->close(*batch, in(kLong)).has_value());
    check_others_go_on(pair);
    CHECK(pair.reader->counters().slices_in_flight == 0);
  }
}

TEST_CASE("xfer: immediates that wait for credit are cancelled at once") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport, Pair::kDefaultBytes, {}, no_credit());
    const auto requests = many_telling(pair, 20);
    auto batch = pair.reader->submit(requests, in(kLong));
    REQUIRE_OK(batch);
    check_others_go_on(pair);
    pair.reader->cancel(*batch);
    CHECK(pair.reader.done(*batch).code == Code::cancelled);
    REQUIRE(pair.reader->close(*batch, in(kLong)).has_value());
    check_others_go_on(pair);
    CHECK(pair.reader->counters().slices_in_flight == 0);
  }
}

TEST_CASE("xfer: immediates that wait for credit when their connection is lost are told once over the next") {
  constexpr uint32_t kCount = 100;
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Options options;
    options.faults = {.seed = 5, .lose_peer = 0.1, .immediates_max = 1};
    options.backoff_min = 1ms;
    Pair pair(transport, Pair::kDefaultBytes, {}, options);
    const auto requests = many_telling(pair, kCount);
    const uint64_t connects = pair.reader->counters().connects;
    auto batch = pair.reader->submit(requests, in(kLong));
    REQUIRE_OK(batch);
    (void)pair.reader.done(*batch);
    // A connection is lost in place of a post: at most the one in flight is in doubt, all others wait.
    uint32_t well = 0;
    std::set<uint32_t> told, expected;
    const auto results = pair.reader->results(*batch);
    for (uint32_t i = 0; i < kCount; ++i)
      if (results[i].code == Code::ok) ++well, expected.insert(i);
    CHECK(well > kCount / 2);
    CHECK(pair.reader->counters().connects > connects);
    while (!std::includes(told.begin(), told.end(), expected.begin(), expected.end()))
      REQUIRE(told.insert(pair.holder.wait(Event::Kind::immediate).immediate).second);
    REQUIRE(pair.reader->close(*batch, in(kLong)).has_value());
  }
}

TEST_CASE("xfer: a read is not kept waiting by a stream of immediates, though its lane takes one slice at a time") {
  Options options;
  options.faults.slices_max = 1;
  options.tcp_streams = 1;
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    bool at_once = false;  // else the stream may be over before the read comes
    for (int round = 0; !at_once; ++round) {
      REQUIRE(round < 100);
      Pair pair(transport, Pair::kDefaultBytes, {}, options);
      const Request request = pair.read(0, 0, 4096);
      auto stream = pair.reader->submit(many_telling(pair, 5000), in(kLong));
      const TimePoint begin = in(Duration{});
      auto read = pair.reader->submit({&request, 1}, in(kLong));
      at_once = in(Duration{}) - begin < 1ms;
      REQUIRE_OK(stream);
      REQUIRE_OK(read);
      const Event done = pair.reader.wait(Event::Kind::batch_done);
      if (at_once) CHECK(done.batch == *read);
      pair.reader->cancel(*stream);
      REQUIRE(pair.reader->close(*stream, in(kLong)).has_value());
    }
  }
}

}  // namespace immediate_test

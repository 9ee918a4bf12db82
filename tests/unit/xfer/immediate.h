// Promises of every transport about writes with an immediate, as bodies of tests: over tcp and shm here, over rdma in
// the virtual machine.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "pair.h"

namespace mc::xfer::test {

inline Request telling(Request request, uint32_t immediate) {
  request.immediate = immediate;
  return request;
}

/// The peer hears the number when all bytes are there, however many slices they took.
inline void check_in_place(Pair& pair) {
  uint32_t number = 0xfffffffd;
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{65536}, size_t{3} << 20, size_t{1} << 20}) {
    fill(pair.local.bytes(), number);
    const Request request = telling(pair.write(4096, 8192, bytes), number);
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    const Event told = pair.holder.wait(Event::Kind::immediate);
    CHECK(told.immediate == number);
    CHECK(equal(pair.landing.bytes().subspan(8192, bytes), pair.local.bytes().subspan(4096, bytes)));
    CHECK(pair.reader.done(*batch).code == Code::ok);
    REQUIRE(pair.reader->close(*batch, in(kLong)).has_value());
    ++number;  // over the largest to 0 and 1
  }
}

/// Each of many is told once, although the peer takes few events at a time (events_max), and notifies go on.
inline void check_each_once(Pair& pair, uint32_t count) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t bytes = i % 7 == 0 ? 70000 : 64 + i % 3;
    requests.push_back(telling(pair.write(i % 11 * 131072, i % 13 * 131072, bytes), i));
  }
  auto batch = pair.reader->submit(requests, in(kLong));
  REQUIRE_OK(batch);
  std::set<uint32_t> told;
  size_t notifies = 0;
  std::vector<Event> events;
  while (told.size() < count || notifies < 20) {
    if (told.size() % 16 == 0 && notifies < 20) (void)pair.reader->notify(pair.peer, {});
    events.clear();
    REQUIRE(pair.holder->poll(events, in(kLong), 1) == 1);
    if (events[0].kind == Event::Kind::notify) ++notifies;
    if (events[0].kind == Event::Kind::immediate) CHECK(told.insert(events[0].immediate).second);
  }
  CHECK(*told.rbegin() == count - 1);
  CHECK(pair.reader.done(*batch).code == Code::ok);
  REQUIRE(pair.reader->close(*batch, in(kLong)).has_value());
  CHECK(pair.holder->counters().immediates_received == count);
}

/// A write that is refused tells nothing.
inline void check_refused(Pair& pair) {
  const auto refused = [&](Request request) {
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    return !batch && batch.error().code == Code::invalid;
  };
  CHECK(refused(telling(pair.read(0, 0, 64), 1)));
  CHECK(refused(telling(pair.write(0, 0, 0), 1)));
  CHECK(pair.reader.run({{telling(pair.write(0, pair.landing.size() - 8, 64), 2)}}) == Code::invalid);
  Request request = telling(pair.write(0, 0, 64), 3);
  request.buffer = pair.kv_id;
  CHECK(pair.reader.run({{request}}) == Code::invalid);
  CHECK(pair.reader.run({{telling(pair.write(0, 0, 64), 4)}}) == Code::ok);
  CHECK(pair.holder.wait(Event::Kind::immediate).immediate == 4);
  CHECK(pair.holder->counters().immediates_received == 1);
}

/// Connections die under them, and completions lie (the reader's FaultPlan): none is ever told twice, and what
/// ended well was told.
inline void check_at_most_once(Pair& pair, uint32_t count) {
  std::map<uint32_t, int> told;
  std::set<uint32_t> well;
  std::vector<Event> events;
  const auto take = [&](TimePoint until) {
    events.clear();
    const size_t taken = pair.holder->poll(events, until);
    for (const Event& event : events)
      if (event.kind == Event::Kind::immediate) ++told[event.immediate];
    return taken > 0;
  };
  size_t failed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const Request request = telling(pair.write(0, 0, i % 5 == 0 ? 300000 : 4096), i);
    std::string text;
    const Code code = pair.reader.run({&request, 1}, nullptr, &text);
    if (code == Code::ok)
      well.insert(i);
    else
      CHECK_MESSAGE(code == Code::peer_lost, text);
    failed += code != Code::ok;
    (void)take({});
  }
  // not the counts: one that failed may have been told
  const auto heard = [&](uint32_t number) { return told.contains(number); };
  while (!std::all_of(well.begin(), well.end(), heard) && take(in(kLong))) {
  }
  for (const auto& each : told) CHECK_MESSAGE(each.second == 1, each.first);  // clang 14 captures no structured binding
  for (const uint32_t number : well) CHECK_MESSAGE(told.contains(number), number);
  CHECK(failed > 0);
  CHECK(well.size() > count / 3);
}

}  // namespace mc::xfer::test

#include "ctl/hub_events.h"
#include "ctl/hub_requests.h"
#include "test.h"

using namespace mc;
using namespace mc::ctl;

namespace {

TimePoint at(int64_t ms) {
  return TimePoint{} + std::chrono::milliseconds(ms);
}

std::vector<uint64_t> ids(const std::vector<Requests::Request>& requests) {
  std::vector<uint64_t> out;
  for (const auto& r : requests) out.push_back(r.id);
  return out;
}

}  // namespace

TEST_CASE("ctl/requests: an answer counts once, and only on the link of its request") {
  Requests requests;
  requests.add(1, 7, at(100));
  CHECK_FALSE(requests.answered(1, 8));
  CHECK_FALSE(requests.answered(3, 7));
  CHECK(requests.answered(1, 7));
  CHECK_FALSE(requests.answered(1, 7));
  CHECK_EQ(requests.size(), 0);
}

TEST_CASE("ctl/requests: a lost link takes its own requests along, in the order they were made") {
  Requests requests;
  requests.add(5, 1, at(1));
  requests.add(1, 1, at(9));
  requests.add(3, 2, at(1));
  CHECK_EQ(ids(requests.take(1)), std::vector<uint64_t>{1, 5});
  CHECK(requests.take(1).empty());
  CHECK_EQ(requests.size(), 1);
}

TEST_CASE("ctl/requests: a request expires at its deadline and not before") {
  Requests requests;
  CHECK(requests.next_expiry() == kNever);
  requests.add(1, 1, at(20));
  requests.add(3, 1, at(10));
  CHECK(requests.next_expiry() == at(10));
  CHECK(requests.take_expired(at(9)).empty());
  CHECK_EQ(ids(requests.take_expired(at(10))), std::vector<uint64_t>{3});
  CHECK_EQ(ids(requests.take_expired(at(30))), std::vector<uint64_t>{1});
}

TEST_CASE("ctl/events: events beyond the ring's room wait in order, and the counters come with each") {
  Shared shared({.ring = 4});
  shared.event_ready = EventFd::open().value();
  Events events(shared);
  const size_t room = shared.events.capacity();
  for (size_t i = 0; i < room + 3; ++i) {
    ++events.stats.received;
    events.emit(SendFailed{i, 1, {}});
  }
  CHECK_FALSE(events.flowing());
  CHECK_EQ(shared.stats.received, room + 3);
  for (size_t i = 0; i < room + 3; ++i) {
    const auto event = shared.events.pop();
    REQUIRE(event);
    CHECK_EQ(std::get<SendFailed>(*event).id, i);
    events.flush();
  }
  CHECK(events.flowing());
  CHECK_FALSE(shared.events.pop());
}

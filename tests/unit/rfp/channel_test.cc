// One channel without threads: retries, the second read, the switch, and garbage from either side.
#include "unit/rfp/channel.h"

#include <cstring>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using rfp::ClientOptions;
using rfp::test::Channel;

namespace {

const wire::RfpGeometry kGeometry{.slots = 4, .request_bytes = 128, .response_bytes = 512};

std::vector<std::byte> bytes_of(uint64_t seed, size_t size) {
  Rng rng(seed);
  std::vector<std::byte> out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.next());
  return out;
}

/// Ends the oldest call and compares its response.
void check_answer(Channel& channel, uint64_t sequence, const std::vector<std::byte>& wanted, bool pushed = false) {
  const auto answer = channel.client.take(channel.client_memory());
  REQUIRE(answer.has_value());
  CHECK(answer->sequence == sequence);
  CHECK(answer->code == Code::ok);
  CHECK(answer->pushed == pushed);
  CHECK(std::equal(answer->payload.begin(), answer->payload.end(), wanted.begin(), wanted.end()));
  channel.client.finish(sequence);
}

/// A call whose handler takes `time`, with `early` fetches before the response is there.
uint64_t run_call(Channel& channel, int early, Duration time) {
  const uint64_t sequence = channel.call(bytes_of(1, 8));
  channel.steps(1);
  const auto request = channel.poll();
  REQUIRE(request.has_value());
  for (int i = 0; i < early; ++i) {
    channel.now = std::max(channel.now, channel.client.due() == kNever ? channel.now : channel.client.due());
    channel.steps(1);
  }
  channel.now += time;
  channel.publish(sequence, bytes_of(sequence, 16));
  return sequence;
}

}  // namespace

TEST_CASE("rfp/channel: a response that fits needs one read, and a longer one needs two") {
  for (const size_t size : {0, 1, 32, 224, 225, 300, 480}) {
    Channel channel(kGeometry);
    const auto argument = bytes_of(3, 96), wanted = bytes_of(4, size);
    const uint64_t sequence = channel.call(argument);
    REQUIRE(channel.step());
    const auto request = channel.poll();
    REQUIRE(request.has_value());
    CHECK(request->size == argument.size());
    CHECK(std::memcmp(channel.payload.data(), argument.data(), argument.size()) == 0);
    channel.publish(sequence, wanted);
    CHECK(channel.push() == 0);
    while (channel.step()) {
    }
    CHECK(channel.reads == (size > 224 ? 2 : 1));
    check_answer(channel, sequence, wanted);
  }
}

TEST_CASE("rfp/channel: slots are used in turn for ever, and a call without a free slot is refused") {
  Channel channel(kGeometry);
  for (int round = 0; round < 5; ++round) {
    std::vector<uint64_t> sequences;
    for (int i = 0; i < 4; ++i) sequences.push_back(channel.call(bytes_of(7, 16)));
    CHECK_FALSE(channel.client.free());
    CHECK(channel.client.call(channel.client_memory(), 1, {}, 64, {}, kNever).error().code == Code::busy);
    channel.steps(4);
    while (const auto request = channel.poll()) channel.publish(request->sequence, bytes_of(request->sequence, 40));
    while (channel.step()) {
    }
    for (const uint64_t sequence : sequences) check_answer(channel, sequence, bytes_of(sequence, 40));
  }
  CHECK(channel.client.call(channel.client_memory(), 1, bytes_of(1, 97), 64, {}, kNever).error().code == Code::invalid);
}

TEST_CASE("rfp/channel: two slow calls switch to pushes, and two quick ones switch back") {
  Channel channel(kGeometry);
  const uint64_t once = run_call(channel, 6, 10ms);  // one more retry than R
  CHECK_FALSE(channel.client.pushes());
  channel.now = channel.client.due();
  channel.steps(1);
  check_answer(channel, once, bytes_of(once, 16));

  const uint64_t twice = run_call(channel, 6, 10ms);
  CHECK(channel.client.pushes());
  channel.steps(1);  // the mode, in the midst of the call
  CHECK(channel.push() == 1);
  CHECK(channel.push() == 0);
  check_answer(channel, twice, bytes_of(twice, 16), true);

  for (int call = 0; call < 2; ++call) {
    const uint64_t quick = run_call(channel, 0, 2us);
    CHECK(channel.push() == 1);
    check_answer(channel, quick, bytes_of(quick, 16), true);
  }
  CHECK_FALSE(channel.client.pushes());
  channel.steps(1);
  const uint64_t fetched = run_call(channel, 0, 2us);
  CHECK(channel.push() == 0);
  channel.now = channel.client.due();
  channel.steps(1);
  check_answer(channel, fetched, bytes_of(fetched, 16));
}

TEST_CASE("rfp/channel: a quick call between two slow ones keeps the mode") {
  Channel channel(kGeometry);
  for (const int early : {6, 0, 6, 0, 6}) {
    const uint64_t sequence = run_call(channel, early, early > 0 ? 10ms : 0ms);
    channel.now = std::max(channel.now, channel.client.due());
    channel.steps(1);
    check_answer(channel, sequence, bytes_of(sequence, 16));
    CHECK_FALSE(channel.client.pushes());
  }
}

TEST_CASE("rfp/channel: an abandoned call frees its slot when its transfer has ended, and the next call is served") {
  Channel channel({.slots = 1, .request_bytes = 128, .response_bytes = 512});
  const uint64_t first = channel.call(bytes_of(1, 8));
  const auto transfer = channel.client.next(channel.client_memory(), {});
  REQUIRE(transfer.has_value());
  channel.client.abandon(first);
  CHECK_FALSE(channel.client.free());
  channel.client.done(channel.client_memory(), *transfer, Code::ok, {});  // its bytes never arrived
  CHECK(channel.client.free());
  const uint64_t second = channel.call(bytes_of(2, 8));
  channel.steps(1);
  const auto request = channel.poll();
  REQUIRE(request.has_value());
  CHECK(request->sequence == second);
  channel.publish(second, bytes_of(9, 9));
  channel.steps(1);
  check_answer(channel, second, bytes_of(9, 9));
}

TEST_CASE("rfp/channel: a call that was abandoned before the channel failed is not given") {
  Channel channel(kGeometry);
  const uint64_t first = channel.call(bytes_of(1, 8)), second = channel.call(bytes_of(2, 8));
  const auto transfer = channel.client.next(channel.client_memory(), {});
  REQUIRE(transfer.has_value());
  const auto other = channel.client.next(channel.client_memory(), {});
  REQUIRE(other.has_value());
  channel.client.done(channel.client_memory(), *other, Code::io, {});  // the first one is still under way
  channel.client.abandon(first);
  const auto answer = channel.client.take(channel.client_memory());
  REQUIRE(answer.has_value());
  CHECK(answer->sequence == second);
  CHECK_FALSE(channel.client.take(channel.client_memory()).has_value());
  channel.client.done(channel.client_memory(), *transfer, Code::io, {});
  CHECK_FALSE(channel.client.take(channel.client_memory()).has_value());
}

TEST_CASE("rfp/channel: a call ends at its deadline, and its slot serves the next one when its transfer has ended") {
  Channel channel({.slots = 1, .request_bytes = 128, .response_bytes = 512});
  const TimePoint deadline = channel.now + 3s;
  const uint64_t first = channel.call(bytes_of(1, 8), deadline);
  CHECK(channel.client.due() == deadline);
  channel.steps(1);
  REQUIRE(channel.poll().has_value());  // its handler hangs
  while (channel.client.due() < deadline) {
    channel.now = channel.client.due();
    const auto read = channel.client.next(channel.client_memory(), channel.now);
    if (read) channel.client.done(channel.client_memory(), *read, Code::ok, channel.now);
  }
  const auto read = channel.client.next(channel.client_memory(), deadline - 1ns);
  channel.client.expire(deadline - 1ns);
  CHECK_FALSE(channel.client.take(channel.client_memory()).has_value());
  channel.client.expire(deadline);
  const auto answer = channel.client.take(channel.client_memory());
  REQUIRE(answer.has_value());
  CHECK(answer->sequence == first);
  CHECK(answer->code == Code::timeout);
  channel.client.finish(first);
  if (read) channel.client.done(channel.client_memory(), *read, Code::ok, deadline);
  REQUIRE(channel.client.free());
  channel.now = deadline;
  const uint64_t second = channel.call(bytes_of(2, 8), deadline + 3s);
  channel.publish(first, bytes_of(3, 8));  // the late response to the first call
  channel.steps(2);
  CHECK_FALSE(channel.client.take(channel.client_memory()).has_value());
  const auto request = channel.poll();
  REQUIRE(request.has_value());
  CHECK(request->sequence == second);
  channel.publish(second, bytes_of(4, 8));
  while (channel.client.due() < deadline + 3s && !channel.step()) channel.now = channel.client.due();
  check_answer(channel, second, bytes_of(4, 8));
}

TEST_CASE("rfp/channel: a push that failed is made again, unless the peer is lost") {
  for (const Code code : {Code::timeout, Code::io, Code::peer_lost}) {
    CAPTURE(to_string(code));
    ClientOptions options;
    options.fetches = false;
    Channel channel(kGeometry, options);
    channel.server = rfp::Server({.geometry = kGeometry, .epoch = 5, .instance = 6, .always_push = true});
    const uint64_t sequence = channel.call(bytes_of(1, 8));
    channel.steps(1);
    REQUIRE(channel.poll().has_value());
    channel.publish(sequence, bytes_of(2, 8));
    const auto push = channel.server.push(channel.server_memory());
    REQUIRE(push.has_value());
    channel.server.pushed(push->slot, code);
    CHECK(channel.push() == (code == Code::peer_lost ? 0 : 1));
    if (code != Code::peer_lost) check_answer(channel, sequence, bytes_of(2, 8), true);
  }
}

TEST_CASE("rfp/channel: a server that knows nothing of the channel ends the call as lost") {
  Channel channel(kGeometry, {}, 99);
  const uint64_t sequence = channel.call(bytes_of(1, 8));
  channel.steps(1);
  REQUIRE(channel.poll().has_value());
  channel.publish(sequence, bytes_of(2, 8));
  channel.steps(1);
  const auto answer = channel.client.take(channel.client_memory());
  REQUIRE(answer.has_value());
  CHECK(answer->code == Code::peer_lost);
}

TEST_CASE("rfp/channel: a failed transfer ends every call") {
  Channel channel(kGeometry);
  const uint64_t first = channel.call(bytes_of(1, 8)), second = channel.call(bytes_of(2, 8));
  const auto transfer = channel.client.next(channel.client_memory(), {});
  channel.client.done(channel.client_memory(), *transfer, Code::io, {});
  for (const uint64_t sequence : {first, second}) {
    const auto answer = channel.client.take(channel.client_memory());
    REQUIRE(answer.has_value());
    CHECK(answer->sequence == sequence);
    CHECK(answer->code == Code::io);
    channel.client.finish(sequence);
  }
  CHECK(channel.client.call(channel.client_memory(), 1, {}, 64, {}, kNever).error().code == Code::io);
}

TEST_CASE("rfp/channel: garbage of a client changes no byte outside its payload and delays no other slot") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  Channel channel(kGeometry);
  for (int round = 0; round < 20'000; ++round) {
    // slots 1 to 3 hold garbage, often with a header that is nearly right; slot 0 holds honest requests
    const uint64_t index = 1 + rng.below(3);
    auto* words = channel.requests.data() + kGeometry.request_at(static_cast<uint32_t>(index)) / 8;
    for (uint32_t i = 0; i < kGeometry.request_bytes / 8; ++i) words[i] = rng.next();
    if (rng.chance(.8)) words[0] = words[0] << 2 | index;
    if (rng.chance(.8)) words[1] = 5;
    if (rng.chance(.5)) words[2] = rng.below(200);
    if (round % 100 != 0) {
      CHECK_FALSE(channel.poll().has_value());
      continue;
    }
    Channel honest(kGeometry);
    uint64_t sequence = 0;
    while (sequence % 4 != 0 || sequence == 0) sequence = honest.call(bytes_of(1, 8));
    std::memcpy(&channel.requests[8], honest.local.data() + kGeometry.request_at(0) / 8, 64);
    channel.server = rfp::Server({.geometry = kGeometry, .epoch = 5, .instance = 6});
    const auto request = channel.poll();
    REQUIRE(request.has_value());
    CHECK(request->sequence == sequence);
  }
}

TEST_CASE("rfp/channel: garbage of a server ends no call") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  Channel channel(kGeometry);
  const uint64_t sequence = channel.call(bytes_of(1, 8));
  channel.steps(1);
  for (int round = 0; round < 20'000; ++round) {
    auto& garbage = rng.chance(.5) ? channel.responses : channel.pushed;
    auto* words = garbage.data() + kGeometry.response_at(1) / 8;
    for (uint32_t i = 0; i < kGeometry.response_bytes / 8; ++i) words[i] = rng.next();
    if (rng.chance(.9)) words[0] = sequence;
    if (rng.chance(.9)) words[1] = 6;
    if (rng.chance(.7)) words[2] = rng.below(600);
    if (rng.chance(.9)) words[3] &= 0xffffffff;
    channel.client.look(channel.client_memory());
    channel.now = std::max(channel.now, channel.client.due());
    channel.steps(static_cast<int>(rng.below(3)));
    CHECK_FALSE(channel.client.take(channel.client_memory()).has_value());
  }
}

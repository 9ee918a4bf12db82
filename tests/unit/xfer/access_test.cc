// The access rule, which both ends of a transfer ask.
#include "xfer/access.h"

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "test.h"

namespace access_test {

using namespace mc;
using namespace mc::xfer;

namespace {

constexpr uint64_t kLength = 4096;
constexpr Duration kLong = 60s;  // only a hang reaches it

TimePoint now() {
  return SystemClock::instance().now();
}

InstanceId instance(uint8_t number) {
  InstanceId id{};
  id.bytes[0] = number;
  return id;
}

BufferInfo buffer(AccessClass access, const InstanceId& writer = {}) {
  BufferInfo info;
  info.id = 1;
  info.access = access;
  info.length = kLength;
  info.writer = writer;
  return info;
}

}  // namespace

TEST_CASE("xfer/access: each class of buffer allows its own operation alone") {
  const BufferInfo hidden = buffer(AccessClass::private_memory);
  const BufferInfo blocks = buffer(AccessClass::blocks);
  const BufferInfo landing = buffer(AccessClass::landing);
  CHECK(judge(nullptr, Op::read, 0, 1, instance(1)) == Denial::no_buffer);
  CHECK(judge(&hidden, Op::read, 0, 1, instance(1)) == Denial::no_buffer);
  CHECK(judge(&hidden, Op::write, 0, 1, instance(1)) == Denial::no_buffer);
  CHECK(judge(&blocks, Op::read, 0, 1, instance(1)) == Denial::none);
  CHECK(judge(&blocks, Op::write, 0, 1, instance(1)) == Denial::read_only);
  CHECK(judge(&landing, Op::write, 0, 1, instance(1)) == Denial::none);
  CHECK(judge(&landing, Op::read, 0, 1, instance(1)) == Denial::write_only);
}

TEST_CASE("xfer/access: only the named writer writes to a landing buffer") {
  const BufferInfo landing = buffer(AccessClass::landing, instance(1));
  CHECK(judge(&landing, Op::write, 0, 1, instance(1)) == Denial::none);
  CHECK(judge(&landing, Op::write, 0, 1, instance(2)) == Denial::other_writer);
  CHECK(judge(&landing, Op::write, 0, 1, {}) == Denial::other_writer);
  CHECK(reachable(landing, instance(1)));
  CHECK_FALSE(reachable(landing, instance(2)));
  CHECK_FALSE(reachable(buffer(AccessClass::private_memory), instance(1)));
}

TEST_CASE("xfer/access: a range that overflows is beyond the end") {
  const BufferInfo blocks = buffer(AccessClass::blocks);
  CHECK(judge(&blocks, Op::read, 0, kLength, {}) == Denial::none);
  CHECK(judge(&blocks, Op::read, kLength, 0, {}) == Denial::none);
  CHECK(judge(&blocks, Op::read, 1, kLength, {}) == Denial::range);
  CHECK(judge(&blocks, Op::read, kLength + 1, 0, {}) == Denial::range);
  CHECK(judge(&blocks, Op::read, UINT64_MAX, 2, {}) == Denial::range);
  CHECK(judge(&blocks, Op::read, 2, UINT64_MAX, {}) == Denial::range);
}

TEST_CASE("xfer/access: a grant says what the rule says and pins what it allows") {
  std::array<std::byte, kLength> memory{};
  Access access;
  const auto id = access.add(memory, {.name = "kv", .access = AccessClass::blocks}, -1);
  REQUIRE(id);
  const auto key = static_cast<uint32_t>(*id);
  CHECK(access.grant(Op::write, key, 0, 1, {}).code == Code::invalid);
  CHECK(access.grant(Op::read, key, 0, kLength + 1, {}).code == Code::invalid);
  CHECK(access.pin_count() == 0);
  const Access::Grant granted = access.grant(Op::read, key, 16, 32, {});
  CHECK(granted.code == Code::ok);
  CHECK(granted.memory.data() == memory.data() + 16);
  CHECK(access.pin_count() == 1);
  access.unpin(key);
  access.revoke(*id);
  CHECK(access.grant(Op::read, key, 0, 1, {}).code == Code::not_found);
  CHECK(access.grant(Op::read, key + 1, 0, 1, {}).code == Code::invalid);
}

TEST_CASE("xfer/access: no pin holds a buffer that is unregistered, whoever pins it meanwhile") {
  constexpr size_t kBytes = 4096;
  std::vector<std::byte> memory(kBytes);
  Access access;
  std::atomic<bool> there{false}, stop{false};
  std::atomic<uint64_t> pinned{0}, wrong{0};
  std::thread user([&] {
    Access::Known known;
    while (!stop) {
      if (!access.pin(std::span(memory).subspan(64, 64), known)) continue;
      if (!there) ++wrong;
      ++pinned;
      access.unpin(known);
    }
  });
  const TimePoint end = now() + kLong;
  for (int round = 0; round < 200; ++round) {
    there = true;
    auto id = access.add(memory, {.name = "memory"}, -1);
    REQUIRE_OK(id);
    const uint64_t before = pinned;
    while (pinned < before + 10 && now() < end) std::this_thread::yield();
    REQUIRE(access.remove(*id, now() + kLong, [&] { there = false; }).has_value());
    CHECK(access.pin_count() == 0);
  }
  stop = true;
  user.join();
  CHECK(wrong == 0);
}

}  // namespace access_test

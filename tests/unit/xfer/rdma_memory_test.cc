// Registered memory while one of its devices is away: no verbs are called on a lost device.
#include "test.h"
#include "xfer_rdma/verbs.h"

using namespace mc;
using namespace mc::xfer;

namespace {

constexpr size_t kBytes = 1 << 20;

wire::RdmaKeys keys_of(RdmaMemory& memory, uint32_t buffer, size_t devices) {
  std::vector<size_t> all;
  for (size_t i = 0; i < devices; ++i) all.push_back(i);
  wire::RdmaKeys out;
  REQUIRE(memory.keys(buffer, all, out));
  return out;
}

}  // namespace

TEST_CASE("xfer/rdma_memory: a buffer registered while devices are away has keys of 0, and no request may use it") {
  std::vector<std::byte> bytes(kBytes);
  RdmaMemory memory;
  const std::shared_ptr<RdmaDevice> away[3];
  memory.use(away);
  REQUIRE_OK(memory.add(7, bytes, AccessClass::blocks));
  const wire::RdmaKeys keys = keys_of(memory, 7, 3);
  CHECK(keys.buffer == 7);
  CHECK(keys.nics == 3);
  CHECK(keys.length == kBytes);
  CHECK(keys.base == reinterpret_cast<uint64_t>(bytes.data()));
  CHECK(keys.rkeys == std::vector<uint32_t>(3 * keys.chunks(), 0));
  KeyRange local;
  CHECK(memory.local(0, bytes, local) == Code::invalid);
  wire::RdmaKeys none;
  CHECK_FALSE(memory.keys(8, {}, none));
}

TEST_CASE("xfer/rdma_memory: removing a buffer forgets it, also one whose device was lost after it") {
  std::vector<std::byte> bytes(kBytes), more(kBytes);
  RdmaMemory memory;
  const std::shared_ptr<RdmaDevice> away[2];
  memory.use(away);
  REQUIRE_OK(memory.add(1, bytes, AccessClass::blocks));
  REQUIRE_OK(memory.add(2, more, AccessClass::landing));
  memory.lose(0);
  memory.lose(1);
  memory.remove(1);
  memory.remove(1);  // nothing to remove
  wire::RdmaKeys none;
  CHECK_FALSE(memory.keys(1, {}, none));
  CHECK(keys_of(memory, 2, 2).length == kBytes);
  REQUIRE_OK(memory.add(3, bytes, AccessClass::blocks));  // its place is free
}

TEST_CASE(
    "xfer/rdma_memory: a device that came back counts for what is registered from then on, one that is lost "
    "does not") {
  std::vector<std::byte> bytes(kBytes);
  RdmaMemory memory;
  const std::shared_ptr<RdmaDevice> away[1];
  memory.use(away);
  const auto again = std::make_shared<RdmaDevice>();  // shared as in use: never opened, so it allows no registration
  REQUIRE_OK(memory.restore(0, again));
  const auto refused = memory.add(1, bytes, AccessClass::blocks);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what.find("allows no registration") != std::string::npos);
  memory.lose(0);
  CHECK(again.use_count() == 1);  // nothing of it is kept
  REQUIRE_OK(memory.add(1, bytes, AccessClass::blocks));
}

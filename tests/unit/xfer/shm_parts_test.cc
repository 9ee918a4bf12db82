// The parts of the shm transport that stand alone: messages over its socket, and arenas of a peer.
#include <sys/socket.h>

#include <array>

#include "mem/mem.h"
#include "test.h"
#include "xfer_shm/arenas.h"

using namespace mc;
using namespace mc::xfer;
using wire::FrameType;

namespace {

struct Ends {
  Fd near, far;
  Ends() {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair.data()) == 0);
    near = Fd(pair[0]);
    far = Fd(pair[1]);
  }
};

wire::FrameHeader share(uint32_t buffer, size_t bytes, AccessClass access) {
  wire::FrameHeader header = control_frame(FrameType::share, {}).header;
  header.buffer = buffer;
  header.length = bytes;
  header.snapshot = static_cast<uint32_t>(access);
  return header;
}

}  // namespace

TEST_CASE("xfer/shm: a message arrives whole, and a second read finds none") {
  Ends ends;
  const ShmSocket from(std::move(ends.near)), to(std::move(ends.far));
  ShmFailure failure;
  REQUIRE(from.send(control_frame(FrameType::notify, std::vector<std::byte>(100, std::byte{5})), failure));
  std::vector<std::byte> inbox(ShmSocket::kMessageMax);
  ShmMessage message;
  REQUIRE(to.receive(inbox, message, failure));
  CHECK(message.header.kind() == FrameType::notify);
  REQUIRE(message.payload.size() == 100);
  CHECK(message.payload[99] == std::byte{5});
  CHECK(!to.receive(inbox, message, failure));
  CHECK(!failure);
}

TEST_CASE("xfer/shm: a share without a descriptor and a descriptor without a share end the connection") {
  for (const FrameType type : {FrameType::share, FrameType::notify}) {
    Ends ends;
    const ShmSocket from(std::move(ends.near)), to(std::move(ends.far));
    ShmFailure failure;
    const int passed = type == FrameType::notify ? to.fd() : -1;
    REQUIRE(from.send(control_frame(type, {}), failure, passed));
    std::vector<std::byte> inbox(ShmSocket::kMessageMax);
    ShmMessage message;
    CHECK(!to.receive(inbox, message, failure));
    CHECK(failure.code == Code::corrupt);
  }
}

TEST_CASE("xfer/shm: slices are copied within an arena, never beyond it, and never into one that is only read") {
  auto made = mem::SharedBuffer::create(8192, {.name = "parts"});
  REQUIRE_OK(made);
  made->data()[4096] = std::byte{9};
  ShmArenas arenas;
  CHECK(!arenas.add(share(3, 8192, AccessClass::blocks), Fd(::dup(made->fd()))));
  CHECK(arenas.take_fresh().size() == 1);
  CHECK(arenas.take_fresh().empty());
  std::vector<std::byte> local(4096);
  Slice slice{.id = 1, .op = Op::read, .buffer = 3, .offset = 4096, .local = local};
  CHECK(arenas.copy(slice).code == Code::ok);
  CHECK(local[0] == std::byte{9});
  for (const uint64_t offset : {uint64_t{4097}, UINT64_MAX - 1}) {
    slice.offset = offset;
    CHECK(arenas.copy(slice).code == Code::invalid);
  }
  slice.offset = 0;
  slice.op = Op::write;
  CHECK(arenas.copy(slice).code == Code::invalid);
  slice.buffer = 4;
  CHECK(arenas.copy(slice).code == Code::not_found);
}

TEST_CASE("xfer/shm: an arena is shared once, and goes with the descriptor that no longer names it") {
  auto made = mem::SharedBuffer::create(4096, {.name = "parts"});
  REQUIRE_OK(made);
  ShmArenas arenas;
  CHECK(!arenas.add(share(3, 4096, AccessClass::blocks), Fd(::dup(made->fd()))));
  CHECK(arenas.add(share(3, 4096, AccessClass::blocks), Fd(::dup(made->fd()))).code == Code::corrupt);
  CHECK(arenas.add(share(4, 0, AccessClass::blocks), Fd(::dup(made->fd()))).code == Code::corrupt);
  arenas.keep(Descriptor{});
  CHECK(arenas.copy({.id = 1, .buffer = 3}).code == Code::not_found);
}

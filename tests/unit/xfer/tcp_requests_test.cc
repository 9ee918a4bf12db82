// The two halves of a data lane of tcp, each without a connection: own requests, and requests of the peer. Both talk to
// a stream over a socket pair that nobody reads.
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "test.h"
#include "xfer_tcp/requests.h"
#include "xfer_tcp/service.h"

using namespace mc;
using namespace mc::xfer;
using wire::FrameHeader;
using wire::FrameType;

namespace {

struct Line {
  Fd near, far;
  Line() {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()) == 0);
    near = Fd(pair[0]);
    far = Fd(pair[1]);
  }
};

struct Asking {
  Line line;
  FrameStream stream{std::move(line.near)};
  TcpRequests requests{stream};
  std::vector<std::byte> memory = std::vector<std::byte>(size_t{8} << 20);
  Reports out;
  const char* why = "";

  Slice slice(uint64_t id, Op op, size_t bytes) {
    return {.id = id, .op = op, .buffer = 1, .local = std::span(memory).first(bytes)};
  }
  void send() {
    std::vector<FrameStream::Gone> gone;
    REQUIRE(stream.flush(size_t{64} << 20, gone) != FrameStream::Io::broken);
  }
  static FrameHeader answer(FrameType type, uint64_t id, size_t bytes = 0, uint8_t flags = 0) {
    FrameHeader header;
    header.type = static_cast<uint8_t>(type);
    header.id = id;
    header.length = bytes;
    header.flags = flags;
    return header;
  }
};

struct Serving {
  Line line;
  FrameStream stream{std::move(line.near)};
  Access access;
  Tally tally;
  TcpService service{stream, access, tally};
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
  InstanceId peer;
  uint32_t landing = 0;
  const char* why = "";

  Serving() {
    peer.bytes.fill(7);
    auto id = access.add(memory, {"landing", AccessClass::landing}, -1);
    REQUIRE_OK(id);
    landing = static_cast<uint32_t>(*id);
  }
  FrameHeader write(uint64_t offset, uint64_t length, uint8_t flags = 0) const {
    FrameHeader header = Asking::answer(FrameType::write, 1, length, flags);
    header.buffer = landing;
    header.offset = offset;
    header.snapshot = access.version();
    return header;
  }
};

}  // namespace

TEST_CASE("xfer/tcp: one slice larger than a lane's window is taken alone") {
  Asking asking;
  const std::array slices{asking.slice(1, Op::read, TcpRequests::kPendingBytesMax + 1), asking.slice(2, Op::read, 1)};
  CHECK(asking.requests.post(slices, false) == 1);
  CHECK(asking.requests.post(std::span(slices).subspan(1), false) == 0);
}

TEST_CASE("xfer/tcp: an acknowledgement of writes together leaves the reads between them open") {
  Asking asking;
  const std::array slices{asking.slice(1, Op::write, 64), asking.slice(2, Op::read, 64),
                          asking.slice(3, Op::write, 64)};
  REQUIRE(asking.requests.post(slices, false) == 3);
  asking.send();
  CHECK(asking.requests.end_answer(Asking::answer(FrameType::ack, 3, 0, wire::kFrameTogether), {}, 0, asking.out,
                                   asking.why) == Code::ok);
  REQUIRE(asking.out.done.size() == 2);
  CHECK(asking.out.done[0].slice == 1);
  CHECK(asking.out.done[1].slice == 3);
  CHECK(!asking.requests.idle());
  CHECK(asking.requests.take_moved().written == 128);
  Sink sink;
  CHECK(asking.requests.begin_answer(Asking::answer(FrameType::data, 2, 64), false, sink, asking.why) == Code::ok);
  CHECK(sink.at == asking.memory.data());
}

TEST_CASE("xfer/tcp: a write that has not left is not acknowledged") {
  Asking asking;
  const std::array slices{asking.slice(1, Op::write, 64)};
  REQUIRE(asking.requests.post(slices, false) == 1);
  CHECK(asking.requests.end_answer(Asking::answer(FrameType::ack, 1), {}, 0, asking.out, asking.why) == Code::corrupt);
  CHECK(std::string(asking.why) == "write acknowledged before it was sent");
}

TEST_CASE("xfer/tcp: the answer to a cancelled read goes nowhere and reports nothing") {
  Asking asking;
  const std::array slices{asking.slice(1, Op::read, 64)};
  REQUIRE(asking.requests.post(slices, false) == 1);
  CHECK(asking.requests.cancel(1));
  Sink sink;
  CHECK(asking.requests.begin_answer(Asking::answer(FrameType::data, 1, 64), false, sink, asking.why) == Code::ok);
  CHECK(sink.kind == Sink::Kind::discard);
  CHECK(asking.requests.end_answer(Asking::answer(FrameType::data, 1, 64), {}, 0, asking.out, asking.why) == Code::ok);
  CHECK(asking.out.done.empty());
  CHECK(asking.requests.idle());
}

TEST_CASE("xfer/tcp: a landing buffer stays pinned within a turn and no longer") {
  Serving serving;
  serving.service.begin_turn();
  Sink sink;
  bool landed = false;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{4096}}) {
    const FrameHeader header = serving.write(offset, 4096, wire::kFrameTogether);
    serving.service.begin_write(header, serving.peer, sink);
    REQUIRE(sink.kind == Sink::Kind::direct);
    CHECK(sink.at == serving.memory.data() + offset);
    CHECK(serving.access.pin_count() == 1);
    CHECK(serving.service.end_write(header, 0, landed, serving.why) == Code::ok);
    CHECK(landed);
    CHECK(serving.stream.queued() == 0);  // acknowledged together
  }
  serving.service.end_turn();
  CHECK(serving.access.pin_count() == 0);
  CHECK(serving.stream.queued() == 1);
  CHECK(serving.service.take_moved().landed == 8192);
}

TEST_CASE("xfer/tcp: a write beyond a buffer's end lands nowhere, however large its offset") {
  Serving serving;
  for (const uint64_t offset : {uint64_t{1} << 16, UINT64_MAX, UINT64_MAX - 4095}) {
    serving.service.begin_turn();
    const FrameHeader header = serving.write(offset, 4096);
    Sink sink;
    serving.service.begin_write(header, serving.peer, sink);
    CHECK(sink.kind == Sink::Kind::discard);
    bool landed = true;
    CHECK(serving.service.end_write(header, 0, landed, serving.why) == Code::ok);
    CHECK(!landed);
    serving.service.end_turn();
  }
  CHECK(serving.access.pin_count() == 0);
  CHECK(serving.tally.get(Count::requests_refused) == 3);
}

TEST_CASE("xfer/tcp: a payload that fails its checksum is refused and does not count as landed") {
  Serving serving;
  serving.service.begin_turn();
  FrameHeader header = serving.write(0, 64, wire::kFrameHasPayloadCrc);
  header.payload_crc = 1;
  Sink sink;
  serving.service.begin_write(header, serving.peer, sink);
  CHECK(sink.checksum);
  bool landed = true;
  CHECK(serving.service.end_write(header, 2, landed, serving.why) == Code::ok);
  CHECK(!landed);
  serving.service.end_turn();
  CHECK(serving.service.take_moved().landed == 0);
}

// A FrameStream fed through a socket pair: however the bytes are cut, the frames are the same.
#include "xfer/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <functional>

#include "base/hash.h"
#include "pair.h"
#include "xfer/tally.h"

namespace stream_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;
using wire::FrameHeader;
using wire::FrameType;

namespace {

struct Sockets {
  Fd left;
  Fd right;
  Tally tally;
  TcpIoChoice chosen = choose_tcp_io(tcp_io_under_test->name, tally);
  StreamIo& io = *chosen.io;
  Sockets() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    left = Fd(fds[0]);
    right = Fd(fds[1]);
  }
};

/// Expects frames in order; data frames go to their own memory, some to nowhere.
struct Expecting final : FrameConsumer {
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
    Sink::Kind kind;
    bool checksum;
    std::vector<std::byte> target;
  };
  std::deque<Frame> frames;
  size_t finished = 0;

  Code begin(const FrameHeader& header, Sink& sink, const char*& why) override {
    REQUIRE(finished < frames.size());
    Frame& frame = frames[finished];
    CHECK(header.id == frame.header.id);
    if (header.id == refuse_id) {
      why = "refused by the test";
      return Code::corrupt;
    }
    frame.target.assign(frame.payload.size(), std::byte{0});
    sink = {frame.kind, frame.target.data(), frame.checksum, header.id % 2 == 0 ? size_t{1} << 20 : 0};
    return Code::ok;
  }
  Code end(const FrameHeader& header, std::span<const std::byte> collected, uint32_t crc, const char*&) override {
    Frame& frame = frames[finished++];
    CHECK(header.id == frame.header.id);
    if (frame.kind == Sink::Kind::collect) CHECK(equal(collected, frame.payload));
    if (frame.kind == Sink::Kind::direct) CHECK(equal(frame.target, frame.payload));
    if (frame.kind == Sink::Kind::direct && frame.checksum) CHECK(crc == crc32c(frame.payload));
    if (frame.kind == Sink::Kind::discard)
      CHECK(std::all_of(frame.target.begin(), frame.target.end(), [](std::byte b) { return b == std::byte{0}; }));
    if (ended) ended();
    return Code::ok;
  }
  std::function<void()> ended;  // after each frame
  uint64_t refuse_id = UINT64_MAX;
};

Expecting::Frame make_frame(Rng& rng, uint64_t id) {
  Expecting::Frame frame;
  const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 12287, 12288, 32768, 65536, 300000};
  const bool small = rng.chance(0.6);
  frame.payload.resize(small ? rng.below(5000) : sizes[rng.below(std::size(sizes))]);
  fill(frame.payload, rng.next());
  frame.header.id = id;
  frame.header.length = frame.payload.size();
  const bool collect = frame.payload.size() <= wire::kNotifyBytesMax && rng.chance(0.3);
  frame.header.type = static_cast<uint8_t>(collect ? FrameType::notify : FrameType::data);
  frame.kind = collect ? Sink::Kind::collect : rng.chance(0.2) ? Sink::Kind::discard : Sink::Kind::direct;
  frame.checksum = rng.chance(0.5);
  return frame;
}

}  // namespace

TCP_TEST_CASE("xfer/tcp_stream: frames arrive whole however the bytes are cut") {
  for (uint64_t round = 0; round < 6; ++round) {
    Rng rng(mc::test::seed() * 100 + round);
    Sockets sockets;
    FrameStream stream(std::move(sockets.right), sockets.io);
    Expecting expecting;
    std::vector<std::byte> bytes;
    for (uint64_t id = 0; id < 120; ++id) {
      expecting.frames.push_back(make_frame(rng, id));
      const auto& frame = expecting.frames.back();
      const auto head = wire::encode(frame.header);
      bytes.insert(bytes.end(), head.begin(), head.end());
      bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
    }
    std::span<const std::byte> left = bytes;
    while (!left.empty()) {
      const size_t cut = std::min(left.size(), rng.chance(0.5) ? 1 + rng.below(200) : 1 + rng.below(100000));
      const ssize_t n = ::send(sockets.left.get(), left.data(), cut, MSG_NOSIGNAL);
      if (n > 0) left = left.subspan(static_cast<size_t>(n));
      REQUIRE(stream.receive(expecting, 1 + rng.below(1 << 20)) != FrameStream::Io::broken);
    }
    while (expecting.finished < expecting.frames.size())
      REQUIRE(stream.receive(expecting, 1 << 20) != FrameStream::Io::broken);
    sockets.left.reset();
    CHECK(stream.receive(expecting, 1 << 20) == FrameStream::Io::broken);
    CHECK(stream.code() == Code::peer_lost);
  }
}

TCP_TEST_CASE("xfer/tcp_stream: what one stream sends another receives, gathered in few calls") {
  Rng rng(mc::test::seed() + 3);
  Sockets sockets;
  FrameStream from(std::move(sockets.left), sockets.io);
  FrameStream to(std::move(sockets.right), sockets.io);
  Expecting expecting;
  std::vector<FrameStream::Gone> gone;
  size_t pinned = 0;
  for (uint64_t id = 0; id < 300; ++id) {
    expecting.frames.push_back(make_frame(rng, id));
    const auto& frame = expecting.frames.back();
    if (frame.header.kind() == FrameType::notify) {
      from.push(frame.header, frame.payload);
    } else {
      ++pinned;
      from.push({.header = frame.header, .payload = frame.payload, .pinned = 5, .checksum = id % 2 == 0});
    }
  }
  while (expecting.finished < expecting.frames.size()) {
    REQUIRE(from.flush(1 + rng.below(1 << 20), gone) != FrameStream::Io::broken);
    REQUIRE(to.receive(expecting, 1 << 20) != FrameStream::Io::broken);
  }
  CHECK(from.idle());
  CHECK(from.queued_bytes() == 0);
  CHECK(gone.size() == pinned);
}

TCP_TEST_CASE("xfer/tcp_stream: the rest of a frame goes nowhere once it is discarded") {
  Sockets sockets;
  FrameStream stream(std::move(sockets.right), sockets.io);
  Expecting expecting;
  Rng rng(1);
  Expecting::Frame big;
  big.header.type = static_cast<uint8_t>(FrameType::data);
  big.payload.resize(100000);
  fill(big.payload, 1);
  big.header.length = big.payload.size();
  big.kind = Sink::Kind::direct;
  big.checksum = false;
  expecting.frames.push_back(big);
  const auto head = wire::encode(big.header);
  REQUIRE(::send(sockets.left.get(), head.data(), head.size(), 0) == 64);
  REQUIRE(::send(sockets.left.get(), big.payload.data(), 1000, 0) == 1000);
  CHECK(stream.receive(expecting, 1 << 20) == FrameStream::Io::blocked);
  CHECK(stream.receiving());
  CHECK(stream.current().id == 0);
  stream.discard_rest();
  auto& target = expecting.frames[0].target;
  const std::vector<std::byte> before = target;
  expecting.frames[0].payload = before;  // what end() compares with
  for (size_t sent = 1000; sent < 100000;) {
    const ssize_t n = ::send(sockets.left.get(), big.payload.data() + sent, 100000 - sent, 0);
    if (n > 0) sent += static_cast<size_t>(n);
    REQUIRE(stream.receive(expecting, 1 << 20) != FrameStream::Io::broken);
  }
  CHECK(expecting.finished == 1);
  CHECK(equal(target, before));
}

TCP_TEST_CASE("xfer/tcp_stream: a write frame can be taken back only before its first byte is out") {
  Sockets sockets;
  FrameStream stream(std::move(sockets.left), sockets.io);
  std::vector<FrameStream::Gone> gone;
  const std::vector<std::byte> big(size_t{4} << 20);
  FrameHeader header;
  header.type = static_cast<uint8_t>(FrameType::write);
  header.length = big.size();
  for (uint64_t slice = 1; slice <= 3; ++slice) stream.push({.header = header, .payload = big, .slice = slice});
  CHECK(stream.flush(size_t{16} << 20, gone) == FrameStream::Io::blocked);
  CHECK(stream.unqueue(1) == FrameStream::Unqueued::partly_sent);
  CHECK(stream.unqueue(2) == FrameStream::Unqueued::removed);
  CHECK(stream.unqueue(2) == FrameStream::Unqueued::sent);  // not there any more
  CHECK(stream.queued() == 2);
  const auto dropped = stream.drop_all();
  CHECK(dropped.size() == 2);
  CHECK(stream.idle());
}

TCP_TEST_CASE("xfer/tcp_stream: a consumer's refusal breaks the stream with its reason") {
  Sockets sockets;
  FrameStream stream(std::move(sockets.right), sockets.io);
  Expecting expecting;
  Rng rng(2);
  expecting.frames.push_back(make_frame(rng, 9));
  expecting.refuse_id = 9;
  const auto head = wire::encode(expecting.frames[0].header);
  REQUIRE(::send(sockets.left.get(), head.data(), head.size(), 0) == 64);
  CHECK(stream.receive(expecting, 1 << 20) == FrameStream::Io::broken);
  CHECK(stream.code() == Code::corrupt);
  CHECK(std::string(stream.reason()) == "refused by the test");
}

TCP_TEST_CASE("xfer/tcp_stream: sealed in the middle of its life, it carries the same frames") {
  Rng rng(mc::test::seed() + 5);
  Sockets sockets;
  FrameStream from(std::move(sockets.left), sockets.io);
  FrameStream to(std::move(sockets.right), sockets.io);
  Expecting expecting;
  std::vector<FrameStream::Gone> gone;
  size_t pinned = 0;
  const SealSecrets here{.out = {1}, .in = {2}}, there{.out = {2}, .in = {1}};
  for (uint64_t id = 0; id < 300; ++id) {
    expecting.frames.push_back(make_frame(rng, id));
    auto& frame = expecting.frames.back();
    if (id < 3) {  // in the clear, of another frame's size, and perhaps still queued when the rest is sealed
      frame.header.type = static_cast<uint8_t>(FrameType::notify);
      frame.kind = Sink::Kind::collect;
      frame.payload.resize(id * 1000);
      frame.header.length = frame.payload.size();
    }
    if (id == 3) from.seal(here);
    if (frame.header.kind() == FrameType::notify) {
      from.push(frame.header, frame.payload);
    } else {
      ++pinned;
      from.push({.header = frame.header, .payload = frame.payload, .pinned = 5, .checksum = id % 2 == 0});
    }
  }
  expecting.ended = [&] {  // what follows may be there already
    if (expecting.finished == 3) to.seal(there);
  };
  while (expecting.finished < expecting.frames.size()) {
    REQUIRE(from.flush(1 + rng.below(1 << 20), gone) != FrameStream::Io::broken);
    REQUIRE(to.receive(expecting, 1 + rng.below(1 << 20)) != FrameStream::Io::broken);
  }
  CHECK(from.idle());
  CHECK(from.queued_bytes() == 0);
  CHECK(gone.size() == pinned);
  from.push(expecting.frames[0].header, {});
  CHECK_FALSE(from.idle());
}

}  // namespace stream_test

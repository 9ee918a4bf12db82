// A process of this host that lies on the shm socket: its connection ends, its descriptors are closed, nobody else
// notices.
#include <functional>

#include "child.h"
#include "raw_shm.h"

namespace shm_hostile_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;

/// One who is lied to; check() finds that only the liars' connections have ended and nothing of theirs stayed open.
struct LiedTo {
  Pair pair{"shm", size_t{1} << 20};
  const std::string uri = pair.holder->uris()[0];
  const size_t before = open_descriptors();
  uint64_t lies = 0;

  void refused(const std::string& what, const std::function<void(RawShm&)>& lie, bool joined = true) {
    CAPTURE(what);
    RawShm raw(uri);
    if (joined) raw.join();
    lie(raw);
    CHECK(raw.closed());
    ++lies;
  }
  void check() {
    CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
    const TimePoint end = in(kLong);  // the liars' last messages may not have been read yet
    while (open_descriptors() != before && in(Duration{}) < end) pair.holder->poll(pair.holder.seen, in(5ms));
    CHECK(open_descriptors() == before);
    uint64_t counted = 0;
    for (const auto& [reason, count] : pair.holder->counters().failures) counted += count;
    CHECK(counted >= lies);
  }
};

}  // namespace

TEST_CASE("xfer/shm: lies about arenas end that connection only, and no descriptor stays open") {
  const Fd good = memfd(65536, kSealed), unsealed = memfd(65536, 0), growing = memfd(65536, F_SEAL_GROW),
           none = memfd(0, kSealed), read_only = memfd(65536, kSealed | F_SEAL_FUTURE_WRITE);
  const Fd folder(::open("/", O_RDONLY | O_CLOEXEC)), null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto blocks = AccessClass::blocks;
  LiedTo to;
  to.refused("an arena without a descriptor", [&](RawShm& raw) { raw.share(1, 65536, blocks, {}); });
  to.refused("two descriptors", [&](RawShm& raw) { raw.share(1, 65536, blocks, {good.get(), good.get()}); });
  to.refused("more descriptors than a message may have", [&](RawShm& raw) {
    raw.share(1, 65536, blocks, {good.get(), good.get(), good.get(), good.get(), good.get(), good.get(), good.get()});
  });
  to.refused("a file that can shrink", [&](RawShm& raw) { raw.share(1, 65536, blocks, {unsealed.get()}); });
  to.refused("sealed against growing alone", [&](RawShm& raw) { raw.share(1, 65536, blocks, {growing.get()}); });
  to.refused("a file of no bytes", [&](RawShm& raw) { raw.share(1, 65536, blocks, {none.get()}); });
  to.refused("a folder", [&](RawShm& raw) { raw.share(1, 4096, blocks, {folder.get()}); });
  to.refused("a device", [&](RawShm& raw) { raw.share(1, 4096, blocks, {null.get()}); });
  to.refused("a socket", [&](RawShm& raw) { raw.share(1, 4096, blocks, {raw.fd.get()}); });
  to.refused("a landing arena that cannot be written",
             [&](RawShm& raw) { raw.share(1, 65536, AccessClass::landing, {read_only.get()}); });
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, uint64_t{65537}, uint64_t{1} << 40, UINT64_MAX})
    to.refused("another size than the file has", [&](RawShm& raw) { raw.share(1, bytes, blocks, {good.get()}); });
  to.refused("the same buffer twice", [&](RawShm& raw) {
    for (int i = 0; i < 2; ++i) raw.share(1, 65536, blocks, {good.get()});
  });
  to.refused("more arenas than a process may have", [&](RawShm& raw) {
    for (uint32_t id = 1; id <= wire::kXferBuffersMax + 1; ++id) raw.share(id, 65536, blocks, {good.get()});
  });
  to.refused("a descriptor beside another message", [&](RawShm& raw) {
    const auto bytes = wire::encode(raw_descriptor(raw.self));
    FrameHeader header = frame(FrameType::describe);
    header.length = bytes.size();
    raw.send(header, bytes, {good.get()});
  });
  to.refused(
      "an arena before the handshake", [&](RawShm& raw) { raw.share(1, 65536, blocks, {good.get()}); }, false);
  to.check();
}

TEST_CASE("xfer/shm: lies in messages end that connection only, and no descriptor stays open") {
  const Fd good = memfd(65536, kSealed);
  LiedTo to;
  to.refused("half a header", [&](RawShm& raw) {
    const auto head = wire::encode(frame(FrameType::goodbye));
    raw.send(std::span(head).first(20));
  });
  to.refused("nothing but a descriptor", [&](RawShm& raw) { raw.send(std::array{std::byte{1}}, {good.get()}); });
  for (const size_t payload : {size_t{0}, size_t{9}, size_t{11}})
    to.refused("a payload of another length than its header says", [&](RawShm& raw) {
      raw.describe();
      FrameHeader header = frame(FrameType::notify);
      header.length = 10;
      raw.send(header, std::vector<std::byte>(payload));
    });
  to.refused("a message larger than any may be",
             [&](RawShm& raw) { raw.send(std::vector<std::byte>(wire::kFrameControlMax + 1024)); });
  to.refused("a notify before it said what it offers",
             [&](RawShm& raw) { raw.send(FrameType::notify, {std::byte{1}}); });
  to.refused("an immediate before that", [&](RawShm& raw) { raw.send(frame(FrameType::immediate, 1)); });
  to.refused("an immediate of more than 32 bits", [&](RawShm& raw) {
    raw.describe();
    raw.send(frame(FrameType::immediate, uint64_t{1} << 32));
  });
  to.refused("a descriptor of somebody else",
             [&](RawShm& raw) { raw.send(FrameType::describe, wire::encode(raw_descriptor(instance(9)))); });
  to.refused("a transfer", [&](RawShm& raw) {
    raw.describe();
    raw.send(frame(FrameType::read, 1, to.pair.kv_id, 0, 4096));
  });
  to.check();
}

TEST_CASE("xfer/shm: an arena that names no offered buffer is let go, and one that is offered can be read") {
  Pair pair("shm", size_t{1} << 20);
  RawShm raw(pair.holder->uris()[0]);
  raw.join();
  Fd fd = memfd(65536, kSealed);
  REQUIRE(raw.share(1, 65536, AccessClass::blocks, {fd.get()}));
  REQUIRE(raw.share(2, 65536, AccessClass::blocks, {fd.get()}));
  Descriptor descriptor = raw_descriptor(raw.self);
  // it says more than it has shared: what is there is what counts
  descriptor.buffers = {{.id = 1, .access = AccessClass::blocks, .shared = true, .length = 1 << 20, .name = "kv"}};
  REQUIRE(raw.send(FrameType::describe, wire::encode(descriptor)));
  const PeerId liar =
      pair.holder
          .wait([&](const Event& e) {
            return e.kind == Event::Kind::peer_up && pair.holder->descriptor(e.peer)->instance == raw.self;
          })
          .peer;
  CHECK(pair.holder->map(liar, 1, 0, 65536).has_value());
  CHECK_FALSE(pair.holder->map(liar, 1, 0, 65537).has_value());
  CHECK_FALSE(pair.holder->map(liar, 2, 0, 1).has_value());
}

}  // namespace shm_hostile_test

// Bounds on callers and peers, checked on both sides of the wire.
#include "raw_peer.h"
#include "transports/transports.h"

namespace bounds_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

Code run_one(Pair& pair, Request request, std::string* text = nullptr) {
  return pair.reader.run({{request}}, nullptr, text);
}

/// One request frame to a real engine, and its answer.
RawSocket::Got ask(RawClient& client, const FrameHeader& header, std::span<const std::byte> payload = {}) {
  REQUIRE(client.data.send(header, payload));
  auto got = client.data.receive();
  REQUIRE(got.has_value());
  return *got;
}

}  // namespace

TCP_TEST_CASE("xfer: requests beyond a buffer, to none, or against its access class fail with a reason") {
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    Pair pair(transport);
    std::string text;
    CHECK(run_one(pair, pair.read(0, Pair::kDefaultBytes, 1), &text) == Code::invalid);
    CHECK(text.find("beyond the end of 'kv', 4194304 bytes") != std::string::npos);
    CHECK(run_one(pair, pair.read(0, Pair::kDefaultBytes - 10, 11)) == Code::invalid);
    CHECK(run_one(pair, pair.read(0, UINT64_MAX - 5, 10)) == Code::invalid);  // offset + length wraps to 4
    CHECK(run_one(pair, pair.read(0, UINT64_MAX, 1)) == Code::invalid);
    CHECK(run_one(pair, pair.write(0, Pair::kDefaultBytes - 1, 2)) == Code::invalid);
    CHECK(run_one(pair, pair.read(0, Pair::kDefaultBytes - 10, 10)) == Code::ok);
    CHECK(run_one(pair, pair.read(0, Pair::kDefaultBytes, 0)) == Code::ok);
    CHECK(run_one(pair, pair.read(0, Pair::kDefaultBytes + 1, 0)) == Code::invalid);
    Request wrong = pair.read(0, 0, 10);
    wrong.buffer = 99;
    CHECK(run_one(pair, wrong, &text) == Code::not_found);
    wrong.buffer = pair.landing_id;
    CHECK(run_one(pair, wrong) == Code::invalid);
    Request write = pair.write(0, 0, 10);
    write.buffer = pair.kv_id;
    CHECK(run_one(pair, write, &text) == Code::invalid);
    CHECK(text.find("may only be read") != std::string::npos);
    write.peer = PeerId{77};
    CHECK(run_one(pair, write) == Code::not_found);
  }
}

TCP_TEST_CASE("xfer: one bad request does not stop the others of its batch") {
  Pair pair("tcp");
  std::vector<Request> requests = {pair.read(0, 0, 5000), pair.read(8192, UINT64_MAX, 5000),
                                   pair.read(16384, 9000, 5000)};
  std::vector<RequestResult> results;
  CHECK(pair.reader.run(requests, &results) == Code::invalid);
  CHECK(results[0].code == Code::ok);
  CHECK(results[1].code == Code::invalid);
  CHECK(results[2].code == Code::ok);
  CHECK(equal(pair.local.bytes().subspan(16384, 5000), pair.kv.bytes().subspan(9000, 5000)));
}

TEST_CASE("xfer: local memory must lie inside one registered buffer") {
  Pair pair("tcp");
  auto stray = mem::HostBuffer::allocate(8192);
  Request request = pair.read(0, 0, 4096);
  request.local = stray->bytes().first(4096);
  auto refused = pair.reader->submit({{request}}, in(kLong));
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::invalid);
  CHECK(pair.reader->submit({{pair.read(0, 0, 1)}}, kNever).error().code == Code::invalid);
  CHECK(pair.reader->submit({}, in(kLong)).error().code == Code::invalid);
}

TEST_CASE("xfer: buffers are refused when they overlap, are empty, unnamed or named twice") {
  Pair pair("tcp");
  const auto code = [&](std::span<std::byte> memory, const std::string& name) {
    return pair.reader->register_buffer(memory, {name}).error().code;
  };
  CHECK(code(pair.local.bytes().first(1), "a") == Code::invalid);
  CHECK(code({}, "b") == Code::invalid);
  auto other = mem::HostBuffer::allocate(4096);
  CHECK(code(other->bytes(), "") == Code::invalid);
  CHECK(code(other->bytes(), std::string(65, 'x')) == Code::invalid);
  CHECK(code(other->bytes(), "local") == Code::invalid);
  auto writable = mem::SharedBuffer::create(4096, {.peers_write = true});
  CHECK(pair.reader->register_buffer(*writable, {"w", AccessClass::blocks}).error().code == Code::invalid);
  auto sealed = mem::SharedBuffer::create(4096);
  CHECK(pair.reader->register_buffer(*sealed, {"s", AccessClass::landing}).error().code == Code::invalid);
}

TCP_TEST_CASE("xfer/tcp: the holder itself refuses bad ranges, whatever the asker checked") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  const auto code = [&](const FrameHeader& header) { return ask(client, header).header.code(); };
  CHECK(code(frame(FrameType::read, 1, pair.kv_id, 0, 100)) == Code::ok);
  CHECK(code(frame(FrameType::read, 2, pair.kv_id, Pair::kDefaultBytes, 1)) == Code::invalid);
  CHECK(code(frame(FrameType::read, 3, pair.kv_id, UINT64_MAX - 3, 8)) == Code::invalid);
  CHECK(code(frame(FrameType::read, 4, pair.kv_id, Pair::kDefaultBytes - 7, 8)) == Code::invalid);
  CHECK(code(frame(FrameType::read, 5, pair.landing_id, 0, 8)) == Code::invalid);
  CHECK(code(frame(FrameType::read, 6, 0, 0, 8)) == Code::invalid);
  CHECK(code(frame(FrameType::read, 7, 12345, 0, 8)) == Code::invalid);
  const std::vector<std::byte> bytes(64, std::byte{0xee});
  const auto write = [&](uint64_t id, uint32_t buffer, uint64_t offset) {
    return ask(client, frame(FrameType::write, id, buffer, offset, bytes.size()), bytes);
  };
  CHECK(write(8, pair.kv_id, 0).header.code() == Code::invalid);
  CHECK(write(9, pair.landing_id, Pair::kDefaultBytes - 63).header.code() == Code::invalid);
  const auto refused = write(10, pair.landing_id, UINT64_MAX - 1);
  CHECK(refused.header.code() == Code::invalid);
  CHECK(refused.text().find("range beyond the end") != std::string::npos);
  CHECK(write(11, pair.landing_id, 64).header.code() == Code::ok);
  CHECK(equal(pair.landing.bytes().subspan(64, 64), bytes));
  CHECK(pair.landing.bytes()[128] == std::byte{0});
  CHECK(pair.holder->counters().requests_refused == 9);
}

TCP_TEST_CASE("xfer/tcp: a landing buffer of one peer refuses another") {
  Pair pair("tcp");
  auto mine = mem::SharedBuffer::create(4096, {.peers_write = true});
  auto id = pair.holder->register_buffer(*mine, {"for-33", AccessClass::landing, instance(0x33)});
  REQUIRE_OK(id);
  RawClient client(pair.holder->uris()[0]);  // instance 0x11
  const std::vector<std::byte> bytes(8, std::byte{1});
  const auto got = ask(client, frame(FrameType::write, 1, static_cast<uint32_t>(*id), 0, 8), bytes);
  CHECK(got.header.code() == Code::invalid);
  CHECK(mine->bytes()[0] == std::byte{0});
}

TCP_TEST_CASE("xfer: an unregistered buffer is refused, and its memory is free when unregister returns") {
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    Pair pair(transport);
    CHECK(run_one(pair, pair.read(0, 0, 4096)) == Code::ok);
    REQUIRE_OK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)));
    CHECK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)).error().code == Code::not_found);
    while (pair.reader->descriptor(pair.peer)->find(pair.kv_id) != nullptr) pair.reader.wait(Event::Kind::peer_changed);
    CHECK(run_one(pair, pair.read(0, 0, 4096)) == Code::not_found);
    // a buffer under a running batch is not let go
    auto batch = pair.reader->submit({{pair.write(0, 0, 4096)}}, in(kLong));
    pair.reader.done(*batch);
    REQUIRE_OK(pair.reader->unregister(pair.local_id, in(kLong)));
    REQUIRE_OK(pair.reader->close(*batch));
  }
}

TCP_TEST_CASE("xfer/tcp: a request made with an old descriptor after unregister is refused by the holder") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  REQUIRE_OK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)));
  const auto got = ask(client, frame(FrameType::read, 1, pair.kv_id, 0, 8));
  CHECK(got.header.code() == Code::not_found);
  CHECK(got.text().find("requested with descriptor version 0, now 4") != std::string::npos);
  // ids are not reused: the next registration gets another
  auto again = mem::SharedBuffer::create(4096);
  auto id = pair.holder->register_buffer(*again, {"kv", AccessClass::blocks});
  REQUIRE_OK(id);
  CHECK(static_cast<uint32_t>(*id) > pair.landing_id);
}

TEST_CASE("xfer: options that cannot work are refused by name") {
  const auto text = [](Options options) {
    auto opened = open_engine(options);
    REQUIRE(!opened);
    CHECK(opened.error().code == Code::invalid);
    return opened.error().what;
  };
  CHECK(text({.name = ""}).find("name") != std::string::npos);
  CHECK(text({.secret = "short"}).find("32 bytes") != std::string::npos);
  CHECK(text({.transport = "tcp,carrier-pigeon"}).find("carrier-pigeon") != std::string::npos);
  CHECK(text({.transport = "tcp,tcp"}).find("twice") != std::string::npos);
  CHECK(text({.tcp_bind = "0.0.0.0:0"}).find("secret") != std::string::npos);
  CHECK(text({.transport = "tcp", .tcp_bind = "0.0.0.0:0"}).find("secret") != std::string::npos);
  CHECK(text({.transport = "tcp", .tcp_bind = "0.0.0.0:0", .insecure = true}).find("tcp_advertise") !=
        std::string::npos);
  CHECK(text({.tcp_bind = "nonsense:port"}).find("tcp_bind") != std::string::npos);
  CHECK(text({.tcp_streams = 64}).find("tcp_streams") != std::string::npos);
  CHECK(text({.slice_bytes_min = 1 << 20, .slice_bytes_max = 1 << 16}).find("slice") != std::string::npos);
}

}  // namespace bounds_test

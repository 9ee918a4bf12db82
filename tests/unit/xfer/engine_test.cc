// Every operation over every transport, between two engines of this process and real sockets.
#include <poll.h>

#include "base/fd.h"
#include "base/hash.h"
#include "pair.h"

namespace engine_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {
const std::vector<std::string> kTransports = {"tcp", "tcp-uring", "shm", "shm-engine", "auto"};
}

TEST_CASE("xfer: a read brings the peer's bytes, whatever the transport and size") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{4096}, size_t{65536}, size_t{65537},
                               size_t{1} << 20, Pair::kDefaultBytes}) {
      CAPTURE(bytes);
      fill(pair.local.bytes(), 1);
      std::vector<RequestResult> results;
      CHECK(pair.reader.run({{pair.read(0, 0, bytes)}}, &results) == Code::ok);
      CHECK(equal(pair.local.bytes().first(bytes), pair.kv.bytes().first(bytes)));
      REQUIRE(results.size() == 1);
      CHECK(results[0].bytes == bytes);
    }
  }
}

TEST_CASE("xfer: a write lands in the peer's landing buffer") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    fill(pair.local.bytes(), 3);
    for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{300000}, size_t{3} << 20}) {
      CHECK(pair.reader.run({{pair.write(5, 77, bytes)}}) == Code::ok);
      CHECK(equal(pair.local.bytes().subspan(5, bytes), pair.landing.bytes().subspan(77, bytes)));
    }
  }
}

TEST_CASE("xfer: many scattered pieces arrive each in its own place") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    std::vector<Request> requests;
    for (size_t i = 0; i < 256; ++i) requests.push_back(pair.read((255 - i) * 4096, i * 8192, 4096));
    CHECK(pair.reader.run(requests) == Code::ok);
    for (size_t i = 0; i < 256; ++i)
      CHECK(equal(pair.local.bytes().subspan((255 - i) * 4096, 4096), pair.kv.bytes().subspan(i * 8192, 4096)));
  }
}

TEST_CASE("xfer/shm: a small batch is done when submit returns, a large one goes to the engine") {
  Pair pair("shm", Pair::kDefaultBytes, {}, {.here_bytes_max = 65536});
  auto small = pair.reader->submit({{pair.read(0, 0, 40000), pair.read(40000, 0, 25536)}}, in(kLong), 5);
  REQUIRE_OK(small);
  REQUIRE(pair.reader->results(*small).size() == 2);
  REQUIRE_OK(pair.reader->close(*small));
  const Event event = pair.reader.wait(Event::Kind::batch_done);
  CHECK(event.batch == *small);
  CHECK(event.cookie == 5);
  CHECK(!event.quarantined);
  CHECK(pair.reader.run({{pair.read(0, 0, 65537)}}) == Code::ok);
  const Counters counters = pair.reader->counters();
  CHECK(counters.batches_submitted == 2);
  CHECK(counters.batches_done == 2);
  CHECK(counters.batches_open == 0);
  CHECK(counters.slices_posted == 4);  // the large one in two
}

TEST_CASE("xfer/shm: once disconnect() was called, submit no longer copies") {
  Pair pair("shm");
  pair.reader->disconnect(pair.peer);
  CHECK(pair.reader.run({{pair.read(0, 0, 100)}}) == Code::not_found);
}

TEST_CASE("xfer: the event descriptor is readable when events wait, also those from before it was asked for") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    auto batch = pair.reader->submit({{pair.read(0, 0, 100)}}, in(kLong));
    REQUIRE_OK(batch);
    REQUIRE_OK(pair.reader->close(*batch, in(kLong)));
    const int fd = pair.reader->event_fd();
    REQUIRE_OK(wait_fd(fd, POLLIN, in(kLong)));
    pair.reader.done(*batch);
    CHECK(!wait_fd(fd, POLLIN, in(0ms)).has_value());  // nothing waits: not readable
    auto next = pair.reader->submit({{pair.read(0, 0, 100)}}, in(kLong));
    REQUIRE_OK(next);
    REQUIRE_OK(wait_fd(fd, POLLIN, in(kLong)));
    pair.reader.done(*next);
    REQUIRE_OK(pair.reader->close(*next, in(kLong)));
  }
}

TEST_CASE("xfer: 64 MiB arrive whole and with the expected checksum") {
  for (const auto& transport : {std::string("tcp"), std::string("shm")}) {
    CAPTURE(transport);
    Pair pair(transport, size_t{64} << 20);
    Request request = pair.read(0, 0, size_t{64} << 20);
    request.crc32c = crc32c(pair.kv.bytes());
    CHECK(pair.reader.run({{request}}) == Code::ok);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  }
}

TEST_CASE("xfer: a wrong expected checksum makes that request corrupt and no other") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    std::vector<Request> requests = {pair.read(0, 0, 300001), pair.read(1 << 20, 0, 300001), pair.read(2 << 20, 5, 1)};
    for (auto& request : requests)
      request.crc32c = crc32c(pair.kv.bytes().subspan(request.offset, request.local.size()));
    requests[1].crc32c = *requests[1].crc32c ^ 1;
    std::vector<RequestResult> results;
    CHECK(pair.reader.run(requests, &results) == Code::corrupt);
    CHECK(results[0].code == Code::ok);
    CHECK(results[1].code == Code::corrupt);
    CHECK(results[2].code == Code::ok);
    CHECK(pair.reader->counters().checksum_failures == 1);
  }
}

TEST_CASE("xfer: notifies arrive once, in order, both ways") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    const Event up = pair.holder.wait(Event::Kind::peer_up);
    auto talk = [&](Node& from, PeerId to, Node& at) {
      constexpr uint32_t kCount = 5000;
      uint32_t heard = 0;
      const auto hear = [&] {
        const Event event = at.wait(Event::Kind::notify);
        uint32_t value;
        REQUIRE(event.bytes.size() >= 4);
        std::memcpy(&value, event.bytes.data(), 4);
        CHECK(value == heard);
        CHECK(event.bytes.size() == 4 + value % 4093);
        ++heard;
      };
      for (uint32_t i = 0; i < kCount;) {
        std::vector<std::byte> message(4 + i % 4093);
        std::memcpy(message.data(), &i, 4);
        const Code code = from->notify(to, message);
        if (code == Code::busy) {
          hear();
          continue;
        }
        REQUIRE(code == Code::ok);
        ++i;
      }
      while (heard < kCount) hear();
    };
    talk(pair.reader, pair.peer, pair.holder);
    talk(pair.holder, up.peer, pair.reader);
  }
}

TEST_CASE("xfer: both sides read each other at once") {
  for (const auto& transport : kTransports) {
    CAPTURE(transport);
    Pair pair(transport);
    const Event up = pair.holder.wait(Event::Kind::peer_up);
    auto shared = mem::SharedBuffer::create(2 << 20);
    auto scratch = mem::HostBuffer::allocate(2 << 20);
    fill(shared->bytes(), 99);
    auto offered = pair.reader->register_buffer(*shared, {"back", AccessClass::blocks});
    auto target = pair.holder->register_buffer(scratch->bytes(), {"scratch"});
    REQUIRE_OK(offered);
    REQUIRE_OK(target);
    while (pair.holder->descriptor(up.peer)->find("back") == nullptr) pair.holder.wait(Event::Kind::peer_changed);
    std::vector<Request> there;
    std::vector<Request> back;
    for (size_t i = 0; i < 400; ++i) {
      there.push_back(pair.read(i * 4096, i * 5000, 4096));
      back.push_back({.op = Op::read,
                      .peer = up.peer,
                      .local = scratch->bytes().subspan(i * 4096, 4096),
                      .buffer = static_cast<uint32_t>(*offered),
                      .offset = i * 5000});
    }
    auto first = pair.reader->submit(there, in(kLong));
    auto second = pair.holder->submit(back, in(kLong));
    CHECK(pair.reader.done(*first).code == Code::ok);
    CHECK(pair.holder.done(*second).code == Code::ok);
    for (size_t i = 0; i < 400; ++i) {
      CHECK(equal(pair.local.bytes().subspan(i * 4096, 4096), pair.kv.bytes().subspan(i * 5000, 4096)));
      CHECK(equal(scratch->bytes().subspan(i * 4096, 4096), shared->bytes().subspan(i * 5000, 4096)));
    }
    pair.reader.engine.reset();
    pair.holder.engine.reset();
  }
}

}  // namespace engine_test

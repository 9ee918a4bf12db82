// Writes over tcp are acknowledged together: what one ack stands for, and what a peer may not make of it.
#include <algorithm>

#include "raw_peer.h"

namespace ack_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

std::vector<std::byte> bytes_of(size_t count, uint64_t seed) {
  std::vector<std::byte> out(count);
  fill(out, seed);
  return out;
}

FrameHeader together(FrameHeader header) {
  header.flags |= wire::kFrameTogether;
  return header;
}

void append(std::vector<std::byte>& out, const FrameHeader& header, std::span<const std::byte> payload) {
  const auto head = wire::encode(header);
  out.insert(out.end(), head.begin(), head.end());
  out.insert(out.end(), payload.begin(), payload.end());
}

uint64_t failures(Node& node, const std::string& reason) {
  for (const auto& [what, count] : node->counters().failures)
    if (what == reason) return count;
  return 0;
}

}  // namespace

TCP_TEST_CASE("xfer/tcp: small writes that come together are acknowledged together, a bad one for itself") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  const auto bytes = bytes_of(100, 3);
  std::vector<std::byte> all;
  for (uint64_t id = 1; id <= 8; ++id) {
    FrameHeader header = together(guarded(frame(FrameType::write, id, pair.landing_id, id * 100, 100), bytes));
    if (id == 5) header.payload_crc ^= 1;
    append(all, header, bytes);
  }
  REQUIRE(client.data.send(all));
  // every write is answered once, in order, by itself or by the first good ack behind it
  uint64_t answered = 0;
  size_t acks = 0;
  while (answered < 8) {
    const auto ack = client.data.receive();
    REQUIRE(ack.has_value());
    CHECK(ack->header.kind() == FrameType::ack);
    REQUIRE(ack->header.id > answered);
    ++acks;
    if (ack->header.code() != Code::ok) {
      CHECK(ack->header.id == 5);
      CHECK(answered == 4);
    } else {
      CHECK((ack->header.flags & wire::kFrameTogether) != 0);
      CHECK((answered >= 5 || ack->header.id < 5));
    }
    answered = ack->header.id;
  }
  CHECK(acks < 8);
  CHECK(pair.holder->counters().requests_served == 7);
  for (uint64_t id : {1, 4, 6, 8}) CHECK(equal(pair.landing.bytes().subspan(id * 100, 100), bytes));
  // who does not ask for it gets an ack each
  all.clear();
  for (uint64_t id = 9; id <= 10; ++id)
    append(all, guarded(frame(FrameType::write, id, pair.landing_id, 0, 100), bytes), bytes);
  REQUIRE(client.data.send(all));
  for (uint64_t id = 9; id <= 10; ++id) {
    const auto ack = client.data.receive();
    REQUIRE(ack.has_value());
    CHECK(ack->header.id == id);
    CHECK(ack->header.flags == 0);
  }
}

TCP_TEST_CASE("xfer/tcp: an ack before a read's answer goes out before it") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  const auto bytes = bytes_of(64, 4);
  std::vector<std::byte> all;
  append(all, together(guarded(frame(FrameType::write, 1, pair.landing_id, 0, 64), bytes)), bytes);
  append(all, frame(FrameType::read, 2, pair.kv_id, 0, 64), {});
  append(all, together(guarded(frame(FrameType::write, 3, pair.landing_id, 64, 64), bytes)), bytes);
  REQUIRE(client.data.send(all));
  for (uint64_t id = 1; id <= 3; ++id) {
    const auto answer = client.data.receive();
    REQUIRE(answer.has_value());
    CHECK(answer->header.id == id);
    CHECK(answer->header.kind() == (id == 2 ? FrameType::data : FrameType::ack));
  }
}

TCP_TEST_CASE("xfer/tcp: between writes nothing is pinned, and each of a row is checked for itself") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  const auto bytes = bytes_of(64, 5);
  const uint64_t end = pair.landing.size();
  struct Row {
    uint32_t buffer;
    uint64_t offset;
    bool fine;
  };
  const Row rows[] = {{pair.landing_id, 0, true},
                      {pair.landing_id, end - 64, true},
                      {pair.landing_id, end - 63, false},
                      {pair.landing_id, 64, true},
                      {pair.kv_id, 0, false},
                      {pair.landing_id, 128, true},
                      {0, 0, false},
                      {pair.landing_id, UINT64_MAX, false}};
  std::vector<std::byte> all;
  uint64_t id = 0;
  for (const Row& row : rows)
    append(all, guarded(frame(FrameType::write, ++id, row.buffer, row.offset, 64), bytes), bytes);
  REQUIRE(client.data.send(all));
  for (const Row& row : rows) {
    const auto ack = client.data.receive();
    REQUIRE(ack.has_value());
    CHECK((ack->header.code() == Code::ok) == row.fine);
  }
  // one that stops in the middle of a refused write holds nothing
  const auto head = wire::encode(together(guarded(frame(FrameType::write, ++id, pair.kv_id, 0, 64), bytes)));
  REQUIRE(client.data.send(head));
  REQUIRE_OK(pair.holder->unregister(BufferId{pair.landing_id}, in(kLong)));
  REQUIRE(client.data.send(bytes));
  CHECK(client.data.receive()->header.code() == Code::invalid);
  REQUIRE(client.data.send(together(guarded(frame(FrameType::write, ++id, pair.landing_id, 0, 64), bytes)), bytes));
  CHECK(client.data.receive()->header.code() == Code::not_found);
}

TCP_TEST_CASE("xfer/tcp: a peer whose writes never pause does not keep a revoked buffer") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  const auto bytes = bytes_of(64, 6);
  const std::span<const std::byte> first = std::span(bytes).first(32);
  const std::span<const std::byte> rest = std::span(bytes).subspan(32);
  // each send ends one write and begins the next
  const auto send = [&](uint64_t id) {
    std::vector<std::byte> all(rest.begin(), rest.end());
    if (id == 1) all.clear();
    append(all, together(guarded(frame(FrameType::write, id, pair.landing_id, id * 64, 64), bytes)), first);
    REQUIRE(client.data.send(all));
    if (id == 1) return Code::ok;
    const auto ack = client.data.receive();
    REQUIRE(ack.has_value());
    CHECK(ack->header.id == id - 1);
    return ack->header.code();
  };
  for (uint64_t id = 1; id <= 4; ++id) CHECK(send(id) == Code::ok);
  const auto busy = pair.holder->unregister(BufferId{pair.landing_id}, in(1ms));
  REQUIRE(!busy);
  CHECK(busy.error().code == Code::timeout);
  CHECK(send(5) == Code::ok);  // the fourth had begun
  REQUIRE_OK(pair.holder->unregister(BufferId{pair.landing_id}, in(kLong)));
  CHECK(send(6) == Code::not_found);
}

TCP_TEST_CASE("xfer/tcp: one ack ends every write before it, and reads wait for their own answers") {
  RawPair pair;
  std::vector<Request> requests;
  for (size_t i = 0; i < 4; ++i) {
    requests.push_back(i == 1 ? pair.read(4096) : pair.write(4096));
    requests.back().local = pair.local.bytes().subspan(i * 4096, 4096);
  }
  auto batch = pair.reader->submit(requests, in(kLong));
  REQUIRE_OK(batch);
  std::vector<FrameHeader> asked;
  for (size_t i = 0; i < 4; ++i) {
    const auto got = pair.server.data.receive();
    REQUIRE(got.has_value());
    asked.push_back(got->header);
    CHECK(((got->header.flags & wire::kFrameTogether) != 0) == (got->header.kind() == FrameType::write));
  }
  REQUIRE(pair.server.data.send(together(frame(FrameType::ack, asked[3].id))));
  const auto bytes = bytes_of(4096, 8);
  REQUIRE(pair.server.data.send(guarded(frame(FrameType::data, asked[1].id, 0, 0, 4096), bytes), bytes));
  CHECK(pair.reader.done(*batch).code == Code::ok);
  CHECK(equal(pair.local.bytes().subspan(4096, 4096), bytes));
  REQUIRE_OK(pair.reader->close(*batch));
  CHECK(pair.reader->counters().slices_in_flight == 0);
}

TCP_TEST_CASE("xfer/tcp: a peer that acknowledges what has not been sent is closed, and the memory is free") {
  for (const bool as_one : {false, true}) {
    Options options;
    options.slice_bytes_min = options.slice_bytes_max = RawPair::kBytes;
    RawPair pair(options);
    // one frame larger than all buffers of a connection: most of it is still here when the ack comes
    auto batch = pair.reader->submit({{pair.write(RawPair::kBytes)}}, in(kLong));
    REQUIRE_OK(batch);
    wire::FrameBytes head;
    REQUIRE_OK(read_all(pair.server.data.fd.get(), head, in(kLong)));
    FrameHeader header;
    const char* why = nullptr;
    REQUIRE(wire::decode(head, header, why) == Code::ok);
    const FrameHeader ack = frame(FrameType::ack, header.id);
    REQUIRE(pair.server.data.send(as_one ? together(ack) : ack));
    CHECK(pair.reader.wait(Event::Kind::peer_lost).code != Code::ok);
    CHECK(failures(pair.reader, "write acknowledged before it was sent") == 1);
    pair.server.listener.reset();
    CHECK(pair.reader.done(*batch).code == Code::peer_lost);
    REQUIRE_OK(pair.reader->close(*batch));
  }
}

TEST_CASE("xfer/tcp: thousands of small writes cost few acks and all land") {
  Pair pair("tcp", size_t{16} << 20, {}, {.tcp_streams = 1});
  fill(pair.local.bytes(), 21);
  std::vector<Request> requests;
  for (size_t i = 0; i < 4096; ++i) requests.push_back(pair.write(i * 4096, (4095 - i) * 4096, 4096));
  CHECK(pair.reader.run(requests) == Code::ok);
  for (size_t i = 0; i < 4096; ++i)
    if (!equal(pair.local.bytes().subspan(i * 4096, 4096), pair.landing.bytes().subspan((4095 - i) * 4096, 4096)))
      FAIL("piece " << i << " is wrong");
  CHECK(pair.holder->counters().requests_served == 4096);
}

TCP_TEST_CASE("xfer/tcp: a write left in an older connection does not land behind its retry") {
  Pair pair("tcp");
  const std::string uri = pair.holder->uris()[0];
  const auto stale = bytes_of(4096, 7), fresh = bytes_of(4096, 8);
  RawClient old(uri, 5, 1);
  const FrameHeader late = guarded(frame(FrameType::write, 1, pair.landing_id, 0, 4096), stale);
  REQUIRE(old.data.send(late, std::span(stale).first(1000)));
  REQUIRE(old.data.send(std::span(stale).subspan(1000, 1)));
  RawClient other(uri, 6, 1);  // another line of the same process: both live on
  RawClient again(uri, 5, 2);
  REQUIRE(again.data.send(guarded(frame(FrameType::write, 1, pair.landing_id, 0, 4096), fresh), fresh));
  CHECK(again.data.receive()->header.code() == Code::ok);
  CHECK(old.control.closed());
  CHECK(equal(pair.landing.bytes().first(4096), fresh));
  (void)old.data.send(std::span(stale).subspan(1001));  // too late, whether the socket says so already or not
  REQUIRE(other.data.send(guarded(frame(FrameType::write, 2, pair.landing_id, 8192, 4096), fresh), fresh));
  CHECK(other.data.receive()->header.code() == Code::ok);
  CHECK(equal(pair.landing.bytes().first(4096), fresh));
}

TCP_TEST_CASE("xfer/tcp: a connection that was overtaken on its way is refused") {
  Pair pair("tcp");
  const std::string uri = pair.holder->uris()[0];
  RawClient second(uri, 5, 2);
  RawSocket late = dial_raw(uri);
  wire::XferHello hello{.instance = second.self, .lane_count = 2, .name = "raw"};
  hello.connection.bytes.fill(5);
  hello.connection.bytes[15] = 1;
  REQUIRE(late.send(FrameType::hello, wire::encode(hello)));
  REQUIRE(late.receive()->header.kind() == FrameType::challenge);
  std::vector<std::byte> proof(32);
  const auto descriptor = wire::encode(raw_descriptor(second.self));
  proof.insert(proof.end(), descriptor.begin(), descriptor.end());
  REQUIRE(late.send(FrameType::proof, std::move(proof)));
  CHECK(late.closed());
  const auto bytes = bytes_of(64, 9);
  REQUIRE(second.data.send(guarded(frame(FrameType::write, 1, pair.landing_id, 0, 64), bytes), bytes));
  CHECK(second.data.receive()->header.code() == Code::ok);
}

}  // namespace ack_test

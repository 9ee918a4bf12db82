// Peers that lie, stall, flood or speak something else. Each is closed with a counted reason; nobody
// else notices.
#include <functional>
#include <map>

#include "raw_peer.h"

namespace hostile_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

std::map<std::string, uint64_t> failures(Node& node) {
  const auto counters = node->counters();
  return {counters.failures.begin(), counters.failures.end()};
}

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count);
  fill(bytes, seed);
  return bytes;
}

/// The pair still works.
void check_alive(Pair& pair) {
  CHECK(pair.reader.run({{pair.read(0, 100, 5000)}}) == Code::ok);
}

}  // namespace

TCP_TEST_CASE("xfer/tcp: garbage instead of a handshake closes that connection only") {
  Pair pair("tcp");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RawSocket raw = dial_raw(pair.holder->uris()[0]);
    raw.send(random_bytes(1 + seed * 40, mc::test::seed() + seed));
    if (seed < 2) continue;  // less than a header: it waits for more until its deadline
    CHECK(raw.closed());
  }
  RawSocket http = dial_raw(pair.holder->uris()[0]);
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: someone who took the wrong port\r\n\r\n";
  http.send(std::as_bytes(std::span(get)));
  const auto answer = http.receive();  // even a stranger is told why
  REQUIRE(answer.has_value());
  CHECK(answer->header.kind() == FrameType::refuse);
  CHECK(answer->text().find("bad magic") != std::string::npos);
  CHECK(http.closed());
  CHECK(failures(pair.holder)["bad magic"] >= 10);
  check_alive(pair);
}

TCP_TEST_CASE("xfer/tcp: transfers before the handshake, and frames out of order, are refused") {
  Pair pair("tcp");
  const std::string uri = pair.holder->uris()[0];
  RawSocket early = dial_raw(uri);
  early.send(frame(FrameType::read, 1, pair.kv_id, 0, 4096));
  CHECK(early.receive()->header.kind() == FrameType::refuse);
  CHECK(early.closed());
  RawSocket proof = dial_raw(uri);
  proof.send(FrameType::proof, std::vector<std::byte>(32));
  CHECK(proof.closed());
  RawSocket hello = dial_raw(uri);
  hello.send(FrameType::hello, random_bytes(100, 4));
  CHECK(hello.closed());
  RawSocket long_hello = dial_raw(uri);
  FrameHeader header = frame(FrameType::hello);
  header.length = wire::kHelloBytesMax + 1;
  long_hello.send(header);
  CHECK(long_hello.closed());
  auto seen = failures(pair.holder);
  CHECK(seen["transfer before the handshake"] == 1);
  CHECK(seen["handshake: frame out of order"] == 1);
  CHECK(seen["handshake: malformed hello"] == 1);
  CHECK(seen["length beyond the bound of its type"] == 1);
  check_alive(pair);
}

TCP_TEST_CASE("xfer/tcp: another protocol version is refused with both numbers") {
  Pair pair("tcp");
  RawSocket raw = dial_raw(pair.holder->uris()[0]);
  FrameHeader header = frame(FrameType::hello);
  header.version = 9;
  raw.send(header);
  const auto answer = raw.receive();
  REQUIRE(answer.has_value());
  CHECK(answer->header.kind() == FrameType::refuse);
  CHECK(answer->header.code() == Code::unsupported);
  CHECK(answer->text().find("protocol version 9") != std::string::npos);
  CHECK(answer->text().find("this process uses " + std::to_string(wire::kXferVersion)) != std::string::npos);
}

TCP_TEST_CASE("xfer/tcp: a silent connection is closed when its handshake is overdue") {
  Options options;
  options.connect_timeout = 50ms;
  Pair pair("tcp", Pair::kDefaultBytes, options);
  const uint64_t before = failures(pair.holder)["handshake: timeout"];  // the reader's own, on a busy machine
  RawSocket raw = dial_raw(pair.holder->uris()[0]);
  CHECK(raw.closed());
  CHECK(failures(pair.holder)["handshake: timeout"] == before + 1);
  check_alive(pair);
}

TCP_TEST_CASE("xfer/tcp: a crowd of strangers is bounded and holds nobody up") {
  Pair pair("tcp");
  std::vector<RawSocket> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(dial_raw(pair.holder->uris()[0]));
  // the first ones are waited for, the rest are not
  CHECK(crowd.back().closed());
  CHECK(failures(pair.holder)["accept: too many connections"] > 0);
  check_alive(pair);
  crowd.clear();
  Node late("late", "tcp");  // there is room again
  REQUIRE_OK(late->connect(pair.holder->describe(), in(kLong)));
  late.wait(Event::Kind::peer_up);
}

TCP_TEST_CASE("xfer/tcp: a peer with more requests outstanding than a lane allows is closed") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  for (uint64_t i = 0; i < 5000; ++i)
    if (!client.data.send(frame(FrameType::read, i, pair.kv_id, 0, 1 << 20))) break;
  CHECK(client.data.closed());
  CHECK(failures(pair.holder)["more requests outstanding than a lane allows"] == 1);
  check_alive(pair);
  // every pin of the answers it never took is back
  REQUIRE_OK(pair.holder->unregister(BufferId{pair.kv_id}, in(kLong)));
}

TCP_TEST_CASE("xfer/tcp: notifies beyond what the caller takes stop being read, then go on") {
  Options options;
  options.events_max = 16;
  Pair pair("tcp", Pair::kDefaultBytes, options);
  pair.holder.wait(Event::Kind::peer_up);
  const std::vector<std::byte> message(4096, std::byte{3});
  size_t sent = 0;
  // queues on both sides and the sockets between them take a bounded number
  const TimePoint deadline = in(kLong);
  while (SystemClock::instance().now() < deadline) {
    const Code code = pair.reader->notify(pair.peer, message);
    if (code == Code::busy && pair.reader->counters().notifies_sent == sent) break;
    if (code == Code::ok) continue;
    REQUIRE(code == Code::busy);
    sent = pair.reader->counters().notifies_sent;
    check_alive(pair);  // transfers are not held up; and time passes
  }
  const uint64_t waiting = pair.reader->counters().notifies_sent;
  CHECK(waiting < 100000);
  for (size_t heard = 0; heard < waiting; ++heard) pair.holder.wait(Event::Kind::notify);
  while (pair.reader->notify(pair.peer, message) == Code::busy) pair.holder.wait(Event::Kind::notify);
  pair.holder.wait(Event::Kind::notify);
}

TCP_TEST_CASE("xfer/tcp: answers nobody asked for, of the wrong length, or broken close the connection") {
  struct Lie {
    const char* what;
    const char* reason;
    std::function<void(RawServer&, const FrameHeader&)> tell;
  };
  const auto data = [](uint64_t id, size_t length) { return frame(FrameType::data, id, 0, 0, length); };
  const std::vector<Lie> lies = {
      {"other id", "answer without a request",
       [&](RawServer& s, const FrameHeader& asked) { s.data.send(data(asked.id + 1, 4096), random_bytes(4096, 1)); }},
      {"too long", "answer of another length than requested",
       [&](RawServer& s, const FrameHeader& asked) { s.data.send(data(asked.id, 8192), random_bytes(8192, 1)); }},
      {"too short", "answer of another length than requested",
       [&](RawServer& s, const FrameHeader& asked) { s.data.send(data(asked.id, 100), random_bytes(100, 1)); }},
      {"enormous", "length beyond the bound of its type",
       [&](RawServer& s, const FrameHeader& asked) { s.data.send(data(asked.id, size_t{1} << 40)); }},
      {"ack for a read", "answer without a request",
       [&](RawServer& s, const FrameHeader& asked) { s.data.send(frame(FrameType::ack, asked.id)); }},
      {"notify on a data lane", "unexpected on a data lane",
       [&](RawServer& s, const FrameHeader&) { s.data.send(frame(FrameType::notify)); }},
      {"data on the control lane", "unexpected on a control lane",
       [&](RawServer& s, const FrameHeader& asked) { s.control.send(data(asked.id, 4096)); }},
      {"foreign descriptor", "malformed or foreign descriptor",
       [&](RawServer& s, const FrameHeader&) {
         s.control.send(FrameType::describe, wire::encode(raw_descriptor(instance(9))));
       }},
      {"no checksum", "answer without the requested checksum",
       [&](RawServer& s, const FrameHeader& asked) { s.data.send(data(asked.id, 4096), random_bytes(4096, 1)); }},
      {"flipped bit", "bad header checksum",
       [&](RawServer& s, const FrameHeader& asked) {
         auto head = wire::encode(data(asked.id, 4096));
         head[30] ^= std::byte{1};
         s.data.send(head);
       }},
      {"unknown type", "unknown frame type",
       [&](RawServer& s, const FrameHeader&) {
         FrameHeader odd = frame(FrameType::data);
         odd.type = 200;
         s.data.send(odd);
       }},
  };
  for (const Lie& lie : lies) {
    CAPTURE(lie.what);
    RawPair pair;
    auto batch = pair.reader->submit({{pair.read(4096)}}, in(kLong));
    REQUIRE_OK(batch);
    const auto asked = pair.server.data.receive();
    REQUIRE(asked.has_value());
    CHECK(asked->header.kind() == FrameType::read);
    lie.tell(pair.server, asked->header);
    CHECK(pair.reader.wait(Event::Kind::peer_lost).code != Code::ok);
    CHECK(failures(pair.reader)[lie.reason] == 1);
    pair.server.listener.reset();  // it will not be found again
    CHECK(pair.reader.done(*batch).code == Code::peer_lost);
    CHECK(pair.reader->close(*batch).has_value());
    CHECK(pair.reader->counters().slices_in_flight == 0);
  }
}

TCP_TEST_CASE("xfer/tcp: a read whose bytes fail their checksum is asked for again, and corrupt when it stays so") {
  RawPair pair({.attempts_max = 3});
  const auto bytes = random_bytes(4096, 3);
  for (const int lies : {1, 3}) {
    CAPTURE(lies);
    auto batch = pair.reader->submit({{pair.read(4096)}}, in(kLong));
    for (int attempt = 1; attempt <= std::min(lies + 1, 3); ++attempt) {
      const auto asked = pair.server.data.receive();
      REQUIRE(asked.has_value());
      CHECK((asked->header.flags & wire::kFrameHasPayloadCrc) != 0);
      FrameHeader answer = guarded(frame(FrameType::data, asked->header.id, 0, 0, 4096), bytes);
      if (attempt <= lies) answer.payload_crc ^= 0x80;
      pair.server.data.send(answer, bytes);
    }
    const Event event = pair.reader.done(*batch);
    CHECK(event.code == (lies == 3 ? Code::corrupt : Code::ok));
    CHECK((lies == 1 || event.text.find("checksum (attempt 3)") != std::string::npos));
    REQUIRE_OK(pair.reader->close(*batch));
  }
  CHECK(pair.reader->counters().slices_retried == 3);
}

TCP_TEST_CASE("xfer/tcp: a read that names the checksum to expect asks for no second one") {
  RawPair pair;
  const auto bytes = random_bytes(4096, 3);
  for (const uint32_t flip : {0u, 1u}) {
    Request request = pair.read(4096);
    request.crc32c = crc32c(bytes) ^ flip;
    auto batch = pair.reader->submit({{request}}, in(kLong));
    const auto asked = pair.server.data.receive();
    REQUIRE(asked.has_value());
    CHECK(asked->header.flags == 0);
    pair.server.data.send(frame(FrameType::data, asked->header.id, 0, 0, 4096), bytes);
    CHECK(pair.reader.done(*batch).code == (flip == 0 ? Code::ok : Code::corrupt));
    REQUIRE_OK(pair.reader->close(*batch));
  }
}

TCP_TEST_CASE("xfer/tcp: a write is acknowledged only when its bytes have their checksum") {
  Pair pair("tcp");
  RawClient client(pair.holder->uris()[0]);
  const auto bytes = random_bytes(5000, 3);
  FrameHeader header = guarded(frame(FrameType::write, 1, pair.landing_id, 0, bytes.size()), bytes);
  client.data.send(header, bytes);
  CHECK(client.data.receive()->header.code() == Code::ok);
  header.id = 2;
  header.payload_crc ^= 1;
  client.data.send(header, bytes);
  const auto refused = client.data.receive();
  CHECK(refused->header.id == 2);
  CHECK(refused->header.code() == Code::corrupt);
  CHECK(refused->text().find("payload fails its checksum") != std::string::npos);
  CHECK(failures(pair.holder)["payload fails its checksum"] == 1);
  const Counters counters = pair.holder->counters();
  CHECK(counters.requests_served == 1);
  CHECK(counters.requests_refused == 1);
  for (const auto& flow : counters.flows) CHECK(flow.landed_bytes == (flow.transport == "tcp" ? bytes.size() : 0));
  // a write of ours carries one
  RawPair other;
  auto batch = other.reader->submit({{other.write(4096)}}, in(kLong));
  const auto got = other.server.data.receive();
  CHECK((got->header.flags & wire::kFrameHasPayloadCrc) != 0);
  CHECK(got->header.payload_crc == crc32c(got->payload));
  other.server.data.send(frame(FrameType::ack, got->header.id));
  CHECK(other.reader.done(*batch).code == Code::ok);
  REQUIRE_OK(other.reader->close(*batch));
}

TCP_TEST_CASE("xfer/tcp: a peer that stops in the middle of a write is closed, and the landing buffer is free") {
  Options options;
  options.stall_timeout = 50ms;
  Pair pair("tcp", Pair::kDefaultBytes, options);
  RawClient client(pair.holder->uris()[0]);
  const auto bytes = random_bytes(65536, 3);
  client.data.send(frame(FrameType::write, 1, pair.landing_id, 4096, bytes.size()), random_bytes(1000, 3));
  CHECK(client.data.closed());
  CHECK(failures(pair.holder)["stalled lane"] == 1);
  REQUIRE_OK(pair.holder->unregister(BufferId{pair.landing_id}, in(kLong)));
  check_alive(pair);
}

TCP_TEST_CASE("xfer/tcp: a peer that dies in the middle of a write leaves no pin and touches nothing after") {
  Pair pair("tcp");
  const auto bytes = random_bytes(65536, 3);
  for (const size_t sent : {size_t{0}, size_t{1}, size_t{40000}}) {
    RawClient client(pair.holder->uris()[0]);
    client.data.send(frame(FrameType::write, 1, pair.landing_id, 0, bytes.size()), std::span(bytes).first(sent));
  }
  REQUIRE_OK(pair.holder->unregister(BufferId{pair.landing_id}, in(kLong)));
  CHECK(!equal(pair.landing.bytes().first(bytes.size()), bytes));
  CHECK(pair.landing.bytes()[40000] == std::byte{0});
  check_alive(pair);
}

TCP_TEST_CASE("xfer/tcp: a peer that floods with writes and takes no answer is bounded") {
  Options options;
  options.stall_timeout = 200ms;
  Pair pair("tcp", Pair::kDefaultBytes, options);
  RawClient client(pair.holder->uris()[0]);
  const std::vector<std::byte> none;
  // refused writes with long texts as answers, which nobody reads: the holder must not pile them up
  bool closed = false;
  for (uint64_t i = 0; i < 200000 && !closed; ++i)
    closed = !client.data.send(frame(FrameType::write, i, 12345, 0, 0), none);
  CHECK(closed);
  auto seen = failures(pair.holder);
  CHECK(seen["more requests outstanding than a lane allows"] + seen["stalled lane"] == 1);
  check_alive(pair);
}

TCP_TEST_CASE("xfer/tcp: a peer that stops in mid-frame costs the deadline, not the memory") {
  RawPair pair;
  auto batch = pair.reader->submit({{pair.read(65536)}}, in(2s), 42);
  const auto asked = pair.server.data.receive();
  FrameHeader answer = frame(FrameType::data, asked->header.id, 0, 0, 65536);
  answer.flags = wire::kFrameHasPayloadCrc;
  pair.server.data.send(answer, random_bytes(1000, 5));
  const Event event = pair.reader.done(*batch);
  CHECK(event.code == Code::timeout);
  CHECK(event.cookie == 42);
  CHECK(event.text.find("deadline") != std::string::npos);
  CHECK(!event.quarantined);  // received by us, so we know that nothing will be written any more
  REQUIRE_OK(pair.reader->close(*batch));
  fill(pair.local.bytes(), 1);
  const std::vector<std::byte> before(pair.local.bytes().begin(), pair.local.bytes().end());
  // the rest comes late: it must go nowhere, and the lane goes on
  pair.server.data.send(random_bytes(65536 - 1000, 6));
  auto again = pair.reader->submit({{pair.read(4096, 4096)}}, in(kLong));
  const auto second = pair.server.data.receive();
  CHECK(equal(pair.local.bytes(), before));
  const auto bytes = random_bytes(4096, 8);
  pair.server.data.send(guarded(frame(FrameType::data, second->header.id, 0, 0, 4096), bytes), bytes);
  CHECK(pair.reader.done(*again).code == Code::ok);
  CHECK(equal(pair.local.bytes().first(4096), bytes));
  REQUIRE_OK(pair.reader->close(*again));
}

TCP_TEST_CASE("xfer/tcp: a write that is half sent keeps its memory quarantined until the lane lets go") {
  Options options;
  options.drain_grace = 2s;  // outlasts the calls before the memory is free, on a busy host too
  options.slice_bytes_min = options.slice_bytes_max = RawPair::kBytes;
  RawPair pair(options);
  // one frame larger than all buffers of a connection: the server reads none of it, so it stays half sent
  auto batch = pair.reader->submit({{pair.write(RawPair::kBytes)}}, in(kLong));
  REQUIRE_OK(batch);
  REQUIRE_OK(wait_fd(pair.server.data.fd.get(), POLLIN, in(kLong)));
  pair.reader->cancel(*batch);
  const Event event = pair.reader.done(*batch);
  CHECK(event.code == Code::cancelled);
  CHECK(event.quarantined);
  CHECK(pair.reader->close(*batch).error().what.find("may still touch") != std::string::npos);
  // after the grace the lane is closed, and then the memory is free
  CHECK(pair.reader.wait(Event::Kind::peer_lost).text.find("held memory") != std::string::npos);
  CHECK(pair.reader.wait(Event::Kind::batch_released).batch == *batch);
  REQUIRE_OK(pair.reader->close(*batch));
  CHECK(pair.reader->counters().quarantined_bytes == 0);
  CHECK(pair.reader->counters().slices_in_flight == 0);
  CHECK(pair.reader->counters().batches_open == 0);
}

TCP_TEST_CASE("xfer/tcp: a cancelled write is released without harm when the peer reads on") {
  Options options;
  options.drain_grace = kLong;
  options.slice_bytes_min = options.slice_bytes_max = RawPair::kBytes;
  RawPair pair(options);
  auto batch = pair.reader->submit({{pair.write(RawPair::kBytes)}}, in(kLong));
  REQUIRE_OK(wait_fd(pair.server.data.fd.get(), POLLIN, in(kLong)));
  pair.reader->cancel(*batch);
  CHECK(pair.reader.done(*batch).quarantined);
  const auto frame_of_write = pair.server.data.receive();  // all of it
  REQUIRE(frame_of_write.has_value());
  CHECK(pair.reader.wait(Event::Kind::batch_released).batch == *batch);
  REQUIRE_OK(pair.reader->close(*batch));
  // its late ack is nobody's, and the lane goes on
  pair.server.data.send(frame(FrameType::ack, frame_of_write->header.id));
  auto next = pair.reader->submit({{pair.write(100)}}, in(kLong));
  const auto second = pair.server.data.receive();
  pair.server.data.send(frame(FrameType::ack, second->header.id));
  CHECK(pair.reader.done(*next).code == Code::ok);
  REQUIRE_OK(pair.reader->close(*next));
}

TCP_TEST_CASE("xfer/tcp: a lane with work and no progress is closed after the stall timeout") {
  Options options;
  options.stall_timeout = 50ms;
  RawPair pair(options);
  auto batch = pair.reader->submit({{pair.read(4096)}}, in(kLong));
  const Event lost = pair.reader.wait(Event::Kind::peer_lost);
  CHECK(lost.code == Code::timeout);
  CHECK(failures(pair.reader)["stalled lane"] == 1);
  pair.server.listener.reset();
  pair.reader->cancel(*batch);
  const Code code = pair.reader.done(*batch).code;
  CHECK((code == Code::cancelled || code == Code::peer_lost));
  REQUIRE_OK(pair.reader->close(*batch, in(kLong)));
}

}  // namespace hostile_test

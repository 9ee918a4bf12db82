// Strangers of this host who begin handshakes and do not end them as honest peers do.
#include "unit/xfer/raw_shm.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

TEST_CASE("xfer/shm: handshakes whose last frame cannot be sent are not counted for ever") {
  Pair pair("shm", 65536);
  const std::string uri = pair.holder->uris()[0];
  for (int i = 0; i < 300; ++i) {  // more than may be under way at once
    RawShm raw(uri);
    wire::XferHello hello{.instance = raw.self, .lane_count = 1, .name = "liar"};
    hello.connection.bytes.fill(5);
    REQUIRE(raw.send(FrameType::hello, wire::encode(hello)));
    REQUIRE(raw.receive() == FrameType::challenge);
    REQUIRE(::shutdown(raw.fd.get(), SHUT_RD) == 0);  // what the listener answers to the proof fails
    std::vector<std::byte> proof(32);
    const auto descriptor = wire::encode(raw_descriptor(raw.self));
    proof.insert(proof.end(), descriptor.begin(), descriptor.end());
    REQUIRE(raw.send(FrameType::proof, proof));
    const char one = 0;
    while (::send(raw.fd.get(), &one, 1, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN)
      REQUIRE_OK(wait_fd(raw.fd.get(), POLLOUT, in(kLong)));  // until it was closed
  }
  Node late("late", "shm");
  REQUIRE_OK(late->connect(pair.holder->describe(), in(kLong)));
  CHECK(late.wait([](const Event& event) {
          return event.kind == Event::Kind::peer_up || event.kind == Event::Kind::peer_lost;
        }).kind == Event::Kind::peer_up);
  for (const auto& [reason, count] : pair.holder->counters().failures) CHECK(reason != "accept: too many connections");
}

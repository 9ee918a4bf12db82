// A stranger, or a member of the cluster that lies, on the socket that sets rdma paths up: refused,
// bounded, counted, and without an effect on anybody else.
#include <functional>
#include <vector>

#include "raw_socket.h"

namespace hostile_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

wire::RdmaNics one_nic() {
  wire::Gid gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  return {{{.name = "liar0", .active = true, .mtu = 4096, .rd_atomic = 16, .gids = {{gid, 120}}}}};
}

wire::RdmaPathOffer offer(uint32_t epoch = 1) {
  wire::RdmaPathOffer offer{.epoch = epoch, .mtu = 4096, .rd_atomic = 16, .scratch = 0x1000, .scratch_rkey = 1};
  offer.gid_from = one_nic().nics[0].gids[0].gid;
  offer.gid_to = offer.gid_from;
  offer.gid_to[15] = 2;
  offer.lanes = {{0x11, 1}, {0x12, 2}};
  return offer;
}

}  // namespace

TEST_CASE("rdma/xfer: lies about ports, keys and paths end that connection only") {
  Pair pair("rdma", size_t{1} << 20, on("rxe1"), on("rxe0"));
  const std::string uri = pair.holder->uris()[0];
  const auto refused = [&](const char* what, const std::function<void(RawSocket&)>& lie) {
    RawSocket raw = join(uri);
    lie(raw);
    CHECK_MESSAGE(raw.closed(), what);
  };
  const auto told = [](RawSocket& raw) { raw.send(FrameType::nics, wire::encode(one_nic())); };
  refused("a path before the ports", [](RawSocket& raw) { raw.send(FrameType::path_offer, wire::encode(offer())); });
  refused("a transfer", [](RawSocket& raw) { raw.send(frame(FrameType::read, 1, 1, 0, 4096)); });
  refused("a notify before a path", [&](RawSocket& raw) { raw.send(FrameType::notify, {std::byte{1}}); });
  refused("a notify heard that was never said", [&](RawSocket& raw) {
    told(raw);
    raw.send(frame(FrameType::heard, 1));
  });
  refused("a port we do not have", [&](RawSocket& raw) {
    told(raw);
    auto wrong = offer();
    wrong.nic_to = 5;
    raw.send(FrameType::path_offer, wire::encode(wrong));
  });
  refused("a port it does not have", [&](RawSocket& raw) {
    told(raw);
    auto wrong = offer();
    wrong.nic_from = 1;
    raw.send(FrameType::path_offer, wire::encode(wrong));
  });
  refused("an answer from the dialler", [&](RawSocket& raw) {
    told(raw);
    raw.send(FrameType::path_answer, wire::encode(offer()));
  });
  refused("a path that does not exist", [&](RawSocket& raw) {
    told(raw);
    raw.send(FrameType::path_ready, wire::encode(wire::RdmaPathReady{.path = 3, .epoch = 1}));
  });
  refused("another number of ports", [&](RawSocket& raw) {
    told(raw);
    wire::RdmaNics two = one_nic();
    two.nics.push_back(two.nics[0]);
    raw.send(FrameType::nics, wire::encode(two));
  });
  refused("keys of ports it does not have", [&](RawSocket& raw) {
    told(raw);
    raw.send(FrameType::keys,
             wire::encode(
                 wire::RdmaKeys{.buffer = 1, .base = 4096, .length = 1, .chunk_bytes = 1, .nics = 2, .rkeys = {1, 2}}));
  });
  refused("keys of too many buffers", [&](RawSocket& raw) {
    told(raw);
    for (uint32_t id = 1; id <= wire::kXferBuffersMax + 1; ++id)
      raw.send(FrameType::keys,
               wire::encode(
                   wire::RdmaKeys{.buffer = id, .base = 4096, .length = 1, .chunk_bytes = 1, .nics = 1, .rkeys = {1}}));
  });
  refused("half an offer", [&](RawSocket& raw) {
    told(raw);
    auto bytes = wire::encode(offer());
    bytes.pop_back();
    raw.send(FrameType::path_offer, std::move(bytes));
  });
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
  CHECK(pair.holder->counters().peers_up == 1);  // no liar was ever a peer
}

TEST_CASE(
    "rdma/xfer: a peer that offers queue pairs it does not have never becomes one, and its paths are taken down") {
  Options holder = on("rxe1");
  holder.connect_timeout = 5s;
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  RawSocket raw = join(pair.holder->uris()[0]);
  raw.send(FrameType::nics, wire::encode(one_nic()));
  raw.send(FrameType::path_offer, wire::encode(offer()));
  const auto answer = wire::decode_rdma_path_offer(next_of(raw, FrameType::path_answer));
  REQUIRE_OK(answer);
  CHECK(answer->lanes.size() == 2);
  // "ready", though it has written nothing into the scratch
  raw.send(FrameType::path_ready, wire::encode(wire::RdmaPathReady{.path = 0, .epoch = 1}));
  const auto down = wire::decode_rdma_path_down(next_of(raw, FrameType::path_down));
  REQUIRE_OK(down);
  CHECK(down->text.find("pattern") != std::string::npos);
  // an old epoch is not answered, a new one is, and an address that is not there is refused
  raw.send(FrameType::path_offer, wire::encode(offer(1)));
  auto elsewhere = offer(2);
  elsewhere.gid_to[15] = 77;
  raw.send(FrameType::path_offer, wire::encode(elsewhere));
  const auto again = wire::decode_rdma_path_down(next_of(raw, FrameType::path_down));
  REQUIRE_OK(again);
  CHECK(again->epoch == 2);
  CHECK(again->text.find("no address") != std::string::npos);
  CHECK(raw.closed());  // never up: its time is over
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
  CHECK(pair.holder->counters().peers_up == 1);
}

TEST_CASE("rdma/xfer: a stranger that says nothing, stops in mid-frame or never gets ready is closed in time") {
  Options holder = on("rxe1");
  holder.connect_timeout = 1s;
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  pair.holder.wait(Event::Kind::peer_up);  // it may come after the reader's
  const uint64_t before = failures(pair.holder, "handshake: timeout"), peers = pair.holder->counters().peers_up;
  const std::string uri = pair.holder->uris()[0];
  const Held held = resources();
  {
    RawSocket silent = dial_raw("tcp://" + uri.substr(7));
    RawSocket half = dial_raw("tcp://" + uri.substr(7));
    const auto head = wire::encode(frame(FrameType::hello));
    half.send(std::span(head).first(20));
    RawSocket member = join(uri);
    member.send(FrameType::nics, wire::encode(one_nic()));
    FrameHeader header = frame(FrameType::path_offer);
    header.length = wire::encode(offer()).size();
    member.send(header);  // and no payload
    CHECK(silent.closed());
    CHECK(half.closed());
    CHECK(member.closed());
  }
  CHECK(failures(pair.holder, "handshake: timeout") == before + 3);
  CHECK(resources_become(held));
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
  CHECK(pair.holder->counters().peers_up == peers);
}

TEST_CASE("rdma/xfer: a crowd of strangers is bounded and holds nobody up") {
  Options holder = on("rxe1");
  holder.connect_timeout = kLong;  // they stay until they are all there
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  const Held held = resources();
  {
    std::vector<RawSocket> crowd;
    for (int i = 0; i < 300; ++i) crowd.push_back(dial_raw("tcp://" + pair.holder->uris()[0].substr(7)));
    CHECK(crowd.back().closed());
    CHECK(failures(pair.holder, "accept: too many connections") > 0);
    CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
  }
  CHECK(resources_become(held));
}

TEST_CASE(
    "rdma/xfer: a member that floods with offers of paths costs a bounded number of queue pairs for a bounded time") {
  Options holder = on("rxe1");
  holder.connect_timeout = 2s;
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  const Held held = resources();
  {
    RawSocket member = join(pair.holder->uris()[0]);
    member.send(FrameType::nics, wire::encode(one_nic()));
    // every one is newer than the last, and for a path that never comes up
    for (uint32_t epoch = 1; epoch < 2000; ++epoch)
      if (!member.send(FrameType::path_offer, wire::encode(offer(epoch)))) break;
    CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
    CHECK(member.closed());
  }
  CHECK(resources_become(held));
  CHECK(pair.holder->counters().peers_up == 1);
}

TEST_CASE("rdma/xfer: a member whose address nobody answers for is waited for apart, and holds up no transfer") {
  Pair pair("rdma", size_t{1} << 20, on("rxe1"), on("rxe0"));
  const Held held = resources();
  {
    RawSocket member = join(pair.holder->uris()[0]);
    member.send(FrameType::nics, wire::encode(one_nic()));
    auto nowhere = offer();
    nowhere.gid_from[15] = 77;  // in the subnet of the port, and of no machine
    member.send(FrameType::path_offer, wire::encode(nowhere));
    (void)next_of(member, FrameType::nics);
    // the kernel gives up after a second or more; until then the engine's thread is free
    int reads = 0;
    for (bool answered = false; !answered; ++reads) {
      pollfd ready{member.fd.get(), POLLIN, 0};
      while (!answered && ::poll(&ready, 1, 20) > 0) {
        const auto got = member.receive();
        REQUIRE(got.has_value());
        answered = got->header.kind() == FrameType::path_down;
        CHECK(got->header.kind() != FrameType::path_answer);
      }
      CHECK(pair.reader.run({{pair.read(0, 0, 4096)}}) == Code::ok);
    }
    CHECK(reads > 2);  // on the thread that waited there would be one or two
    // gone while that is under way
    nowhere.epoch = 2;
    member.send(FrameType::path_offer, wire::encode(nowhere));
  }
  CHECK(resources_become(held));
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
}

}  // namespace hostile_test

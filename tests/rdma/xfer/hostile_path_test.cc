// A member that lies over a path that is really up: SENDs, WRITEs with immediates and words about resting, sent by
// hand through a real queue pair. It loses its connection; the one beside it does not notice.
#include <functional>

#include "raw_socket.h"
#include "xfer_rdma/rail.h"
#include "xfer_rdma/reaper.h"

namespace hostile_path_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

/// The dialler's side of one path with one lane, made of the transport's own parts, and a page to send from.
struct RawPath {
  Options options = on("rxe0");
  RdmaHardware hardware;
  RdmaReaper reaper;
  RdmaRail rail;
  RawSocket socket;
  mem::HostBuffer page;
  Verbs<ibv_mr> region;

  explicit RawPath(const std::string& uri) : rail(EndpointId::none, 0, 0, 0, {.attempt = kLong}), socket(join(uri)) {
    auto opened = open_hardware(options);
    REQUIRE_OK(opened);
    hardware = std::move(*opened);
    const RdmaPort& port = hardware.ports[0];
    auto made = mem::HostBuffer::allocate(65536);
    REQUIRE_OK(made);
    page = std::move(*made);
    region.reset(::ibv_reg_mr(port.device->domain(), page.data(), page.size(), IBV_ACCESS_LOCAL_WRITE));
    REQUIRE(region);
    socket.send(FrameType::nics, wire::encode(wire::RdmaNics{{port.describe()}}));
    const auto theirs = wire::decode_rdma_nics(next_of(socket, FrameType::nics));
    REQUIRE_OK(theirs);
    const auto choices = gid_choices(port.describe().gids, theirs->nics[0].gids, 1);
    REQUIRE(choices.size() == 1);
    rail.machine.begin(in(0s));
    auto offer = rail.open(port, 1, true);
    REQUIRE_OK(offer);
    offer->gid_from = choices[0].local;
    offer->gid_to = choices[0].remote;
    socket.send(FrameType::path_offer, wire::encode(*offer));
    const auto answer = wire::decode_rdma_path_offer(next_of(socket, FrameType::path_answer));
    REQUIRE_OK(answer);
    auto work = rail.attempt.connect(port, choices[0].local, *answer, answer->mtu, options);
    REQUIRE_OK(work);
    REQUIRE_OK((*work)());
    rail.machine.connected();
    REQUIRE_OK(rail.attempt.start_probe());
    RdmaAttempt::Polled polled;
    REQUIRE(until([&] {
      rail.attempt.poll(polled);
      return rail.attempt.probe.done();
    }));
    REQUIRE_OK(rail.attempt.probe.check_read());
    socket.send(FrameType::path_ready, wire::encode(wire::RdmaPathReady{0, rail.machine.epoch()}));
    (void)next_of(socket, FrameType::path_ready);  // it is up
    rail.machine.verified(in(0s));
  }
  ~RawPath() {
    rail.attempt.fail_lanes();
    (void)rail.close(reaper);
  }

  /// A SEND of these bytes, whatever they mean.
  void send(std::span<const std::byte> bytes) {
    std::memcpy(page.data(), bytes.data(), bytes.size());
    send(bytes.size());
  }
  void send(size_t bytes) {
    REQUIRE(rail.attempt.lane(0).post_send(
                {reinterpret_cast<uint64_t>(page.data()), static_cast<uint32_t>(bytes), region->lkey}) == 0);
  }
  static std::vector<std::byte> notify(uint64_t sequence, uint64_t heard, size_t bytes = 4) {
    const std::vector<std::byte> content(bytes);
    std::vector<std::byte> out(wire::kRdmaNotifyHeaderBytes + bytes);
    REQUIRE(wire::encode(wire::RdmaNotify{sequence, heard, content}, out) == out.size());
    return out;
  }
  /// A WRITE of no bytes with an immediate: no key is looked at, a receive is used up.
  void tell(uint32_t number) {
    ibv_send_wr request{};
    ibv_send_wr* refused = nullptr;
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = number;
    request.send_flags = IBV_SEND_SIGNALED;
    REQUIRE(::ibv_post_send(rail.attempt.lane(0).pair(), &request, &refused) == 0);
  }
  void rest(uint64_t verb) { socket.send(frame(FrameType::path_rest, verb)); }
};

}  // namespace

TEST_CASE("rdma/xfer: lies through a queue pair end that connection, are counted, and reach nobody else") {
  Options holder = on("rxe1");
  holder.events_max = 8;           // soon nobody takes events: credit ends
  holder.connect_timeout = kLong;  // RawPath may be late with its part on a busy machine
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  const std::string uri = pair.holder->uris()[0];
  const Held held = resources();
  const auto caught = [&](const std::string& reason, const std::function<void(RawPath&)>& lie) {
    CAPTURE(reason);
    const uint64_t before = failures(pair.holder, reason);
    {
      RawPath raw(uri);
      lie(raw);
      CHECK(raw.socket.closed());
    }
    CHECK(failures(pair.holder, reason) == before + 1);
    CHECK(resources_become(held));
    CHECK(pair.reader.run({{pair.read(0, 0, size_t{64} << 10)}}) == Code::ok);
    pair.holder.seen.clear();
    while (pair.holder->poll(pair.holder.seen, {}) > 0) pair.holder.seen.clear();
  };
  const char* malformed = "malformed notify on a queue pair";
  caught(malformed, [](RawPath& raw) { raw.send(3); });
  caught(malformed, [](RawPath& raw) {
    auto bytes = RawPath::notify(0, 0);
    bytes.back() ^= std::byte{1};
    raw.send(bytes);
  });
  caught(malformed, [](RawPath& raw) {
    auto bytes = RawPath::notify(0, 0);
    bytes.push_back({});
    raw.send(bytes);
  });
  caught("a notify on a queue pair is out of sequence", [](RawPath& raw) {
    raw.send(RawPath::notify(0, 0));
    raw.send(RawPath::notify(wire::kRdmaNotifiesAhead + 1, 0));
  });
  caught("the peer confirmed notifies that were never sent", [](RawPath& raw) { raw.send(RawPath::notify(0, 1)); });
  caught("the peer sent more immediates than its credit", [&](RawPath& raw) {
    // Credit for as many as the holder took at once may come before nobody takes events.
    for (uint32_t i = 0; i < 3 * wire::kRdmaImmediatesAhead; ++i) raw.tell(i);
  });
  caught("the peer counted immediates that were never sent", [](RawPath& raw) {
    FrameHeader landed = frame(FrameType::landed, 1);
    landed.snapshot = raw.rail.machine.epoch();
    raw.socket.send(landed);
  });
  caught("the peer counted immediates that were never sent", [](RawPath& raw) {
    FrameHeader landed = frame(FrameType::landed, 0, 7);  // of a path that is not there
    raw.socket.send(landed);
  });
  caught("path_rest out of order", [](RawPath& raw) { raw.rest(99); });
  caught("path_rest out of order", [](RawPath& raw) { raw.rest(static_cast<uint64_t>(wire::RestVerb::wake)); });
}

TEST_CASE("rdma/xfer: a SEND larger than any notify, or into a key that is not there, costs that path alone") {
  Options holder = on("rxe1");
  holder.connect_timeout = kLong;
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  const Held held = resources();
  const uint64_t faults = failures(pair.holder, "rdma: path fault");
  {
    RawPath raw(pair.holder->uris()[0]);
    raw.send(kNotifyBytesMax + 4096);
    const auto down = wire::decode_rdma_path_down(next_of(raw.socket, FrameType::path_down));
    REQUIRE_OK(down);
    CHECK(down->epoch == raw.rail.machine.epoch());
  }
  {
    RawPath raw(pair.holder->uris()[0]);
    REQUIRE(raw.rail.attempt.lane(0).post_probe(
                Op::read, {reinterpret_cast<uint64_t>(raw.page.data()), 64, raw.region->lkey}, 0x10000, 0x1234) == 0);
    RdmaAttempt::Polled polled;
    REQUIRE(until([&] {
      raw.rail.attempt.poll(polled);
      return polled.failure != WorkStatus::ok;
    }));
    CHECK(polled.failure == WorkStatus::remote_access);
  }
  CHECK(failures(pair.holder, "rdma: path fault") > faults);
  CHECK(resources_become(held));
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
}

TEST_CASE("rdma/xfer: a flood of words about resting is answered within bounds and wakes nobody else") {
  Options holder = on("rxe1");
  holder.connect_timeout = kLong;
  Pair pair("rdma", size_t{1} << 20, holder, on("rxe0"));
  const Held held = resources();
  for (const auto verb : {wire::RestVerb::ask, wire::RestVerb::insist, wire::RestVerb::busy, wire::RestVerb::resting}) {
    CAPTURE(static_cast<int>(verb));
    RawPath raw(pair.holder->uris()[0]);
    // nothing is read meanwhile: answers pile up until that is too much, or the flood ends
    for (int i = 0; i < ::mc::test::count(10000, 30000); ++i) {
      const auto bytes = wire::encode(frame(FrameType::path_rest, static_cast<uint64_t>(verb)));
      if (::send(raw.socket.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    }
    CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
  }
  CHECK(resources_become(held));
  CHECK(pair.holder->counters().rdma_pairs == 2);
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{1} << 20)}}) == Code::ok);
}

}  // namespace hostile_path_test

#include "wire/rdma_frame.h"

#include "unit/wire/exact.h"
#include "unit/wire/golden.h"
#include "wire/xfer_frame.h"

using namespace mc;
using namespace mc::wire;

namespace {

Gid gid_of(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
}

RdmaNics sample_nics() {
  return {{{.name = "mlx5_0",
            .port = 1,
            .active = true,
            .lid = 0,
            .mtu = 4096,
            .rd_atomic = 16,
            .gids = {{gid_of(1), 120}, {gid_of(2), 128}}},
           {.name = "rxe1", .port = 2, .active = false, .lid = 9, .mtu = 1024, .rd_atomic = 1, .gids = {}}}};
}

RdmaKeys sample_keys() {
  return {.buffer = 3,
          .snapshot = 7,
          .base = 0x7f0012340000,
          .length = (uint64_t{2} << 30) + 4096,
          .chunk_bytes = uint64_t{1} << 30,
          .nics = 2,
          .rkeys = {1, 2, 3, 0xfffffffe, 5, 6}};
}

RdmaPathOffer sample_offer() {
  return {.path = 1,
          .path_count = 2,
          .epoch = 5,
          .nic_from = 0,
          .nic_to = 1,
          .gid_from = gid_of(1),
          .gid_to = gid_of(2),
          .lid = 4,
          .mtu = 2048,
          .rd_atomic = 16,
          .scratch = 0x1000,
          .scratch_rkey = 77,
          .lanes = {{0x11, 0xabcdef}, {0x12, 0}}};
}

const RdmaPathReady kReady{.path = 1, .epoch = 5};
const RdmaPathDown kDown{.path = 1, .epoch = 5, .cause = 2, .text = "port down"};

const std::array<std::byte, 3> kWord{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};

std::vector<std::byte> encoded_notify(std::span<const std::byte> bytes) {
  std::vector<std::byte> out(kRdmaNotifyHeaderBytes + bytes.size());
  CHECK(encode(RdmaNotify{.sequence = 9, .heard = 7, .bytes = bytes}, out) == out.size());
  return out;
}

}  // namespace

TEST_CASE("wire/rdma_frame: the bytes are those of the golden file") {
  test::check_golden("rdma_frame.txt",
                     "nics " + test::hex(encode(sample_nics())) + "\nkeys " + test::hex(encode(sample_keys())) +
                         "\noffer " + test::hex(encode(sample_offer())) + "\nready " + test::hex(encode(kReady)) +
                         "\ndown " + test::hex(encode(kDown)) + "\nnotify " + test::hex(encoded_notify(kWord)) + "\n");
}

TEST_CASE("wire/rdma_frame: what is encoded decodes to the same, and only with exactly its size") {
  CHECK(*decode_rdma_nics(encode(sample_nics())) == sample_nics());
  CHECK(*decode_rdma_keys(encode(sample_keys())) == sample_keys());
  CHECK(*decode_rdma_path_offer(encode(sample_offer())) == sample_offer());
  CHECK(*decode_rdma_path_ready(encode(kReady)) == kReady);
  CHECK(*decode_rdma_path_down(encode(kDown)) == kDown);
  test::check_exact(encode(sample_nics()), [](auto bytes) { return decode_rdma_nics(bytes); });
  test::check_exact(encode(sample_keys()), [](auto bytes) { return decode_rdma_keys(bytes); });
  test::check_exact(encode(sample_offer()), [](auto bytes) { return decode_rdma_path_offer(bytes); });
  test::check_exact(encode(kReady), [](auto bytes) { return decode_rdma_path_ready(bytes); });
  test::check_exact(encode(kDown), [](auto bytes) { return decode_rdma_path_down(bytes); });
}

TEST_CASE("wire/rdma_frame: ports with impossible MTU, prefix or count are refused") {
  const auto code = [](auto change) {
    RdmaNics nics = sample_nics();
    change(nics);
    const auto decoded = decode_rdma_nics(encode(nics));
    return decoded ? Code::ok : decoded.error().code;
  };
  CHECK(code([](RdmaNics&) {}) == Code::ok);
  CHECK(code([](RdmaNics& n) { n.nics[0].mtu = 1500; }) == Code::corrupt);
  CHECK(code([](RdmaNics& n) { n.nics[0].mtu = 8192; }) == Code::corrupt);
  CHECK(code([](RdmaNics& n) { n.nics[0].port = 0; }) == Code::corrupt);
  CHECK(code([](RdmaNics& n) { n.nics[0].gids[0].prefix = 129; }) == Code::corrupt);
  CHECK(code([](RdmaNics& n) { n.nics[0].gids.resize(kRdmaGidsMax + 1); }) == Code::corrupt);
  CHECK(code([](RdmaNics& n) { n.nics.clear(); }) == Code::corrupt);
  CHECK(code([](RdmaNics& n) { n.nics.resize(kRdmaNicsMax + 1, n.nics[0]); }) == Code::corrupt);
  auto bytes = encode(sample_nics());
  bytes[0] = std::byte{kRdmaVersion + 1};
  CHECK(decode_rdma_nics(bytes).error().code == Code::unsupported);
}

TEST_CASE("wire/rdma_frame: keys whose chunks do not cover the buffer, or overflow, are refused") {
  const auto ok = [](auto change) {
    RdmaKeys keys = sample_keys();
    change(keys);
    return decode_rdma_keys(encode(keys)).has_value();
  };
  CHECK(ok([](RdmaKeys&) {}));
  CHECK(!ok([](RdmaKeys& k) { k.buffer = 0; }));
  CHECK(!ok([](RdmaKeys& k) { k.length = 0; }));
  CHECK(!ok([](RdmaKeys& k) { k.chunk_bytes = 0; }));
  CHECK(!ok([](RdmaKeys& k) { k.chunk_bytes /= 2; }));  // more chunks than keys
  CHECK(!ok([](RdmaKeys& k) { k.base = UINT64_MAX - 5; }));
  CHECK(!ok([](RdmaKeys& k) { k.nics = 0; }));
  CHECK(!ok([](RdmaKeys& k) { k.nics = kRdmaNicsMax + 1; }));
  CHECK(!ok([](RdmaKeys& k) { k.length = UINT64_MAX; }));
  RdmaKeys largest{.buffer = 1, .length = kRdmaChunksMax, .chunk_bytes = 1, .nics = kRdmaNicsMax};
  largest.rkeys.resize(kRdmaChunksMax * kRdmaNicsMax);
  CHECK(encode(largest).size() <= kFrameControlMax);
  CHECK(decode_rdma_keys(encode(largest)).has_value());
  largest.length = kRdmaChunksMax + 1;
  largest.rkeys.resize((kRdmaChunksMax + 1) * kRdmaNicsMax);
  CHECK(!decode_rdma_keys(encode(largest)).has_value());
}

TEST_CASE("wire/rdma_frame: offers with numbers no queue pair can have are refused") {
  const auto ok = [](auto change) {
    RdmaPathOffer offer = sample_offer();
    change(offer);
    return decode_rdma_path_offer(encode(offer)).has_value();
  };
  CHECK(ok([](RdmaPathOffer&) {}));
  CHECK(!ok([](RdmaPathOffer& o) { o.path = o.path_count; }));
  CHECK(!ok([](RdmaPathOffer& o) { o.path_count = kRdmaPathsMax + 1; }));
  CHECK(!ok([](RdmaPathOffer& o) { o.epoch = 0; }));
  CHECK(!ok([](RdmaPathOffer& o) { o.nic_to = kRdmaNicsMax; }));
  CHECK(!ok([](RdmaPathOffer& o) { o.mtu = 0; }));
  CHECK(!ok([](RdmaPathOffer& o) { o.lanes.clear(); }));
  CHECK(!ok([](RdmaPathOffer& o) { o.lanes.resize(kRdmaLanesMax + 1); }));
  CHECK(!ok([](RdmaPathOffer& o) { o.lanes[0].qpn = 1 << 24; }));
  CHECK(!ok([](RdmaPathOffer& o) { o.lanes[0].psn = 1 << 24; }));
  CHECK(!decode_rdma_path_ready(encode(RdmaPathReady{.path = kRdmaPathsMax})).has_value());
  CHECK(!decode_rdma_path_down(encode(RdmaPathDown{.path = kRdmaPathsMax})).has_value());
  // the largest of each fits its frame
  RdmaPathOffer largest = sample_offer();
  largest.lanes.resize(kRdmaLanesMax);
  CHECK(encode(largest).size() <= kRdmaPathBytesMax);
  CHECK(encode(RdmaPathDown{.text = std::string(1000, 'x')}).size() <= kRdmaPathBytesMax);
}

TEST_CASE("wire/rdma_frame: a notify on a queue pair decodes to itself, and with any bit changed not at all") {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, kNotifyBytesMax}) {
    const std::vector<std::byte> bytes(size, std::byte{0x5a});
    const auto encoded = encoded_notify(bytes);
    const auto notify = decode_rdma_notify(encoded);
    REQUIRE_OK(notify);
    CHECK(notify->sequence == 9);
    CHECK(notify->heard == 7);
    CHECK(std::equal(notify->bytes.begin(), notify->bytes.end(), bytes.begin(), bytes.end()));
  }
  const auto encoded = encoded_notify(kWord);
  test::check_exact(encoded, [](auto bytes) { return decode_rdma_notify(bytes); });
  for (size_t bit = 0; bit < encoded.size() * 8; ++bit) {
    auto wrong = encoded;
    wrong[bit / 8] ^= std::byte{1} << (bit % 8);
    CHECK(!decode_rdma_notify(wrong).has_value());
  }
  CHECK(!decode_rdma_notify(std::vector<std::byte>(kRdmaNotifyHeaderBytes + kNotifyBytesMax + 1)).has_value());
}

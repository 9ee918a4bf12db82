#include "wire/xfer_frame.h"

#include <cstring>
#include <iterator>

#include "base/hash.h"
#include "unit/wire/exact.h"
#include "unit/wire/golden.h"
#include "wire/rdma_frame.h"

namespace xfer_frame_test {

using namespace mc;
using namespace mc::wire;

namespace {

FrameHeader sample_header() {
  FrameHeader header;
  header.type = static_cast<uint8_t>(FrameType::read);
  header.id = 0x1122334455667788;
  header.buffer = 7;
  header.snapshot = 3;
  header.offset = 0x0000000123456789;
  header.length = 65536;
  header.status = static_cast<uint32_t>(Code::ok);
  return header;
}

template <class Id>
Id id_of(uint8_t first) {
  Id id;
  for (size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<uint8_t>(first + i);
  return id;
}

XferDescriptor sample_descriptor() {
  return {.name = "p0",
          .instance = id_of<InstanceId>(0x10),
          .boot = id_of<Id128>(0x40),
          .version = 9,
          .uris = {"shm://mc-xfer-1011", "tcp://127.0.0.1:41327"},
          .buffers = {{.id = 1, .access = AccessClass::blocks, .shared = true, .length = 1 << 30, .name = "kv"},
                      {.id = 4,
                       .access = AccessClass::landing,
                       .length = 4096,
                       .writer = id_of<InstanceId>(0x80),
                       .name = "landing:d0"}}};
}

/// As the control plane passes it on; the data plane sends the one without the ticket.
XferDescriptor sample_descriptor_with_ticket() {
  XferDescriptor descriptor = sample_descriptor();
  descriptor.ticket.fill(0x77);
  return descriptor;
}

XferHello sample_hello() {
  XferHello hello{.instance = id_of<InstanceId>(1),
                  .wanted = id_of<InstanceId>(2),
                  .connection = id_of<Id128>(3),
                  .lane = 2,
                  .lane_count = 5,
                  .secured = true,
                  .seal = SealSetting::may,
                  .name = "d0"};
  hello.nonce.fill(0xab);
  hello.share.fill(0xa5);
  return hello;
}

XferChallenge sample_challenge() {
  XferChallenge challenge{.instance = id_of<InstanceId>(7), .secured = true, .seal = SealSetting::must, .name = "p0"};
  challenge.nonce.fill(0xcd);
  challenge.share.fill(0xc5);
  challenge.proof.fill(0xef);
  return challenge;
}

using Bytes = std::vector<std::byte>;

/// A frame as the fuzzer's input has it: type, length in two bytes, payload.
Bytes said(FrameType type, const Bytes& payload) {
  Bytes out{static_cast<std::byte>(type), static_cast<std::byte>(payload.size() & 255),
            static_cast<std::byte>(payload.size() >> 8)};
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

Bytes joined(Bytes front, const Bytes& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

/// Compares with a seed of the fuzzer xfer_frame; MC_SET_GOLDEN=1 rewrites it.
void check_seed(const std::string& name, const Bytes& bytes) {
  const std::string path = test::source_dir() + "/tests/fuzz/corpus/xfer_frame/" + name;
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  if (std::getenv("MC_SET_GOLDEN")) std::ofstream(path).write(text, static_cast<std::streamsize>(bytes.size()));
  std::ifstream file(path, std::ios::binary);
  const std::string seed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  CAPTURE(path);
  CHECK(seed == std::string(text, bytes.size()));
}

Code decode_code(const FrameBytes& bytes) {
  FrameHeader header;
  const char* why = nullptr;
  const Code code = decode(bytes, header, why);
  CHECK((code == Code::ok) == (why == nullptr));
  return code;
}

}  // namespace

TEST_CASE("wire/xfer_frame: the bytes are those of the golden file") {
  test::check_golden("xfer_frame.txt", "header " + test::hex(encode(sample_header())) + "\nhello " +
                                           test::hex(encode(sample_hello())) + "\nchallenge " +
                                           test::hex(encode(sample_challenge())) + "\ndescriptor " +
                                           test::hex(encode(sample_descriptor())) + "\ndescriptor_with_ticket " +
                                           test::hex(encode(sample_descriptor_with_ticket())) + "\n");
}

TEST_CASE("wire/xfer_frame: the seeds of the fuzzer are of this version") {
  const FrameBytes header = encode(sample_header());
  check_seed("header", Bytes(header.begin(), header.end()));
  check_seed("hello", encode(sample_hello()));
  check_seed("challenge", encode(sample_challenge()));
  check_seed("descriptor", encode(sample_descriptor()));
  check_seed("descriptor_with_ticket", encode(sample_descriptor_with_ticket()));
  // a cluster without a secret, where any proof will do
  const XferHello hello{.instance = id_of<InstanceId>(0x10), .connection = id_of<Id128>(3), .name = "p0"};
  const XferChallenge challenge{.instance = hello.instance, .name = "p0"};
  const Bytes proof = said(FrameType::proof, joined(Bytes(sizeof(Proof)), encode(sample_descriptor())));
  check_seed("proof", proof);
  check_seed("hello_then_proof", joined(said(FrameType::hello, encode(hello)), proof));
  check_seed("challenge_then_ready", joined(said(FrameType::challenge, encode(challenge)),
                                            said(FrameType::ready, encode(sample_descriptor()))));
}

TEST_CASE("wire/xfer_frame: what is encoded decodes to the same") {
  FrameHeader header;
  const char* why = nullptr;
  REQUIRE(decode(encode(sample_header()), header, why) == Code::ok);
  CHECK(encode(header) == encode(sample_header()));
  CHECK(header.payload_bytes() == 0);  // a read has a length but no payload
  CHECK(*decode_hello(encode(sample_hello())) == sample_hello());
  CHECK(*decode_challenge(encode(sample_challenge())) == sample_challenge());
  CHECK(*decode_descriptor(encode(sample_descriptor())) == sample_descriptor());
  CHECK(*decode_descriptor(encode(sample_descriptor_with_ticket())) == sample_descriptor_with_ticket());
  CHECK(dump(sample_descriptor_with_ticket()) == dump(sample_descriptor()));  // a ticket is a secret
  const XferDescriptor descriptor = sample_descriptor();
  CHECK(descriptor.find(4)->name == "landing:d0");
  CHECK(descriptor.find("kv")->id == 1);
  CHECK(descriptor.find(2) == nullptr);
  CHECK(descriptor.find("nothing") == nullptr);
  CHECK(dump(descriptor).find("buffer 1 kv blocks 1073741824 bytes shared\n") != std::string::npos);
}

TEST_CASE("wire/xfer_frame: any flipped bit of a header is noticed") {
  const FrameBytes good = encode(sample_header());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    FrameBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    CHECK(decode_code(bad) != Code::ok);
  }
}

TEST_CASE("wire/xfer_frame: headers that make no sense are refused though their checksum is right") {
  const auto code = [](auto change) {
    FrameHeader header = sample_header();
    change(header);
    return decode_code(encode(header));
  };
  CHECK(code([](FrameHeader& h) { h.magic = 1; }) == Code::corrupt);
  for (const int off : {-1, 1})
    CHECK(code([&](FrameHeader& h) { h.version = static_cast<uint16_t>(kXferVersion + off); }) == Code::unsupported);
  CHECK(code([](FrameHeader& h) { h.type = 0; }) == Code::corrupt);
  CHECK(code([](FrameHeader& h) { h.type = 24; }) == Code::corrupt);
  CHECK(code([](FrameHeader& h) { h.status = 11; }) == Code::corrupt);
  CHECK(code([](FrameHeader& h) { h.flags = 8; }) == Code::corrupt);
  const auto immediate = [](FrameType type, uint8_t flags, uint32_t value) {
    return decode_code(encode({.type = static_cast<uint8_t>(type), .flags = flags, .length = 64, .immediate = value}));
  };
  CHECK(immediate(FrameType::write, kFrameHasImmediate, 7) == Code::ok);
  CHECK(immediate(FrameType::write, kFrameHasImmediate | kFrameHasPayloadCrc, 0) == Code::ok);
  CHECK(immediate(FrameType::write, 0, 7) == Code::corrupt);
  CHECK(immediate(FrameType::data, kFrameHasImmediate, 7) == Code::corrupt);
  for (uint8_t type = 1; type <= static_cast<uint8_t>(kFrameTypeLast); ++type) {
    const auto kind = static_cast<FrameType>(type);
    const bool known = kind == FrameType::write || kind == FrameType::ack;
    CHECK(code([&](FrameHeader& h) {
            h.type = type;
            h.length = 0;
            h.flags = kFrameTogether;
          }) == (known ? Code::ok : Code::corrupt));
  }
  CHECK(code([](FrameHeader& h) { h.reserved0 = 1; }) == Code::corrupt);
  CHECK(code([](FrameHeader& h) { h.immediate = 1; }) == Code::corrupt);
  const auto length = [&](FrameType type, uint64_t bytes, Code status = Code::ok) {
    return code([&](FrameHeader& h) {
      h.type = static_cast<uint8_t>(type);
      h.length = bytes;
      h.status = static_cast<uint32_t>(status);
    });
  };
  CHECK(length(FrameType::data, kFrameDataMax) == Code::ok);
  CHECK(length(FrameType::data, kFrameDataMax + 1) == Code::corrupt);
  CHECK(length(FrameType::data, kReasonBytesMax + 1, Code::invalid) == Code::corrupt);
  CHECK(length(FrameType::notify, kNotifyBytesMax) == Code::ok);
  CHECK(length(FrameType::notify, kNotifyBytesMax + 1) == Code::corrupt);
  CHECK(length(FrameType::hello, kHelloBytesMax + 1) == Code::corrupt);
  CHECK(length(FrameType::describe, kFrameControlMax + 1) == Code::corrupt);
  CHECK(length(FrameType::refuse, kReasonBytesMax + 1) == Code::corrupt);
  CHECK(length(FrameType::write, UINT64_MAX) == Code::corrupt);
  CHECK(length(FrameType::path_offer, kRdmaPathBytesMax) == Code::ok);
  CHECK(length(FrameType::path_offer, kRdmaPathBytesMax + 1) == Code::corrupt);
  CHECK(length(FrameType::keys, kFrameControlMax + 1) == Code::corrupt);
}

TEST_CASE("wire/xfer_frame: handshake payloads must have exactly their size") {
  test::check_exact(encode(sample_hello()), [](auto bytes) { return decode_hello(bytes); });
  test::check_exact(encode(sample_challenge()), [](auto bytes) { return decode_challenge(bytes); });
  for (const auto& descriptor : {sample_descriptor(), sample_descriptor_with_ticket()})
    test::check_exact(encode(descriptor), [](auto bytes) { return decode_descriptor(bytes); });
}

TEST_CASE("wire/xfer_frame: hellos with impossible lanes or no instance are refused") {
  const auto ok = [](auto change) {
    XferHello hello = sample_hello();
    change(hello);
    return decode_hello(encode(hello)).has_value();
  };
  CHECK(ok([](XferHello&) {}));
  CHECK(!ok([](XferHello& h) { h.instance = {}; }));
  CHECK(!ok([](XferHello& h) { h.lane_count = 0; }));
  CHECK(!ok([](XferHello& h) { h.lane = h.lane_count; }));
  CHECK(!ok([](XferHello& h) { h.lane_count = kXferLanesMax + 1; }));
}

TEST_CASE("wire/xfer_frame: descriptors out of order, out of bounds or of another version are refused") {
  const auto code = [](auto change) {
    XferDescriptor descriptor = sample_descriptor();
    change(descriptor);
    const auto decoded = decode_descriptor(encode(descriptor));
    return decoded ? Code::ok : decoded.error().code;
  };
  CHECK(code([](XferDescriptor&) {}) == Code::ok);
  CHECK(code([](XferDescriptor& d) { d.instance = {}; }) == Code::corrupt);
  CHECK(code([](XferDescriptor& d) { std::swap(d.buffers[0], d.buffers[1]); }) == Code::corrupt);
  CHECK(code([](XferDescriptor& d) { d.buffers[1].id = d.buffers[0].id; }) == Code::corrupt);
  CHECK(code([](XferDescriptor& d) { d.buffers[0].access = static_cast<AccessClass>(3); }) == Code::corrupt);
  CHECK(code([](XferDescriptor& d) { d.uris.assign(kXferUrisMax + 1, "tcp://h:1"); }) == Code::corrupt);
  CHECK(code([](XferDescriptor& d) { d.uris.assign(kXferUrisMax, std::string(kXferUriBytesMax, 'u')); }) == Code::ok);
  const auto many = [&](uint32_t count) {
    return code([&](XferDescriptor& d) {
      d.buffers.clear();
      for (uint32_t i = 1; i <= count; ++i)
        d.buffers.push_back({.id = i, .length = UINT64_MAX, .name = std::string(kXferNameBytesMax, 'n')});
    });
  };
  CHECK(many(kXferBuffersMax) == Code::ok);  // the largest allowed descriptor fits its frame
  CHECK(many(kXferBuffersMax + 1) == Code::corrupt);
  auto bytes = encode(sample_descriptor());
  bytes[4] = std::byte{kXferVersion + 1};
  const uint32_t crc = crc32c(std::span(bytes).first(bytes.size() - 4));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
  CHECK(decode_descriptor(bytes).error().code == Code::unsupported);
}

}  // namespace xfer_frame_test

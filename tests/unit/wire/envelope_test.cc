#include "wire/envelope.h"

#include "base/errors.h"
#include "base/rng.h"
#include "test.h"
#include "wire/msgpack.h"

using namespace mc;
using wire::decode_envelope;
using wire::Envelope;

namespace {

InstanceId instance(uint8_t fill) {
  InstanceId id;
  id.bytes.fill(fill);
  return id;
}

Envelope full() {
  return {.type = "kv_offer",
          .id = 7,
          .re = 3,
          .from = "p0",
          .instance = instance(0x11),
          .to = instance(0x22),
          .epoch = 1'700'000'000'000,
          .deadline = 1500ms};
}

std::string hex(const std::vector<uint8_t>& bytes) {
  std::string out;
  for (const uint8_t b : bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", b);
    out += text;
  }
  return out;
}

}  // namespace

TEST_CASE("wire/envelope: the bytes of version 1 never change") {
  CHECK(hex(encode(full())) ==
        "89a17601a474797065a86b765f6f66666572a2696407a2726503a466726f6da27030a4696e7374c4101111111111111111111111111111"
        "1111"
        "a2746fc41022222222222222222222222222222222a565706f6368cf0000018bcfe56800ab646561646c696e655f6d73cd05dc");
  CHECK(hex(encode(Envelope{.type = "ctl.ping", .id = 1, .instance = instance(0x11)})) ==
        "86a17601a474797065a863746c2e70696e67a2696401a466726f6da0a4696e7374c41011111111111111111111111111111111a565706f"
        "636800");
}

TEST_CASE("wire/envelope: what was encoded decodes to itself, deadlines rounded up to a millisecond") {
  auto back = decode_envelope(encode(full()));
  REQUIRE_OK(back);
  CHECK(*back == full());
  Envelope least{.type = "x", .id = 0, .instance = instance(1)};
  CHECK(*decode_envelope(encode(least)) == least);
  least.deadline = 1ns;
  CHECK(decode_envelope(encode(least))->deadline == Duration(1ms));
  least.deadline = Duration(-5);
  CHECK(decode_envelope(encode(least))->deadline == Duration(0));
  least.deadline = Duration::max();
  CHECK(decode_envelope(encode(least))->deadline > Duration(std::chrono::hours(24)));
}

TEST_CASE("wire/envelope: a number and the digest of a body follow the other keys") {
  Envelope with = full();
  with.seq = 3;
  with.sum.bytes.fill(0x33);
  const std::vector<uint8_t> plain = encode(full()), numbered = wire::numbered(plain, with.seq, with.sum);
  CHECK(hex(numbered) == "8b" + hex(plain).substr(2) + "a373657103a373756dc41033333333333333333333333333333333");
  auto back = decode_envelope(numbered);
  REQUIRE_OK(back);
  CHECK(*back == with);
  CHECK(wire::numbered(plain, ~uint64_t{0}, with.sum).size() < wire::kEnvelopeBytesMax);
  // A number has a digest with it.
  wire::MsgpackWriter alone;
  alone.str("seq");
  alone.u64(3);
  std::vector<uint8_t> bytes = plain;
  ++bytes[0];
  bytes.insert(bytes.end(), alone.bytes().begin(), alone.bytes().end());
  CHECK(decode_envelope(bytes).error().what.find("sum is missing") != std::string::npos);
}

TEST_CASE("wire/envelope: another version is refused with both numbers, whatever else it holds") {
  auto other = decode_envelope(encode(full(), 9));
  REQUIRE_FALSE(other);
  CHECK(other.error().mc == err::kProtocolVersion);
  CHECK(other.error().what == "the peer uses protocol version 9, this program uses 1");
  wire::MsgpackWriter only_version;
  only_version.map(1);
  only_version.str("v");
  only_version.u64(2);
  CHECK(decode_envelope(only_version.bytes()).error().mc == err::kProtocolVersion);
}

TEST_CASE("wire/envelope: unknown keys are skipped") {
  wire::MsgpackWriter out;
  out.map(7);
  out.str("v"), out.u64(1);
  out.str("new"), out.map(1), out.str("deep"), out.array(2), out.nil(), out.f64(1.5);
  out.str("type"), out.str("hello");
  out.str("id"), out.u64(4);
  out.str("from"), out.str("");
  out.str("inst"), out.bin(instance(3).bytes);
  out.str("epoch"), out.u64(9);
  auto back = decode_envelope(out.bytes());
  REQUIRE_OK(back);
  CHECK(back->id == 4);
  CHECK(back->epoch == 9);
}

TEST_CASE(
    "wire/envelope: every cut, every flipped byte and every wrong kind is an error or a valid envelope, never a "
    "crash") {
  const std::vector<uint8_t> good = encode(full());
  for (size_t size = 0; size < good.size(); ++size) CHECK_FALSE(decode_envelope(std::span(good).first(size)));
  Rng rng(test::seed());
  for (int round = 0; round < 20'000; ++round) {
    std::vector<uint8_t> bytes = good;
    for (uint64_t flips = 1 + rng.below(3); flips > 0; --flips)
      bytes[rng.below(bytes.size())] = static_cast<uint8_t>(rng.next());
    auto result = decode_envelope(bytes);
    if (!result) {
      CHECK(result.error().mc != 0);
    } else {
      CHECK(!result->type.empty());
      CHECK_FALSE(result->instance.is_zero());
    }
  }
}

TEST_CASE("wire/envelope: hostile texts and sizes are refused by name") {
  auto with = [](std::string type, std::string from) {
    wire::MsgpackWriter out;
    out.map(6);
    out.str("v"), out.u64(1);
    out.str("type"), out.str(type);
    out.str("id"), out.u64(1);
    out.str("from"), out.str(from);
    out.str("inst"), out.bin(instance(3).bytes);
    out.str("epoch"), out.u64(0);
    return decode_envelope(out.bytes());
  };
  REQUIRE_OK(with("x", "p0"));
  CHECK(with("", "p0").error().what.find("type has 0 bytes") != std::string::npos);
  CHECK(with(std::string(65, 'a'), "").error().what.find("type has 65 bytes") != std::string::npos);
  CHECK(with("x", "p\n0").error().what.find("from has bytes") != std::string::npos);
  CHECK(decode_envelope(std::vector<uint8_t>(1000, 0xc0)).error().mc == err::kPeerGarbage);
  CHECK_FALSE(decode_envelope({}));
}

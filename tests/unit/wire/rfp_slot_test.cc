#include "wire/rfp_slot.h"

#include <array>
#include <cstring>

#include "unit/wire/exact.h"
#include "unit/wire/golden.h"

using namespace mc;
using namespace mc::wire;

namespace {

const RfpOpen kOpen{.epoch = 0x1122334455667788, .geometry = {.slots = 4, .response_bytes = 512}, .pushed = 9};
const RfpOpened kOpened{.epoch = 7, .instance = 0xfedcba9876543210, .requests = 3, .responses = 4};
const RfpOpened kRefused{.code = Code::no_space, .epoch = 7};

const std::array<std::byte, 3> kPayload{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};

template <class Header>
std::string slot_text(Header header) {
  header.size = kPayload.size();
  header.crc = rfp_crc(header, kPayload);
  std::vector<std::byte> bytes(sizeof header + kPayload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, kPayload.data(), kPayload.size());
  return test::hex(bytes);
}

}  // namespace

TEST_CASE("wire/rfp_slot: the bytes are those of the golden file") {
  test::check_golden("rfp_slot.txt",
                     "request " + slot_text(RfpRequest{.sequence = 12, .epoch = 7, .method = 3}) + "\nresponse " +
                         slot_text(RfpResponse{.sequence = 12, .instance = 5, .status = 2, .time_us = 40}) + "\nopen " +
                         test::hex(encode(kOpen)) + "\nopened " + test::hex(encode(kOpened)) + "\nrefused " +
                         test::hex(encode(kRefused)) + "\n");
}

TEST_CASE("wire/rfp_slot: set-up messages decode to the same, and only with exactly their size") {
  CHECK(*decode_rfp_open(encode(kOpen)) == kOpen);
  CHECK(*decode_rfp_opened(encode(kOpened)) == kOpened);
  CHECK(*decode_rfp_opened(encode(kRefused)) == kRefused);
  test::check_exact(encode(kOpen), [](auto bytes) { return decode_rfp_open(bytes); });
  test::check_exact(encode(kOpened), [](auto bytes) { return decode_rfp_opened(bytes); });
  CHECK(decode_rfp_open(encode(kOpened)).error().code == Code::not_found);
  RfpOpen bad = kOpen;
  for (const RfpGeometry& geometry :
       {RfpGeometry{.slots = 0}, {.slots = 3}, {.slots = 128}, {.request_bytes = 32}, {.request_bytes = 100},
        {.response_bytes = 128 << 10}}) {
    bad.geometry = geometry;
    CHECK(decode_rfp_open(encode(bad)).error().code == Code::corrupt);
  }
  RfpOpened half = kRefused;
  half.requests = 1;
  CHECK(decode_rfp_opened(encode(half)).error().code == Code::corrupt);
}

TEST_CASE("wire/rfp_slot: the checksum covers every byte but its own") {
  RfpResponse header{.sequence = 4, .instance = 5, .size = 3, .status = 1, .time_us = 2};
  const uint32_t crc = rfp_crc(header, kPayload);
  header.crc = crc;
  CHECK(rfp_crc(header, kPayload) == crc);
  for (size_t at = 0; at < sizeof header; ++at) {
    RfpResponse other = header;
    reinterpret_cast<uint8_t*>(&other)[at] ^= 1;
    CHECK((rfp_crc(other, kPayload) == crc) == (at >= 24 && at < 28));
  }
  CHECK(rfp_crc(RfpResponse{}, {}) != 0);  // a slot of zeros is not ready
}

TEST_CASE("wire/rfp_slot: a mode holds from its sequence on and the other mode before") {
  const uint64_t push = rfp_mode(true, 5), fetch = rfp_mode(false, 9);
  CHECK_FALSE(rfp_pushes(push, 4));
  CHECK(rfp_pushes(push, 5));
  CHECK(rfp_pushes(fetch, 8));
  CHECK_FALSE(rfp_pushes(fetch, 9));
  CHECK_FALSE(rfp_pushes(0, 1));  // the memory's first state
}

#include "wire/block.h"

#include <cstring>
#include <functional>

#include "base/hash.h"
#include "base/rng.h"
#include "unit/wire/golden.h"
#include "wire/notify.h"

using namespace mc;
using namespace mc::wire;

namespace {

constexpr ExtentLayout kLayout{.layers = 3, .kv_heads = 2, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::bf16};

Id128 id_of(std::string_view text) {
  return Sha256().update(text).finish128();
}

BlockHeader sample() {
  BlockHeader header = block_header_for(kLayout);
  header.name_space = id_of("namespace");
  header.id = id_of("block");
  header.parent = id_of("parent");
  header.generation = 0x0102030405060708;
  header.first_position = 128;
  header.token_count = 64;
  return header;
}

const std::vector<uint32_t> kCrcs = {0x11111111, 0x22222222, 0x33333333};

// Re-seals after a change, so that the field's own check is what refuses it.
std::string error_after(const std::function<void(BlockHeader&)>& change) {
  BlockHeader header = sample();
  change(header);
  std::vector<uint32_t> crcs(std::min<uint32_t>(header.extent_count, 4096));
  header.extent_count = static_cast<uint32_t>(crcs.size());
  const auto parsed = parse_block_header(encode_block_header(header, crcs));
  return parsed ? "accepted" : parsed.error().what;
}

ExtentsReady ready_sample() {
  return {.req = "req_0123456789abcdefghijklmnop",
          .attempt = 2,
          .layer = 5,
          .first_block = 7,
          .extents = {{4096, 0xdeadbeef}, {uint64_t{1} << 40, 1}}};
}

}  // namespace

TEST_CASE("wire/block: the header's bytes are those of the golden file") {
  test::check_golden("block.txt", test::hex(encode_block_header(sample(), kCrcs)) + "\n");
}

TEST_CASE("wire/block: header and checksums survive a round trip") {
  const auto bytes = encode_block_header(sample(), kCrcs);
  const auto parsed = parse_block_header(bytes);
  REQUIRE_OK(parsed);
  BlockHeader expected = sample();
  expected.header_crc = parsed->header.header_crc;
  CHECK(parsed->header == expected);
  CHECK(parsed->extent_crcs == kCrcs);
  CHECK(parsed->bytes() == bytes.size());
  CHECK(parsed->header.extent_layout() == kLayout);
  CHECK(describe(parsed->header) == "block 496aca80 positions 128..191 layers 0..2 bf16 64x2x64");
}

TEST_CASE("wire/block: flipping any bit of header or table is noticed") {
  const auto bytes = encode_block_header(sample(), kCrcs);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    REQUIRE_FALSE(parse_block_header(damaged));
  }
}

TEST_CASE("wire/block: every truncation is refused") {
  const auto bytes = encode_block_header(sample(), kCrcs);
  for (size_t length = 0; length < bytes.size(); ++length)
    REQUIRE_FALSE(parse_block_header(std::span(bytes).first(length)));
}

TEST_CASE("wire/block: a sealed header that contradicts itself is refused by field and value") {
  CHECK(error_after([](BlockHeader&) {}) == "accepted");
  CHECK(error_after([](BlockHeader& h) { h.version = 2; }) == "block: version 2, this build reads version 1");
  CHECK(error_after([](BlockHeader& h) { h.layout = 9; }) == "block: layout version 9, this build reads version 1");
  CHECK(error_after([](BlockHeader& h) { h.block_tokens = 48; }) ==
        "block: block_tokens is 48, must be a power of two in 16..512");
  CHECK(error_after([](BlockHeader& h) { h.block_tokens = 0; }).find("block_tokens is 0") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.kv_heads = 0; }).find("kv_heads is 0") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.head_dim = 1 << 20; }).find("head_dim is 1048576") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.layer_count = 2000; }).find("layer_count is 2000") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.first_layer = 1022; }).find("first_layer is 1022") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.dtype = 2; }) ==
        "block: dtype is 2, only f32 (0), bf16 (1) and fp8_e4m3 (3) exist");
  CHECK(error_after([](BlockHeader& h) { h.extent_count = 2; }) == "block: extent_count is 2, must equal layer_count");
  CHECK(error_after([](BlockHeader& h) { h.extent_bytes += 64; }).find("the layout gives") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.token_count = 0; }).find("token_count is 0") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.token_count = 65; }) == "block: token_count is 65, must be 1..64");
  CHECK(error_after([](BlockHeader& h) { h.token_count = 63; }).find("does not fit its id") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.first_position = 100; }).find("multiple of 64") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.parent = {}; }).find("does not fit its parent") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.flags = 1; }).find("flags is 1") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) { h.reserved[3] = 1; }).find("reserved is 1") != std::string::npos);
  CHECK(error_after([](BlockHeader& h) {
          h.token_count = 7;
          h.id = {};
        }) == "accepted");
}

TEST_CASE("wire/block: a layout that is not ours is refused with both values") {
  CHECK(check_layout(sample(), kLayout));
  ExtentLayout ours = kLayout;
  ours.block_tokens = 128;
  CHECK(check_layout(sample(), ours).error().what == "block: block_tokens is 64, here it is 128");
  ours = kLayout;
  ours.dtype = Dtype::f32;
  CHECK(check_layout(sample(), ours).error().what == "block: kv dtype is bf16, here it is f32");
  ours.dtype = Dtype::f8_e4m3;
  CHECK(check_layout(sample(), ours).error().what == "block: kv dtype is bf16, here it is fp8_e4m3");
}

TEST_CASE("wire/block: a page of fp8_e4m3 has one byte a value and two scales for each KV head and layer") {
  ExtentLayout layout = kLayout;
  layout.dtype = Dtype::f8_e4m3;
  CHECK(layout.head_bytes() == 2 * 64 * 64 + 64 * 4 + 64 * 2 + 64);
  CHECK(layout.scale_offset() % 64 == 0);
  BlockHeader header = block_header_for(layout);
  header.token_count = 1;
  const auto parsed = parse_block_header(encode_block_header(header, std::vector<uint32_t>(3)));
  REQUIRE_OK(parsed);
  CHECK(parsed->header.extent_layout() == layout);
}

TEST_CASE("wire/notify: the bytes are those of the golden file and survive a round trip") {
  const auto messages = encode_extents_ready(ready_sample());
  REQUIRE_OK(messages);
  REQUIRE(messages->size() == 1);
  test::check_golden("notify.txt", test::hex((*messages)[0]) + "\n");
  const auto back = parse_extents_ready((*messages)[0]);
  REQUIRE_OK(back);
  CHECK(*back == ready_sample());
}

TEST_CASE("wire/notify: more extents than fit are split in block order") {
  ExtentsReady ready = ready_sample();
  ready.extents.resize(1000);
  for (size_t i = 0; i < 1000; ++i) ready.extents[i] = {i * 4096, static_cast<uint32_t>(i)};
  const auto messages = encode_extents_ready(ready);
  REQUIRE_OK(messages);
  CHECK(messages->size() == 3);
  std::vector<ReadyExtent> joined;
  for (const auto& bytes : *messages) {
    CHECK(bytes.size() <= kNotifyMessageBytesMax);
    const auto part = parse_extents_ready(bytes);
    REQUIRE_OK(part);
    CHECK(part->first_block == 7 + joined.size());
    joined.insert(joined.end(), part->extents.begin(), part->extents.end());
  }
  CHECK(joined == ready.extents);
  ready.extents.clear();
  CHECK(encode_extents_ready(ready)->empty());
}

TEST_CASE("wire/notify: damage, cuts and foreign kinds are refused") {
  const auto bytes = encode_extents_ready(ready_sample())->front();
  for (size_t length = 0; length < bytes.size(); ++length)
    REQUIRE_FALSE(parse_extents_ready(std::span(bytes).first(length)));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    REQUIRE_FALSE(parse_extents_ready(damaged));
  }
  ExtentsReady nameless = ready_sample();
  nameless.req.clear();
  CHECK_FALSE(encode_extents_ready(nameless));
  nameless.req = std::string(33, 'x');
  CHECK(encode_extents_ready(nameless).error().what == "notify: request id of 33 bytes, 1..32 fit");
}

// Fixed-layout formats on random values: parse inverts encode, damage is noticed.
#include <cstring>

#include "base/rng.h"
#include "test.h"
#include "unit/wire/sample_mckv.h"
#include "wire/block.h"
#include "wire/notify.h"

using namespace mc;
using namespace mc::wire;

namespace {

ExtentLayout random_layout(Rng& rng) {
  return {.layers = 1 + static_cast<uint32_t>(rng.below(5)),
          .kv_heads = 1 + static_cast<uint32_t>(rng.below(3)),
          .head_dim = 1 + static_cast<uint32_t>(rng.below(20)),
          .block_tokens = 16u << rng.below(3),
          .dtype = rng.chance(0.4) ? Dtype::f32 : rng.chance(0.5) ? Dtype::bf16 : Dtype::f8_e4m3};
}

Id128 random_id(Rng& rng) {
  Id128 id;
  for (uint8_t& byte : id.bytes) byte = static_cast<uint8_t>(rng.next());
  return id;
}

}  // namespace

TEST_CASE("wire/block: parse inverts encode on random headers, and one flipped bit is noticed") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 2000; ++round) {
    BlockHeader header = block_header_for(random_layout(rng));
    header.name_space = random_id(rng);
    header.generation = rng.next();
    header.token_count = 1 + static_cast<uint32_t>(rng.below(header.block_tokens));
    if (!header.is_tail()) header.id = random_id(rng);
    header.first_position = header.block_tokens * static_cast<uint32_t>(rng.below(100));
    if (header.first_position > 0) header.parent = random_id(rng);
    header.first_layer = static_cast<uint32_t>(rng.below(100));
    std::vector<uint32_t> crcs(header.extent_count);
    for (uint32_t& crc : crcs) crc = static_cast<uint32_t>(rng.next());
    auto bytes = encode_block_header(header, crcs);
    const auto parsed = parse_block_header(bytes);
    REQUIRE_OK(parsed);
    header.header_crc = parsed->header.header_crc;
    REQUIRE(parsed->header == header);
    REQUIRE(parsed->extent_crcs == crcs);
    bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1 << rng.below(8));
    REQUIRE_FALSE(parse_block_header(bytes));
  }
}

TEST_CASE("wire/notify: parse inverts encode whatever the number of extents") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 500; ++round) {
    ExtentsReady ready{.req = std::string(1 + rng.below(32), 'r'),
                       .attempt = static_cast<uint32_t>(rng.next()),
                       .layer = static_cast<uint32_t>(rng.next()),
                       .first_block = static_cast<uint32_t>(rng.below(1 << 20)),
                       .extents = std::vector<ReadyExtent>(rng.below(800))};
    for (ReadyExtent& extent : ready.extents) extent = {rng.next(), static_cast<uint32_t>(rng.next())};
    const auto messages = encode_extents_ready(ready);
    REQUIRE_OK(messages);
    std::vector<ReadyExtent> joined;
    for (const auto& bytes : *messages) {
      const auto part = parse_extents_ready(bytes);
      REQUIRE_OK(part);
      REQUIRE(part->req == ready.req);
      REQUIRE(part->first_block == ready.first_block + joined.size());
      joined.insert(joined.end(), part->extents.begin(), part->extents.end());
    }
    REQUIRE(joined == ready.extents);
  }
}

TEST_CASE("wire/mckv: streams of random shapes survive, and one flipped bit anywhere is noticed") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 60; ++round) {
    test::SampleMckv sample(1 + static_cast<uint32_t>(rng.below(150)));
    sample.layout = random_layout(rng);
    sample.reshape();
    auto bytes = sample.bytes();
    auto read_all_of = [&]() -> Result<void> {
      MC_TRY(reader, KvReader::open(test::read_from(bytes)));
      for (size_t block = 0;; ++block) {
        MC_TRY(next, reader.next());
        if (!next) return {};
        std::vector<std::byte> page(sample.pages[0].size());
        MC_CHECK(reader.read_page(page));
        if (page != sample.pages[block]) return Error{Code::corrupt, "page differs"};
      }
    };
    REQUIRE_OK(read_all_of());
    for (int flips = 0; flips < 20; ++flips) {
      const size_t bit = rng.below(bytes.size() * 8);
      bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      CAPTURE(bit);
      REQUIRE_FALSE(read_all_of());
      bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
  }
}

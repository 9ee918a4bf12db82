#include "wire/block_index.h"

#include "unit/wire/golden.h"

namespace block_index_test {

using namespace mc;
using namespace mc::wire;

namespace {

BlockHash hash_of(uint8_t first, uint8_t last) {
  BlockHash out;
  out.bytes.front() = first, out.bytes.back() = last;
  return out;
}

BlockBucket sample() {
  BlockBucket bucket{.version = 4, .epoch = 0x1122334455667788};
  bucket.blocks[0] = hash_of(1, 2), bucket.blocks[13] = hash_of(3, 4);
  bucket.set_tiers(0, HeldIn::both), bucket.set_tiers(13, HeldIn::disk);
  bucket.crc = bucket_crc(bucket);
  return bucket;
}

}  // namespace

TEST_CASE("wire/block_index: the bytes are those of the golden file") {
  const BlockBucket bucket = sample();
  const std::vector<BlockHash> asked = {hash_of(1, 2), hash_of(9, 9)};
  test::check_golden("block_index.txt", "bucket " + test::hex(std::as_bytes(std::span(&bucket, 1))) + "\nlookup " +
                                            test::hex(encode_lookup(asked)) + "\n");
}

TEST_CASE("wire/block_index: a bucket counts only as it was written, under its epoch") {
  const BlockBucket bucket = sample();
  CHECK(is_sound(bucket, bucket.epoch));
  CHECK_FALSE(is_sound(bucket, bucket.epoch + 1));
  CHECK_FALSE(is_sound(BlockBucket{}, 0));  // memory of zeros
  for (size_t bit = 0; bit < 8 * sizeof bucket; ++bit) {
    BlockBucket other = bucket;
    reinterpret_cast<uint8_t*>(&other)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    CHECK_FALSE(is_sound(other, bucket.epoch));
  }
}

TEST_CASE("wire/block_index: an odd version is that of a change under way, whatever the checksum says") {
  BlockBucket bucket = sample();
  ++bucket.version;
  bucket.crc = bucket_crc(bucket);
  CHECK_FALSE(is_sound(bucket, bucket.epoch));
}

TEST_CASE("wire/block_index: a block is found in its place alone, with its tiers") {
  const BlockBucket bucket = sample();
  CHECK(find_block(bucket, hash_of(1, 2)) == HeldIn::both);
  CHECK(find_block(bucket, hash_of(3, 4)) == HeldIn::disk);
  CHECK(find_block(bucket, hash_of(1, 4)) == HeldIn::none);
  CHECK(find_block(bucket, BlockHash{}) == HeldIn::none);  // the ids of empty places
}

TEST_CASE("wire/block_index: the two buckets of a block differ and are in the table") {
  for (int i = 0; i < 256; ++i)
    for (const uint64_t buckets : {2u, 4u, 64u}) {
      const auto at = buckets_of(hash_of(static_cast<uint8_t>(i), 0), buckets);
      CHECK(at[0] != at[1]);
      CHECK(at[0] < buckets);
      CHECK(at[1] < buckets);
    }
}

TEST_CASE("wire/block_index: a lookup decodes to the same, and other sizes are corrupt") {
  const std::vector<BlockHash> asked = {hash_of(1, 2), hash_of(9, 9)};
  const auto bytes = encode_lookup(asked);
  const auto decoded = decode_lookup(bytes);
  REQUIRE_OK(decoded);
  CHECK(*decoded == asked);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{15}, size_t{17}, (kLookupBlocksMax + 1) * 16})
    CHECK(decode_lookup(std::vector<uint8_t>(size)).error().code == Code::corrupt);
  CHECK(decode_lookup(std::vector<uint8_t>(kLookupBlocksMax * 16)).has_value());
}

TEST_CASE("wire/block_index: an answer has one known byte for each block") {
  const std::vector<uint8_t> bytes = {0, 1, 2, 3};
  const auto held = decode_held(bytes, 4);
  REQUIRE_OK(held);
  CHECK(*held == std::vector<HeldIn>{HeldIn::none, HeldIn::memory, HeldIn::disk, HeldIn::both});
  CHECK(decode_held(bytes, 3).error().code == Code::corrupt);
  CHECK(decode_held(bytes, 5).error().code == Code::corrupt);
  CHECK(decode_held(std::vector<uint8_t>{0, 4}, 2).error().code == Code::corrupt);
}

}  // namespace block_index_test

#include "wire/value_record.h"

#include <cstring>

#include "base/hash.h"
#include "test.h"

using namespace mc;
using namespace mc::wire;

namespace value_record_test {

ValueRecord example() {
  return {.tenant = "one",
          .name = "models/a",
          .number = 0x0506'0708,
          .data = 7,
          .bytes = 5000,
          .crc = 0x9a71'bb4c,
          .expires_ms = 1'700'000'000'000,
          .pinned_ms = -1};
}

TEST_CASE("wire/value_record: a record is read back as it was written, with empty and with long texts") {
  for (const auto& [tenant, name] :
       {std::pair(std::string(), std::string()), std::pair(std::string("t"), std::string(1024, 'k'))}) {
    ValueRecord record = example();
    record.tenant = tenant, record.name = name;
    const auto read = parse_value_record(encode(record));
    REQUIRE_OK(read);
    CHECK(*read == record);
  }
}

TEST_CASE("wire/value_record: the holders of a value are read back, and damage to them is refused") {
  ValueRecord record = example();
  record.replicas = {.version = 7, .revision = 3, .copies = 2, .holders = {"c0", std::string(64, 'n')}};
  const auto bytes = encode(record);
  CHECK(static_cast<int>(bytes[4]) == 2);
  const auto read = parse_value_record(bytes);
  REQUIRE_OK(read);
  CHECK(*read == record);
  for (size_t size = 0; size < bytes.size(); ++size) CHECK(!parse_value_record(std::span(bytes).first(size)));
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto bad = bytes;
    bad[i] ^= std::byte{4};
    CHECK(!parse_value_record(bad));
  }
}

TEST_CASE("wire/value_record: the bytes are those that the drawing shows") {
  const auto bytes = encode(example());
  REQUIRE(bytes.size() == 60 + 3 + 8);
  const auto byte = [&](size_t at) { return static_cast<int>(bytes[at]); };
  CHECK(byte(0) == 'M');
  CHECK(byte(4) == 1);
  CHECK(byte(6) == 3);
  CHECK(byte(8) == 8);
  CHECK(byte(12) == 8);
  CHECK(byte(15) == 5);
  CHECK(byte(20) == 7);
  CHECK(byte(52) == 0x4c);
  CHECK(byte(60) == 'o');
  CHECK(byte(63) == 'm');
}

TEST_CASE("wire/value_record: the bytes of the holders are those that the drawing shows") {
  ValueRecord record = example();
  record.replicas = {.version = 7, .revision = 3, .copies = 2, .holders = {"c0", "n"}};
  const auto bytes = encode(record);
  REQUIRE(bytes.size() == 60 + 3 + 8 + 19);
  const auto byte = [&](size_t at) { return static_cast<int>(bytes[at]); };
  CHECK(byte(4) == 2);
  CHECK(byte(10) == 19);
  CHECK(byte(71) == 7);
  CHECK(byte(79) == 3);
  CHECK(byte(83) == 2);
  CHECK(byte(84) == 2);
  CHECK(byte(85) == 2);
  CHECK(byte(86) == 'c');
  CHECK(byte(88) == 1);
  CHECK(byte(89) == 'n');
}

TEST_CASE("wire/value_record: one flipped bit, a cut and an addition are each refused") {
  const auto bytes = encode(example());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto bad = bytes;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CAPTURE(bit);
    CHECK(!parse_value_record(bad));
  }
  for (size_t size = 0; size < bytes.size(); ++size) CHECK(!parse_value_record(std::span(bytes).first(size)));
  auto longer = bytes;
  longer.push_back({});
  CHECK(!parse_value_record(longer));
  CHECK(!parse_value_record(std::vector<std::byte>(kValueRecordMax + 1)));
}

TEST_CASE("wire/value_record: a record whose reserved bytes are set is of another version, with its checksum right") {
  auto bytes = encode(example());
  const auto seal = [&] {
    uint32_t crc = 0;
    std::memcpy(bytes.data() + 56, &crc, sizeof crc);
    crc = crc32c(bytes);
    std::memcpy(bytes.data() + 56, &crc, sizeof crc);
  };
  seal();
  CHECK(parse_value_record(bytes).has_value());
  bytes[11] = std::byte{1};
  seal();
  CHECK(parse_value_record(bytes).error().code == Code::unsupported);
}

TEST_CASE("wire/value_record: numbers and sizes that no node writes are refused, with the checksum right") {
  for (uint64_t ValueRecord::*field : {&ValueRecord::number, &ValueRecord::data, &ValueRecord::bytes}) {
    const bool is_size = field == &ValueRecord::bytes;
    const uint64_t least = is_size ? 0 : 1, most = is_size ? kValueBytesMost : kValueNumberMost;
    for (const uint64_t good : {least, most}) {
      ValueRecord record = example();
      record.*field = good;
      REQUIRE_OK(parse_value_record(encode(record)));
    }
    for (const uint64_t bad : {least - 1, most + 1, UINT64_MAX}) {
      ValueRecord record = example();
      record.*field = bad;
      CHECK(parse_value_record(encode(record)).error().code == Code::corrupt);
    }
  }
}

}  // namespace value_record_test

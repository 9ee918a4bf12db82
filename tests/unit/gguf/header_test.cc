#include "gguf/header.h"

#include "gguf_writer.h"
#include "test.h"

using namespace mc;
using namespace mc::gguf;
using test::gguf_string;
using test::GgufWriter;
using test::little_endian;

namespace {

/// The error of parse() for these bytes; "ok" without one.
std::string error_of(const std::string& bytes) {
  const auto parsed = parse(std::as_bytes(std::span(bytes)), "m.gguf");
  return parsed.has_value() ? "ok" : parsed.error().what;
}

std::string error_of(const GgufWriter& writer) {
  return error_of(writer.bytes());
}

const std::string kFour(16, '\1');  // the data of four f32

}  // namespace

TEST_CASE("gguf/header: metadata of every type and tensors are found by name in versions 2 and 3") {
  GgufWriter writer;
  writer.text("z.text", "hi").whole("a.whole", 7).number("b.number", 0.5f).flag("c.flag", true);
  writer.raw("d.negative", 5, little_endian<int32_t>(-3)).raw("e.wide", 10, little_endian(UINT64_MAX));
  writer.texts("f.texts", {"x", "", "yz"}).numbers<float>("g.numbers", ValueType::f32, {1.5f, -2});
  writer.tensor("second", {2, 3}, Type::f32, std::string(24, '\1'))
      .tensor("first", {64}, Type::q8_0, std::string(68, 2));
  for (uint32_t version : {2u, 3u}) {
    const std::string bytes = writer.bytes(version);
    const auto header = parse(std::as_bytes(std::span(bytes)), "m.gguf");
    REQUIRE_OK(header);
    CHECK(header->version == version);
    CHECK(header->find("z.text")->text() == "hi");
    CHECK(header->find("a.whole")->whole() == 7);
    CHECK(header->find("b.number")->number() == 0.5);
    CHECK_FALSE(header->find("b.number")->whole().has_value());
    CHECK(header->find("c.flag")->flag() == true);
    CHECK_FALSE(header->find("d.negative")->whole().has_value());
    CHECK(header->find("d.negative")->number() == -3);
    CHECK(header->find("e.wide")->whole() == UINT64_MAX);
    CHECK(header->find("f.texts")->texts() == std::vector<std::string_view>{"x", "", "yz"});
    CHECK(header->find("g.numbers")->numbers() == std::vector<double>{1.5, -2});
    CHECK(header->find("g.numbers")->shown() == "[2 of f32]");
    CHECK(header->find("missing") == nullptr);
    REQUIRE(header->tensors.size() == 2);
    CHECK(header->tensors[0].name == "first");
    CHECK(header->tensors[0].bytes == 68);
    CHECK(header->tensors[1].shape == std::vector<uint64_t>{2, 3});
    CHECK(header->data_offset % 32 == 0);
  }
}

TEST_CASE("gguf/header: every prefix of a correct file is refused, and none is read beyond its end") {
  GgufWriter writer;
  writer.text("general.architecture", "llama").texts("t", {"a", "b"}).whole("n", 4);
  writer.tensor("w", {4}, Type::f32, kFour);
  const std::string bytes = writer.bytes();
  REQUIRE(error_of(bytes) == "ok");
  // The last tensor ends 16 bytes before the file does, because the writer pads the data.
  for (size_t length = 0; length < bytes.size() - 16; ++length) {
    const std::string cut(bytes.data(), length);  // a copy of exact size, so that a sanitizer sees a read behind it
    CAPTURE(length);
    CHECK(error_of(cut) != "ok");
  }
}

TEST_CASE("gguf/header: a file of another version, byte order or format is refused by name") {
  const GgufWriter writer;
  CHECK(error_of(writer.bytes(1)) == "m.gguf: version is 1; supported: 2 and 3, little-endian");
  CHECK(error_of(writer.bytes(3u << 24)).find("its numbers are big-endian") != std::string::npos);
  CHECK(error_of("PK" + writer.bytes().substr(2)).find("is no GGUF file") != std::string::npos);
  CHECK(error_of("").find("is no GGUF file") != std::string::npos);
}

TEST_CASE("gguf/header: counts and lengths that the file cannot hold are refused with their value") {
  const std::string head = "GGUF" + little_endian(3u);
  CHECK(error_of(head + little_endian(uint64_t{1} << 40) + little_endian(uint64_t{0}))
            .find("tensor_count is 1099511627776") != std::string::npos);
  CHECK(error_of(head + little_endian(uint64_t{0}) + little_endian(UINT64_MAX))
            .find("metadata_kv_count is 18446744073709551615") != std::string::npos);
  CHECK(error_of(head + little_endian(uint64_t{0}) + little_endian(uint64_t{1}) + little_endian(UINT64_MAX) +
                 std::string(64, 'x'))
            .find("metadata key 0 has a length of 18446744073709551615") != std::string::npos);
  CHECK(error_of(GgufWriter().raw("k", 8, little_endian(uint64_t{1} << 62)))
            .find("k has a length of 4611686018427387904") != std::string::npos);
  CHECK(error_of(GgufWriter().raw("k", 9, little_endian(4u) + little_endian(uint64_t{1} << 62)))
            .find("k has 4611686018427387904 elements") != std::string::npos);
  CHECK(error_of(GgufWriter().raw("k", 9, little_endian(8u) + little_endian(uint64_t{1} << 61)))
            .find("k has 2305843009213693952 elements") != std::string::npos);
}

TEST_CASE("gguf/header: values of no type, nested arrays and booleans of 2 are refused by key") {
  CHECK(error_of(GgufWriter().raw("k", 13, "xxxxxxxx")) == "m.gguf: k has value type 13; types go from 0 to 12");
  const std::string nested = little_endian(9u) + little_endian(uint64_t{1}) + std::string(16, '\0');
  CHECK(error_of(GgufWriter().raw("k", 9, nested)).find("k is an array of value type 9") != std::string::npos);
  CHECK(error_of(GgufWriter().raw("k", 7, "\2")) == "m.gguf: k is a boolean of value 2");
  CHECK(error_of(GgufWriter().whole("k", 1).whole("k", 1)) == "m.gguf: metadata key 'k' occurs twice");
}

TEST_CASE("gguf/header: the alignment is a power of two, and tensors begin at its multiples") {
  for (uint32_t alignment : {0u, 3u, 4u, 24u, 1u << 21}) {
    GgufWriter writer;
    writer.whole("general.alignment", alignment);
    CAPTURE(alignment);
    CHECK(error_of(writer).find("general.alignment is " + std::to_string(alignment)) != std::string::npos);
  }
  GgufWriter wide;
  wide.align(128).tensor("a", {4}, Type::f32, kFour).tensor("b", {4}, Type::f32, kFour);
  CHECK(error_of(wide) == "ok");
  GgufWriter odd;
  odd.tensor_at("a", {4}, 0, 8, kFour + kFour);
  CHECK(error_of(odd) == "m.gguf: tensor 'a' has offset 8, no multiple of general.alignment 32");
}

TEST_CASE("gguf/header: tensors beyond the file, over each other, twice, or of impossible shapes are refused") {
  const auto one = [&](const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset) {
    GgufWriter writer;
    writer.tensor_at("w", shape, type, offset, kFour);
    return error_of(writer);
  };
  CHECK(one({4}, 0, 0) == "ok");
  CHECK(one({8}, 0, 32).find("has 32 bytes at offset 32, but the file has 32 bytes of data") != std::string::npos);
  CHECK(one({4}, 0, UINT64_MAX - 31).find("at offset 18446744073709551584") != std::string::npos);
  CHECK(one({uint64_t{1} << 31, uint64_t{1} << 31}, 0, 0).find("more than 2^60 elements") != std::string::npos);
  CHECK(one({UINT64_MAX, 2}, 0, 0).find("more than 2^60 elements") != std::string::npos);
  CHECK(one({1, 1, 1, 1, 4}, 0, 0).find("has 5 dimensions") != std::string::npos);
  CHECK(one({31}, 2, 0) == "m.gguf: tensor 'w' has rows of 31 weights, but Q4_0 has blocks of 32");
  CHECK(one({4}, 16, 0) == "m.gguf: tensor 'w' has type IQ2_XXS");
  CHECK(one({4}, 4, 0) == "m.gguf: tensor 'w' has type 4");
  GgufWriter twice;
  twice.tensor("w", {4}, Type::f32, kFour).tensor("w", {4}, Type::f32, kFour);
  CHECK(error_of(twice) == "m.gguf: tensor 'w' is listed twice");
  GgufWriter over;
  over.tensor_at("a", {4}, 0, 0, kFour).tensor_at("b", {4}, 0, 0, "");
  CHECK(error_of(over) == "m.gguf: tensor 'b' at offset 0 overlaps 'a', which ends at 16");
}

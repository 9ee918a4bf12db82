#include "gguf/types.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "test.h"

using namespace mc;
using namespace mc::gguf;

TEST_CASE("gguf/types: every block type widens to the values that ggml's own reader gives, bit for bit") {
  size_t checked = 0;
  for (const TypeInfo& type : types()) {
    if (type.plain) continue;
    CAPTURE(type.name);
    std::ifstream file(test::source_dir() + "/tests/golden/gguf/" + std::string(type.name) + ".bin", std::ios::binary);
    REQUIRE(file.good());
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    constexpr size_t kBlocks = 4;
    const size_t columns = kBlocks * type.weights, row = row_bytes(type.type, columns);
    REQUIRE(bytes.size() == row + columns * sizeof(float));
    std::vector<float> expected(columns), actual(columns);
    std::memcpy(expected.data(), bytes.data() + row, columns * sizeof(float));
    widen_row(type.type, reinterpret_cast<const std::byte*>(bytes.data()), columns, actual.data());
    for (size_t i = 0; i < columns; ++i) {
      CAPTURE(i);
      CHECK(actual[i] == expected[i]);  // -0 and 0 may differ in their bits
    }
    ++checked;
  }
  CHECK(checked == 11);
}

TEST_CASE("gguf/types: plain floats are read from unaligned bytes") {
  const std::string f16("\1\x00\x3c\x01\x80\x00\x7c", 7);  // a byte, then 1, -2^-24, infinity
  float out[3];
  widen_row(Type::f16, reinterpret_cast<const std::byte*>(f16.data()) + 1, 3, out);
  CHECK(out[0] == 1);
  CHECK(out[1] == -0x1p-24f);
  CHECK(out[2] == std::numeric_limits<float>::infinity());
  const std::string bf16("\1\x80\x3f\x00\xc0", 5);
  widen_row(Type::bf16, reinterpret_cast<const std::byte*>(bf16.data()) + 1, 2, out);
  CHECK(out[0] == 1);
  CHECK(out[1] == -2);
}

TEST_CASE("gguf/types: a number has a name whether its type is read or not") {
  CHECK(type_name(12) == "Q4_K");
  CHECK(type_name(23) == "IQ4_XS");
  CHECK(type_name(4) == "4");
  CHECK(find_type(23) == nullptr);
  CHECK(info(Type::q6_k).bytes == 210);
}

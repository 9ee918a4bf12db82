#include "ops/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/parallel.h"
#include "test.h"

using namespace mc;
using namespace mc::ops;

namespace {

/// The ranges of bytes that packing reported, of all its threads.
class Ranges {
 public:
  void add(const std::byte* begin, const std::byte* end) {
    const std::lock_guard lock(mutex_);
    ranges_.emplace_back(begin, end);
  }
  /// Whether they cover [begin, end) without a gap, and nothing else.
  bool are(const std::byte* begin, const std::byte* end) {
    std::sort(ranges_.begin(), ranges_.end());
    for (const auto& [first, last] : ranges_) {
      if (first != begin) return false;
      begin = last;
    }
    return begin == end;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges_;
};

}  // namespace

TEST_CASE(
    "ops/matmul: packing asks once for every byte after the first ones, up to the end, and gives back what it read") {
  constexpr size_t kColumns = 4096, kRows = 5504, kBytes = kRows * (kColumns / 32 * 34);  // of a part
  static Ranges asked, given_back;
  auto file = mem::HostBuffer::allocate(2 * kBytes + kReadAheadBytes);  // never written, so it takes no memory
  REQUIRE_OK(file);
  const std::byte* data = std::as_const(*file).data();
  WeightRows part{.data = data,
                  .rows = kRows,
                  .done = [](const std::byte* begin, const std::byte* end) { given_back.add(begin, end); },
                  .soon = [](const std::byte* begin, const std::byte* end) { asked.add(begin, end); },
                  .readable = data + 2 * kBytes + kReadAheadBytes - 100,
                  .blocks = gguf::Type::q8_0};
  std::vector parts{part, part};
  parts[1].data = data + kBytes;
  Parallel parallel(2);
  REQUIRE_OK(PackedMatrix::quantise(parallel, parts, kColumns, QuantForm::eight));
  CHECK(asked.are(data + kReadAheadBytes, part.readable));
  CHECK(given_back.are(data, data + 2 * kBytes));
}

TEST_CASE("ops/matmul: parts of different dtypes are stacked in order and read at any alignment") {
  Parallel parallel(1);
  const float f32[] = {1, 2, 3};
  const bf16_t bf16[] = {f32_to_bf16(4), f32_to_bf16(5), f32_to_bf16(6)};
  // 0x3c00 = 1, 0x0001 = 2^-24 (denormal), 0xfc00 = -inf
  std::vector<std::byte> odd(1 + 6);
  const uint16_t f16[] = {0x3c00, 0x0001, 0xfc00};
  std::memcpy(odd.data() + 1, f16, 6);
  const WeightRows parts[] = {{f32, Dtype::f32, 1}, {bf16, Dtype::bf16, 1}, {odd.data() + 1, Dtype::f16, 1}};
  const auto packed = PackedMatrix::pack(parallel, parts, 3, Dtype::f32);
  REQUIRE_OK(packed);
  CHECK(packed->rows() == 3);
  CHECK(packed->at(0, 2) == 3);
  CHECK(packed->at(1, 0) == 4);
  CHECK(packed->at(2, 0) == 1);
  CHECK(packed->at(2, 1) == std::ldexp(1.0f, -24));
  CHECK(packed->at(2, 2) == -INFINITY);
  float row[3];
  packed->row(1, row);
  CHECK(row[2] == 6);
}

TEST_CASE("ops/matmul: E4M3 has the values of its standard: denormals, 448 and NaN") {
  CHECK(e4m3_to_f32(0x00) == 0);
  CHECK(e4m3_to_f32(0x01) == std::ldexp(1.0f, -9));
  CHECK(e4m3_to_f32(0x07) == 7 * std::ldexp(1.0f, -9));
  CHECK(e4m3_to_f32(0x08) == std::ldexp(1.0f, -6));
  CHECK(e4m3_to_f32(0x38) == 1);
  CHECK(e4m3_to_f32(0xb9) == -1.125f);
  CHECK(e4m3_to_f32(0x7e) == 448);
  CHECK(e4m3_to_f32(0xfe) == -448);
  CHECK(std::isnan(e4m3_to_f32(0x7f)));
  CHECK(std::isnan(e4m3_to_f32(0xff)));
}

TEST_CASE("ops/matmul: fp8 weights are worth their code times the scale of their block") {
  Parallel parallel(1);
  const uint8_t codes[] = {0x38, 0x40, 0x38, 0x30, 0xb8, 0x7e};  // 1 2 1 / 0.5 -1 448
  const float blocks[] = {2, 3, 5, 7};
  const WeightRows rows{codes, Dtype::f8_e4m3, 2, {blocks, 1, 2, 2}};
  const auto packed = PackedMatrix::pack(parallel, {&rows, 1}, 3, Dtype::f32);
  REQUIRE_OK(packed);
  const float want[2][3] = {{2, 4, 3}, {2.5f, -5, 3136}};
  for (size_t row = 0; row < 2; ++row)
    for (size_t column = 0; column < 3; ++column) CHECK(packed->at(row, column) == want[row][column]);
}

TEST_CASE("ops/matmul: an unknown variant is refused with the list of those this CPU runs") {
  CHECK(kernels_named("auto").has_value());
  CHECK(kernels_named("").has_value());
  const auto wrong = kernels_named("sm90");
  REQUIRE(!wrong.has_value());
  CHECK(wrong.error().code == Code::unsupported);
  CHECK(wrong.error().what.find("no variant 'sm90'") != std::string::npos);
  CHECK(wrong.error().what.find("ref") != std::string::npos);
}

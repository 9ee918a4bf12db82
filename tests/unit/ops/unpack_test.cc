// Packed weights as rows of bf16, against PackedMatrix::row() of every form.
#include "ops/unpack.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/quant_pack.h"
#include "test.h"

using namespace mc;
using namespace mc::ops;

namespace unpack_test {
namespace {

/// The bits of all weights of a matrix, by panels and by row(); NaN has one of them.
std::vector<bf16_t> unpacked(const PackedMatrix& matrix) {
  std::vector<bf16_t> out(matrix.rows() * matrix.columns() + 1, 0x1234);
  UnpackScratch scratch;
  scratch.fit(matrix);
  for (size_t panel = 0; panel < matrix.panels(); ++panel)
    unpack_panel(matrix, panel, scratch, out.data() + panel * kPanelColumns * matrix.columns());
  CHECK(out.back() == 0x1234);  // the last panel ends with its rows
  out.pop_back();
  return out;
}
std::vector<bf16_t> defined(const PackedMatrix& matrix) {
  std::vector<bf16_t> out;
  std::vector<float> row(matrix.columns());
  for (size_t r = 0; r < matrix.rows(); ++r) {
    matrix.row(r, row.data());
    for (const float value : row) out.push_back(f32_to_bf16(value));
  }
  return out;
}
size_t differences(const PackedMatrix& matrix) {
  const auto got = unpacked(matrix), want = defined(matrix);
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool both = std::isnan(bf16_to_f32(got[i])) && std::isnan(bf16_to_f32(want[i]));
    wrong += got[i] == want[i] || both ? 0 : 1;
  }
  return wrong;
}

/// Blocks of any bits: of finite scales, infinite ones and NaN.
std::vector<std::byte> some_blocks(Rng& rng, size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.below(256));
  return out;
}

}  // namespace

TEST_CASE("ops/unpack: every block type in its own form and in a common one has the weights of row()") {
  CAPTURE(test::seed());
  Rng rng(test::seed());
  Parallel parallel(1);
  constexpr size_t kColumns = 512;
  for (const gguf::TypeInfo& type : gguf::types()) {
    const auto form = kept_form(type.type);
    if (!form) continue;
    CAPTURE(type.name);
    for (const size_t rows : {size_t{1}, size_t{64}, size_t{67}}) {
      const auto data = some_blocks(rng, rows * gguf::row_bytes(type.type, kColumns));
      const WeightRows part{.data = data.data(), .rows = rows, .blocks = type.type};
      for (const QuantForm own : {*form, QuantForm::eight}) {
        const auto matrix = PackedMatrix::quantise(parallel, {&part, 1}, kColumns, own);
        REQUIRE_OK(matrix);
        CHECK(differences(*matrix) == 0);
      }
      if (PackedMatrix::fits_in_place({&part, 1}))
        CHECK(differences(PackedMatrix::in_place({&part, 1}, kColumns)) == 0);
    }
  }
}

TEST_CASE("ops/unpack: floats, whole numbers made of floats and fp8 codes have the weights of row()") {
  CAPTURE(test::seed());
  Rng rng(test::seed());
  Parallel parallel(1);
  for (const auto& [rows, columns] : {std::pair<size_t, size_t>{1, 1}, {65, 33}, {130, 72}, {3, 300}}) {
    CAPTURE(columns);
    std::vector<float> values(rows * columns);
    for (float& value : values) value = static_cast<float>(rng.normal());
    values[0] = INFINITY;
    const WeightRows part{.data = values.data(), .rows = rows};
    for (const QuantForm form : {QuantForm::four, QuantForm::eight})
      CHECK(differences(PackedMatrix::quantise(parallel, {&part, 1}, columns, form).value()) == 0);
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      CHECK(differences(PackedMatrix::pack(parallel, {&part, 1}, columns, dtype).value()) == 0);
    std::vector<uint8_t> codes(rows * columns);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(rng.below(256));
    std::vector<float> scales(rows * ((columns + 31) / 32));
    for (float& scale : scales) scale = 0.01f + static_cast<float>(rng.uniform());
    for (const size_t group : {size_t{32}, columns}) {
      const size_t per_row = (columns + group - 1) / group;
      const WeightRows fp8{
          .data = codes.data(), .dtype = Dtype::f8_e4m3, .rows = rows, .scales = {scales.data(), 1, group, per_row}};
      const auto matrix = PackedMatrix::keep_fp8(parallel, {&fp8, 1}, columns, Dtype::bf16).value();
      CHECK(differences(matrix) == 0);
      std::vector<uint8_t> got(codes.size());
      for (size_t panel = 0; panel < matrix.panels(); ++panel)
        unpack_codes(matrix, panel, got.data() + panel * kPanelColumns * columns);
      CHECK(got == codes);
      CHECK(matrix.scale_run().rows == 1);
      CHECK(matrix.scale_run().columns == std::min(group, columns));
      const float scale = scale_of(matrix, rows - 1, columns - 1);
      CHECK((std::isnan(scale) || scale == scales[rows * per_row - 1]));
    }
  }
}

}  // namespace unpack_test

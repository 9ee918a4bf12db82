// fp8 tensors and the scales beside them: every form that is read, and every one that is not, by name.
#include "model/weights.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/parallel.h"
#include "test.h"

namespace weights_test {

using namespace mc;
using namespace mc::model;

namespace {

namespace fs = std::filesystem;

/// w.weight is F8_E4M3 [2, 3], all ones (0x38); its scales are as told.
std::string file_of(const std::string& scale_name, const std::string& dtype, const std::string& shape,
                    const std::string& scales) {
  std::string header = R"({"w.weight":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]})";
  if (!scale_name.empty())
    header += R"(,"w.)" + scale_name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[6,)" +
              std::to_string(6 + scales.size()) + "]}";
  header += "}";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255);
  return file + header + std::string(6, '\x38') + scales;
}

std::string f32(std::initializer_list<float> values) {
  std::string out;
  for (float value : values) out.append(reinterpret_cast<const char*>(&value), sizeof value);
  return out;
}

/// The packed matrix of such a file; blocks of 128 x 2 where scales are of blocks.
Result<ops::PackedMatrix> load(const std::string& file) {
  const fs::path folder = fs::path(test::binary_dir()) / "tests" / ("weights-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << file;
  auto files = WeightFiles::open(folder.string());
  fs::remove_all(folder);  // the mapping stays
  if (!files) return std::move(files).error();
  ModelConfig config;
  config.fp8 = {128, 2};
  Parallel parallel(1);
  const WeightPart part[] = {{"w", 2}};
  return WeightLoader(*files, config, Dtype::f32, WeightForm::full, parallel).matrix("", part, 3);
}

std::string error_of(const std::string& file) {
  const auto loaded = load(file);
  return loaded ? "accepted" : loaded.error().what;
}

}  // namespace

TEST_CASE("model/weights: fp8 scales are one for all, one a row, or one a block, told by their shape") {
  const struct {
    std::string file;
    float want[2][3];
  } rows[] = {
      {file_of("weight_scale", "F32", "[]", f32({2})), {{2, 2, 2}, {2, 2, 2}}},
      {file_of("weight_scale_inv", "F32", "[1]", f32({2})), {{2, 2, 2}, {2, 2, 2}}},
      {file_of("weight_scale", "F32", "[2,1]", f32({2, 3})), {{2, 2, 2}, {3, 3, 3}}},
      {file_of("weight_scale", "F32", "[2]", f32({2, 3})), {{2, 2, 2}, {3, 3, 3}}},
      {file_of("weight_scale_inv", "F32", "[1,2]", f32({2, 3})), {{2, 2, 3}, {2, 2, 3}}},
      {file_of("weight_scale_inv", "BF16", "[1,2]", std::string("\x00\x40\x40\x40", 4)), {{2, 2, 3}, {2, 2, 3}}},
  };
  for (const auto& row : rows) {
    const auto loaded = load(row.file);
    REQUIRE_OK(loaded);
    for (size_t r = 0; r < 2; ++r)
      for (size_t c = 0; c < 3; ++c) CHECK(loaded->at(r, c) == row.want[r][c]);
  }
}

TEST_CASE("model/weights: fp8 without scales, or with ones of another shape or type, is refused by name") {
  const auto contains = [](const std::string& text, const std::string& part) {
    INFO(text);
    return text.find(part) != std::string::npos;
  };
  CHECK(contains(error_of(file_of("", "", "", "")),
                 "'w.weight' is F8_E4M3, but there is neither 'w.weight_scale_inv' nor 'w.weight_scale'"));
  CHECK(
      contains(error_of(file_of("weight_scale", "F32", "[2,2]", f32({1, 1, 1, 1}))),
               "scales 'w.weight_scale' have shape [2, 2]; supported for [2, 3]: one, one a row, or [1, 2] for blocks "
               "of 128 x 2"));
  CHECK(contains(error_of(file_of("weight_scale", "F32", "[0]", "")), "have shape [0]"));
  CHECK(contains(error_of(file_of("weight_scale", "I32", "[1]", f32({1}))), "have dtype I32; use F32, F16 or BF16"));
  for (float bad : {NAN, INFINITY})
    CHECK(contains(error_of(file_of("weight_scale", "F32", "[2]", f32({1, bad}))), "hold a value that is not finite"));
}

}  // namespace weights_test

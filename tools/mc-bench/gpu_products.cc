#include "gpu_products.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/rng.h"
#include "gpu/fp8_product.h"
#include "gpu/matmul.h"
#include "gpu/mlp.h"
#include "gpu_speed.h"
#include "print.h"

namespace mc::bench {
namespace {

/// Rows of x and of w repeat after primes, so that no tile meets itself again.
constexpr size_t kRowsOfX = 59, kRowsOfW = 61;

struct Matrix {
  size_t columns, inner;
};
// Matrices of a layer of an 8B model: q, k and v; gate and up; down.
constexpr Matrix kMatrices[] = {{6144, 4096}, {28672, 4096}, {4096, 14336}};
constexpr size_t kRowCounts[] = {1, 16, 64, 4096};
constexpr Matrix kSmallMatrices[] = {{96, 256}, {68, 144}};
constexpr size_t kSmallRowCounts[] = {1, 5, 63, 64, 70};

struct Body {
  std::string_view name;
  Dtype dtype;  // bf16 or f8_e4m3
  gpu::MatmulChoice choice;
  bool promises_bits = true;  // of a row, whatever rows lie beside it
  bool is_fp8() const { return dtype == Dtype::f8_e4m3; }
  std::string_view dtype_name() const { return is_fp8() ? "fp8" : "bf16"; }
};
constexpr Body kBodies[] = {{"own", Dtype::bf16, gpu::MatmulChoice::own},
                            {"cublaslt", Dtype::bf16, gpu::MatmulChoice::cublaslt},
                            {"cublaslt-tuned", Dtype::bf16, gpu::MatmulChoice::tuned, false},
                            {"cublaslt", Dtype::f8_e4m3, gpu::MatmulChoice::cublaslt}};

/// One matrix on a device, with rows to multiply and the expected sums.
class ProductCase {
 public:
  static Result<ProductCase> open(gpu::Device& device, const Matrix& matrix, size_t rows_most, uint64_t seed);
  /// Queues the product of the first rows.
  Result<void> queue(const Body& body, size_t rows);
  /// The largest error among all elements as a share of its bound, and the bits of the first row.
  struct Answer {
    double share = 0;
    std::vector<float> first;
  };
  Result<Answer> run(const Body& body, size_t rows);
  /// Memory for fp8; after Device::choose_matmul().
  Result<void> prepare(const Body& body);
  double flops(size_t rows) const { return 2.0 * static_cast<double>(rows * matrix_.columns * matrix_.inner); }

 private:
  ProductCase(gpu::Device& device, const Matrix& matrix, size_t rows_most)
      : device_(&device), matrix_(matrix), rows_most_(rows_most) {}
  Result<void> fill(uint64_t seed);
  Result<gpu::DeviceBuffer> repeated(std::span<const std::byte> rows, size_t count, size_t row_bytes);
  void expect();

  gpu::Device* device_;
  Matrix matrix_;
  size_t rows_most_;
  std::vector<float> x_, w_;        // [kRowsOfX, inner], [kRowsOfW, inner]
  std::vector<double> sum_, size_;  // [kRowsOfX, kRowsOfW]: products, and products of absolute values
  gpu::DeviceBuffer x_bf16_, w_bf16_, w_codes_, w_scales_, y_;
  std::optional<gpu::Fp8Matmul> fp8_;
};

/// An E4M3 code and its value: eighths between 1 and 2 with a sign.
uint8_t code_of(Rng& rng, float* value) {
  const auto eighth = static_cast<uint8_t>(rng.below(8));
  const bool is_negative = rng.chance(0.5);
  *value = (is_negative ? -1.0f : 1.0f) * (1 + static_cast<float>(eighth) / 8);
  return static_cast<uint8_t>((is_negative ? 0x80 : 0) | 7 << 3 | eighth);
}

Result<gpu::DeviceBuffer> ProductCase::repeated(std::span<const std::byte> rows, size_t count, size_t row_bytes) {
  MC_TRY(buffer, gpu::DeviceBuffer::make(*device_, count * row_bytes, "operand of a product"));
  MC_TRY(stream, gpu::Stream::make(*device_));
  const size_t all = count * row_bytes;
  size_t have = std::min(rows.size(), all);
  MC_CHECK(device_->write(buffer.address(), rows.first(have)));
  while (have < all) {
    const size_t more = std::min(have, all - have);  // `have` is a multiple of the repeated rows
    MC_CHECK(stream.copy_within(buffer.address() + have, buffer.address(), more));
    MC_CHECK(stream.finish());
    have += more;
  }
  return buffer;
}

Result<void> ProductCase::fill(uint64_t seed) {
  Rng rng = Rng(seed).fork("products");
  const size_t inner = matrix_.inner;
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < kRowsOfX * inner; ++i)
    x_.push_back(bf16_to_f32(f32_to_bf16(static_cast<float>(rng.normal()))));
  w_.resize(kRowsOfW * inner);
  for (float& value : w_) codes.push_back(code_of(rng, &value));
  const auto as_bf16 = [](const std::vector<float>& values) {
    std::vector<bf16_t> out;
    for (const float value : values) out.push_back(f32_to_bf16(value));
    return out;
  };
  const std::vector<bf16_t> x = as_bf16(x_), w = as_bf16(w_);
  MC_TRY(x_on, repeated(std::as_bytes(std::span(x)), rows_most_, inner * 2));
  MC_TRY(w_on, repeated(std::as_bytes(std::span(w)), matrix_.columns, inner * 2));
  MC_TRY(codes_on, repeated(std::as_bytes(std::span(codes)), matrix_.columns, inner));
  const std::vector<float> ones((matrix_.columns + 127) / 128 * gpu::fp8_scale_stride(inner), 1);
  MC_TRY(scales_on, repeated(std::as_bytes(std::span(ones)), 1, ones.size() * 4));
  MC_TRY(y_on, gpu::DeviceBuffer::make(*device_, rows_most_ * matrix_.columns * 4, "result of a product"));
  x_bf16_ = std::move(x_on), w_bf16_ = std::move(w_on), w_codes_ = std::move(codes_on);
  w_scales_ = std::move(scales_on), y_ = std::move(y_on);
  expect();
  return {};
}

void ProductCase::expect() {
  for (size_t r = 0; r < kRowsOfX; ++r)
    for (size_t c = 0; c < kRowsOfW; ++c) {
      double sum = 0, size = 0;
      for (size_t i = 0; i < matrix_.inner; ++i) {
        const double product = double{x_[r * matrix_.inner + i]} * w_[c * matrix_.inner + i];
        sum += product;
        size += std::abs(product);
      }
      sum_.push_back(sum);
      size_.push_back(size);
    }
}

Result<ProductCase> ProductCase::open(gpu::Device& device, const Matrix& matrix, size_t rows_most, uint64_t seed) {
  ProductCase made(device, matrix, rows_most);
  MC_CHECK(made.fill(seed));
  return made;
}

Result<void> ProductCase::prepare(const Body& body) {
  fp8_.reset();
  if (!body.is_fp8()) return {};
  MC_TRY(matmul, gpu::Fp8Matmul::open(*device_, rows_most_, matrix_.columns, matrix_.inner));
  fp8_ = std::move(matmul);
  return {};
}

Result<void> ProductCase::queue(const Body& body, size_t rows) {
  if (body.is_fp8())
    return fp8_->queue({.x = x_bf16_.address(),
                        .w = w_codes_.address(),
                        .w_scales = w_scales_.address(),
                        .y = y_.address(),
                        .rows = rows,
                        .columns = matrix_.columns,
                        .inner = matrix_.inner});
  return gpu::queue_product(*device_, {.x = x_bf16_.address(),
                                       .w = w_bf16_.address(),
                                       .y = y_.address(),
                                       .rows = rows,
                                       .columns = matrix_.columns,
                                       .inner = matrix_.inner});
}

/// The bound has a rounding of f32 for each inner element and, in fp8, half a step of E4M3 of each activation. A
/// tensor core may add fp8 with fewer bits than f32: 2^-13 of the sum of the absolute values allows for 14 bits.
Result<ProductCase::Answer> ProductCase::run(const Body& body, size_t rows) {
  MC_CHECK(device_->fill(y_.address(), 0xff, rows * matrix_.columns * 4));
  MC_CHECK(queue(body, rows));
  MC_CHECK(device_->finish());
  std::vector<float> y(rows * matrix_.columns);
  MC_CHECK(device_->read(y_.address(), std::as_writable_bytes(std::span(y))));
  const double rounding = static_cast<double>(matrix_.inner + 2) * 0x1p-24;
  const double per_size = body.is_fp8() ? rounding + 0x1.001p-4 + 0x1p-13 : rounding;
  const double least = body.is_fp8() ? 0x1p-15 * static_cast<double>(matrix_.inner) : 1e-30;
  Answer out;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < matrix_.columns; ++c) {
      const size_t at = r % kRowsOfX * kRowsOfW + c % kRowsOfW;
      const double error = std::abs(y[r * matrix_.columns + c] - sum_[at]);
      const double share = error / (per_size * size_[at] + least);
      out.share = share <= out.share ? out.share : share;  // also when it is NaN
    }
  out.first.assign(y.begin(), y.begin() + static_cast<ptrdiff_t>(matrix_.columns));
  return out;
}

Json describe_product(const Body& body, const Matrix& matrix, size_t rows) {
  Json out =
      Json::object({{"type", "product"}, {"body", std::string(body.name)}, {"dtype", std::string(body.dtype_name())}});
  return std::move(out.set("rows", rows).set("columns", matrix.columns).set("inner", matrix.inner));
}

std::vector<std::string> product_cells(const Json& row) {
  const auto some = [&](const char* key, double scale, int decimals) {
    return row.find(key) == nullptr ? std::string("-") : fixed(row[key].as_double() * scale, decimals);
  };
  return {std::string(row["body"].as_string()) + " " + std::string(row["dtype"].as_string()),
          row["rows"].dump() + " x " + row["columns"].dump() + " x " + row["inner"].dump(),
          row.find("failure") != nullptr   ? "FAILED"
          : row.find("not_run") != nullptr ? "not run"
                                           : some("error_share", 1, 3),
          some("seconds", 1e3, 4),
          some("flops", 1e-12, 1),
          some("peak_share", 100, 1)};
}

/// The runs of one matrix by one body.
class BodyRuns {
 public:
  BodyRuns(ProductCase& made, const Body& body, const Matrix& matrix, gpu::Device& device,
           const ProductsOptions& options)
      : made_(made), body_(body), matrix_(matrix), device_(device), options_(options) {}
  Result<Json> run(size_t rows);

 private:
  ProductCase& made_;
  const Body& body_;
  const Matrix& matrix_;
  gpu::Device& device_;
  const ProductsOptions& options_;
  std::vector<float> first_;  // bits of the first row
};

Result<Json> BodyRuns::run(size_t rows) {
  Json row = describe_product(body_, matrix_, rows);
  MC_TRY(answer, made_.run(body_, rows));
  row.set("error_share", answer.share);
  if (!(answer.share <= 1))
    row.set("failure", "the result has an error of " + fixed(answer.share, 2) + " times its bound");
  if (first_.empty()) first_ = answer.first;
  row.set("same_bits", first_ == answer.first);
  if (first_ != answer.first && body_.promises_bits)
    row.set("failure", "the first row has other bits among " + std::to_string(rows) + " rows");
  if (const gpu::Matmul* matmul = device_.matmul(); matmul != nullptr) {
    const gpu::LtProposal& last = matmul->report().last;
    row.set("algorithm", last.id).set("tile", last.tile).set("parts", last.splits);
  }
  if (!options_.is_timed) return row;
  MC_TRY(seconds, median_seconds(device_, [&] { return made_.queue(body_, rows); }));
  const double flops = made_.flops(rows) / seconds, peak = options_.peak * (body_.is_fp8() ? 2 : 1);
  row.set("seconds", seconds).set("flops", flops);
  if (peak > 0) row.set("peak_share", flops / peak);
  return row;
}

}  // namespace

Table products_table() {
  return Table({"body", "rows x columns x inner", "error", "ms", "TFLOP/s", "% of peak"});
}

Result<void> check_products(gpu::Device& device, const ProductsOptions& options, Rows& rows) {
  const std::span<const Matrix> matrices =
      options.is_timed ? std::span<const Matrix>(kMatrices) : std::span<const Matrix>(kSmallMatrices);
  const std::span<const size_t> counts =
      options.is_timed ? std::span<const size_t>(kRowCounts) : std::span<const size_t>(kSmallRowCounts);
  std::optional<std::string> failed;
  const auto add = [&](Json row) {
    if (!failed && row.find("failure") != nullptr) failed = row.dump();
    std::vector<std::string> cells = product_cells(row);
    return rows.add(std::move(row), std::move(cells));
  };
  for (const Matrix& matrix : matrices)
    for (const Body& body : kBodies) rows.expect(product_cells(describe_product(body, matrix, counts.back())));
  for (const Matrix& matrix : matrices) {
    MC_TRY(made, ProductCase::open(device, matrix, counts.back(), options.seed));
    for (const Body& body : kBodies) {
      auto chosen = device.choose_matmul(body.choice);
      if (chosen) chosen = made.prepare(body);
      const bool can_fp8 = gpu::multiplies_fp8(device.capability(), gpu::Fp8Scales::blocks);
      if (!chosen || (body.is_fp8() && !can_fp8)) {
        Json row = describe_product(body, matrix, counts.back());
        MC_CHECK(add(row.set("not_run", chosen ? "the device multiplies no fp8" : chosen.error().what)));
        continue;
      }
      BodyRuns runs(made, body, matrix, device, options);
      for (const size_t count : counts) {
        MC_TRY(row, runs.run(count));
        MC_CHECK(add(std::move(row)));
      }
    }
  }
  MC_CHECK(device.choose_matmul(gpu::MatmulChoice::own));
  if (!failed) return {};
  return user_error(err::kWrongAnswer, *failed, {},
                    "this is a fault of the programs: report it with this line, which repeats it");
}

}  // namespace mc::bench

// See ops_case.h.
#include "ops_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attn_case.h"
#include "base/assert.h"
#include "base/rng.h"
#include "ops/rope.h"

namespace mc::bench {
namespace {

constexpr size_t kMatricesMax = 256;
constexpr size_t kCheckedRows = 8;
constexpr int64_t kRowGrain = 16;
constexpr size_t kHead = 128;
constexpr size_t kScaleBlock = 128;  // of fp8 checkpoints: a scale for 128 x 128 codes
constexpr float kEpsilon = 1e-5f;
constexpr double kUlp = 5.9604644775390625e-8;  // 2^-24

constexpr std::string_view kCaseDtypes[] = {"bf16", "f32", "int8", "int4", "fp8_e4m3"};

std::vector<float> edge_values(Rng& rng, size_t n) {
  std::vector<float> v(n);
  for (float& x : v) {
    x = static_cast<float>((2 * rng.uniform() - 1) * 1.7320508);
    if (rng.chance(0.05)) x = rng.chance(0.5) ? 0.0f : 30 * x;
  }
  return v;
}

std::vector<uint8_t> edge_codes(Rng& rng, size_t n) {
  std::vector<uint8_t> v(n);
  for (uint8_t& code : v) {
    code = static_cast<uint8_t>(rng.next() >> 56);
    if (rng.chance(0.1)) code &= 0x87;        // zeros and subnormals
    if ((code & 0x7f) == 0x7f) code ^= 0x01;  // NaN becomes the largest
  }
  return v;
}

std::optional<ops::QuantForm> quant_form_of(std::string_view dtype) {
  if (dtype == "int8") return ops::QuantForm::eight;
  if (dtype == "int4") return ops::QuantForm::four;
  return std::nullopt;
}

size_t packed_bytes(std::string_view dtype, size_t inputs, size_t outputs) {
  if (const auto form = quant_form_of(dtype)) return ops::PackedMatrix::quantised_bytes(outputs, inputs, *form);
  if (dtype == "fp8_e4m3") return ops::PackedMatrix::fp8_bytes(outputs, inputs, std::min(inputs, kScaleBlock));
  return ops::PackedMatrix::packed_bytes(outputs, inputs, dtype == "f32" ? Dtype::f32 : Dtype::bf16);
}

/// body(row) for all rows, as a model's forward pass hands them out.
template <class Body>
void each_row(const Operands& o, const Body& body) {
  o.parallel->for_ranges(static_cast<int64_t>(o.rows), kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) body(row);
  });
}

bool is_decode(size_t rows) {
  return rows < ops::kTileRows;
}
bool is_prefill(size_t rows) {
  return rows % ops::kTileRows == 0;
}
bool any_rows(size_t) {
  return true;
}

size_t matrix_inputs(size_t inputs, size_t) {
  return inputs;
}
size_t matrix_outputs(size_t, size_t outputs) {
  return outputs;
}
size_t gate_and_up(size_t, size_t outputs) {
  return 2 * outputs;
}

void decode(Operands& o, ops::Matmul& matmul) {
  matmul.decode(o.matrices->next(), o.x.data(), o.rows, o.out.data());
}

void prefill(Operands& o, ops::Matmul& matmul) {
  matmul.prefill(o.matrices->next(), o.x.data(), o.rows / ops::kTileRows, o.out.data());
}

void define_product(const Operands& o, size_t row, double* want, double* terms) {
  const ops::PackedMatrix& weights = o.matrices->first();
  std::vector<float> x(o.x.begin() + static_cast<ptrdiff_t>(row * o.inputs),
                       o.x.begin() + static_cast<ptrdiff_t>((row + 1) * o.inputs));
  if (weights.dtype() == Dtype::bf16)
    for (float& value : x) value = bf16_to_f32(f32_to_bf16(value));
  o.parallel->for_ranges(static_cast<int64_t>(o.outputs), 16, [&](int64_t begin, int64_t end, int) {
    std::vector<float> line(o.inputs);
    for (auto out = static_cast<size_t>(begin); out < static_cast<size_t>(end); ++out) {
      weights.row(out, line.data());
      want[out] = terms[out] = 0;
      for (size_t i = 0; i < o.inputs; ++i) {
        want[out] += double{x[i]} * line[i];
        terms[out] += std::abs(double{x[i]} * line[i]);
      }
    }
  });
}

/// A chain of k sums in f32 is off by at most k half-ulps of its terms, in practice by sqrt(k) of them. Inputs of
/// quantised weights are rounded by 1 / 65024 of the largest in a group of 32, which is less than 128 times the mean of
/// edge_values() there.
double product_error_max(const Operands& o, const ops::Kernels&) {
  const double rounding = o.matrices->first().quantised() ? 128.0 / 65024 : 0;
  return 4 * kUlp * std::sqrt(static_cast<double>(o.inputs) + 4) + rounding;
}

/// fp8 in tiles of bf16 rounds each weight times its scale to 8 bits.
double prefill_error_max(const Operands& o, const ops::Kernels& kernels) {
  const bool rounds = o.matrices->first().is_fp8() && kernels.tile_gemm == ops::TileGemm::onednn;
  return product_error_max(o, kernels) + (rounds ? 1.0 / 256 : 0);
}

void rms_norm(Operands& o, ops::Matmul& matmul) {
  each_row(o, [&](size_t row) {
    matmul.kernels().rms_norm(o.x.data() + row * o.inputs, o.weight.data(), kEpsilon, o.inputs,
                              o.out.data() + row * o.outputs);
  });
}

void define_rms_norm(const Operands& o, size_t row, double* want, double* terms) {
  const float* x = o.x.data() + row * o.inputs;
  double sum = 0;
  for (size_t i = 0; i < o.inputs; ++i) sum += double{x[i]} * x[i];
  const double scale = 1 / std::sqrt(sum / static_cast<double>(o.inputs) + double{kEpsilon});
  for (size_t i = 0; i < o.inputs; ++i) terms[i] = std::abs(want[i] = x[i] * scale * o.weight[i]);
}

void silu_mul(Operands& o, ops::Matmul& matmul) {
  each_row(o, [&](size_t row) {
    const float* gate = o.x.data() + row * o.inputs;
    matmul.kernels().silu_mul(gate, gate + o.outputs, o.outputs, o.out.data() + row * o.outputs);
  });
}

void define_silu_mul(const Operands& o, size_t row, double* want, double* terms) {
  const float* gate = o.x.data() + row * o.inputs;
  for (size_t i = 0; i < o.outputs; ++i)
    terms[i] = std::abs(want[i] = gate[i] / (1 + std::exp(-double{gate[i]})) * gate[i + o.outputs]);
}

size_t head_of(const Operands& o) {
  return std::min(kHead, o.inputs / 2 * 2);
}

void rope(Operands& o, ops::Matmul& matmul) {
  const size_t head = head_of(o), half = head / 2;
  each_row(o, [&](size_t row) {
    float* x = o.out.data() + row * o.outputs;
    for (size_t i = 0; i + head <= o.outputs; i += head)
      matmul.kernels().rope(x + i, o.cosine.data() + row * half, o.sine.data() + row * half, half);
  });
}

void define_rope(const Operands& o, size_t row, double* want, double* terms) {
  const size_t head = head_of(o), half = head / 2;
  const float* x = o.x.data() + row * o.inputs;
  for (size_t i = 0; i < o.inputs; ++i) terms[i] = std::abs(want[i] = x[i]);  // beyond the last head nothing turns
  for (size_t first = 0; first + head <= o.inputs; first += head)
    for (size_t i = 0; i < half; ++i) {
      const double low = x[first + i], high = x[first + i + half];
      const double c = o.cosine[row * half + i], s = o.sine[row * half + i];
      want[first + i] = low * c - high * s;
      terms[first + i] = std::abs(low * c) + std::abs(high * s);
      want[first + i + half] = high * c + low * s;
      terms[first + i + half] = std::abs(high * c) + std::abs(low * s);
    }
}

double row_error_max(const Operands&, const ops::Kernels&) {
  return 1e-6;
}

constexpr Operator kOperators[] = {
    {"prefill", true, false, is_prefill, matrix_inputs, matrix_outputs, prefill, define_product, prefill_error_max},
    {"decode", true, false, is_decode, matrix_inputs, matrix_outputs, decode, define_product, product_error_max},
    {"rms_norm", false, false, any_rows, matrix_inputs, matrix_inputs, rms_norm, define_rms_norm, row_error_max},
    {"rope", false, true, any_rows, matrix_inputs, matrix_inputs, rope, define_rope, row_error_max},
    {"silu_mul", false, false, any_rows, gate_and_up, matrix_outputs, silu_mul, define_silu_mul, row_error_max},
};

}  // namespace

std::span<const std::string_view> weight_dtypes() {
  return kCaseDtypes;
}

std::span<const Operator> operators() {
  return kOperators;
}

size_t WalkedMatrices::count(std::string_view dtype, size_t inputs, size_t outputs) {
  const size_t one = packed_bytes(dtype, inputs, outputs);
  return std::clamp<size_t>((kColdBytes + one - 1) / one, 1, kMatricesMax);
}

size_t WalkedMatrices::bytes(std::string_view dtype, size_t inputs, size_t outputs) {
  return count(dtype, inputs, outputs) * packed_bytes(dtype, inputs, outputs) + inputs * outputs * sizeof(float);
}

Result<WalkedMatrices> WalkedMatrices::open(std::string_view dtype, size_t inputs, size_t outputs, Parallel& parallel,
                                            uint64_t seed) {
  Rng rng = Rng(seed).fork(dtype);
  std::vector<float> values;
  std::vector<uint8_t> codes;
  ops::WeightRows rows{.dtype = Dtype::f32, .rows = outputs};
  if (dtype == "fp8_e4m3") {
    const size_t across = (inputs + kScaleBlock - 1) / kScaleBlock;
    codes = edge_codes(rng, inputs * outputs);
    values = edge_values(rng, (outputs + kScaleBlock - 1) / kScaleBlock * across);
    rows = {codes.data(), Dtype::f8_e4m3, outputs, {values.data(), kScaleBlock, kScaleBlock, across}};
  } else {
    values = edge_values(rng, inputs * outputs);
    rows.data = values.data();
  }
  WalkedMatrices walked;
  for (size_t left = count(dtype, inputs, outputs); left > 0; --left) {
    const auto form = quant_form_of(dtype);
    auto made = form                  ? ops::PackedMatrix::quantise(parallel, {&rows, 1}, inputs, *form)
                : dtype == "fp8_e4m3" ? ops::PackedMatrix::keep_fp8(parallel, {&rows, 1}, inputs, Dtype::bf16)
                                      : ops::PackedMatrix::pack(parallel, {&rows, 1}, inputs, *dtype_from(dtype));
    if (!made) return made.error();
    walked.matrices_.push_back(std::move(*made));
  }
  return walked;
}

Operands::Operands(const Operator& what, size_t row_count, size_t row_inputs, size_t row_outputs,
                   WalkedMatrices* walked, Parallel& threads, uint64_t seed)
    : op(&what), rows(row_count), inputs(row_inputs), outputs(row_outputs), matrices(walked), parallel(&threads) {
  Rng rng = Rng(seed).fork(op->name);
  x = edge_values(rng, rows * inputs);
  weight = edge_values(rng, inputs);
  out.resize(rows * outputs);
  const size_t half = head_of(*this) / 2;
  const ops::Rope angles({}, static_cast<uint32_t>(2 * half));
  cosine.resize(rows * half);
  sine.resize(rows * half);
  for (size_t row = 0; row < rows; ++row) angles.at(row, cosine.data() + row * half, sine.data() + row * half);
  const size_t checked = std::min(rows, kCheckedRows);
  for (size_t i = 0; i < checked; ++i) {
    Line line{checked > 1 ? i * (rows - 1) / (checked - 1) : 0, std::vector<double>(outputs),
              std::vector<double>(outputs)};
    op->define(*this, line.row, line.want.data(), line.terms.data());
    lines_.push_back(std::move(line));
  }
}

double Operands::check(ops::Matmul& matmul) {
  if (op->in_place)
    out = x;
  else
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
  op->run(*this, matmul);
  double worst = 0;
  for (const Line& line : lines_)
    for (size_t i = 0; i < outputs; ++i) {
      const double off = std::abs(out[line.row * outputs + i] - line.want[i]);
      const double share = off / std::max(line.terms[i], 1e-30);  // below lie denormals, which are flushed
      worst = std::max(worst, std::isnan(share) ? 1.0 : share);   // not a number is wrong by all there is
    }
  return worst;
}

double Operands::flop() const {
  return op->product ? 2.0 * static_cast<double>(rows * inputs) * static_cast<double>(outputs) : 0;
}

double Operands::bytes() const {
  if (!op->product) return static_cast<double>(rows * (inputs + outputs) * sizeof(float));
  return is_decode(rows) ? static_cast<double>(matrices->matrix_bytes()) : 0;
}

}  // namespace mc::bench

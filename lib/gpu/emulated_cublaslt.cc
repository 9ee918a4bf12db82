#include "gpu/emulated_cublaslt.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "base/dtype.h"
#include "gpu/emulated.h"
#include "gpu/optional_library.h"

namespace mc::gpu {
namespace {

using Range = emu::LibraryCall::Range;

constexpr uint64_t kLtMagic = 0x746c'7361'6c62'7563;
constexpr uint64_t kDimensionMax = INT32_MAX;

/// LtAlgorithm::data of this library.
struct EmulatedAlgorithm {
  uint64_t magic = kLtMagic;
  uint64_t tile = 64;      // inner elements
  uint64_t splits = 1;     // parts of the inner dimension
  uint64_t alignment = 0;  // of all matrices
  uint64_t kind = 0;       // kind_of() the problem
  uint64_t columns = 0;    // of D in the problem that the heuristic was asked about
  uint64_t reserved[2] = {};
};
static_assert(sizeof(EmulatedAlgorithm) == sizeof(LtAlgorithm));

struct ProductSize {
  uint64_t m = 0, n = 0, k = 0;
};
ProductSize size_of(const LtProblem& p) {
  const bool a = p.operation.transpose_a != 0, b = p.operation.transpose_b != 0;
  return {a ? p.a.columns : p.a.rows, b ? p.b.rows : p.b.columns, a ? p.a.rows : p.a.columns};
}

/// Equal for problems that one algorithm may solve: they differ in their extents and addresses.
uint64_t kind_of(const LtProblem& p) {
  uint64_t kind = 17;
  for (const auto value :
       {static_cast<uint64_t>(p.a.type), static_cast<uint64_t>(p.b.type), static_cast<uint64_t>(p.d.type),
        static_cast<uint64_t>(p.operation.transpose_a), static_cast<uint64_t>(p.operation.transpose_b),
        static_cast<uint64_t>(p.operation.epilogue), static_cast<uint64_t>(p.operation.a_scale_mode),
        static_cast<uint64_t>(p.operation.b_scale_mode)})
    kind = kind * 1'000'003 + value;
  return kind;
}

std::string layout_objection(const LtLayout& l, const char* name) {
  const std::string what = std::string("matrix ") + name;
  if (l.order != kLtColumnMajor) return what + " is not in column-major order, which the epilogues need";
  if (l.rows == 0 || l.columns == 0 || l.rows > kDimensionMax || l.columns > kDimensionMax)
    return what + " is " + std::to_string(l.rows) + " x " + std::to_string(l.columns) + ", extents are 1 to 2^31 - 1";
  if (l.leading < 0 || static_cast<uint64_t>(l.leading) < l.rows)
    return what + " has columns of " + std::to_string(l.rows) + " rows and a leading dimension of " +
           std::to_string(l.leading);
  return "";
}

bool is_fp8(const LtProblem& p) {
  return p.a.type == LtType::e4m3 || p.b.type == LtType::e4m3;
}

std::string types_objection(const LtProblem& p, int capability) {
  const LtOperation& o = p.operation;
  if (o.compute != kLtCompute32F || o.scale_type != LtType::f32) return "the compute and the scale type are not f32";
  if (p.a.type != p.b.type || p.a.type == LtType::f32) return "A and B are not both bf16 or both E4M3";
  if (p.d.type == LtType::e4m3) return "D is neither f32 nor bf16";
  if (p.c.type != p.d.type || p.c.rows != p.d.rows || p.c.columns != p.d.columns || p.c.order != p.d.order)
    return "C and D differ in type, extents or order";
  const ProductSize size = size_of(p);
  const uint64_t k_of_b = o.transpose_b != 0 ? p.b.columns : p.b.rows;
  if (size.k != k_of_b)
    return "the inner dimension of A is " + std::to_string(size.k) + ", that of B is " + std::to_string(k_of_b);
  if (p.d.rows != size.m || p.d.columns != size.n)
    return "D is " + std::to_string(p.d.rows) + " x " + std::to_string(p.d.columns) + ", the product is " +
           std::to_string(size.m) + " x " + std::to_string(size.n);
  if (is_fp8(p) && capability < 89) return "products of fp8 need compute capability 8.9";
  return "";
}

std::string epilogue_objection(const LtProblem& p) {
  const LtOperation& o = p.operation;
  switch (o.epilogue) {
    case LtEpilogue::none:
    case LtEpilogue::relu:
    case LtEpilogue::gelu:
      if (o.bias != 0) return "a bias is given, and the epilogue adds none";
      return "";
    case LtEpilogue::bias:
    case LtEpilogue::relu_bias:
    case LtEpilogue::gelu_bias: break;
    default: return "the epilogue " + std::to_string(static_cast<uint32_t>(o.epilogue)) + " does not exist";
  }
  if (o.bias == 0) return "the epilogue adds a bias, and none is given";
  const LtType wanted = is_fp8(p) ? LtType::bf16 : p.d.type;
  if (o.bias_type != wanted)
    return std::string("the bias of this product is ") + (wanted == LtType::bf16 ? "bf16" : "f32");
  if (o.bias % bytes_of_type(wanted) != 0) return "the bias is not aligned to its type";
  return "";
}

/// Section 3.1.4: scaling modes by compute capability, and how they go together.
std::string scale_objection(const LtProblem& p, int capability) {
  const LtOperation& o = p.operation;
  const LtScale a = o.a_scale_mode, b = o.b_scale_mode;
  if (!is_fp8(p)) {
    if (o.a_scale != 0 || o.b_scale != 0 || a != LtScale::scalar || b != LtScale::scalar)
      return "scales are given for matrices that are not fp8";
    return "";
  }
  const auto is_block = [](LtScale mode) { return mode == LtScale::vector_128 || mode == LtScale::block_128; };
  for (const LtScale mode : {a, b})
    if (mode != LtScale::scalar && mode != LtScale::outer_vector && !is_block(mode))
      return "the scale mode " + std::to_string(static_cast<int32_t>(mode)) + " does not exist";
  if (a == LtScale::scalar && b == LtScale::scalar) {
    if (o.a_scale % 4 != 0 || o.b_scale % 4 != 0) return "a scale is not aligned to 4 bytes";
    return "";
  }
  if (capability != 90) return "scales of vectors and blocks need compute capability 9.0";
  if (is_block(a) != is_block(b) || (!is_block(a) && a != b)) return "the scale modes of A and B do not go together";
  if (a == LtScale::block_128 && b == LtScale::block_128) return "A and B cannot both have scales of 128 x 128";
  if (o.a_scale == 0 || o.b_scale == 0) return "the scale mode needs an array, and none is given";
  if (o.a_scale % 16 != 0 || o.b_scale % 16 != 0) return "an array of scales is not aligned to 16 bytes";
  const ProductSize size = size_of(p);
  if (is_block(a) && (size.m % 4 != 0 || size.n % 4 != 0))
    return "scales of blocks need m and n that are multiples of 4; they are " + std::to_string(size.m) + " and " +
           std::to_string(size.n);
  return "";
}

/// Demands of tensor cores of fp8 on extents and leading dimensions.
std::string fp8_objection(const LtProblem& p, int capability) {
  if (!is_fp8(p)) return "";
  if ((capability < 100 || capability >= 120) && (p.operation.transpose_a == 0 || p.operation.transpose_b != 0))
    return "a product of fp8 needs A transposed and B not transposed";
  const struct {
    const char* what;
    uint64_t bytes;
  } parts[] = {{"a column of A", p.a.rows},
               {"a column of B", p.b.rows},
               {"a column of D", p.d.rows * bytes_of_type(p.d.type)},
               {"the leading dimension of A", static_cast<uint64_t>(p.a.leading)},
               {"the leading dimension of B", static_cast<uint64_t>(p.b.leading)},
               {"the leading dimension of C", static_cast<uint64_t>(p.c.leading) * bytes_of_type(p.c.type)},
               {"the leading dimension of D", static_cast<uint64_t>(p.d.leading) * bytes_of_type(p.d.type)}};
  for (const auto& part : parts)
    if (part.bytes % 16 != 0) return std::string(part.what) + " is no multiple of 16 bytes in a product of fp8";
  return "";
}

Range matrix_range(const LtLayout& l, uint64_t address, std::string_view what, bool writes) {
  const size_t each = bytes_of_type(l.type);
  return {what, address, l.rows * each, static_cast<size_t>(l.leading) * each, l.columns, writes};
}

uint64_t round_to(uint64_t value, uint64_t by) {
  return (value + by - 1) / by * by;
}

/// Scales of a matrix whose op() has `outer` rows or columns of `inner` elements; their number is 0 without scales.
struct ScaleView {
  LtScale mode = LtScale::scalar;
  uint64_t address = 0, outer = 0, inner = 0;

  uint64_t count() const {
    const uint64_t groups = (inner + 127) / 128;
    if (address == 0) return 0;
    switch (mode) {
      case LtScale::scalar: return 1;
      case LtScale::outer_vector: return outer;
      case LtScale::vector_128: return outer * groups;
      case LtScale::block_128: return round_to(groups, 4) * ((outer + 127) / 128);
    }
    return 0;
  }
  /// Index of the scale of inner element `at` of row or column `of`.
  uint64_t index(uint64_t of, uint64_t at) const {
    switch (mode) {
      case LtScale::scalar: return 0;
      case LtScale::outer_vector: return of;
      case LtScale::vector_128: return at / 128 * outer + of;
      case LtScale::block_128: return of / 128 * round_to((inner + 127) / 128, 4) + at / 128;
    }
    return 0;
  }
  Range range(std::string_view what) const { return {what, address, count() * 4, count() * 4, count() > 0 ? 1u : 0u}; }
};
ScaleView scales_of_a(const LtProblem& p) {
  return {p.operation.a_scale_mode, p.operation.a_scale, size_of(p).m, size_of(p).k};
}
ScaleView scales_of_b(const LtProblem& p) {
  return {p.operation.b_scale_mode, p.operation.b_scale, size_of(p).n, size_of(p).k};
}

/// Places of D, and of C where there is one, in ranges_of().
constexpr size_t kPlaceOfD = 2, kPlaceOfC = 3;

std::vector<Range> ranges_of(const LtCall& call, uint64_t workspace_bytes) {
  const LtProblem& p = call.problem;
  std::vector<Range> out = {matrix_range(p.a, call.a, "A", false), matrix_range(p.b, call.b, "B", false),
                            matrix_range(p.d, call.d, "D", true)};
  if (call.beta != 0) out.push_back(matrix_range(p.c, call.c, "C", false));
  if (p.operation.bias != 0) {
    const size_t bytes = p.d.rows * bytes_of_type(p.operation.bias_type);
    out.push_back({"the bias", p.operation.bias, bytes, bytes});
  }
  out.push_back(scales_of_a(p).range("the scales of A"));
  out.push_back(scales_of_b(p).range("the scales of B"));
  if (workspace_bytes > 0) out.push_back({"the workspace", call.workspace, workspace_bytes, workspace_bytes, 1, true});
  return out;
}

bool overlap(const Range& a, const Range& b) {
  return a.address < b.address + b.end() && b.address < a.address + a.end();
}

EmulatedAlgorithm read_algorithm(const LtAlgorithm& algorithm) {
  return std::bit_cast<EmulatedAlgorithm>(algorithm);
}
uint64_t workspace_of(const EmulatedAlgorithm& algorithm, const LtProblem& p) {
  return algorithm.splits > 1 ? algorithm.splits * p.d.rows * p.d.columns * 4 : 0;
}

/// OCP E4M3.
float value_of_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::nanf("");
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code >= 128 ? -size : size;
}

float from_e4m3(uint8_t code) {
  static const auto kValues = [] {
    std::array<float, 256> out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = value_of_e4m3(static_cast<uint8_t>(i));
    return out;
  }();
  return kValues[code];
}

/// The elements of a matrix in the emulated memory.
struct MatrixView {
  const std::byte* at = nullptr;
  LtLayout layout;
  bool is_transposed = false;
  float value(uint64_t row, uint64_t column) const {
    if (is_transposed) std::swap(row, column);
    const uint64_t index = column * static_cast<uint64_t>(layout.leading) + row;
    if (layout.type == LtType::e4m3) return from_e4m3(static_cast<uint8_t>(at[index]));
    if (layout.type == LtType::f32) {
      float out;
      std::memcpy(&out, at + index * 4, 4);
      return out;
    }
    bf16_t bits;
    std::memcpy(&bits, at + index * 2, 2);
    return bf16_to_f32(bits);
  }
};

/// A row of op(A) or a column of op(B).
std::vector<float> line_of(const MatrixView& from, uint64_t index, uint64_t inner, bool is_row) {
  std::vector<float> out(inner);
  for (uint64_t i = 0; i < inner; ++i) out[i] = is_row ? from.value(index, i) : from.value(i, index);
  return out;
}

/// Scales by line and by group of 128 inner elements.
std::vector<float> scales_of(emu::DeviceMemory& memory, const ScaleView& view) {
  std::vector<float> out(view.count());
  if (!out.empty()) memory.read(view.address, std::as_writable_bytes(std::span(out)));
  return out;
}

float activate(LtEpilogue epilogue, float value) {
  const auto bits = static_cast<uint32_t>(epilogue);
  if ((bits & static_cast<uint32_t>(LtEpilogue::relu)) != 0) return std::max(value, 0.0f);
  if ((bits & static_cast<uint32_t>(LtEpilogue::gelu)) == 0) return value;
  constexpr float kRoot = 0.7978845608f;  // sqrt(2 / pi)
  return 0.5f * value * (1 + std::tanh(kRoot * (value + 0.044715f * value * value * value)));
}

/// One product in plain C++.
class PlainProduct {
 public:
  /// `is_even`: the last rows, which do not fill a tile of 64, are summed as the others.
  PlainProduct(emu::DeviceMemory& memory, const LtCall& call, bool is_steady, bool is_even)
      : memory_(memory), call_(call), is_even_(is_even) {
    const LtProblem& p = call.problem;
    size_ = size_of(p);
    algorithm_ = read_algorithm(call.algorithm);
    if (!is_steady && size_.n > 64) algorithm_.tile /= 2;
    a_scale_ = scales_of(memory, scales_of_a(p));
    b_scale_ = scales_of(memory, scales_of_b(p));
  }
  void run();

 private:
  const std::byte* at(const LtLayout& l, uint64_t address) const {
    const Range range = matrix_range(l, address, "", false);
    const emu::DeviceMemory::Block* block = memory_.find(address, range.end());
    MC_ASSERT(block != nullptr);
    return block->bytes.at(address - block->address, range.end());
  }
  /// Sums of row `row` and the next ones, whose numbers are a[inner][kAtOnce], with the columns from `column`, whose
  /// numbers are b[column][inner]: a sum waits for the one before it, and many of them wait together.
  static constexpr uint64_t kAtOnce = 8, kColumns = 4;
  using Sums = std::array<float, kAtOnce>;
  using Tile = std::array<Sums, kColumns>;
  using Columns = std::array<const float*, kColumns>;
  Tile sum(const std::vector<float>& a, const Columns& b, uint64_t row, uint64_t column) const;

  emu::DeviceMemory& memory_;
  const LtCall& call_;
  bool is_even_;
  ProductSize size_;
  EmulatedAlgorithm algorithm_;
  std::vector<float> a_scale_, b_scale_;
};

/// The sum of each part of the inner dimension; then the parts. Scales of 128 elements multiply the sum of a tile.
PlainProduct::Tile PlainProduct::sum(const std::vector<float>& a, const Columns& b, uint64_t row,
                                     uint64_t column) const {
  const ScaleView of_a = scales_of_a(call_.problem), of_b = scales_of_b(call_.problem);
  const uint64_t part = round_to((size_.k + algorithm_.splits - 1) / algorithm_.splits, algorithm_.tile);
  static_assert(64 % kColumns == 0);  // the columns are all among the last ones or all before them
  const uint64_t step = is_even_ || column < size_.n / 64 * 64 ? algorithm_.tile : algorithm_.tile / 2;
  const uint64_t rows = std::min(kAtOnce, size_.m - row), columns = std::min(kColumns, size_.n - column);
  Tile total{};
  for (uint64_t first = 0; first < size_.k; first += part) {
    Tile split{};
    for (uint64_t tile = first; tile < std::min(first + part, size_.k); tile += step) {
      // From a plain loop the compiler makes vectors of the inner dimension, which it takes apart to add.
      typedef float Vector __attribute__((vector_size(16)));
      Vector sums[kColumns][2] = {};
      for (uint64_t i = tile, end = std::min({tile + step, first + part, size_.k}); i < end; ++i) {
        Vector numbers[2];
        std::memcpy(numbers, &a[i * kAtOnce], sizeof numbers);
        for (uint64_t y = 0; y < kColumns; ++y) {
          sums[y][0] += numbers[0] * b[y][i];
          sums[y][1] += numbers[1] * b[y][i];
        }
      }
      Tile values;
      static_assert(sizeof values == sizeof sums);
      std::memcpy(values.data(), sums, sizeof sums);
      for (uint64_t y = 0; y < columns; ++y)
        for (uint64_t x = 0; x < rows; ++x) {
          float value = values[y][x];
          if (!a_scale_.empty()) value *= a_scale_[of_a.index(row + x, tile)];
          if (!b_scale_.empty()) value *= b_scale_[of_b.index(column + y, tile)];
          split[y][x] += value;
        }
    }
    for (uint64_t y = 0; y < columns; ++y)
      for (uint64_t x = 0; x < rows; ++x) total[y][x] += split[y][x];
  }
  return total;
}

void PlainProduct::run() {
  const LtProblem& p = call_.problem;
  const MatrixView a{at(p.a, call_.a), p.a, p.operation.transpose_a != 0};
  const MatrixView b{at(p.b, call_.b), p.b, p.operation.transpose_b != 0};
  const MatrixView c{call_.beta != 0 ? at(p.c, call_.c) : nullptr, p.c, false};
  const MatrixView bias{
      p.operation.bias != 0
          ? at({p.operation.bias_type, 0, size_.m, 1, static_cast<int64_t>(size_.m)}, p.operation.bias)
          : nullptr,
      {p.operation.bias_type, 0, size_.m, 1, static_cast<int64_t>(size_.m)},
      false};
  auto* d = const_cast<std::byte*>(at(p.d, call_.d));
  std::vector<std::vector<float>> columns;
  for (uint64_t n = 0; n < size_.n; ++n) columns.push_back(line_of(b, n, size_.k, false));
  const auto store = [&](uint64_t m, uint64_t n, float value) {
    if (c.at != nullptr) value += call_.beta * c.value(m, n);
    if (bias.at != nullptr) value += bias.value(m, 0);
    value = activate(p.operation.epilogue, value);
    const uint64_t index = n * static_cast<uint64_t>(p.d.leading) + m;
    const bf16_t rounded = f32_to_bf16(value);
    if (p.d.type == LtType::f32)
      std::memcpy(d + index * 4, &value, 4);
    else
      std::memcpy(d + index * 2, &rounded, 2);
  };
  std::vector<float> rows(size_.k * kAtOnce);
  for (uint64_t m = 0; m < size_.m; m += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, size_.m - m);
    for (uint64_t x = 0; x < count; ++x) {
      const std::vector<float> row = line_of(a, m + x, size_.k, true);
      for (uint64_t i = 0; i < size_.k; ++i) rows[i * kAtOnce + x] = row[i];
    }
    for (uint64_t n = 0; n < size_.n; n += kColumns) {
      Columns some;  // columns past the end repeat the last one
      for (uint64_t y = 0; y < kColumns; ++y) some[y] = columns[std::min(n + y, size_.n - 1)].data();
      const Tile sums = sum(rows, some, m, n);
      for (uint64_t y = 0; y < std::min(kColumns, size_.n - n); ++y)
        for (uint64_t x = 0; x < count; ++x) store(m + x, n + y, call_.alpha * sums[y][x]);
    }
  }
}

}  // namespace

std::string lt_objection(const LtProblem& p, int capability) {
  const struct {
    const LtLayout& layout;
    const char* name;
  } matrices[] = {{p.a, "A"}, {p.b, "B"}, {p.c, "C"}, {p.d, "D"}};
  for (const auto& matrix : matrices)
    if (std::string text = layout_objection(matrix.layout, matrix.name); !text.empty()) return text;
  if (std::string text = types_objection(p, capability); !text.empty()) return text;
  if (std::string text = epilogue_objection(p); !text.empty()) return text;
  if (std::string text = scale_objection(p, capability); !text.empty()) return text;
  return fp8_objection(p, capability);
}

Result<void> EmulatedCublasLt::load() {
  const EmulatedHost& host = driver_.host_;
  if (!host.has_cublaslt) return Error{Code::unsupported, "no cuBLASLt was found: the emulated host has none"};
  if (host.cublaslt_version >= kCublasLtVersionMin) return {};
  return Error{Code::unsupported, "the emulated host has cuBLASLt " + library_version_text(host.cublaslt_version) +
                                      ", at least " + library_version_text(kCublasLtVersionMin) + " is needed"};
}

size_t EmulatedCublasLt::version() const {
  return driver_.host_.cublaslt_version;
}

LtStatus EmulatedCublasLt::create() {
  if (driver_.host_.cublaslt_create != LtStatus::ok) return driver_.host_.cublaslt_create;
  is_created_ = driver_.context_.current() == Status::ok;
  return is_created_ ? LtStatus::ok : LtStatus::not_initialized;
}

LtStatus EmulatedCublasLt::refuse(const std::string& text) {
  driver_.gpu_.queues_.stop(emu::Rule::cublaslt, text);
  return LtStatus::rule_broken;
}

/// Tiles for each number of columns of D, as a library chooses by the size of a problem. The last one has the bits of
/// products of many columns.
LtStatus EmulatedCublasLt::propose(std::vector<LtProposal>* out, const LtProblem& problem,
                                   const LtPreference& preference) {
  out->clear();
  ++proposals_;
  if (!is_created_) return LtStatus::not_initialized;
  if (const std::string text = lt_objection(problem, driver_.host_.capability); !text.empty())
    return refuse("cublasLtMatmulAlgoGetHeuristic: " + text);
  if (!driver_.host_.cublaslt_proposes) return LtStatus::not_supported;
  const ProductSize size = size_of(problem);
  const bool has_blocks =
      problem.operation.b_scale_mode == LtScale::vector_128 || problem.operation.a_scale_mode == LtScale::vector_128;
  const uint64_t most = std::min<uint64_t>(driver_.host_.cublaslt_proposals, kLtProposals);
  for (uint64_t tile = has_blocks || size.n > 256 ? 128u : size.n > 16 ? 64u : 32u; tile <= 128; tile *= 2) {
    EmulatedAlgorithm made{
        .tile = tile, .alignment = preference.alignment, .kind = kind_of(problem), .columns = size.n};
    if (preference.splits_inner && size.n <= 16 && size.k >= 4 * made.tile) made.splits = 2;
    if (workspace_of(made, problem) > preference.workspace_bytes) made.splits = 1;
    if (out->size() < most)
      out->push_back({std::bit_cast<LtAlgorithm>(made), workspace_of(made, problem), static_cast<int32_t>(size.n),
                      static_cast<int32_t>(made.tile), static_cast<int32_t>(made.splits)});
  }
  return LtStatus::ok;
}

LtStatus EmulatedCublasLt::check(uint64_t* workspace_bytes, const LtProblem& problem, const LtAlgorithm& algorithm) {
  if (!is_created_) return LtStatus::not_initialized;
  if (const std::string text = lt_objection(problem, driver_.host_.capability); !text.empty())
    return refuse("cublasLtMatmulAlgoCheck: " + text);
  const EmulatedAlgorithm made = read_algorithm(algorithm);
  if (made.magic != kLtMagic || made.kind != kind_of(problem)) return LtStatus::invalid_value;
  if (size_of(problem).n > driver_.host_.cublaslt_rows_max) return LtStatus::not_supported;
  *workspace_bytes = workspace_of(made, problem);
  return LtStatus::ok;
}

std::string EmulatedCublasLt::objection(const LtCall& call) const {
  const LtProblem& p = call.problem;
  if (std::string text = lt_objection(p, driver_.host_.capability); !text.empty()) return text;
  const EmulatedAlgorithm algorithm = read_algorithm(call.algorithm);
  if (algorithm.magic != kLtMagic) return "the algorithm is none that was proposed";
  if (algorithm.kind != kind_of(p)) return "the algorithm was proposed for a product of another kind";
  const struct {
    const char* name;
    uint64_t address;
  } matrices[] = {{"A", call.a}, {"B", call.b}, {"C", call.c}, {"D", call.d}};
  for (const auto& matrix : matrices)
    if (matrix.address % algorithm.alignment != 0)
      return std::string("matrix ") + matrix.name + " is not aligned to the " + std::to_string(algorithm.alignment) +
             " bytes that the algorithm was proposed for";
  const uint64_t workspace = workspace_of(algorithm, p);
  if (call.workspace_bytes < workspace)
    return "the algorithm needs a workspace of " + std::to_string(workspace) + " bytes and has " +
           std::to_string(call.workspace_bytes);
  if (call.workspace % 256 != 0) return "the workspace is not aligned to 256 bytes";
  const Range d = matrix_range(p.d, call.d, "D", true);
  const std::vector<Range> ranges = ranges_of(call, workspace);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    const std::string what(range.what);
    if (range.end() == 0) continue;
    if (driver_.gpu_.memory_.find(range.address, range.end()) == nullptr)
      return what + " of " + std::to_string(range.end()) + " bytes is not in one allocation";
    if (i == kPlaceOfD || !overlap(d, range)) continue;
    const bool is_c = call.beta != 0 && i == kPlaceOfC;
    if (!is_c || call.c != call.d || p.c.leading != p.d.leading) return what + " overlaps D";
  }
  return "";
}

LtStatus EmulatedCublasLt::multiply(const LtCall& asked, Handle stream) {
  LtCall call = asked;
  if (edit_) edit_(call);
  if (!is_created_) return LtStatus::not_initialized;
  if (const std::string text = objection(call); !text.empty()) return refuse("cublasLtMatmul: " + text);
  const uint64_t workspace = workspace_of(read_algorithm(call.algorithm), call.problem);
  const Status status = driver_.submit(
      stream, emu::LibraryCall{"cublasLtMatmul", ranges_of(call, workspace),
                               [call, host = driver_.host_](emu::DeviceMemory& memory) {
                                 PlainProduct(memory, call, host.cublaslt_steady, host.cublaslt_even).run();
                               }});
  if (status == Status::ok) return LtStatus::ok;
  return status == Status::rule_broken ? LtStatus::rule_broken : LtStatus::execution_failed;
}

}  // namespace mc::gpu

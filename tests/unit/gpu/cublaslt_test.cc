// The emulated cuBLASLt against the demands of the documentation, with a mutant for each, and the part of the host's
// library that needs no GPU.
#include "gpu/cublaslt.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "gpu/libcublaslt.h"
#include "gpu/mlp.h"
#include "gpu/optional_library.h"
#include "test.h"

using namespace mc;
using namespace mc::gpu;

namespace cublaslt_test {
namespace {

constexpr uint64_t kRows = 12, kColumns = 32, kInner = 256;

/// y = x w^T of bf16, or of E4M3 with scales.
LtProblem sound(LtType type = LtType::bf16) {
  LtProblem p;
  p.operation.transpose_a = kLtTransposed;
  p.a = {type, kLtColumnMajor, kInner, kColumns, kInner};
  p.b = {type, kLtColumnMajor, kInner, kRows, kInner};
  p.d = {LtType::f32, kLtColumnMajor, kColumns, kRows, kColumns};
  p.c = p.d;
  return p;
}
LtProblem sound_fp8(LtScale a, LtScale b) {
  LtProblem p = sound(LtType::e4m3);
  p.operation.a_scale_mode = a;
  p.operation.b_scale_mode = b;
  p.operation.a_scale = 4096;
  p.operation.b_scale = 8192;
  return p;
}

std::string after(LtProblem p, const std::function<void(LtProblem&)>& edit, int capability = 90) {
  edit(p);
  return lt_objection(p, capability);
}

}  // namespace

TEST_CASE("gpu/cublaslt: the products that this toolkit makes meet the demands of the documentation") {
  CHECK(lt_objection(sound(), 80) == "");
  for (const int capability : {89, 90, 100, 120})
    CHECK(lt_objection(sound_fp8(LtScale::scalar, LtScale::scalar), capability) == "");
  CHECK(lt_objection(sound_fp8(LtScale::outer_vector, LtScale::outer_vector), 90) == "");
  CHECK(lt_objection(sound_fp8(LtScale::block_128, LtScale::vector_128), 90) == "");
  CHECK(lt_objection(sound_fp8(LtScale::vector_128, LtScale::vector_128), 90) == "");
  CHECK(lt_objection(sound_fp8(LtScale::vector_128, LtScale::block_128), 90) == "");
}

TEST_CASE("gpu/cublaslt: each demand on a product that is not met is named") {
  const struct {
    const char* says;
    std::function<void(LtProblem&)> edit;
  } cases[] = {
      {"leading dimension of 255", [](LtProblem& p) { p.a.leading = kInner - 1; }},
      {"leading dimension of 0", [](LtProblem& p) { p.d.leading = 0; }},
      {"matrix B is 256 x 0", [](LtProblem& p) { p.b.columns = 0; }},
      {"matrix D is not in column-major order", [](LtProblem& p) { p.d.order = 1; }},
      {"the inner dimension of A is 32, that of B is 256", [](LtProblem& p) { p.operation.transpose_a = 0; }},
      {"D is 32 x 11, the product is 32 x 12", [](LtProblem& p) { p.c.columns = p.d.columns = kRows - 1; }},
      {"C and D differ", [](LtProblem& p) { p.c.type = LtType::bf16; }},
      {"A and B are not both bf16", [](LtProblem& p) { p.a.type = LtType::f32; }},
      {"the compute and the scale type are not f32", [](LtProblem& p) { p.operation.compute = 64; }},
      {"the epilogue adds a bias, and none", [](LtProblem& p) { p.operation.epilogue = LtEpilogue::bias; }},
      {"a bias is given, and the epilogue adds none", [](LtProblem& p) { p.operation.bias = 4096; }},
      {"the epilogue 3 does not exist", [](LtProblem& p) { p.operation.epilogue = static_cast<LtEpilogue>(3); }},
      {"the bias of this product is f32",
       [](LtProblem& p) {
         p.operation.epilogue = LtEpilogue::gelu_bias;
         p.operation.bias = 4096;
         p.operation.bias_type = LtType::bf16;
       }},
      {"scales are given for matrices that are not fp8", [](LtProblem& p) { p.operation.a_scale = 4096; }},
  };
  for (const auto& [says, edit] : cases) {
    const std::string text = after(sound(), edit);
    CHECK_MESSAGE(text.find(says) != std::string::npos, text, " in place of ", says);
  }
}

TEST_CASE("gpu/cublaslt: each demand on a product of fp8 that is not met is named") {
  const auto scalar = sound_fp8(LtScale::scalar, LtScale::scalar);
  const auto block = sound_fp8(LtScale::block_128, LtScale::vector_128);
  const struct {
    const char* says;
    LtProblem from;
    std::function<void(LtProblem&)> edit;
    int capability = 90;
  } cases[] = {
      {"need compute capability 8.9", scalar, [](LtProblem&) {}, 80},
      {"need compute capability 9.0", block, [](LtProblem&) {}, 89},
      {"need compute capability 9.0", block, [](LtProblem&) {}, 100},
      {"both have scales of 128 x 128", block, [](LtProblem& p) { p.operation.b_scale_mode = LtScale::block_128; }},
      {"do not go together", block, [](LtProblem& p) { p.operation.b_scale_mode = LtScale::scalar; }},
      {"do not go together", block, [](LtProblem& p) { p.operation.a_scale_mode = LtScale::outer_vector; }},
      {"the scale mode 9", block, [](LtProblem& p) { p.operation.a_scale_mode = static_cast<LtScale>(9); }},
      {"needs an array, and none is given", block, [](LtProblem& p) { p.operation.b_scale = 0; }},
      {"array of scales is not aligned to 16", block, [](LtProblem& p) { p.operation.b_scale += 8; }},
      {"a scale is not aligned to 4", scalar, [](LtProblem& p) { p.operation.a_scale += 2; }},
      {"multiples of 4; they are 32 and 11", block,
       [](LtProblem& p) { p.b.columns = p.c.columns = p.d.columns = kRows - 1; }},
      {"needs A transposed and B not", scalar,
       [](LtProblem& p) {
         std::swap(p.b.rows, p.b.columns);
         p.b.leading = 16;
         p.operation.transpose_b = kLtTransposed;
       }},
      {"a column of A is no multiple of 16", scalar, [](LtProblem& p) { p.a.rows = p.b.rows = kInner - 8; }},
      {"the leading dimension of D is no multiple of 16", scalar, [](LtProblem& p) { p.d.leading += 2; }},
      {"the bias of this product is bf16", scalar,
       [](LtProblem& p) {
         p.operation.epilogue = LtEpilogue::bias;
         p.operation.bias = 4096;
       }},
  };
  for (const auto& [says, from, edit, capability] : cases) {
    const std::string text = after(from, edit, capability);
    CHECK_MESSAGE(text.find(says) != std::string::npos, text, " in place of ", says);
  }
}

namespace {

/// The report of a run of one product with an edited call: a rule and its text, "result" when the numbers are wrong, or
/// "" when nothing is wrong.
std::string report_of(const std::function<void(LtCall&)>& edit) {
  const auto driver = std::make_shared<EmulatedDriver>();
  auto device = Device::open(driver, 0);
  REQUIRE_OK(device);
  REQUIRE_OK((*device)->choose_matmul(MatmulChoice::cublaslt));
  Rng rng(9);
  std::vector<uint16_t> x(kRows * kInner), w(kColumns * kInner);
  for (auto* values : {&x, &w})
    for (uint16_t& value : *values) value = f32_to_bf16(static_cast<float>(rng.normal()));
  std::vector<float> y(kRows * kColumns, 1), bias(kColumns, 2);
  std::vector<DeviceBuffer> buffers;
  const auto put = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    auto buffer = DeviceBuffer::make(**device, bytes.size(), "operand");
    REQUIRE_OK(buffer);
    REQUIRE_OK((*device)->write(buffer->address(), bytes));
    buffers.push_back(std::move(*buffer));
    return buffers.back().address();
  };
  const Product product{.x = put(x),
                        .w = put(w),
                        .y = put(y),
                        .bias = put(bias),
                        .rows = kRows,
                        .columns = kColumns,
                        .inner = kInner,
                        .adds = true};
  REQUIRE_OK(queue_product(**device, product));  // algorithms are compared without the error
  REQUIRE_OK((*device)->write(product.y, std::as_bytes(std::span(y))));
  static_cast<EmulatedCublasLt&>(driver->cublaslt()).set_edit(edit);
  auto queued = queue_product(**device, product);
  if (queued) queued = (*device)->finish();
  if (!queued) return queued.error().what;
  std::vector<float> got(y.size());
  REQUIRE_OK((*device)->read(product.y, std::as_writable_bytes(std::span(got))));
  for (size_t r = 0; r < kRows; ++r)
    for (size_t c = 0; c < kColumns; ++c) {
      double sum = 3, size = 3;
      for (size_t k = 0; k < kInner; ++k) {
        const double term = double{bf16_to_f32(x[r * kInner + k])} * bf16_to_f32(w[c * kInner + k]);
        sum += term;
        size += std::abs(term);
      }
      if (std::abs(got[r * kColumns + c] - sum) > (kInner + 3) * 0x1p-24 * size) return "result";
    }
  return "";
}

struct CallMutant {
  const char* name;
  const char* says;
  std::function<void(LtCall&)> edit;
};
const std::vector<CallMutant>& call_mutants() {
  static const std::vector<CallMutant> kMutants = {
      {"the leading dimension of x is too small", "leading dimension", [](LtCall& c) { c.problem.b.leading -= 8; }},
      {"the leading dimension of x is too large", "is not in one allocation",
       [](LtCall& c) { c.problem.b.leading += 8; }},
      {"the leading dimension of y is too large", "is not in one allocation",
       [](LtCall& c) { c.problem.c.leading = c.problem.d.leading += 4; }},
      {"C and D in one place have other leading dimensions", "overlaps D",
       [](LtCall& c) {
         c.problem.c.leading += 4, c.problem.c.columns = c.problem.d.columns = c.problem.b.columns = 8;
       }},
      {"x and w are swapped", "is not in one allocation", [](LtCall& c) { std::swap(c.a, c.b); }},
      {"w is not transposed", "the inner dimension", [](LtCall& c) { c.problem.operation.transpose_a = 0; }},
      {"one row more than x has", "is not in one allocation",
       [](LtCall& c) { ++c.problem.b.columns, ++c.problem.c.columns, ++c.problem.d.columns; }},
      {"one row less", "result",
       [](LtCall& c) { --c.problem.b.columns, --c.problem.c.columns, --c.problem.d.columns; }},
      {"the residual is forgotten", "result", [](LtCall& c) { c.beta = 0; }},
      {"alpha is 2", "result", [](LtCall& c) { c.alpha = 2; }},
      {"y is not aligned", "matrix C is not aligned", [](LtCall& c) { c.c = c.d += 4; }},
      {"w is not aligned", "matrix A is not aligned", [](LtCall& c) { c.a += 2; }},
      {"an epilogue of another plan", "proposed for a product of another kind",
       [](LtCall& c) { c.problem.operation.epilogue = LtEpilogue::relu_bias; }},
      {"no bias behind its epilogue", "and none is given", [](LtCall& c) { c.problem.operation.bias = 0; }},
      {"the bias begins at another element", "is not in one allocation",
       [](LtCall& c) { c.problem.operation.bias += 4; }},
      {"the bias is y", "overlaps D", [](LtCall& c) { c.problem.operation.bias = c.d; }},
      {"w is y", "overlaps D",
       [](LtCall& c) { c.a = c.d, c.problem.a.columns = 1, c.problem.c.rows = c.problem.d.rows = 1; }},
      {"no algorithm", "is none that was proposed", [](LtCall& c) { c.algorithm = {}; }},
      {"the workspace is not aligned", "not aligned to 256", [](LtCall& c) { c.workspace += 16; }},
      {"a scale for bf16", "not fp8", [](LtCall& c) { c.problem.operation.b_scale = c.workspace; }},
      {"an algorithm with parts that has no workspace", "needs a workspace",
       [](LtCall& c) { c.algorithm.data[2] = 2, c.workspace_bytes = 0; }},
      {"y is of another type", "C and D differ", [](LtCall& c) { c.problem.d.type = LtType::bf16; }},
      {"x is freed memory", "is not in one allocation", [](LtCall& c) { c.b += uint64_t{1} << 30; }},
  };
  return kMutants;
}

}  // namespace

TEST_CASE("gpu/cublaslt: every mutant of a call is reported by its rule or by its result, and the sound call is not") {
  CHECK(report_of({}) == "");
  for (const CallMutant& mutant : call_mutants()) {
    const std::string text = report_of(mutant.edit);
    CHECK_MESSAGE(text.find(mutant.says) != std::string::npos, mutant.name, ": ", text);
    if (text != "result") CHECK_MESSAGE(text.starts_with("cublasLt: cublasLtMatmul: "), mutant.name, ": ", text);
  }
}

TEST_CASE("gpu/cublaslt: activations of the epilogue are those of ReLU and GELU") {
  for (const LtEpilogue epilogue : {LtEpilogue::relu, LtEpilogue::gelu}) {
    const auto driver = std::make_shared<EmulatedDriver>();
    auto device = Device::open(driver, 0);
    REQUIRE_OK(device);
    CublasLt& library = driver->cublaslt();
    REQUIRE_OK(library.load());
    REQUIRE(library.create() == LtStatus::ok);
    LtCall call;
    call.problem = sound();
    call.problem.a.columns = call.problem.d.rows = call.problem.c.rows = 1;
    call.problem.b.columns = call.problem.d.columns = call.problem.c.columns = 2;
    call.problem.c.leading = call.problem.d.leading = 1;
    call.problem.operation.epilogue = epilogue;
    std::vector<LtProposal> made;
    REQUIRE(library.propose(&made, call.problem, {}) == LtStatus::ok);
    call.algorithm = made.front().algorithm;
    std::vector<uint16_t> w(kInner), x(2 * kInner);
    w[0] = f32_to_bf16(1);
    x[0] = f32_to_bf16(-1.5f), x[kInner] = f32_to_bf16(0.75f);
    std::vector<DeviceBuffer> buffers;
    const auto put = [&](const std::vector<uint16_t>& values) {
      auto buffer = DeviceBuffer::make(**device, values.size() * 2, "operand");
      REQUIRE_OK(buffer);
      REQUIRE_OK((*device)->write(buffer->address(), std::as_bytes(std::span(values))));
      buffers.push_back(std::move(*buffer));
      return buffers.back().address();
    };
    call.a = put(w), call.b = put(x), call.c = call.d = put(std::vector<uint16_t>(16));
    Handle stream = nullptr;
    REQUIRE(driver->stream_create(&stream) == Status::ok);
    REQUIRE(library.multiply(call, stream) == LtStatus::ok);
    REQUIRE(driver->stream_finish(stream) == Status::ok);
    float got[2];
    REQUIRE_OK((*device)->read(call.d, std::as_writable_bytes(std::span(got))));
    // GELU by its error function; the library has the form with tanh, which differs by less than 0.001.
    const auto gelu = [](double v) { return v / 2 * (1 + std::erf(v / std::sqrt(2))); };
    CHECK(std::abs(got[0] - (epilogue == LtEpilogue::relu ? 0 : gelu(-1.5))) < 1e-3);
    CHECK(std::abs(got[1] - (epilogue == LtEpilogue::relu ? 0.75 : gelu(0.75))) < 1e-3);
    driver->stream_destroy(stream);
    library.destroy();
  }
}

// ---- the host's library ----

TEST_CASE("gpu/cublaslt: a library that is missing, or is another one, is refused with its name") {
  const auto missing = host_cublaslt({"libcublasLt.so.0-none", "libcublasLt.so.0-other"})->load();
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().code == Code::unsupported);
  CHECK(missing.error().what == "no cuBLASLt was found: libcublasLt.so.0-none, libcublasLt.so.0-other");
  const auto other = host_cublaslt({"libc.so.6"})->load();
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().what == "libc.so.6 has no function cublasLtGetVersion");
}

TEST_CASE("gpu/cublaslt: the host's library takes each descriptor, where there is one, and computes nothing here") {
  const auto library = host_cublaslt();
  if (const auto loaded = library->load(); !loaded) {
    MESSAGE("skipped: ", loaded.error().what);
    return;
  }
  CHECK(library->version() >= kCublasLtVersionMin);
  CHECK(library->file().find("libcublasLt.so") != std::string::npos);
  // Without cublasLtCreate a call fails for the missing handle, and not for a descriptor.
  std::vector<LtProposal> made;
  LtProblem with_bias = sound();
  with_bias.operation.epilogue = LtEpilogue::bias;
  with_bias.operation.bias = 4096;
  for (const LtProblem& problem : {sound(), with_bias, sound_fp8(LtScale::scalar, LtScale::scalar),
                                   sound_fp8(LtScale::block_128, LtScale::vector_128)}) {
    const LtStatus status = library->propose(&made, problem, {.workspace_bytes = 1 << 20, .splits_inner = true});
    CHECK(name_of(status) == "CUBLAS_STATUS_NOT_INITIALIZED");
    uint64_t workspace = 0;
    CHECK(library->check(&workspace, problem, {}) != LtStatus::ok);
    LtCall call;
    call.problem = problem;
    CHECK(library->multiply(call, nullptr) != LtStatus::ok);
  }
}

TEST_CASE("gpu/cublaslt: a version is written as its three numbers") {
  CHECK(library_version_text(130100) == "13.1.0");
  CHECK(library_version_text(120901) == "12.9.1");
}

}  // namespace cublaslt_test

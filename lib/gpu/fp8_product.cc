#include "gpu/fp8_product.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/assert.h"
#include "base/extent.h"
#include "gpu/kernels/layer.h"
#include "gpu/kernels/quantise.h"

namespace mc::gpu {
namespace {

constexpr size_t kRowsOfBlocks = 4;  // products with scales of blocks have a multiple of these
constexpr size_t kRowsAsked = 512;   // takes_fp8() asks about powers of two up to this one

LtScale mode_of_w(Fp8Scales scales) {
  return scales == Fp8Scales::matrix ? LtScale::scalar
         : scales == Fp8Scales::rows ? LtScale::outer_vector
                                     : LtScale::block_128;
}
LtScale mode_of_x(Fp8Scales scales) {
  return scales == Fp8Scales::blocks ? LtScale::vector_128 : mode_of_w(scales);
}
static_assert(kFp8Block == kScaleGroup);
size_t groups_of(size_t inner) {
  return (inner + kScaleGroup - 1) / kScaleGroup;
}

/// Codes and scales of activations, and results of the rows that do not fill four.
std::array<size_t, 3> part_sizes(size_t rows, size_t columns, size_t inner) {
  const size_t padded = round_up(rows, kRowsOfBlocks);
  return {padded * inner, padded * groups_of(inner) * 4, kRowsOfBlocks * columns * 4};
}

struct Fp8Operands {
  uint64_t codes, scales, y;  // of the rows
};
/// The product of quantised rows, `padded` of them.
LtCall call_with(const Fp8Product& p, const Fp8Operands& at, size_t padded, bool adds) {
  LtCall call;
  LtProblem& problem = call.problem;
  problem.operation.transpose_a = kLtTransposed;
  problem.operation.a_scale_mode = mode_of_w(p.scales);
  problem.operation.b_scale_mode = mode_of_x(p.scales);
  problem.operation.a_scale = p.w_scales;
  problem.operation.b_scale = p.scales == Fp8Scales::matrix ? p.x_scale : at.scales;
  problem.a = {LtType::e4m3, kLtColumnMajor, p.inner, p.columns, static_cast<int64_t>(p.inner)};
  problem.b = {LtType::e4m3, kLtColumnMajor, p.inner, padded, static_cast<int64_t>(p.inner)};
  problem.c = problem.d = {LtType::f32, kLtColumnMajor, p.columns, padded, static_cast<int64_t>(p.columns)};
  call.a = p.w;
  call.b = at.codes;
  call.c = call.d = at.y;
  call.beta = adds ? 1 : 0;
  return call;
}

}  // namespace

/// The last rows of a product with scales of blocks are computed as four, and a product of one row is that of four.
Result<bool> takes_fp8(Device& device, Fp8Scales scales, size_t columns, size_t inner, bool adds) {
  if (device.matmul() == nullptr || !multiplies_fp8(device.capability(), scales)) return false;
  if (inner % 16 != 0 || columns % 4 != 0) return false;
  constexpr uint64_t kAnywhere = Arena::kAlignment;  // the library looks at the alignment of addresses alone
  const Fp8Product product{.w = kAnywhere,
                           .w_scales = kAnywhere,
                           .x_scale = kAnywhere,
                           .columns = columns,
                           .inner = inner,
                           .scales = scales};
  const size_t fewest = scales == Fp8Scales::blocks ? kRowsOfBlocks : 1;
  for (size_t rows = fewest; rows <= kRowsAsked; rows = rows < kRowsOfBlocks ? rows + 1 : 2 * rows)
    for (const bool adding : {false, adds}) {
      const LtCall call = call_with(product, {kAnywhere, kAnywhere, kAnywhere}, rows, adding);
      MC_TRY(taken, device.matmul()->takes(call, rows));
      if (!taken) return false;
    }
  return true;
}

size_t Fp8Matmul::bytes(size_t rows, size_t columns, size_t inner) {
  size_t bytes = 0;
  for (const size_t size : part_sizes(rows, columns, inner)) bytes += round_up(size, Arena::kAlignment);
  return bytes;
}

Result<Fp8Matmul> Fp8Matmul::open(Device& device, size_t rows, size_t columns, size_t inner) {
  MC_ASSERT(rows > 0 && columns > 0 && inner > 0);
  if (device.matmul() == nullptr)
    return Error{Code::unsupported, std::string(device.name()) + " has no products of fp8: " + matmul_text(device)};
  Fp8Matmul out(device);
  const auto sizes = part_sizes(rows, columns, inner);
  MC_TRY(arena, Arena::open(device, Place::device, bytes(rows, columns, inner), "products of fp8"));
  out.arena_ = std::move(arena);
  uint64_t* const places[] = {&out.codes_, &out.scales_, &out.last_};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    MC_TRY(part, out.arena_.take(sizes[i], "activations in fp8"));
    *places[i] = part.address;
  }
  out.rows_most_ = rows;
  out.columns_most_ = columns;
  out.inner_most_ = inner;
  return out;
}

/// Queues the codes and scales of the rows of x, of which there will be `padded`.
Result<void> Fp8Matmul::quantise(const Fp8Product& p, size_t padded) {
  const QuantiseArgs args{.x = device_pointer<const uint16_t>(p.x),
                          .codes = device_pointer<unsigned char>(codes_),
                          .scales = device_pointer<float>(scales_),
                          .fixed = device_pointer<const float>(p.scales == Fp8Scales::matrix ? p.x_scale : 0),
                          .rows = static_cast<int32_t>(p.rows),
                          .padded = static_cast<int32_t>(padded),
                          .inner = static_cast<int32_t>(p.inner),
                          .group = p.scales == Fp8Scales::blocks ? kScaleGroup : static_cast<int32_t>(p.inner)};
  const auto ctas = static_cast<uint32_t>((padded + kRowsPerCta - 1) / kRowsPerCta);
  return device_->launch("quantise_rows", {.grid = {ctas, 1, 1}}, bytes_of(args));
}

LtCall Fp8Matmul::call_of(const Fp8Product& p, size_t padded, uint64_t y, bool adds) const {
  return call_with(p, {codes_, scales_, y}, padded, adds);
}

/// Queues the product of the quantised rows, `padded` of them.
Result<void> Fp8Matmul::multiply(const Fp8Product& p, size_t padded, uint64_t y, bool adds) {
  MC_TRY(queued, device_->matmul()->queue(call_of(p, padded, y, adds), padded));
  if (queued) return {};
  return Error{Code::unsupported, std::string(device_->name()) + ": cuBLASLt does not take a product of fp8 of " +
                                      std::to_string(padded) + " x " + std::to_string(p.columns) + " x " +
                                      std::to_string(p.inner)};
}

/// All rows that are left where cuBLASLt takes them, else a number of them that takes_fp8() has asked about.
Result<size_t> Fp8Matmul::rows_at_once(const Fp8Product& product, size_t left) {
  MC_TRY(taken, device_->matmul()->takes(call_of(product, left, product.y, product.adds), left));
  return taken ? left : std::bit_floor(std::min(left, kRowsAsked));
}

Result<void> Fp8Matmul::queue(const Fp8Product& product) {
  MC_ASSERT(product.rows > 0 && product.rows <= rows_most_);
  MC_ASSERT(product.columns <= columns_most_ && product.inner <= inner_most_);
  if (!multiplies_fp8(device_->capability(), product.scales))
    return Error{Code::unsupported, std::string(device_->name()) +
                                        ": its compute capability has no products of fp8 "
                                        "with such scales"};
  if (product.inner % 16 != 0 || product.columns % 4 != 0)
    return Error{Code::unsupported,
                 "a product of fp8 needs rows of a multiple of 16 elements and a multiple of 4 "
                 "columns; it has " +
                     std::to_string(product.inner) + " and " + std::to_string(product.columns)};
  const size_t last = product.scales == Fp8Scales::blocks ? product.rows % kRowsOfBlocks : 0;
  Fp8Product part = product;
  for (size_t left = product.rows - last; left > 0; left -= part.rows) {
    MC_TRY(rows, rows_at_once(product, left));
    part.rows = rows;
    MC_CHECK(quantise(part, rows));
    MC_CHECK(multiply(part, rows, part.y, part.adds));
    part.x += rows * part.inner * 2;
    part.y += rows * part.columns * 4;
  }
  if (last == 0) return {};
  part.rows = last;
  MC_CHECK(quantise(part, kRowsOfBlocks));
  MC_CHECK(multiply(part, kRowsOfBlocks, last_, false));
  const TakeRowsArgs take{.x = device_pointer<const float>(last_),
                          .y = device_pointer<float>(part.y),
                          .columns = static_cast<int32_t>(part.columns),
                          .adds = part.adds};
  return device_->launch("take_rows", {.grid = {static_cast<uint32_t>(last), 1, 1}}, bytes_of(take));
}

}  // namespace mc::gpu

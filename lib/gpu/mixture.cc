#include "gpu/mixture.h"

#include <algorithm>

#include "base/assert.h"
#include "base/extent.h"
#include "gpu/kernels/experts.h"
#include "gpu/mlp.h"

namespace mc::gpu {

std::vector<Mixture::PartSize> Mixture::part_sizes(const MixtureShape& shape, size_t rows) {
  const size_t entries = rows * shape.per_token;
  const size_t inner = std::max(entries * shape.inner, rows * shape.shared_inner);
  return {{&Parts::scores, rows * score_columns(shape) * 4},
          {&Parts::chosen, entries * 4},
          {&Parts::shares, entries * 4},
          {&Parts::rows, entries * 4},
          {&Parts::slots, entries * 4},
          {&Parts::tiles, (entries / 16 + shape.experts) * sizeof(ExpertTile)},
          {&Parts::gate_up, inner * 8},
          {&Parts::activated, inner * 2},
          {&Parts::answers, entries * shape.hidden * 4},
          {&Parts::shared, shape.shared_inner > 0 ? rows * shape.hidden * 4 : 0}};
}

size_t Mixture::bytes(const MixtureShape& shape, size_t rows) {
  size_t bytes = 0;
  for (const PartSize& part : part_sizes(shape, rows)) bytes += round_up(part.bytes, Arena::kAlignment);
  return bytes;
}

Result<Mixture> Mixture::open(Device& device, const MixtureShape& shape, size_t rows) {
  MC_ASSERT(shape.per_token >= 1 && shape.per_token <= shape.experts && shape.experts <= kExpertsMax);
  Mixture made(device, shape);
  MC_TRY(arena, Arena::open(device, Place::device, bytes(shape, rows), "experts"));
  made.arena_ = std::move(arena);
  for (const PartSize& size : part_sizes(shape, rows)) {
    if (size.bytes == 0) continue;
    MC_TRY(part, made.arena_.take(size.bytes, "activations of experts"));
    made.at_.*size.member = part.address;
  }
  return made;
}

Result<void> Mixture::choose(const MixtureWeights& weights, uint64_t in, size_t rows) {
  const auto columns = static_cast<int32_t>(score_columns(shape_));
  const auto multiply_router = shape_.routes_alike ? queue_own_product : queue_product;
  MC_CHECK(multiply_router(*device_, {.x = in,
                                      .w = weights.router,
                                      .y = at_.scores,
                                      .rows = rows,
                                      .columns = score_columns(shape_),
                                      .inner = shape_.hidden}));
  const RouteArgs route{.scores = device_pointer<const float>(at_.scores),
                        .chosen = device_pointer<int32_t>(at_.chosen),
                        .shares = device_pointer<float>(at_.shares),
                        .rows = static_cast<int32_t>(rows),
                        .experts = static_cast<int32_t>(shape_.experts),
                        .stride = columns,
                        .per_token = static_cast<int32_t>(shape_.per_token),
                        .normalise = shape_.normalise};
  const auto ctas = static_cast<uint32_t>((rows + kRowsPerCta - 1) / kRowsPerCta);
  return device_->launch("route_rows", {.grid = {ctas, 1, 1}}, bytes_of(route));
}

Result<void> Mixture::group(size_t rows, uint32_t tile_rows, uint32_t tiles) {
  const GroupArgs args{.chosen = device_pointer<const int32_t>(at_.chosen),
                       .rows = device_pointer<int32_t>(at_.rows),
                       .slots = device_pointer<int32_t>(at_.slots),
                       .tiles = device_pointer<ExpertTile>(at_.tiles),
                       .entries = static_cast<int32_t>(rows * shape_.per_token),
                       .experts = static_cast<int32_t>(shape_.experts),
                       .per_token = static_cast<int32_t>(shape_.per_token),
                       .tile_rows = static_cast<int32_t>(tile_rows),
                       .tile_count = static_cast<int32_t>(tiles)};
  return device_->launch("group_rows", {.grid = {shape_.experts, 1, 1}, .dynamic_shared = group_shared(shape_.experts)},
                         bytes_of(args));
}

/// `row_table`: the row of x of each slot; 0: x has a row for each slot.
Result<void> Mixture::multiply(uint64_t x, uint64_t w, uint64_t y, uint64_t row_table, size_t columns, size_t inner,
                               uint32_t tile_rows, uint32_t tiles) {
  const ExpertProductArgs args{.x = device_pointer<const uint16_t>(x),
                               .w = device_pointer<const uint16_t>(w),
                               .y = device_pointer<float>(y),
                               .rows = device_pointer<const int32_t>(row_table),
                               .tiles = device_pointer<const ExpertTile>(at_.tiles),
                               .columns = static_cast<int32_t>(columns),
                               .inner = static_cast<int32_t>(inner)};
  return device_->launch(
      tile_rows == 16 ? "expert_product_16" : "expert_product_64",
      {.grid = {static_cast<uint32_t>((columns + 63) / 64), tiles, 1}, .dynamic_shared = product_shared(tile_rows)},
      bytes_of(args));
}

/// The answer of the shared expert to every row.
Result<void> Mixture::ask_shared(const MixtureWeights& weights, uint64_t in, size_t rows) {
  const size_t inner = shape_.shared_inner;
  MC_CHECK(queue_product(*device_, {.x = in,
                                    .w = weights.shared_gate_up,
                                    .y = at_.gate_up,
                                    .rows = rows,
                                    .columns = 2 * inner,
                                    .inner = shape_.hidden}));
  MC_CHECK(queue_silu(*device_,
                      {.gate_up = device_pointer<const float>(at_.gate_up),
                       .out = device_pointer<uint16_t>(at_.activated),
                       .columns = static_cast<int32_t>(inner)},
                      rows));
  return queue_product(*device_, {.x = at_.activated,
                                  .w = weights.shared_down,
                                  .y = at_.shared,
                                  .rows = rows,
                                  .columns = shape_.hidden,
                                  .inner = inner});
}

Result<void> Mixture::add(const MixtureWeights& weights, uint64_t in, uint64_t x, size_t rows) {
  const size_t entries = rows * shape_.per_token;
  MC_ASSERT(rows > 0);
  // A tile of 64 rows is worth its products where an expert has more than 32 rows on average. Bits are equal in both.
  const uint32_t tile_rows = entries <= size_t{32} * shape_.experts ? 16 : 64;
  const auto tiles = static_cast<uint32_t>(entries / tile_rows + std::min<size_t>(shape_.experts, entries));
  MC_CHECK(choose(weights, in, rows));
  MC_CHECK(group(rows, tile_rows, tiles));
  MC_CHECK(multiply(in, weights.gate_up, at_.gate_up, at_.rows, 2 * shape_.inner, shape_.hidden, tile_rows, tiles));
  MC_CHECK(queue_silu(*device_,
                      {.gate_up = device_pointer<const float>(at_.gate_up),
                       .out = device_pointer<uint16_t>(at_.activated),
                       .columns = static_cast<int32_t>(shape_.inner)},
                      entries));
  MC_CHECK(multiply(at_.activated, weights.down, at_.answers, 0, shape_.hidden, shape_.inner, tile_rows, tiles));
  if (shape_.shared_inner > 0) MC_CHECK(ask_shared(weights, in, rows));
  const CombineArgs combine{.answers = device_pointer<const float>(at_.answers),
                            .slots = device_pointer<const int32_t>(at_.slots),
                            .shares = device_pointer<const float>(at_.shares),
                            .shared = device_pointer<const float>(at_.shared),
                            .scores = device_pointer<const float>(at_.scores),
                            .x = device_pointer<float>(x),
                            .columns = static_cast<int32_t>(shape_.hidden),
                            .per_token = static_cast<int32_t>(shape_.per_token),
                            .experts = static_cast<int32_t>(shape_.experts),
                            .stride = static_cast<int32_t>(score_columns(shape_))};
  return device_->launch("combine_experts", {.grid = {static_cast<uint32_t>(rows), 1, 1}}, bytes_of(combine));
}

}  // namespace mc::gpu

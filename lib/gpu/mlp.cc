#include "gpu/mlp.h"

#include "base/assert.h"

namespace mc::gpu {

Result<void> queue_product(Device& device, const ProductArgs& args) {
  MC_ASSERT(args.w != nullptr && args.rows > 0);
  const uint32_t tile = args.rows <= 16 ? 16 : 64;
  const auto tiles = [](int32_t count, uint32_t by) { return (static_cast<uint32_t>(count) + by - 1) / by; };
  return device.launch(
      tile == 16 ? "product_16" : "product_64",
      {.grid = {tiles(args.columns, 64), tiles(args.rows, tile), 1}, .dynamic_shared = product_shared(tile)},
      bytes_of(args));
}

Result<void> queue_silu(Device& device, const SiluArgs& args, size_t rows) {
  return device.launch("silu_mul", {.grid = {static_cast<uint32_t>(rows), 1, 1}}, bytes_of(args));
}

}  // namespace mc::gpu

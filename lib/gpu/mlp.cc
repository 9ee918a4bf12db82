#include "gpu/mlp.h"

#include "base/assert.h"

namespace mc::gpu {

Result<void> queue_own_product(Device& device, const Product& p) {
  MC_ASSERT(p.w != 0 && p.rows > 0);
  const ProductArgs args{.x = device_pointer<const uint16_t>(p.x),
                         .w = device_pointer<const uint16_t>(p.w),
                         .y = device_pointer<float>(p.y),
                         .rows = static_cast<int32_t>(p.rows),
                         .columns = static_cast<int32_t>(p.columns),
                         .inner = static_cast<int32_t>(p.inner),
                         .adds = p.adds};
  const uint32_t tile = p.rows <= 16 ? 16 : 64;
  const auto tiles = [](size_t count, uint32_t by) { return static_cast<uint32_t>((count + by - 1) / by); };
  MC_CHECK(
      device.launch(tile == 16 ? "product_16" : "product_64",
                    {.grid = {tiles(p.columns, 64), tiles(p.rows, tile), 1}, .dynamic_shared = product_shared(tile)},
                    bytes_of(args)));
  if (p.bias == 0) return {};
  const AddArgs add{.x = device_pointer<const float>(p.bias), .y = args.y, .columns = args.columns};
  return device.launch("add_to_rows", {.grid = {static_cast<uint32_t>(p.rows), 1, 1}}, bytes_of(add));
}

Result<void> queue_product(Device& device, const Product& product) {
  MC_ASSERT(product.w != 0 && product.rows > 0);
  if (Matmul* matmul = device.matmul(); matmul != nullptr) {
    MC_TRY(queued, matmul->queue(product));
    if (queued) return {};
  }
  return queue_own_product(device, product);
}

Result<void> queue_silu(Device& device, const SiluArgs& args, size_t rows) {
  return device.launch("silu_mul", {.grid = {static_cast<uint32_t>(rows), 1, 1}}, bytes_of(args));
}

}  // namespace mc::gpu

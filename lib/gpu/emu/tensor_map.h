// The emulator's tensor map: 128 bytes, as the chip's, with the fields of cuTensorMapEncodeTiled in the clear.
#pragma once

#include <cstdint>

namespace mc::gpu::emu {

struct TensorMapBytes {
  static constexpr uint64_t kMagic = 0x70616d726f736e74;
  uint64_t magic = kMagic;
  uint64_t base = 0;
  uint64_t dims[5] = {1, 1, 1, 1, 1};  // elements, the innermost first
  uint64_t strides[5] = {};            // bytes; [0] is an element's
  uint32_t box[5] = {1, 1, 1, 1, 1};
  uint8_t rank = 0;
  uint8_t swizzled = 0;  // by 128 bytes
  uint8_t is_f32 = 0;    // the elements; else they are bf16
  uint8_t reserved = 0;
};
static_assert(sizeof(TensorMapBytes) == 120);

}  // namespace mc::gpu::emu

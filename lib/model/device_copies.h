// The copies of a pass between pages of the host and pages of the device, one layer after another and beside the
// kernels. Each direction has a stream of its own and a ring of two page-locked buffers. The kernels of a layer wait
// for the load of that layer alone, and the host waits for the store of a layer when later kernels are queued.
//
//   MC_CHECK(copies.begin());
//   MC_CHECK(copies.load(0, pieces));
//   for each layer:
//     MC_CHECK(copies.await_load(layer));            // what the device's own stream is given next runs after the load
//     ... kernels ...
//     MC_CHECK(copies.load(layer + 1, pieces));
//     MC_CHECK(copies.store(layer, pieces));         // of what the kernels so far have written
//   MC_CHECK(copies.finish_store(layer));            // the bytes are on the host
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/gpu.h"

namespace mc::model {

class DeviceCopies {
 public:
  struct Load {
    const std::byte* from = nullptr;
    uint64_t to = 0;
    size_t bytes = 0;
  };
  struct Store {
    uint64_t from = 0;
    std::byte* to = nullptr;
    size_t bytes = 0;
  };

  /// The device must outlive the copies.
  explicit DeviceCopies(gpu::Device& device) : device_(device) {}
  Result<void> prepare();

  /// A pass begins. Its loads run after the kernels that are queued so far. Waits for the copies that an aborted pass
  /// left, and drops their results. `keeps_stores`: the stores are of steps that go on.
  Result<void> begin(bool keeps_stores = false);
  /// Queues the load of a layer, after the one two layers before. The bytes of the host are read here.
  Result<void> load(uint32_t layer, std::span<const Load> pieces);
  Result<void> await_load(uint32_t layer);
  /// Queues the store of a layer; the one two layers before is finished.
  Result<void> store(uint32_t layer, std::vector<Store> pieces);
  Result<void> finish_store(uint32_t layer);

 private:
  static constexpr uint32_t kSlots = 2;
  struct Slot {
    gpu::PinnedBuffer memory;
    gpu::Event done;
    bool is_used = false;  // copies of this pass are queued on the memory
    std::vector<Store> pieces;
  };
  struct Way {
    gpu::Stream stream;
    gpu::Event computed;  // a point of the device's own stream
    Slot slots[kSlots];
    Slot& of(uint32_t layer) { return slots[layer % kSlots]; }
  };
  Result<void> reserve(Slot& slot, size_t bytes);
  /// Later copies of the way run after the kernels that are queued so far.
  Result<void> follow_kernels(Way& way);

  gpu::Device& device_;
  Way in_, out_;
};

}  // namespace mc::model

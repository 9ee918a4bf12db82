// Copies of whole blocks from pages of the host to pages of the device, which the caller numbers. A load is a list of
// blocks. Its copies go layer by layer, in pieces that two page-locked buffers hold, so that a pass can begin with a
// layer whose extents are there while later ones are on their way, and a long load goes on beside the passes of others.
// Each extent is checked against its CRC32C while it is copied.
//
//   loads.add(load);
//   MC_CHECK(loads.begin_pass(pages));               // those that the pass reads
//   for each layer:
//     MC_CHECK(loads.await(layer));                  // what the device's own stream is given next runs after the load
//     ... kernels ...
//     MC_CHECK(loads.advance(layer + 1));
//   loads.settle();                                  // and take_ended()
//
// A load that fails ends alone. A pass that reads one of its pages fails with it; until another load, or a pass, writes
// a page of it, that page has no meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/extent.h"
#include "gpu/gpu.h"
#include "model/pass.h"

namespace mc::model {

class DeviceLoads {
 public:
  /// The device must outlive the loads.
  DeviceLoads(gpu::Device& device, const ExtentLayout& layout) : device_(device), layout_(layout) {}
  /// `pool`: address of page 0 on the device.
  Result<void> prepare(uint64_t pool);

  /// Queues a load behind those before it. No run that has not ended uses one of its pages of the device.
  void add(PageLoad load);
  bool idle() const { return loads_.empty(); }

  /// A pass begins that reads these pages. The error of a load of one of them that has failed.
  Result<void> begin_pass(std::span<const int32_t> pages);
  /// The pass writes the page's first row, so an earlier load of it means nothing any more.
  void overwrite(int32_t page) { failed_.erase(page); }
  /// Kernels that are queued from now on find `layer` of the pass's pages.
  Result<void> await(uint32_t layer);
  /// Copies further: the layer of the pass's pages or, when the pass waits for none, a piece of other loads.
  Result<void> advance(uint32_t layer);
  /// Copies a piece. False: there is nothing to copy.
  bool advance();
  /// Copies all that the loads of these pages lack, and waits for it. The error of one that failed.
  Result<void> finish(std::span<const int32_t> pages);
  /// Waits for the copies that are queued. Loads whose last copy is among them have ended.
  void settle();
  /// The next load that has ended, in any order.
  std::optional<LoadEnd> take_ended();

 private:
  static constexpr uint32_t kSlots = 2;
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  struct Loading {
    PageLoad load;
    uint32_t layer = 0;  // and block of the next extent
    size_t block = 0;
    bool is_used = false;  // the pass under way reads its pages
    std::optional<Error> error;
    Duration busy{};
    bool is_queued(uint32_t layers) const { return error || layer == layers; }
  };
  struct Slot {
    gpu::PinnedBuffer memory;
    gpu::Event done;
    bool is_used = false;
  };

  void mark_used(std::span<const int32_t> pages);
  Result<void> error_of(std::span<const int32_t> pages) const;
  Result<void> queue_piece(Loading& at);
  Result<bool> copy_extents(Loading& at, Slot& slot);
  void copy_piece(Loading& at);
  void find_rotten(Loading& at);

  gpu::Device& device_;
  ExtentLayout layout_;
  uint64_t pool_ = 0;
  gpu::Stream stream_;
  gpu::Event computed_;  // a point of the device's own stream
  Slot slots_[kSlots];
  uint32_t turn_ = 0;  // the slot that was used last
  std::deque<Loading> loads_;
  std::deque<LoadEnd> ended_;
  std::map<int32_t, Error> failed_;  // by page
};

}  // namespace mc::model

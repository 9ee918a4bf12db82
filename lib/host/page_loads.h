// The copies of blocks to the device, as a compute thread carries them out beside its runs (model/device_loads.h): all
// of them while it has no run, and a piece with each layer of a run.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "host/compute_queue.h"
#include "model/device_loads.h"
#include "node/node.h"

namespace mc::host {

class PageLoads {
 public:
  using PageAt = std::function<const std::byte*(uint32_t page)>;  // of the host

  /// `loads` outlives the object. Null: the device is no tier of the node, and there is nothing to copy.
  PageLoads(model::DeviceLoads* loads, PageAt page) : loads_(loads), page_(std::move(page)) {}

  bool exist() const { return loads_ != nullptr; }
  void begin(const node::LoadPages& load);
  /// Copies until the queue has work, or all is copied.
  void copy_until_work(ComputeQueue& queue);
  /// Waits for the copies that are under way, and reports the loads that have ended.
  void report(ComputeQueue& queue);
  /// Copies all of the loads that these pages wait for. The error of one that failed.
  Result<void> finish(std::span<const int32_t> device_pages);

 private:
  model::DeviceLoads* loads_;
  PageAt page_;
};

}  // namespace mc::host

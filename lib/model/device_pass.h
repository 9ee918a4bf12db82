// The pass under way of a device's backend (device_backend.cc): its sequences, the pages that it writes, and the
// results of its layers on their way to the host.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/plan.h"
#include "gpu/kernels/layer.h"
#include "model/device_layers.h"

namespace mc::model {

constexpr size_t kLayersAtOnce = DeviceLayers::kLayersAtOnce;

/// The pages of the pass of which the device makes checksums.
struct PassSums {
  std::vector<gpu::RowPlace> pages;
  std::vector<size_t> written;  // their index among the written pages
};

/// A layer of a pass with chunks as the device made it, beside the written pages.
struct StoredLayer {
  std::vector<uint32_t> sums;   // by page of PassSums
  std::vector<std::byte> kept;  // K and V of the rows of a step, as DeviceSteps keeps them
};

/// One sequence of the pass: its rows, and where its pages are on the host and on the device.
struct PassSequence {
  bool is_row = false;    // the row of a step, which appends to a page
  uint64_t sequence = 0;  // whose pages stay on the device; 0: none
  int64_t q_begin = 0;
  int32_t tokens = 0;
  std::byte* const* host_pages = nullptr;
  const int32_t* given = nullptr;  // the caller's numbers of the pages on the device
  std::vector<int32_t> pages;      // numbers on the device
  const attn::Plan* plan = nullptr;
  int64_t end() const { return q_begin + tokens; }
};

/// The pass as a whole.
struct PassState {
  bool is_step = false;  // it has no chunk
  LayerRange layers;
  size_t rows = 0;       // with padded_rows() of a step
  size_t step_rows = 0;  // rows of a step, which come first; without chunks all rows
  size_t place = 0;      // of a step's results
  PassSums sums;
  std::vector<gpu::RowPlace> sealed;  // of the written pages, with their tokens
  std::vector<gpu::PageRows> coded;   // of the written pages, when they hold codes
  std::vector<uint32_t> checksums;    // [layer][written page] of the pass that has ended; empty: none
  std::vector<float> last_state;      // x of the chunk's last row before the model's last layer, once that has run
  std::vector<int32_t> last_rows;     // of a mixed pass: the rows that go through the model's last layer
  StoredLayer stored[kLayersAtOnce];  // of the layers under way
};

/// A page that the pass writes.
struct WrittenPage {
  gpu::RowPlace place;  // on the device, with its tokens
  std::byte* host = nullptr;
  bool is_whole = false;  // it is sealed, so all of it goes to the host
};

}  // namespace mc::model

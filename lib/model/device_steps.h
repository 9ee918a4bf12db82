// Results of decode steps on their way from the device to the host: K and V of the rows, the pages that became full,
// their checksums, and the drawn tokens. Two steps may be queued. The results of each have memory of their own on the
// device and page-locked memory, so that the kernels of the second step run while the results of the first are copied.
//
//   place = steps.next_place();              // of the memory on the device
//   ... kernels ...
//   MC_CHECK(steps.queue(std::move(step)));
//   MC_CHECK(steps.finish());                // of the step that was queued first
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/extent.h"
#include "model/device_copies.h"
#include "model/device_draws.h"
#include "model/tensor_part.h"

namespace mc::model {

/// K and V of one row of all heads as the device keeps them: [2, kv_heads, head_dim], with codes as
/// gpu::CodeArgs::kept.
size_t kept_row_bytes(const ExtentLayout& layout);
/// Writes such a row into a layer's extent of its page.
void write_kept_row(const ExtentLayout& layout, std::byte* extent, size_t slot, const std::byte* kept);

class DeviceSteps {
 public:
  static constexpr size_t kPlaces = 2;

  struct Row {
    std::byte* page = nullptr;  // of the host, for K and V of the row
    size_t slot = 0;            // in the page
  };
  struct Step {
    std::vector<Row> rows;
    std::vector<size_t> summed;  // indexes of the rows whose pages have become full
    size_t kept_rows = 0;        // at least those of `rows`
    size_t sum_rows = 0;         // at least those of `summed`
    uint64_t kept = 0;           // on the device: [layers, kept_rows, kept_row_bytes()]
    uint64_t sums = 0;           // on the device: u32 [layers, sum_rows]
    std::vector<DeviceCopies::Store> full_pages;
    DrawCall draws;  // without rows: the step draws nothing
  };

  /// `copies` must outlive the steps. Their stores are used by steps alone while a step is queued.
  DeviceSteps(DeviceCopies& copies, const KvPart& kv) : copies_(copies), kv_(kv), layout_(kv.device) {}

  size_t queued() const { return steps_.size(); }
  size_t next_place() const { return (first_ + steps_.size()) % kPlaces; }
  /// Queues the copies of the results, which begin when the kernels that are queued so far have ended.
  Result<void> queue(Step step);
  /// K and V of the queued steps are in the pages of the host from here on.
  Result<void> store_all();
  /// As store_all(), of the step that was queued first, which ends. Its checksums are in sums(), and the tokens that it
  /// drew in `out`. Code::corrupt as ops::Sampler::sample().
  Result<void> finish(std::span<ops::Sampled> out);
  /// CRC32C of the extents of each row's page, [layer][row]; only those of full pages are set. Empty: no page was full.
  const std::vector<uint32_t>& sums() const { return sums_; }

 private:
  struct Queued {
    Step step;
    size_t place = 0;
    std::vector<std::byte> kept;
    std::vector<uint32_t> sums;
    bool is_stored = false;
  };
  Result<void> store(Queued& queued);
  void write_rows(const Queued& queued) const;
  void note_sums(const Queued& queued);

  DeviceCopies& copies_;
  KvPart kv_;
  ExtentLayout layout_;  // of the device
  std::deque<Queued> steps_;
  size_t first_ = 0;  // place of the first one
  std::vector<uint32_t> sums_;
};

}  // namespace mc::model

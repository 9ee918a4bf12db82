// KV pages on a device, copies of the caller's pages in host memory. A pass numbers the pages that it uses, and
// copies in the bytes that the device lacks.
//
// Pages of a sequence that decodes stay on the device from step to step, because only its own steps write them.
// Sequences with a common prefix share its pages. A page of the host must not change while a sequence keeps it, but for
// the rows that the device writes into both.
//
//   pages.begin();
//   number = pages.keep(sequence, index, host, PageUse::read);   // or take(), for this pass alone
//   MC_CHECK(pages.make_room());                                 // now the numbers hold in address()
//   ... the pages of missing() are copied in ...
//   pages.note_filled();
//   pages.forget(sequence);
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpu/gpu.h"

namespace mc::model {

enum class PageUse : uint8_t {
  read,    // the pass reads rows that are there
  append,  // it reads rows that are there, and writes more
  fresh,   // it writes the page's first row
};

class DevicePages {
 public:
  /// The device must outlive the pages. Nothing is allocated before a pass needs room.
  DevicePages(gpu::Device& device, size_t page_bytes) : device_(device), page_bytes_(page_bytes) {}

  /// Makes room for so many pages, which the caller numbers. take(), keep() and forget() are not used then.
  Result<void> reserve(uint32_t pages);
  /// Begins a pass. Pages that no sequence keeps are free again.
  void begin();
  /// The number of a page for this pass. Pages that the pass only reads are numbered once, and have the number of a
  /// sequence that keeps them.
  int32_t take(const std::byte* host, PageUse use);
  /// The number of page `index` of a sequence, whose pages below have been kept in this pass or before.
  int32_t keep(uint64_t sequence, size_t index, const std::byte* host, PageUse use);
  /// Makes room for the pages of the pass and of all sequences. MC7005 when the device has no room; the pages of the
  /// sequences are then copied in anew by the next pass.
  Result<void> make_room();
  /// A page of the pass whose bytes the device lacks.
  struct Missing {
    const std::byte* host = nullptr;
    int32_t number = 0;
  };
  std::span<const Missing> missing() const { return missing_; }
  /// make_room() has made other room for all pages, which are missing therefore.
  bool has_moved() const { return has_moved_; }
  /// The bytes of missing() are on the device, and later passes copy them no more. Without this call they do.
  void note_filled();
  /// The sequence has ended, or its step failed: the device keeps its pages no longer.
  void forget(uint64_t sequence);

  uint64_t address() const { return pool_.address(); }
  uint64_t address(int32_t number) const { return pool_.address() + static_cast<uint64_t>(number) * page_bytes_; }
  /// Pages that sequences keep.
  size_t kept() const;

 private:
  struct Slot {
    const std::byte* host = nullptr;  // null: free
    uint32_t keepers = 0;             // sequences
    bool is_filled = false;           // the device has the rows
  };
  struct Used {
    int32_t number = 0;
    PageUse use = PageUse::read;
  };
  int32_t new_slot(const std::byte* host);
  void free_slot(int32_t number);
  Result<void> grow();

  gpu::Device& device_;
  size_t page_bytes_;
  gpu::DeviceBuffer pool_;
  size_t room_ = 0;  // pages of pool_
  bool has_moved_ = false;
  std::vector<Slot> slots_;
  std::set<int32_t> free_;                                        // numbers of slots_; the lowest is used first
  std::unordered_map<uint64_t, std::vector<int32_t>> sequences_;  // numbers of the kept pages, by index
  std::unordered_map<const std::byte*, int32_t> kept_;            // by page of the host
  std::unordered_map<const std::byte*, int32_t> read_;            // likewise, taken for this pass
  std::vector<int32_t> taken_;                                    // for this pass
  std::vector<Used> used_;                                        // by this pass
  std::vector<Missing> missing_;                                  // likewise
};

}  // namespace mc::model

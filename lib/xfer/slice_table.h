// The slices that exist, by index. A slice exists from its cutting until no transport can touch its memory. Every
// attempt gives the slice a new number, so a late completion of an earlier attempt finds nothing. Not thread-safe: only
// the thread that has the loop's turn calls this class.
#pragma once

#include <vector>

#include "xfer/batch.h"
#include "xfer/tally.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct SliceRecord {
  enum class State : uint8_t { free, waiting, posted, quarantined };
  State state = State::free;
  uint32_t generation = 0;
  OpenBatch* batch = nullptr;
  uint32_t request = 0;
  uint64_t at = 0;  // offset in the request
  uint32_t bytes = 0;
  int attempts = 0;
  EndpointId endpoint = EndpointId::none;
  int lane = 0;

  const Request& asked() const { return batch->requests[request]; }
  TransferClass transfer_class() const { return asked().transfer_class; }
  /// Whether the slice carries the immediate of its request. The last slice does, and is cut when all others are done.
  bool tells() const { return asked().immediate.has_value() && at + bytes == asked().local.size(); }
};

class SliceTable {
 public:
  explicit SliceTable(Tally& tally) : tally_(tally) {}

  /// Makes a waiting slice of the request and returns its index.
  uint32_t make(OpenBatch& batch, uint32_t request, uint64_t at, uint32_t bytes);
  /// Cuts a waiting slice to `most` bytes. Returns the index of a new slice with the rest.
  uint32_t split(uint32_t index, uint64_t most);
  /// A lane has taken the waiting slice.
  void posted(uint32_t index, EndpointId endpoint, int lane);
  /// The attempt failed: the slice waits again, under a new number.
  void retry(uint32_t index);
  /// The request of the slice is over, but a transport may still touch the slice's memory.
  void quarantine(uint32_t index);
  /// Ends the slice.
  void release(uint32_t index);
  /// A number for the slice of a small batch, which is not in the table. It ends that of the previous call, except
  /// after adopt().
  uint64_t lend() {
    if (lent_ == kNoIndex) [[unlikely]]
      lent_ = take_index();
    return static_cast<uint64_t>(++slices_[lent_].generation) << 32 | lent_;
  }
  /// Adds the slice with the number of lend() to the table. It carries the only request of the batch and is posted.
  void adopt(OpenBatch& batch, uint64_t id, EndpointId endpoint, int lane);

  SliceRecord& operator[](uint32_t index) { return slices_[index]; }
  const SliceRecord& operator[](uint32_t index) const { return slices_[index]; }
  /// One more than the largest index.
  uint32_t size() const { return static_cast<uint32_t>(slices_.size()); }
  /// Number of existing slices.
  size_t count() const { return slices_.size() - free_.size() - (lent_ == kNoIndex ? 0 : 1); }
  uint64_t id(uint32_t index) const { return static_cast<uint64_t>(slices_[index].generation) << 32 | index; }
  /// The slice with that number if a transport has it, else null.
  SliceRecord* find(uint64_t id, uint32_t& index);

 private:
  static constexpr uint32_t kNoIndex = UINT32_MAX;
  uint32_t take_index();

  Tally& tally_;
  std::vector<SliceRecord> slices_;
  std::vector<uint32_t> free_;
  uint32_t lent_ = kNoIndex;  // index of the numbers of lend()
};

}  // namespace mc::xfer

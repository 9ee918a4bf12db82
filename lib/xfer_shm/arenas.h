// The arenas of one shm peer that are mapped in this process, and the copies between them and local memory (internal).
// Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "mem/mem.h"
#include "xfer/transport.h"
#include "xfer_shm/socket.h"

namespace mc::xfer {

class ShmArenas {
 public:
  /// Maps an arena that the peer shares.
  ShmFailure add(const wire::FrameHeader& share, const Fd& arena);
  /// Removes the arenas that the peer's descriptor no longer names. Views of callers keep their mapping.
  void keep(const Descriptor& descriptor);
  /// Arenas that were not reported to the engine yet.
  std::vector<MappedBuffer> take_fresh() { return std::exchange(fresh_, {}); }
  /// Copies the slice.
  SliceDone copy(const Slice& slice) const;

 private:
  std::map<uint32_t, std::shared_ptr<mem::SharedBuffer>> arenas_;  // key: buffer id; shared with Views
  std::vector<MappedBuffer> fresh_;
};

}  // namespace mc::xfer

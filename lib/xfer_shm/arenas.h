// The arenas of one shm peer that are mapped here, and the copies between them and memory of this process (internal).
// Not thread-safe: as the transport.
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
  /// The peer shares an arena: maps it.
  ShmFailure add(const wire::FrameHeader& share, const Fd& arena);
  /// Forgets the arenas that the peer's descriptor no longer names. Views that callers hold keep their mapping.
  void keep(const Descriptor& descriptor);
  /// Arenas that the engine has not been told of.
  std::vector<MappedBuffer> take_fresh() { return std::exchange(fresh_, {}); }
  /// Copies the slice.
  SliceDone copy(const Slice& slice) const;

 private:
  std::map<uint32_t, std::shared_ptr<mem::SharedBuffer>> arenas_;  // by buffer; shared with Views
  std::vector<MappedBuffer> fresh_;
};

}  // namespace mc::xfer

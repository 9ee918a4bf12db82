// What the control loop needs of a data plane: reads of KV extents into this node's pages, and the small notifies that
// announce them. DataPlane moves the bytes; PacedPlane (run/paced_plane.h) makes another plane's reads take the time of
// a modelled network.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "node/node.h"

namespace mc::run {

class KvPlane {
 public:
  virtual ~KvPlane() = default;
  virtual void set_peers(const std::vector<wire::Peer>& peers) = 0;
  virtual void notify(const node::SendNotify& notify) = 0;
  /// `local_offset` gives the place of a page in the pool buffer. Answered by one ReadDone.
  virtual void read(const node::Read& read, const std::function<uint64_t(uint32_t page)>& local_offset) = 0;
  virtual void cancel(uint64_t read) = 0;
  /// Readable when next() may have an event.
  virtual int event_fd() const = 0;
  virtual std::optional<node::Event> next() = 0;
};

}  // namespace mc::run

// The ports and keys of the peer of one rdma connection, as the peer has told them (internal, pure). All of it is
// bounded and checked before it is used; the keys only ever reach the peer's own NIC.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "wire/rdma_frame.h"
#include "xfer/transport.h"

namespace mc::xfer {

class RdmaKeyring {
 public:
  /// The list of ports; `before` becomes the list that it replaces (empty: there was none). Not ok: the list is
  /// malformed.
  Code take_nics(std::span<const std::byte> payload, std::vector<wire::RdmaNic>& before);
  /// The keys of one buffer. Not ok, and `why`: they are malformed, or too many.
  Code take_keys(std::span<const std::byte> payload, const char*& why);
  /// The peer's descriptor came, behind the keys of all its buffers. Keys of other buffers go.
  void described(const Descriptor& descriptor);

  const std::vector<wire::RdmaNic>& nics() const { return nics_; }
  /// Null: there is no key for the buffer.
  const wire::RdmaKeys* find(uint32_t buffer) const;
  /// The keys of that version of the descriptor have not all come yet.
  bool awaits(uint32_t version) const { return version > version_; }
  /// The peer has changed its offer since that version, and still offers the buffer.
  bool renewed(uint32_t buffer, uint32_t version) const { return version < version_ && keys_.contains(buffer); }

 private:
  std::vector<wire::RdmaNic> nics_;
  std::map<uint32_t, wire::RdmaKeys> keys_;
  uint32_t version_ = 0;  // of the latest descriptor
};

}  // namespace mc::xfer

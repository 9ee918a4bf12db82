// The ports and keys of the peer of one rdma connection, as the peer has sent them (internal, pure). All of it is
// bounded and checked before it is used. The keys are used only in requests to the peer's own NIC.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "wire/rdma_frame.h"
#include "xfer/transport.h"

namespace mc::xfer {

class RdmaKeyring {
 public:
  /// Takes the list of ports. `before` becomes the list that it replaces (empty: there was none). Not ok: the list is
  /// malformed.
  Code take_nics(std::span<const std::byte> payload, std::vector<wire::RdmaNic>& before);
  /// Takes the keys of one buffer. Not ok: they are malformed or too many, as `why` says.
  Code take_keys(std::span<const std::byte> payload, const char*& why);
  /// The peer's descriptor has arrived, after the keys of all its buffers. Keys of other buffers are removed.
  void described(const Descriptor& descriptor);

  const std::vector<wire::RdmaNic>& nics() const { return nics_; }
  /// The keys of the buffer; null: there are none.
  const wire::RdmaKeys* find(uint32_t buffer) const;
  /// Whether keys of that version of the descriptor are still to arrive.
  bool awaits(uint32_t version) const { return version > version_; }
  /// Whether the peer has changed its offer since that version and still offers the buffer.
  bool renewed(uint32_t buffer, uint32_t version) const { return version < version_ && keys_.contains(buffer); }

 private:
  std::vector<wire::RdmaNic> nics_;
  std::map<uint32_t, wire::RdmaKeys> keys_;
  uint32_t version_ = 0;  // version of the latest descriptor
};

}  // namespace mc::xfer

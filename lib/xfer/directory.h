// The peers as callers see them. Any thread may call this class: callers query it, and the loop updates it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "mem/mem.h"
#include "xfer/transport.h"

namespace mc::xfer {

class PeerDirectory {
 public:
  static constexpr size_t kNotifiesMax = 1024;  // limit of one peer's notifies that wait in the engine

  /// `most`: limit of known peers.
  explicit PeerDirectory(size_t most) : most_(most) {}

  // ---- callers ----
  /// The peer with this instance, added if it is new. A zero instance adds a new peer of unknown instance.
  Result<PeerId> add(const InstanceId& instance);
  /// Marks a peer as disconnected by the caller. A later connection to its process belongs to another peer.
  void leave(PeerId id);
  std::shared_ptr<const Descriptor> descriptor(PeerId id) const;
  /// The route in use; none while the peer is not up.
  std::optional<size_t> route(PeerId id) const;
  /// Counts one more notify of the peer that is on its way to the loop. Code::ok: there was room for it.
  Code add_notify(PeerId id);
  Result<View> map(PeerId id, uint32_t buffer, uint64_t offset, uint64_t length) const;

  struct Place {
    std::byte* at = nullptr;
    std::shared_ptr<mem::SharedBuffer>
        mapping;  // keeps the address mapped while it is used; null: the mapping of the request before
  };
  /// The addresses at which the remote bytes of all requests are mapped in this process. All are on one route, which is
  /// returned. None: a request is not allowed, is not mapped, or needs a transport.
  std::optional<size_t> places(std::span<const Request> requests, const InstanceId& self,
                               std::vector<Place>& places) const;

  // ---- the loop ----
  /// Adds a peer as add() does. PeerId::none: the directory is full.
  PeerId admit(const InstanceId& instance);
  void forget(PeerId id);
  struct Status {
    bool up = false;
    size_t route = 0;
    std::shared_ptr<const Descriptor> descriptor;  // shared with the loop, never changed
    InstanceId proven{};                           // zero: not proven
  };
  void publish(PeerId id, Status status);
  void keep_mappings(PeerId id, EndpointId from, std::vector<MappedBuffer>&& mappings);
  /// Removes the mappings of an endpoint that is gone.
  void drop_mappings(PeerId id, EndpointId from);
  /// Removes mappings of buffers that the descriptor no longer offers.
  void keep_offered(PeerId id, const Descriptor& descriptor);
  void notifies_gone(PeerId id, size_t count);

 private:
  struct Mapping {
    EndpointId endpoint;                        // endpoint that brought the mapping
    std::shared_ptr<mem::SharedBuffer> memory;  // shared with Views and with callers that copy
  };
  struct Entry {
    Status status;
    std::map<uint32_t, Mapping> mappings;  // key: buffer id
    size_t notifies = 0;                   // queued notifies that no transport has taken yet
    bool leaving = false;                  // disconnect() was called
  };
  PeerId add_locked(const InstanceId& instance);
  const Entry* find_locked(PeerId id) const;

  const size_t most_;
  mutable std::mutex mutex_;
  std::map<PeerId, Entry> entries_;
  std::map<InstanceId, PeerId> known_;
  uint64_t last_ = 0;
};

}  // namespace mc::xfer

// The peers as callers see them. Any thread may call it: callers ask, and the loop publishes.
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
  static constexpr size_t kNotifiesMax = 1024;  // of one peer, waiting in the engine

  /// `most`: peers that may be known.
  explicit PeerDirectory(size_t most) : most_(most) {}

  // ---- callers ----
  /// The peer that is this instance, added if it is new; zero: a new peer whose instance is not known.
  Result<PeerId> add(const InstanceId& instance);
  /// disconnect() was called: a later connection to that process belongs to another peer.
  void leave(PeerId id);
  std::shared_ptr<const Descriptor> descriptor(PeerId id) const;
  /// The route in use; none while the peer is not up.
  std::optional<size_t> route(PeerId id) const;
  /// Code::ok: one more notify of the peer is on its way to the loop.
  Code add_notify(PeerId id);
  Result<View> map(PeerId id, uint32_t buffer, uint64_t offset, uint64_t length) const;

  struct Place {
    std::byte* at = nullptr;
    std::shared_ptr<mem::SharedBuffer>
        mapping;  // shared: keeps it mapped while it is used. Null: that of the one before
  };
  /// Where the remote bytes of each request are mapped in this process, all of them on one route, which is returned.
  /// None: one of the requests is not allowed, is not mapped, or needs a transport.
  std::optional<size_t> places(std::span<const Request> requests, const InstanceId& self,
                               std::vector<Place>& places) const;

  // ---- the loop ----
  /// As add(); PeerId::none: there is no room.
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
  /// The endpoint that brought them is gone.
  void drop_mappings(PeerId id, EndpointId from);
  /// The peer no longer offers the others.
  void keep_offered(PeerId id, const Descriptor& descriptor);
  void notifies_gone(PeerId id, size_t count);

 private:
  struct Mapping {
    EndpointId endpoint;                        // that brought it
    std::shared_ptr<mem::SharedBuffer> memory;  // shared with Views and with callers that copy
  };
  struct Entry {
    Status status;
    std::map<uint32_t, Mapping> mappings;  // by buffer id
    size_t notifies = 0;                   // queued and not yet taken by a transport
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

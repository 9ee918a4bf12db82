// The access table: which memory of this process peers may touch, and how. It is what rkeys are to a
// NIC, enforced by us for every tcp frame, so the arithmetic must not overflow: a range is inside when
// length <= size and offset <= size - length.
//
// A pin says that a transport or an open batch uses a buffer's memory right now. Revoking a buffer
// stops new pins at once; its memory is free when the last pin is gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "xfer/xfer.h"

namespace mc::xfer {

/// True when [offset, offset + length) lies in [0, size).
constexpr bool inside(uint64_t offset, uint64_t length, uint64_t size) {
  return length <= size && offset <= size - length;
}

/// Why a peer may not do something with a buffer.
enum class Denial : uint8_t {
  none,          // it may
  no_buffer,     // no such buffer is offered
  read_only,     // peers may only read it
  write_only,    // peers may only write it
  other_writer,  // another peer's landing buffer
  range          // beyond its end
};

/// The access rule: what `peer` may do with [offset, offset + length) of a buffer; null: there is none that is live.
/// Both ends ask it: the owner before a byte moves, the peer before it asks the owner.
Denial judge(const BufferInfo* buffer, Op op, uint64_t offset, uint64_t length, const InstanceId& peer);
/// May the peer do anything with the buffer?
bool reachable(const BufferInfo& buffer, const InstanceId& peer);

class Access {
 public:
  /// `fd` of the memfd for shared buffers, else -1; borrowed until the buffer is unregistered.
  /// `hidden`: the range and the name are taken, but nobody may use it before show().
  Result<BufferId> add(std::span<std::byte> memory, const Buffer& buffer, int fd, bool hidden = false);
  void show(BufferId id);
  /// New grants and pins are refused from now on.
  void revoke(BufferId id);
  /// Revokes and waits for pins; Code::timeout leaves it revoked. `freed` is called when no pin is left,
  /// before the range may be registered again.
  Result<void> remove(BufferId id, TimePoint deadline, const std::function<void()>& freed = {});

  struct Grant {
    Code code = Code::ok;
    const char* why = "";
    std::span<std::byte> memory;
    std::span<std::byte> whole{};  // buffer: while it is pinned, every range of it is granted alike
  };
  /// What `peer` may do with [offset, offset + length) of buffer `id`; pins the buffer when granted.
  Grant grant(Op op, uint32_t id, uint64_t offset, uint64_t length, const InstanceId& peer);
  void unpin(uint32_t id);
  void unpin(std::span<const BufferId> pins);
  /// Pins the live buffers that hold the local memory of each request (empty ones need none). When one
  /// is in no single buffer: returns its index and pins nothing. Else requests.size().
  size_t pin_local(std::span<const Request> requests, std::vector<BufferId>& pins);

  struct Shared {
    BufferInfo info;
    int fd = -1;
  };
  /// Every shared buffer that `peer` may map.
  std::vector<Shared> shared_with(const InstanceId& peer) const;
  /// Live, non-private buffers in ascending id, and the version of that list.
  std::vector<BufferInfo> offered(uint32_t& version) const;
  uint32_t version() const;
  /// The list is the same, but how it is reached is not: a new version, so that peers ask again.
  void renew();
  /// For tests.
  uint64_t pin_count() const;

 private:
  struct Entry {
    BufferInfo info;
    std::span<std::byte> memory;
    int fd = -1;
    uint64_t pins = 0;
    bool revoked = false;  // takes no pins
    bool hidden = false;   // not shown yet
  };
  void unpin_locked(uint32_t id);
  mutable std::mutex mutex_;
  std::condition_variable unpinned_;
  std::map<uint32_t, Entry> entries_;
  uint32_t last_id_ = 0;
  uint32_t version_ = 1;
};

}  // namespace mc::xfer

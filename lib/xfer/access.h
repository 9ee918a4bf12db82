// The access table: the memory of this process that peers may use, and how they may use it. For tcp frames the table
// does what rkeys do in a NIC. Its arithmetic must not overflow: a range is inside when length <= size and offset <=
// size - length.
//
// A pin means that a transport or an open batch uses the memory of a buffer now. Revoking a buffer refuses new pins at
// once. The memory is free when the last pin is gone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/assert.h"
#include "xfer/xfer.h"

namespace mc::xfer {

/// True when [offset, offset + length) lies in [0, size).
constexpr bool inside(uint64_t offset, uint64_t length, uint64_t size) {
  return length <= size && offset <= size - length;
}

/// Why a peer is denied an operation on a buffer.
enum class Denial : uint8_t {
  none,          // the operation is allowed
  no_buffer,     // no such buffer is offered
  read_only,     // peers may only read it
  write_only,    // peers may only write it
  other_writer,  // the landing buffer belongs to another peer
  range          // the range ends behind the buffer
};

/// The access rule: whether `peer` may do `op` to [offset, offset + length) of a buffer. null: no such live buffer.
/// Both ends apply the rule: the owner before a byte moves, the peer before it sends the request.
Denial judge(const BufferInfo* buffer, Op op, uint64_t offset, uint64_t length, const InstanceId& peer);
/// Whether the peer may do anything with the buffer.
bool reachable(const BufferInfo& buffer, const InstanceId& peer);

class Access {
 private:
  /// The mutex protects the entry, except for the two atomics and for what never changes: its id and its memory. A pin
  /// without the mutex counts itself first and looks at `revoked` then. Revoking sets `revoked` first, and remove()
  /// looks at the pins then. In the one order of these four operations the pin is refused, or remove() waits for it.
  struct Entry {
    BufferInfo info;
    std::span<std::byte> memory;
    int fd = -1;
    std::atomic<uint64_t> pins{0};
    std::atomic<bool> revoked{false};  // refuses pins
    bool hidden = false;               // not offered yet

    bool holds(std::span<const std::byte> part) const {
      return part.data() >= memory.data() &&
             inside(static_cast<uint64_t>(part.data() - memory.data()), part.size(), memory.size());
    }
  };

 public:
  /// `fd` is the memfd of a shared buffer, else -1. It is borrowed until the buffer is unregistered.
  /// `hidden`: range and name are taken, but the buffer cannot be used before show().
  Result<BufferId> add(std::span<std::byte> memory, const Buffer& buffer, int fd, bool hidden = false);
  void show(BufferId id);
  /// Refuses new grants and pins from now on.
  void revoke(BufferId id);
  /// Revokes the buffer and waits for its pins. Code::timeout leaves it revoked. `freed` is called when no pin is left
  /// and before the range may be registered again.
  Result<void> remove(BufferId id, TimePoint deadline, const std::function<void()>& freed = {});

  struct Grant {
    Code code = Code::ok;
    const char* why = "";
    std::span<std::byte> memory;
    std::span<std::byte> whole{};  // the buffer; while it is pinned, every range in it is granted
  };
  /// Whether `peer` may do `op` to [offset, offset + length) of buffer `id`. A grant pins the buffer.
  Grant grant(Op op, uint32_t id, uint64_t offset, uint64_t length, const InstanceId& peer);
  void unpin(uint32_t id);
  void unpin(std::span<const BufferId> pins);
  /// Pins the live buffers that contain the local memory of each request (an empty request needs none). When the memory
  /// of a request is in no single buffer, returns that request's index and pins nothing. Otherwise returns
  /// requests.size().
  size_t pin_local(std::span<const Request> requests, std::vector<BufferId>& pins);

  /// A buffer that one thread pins again and again. Pinning it takes no lock as long as it is live. The object may
  /// outlive the buffer.
  struct Known {
    std::shared_ptr<Entry> entry;  // shared with the table, because unregistering removes it there
    BufferId buffer() const { return BufferId{entry->info.id}; }
  };
  /// Pins the live buffer that contains the memory. `known` is the buffer of an earlier call and becomes the pinned
  /// one. False: no live buffer contains the memory.
  bool pin(std::span<const std::byte> memory, Known& known) {
    if (known.entry && known.entry->holds(memory)) {
      known.entry->pins.fetch_add(1);  // sequentially consistent, with the next line: see Entry
      if (!known.entry->revoked.load()) return true;
      unpin(known);
    }
    return find_and_pin(memory, known);
  }
  /// Removes the pin of pin().
  void unpin(const Known& known) {
    // sequentially consistent, both: remove() has seen the pin gone, or this thread sees that the buffer is revoked
    const uint64_t before = known.entry->pins.fetch_sub(1);
    MC_ASSERT(before > 0);
    if (before == 1 && known.entry->revoked.load()) [[unlikely]]
      tell_unpinned();
  }

  struct Shared {
    BufferInfo info;
    int fd = -1;
  };
  /// Every shared buffer that `peer` may map.
  std::vector<Shared> shared_with(const InstanceId& peer) const;
  /// Live, non-private buffers in ascending id, and the version of that list.
  std::vector<BufferInfo> offered(uint32_t& version) const;
  uint32_t version() const;
  /// Raises the version so that peers request the list again. The list is equal, but the way to reach it has changed.
  void renew();
  /// For tests.
  uint64_t pin_count() const;

 private:
  using Entries = std::map<uint32_t, std::shared_ptr<Entry>>;  // shared with Known
  bool find_and_pin(std::span<const std::byte> memory, Known& known);
  void tell_unpinned();
  void unpin_locked(uint32_t id);
  Entries::iterator find_locked(std::span<const std::byte> memory);
  mutable std::mutex mutex_;
  std::condition_variable unpinned_;
  Entries entries_;
  uint32_t last_id_ = 0;
  uint32_t version_ = 1;
};

}  // namespace mc::xfer

// The contract of a transport. A transport owns connections ("endpoints"), each with one or more lanes that move slices
// independently. The engine owns batches, slices, retries, deadlines and the choice of lane. To add one: a folder of
// its own, and a line of the table in lib/transports.
//
// All methods run on one thread at a time (the engine's, or a caller's: turns.h), never block, and report through the
// Reports in their arguments. Rules that every transport keeps:
//   - a slice accepted by post() ends in exactly one of: a SliceDone; cancel() returning true; or the
//     `lost` report of its endpoint. After any of them no device or kernel touches slice.local again.
//   - `up` is the first report of an endpoint and `lost` the last, each at most once. An endpoint
//     whose `connect` fails reports only `lost`.
//   - every range in a peer's request is checked against Access before a byte moves, with arithmetic that cannot
//     overflow; every size in a peer's message is bounded before anything is allocated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/rng.h"
#include "xfer/xfer.h"

namespace mc::xfer {

class Access;
class Poller;
class Tally;

enum class EndpointId : uint64_t { none = 0 };

/// One attempt to reach a peer.
struct Dial {
  std::string uri;
  InstanceId wanted;  // zero = any instance
  /// Names the connection: 8 random bytes that the caller uses for all dials of that peer, then the number of the dial,
  /// big-endian. A later connection replaces an earlier one. Writes of the earlier one that still lie in a socket are
  /// refused from then on, so that none is applied after its own retry.
  Id128 connection;
  TimePoint deadline = kNever;
  wire::Ticket ticket{};  // ticket of the wanted process's descriptor
};
inline bool same_line(const Id128& a, const Id128& b) {
  return std::equal(a.bytes.begin(), a.bytes.begin() + 8, b.bytes.begin());
}

struct Slice {
  uint64_t id = 0;
  Op op = Op::read;
  bool checksum = false;  // read: report the CRC32C of the bytes at `local`
  uint32_t buffer = 0;    // remote buffer id
  uint32_t snapshot = 0;  // version of the descriptor that the engine checked
  uint64_t offset = 0;    // offset in the remote buffer
  std::span<std::byte> local;
  // Write: delivered to the peer's owner once this slice and all earlier ones are in place.
  std::optional<uint32_t> immediate{};
};

struct SliceDone {
  uint64_t slice = 0;
  Code code = Code::ok;
  uint32_t crc32c = 0;
  std::string text{};   // the cause, when code is not ok
  bool unseen = false;  // code is not ok, and the peer never gets the slice's immediate, so a retry is safe
};

/// A peer's memory mapped into this process.
struct MappedBuffer {
  uint32_t buffer = 0;
  std::shared_ptr<mem::SharedBuffer> mapping;  // shared with callers: their Views, and the copies that they make
};

struct EndpointEvent {
  enum class Kind : uint8_t { up, lost, described, notify, immediate };
  Kind kind{};
  EndpointId endpoint = EndpointId::none;
  bool accepted = false;                           // up: the peer dialled this process
  bool proven = false;                             // up: the peer belongs to the cluster (Handshake::proven)
  bool sealed = false;                             // up: the bytes are encrypted and authenticated
  size_t row = 0;                                  // up: table row of the transport
  bool gone = false;                               // lost: proof that the wanted instance no longer listens there
  Code code = Code::ok;                            // lost
  wire::Mismatch mismatch = wire::Mismatch::none;  // lost
  bool no_listener = false;                        // lost: no program listens at the dialled address
  InstanceId instance{};                           // up
  std::string text{};                              // up: the peer's name; lost: the cause
  std::shared_ptr<const Descriptor> descriptor{};  // up, described
  std::vector<MappedBuffer> mappings{};            // up, described: new mappings
  std::vector<std::byte> bytes{};                  // notify
  uint32_t immediate = 0;                          // immediate: carried by a write of the peer that is in place
};

struct Reports {
  std::vector<SliceDone> done;
  std::vector<EndpointEvent> events;
  bool room = false;  // a lane that was full may have room again, although no slice has ended
  bool empty() const { return done.empty() && events.empty() && !room; }
};

/// The engine's services for its transports. They outlive the transports.
struct Services {
  const Options* options = nullptr;
  InstanceId instance{};
  Id128 boot{};
  wire::Ticket ticket{};  // never zero; published by Engine::describe() when there is no secret
  Access* access = nullptr;
  Poller* poller = nullptr;
  Tally* tally = nullptr;
  Rng rng;
  size_t endpoints_max = 0;
  bool reading_notifies = true;  // false while too many events wait for the caller
  uint64_t last_endpoint = 0;

  EndpointId next_endpoint() { return EndpointId{++last_endpoint}; }
  /// The current snapshot, with the URIs of every listening transport.
  std::shared_ptr<const Descriptor> describe() const;
  std::vector<std::string> uris;
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// Starts accepting connections. Returns the URI for peers.
  virtual Result<std::string> listen() = 0;
  /// The way that the transport works on this host, where there is a choice, with the reason; for Engine::transports().
  virtual std::string remark() const { return {}; }
  /// Starts a connection. `up` or `lost` follows, `lost` at the deadline at the latest.
  virtual EndpointId connect(const Dial& dial, Reports& out) = 0;
  virtual int lanes(EndpointId endpoint) const = 0;
  /// Takes slices from the front while the lane has room, and returns their number. There is room again after the next
  /// SliceDone of that endpoint, or after Reports::room.
  virtual size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) = 0;
  /// Posts one small slice without an immediate, on a lane for which nothing waits. False: nothing was done.
  virtual bool post_alone(EndpointId endpoint, int lane, const Slice& slice, Reports& out) {
    return post(endpoint, lane, {&slice, 1}, out) == 1;
  }
  /// True: the slice of post_alone() is done without an error, and no SliceDone follows. `crc32c`: see SliceDone.
  /// `next`: see look(). Between post_alone() and keep_alone() the engine calls this method alone.
  virtual bool end_alone(uint64_t slice, uint32_t& crc32c, TimePoint& next, Reports& out) {
    next = look(out);
    if (out.done.size() != 1 || !out.events.empty() || out.room) return false;
    const SliceDone& done = out.done[0];
    if (done.slice != slice || done.code != Code::ok) return false;
    crc32c = done.crc32c;
    out.done.clear();
    return true;
  }
  /// From now on the slice of post_alone() is like any other. end_alone() may still follow, and then reports of all
  /// slices.
  virtual void keep_alone() {}
  /// Upper bound of a slice for that lane. A slow lane must not hold a large slice at the end of a batch.
  virtual uint64_t slice_bytes(EndpointId, int) const { return UINT64_MAX; }
  /// Number of slices with an immediate that the lane may be offered now. Others wait without blocking the queue.
  virtual size_t immediates_ahead(EndpointId, int) const { return SIZE_MAX; }
  /// True: the slice's memory is free now, and no SliceDone follows. False: a SliceDone (or `lost`) follows.
  virtual bool cancel(EndpointId endpoint, int lane, uint64_t slice) = 0;
  virtual Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) = 0;
  /// The local descriptor has changed: sends it to every peer.
  virtual void publish(Reports& out) = 0;
  /// Starts closing. `lost` with this code and text follows (tcp and shm: in these reports).
  virtual void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) = 0;
  /// Stops listening, says goodbye, and closes every endpoint. No memory is touched afterwards.
  virtual void shutdown() = 0;
  /// A descriptor registered with the poller is ready.
  virtual void ready(uint64_t token, uint32_t events, Reports& out) = 0;
  /// Runs timers. Returns the time of the next call.
  virtual TimePoint tick(TimePoint now, Reports& out) = 0;
  /// Reports the completions of devices without running a timer. Returns the time of the next tick(). TimePoint::min():
  /// at once, because this transport reports in tick().
  virtual TimePoint look(Reports&) { return TimePoint::min(); }
  /// Called when the engine is about to wait for descriptors. Devices that were only polled must wake it from now on.
  /// When completions are reported here, the engine does not wait.
  virtual void doze(Reports&) {}
  /// Called when Services::reading_notifies has changed.
  virtual void pause_notifies(bool pause) = 0;
  /// Makes the memory of a buffer usable on this transport, before the buffer is offered to peers. Any thread may call
  /// it, and it may block.
  virtual Result<void> attach(BufferId, std::span<std::byte>, AccessClass) { return {}; }
  /// Removes a buffer. No slice uses it any more, but requests of peers may still name it. Any thread may call it.
  virtual void detach(BufferId) {}
};

/// Whether two processes can use a transport, the address to dial, and the reason.
struct Reach {
  bool usable = false;
  std::string uri;
  std::string reason;
  Code code = Code::invalid;  // not usable: `invalid` = an option is wrong, else the cause on this machine
  int mc = 0;                 // see Error
};

/// A transport as the engine sees it before it runs.
struct TransportEntry {
  const char* scheme;
  const char* summary;
  bool dials_hosts;  // its URIs are scheme://host:port
  bool
      maps_memory;  // shared buffers of a connected peer are mapped here (EndpointEvent::mappings), so callers may copy
  /// Code::invalid names the option of this transport that is wrong.
  Result<void> (*check)(const Options& options);
  /// Whether this machine can run the transport.
  Reach (*probe)(const Options& options);
  Reach (*reach)(const Descriptor& local, const Descriptor& remote);
  /// Whether the transport can move bytes of that remote buffer.
  bool (*covers)(const BufferInfo& buffer);
  /// `index` is passed to Poller::add, so that ready() finds the transport.
  std::unique_ptr<Transport> (*make)(Services& services, uint8_t index);
};

/// Wraps a transport and injects the faults of the plan between the transport and the engine.
std::unique_ptr<Transport> inject_faults(std::unique_ptr<Transport> inner, const FaultPlan& plan);

}  // namespace mc::xfer

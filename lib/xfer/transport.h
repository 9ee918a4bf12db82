// The contract a transport implements. A transport owns connections ("endpoints"), each with one or
// more lanes that move slices independently; the engine owns batches, slices, retries, deadlines and
// the choice of lane. To add one: a folder of its own, and a line of the table in lib/transports.
//
// All methods run on one thread at a time (the engine's, or a caller in its place: turns.h), never
// block, and report through the Reports they are given.
// Rules every transport keeps:
//   - a slice accepted by post() ends in exactly one of: a SliceDone; cancel() returning true; or the
//     `lost` news of its endpoint. After any of them no device or kernel touches slice.local again.
//   - `up` comes once per endpoint before any other news of it, `lost` once and last. An endpoint
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
  /// Names the connection: 8 random bytes of the caller's line to that peer, then which dial of it, big-endian. A
  /// later one takes the place of an earlier one, whose writes may still lie in a socket: from then on they are not
  /// taken, so that none lands behind its own retry.
  Id128 connection;
  TimePoint deadline = kNever;
  wire::Ticket ticket{};  // of the wanted process's descriptor
};
inline bool same_line(const Id128& a, const Id128& b) {
  return std::equal(a.bytes.begin(), a.bytes.begin() + 8, b.bytes.begin());
}

struct Slice {
  uint64_t id = 0;
  Op op = Op::read;
  bool checksum = false;  // read: report the CRC32C of the bytes as they lie at `local`
  uint32_t buffer = 0;    // remote
  uint32_t snapshot = 0;  // version of the descriptor the engine looked at
  uint64_t offset = 0;    // remote
  std::span<std::byte> local;
  std::optional<uint32_t> immediate{};  // write: for the peer's owner, when this slice and no earlier is in place
};

struct SliceDone {
  uint64_t slice = 0;
  Code code = Code::ok;
  uint32_t crc32c = 0;
  std::string text{};   // why, when code is not ok
  bool unseen = false;  // code is not ok, and the peer never gets the slice's immediate: it may be tried again
};

/// A peer's memory mapped into this process.
struct MappedBuffer {
  uint32_t buffer = 0;
  std::shared_ptr<mem::SharedBuffer> mapping;  // shared with callers: their Views, and copies they make themselves
};

struct News {
  enum class Kind : uint8_t { up, lost, described, notify, immediate };
  Kind kind{};
  EndpointId endpoint = EndpointId::none;
  bool accepted = false;                           // up: the peer dialled us
  bool proven = false;                             // up: the peer belongs to the cluster (Handshake::proven)
  bool sealed = false;                             // up: its bytes are encrypted and authenticated
  size_t row = 0;                                  // up: of the transport in the table
  bool gone = false;                               // lost: proof that the wanted instance no longer listens there
  Code code = Code::ok;                            // lost
  wire::Mismatch mismatch = wire::Mismatch::none;  // lost
  bool no_listener = false;                        // lost: no program listens at the dialled address
  InstanceId instance{};                           // up
  std::string text{};                              // up: the peer's name; lost: why
  std::shared_ptr<const Descriptor> descriptor{};  // up, described
  std::vector<MappedBuffer> mappings{};            // up, described: new ones
  std::vector<std::byte> bytes{};                  // notify
  uint32_t immediate = 0;                          // immediate: of a write of the peer's that is in place
};

struct Reports {
  std::vector<SliceDone> done;
  std::vector<News> news;
  bool room = false;  // a lane that was full may have room again, though no slice of it is done
  bool empty() const { return done.empty() && news.empty() && !room; }
};

/// What the engine gives to its transports. Outlives them.
struct Home {
  const Options* options = nullptr;
  InstanceId instance{};
  Id128 boot{};
  wire::Ticket ticket{};  // never zero; told by Engine::describe() where there is no secret
  Access* access = nullptr;
  Poller* poller = nullptr;
  Tally* tally = nullptr;
  Rng rng;
  size_t endpoints_max = 0;
  bool reading_notifies = true;  // false while the caller has too many events to take
  uint64_t last_endpoint = 0;

  EndpointId next_endpoint() { return EndpointId{++last_endpoint}; }
  /// The current snapshot, with the uris of every listening transport.
  std::shared_ptr<const Descriptor> describe() const;
  std::vector<std::string> uris;
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// Starts accepting; returns the URI to hand to peers.
  virtual Result<std::string> listen() = 0;
  /// How it works here, where there is a choice, and why; for Engine::transports().
  virtual std::string remark() const { return {}; }
  /// `up` or `lost` follows, `lost` at the latest at the deadline.
  virtual EndpointId connect(const Dial& dial, Reports& out) = 0;
  virtual int lanes(EndpointId endpoint) const = 0;
  /// Takes slices from the front as far as the lane has room; returns how many. Room comes back with
  /// the next SliceDone of that endpoint, or with Reports::room.
  virtual size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) = 0;
  /// How large a slice for that lane should be at most: a slow one must not hold a large piece at the end of a batch.
  virtual uint64_t slice_bytes(EndpointId, int) const { return UINT64_MAX; }
  /// How many slices with an immediate that lane may be offered now; beyond, they wait without holding up others.
  virtual size_t immediates_ahead(EndpointId, int) const { return SIZE_MAX; }
  /// True: the slice's memory is free now and no SliceDone follows. False: a SliceDone (or `lost`) will.
  virtual bool cancel(EndpointId endpoint, int lane, uint64_t slice) = 0;
  virtual Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) = 0;
  /// The local descriptor changed: tell every peer.
  virtual void publish(Reports& out) = 0;
  /// Starts closing; `lost` with this code and text follows (tcp and shm: in the same outbox).
  virtual void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) = 0;
  /// Stops listening and closes every endpoint, saying goodbye. Nothing is touched afterwards.
  virtual void shutdown() = 0;
  /// A descriptor registered with the poller is ready.
  virtual void ready(uint64_t token, uint32_t events, Reports& out) = 0;
  /// Timers. Returns when it wants to be called next.
  virtual TimePoint tick(TimePoint now, Reports& out) = 0;
  /// Takes what devices have completed and runs no timer. Returns when tick() is due; TimePoint::min(): at once,
  /// because it is tick() that looks.
  virtual TimePoint look(Reports&) { return TimePoint::min(); }
  /// The engine is about to wait for descriptors: devices that were only polled must wake it from now on. Completions
  /// until then are reported; then the engine does not wait.
  virtual void doze(Reports&) {}
  /// Home::reading_notifies changed.
  virtual void pause_notifies(bool pause) = 0;
  /// Any thread, may block: makes the memory of a buffer usable here, before any peer is told of it.
  virtual Result<void> attach(BufferId, std::span<std::byte>, AccessClass) { return {}; }
  /// Any thread: forgets it. No slice uses it any more; peers may still try.
  virtual void detach(BufferId) {}
};

/// Whether two processes can use a transport, where to dial, and why (or why not).
struct Reach {
  bool usable = false;
  std::string uri;
  std::string reason;
  Code code = Code::invalid;  // not usable: `invalid` = an option is wrong, else what this machine lacks
  int mc = 0;                 // as in Error
};

/// One transport as the engine sees it before it runs.
struct TransportEntry {
  const char* scheme;
  const char* summary;
  bool dials_hosts;  // its URIs are scheme://host:port
  bool maps_memory;  // shared buffers of a connected peer are mapped here (News::mappings), so that callers may copy
  /// Code::invalid names the option of this transport that is wrong.
  Result<void> (*check)(const Options& options);
  /// Can this machine run it at all?
  Reach (*probe)(const Options& options);
  Reach (*reach)(const Descriptor& local, const Descriptor& remote);
  /// Can it move bytes of that remote buffer?
  bool (*covers)(const BufferInfo& buffer);
  /// `index` goes back into Poller::add so that ready() finds the transport.
  std::unique_ptr<Transport> (*make)(Home& home, uint8_t index);
};

/// Wraps a transport and injects the faults of the plan between it and the engine.
std::unique_ptr<Transport> inject_faults(std::unique_ptr<Transport> inner, const FaultPlan& plan);

}  // namespace mc::xfer

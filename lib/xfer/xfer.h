// The transfer engine: moves bytes between registered buffers of two processes, over whichever
// transport reaches (lib/transports has the table of them).
//
//   instance    random per process start and carried in every handshake: a name is an address, an
//               instance is an identity. A peer that restarted under its old name is refused.
//               It is public. Connections count as an instance's when they are made to the address in its
//               descriptor, by a process of our user over shm, or by one that proves the cluster's secret;
//               any other one (with Options::insecure) is a peer of its own, whose claim proves nothing.
//   buffer      registered range with an access class; the set of them is this process's segment,
//               described by an immutable, versioned snapshot that peers receive when they connect
//   batch       unit that a caller submits and waits for: requests to one or more peers, one deadline.
//               The engine cuts requests into slices and binds them late to the lanes of a peer
//   notify      up to 4 KiB, delivered in order per peer while its connection lives
//   immediate   32 bits that a write may carry: the peer is told them once, when all bytes of that write are there
//
// Threads: an Engine runs one thread of its own that owns all sockets and slices; with Options::spin a
// thread in submit() or poll() stands in for it, so that a transfer needs no change of threads. Every
// method may be called from any thread; events are taken by one thread at a time (poll). Nothing calls back.
//
// Deadlines are not cancellation (papers: RDMA notes, A9.7). A batch whose deadline passes is reported
// at once, but its buffers stay quarantined until no transport can touch them: `close` says when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "wire/xfer_frame.h"

namespace mc::mem {
class SharedBuffer;
}

namespace mc::xfer {

using wire::AccessClass;
using wire::BufferInfo;
using Descriptor = wire::XferDescriptor;

enum class BufferId : uint32_t { none = 0 };
enum class PeerId : uint64_t { none = 0 };
enum class BatchId : uint64_t { none = 0 };
enum class Op : uint8_t { read, write };  // read: remote -> local; write: local -> remote

/// urgent: metadata, the first layers; served before bulk, which still moves a slice every 10 ms.
enum class TransferClass : uint8_t { urgent, bulk };
inline constexpr size_t kTransferClasses = 2;

inline constexpr size_t kNotifyBytesMax = wire::kNotifyBytesMax;
inline constexpr size_t kBatchRequestsMax = 65536;

/// Faults to inject between the engine and its transports; all zero = none. See transport_fault.cc.
struct FaultPlan {
  uint64_t seed = 0;
  double fail_submit = 0;      // probabilities per slice
  double fail_completion = 0;  // reported as io after the bytes moved
  double delay = 0;
  double drop_completion = 0;
  double duplicate_completion = 0;
  double corrupt = 0;    // flips a byte of a finished read
  double lose_peer = 0;  // closes the connection instead of posting
  // Limits of a lane, as slow lanes and peers without credit have them.
  uint32_t slices_max = 0;                   // in flight; 0: what it has room for
  std::optional<uint32_t> immediates_max{};  // of those with an immediate; 0: none, ever
  Duration delay_for = 1ms;
  Duration lose_nic{};  // rdma: this often the first device is taken to have failed; see lib/xfer_rdma
  bool any() const {
    return fail_submit + fail_completion + delay + drop_completion + duplicate_completion + corrupt + lose_peer > 0 ||
           slices_max > 0 || immediates_max;
  }
};

struct Options {
  std::string name = "node";             // this node's name, at most 64 bytes
  InstanceId instance{};                 // zero = draw a random one
  std::string transport = "auto";        // "auto", or a comma-separated list of schemes in order of preference
  std::string tcp_bind = "127.0.0.1:0";  // host:port of the tcp listener; port 0 = any
  std::string tcp_advertise;             // host:port told to peers when it differs from the bound one
  std::string shm_folder;                // private folder for the shm socket; empty = an abstract name
  std::string shm_path;                  // absolute path of the shm socket, in place of one made in shm_folder
  std::string secret;                    // 32 bytes shared by the cluster
  bool local_secret = false;             // it is shared on this host alone: no tcp or rdma off loopback with it
  bool insecure = false;                 // tcp and rdma without a secret, for strangers too
  std::string rdma_bind;                 // host:port of the rdma set-up listener; empty = tcp_bind's host, any port
  std::string rdma_advertise;            // as tcp_advertise; empty = tcp_advertise's host
  std::string rdma_devices;              // "mlx5_0,mlx5_1:1": devices or ports to use; empty = every usable one
  int rdma_gid_index = -1;               // of every port; -1 = chosen by rank and by what the peer has
  int rdma_lanes = 2;                    // queue pairs per path, 1 to 4
  size_t rdma_pairs_max = 1024;          // queue pairs of the process; beyond, idle connections rest
  int rdma_mtu_max = 0;                  // bytes; 0 = as large as both ports allow
  int rdma_retry = 3;                    // of a packet, 0 to 6: 7 would mean for ever on some devices
  int rdma_timeout = 14;                 // of a packet: 4.096 us x 2^n
  int rdma_traffic_class = 0;
  bool rdma_sends = true;           // notifies go over queue pairs while a path is up; else over the socket
  uint64_t rdma_pace = 0;           // bytes/s that a path may post, to spare a fabric; 0 = no limit
  Duration rdma_cooldown_min = 1s;  // of a path after a fault: doubles up to the maximum
  Duration rdma_cooldown_max = 60s;
  Duration rdma_blackout = 3s;    // without any usable path for this long the connection is lost
  std::string tcp_io = "auto";    // how tcp moves bytes: "epoll", "uring" (where the kernel gives one), "auto" = epoll
  std::string tcp_seal = "auto";  // encrypt streams: "on", "off", "auto" = where they leave loopback and there is a
                                  // secret; when one side does and the other may. Also rdma's set-up socket
  int tcp_streams = 0;            // data streams per peer; 0 = min(4, cores / 2), at least 1
  size_t slice_bytes_min = size_t{64} << 10;
  size_t slice_bytes_max = size_t{1} << 20;
  size_t here_bytes_max = size_t{1} << 20;  // shm: submit() itself copies batches up to this; larger go to the engine
  bool payload_crc = true;                  // tcp: payloads carry a CRC32C, except reads that name their own to expect,
                                            // and except on sealed streams
  int attempts_max = 8;                     // per slice, within the batch's deadline
  Duration connect_timeout = 5s;            // of one attempt, handshake included
  Duration reconnect_timeout = 5s;          // a lost peer is dialled again for this long even without work for it
  Duration backoff_min = 50ms;              // reconnecting: doubles with jitter up to backoff_max
  Duration backoff_max = 5s;
  Duration stall_timeout = 5s;   // a lane with work and no progress for this long is closed
  Duration drain_grace = 500ms;  // after a deadline, how long a lane may take to let go of memory
  Duration spin = 0ns;           // poll() and the engine's thread poll devices this long before they sleep
  size_t peers_max = 1024;
  size_t batches_max = 4096;  // submitted and not yet closed
  size_t events_max = 8192;   // waiting for poll; full = peers' notifies are no longer read
  FaultPlan faults;
};

struct Buffer {
  std::string name;  // "kv", "landing:d0": at most 64 bytes, unique among live buffers
  AccessClass access = AccessClass::private_memory;
  InstanceId writer{};  // landing: the only peer that may write; zero = any
};

struct Request {
  Op op = Op::read;
  PeerId peer = PeerId::none;
  std::span<std::byte> local;        // inside a registered buffer; its size is the length of the request
  uint32_t buffer = 0;               // remote buffer id, from the peer's descriptor
  uint64_t offset = 0;               // in the remote buffer
  std::optional<uint32_t> crc32c{};  // read: sum that the bytes must have; a mismatch is Code::corrupt
  TransferClass transfer_class = TransferClass::bulk;
  /// write of at least one byte: told to the peer (Event::Kind::immediate) when its bytes are in place there. Never
  /// twice: if the connection dies while the peer may or may not have got it, the request fails with
  /// peer_lost. Immediates of different requests come in any order.
  std::optional<uint32_t> immediate{};
};

struct RequestResult {
  Code code = Code::ok;
  uint64_t bytes = 0;   // moved; the length of the request when code is ok, else what is known to have moved
  uint32_t crc32c = 0;  // of a read that was given one to check
};

struct Event {
  enum class Kind : uint8_t {
    peer_up,         // connected (by us or by it); text = transport and why it was chosen, claimed
    peer_lost,       // its connection died, or connecting failed; code, text = why. After a death that is not
                     // `gone` the engine dials again: peer_up or a second peer_lost follows
    peer_changed,    // it sent a new descriptor
    batch_done,      // every request has its result; code = first failure, text names it
    batch_released,  // a batch that was done while quarantined: close() will now succeed
    notify,          // bytes
    immediate,       // the peer's write that carried it is in place
  };
  Kind kind{};
  PeerId peer = PeerId::none;
  BatchId batch = BatchId::none;
  uint64_t cookie = 0;  // batch_*: the caller's
  Code code = Code::ok;
  wire::Mismatch mismatch = wire::Mismatch::none;  // peer_lost: the setting that keeps the peers apart
  bool no_listener = false;                        // peer_lost: no program listens at the dialled address
  bool quarantined = false;                        // batch_done: a transport may still touch the buffers
  bool gone = false;     // peer_lost: that instance will never come back (dead, restarted, said goodbye)
  bool claimed = false;  // peer_up: a stranger (Options::insecure). Which instance it is was said, not proven
  std::string text;
  std::vector<std::byte> bytes;
  uint32_t immediate = 0;
};

/// A remote range mapped into this process: valid while the View lives, whatever the peer does. The
/// bytes are the peer's own pages: a lease on them must say that their content is valid.
class View {
 public:
  View() = default;
  View(std::span<const std::byte> bytes, std::shared_ptr<const void> mapping)
      : bytes_(bytes), mapping_(std::move(mapping)) {}
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> mapping_;  // shared: views outlive the connection that brought the mapping
};

/// A snapshot of every counter, for metrics and for tests of conservation.
struct Counters {
  struct Flow {
    std::string transport;
    uint64_t read_bytes = 0;     // pulled by us
    uint64_t written_bytes = 0;  // pushed by us
    uint64_t served_bytes = 0;   // sent to peers that read us (tcp; shm readers are not seen)
    uint64_t landed_bytes = 0;   // written by peers into our landing buffers (tcp)
    uint64_t slices = 0;
  };
  std::vector<Flow> flows;
  uint64_t batches_submitted = 0, batches_done = 0, batches_failed = 0, batches_open = 0;
  uint64_t requests_failed = 0, checksum_failures = 0;
  uint64_t slices_posted = 0, slices_retried = 0, slices_in_flight = 0, slices_failed_over = 0;
  uint64_t completions_unknown = 0;           // of slices that no longer exist: duplicates, or late after a cancel
  uint64_t urgent_bytes = 0, bulk_bytes = 0;  // moved by requests of each class, as read and written together
  uint64_t quarantined_bytes = 0;             // held by transports after their batch was reported
  uint64_t notifies_sent = 0, notifies_received = 0, immediates_received = 0;
  uint64_t connects = 0, accepts = 0, peers_lost = 0, peers_up = 0;
  uint64_t streams_sealed = 0;  // sockets of tcp and rdma whose handshake ended with sealing
  uint64_t requests_served = 0, requests_refused = 0;
  uint64_t rdma_pairs = 0;                                 // queue pairs granted now
  uint64_t rdma_sends = 0;                                 // notifies sent over queue pairs
  uint64_t rdma_evictions = 0, rdma_wakes = 0;             // connections that gave theirs up, and that got them back
  std::vector<std::pair<std::string, uint64_t>> failures;  // refusals and errors by reason, sorted, and how often
};

struct TransportEntry;

class Engine {
 public:
  /// Opens the listeners of the transports in `table`, which are in order of preference, and starts the thread.
  /// Code::invalid names the option; a transport that cannot run here is left out when Options::transport is auto,
  /// with its reason in transports(). The table outlives the engine.
  static Result<std::unique_ptr<Engine>> open(const Options& options, std::span<const TransportEntry* const> table);
  /// Says goodbye to peers, closes every connection, joins the thread. After it returns no transport
  /// touches any buffer; batches that were open are gone.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::string& name() const;
  InstanceId instance() const;
  /// One line a transport: "shm: shm://...", "tcp: tcp://127.0.0.1:41327 (epoll)" or "rdma: left out: ...".
  std::vector<std::string> transports() const;
  /// Where peers can dial, in order of preference: "shm://...", "tcp://127.0.0.1:41327".
  std::vector<std::string> uris() const;
  /// The snapshot to hand to peers by any authenticated way; opaque, at most 64 KiB.
  std::vector<std::byte> describe() const;

  /// `memory` must stay mapped until unregister() succeeds. Ranges may not overlap a live buffer.
  Result<BufferId> register_buffer(std::span<std::byte> memory, const Buffer& buffer);
  /// The same for a memfd arena, which same-host peers then read in place.
  Result<BufferId> register_buffer(mem::SharedBuffer& memory, const Buffer& buffer);
  /// Revokes at once (new requests are refused) and waits until no transport and no open batch uses
  /// the memory. Code::timeout: still in use, call again.
  Result<void> unregister(BufferId buffer, TimePoint deadline);

  /// Connects in the background, retrying until the deadline: peer_up or peer_lost follows (peer_up at
  /// once if already connected). With a descriptor only that very instance is accepted.
  Result<PeerId> connect(std::span<const std::byte> descriptor, TimePoint deadline);
  Result<PeerId> connect(const std::string& uri, TimePoint deadline);
  /// Another cluster secret from now on, 32 bytes; connections that stand were proven with the old one
  /// and stay. Code::invalid for another size, or when the engine was opened without a secret.
  Result<void> set_secret(const std::string& secret);
  /// Closes the connection and forgets the peer; its open requests fail with Code::cancelled.
  void disconnect(PeerId peer);
  /// The peer's latest snapshot; null before it was first up. Shared: readers keep what they looked at.
  std::shared_ptr<const Descriptor> descriptor(PeerId peer) const;
  /// Transport in use, e.g. "shm", or empty.
  std::string transport(PeerId peer) const;

  /// Queues the requests and returns; a batch of at most here_bytes_max bytes that only needs shm is
  /// copied at once, which is sooner than waking another thread. Code::invalid names the request that is wrong locally;
  /// a refusal by the peer comes back as that request's result. Code::busy when batches_max are open.
  Result<BatchId> submit(std::span<const Request> requests, TimePoint deadline, uint64_t cookie = 0);
  /// Results by request, once batch_done was seen; valid until close(). Empty before.
  std::span<const RequestResult> results(BatchId batch) const;
  /// Unfinished requests end with Code::cancelled; batch_done follows.
  void cancel(BatchId batch);
  /// Forgets the batch and hands its buffers back. Code::busy while requests run or memory is
  /// quarantined (batch_done, then batch_released tell); with a deadline, waits for that: Code::timeout.
  Result<void> close(BatchId batch);
  Result<void> close(BatchId batch, TimePoint deadline);

  /// Code::ok = queued for an open connection (it may still die). busy: its queue is full; peer_lost:
  /// not connected; invalid: more than kNotifyBytesMax.
  Code notify(PeerId peer, std::span<const std::byte> bytes);

  /// Zero-copy read of a peer on this host. Code::unsupported when it is not reached over shm or the
  /// buffer is not a shared arena: use a read request then.
  Result<View> map(PeerId peer, uint32_t buffer, uint64_t offset, uint64_t length) const;

  /// Readable while events wait; for the caller's own poll loop.
  int event_fd() const;
  /// Appends up to `max` events to `out`; waits until there is one or the deadline passes. Returns how
  /// many were added.
  size_t poll(std::vector<Event>& out, TimePoint deadline, size_t max = 64);

  Counters counters() const;

 private:
  class Core;
  explicit Engine(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace mc::xfer

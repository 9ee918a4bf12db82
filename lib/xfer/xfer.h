// The transfer engine moves bytes between registered buffers of two processes, over a transport that reaches the peer
// (lib/transports has the table).
//
//   instance    random number of a process start, carried in every handshake. A name is an address, and an
//               instance is an identity: a peer that restarted under its old name is refused. An instance is
//               public. A connection counts as the instance's when it was dialled at the address in the instance's
//               descriptor, comes from a process of this user over shm, or proves the cluster's secret.
//               Any other connection (with Options::insecure) is a peer of its own, whose claim proves nothing.
//   buffer      registered range with an access class. The buffers are this process's segment. An immutable,
//               versioned snapshot describes them, and peers receive it when they connect
//   batch       unit that a caller submits and waits for: requests to one or more peers, one deadline.
//               The engine cuts requests into slices and binds them late to the lanes of a peer
//   notify      up to 4 KiB, delivered in order per peer while its connection lives
//   immediate   32 bits that a write may carry. The peer gets them once, when all bytes of that write are in place
//
// Threads: an Engine runs one thread that owns all sockets and slices. With Options::spin, a thread in submit() or
// poll() runs its loop instead, so that a transfer needs no change of threads. Any thread may call any method, and one
// thread at a time takes events (poll). The engine makes no callbacks.
//
// Deadlines are not cancellation. A batch whose deadline passes is reported at once, but its buffers stay quarantined
// until no transport can touch them. close() tells when.
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

/// urgent: metadata and the first layers. Urgent goes before bulk, which still moves a slice every 10 ms.
enum class TransferClass : uint8_t { urgent, bulk };
inline constexpr size_t kTransferClasses = 2;

inline constexpr size_t kNotifyBytesMax = wire::kNotifyBytesMax;
inline constexpr size_t kBatchRequestsMax = 65536;

/// Faults between the engine and its transports, for tests; all zero = none. See transport_fault.cc.
struct FaultPlan {
  uint64_t seed = 0;
  double fail_submit = 0;      // probabilities for each slice
  double fail_completion = 0;  // the bytes move, but the completion says io
  double delay = 0;
  double drop_completion = 0;
  double duplicate_completion = 0;
  double corrupt = 0;    // a byte of a finished read is flipped
  double lose_peer = 0;  // the connection is closed instead of a post
  // Limits of a lane, to imitate slow lanes and peers without credit.
  uint32_t slices_max = 0;                   // slices in flight; 0: no limit
  std::optional<uint32_t> immediates_max{};  // slices in flight with an immediate; 0: none, ever
  Duration delay_for = 1ms;
  Duration lose_nic{};  // rdma: interval at which the first device is treated as failed; see lib/xfer_rdma
  bool any() const {
    return fail_submit + fail_completion + delay + drop_completion + duplicate_completion + corrupt + lose_peer > 0 ||
           slices_max > 0 || immediates_max;
  }
};

struct Options {
  std::string name = "node";             // name of this node, at most 64 bytes
  InstanceId instance{};                 // zero = draw a random instance
  std::string transport = "auto";        // "auto", or a comma-separated list of schemes in order of preference
  std::string tcp_bind = "127.0.0.1:0";  // host:port of the tcp listener; port 0 = any
  std::string tcp_advertise;             // host:port for peers when it differs from the bound one
  std::string shm_folder;                // folder for the shm socket, private to the user; empty = an abstract name
  std::string shm_path;                  // absolute path of the shm socket, in place of one made in shm_folder
  std::string secret;                    // 32 bytes shared by the cluster
  // The secret is shared on this host alone: it permits no tcp or rdma off loopback.
  bool local_secret = false;
  bool insecure = false;         // tcp and rdma without a secret, for strangers too
  std::string rdma_bind;         // host:port of the rdma set-up listener; empty = tcp_bind's host, any port
  std::string rdma_advertise;    // see tcp_advertise; empty = tcp_advertise's host
  std::string rdma_devices;      // "mlx5_0,mlx5_1:1": devices or ports to use; empty = every usable one
  int rdma_gid_index = -1;       // of every port; -1 = chosen by rank and by the indexes of the peer
  int rdma_lanes = 2;            // queue pairs per path, 1 to 4
  size_t rdma_pairs_max = 1024;  // queue pairs of the process; beyond, idle connections give theirs up
  int rdma_mtu_max = 0;          // bytes; 0 = the largest that both ports allow
  int rdma_retry = 3;            // retries of a packet, 0 to 6 (7 means for ever on some devices)
  int rdma_timeout = 14;         // time-out of a packet: 4.096 us x 2^n
  int rdma_traffic_class = 0;
  bool rdma_sends = true;           // notifies use queue pairs while a path is up, else the socket
  uint64_t rdma_pace = 0;           // bytes/s that a path may post; 0 = no limit
  Duration rdma_cooldown_min = 1s;  // pause of a path after a fault; doubles up to the maximum
  Duration rdma_cooldown_max = 60s;
  Duration rdma_blackout = 3s;  // the connection is lost after this long without a usable path
  std::string tcp_io = "auto";  // I/O calls of tcp: "epoll", "uring" (where the kernel has it), "auto" = epoll
  // Encryption of streams, rdma's set-up socket included: one of seal_names(). auto = on for streams that leave
  // loopback when there is a secret, and on when the peer has "on".
  std::string tcp_seal = "auto";
  int tcp_streams = 0;  // data streams per peer; 0 = min(4, cores / 2), at least 1
  size_t slice_bytes_min = size_t{64} << 10;
  size_t slice_bytes_max = size_t{1} << 20;
  // Shm: submit() itself copies batches up to this size; the engine copies larger ones.
  size_t here_bytes_max = size_t{1} << 20;
  // Tcp: payloads carry a CRC32C. Exceptions: reads that name their own expected sum, and sealed streams.
  bool payload_crc = true;
  int attempts_max = 8;             // for each slice, within the deadline of the batch
  Duration connect_timeout = 5s;    // for one attempt, handshake included
  Duration reconnect_timeout = 5s;  // a lost peer is dialled again for this long even when no work waits for it
  Duration backoff_min = 50ms;      // first pause before a reconnect; doubles with jitter up to backoff_max
  Duration backoff_max = 5s;
  Duration stall_timeout = 5s;   // a lane that has work and makes no progress for this long is closed
  Duration drain_grace = 500ms;  // time after a deadline in which a lane must release memory
  Duration spin = 0ns;           // time that poll() and the engine's thread poll devices before they sleep
  size_t peers_max = 1024;
  size_t batches_max = 4096;  // limit of batches that are submitted and not closed
  size_t events_max = 8192;   // waiting events beyond which peers' notifies are no longer read
  FaultPlan faults;
};

/// The values of Options::tcp_seal: auto, off and on.
std::vector<std::string_view> seal_names();

struct Buffer {
  std::string name;  // such as "kv" or "landing:d0": at most 64 bytes, unique among live buffers
  AccessClass access = AccessClass::private_memory;
  InstanceId writer{};  // landing: the only peer that may write; zero = any peer
};

struct Request {
  Op op = Op::read;
  PeerId peer = PeerId::none;
  std::span<std::byte> local;        // part of a registered buffer; its size is the length of the request
  uint32_t buffer = 0;               // remote buffer id, from the peer's descriptor
  uint64_t offset = 0;               // in the remote buffer
  std::optional<uint32_t> crc32c{};  // read: checksum that the bytes must have; a mismatch is Code::corrupt
  TransferClass transfer_class = TransferClass::bulk;
  /// write of at least one byte: given to the peer (Event::Kind::immediate) when the bytes are in place. It is given at
  /// most once: when the connection is lost and the peer may have got it, the request fails with peer_lost. Immediates
  /// of different requests arrive in any order.
  std::optional<uint32_t> immediate{};
};

struct RequestResult {
  Code code = Code::ok;
  uint64_t bytes = 0;   // bytes moved: the length of the request when code is ok, else the known part
  uint32_t crc32c = 0;  // checksum of a read that named an expected one
};

struct Event {
  enum class Kind : uint8_t {
    peer_up,  // connected by either side; text = transport and why it was chosen, claimed
    // The connection was lost, or connecting failed; code, text = cause. After a loss without `gone` the engine dials
    // again: peer_up or a second peer_lost follows.
    peer_lost,
    peer_changed,    // the peer sent a new descriptor
    batch_done,      // every request has its result; code = first failure, text names it
    batch_released,  // a batch that was done while quarantined can be closed now
    notify,          // bytes
    immediate,       // the peer's write that carried it is in place
  };
  Kind kind{};
  PeerId peer = PeerId::none;
  BatchId batch = BatchId::none;
  uint64_t cookie = 0;  // batch_*: cookie of submit()
  Code code = Code::ok;
  wire::Mismatch mismatch = wire::Mismatch::none;  // peer_lost: the setting on which the peers differ
  bool no_listener = false;                        // peer_lost: no program listens at the dialled address
  bool quarantined = false;                        // batch_done: a transport may still touch the buffers
  bool gone = false;       // peer_lost: the instance will never come back (dead, restarted, said goodbye)
  bool claimed = false;    // peer_up: a stranger (Options::insecure), which claimed its instance without proof
  bool networked = false;  // peer_up: over a transport that reaches other hosts
  std::string text;
  std::vector<std::byte> bytes;
  uint32_t immediate = 0;
};

/// A remote range that is mapped into this process. It is valid while the View lives, even when the peer dies. The
/// bytes are the peer's own pages, so the caller needs a lease of the peer for their content.
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

/// A snapshot of every counter, for metrics and for tests that the counts balance.
struct Counters {
  struct Flow {
    std::string transport;
    uint64_t read_bytes = 0;     // bytes that this process has read
    uint64_t written_bytes = 0;  // bytes that this process has written
    uint64_t served_bytes = 0;   // bytes sent to peers that read this process (tcp; readers over shm are invisible)
    uint64_t landed_bytes = 0;   // bytes that peers wrote into landing buffers here (tcp)
    uint64_t slices = 0;
  };
  std::vector<Flow> flows;
  uint64_t batches_submitted = 0, batches_done = 0, batches_failed = 0, batches_open = 0;
  uint64_t requests_failed = 0, checksum_failures = 0;
  uint64_t slices_posted = 0, slices_retried = 0, slices_in_flight = 0, slices_failed_over = 0;
  // Completions of slices that no longer exist: duplicates, or late after a cancel.
  uint64_t completions_unknown = 0;
  uint64_t urgent_bytes = 0, bulk_bytes = 0;  // bytes of requests of each class, reads and writes together
  uint64_t quarantined_bytes = 0;             // bytes that transports held after their batch was reported
  uint64_t notifies_sent = 0, notifies_received = 0, immediates_received = 0;
  uint64_t connects = 0, accepts = 0, peers_lost = 0, peers_up = 0;
  uint64_t streams_sealed = 0;  // sockets of tcp and rdma whose handshake ended with sealing
  uint64_t requests_served = 0, requests_refused = 0;
  uint64_t rdma_pairs = 0;  // queue pairs that are granted now
  uint64_t rdma_sends = 0;  // notifies sent over queue pairs
  // Connections that gave up their queue pairs, and that got them back.
  uint64_t rdma_evictions = 0, rdma_wakes = 0;
  std::vector<std::pair<std::string, uint64_t>> failures;  // refusals and errors: reason and count, sorted by reason
};

struct TransportEntry;

class Engine {
 public:
  /// Opens the listeners of the transports in `table`, which is in order of preference, and starts the thread.
  /// Code::invalid names the wrong option. With Options::transport = auto a transport that cannot run here is left out,
  /// and transports() has the reason. The table must outlive the engine.
  static Result<std::unique_ptr<Engine>> open(const Options& options, std::span<const TransportEntry* const> table);
  /// Says goodbye to peers, closes every connection, and joins the thread. Afterwards no transport touches any buffer.
  /// Open batches are dropped.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::string& name() const;
  InstanceId instance() const;
  /// One line for each transport: "shm: shm://...", "tcp: tcp://127.0.0.1:41327 (epoll)" or "rdma: left out: ...".
  std::vector<std::string> transports() const;
  /// The addresses for peers, in order of preference: "shm://...", "tcp://127.0.0.1:41327".
  std::vector<std::string> uris() const;
  /// The snapshot for peers, to be sent over any authenticated channel; opaque, at most 64 KiB.
  std::vector<std::byte> describe() const;

  /// `memory` must stay mapped until unregister() succeeds. Its range may not overlap a live buffer.
  Result<BufferId> register_buffer(std::span<std::byte> memory, const Buffer& buffer);
  /// Registers a memfd arena, which peers on this host read in place.
  Result<BufferId> register_buffer(mem::SharedBuffer& memory, const Buffer& buffer);
  /// Refuses new requests at once and waits until no transport and no open batch uses the memory. Code::timeout: the
  /// memory is still in use, call again.
  Result<void> unregister(BufferId buffer, TimePoint deadline);

  /// Connects in the background and retries until the deadline. peer_up or peer_lost follows (peer_up at once if
  /// connected already). With a descriptor only that instance is accepted.
  Result<PeerId> connect(std::span<const std::byte> descriptor, TimePoint deadline);
  Result<PeerId> connect(const std::string& uri, TimePoint deadline);
  /// Changes the cluster secret (32 bytes) for new connections. Open connections stay. Code::invalid for another size,
  /// or when the engine was opened without a secret.
  Result<void> set_secret(const std::string& secret);
  /// Closes the connection and removes the peer. Its open requests fail with Code::cancelled.
  void disconnect(PeerId peer);
  /// The latest snapshot of the peer; null before the peer was first up. Readers share it, and it never changes.
  std::shared_ptr<const Descriptor> descriptor(PeerId peer) const;
  /// The transport in use, such as "shm", or empty.
  std::string transport(PeerId peer) const;

  /// Queues the requests and returns. A batch of at most here_bytes_max bytes that only needs shm is copied at once,
  /// which is faster than waking another thread. Code::invalid names a request that is wrong locally. A refusal by the
  /// peer is the result of that request. Code::busy when batches_max are open.
  Result<BatchId> submit(std::span<const Request> requests, TimePoint deadline, uint64_t cookie = 0);
  /// The results by request after batch_done, valid until close(). Empty before.
  std::span<const RequestResult> results(BatchId batch) const;
  /// Ends unfinished requests with Code::cancelled. batch_done follows.
  void cancel(BatchId batch);
  /// Removes the batch and returns its buffers to the caller. Code::busy while requests run or memory is quarantined
  /// (batch_done and batch_released report the end). With a deadline it waits for the end: Code::timeout.
  Result<void> close(BatchId batch);
  Result<void> close(BatchId batch, TimePoint deadline);

  /// Queues a notify. Code::ok = queued for an open connection, which may still be lost. busy: the queue is full.
  /// peer_lost: not connected. invalid: more than kNotifyBytesMax.
  Code notify(PeerId peer, std::span<const std::byte> bytes);

  /// Zero-copy read from a peer on this host. Code::unsupported when the peer is not reached over shm or the buffer is
  /// no shared arena; use a read request then.
  Result<View> map(PeerId peer, uint32_t buffer, uint64_t offset, uint64_t length) const;

  /// Readable while events wait; for a poll loop of the caller.
  int event_fd() const;
  /// Appends up to `max` events to `out` and returns their number. Waits for one until the deadline.
  size_t poll(std::vector<Event>& out, TimePoint deadline, size_t max = 64);

  Counters counters() const;

 private:
  class Core;
  explicit Engine(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace mc::xfer

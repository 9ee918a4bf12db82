// The control plane carries messages between a node, its conductor and its peers. A Hub binds ROUTER endpoints,
// connects DEALERs to peers, and moves opaque bodies inside wire::Envelope. It owns one thread; the node's control
// loop talks to it through bounded rings and waits on event_fd().
//
//   control loop                       Hub thread                         network
//   connect(uri) ---- command ring --> DEALER per link   <-- heartbeats --> ROUTER of the peer
//   send(link, ...)                    ROUTER per listen uri <-----------   DEALERs of peers
//   next() <--------- event ring  ---- Received, LinkUp, LinkLost, LinkFailed, RequestFailed, SendFailed
//
// A link is a conversation with one address (outgoing) or one instance (incoming). It is up once a valid message of the
// peer has arrived. It is lost when the peer is silent for `dead_after`, or shortly after its connection broke. When
// another instance answers at the address, the owner gets LinkLost(old) and LinkUp(new): an instance is an identity, a
// name is only an address. A replaced connection is a LinkLost too. Outgoing links reconnect for ever with jittered
// back-off, so start order does not matter, and a peer that hangs up at once is not dialled in a tight loop. Between
// LinkUp and LinkLost every message arrives in order or ends in a SendFailed. Both rings, the messages and bytes queued
// for a link, message size and pending requests are bounded. A full one answers busy. A message that a dead or full
// link loses is reported, never kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/uri.h"
#include "product/doors.h"
#include "wire/envelope.h"

namespace mc::ctl {

using Bytes = std::vector<uint8_t>;
using LinkId = uint64_t;  // never reused within a hub; 0 = none

// ---- keys --------------------------------------------------------------------------------------

/// One file for a whole cluster (mc-conductor keygen): CURVE key pairs of the listening and of the
/// connecting side, and the data plane's secret. Text is Z85.
struct KeySet {
  std::string server_public, server_secret;
  std::string client_public, client_secret;
  std::string data_secret;  // 32 random bytes as Z85, for xfer's handshake
  bool operator==(const KeySet&) const = default;
};

Result<KeySet> new_key_set();
std::string format_key_set(const KeySet& keys);
/// Writes the keys to `fd`. A regular file becomes readable by its owner alone (0600), so that `keygen > cluster.key`
/// makes a file that load_key_set accepts. For tests.
Result<void> write_key_set(const KeySet& keys, int fd);
/// MC1006 names the line of a text that is not a key set of this form.
Result<KeySet> parse_key_set(std::string_view text);
/// Reads the file. Refuses (MC1006) a file that other users may read, that this user does not own, or that is no
/// regular file.
Result<KeySet> load_key_set(const std::string& path);

/// The key set that this user's programs share on this machine without a flag: local.key in the run directory, made by
/// the first of them that starts. MC1006 as in load_key_set.
Result<KeySet> local_key_set(const std::string& run_dir);

/// The reach of a program's keys: those of --auth are valid everywhere, those of the run directory on this machine.
enum class Keys : uint8_t { none, machine, cluster };
/// MC1005 when strangers can reach `uri`, the keys are not valid there, and --insecure is not given. Every user of
/// this machine can reach tcp on loopback; the private run directory protects ipc.
Result<void> check_exposure(Door door, const Uri& uri, Keys keys, bool insecure, Side side = Side::listens);

// ---- places ------------------------------------------------------------------------------------

/// Removes leftovers of killed programs from the run directory: sockets that no process holds, and half-written files.
/// Files younger than a minute stay, because a program may be making them.
void sweep_run_dir(const std::string& directory);
/// $MCT_RUN_DIR, else $XDG_RUNTIME_DIR/mct, else /tmp/mct-<uid>; made with mode 0700 when missing.
/// MC1007 when it is not a directory of this user's alone. `environment` is getenv in programs.
Result<std::string> run_dir(const char* (*environment)(const char*));
/// Replaces a leading "$MCT_RUN_DIR" in the path of an ipc URI; other places stay as they are.
Result<Uri> resolve_endpoint(std::string_view text, const char* (*environment)(const char*));

// ---- events ------------------------------------------------------------------------------------

struct Received {
  LinkId link = 0;
  wire::Envelope envelope;
  Bytes body;
  TimePoint arrived;
  /// arrived + envelope.deadline; kNever without one.
  TimePoint deadline = kNever;
};

struct LinkUp {
  LinkId link = 0;
  bool outgoing = false;
  NodeId name;  // the peer's present name
  InstanceId instance;
  uint64_t epoch = 0;
  std::string address;  // the URI of an outgoing link, or the remote address of an incoming one
};

struct LinkLost {
  LinkId link = 0;
  NodeId name;
  InstanceId instance;
  std::string why;
};

/// An outgoing link cannot connect. Each cause is reported once until the link is up; the link goes on trying.
/// `fatal`: waiting cannot help (wrong key, other version, another protocol).
struct LinkFailed {
  LinkId link = 0;
  bool fatal = false;
  Error error;  // MC2101, MC2102, MC2103, MC2106 or MC2107, with where
};

/// The reply to request `id` will not come: timeout, peer_lost, busy or cancelled.
struct RequestFailed {
  uint64_t id = 0;
  LinkId link = 0;
  Error error;
};

/// Message `id` was dropped because the link's queue is full (busy) or the link is down (peer_lost).
struct SendFailed {
  uint64_t id = 0;
  LinkId link = 0;
  Error error;
};

using Event = std::variant<Received, LinkUp, LinkLost, LinkFailed, RequestFailed, SendFailed>;

// ---- hub ---------------------------------------------------------------------------------------

struct HubOptions {
  NodeId name;  // "" until the conductor gives one: see set_name
  InstanceId instance;
  uint64_t epoch = 0;             // start of the process, unix ms
  std::vector<Uri> listen;        // ipc or tcp; tcp port 0 picks a free one
  std::optional<KeySet> keys;     // with keys every tcp endpoint, bound or connected, uses CURVE
  bool local_keys = false;        // the keys come from local_key_set
  bool insecure = false;          // consent to tcp without keys that count there
  Duration heartbeat = 200ms;     // silence after which a heartbeat is sent
  Duration dead_after = 2900ms;   // silence after which a peer is dead; a process that ends breaks its connection
  Duration broken_grace = 300ms;  // silence after which a peer is dead once its connection broke
  Duration handshake = 3s;        // time from the connection to a valid message; later is LinkFailed
  Duration reconnect = 100ms;     // pauses between connections grow from half of it to 50 times it, jittered
  size_t ring = 4096;             // commands, and events, between the two threads
  size_t link_queue = 1024;       // messages waiting for one link
  size_t link_queue_bytes = size_t{64} << 20;
  size_t message_bytes_max = size_t{16} << 20;
  size_t request_max = 4096;                  // requests without an answer
  size_t connections_max = 4096;              // incoming connections, divided among the endpoints of `listen`
  uint64_t seed = 0;                          // seed of the jitter
  uint32_t version = wire::kEnvelopeVersion;  // tests use another one
};

struct HubStats {
  uint64_t sent = 0, received = 0, sent_bytes = 0, received_bytes = 0;
  uint64_t garbage = 0;  // frames of another protocol or out of turn, dropped
  uint64_t wrong_version = 0;
  uint64_t wrong_instance = 0;  // messages for a process that has ended
  uint64_t dropped = 0;         // SendFailed
  uint64_t handshakes_refused = 0;
  uint64_t links_up = 0;             // now
  uint64_t connections = 0;          // incoming connections, now
  uint64_t connections_refused = 0;  // beyond connections_max
};

/// send, request, reply, connect, disconnect, set_keys and set_name: any thread. next, wait: one owner thread.
class Hub {
 public:
  /// Binds, then starts the thread. MC5001 port or socket in use, MC5002 the OS refuses, MC1005
  /// exposure without keys.
  static Result<Hub> open(HubOptions options);
  Hub(Hub&&) noexcept;
  Hub& operator=(Hub&&) noexcept;
  /// Stops the thread within milliseconds. Unsent messages are dropped.
  ~Hub();

  /// The listen URIs with their real ports, in the order given.
  const std::vector<Uri>& bound() const;

  Result<LinkId> connect(const Uri& uri);
  /// Ends an outgoing link, without a LinkLost, or removes an incoming one.
  Result<void> disconnect(LinkId link);

  /// Queues a message and returns its id. Code::busy when the command ring is full, Code::invalid (MC2111) beyond
  /// message_bytes_max. `to` zero: any instance at the other end. Delivery is not confirmed.
  Result<uint64_t> send(LinkId link, std::string_view type, Bytes body, InstanceId to = {},
                        std::optional<Duration> deadline = {});
  /// Sends like send(). Exactly one of Received (with re == id) or RequestFailed follows within `deadline`.
  Result<uint64_t> request(LinkId link, std::string_view type, Bytes body, Duration deadline, InstanceId to = {});
  /// Answers a message on its link, to the instance that sent it.
  Result<uint64_t> reply(const Received& to, std::string_view type, Bytes body);

  /// Replaces the keys (a key file was rotated). Tcp endpoints are bound again. Links made with the old keys end, and
  /// reconnect once their peers have the new ones. Code::invalid when the hub was opened without keys, Code::busy when
  /// the command ring is full.
  Result<void> set_keys(const KeySet& keys);

  /// Sets the name in later envelopes.
  void set_name(const NodeId& name);

  /// Readable while events may wait. next() clears it.
  int event_fd() const;
  std::optional<Event> next();
  /// Calls next() and waits for an event until the deadline.
  std::optional<Event> wait(TimePoint deadline);

  HubStats stats() const;

 private:
  class State;
  explicit Hub(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mc::ctl

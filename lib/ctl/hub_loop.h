// Inside the hub: what both threads share, and the loop that owns every socket and link.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/fd.h"
#include "base/ring.h"
#include "base/rng.h"
#include "ctl/backoff.h"
#include "ctl/ctl.h"
#include "ctl/zmq_socket.h"

namespace mc::ctl {

inline constexpr std::string_view kPing = "ctl.ping";
inline constexpr size_t kRetiredMax = 1024;   // connections remembered as replaced
inline constexpr size_t kIncomingMax = 4096;  // links from outside; more are dropped as garbage

/// Back-off of an outgoing link, 50 ms to 5 s unless the options say otherwise.
inline Backoff link_backoff(const HubOptions& options) {
  return {options.reconnect / 2, options.reconnect * 50};
}

struct ConnectCommand {
  LinkId link = 0;
  Uri uri;
};
struct DisconnectCommand {
  LinkId link = 0;
};
struct SendCommand {
  LinkId link = 0;
  uint64_t id = 0;
  TimePoint expires = kNever;  // of a request
  Bytes envelope, body;
};
struct KeysCommand {
  KeySet keys;
};
using Command = std::variant<std::monostate, ConnectCommand, DisconnectCommand, SendCommand, KeysCommand>;

/// Options of a listening socket at `uri`.
SocketOptions router_options(const HubOptions& options, const std::optional<KeySet>& keys, const Uri& uri);

/// Ids of requests are odd, so a reply that comes after its request has failed is recognised.
constexpr bool is_request(uint64_t id) {
  return (id & 1) != 0;
}

struct Shared {
  explicit Shared(HubOptions o) : options(std::move(o)), commands(options.ring), events(options.ring) {}

  const HubOptions options;
  MpscRing<Command> commands;
  SpscRing<Event> events;
  EventFd wake;         // commands are waiting
  EventFd event_ready;  // events are waiting
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> next_link{1};
  std::atomic<uint64_t> next_message{1};
  std::mutex mutex;  // guards name and stats
  NodeId name;
  HubStats stats;

  NodeId name_now() {
    const std::lock_guard lock(mutex);
    return name;
  }
};

class Loop {
 public:
  Loop(Shared& shared, Context context, std::vector<Socket> routers, std::optional<Socket> zap);
  void run();

 private:
  using RouteKey = std::pair<size_t, Bytes>;  // router, routing id

  struct Link {
    LinkId id = 0;
    bool outgoing = false;
    Uri uri;                       // outgoing
    std::optional<Socket> dealer;  // outgoing
    RouteKey route;                // incoming
    int fd = -1;                   // incoming: its connection, as far as known
    std::string address;
    bool connected = false;  // outgoing: handshake done
    bool up = false;
    bool gone = false;  // incoming and lost: erased at the end of the turn
    NodeId name;
    InstanceId instance;
    uint64_t epoch = 0;
    TimePoint heard{}, sent{};
    TimePoint since{};             // up: since then; outgoing and connected: since then
    TimePoint down_since{};        // outgoing and not up
    TimePoint reopen_at = kNever;  // outgoing: without a socket until then
    Backoff backoff;               // outgoing
    TimePoint broken_at = kNever;  // incoming: its connection seems to have gone while up
    int reported = 0;              // MC number of the last LinkFailed since it was up
    int handshake_failures = 0;    // in a row, without a reason given
    bool garbage_logged = false;
    std::deque<SendCommand> queue;
    size_t queue_bytes = 0;
  };
  struct Request {
    LinkId link = 0;
    TimePoint expires{};
  };

  // hub_loop.cc: one turn
  void turn();
  void read_sockets();
  void run_commands();
  void tick(TimePoint now);
  void tick_link(Link& link, TimePoint now);
  TimePoint next_wakeup(TimePoint now) const;
  void count_connections();
  void publish_stats();
  void emit(Event event);
  void flush_events();

  // hub_links.cc: links
  void connect(ConnectCommand command);
  void disconnect(LinkId id);
  void open_dealer(Link& link);
  void set_keys(KeySet keys);
  void bind_again(TimePoint now);
  void send(SendCommand command);
  Code transmit(Link& link, std::span<const uint8_t> envelope, std::span<const uint8_t> body);
  void flush(Link& link);
  void ping(Link& link);
  void drop(const SendCommand& command, Code code, std::string what);
  void lose(Link& link, std::string why);
  void reopen_later(Link& link);
  void retire(const RouteKey& route);
  void fail_requests(LinkId link, const Error& error);
  void report(Link& link, bool fatal, Error error);
  void expire_requests(TimePoint now);

  // hub_input.cc: what comes from the network
  void on_router(size_t router, SocketMessage message);
  void on_dealer(Link& link, SocketMessage message);
  void on_zap(SocketMessage message);
  void on_router_event(size_t router, const SocketEvent& event);
  void on_dealer_event(Link& link, const SocketEvent& event);
  std::optional<wire::Envelope> decode(const Bytes& frame, Link* link, std::string_view address, bool& wrong_version);
  Link* incoming(RouteKey route, const wire::Envelope& envelope, const SocketMessage& message);
  bool hear(Link& link, const wire::Envelope& envelope);
  void deliver(Link& link, wire::Envelope envelope, Bytes body);

  Shared& shared_;
  const HubOptions& options_;
  std::optional<KeySet> keys_;
  Context context_;  // outlives the sockets below
  std::vector<Socket> routers_;
  std::map<size_t, TimePoint> unbound_;  // routers whose address is not free yet -> next try
  std::optional<Socket> zap_;
  std::map<LinkId, Link> links_;
  std::map<RouteKey, LinkId> routes_;
  std::set<RouteKey> retired_;  // replaced by newer connections: what still comes by them is dropped
  std::deque<RouteKey> retired_order_;
  std::map<uint64_t, Request> requests_;  // ids grow, so this is also the order of asking
  std::deque<Event> outbox_;              // what the event ring had no room for; reading pauses meanwhile
  std::vector<PollItem> items_;
  std::vector<LinkId> item_links_;
  HubStats stats_;
  std::vector<uint64_t> refused_;  // by each router, as last looked at
  Rng rng_;
  TimePoint turn_start_{};
  TimePoint planned_{};  // when this turn was due
  bool reading_ = true;  // this turn: the event ring had room
};

}  // namespace mc::ctl

// The links of a hub: conversations with one address (outgoing) or one instance (incoming), from the first message to
// the loss. ctl.h states the guarantees to the hub's owner. Owned by the loop's thread.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ctl/backoff.h"
#include "ctl/hub_requests.h"
#include "ctl/hub_routers.h"

namespace mc::ctl {

/// Back-off of an outgoing link, 50 ms to 5 s unless the options say otherwise.
inline Backoff link_backoff(const HubOptions& options) {
  return {options.reconnect / 2, options.reconnect * 50};
}

/// The end of a link to an address that the owner named: it opens sockets until one connects.
struct DialledEnd {
  Uri uri;
  std::optional<Socket> dealer;
  bool connected = false;  // handshake done
  TimePoint down_since{};  // while the link is not up
  TimePoint reopen_at = kNever;
  Backoff backoff;
  int handshake_failures = 0;  // consecutive failures without a reason from the peer
};

/// The end of a link that a peer opened to a listening socket.
struct AcceptedEnd {
  RouteKey route;
  int fd = -1;                   // the descriptor of its connection, -1 when unknown
  TimePoint broken_at = kNever;  // time at which its connection seemed to break
};

/// The numbers of the last messages of a link over tcp with keys, one for each direction; 0 = none yet. CURVE
/// (rfc.zeromq.org/spec/26) detects changed and repeated frames but not missing ones: libzmq takes each number that is
/// greater than the last one. An attacker on the path could leave out messages, or the body of one and the envelope of
/// the next. So each envelope has the number of its message and a digest of its body.
struct MessageNumbers {
  uint64_t sent = 0, heard = 0;
};

struct Link {
  LinkId id = 0;
  bool outgoing = false;
  DialledEnd dialled;    // of an outgoing link
  AcceptedEnd accepted;  // of an incoming link
  std::string address;
  bool up = false;
  bool gone = false;  // an incoming link that is lost; it is erased at the end of the turn
  NodeId name;
  InstanceId instance;
  uint64_t epoch = 0;
  MessageNumbers numbers;
  TimePoint heard{}, sent{};
  TimePoint since{};  // start of the present state; for outgoing links also of `connected`
  int reported = 0;   // MC number of the last LinkFailed since it was up
  bool garbage_logged = false;
  std::deque<SendCommand> queue;
  size_t queue_bytes = 0;
};

class Links {
 public:
  /// All arguments must outlive the links.
  Links(Shared& shared, Context& context, Routers& routers, Events& events);

  /// Every link, also those that were lost in this turn. No call erases one before erase_gone().
  std::map<LinkId, Link>& all() { return links_; }
  Link* find(LinkId id);
  /// The link of a connection to a listening socket; null when it has none yet.
  Link* find(const RouteKey& route);
  /// Whether a newer connection of the same instance has replaced this one.
  bool retired(const RouteKey& route) const { return retired_.contains(route); }

  // ---- commands of the owner ----
  void connect(ConnectCommand command);
  void disconnect(LinkId id);
  void send(SendCommand command);
  /// Ends every link over tcp; outgoing ones connect again with these keys.
  void set_keys(const std::optional<KeySet>& keys);

  // ---- messages ----
  /// The link of the sending instance, made when it is new. Null: the message is dropped.
  Link* incoming(RouteKey route, const wire::Envelope& envelope, const SocketMessage& message);
  /// Records a message as a sign of life. False: the message does not count, and the link is lost.
  bool hear(Link& link, const wire::Envelope& envelope, std::span<const uint8_t> body);
  void deliver(Link& link, wire::Envelope envelope, Bytes body);
  /// Sends queued messages, as far as the connection takes them.
  void flush(Link& link);

  // ---- connections ----
  void on_handshake(Link& link);
  void on_handshake_failed(Link& link, const SocketEvent& event);
  /// Closes the socket at once and opens the next one after a pause.
  void reopen_later(Link& link);
  void lose(Link& link, std::string why);
  /// Emits LinkFailed, once for each cause until the link is up.
  void report(Link& link, bool fatal, Error error);

  // ---- time ----
  /// Does not count time in which the loop read nothing as silence of its peers.
  void forgive(Duration unread, TimePoint now);
  void tick(TimePoint now);
  TimePoint next_wakeup(TimePoint now) const;
  void erase_gone();

 private:
  void tick_link(Link& link, TimePoint now);
  void open_dealer(Link& link);
  bool is_numbered(const Link& link) const;
  void break_off(Link& link, std::string why);
  Bytes ping_envelope();
  Code transmit(Link& link, std::span<const uint8_t> envelope, std::span<const uint8_t> body);
  void ping(Link& link);
  void drop(const SendCommand& command, Code code, std::string what);
  void retire(const RouteKey& route);
  void expire_requests(TimePoint now);

  Shared& shared_;
  const HubOptions& options_;
  Context& context_;
  Routers& routers_;
  Events& events_;
  std::optional<KeySet> keys_;
  std::map<LinkId, Link> links_;
  std::map<RouteKey, LinkId> routes_;
  std::set<RouteKey> retired_;  // replaced by newer connections: their late messages are dropped
  std::deque<RouteKey> retired_order_;
  Requests requests_;
  Rng rng_;
};

}  // namespace mc::ctl

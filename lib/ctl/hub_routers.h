// The listening sockets of a hub: one ROUTER for each listen URI, and the ZAP socket (RFC 27) that admits the peers
// that hold the cluster's key. A bound socket keeps the keys it was bound with, so a change of keys needs new sockets.
// Owned by the loop's thread.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ctl/hub_events.h"

namespace mc::ctl {

/// A connection to a listening socket: the number of the router, and its routing id there.
using RouteKey = std::pair<size_t, Bytes>;

/// Options of a listening socket at `uri`.
SocketOptions router_options(const HubOptions& options, const std::optional<KeySet>& keys, const Uri& uri);

class Routers {
 public:
  /// `context`, `options` and `events` must outlive the routers. `sockets` are bound to options.listen, in that order.
  Routers(Context& context, const HubOptions& options, Events& events, std::vector<Socket> sockets,
          std::optional<Socket> zap);

  size_t size() const { return sockets_.size(); }
  Socket& operator[](size_t router) { return sockets_[router]; }
  Socket* zap() { return zap_ ? &*zap_ : nullptr; }
  const Uri& listen(size_t router) const { return options_.listen[router]; }
  /// Whether the address of the router is bound. Until then the socket has the old keys, and its messages are dropped.
  bool accepts(size_t router) const { return !unbound_.contains(router); }

  Code send(const RouteKey& route, std::span<const uint8_t> envelope, std::span<const uint8_t> body);

  /// Binds every tcp address again with these keys, as soon as libzmq has released it.
  void set_keys(const std::optional<KeySet>& keys, TimePoint now);
  void bind_again(TimePoint now);
  TimePoint next_bind() const;

  /// Counts connections, and logs those refused since the last call.
  void count_connections();
  /// Answers a request of libzmq: whether this client key may connect.
  void answer_zap(const SocketMessage& message);
  /// Address of the client whose key was refused last.
  const std::string& refused_address() const { return refused_address_; }

 private:
  Context& context_;
  const HubOptions& options_;
  Events& events_;
  std::optional<KeySet> keys_;
  std::vector<Socket> sockets_;
  std::map<size_t, TimePoint> unbound_;  // routers whose address is not free yet -> next try
  std::optional<Socket> zap_;
  std::string refused_address_;
  std::vector<uint64_t> refused_;  // by router, at the last count
};

}  // namespace mc::ctl

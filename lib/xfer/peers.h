// The peers as the loop sees them. Not thread-safe: they belong to the thread that has the loop's turn; what callers
// may see of a peer is in the PeerDirectory.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "xfer/route_queue.h"
#include "xfer/transport.h"

namespace mc::xfer {

/// One transport towards one peer.
struct Route {
  explicit Route(RouteQueue waiting) : queue(std::move(waiting)) {}
  bool usable = false;
  bool dead = false;  // the wanted instance is provably not there
  std::string uri;
  std::string reason;  // why the route is usable, or why not
  EndpointId dialling = EndpointId::none;
  std::vector<EndpointId> up;
  Duration backoff{};
  TimePoint next_try{};
  RouteQueue queue;

  bool may_dial(TimePoint now) const { return usable && !dead && dialling == EndpointId::none && next_try <= now; }
};

struct Peer {
  PeerId id = PeerId::none;
  InstanceId instance{};  // zero until known
  bool given = false;     // connect() was given its descriptor
  bool claimed = false;   // the instance was said, not proven: no connection of that instance joins this peer
  bool stranger = false;  // made by an accepted connection that proved nothing, and forgotten with it
  wire::Ticket ticket{};  // of the descriptor that was given
  std::string name;
  bool up = false;
  bool sealed = false;  // the connection that came up first
  bool gone = false;
  bool leaving = false;     // being disconnected: takes no connection any more
  bool connecting = false;  // a connect() waits for peer_up
  TimePoint connect_deadline = kNever;
  std::string last_error;
  wire::Mismatch mismatch = wire::Mismatch::none;  // that ended the last connection or dial
  bool no_listener = false;                        // the last dial found no program at its address
  std::shared_ptr<const Descriptor> descriptor;    // shared: kept by callers and loop, never changed
  std::vector<Route> routes;                       // one for each transport that runs, in order of preference
  std::deque<QueuedRequest> waiting;               // requests made before the first descriptor
  std::deque<std::vector<std::byte>> notifies;     // that no socket has taken yet
  EndpointId notifier = EndpointId::none;  // the endpoint that carries notifies: one at a time keeps their order
  Id128 line{};                            // see Dial::connection; zero until the first dial
  uint64_t dials = 0;

  bool all_dead() const {
    return std::all_of(routes.begin(), routes.end(), [](const Route& route) { return !route.usable || route.dead; });
  }
  bool any_dead() const {
    return std::any_of(routes.begin(), routes.end(), [](const Route& route) { return route.dead; });
  }
  /// The preferred route that is up; routes.size() when none is.
  size_t up_route() const {
    const auto at = std::find_if(routes.begin(), routes.end(), [](const Route& route) { return !route.up.empty(); });
    return static_cast<size_t>(at - routes.begin());
  }
  /// Nothing waits for a lane, a connection or a socket.
  bool idle() const {
    return !connecting && waiting.empty() && notifies.empty() &&
           std::all_of(routes.begin(), routes.end(), [](const Route& route) { return route.queue.idle(); });
  }
};

class PeerMap {
 public:
  PeerMap(SliceTable& slices, SliceSizes sizes) : slices_(slices), sizes_(sizes) {}

  Peer* find(PeerId id) {
    const auto at = peers_.find(id);
    return at == peers_.end() ? nullptr : &at->second;
  }
  /// The peer, made with that many routes if there is none; `fresh` says so.
  Peer& make(PeerId id, size_t routes, bool& fresh) {
    const auto [at, made] = peers_.try_emplace(id);
    fresh = made;
    at->second.id = id;
    if (made) at->second.routes.assign(routes, Route(RouteQueue(slices_, sizes_)));
    return at->second;
  }
  void erase(PeerId id) {
    busy_.erase(id);
    peers_.erase(id);
  }
  /// A peer that is neither connected nor wanted; none: PeerId::none.
  PeerId spare() const {
    for (const auto& [id, peer] : peers_)
      if (!peer.up && !busy_.contains(id)) return id;
    return PeerId::none;
  }

  /// Peers with work, notifies or a connect to look after.
  const std::set<PeerId>& busy() const { return busy_; }
  void set_busy(PeerId id) { busy_.insert(id); }
  void set_idle(PeerId id) { busy_.erase(id); }

  auto begin() { return peers_.begin(); }
  auto end() { return peers_.end(); }

 private:
  SliceTable& slices_;
  const SliceSizes sizes_;
  std::map<PeerId, Peer> peers_;
  std::set<PeerId> busy_;
};

}  // namespace mc::xfer

// The peers as the loop sees them. Not thread-safe: only the thread that has the loop's turn calls this class. The
// PeerDirectory has the state that callers may see.
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

/// One transport to one peer.
struct Route {
  explicit Route(RouteQueue waiting) : queue(std::move(waiting)) {}
  bool usable = false;
  bool dead = false;  // it is proven that the wanted instance is not there
  std::string uri;
  std::string reason;  // why the route is usable, or why not
  EndpointId dialling = EndpointId::none;
  std::vector<EndpointId> up;
  Duration backoff{};
  TimePoint next_try{};
  RouteQueue queue;

  bool may_dial(TimePoint now) const { return usable && !dead && dialling == EndpointId::none && next_try <= now; }
};

/// The process at the other end, as far as it is known.
struct PeerIdentity {
  InstanceId instance{};  // zero while unknown
  std::string name;
  wire::Ticket ticket{};  // from the descriptor that connect() got
  bool given = false;     // connect() got the peer's descriptor
  // The instance was claimed but not proven: no other connection of that instance joins this peer.
  bool claimed = false;
  bool stranger = false;  // created by an accepted connection that proved nothing, and removed with it
};

/// Why the last connection or dial ended.
struct PeerFailure {
  std::string text;
  wire::Mismatch mismatch = wire::Mismatch::none;
  bool no_listener = false;  // the last dial found no program at its address
};

struct Peer {
  PeerId id = PeerId::none;
  PeerIdentity who;
  bool up = false;
  bool sealed = false;  // state of the first connection
  bool gone = false;
  bool leaving = false;     // disconnect() is under way, and no connection is accepted any more
  bool connecting = false;  // a connect() waits for peer_up
  TimePoint connect_deadline = kNever;
  PeerFailure failure;
  std::shared_ptr<const Descriptor> descriptor;  // shared by callers and loop; never changes
  std::vector<Route> routes;                     // one for each running transport, in order of preference
  std::deque<QueuedRequest> waiting;             // requests made before the first descriptor arrived
  std::deque<std::vector<std::byte>> notifies;   // notifies that no socket has taken yet
  EndpointId notifier = EndpointId::none;        // endpoint that carries notifies; a single one keeps their order
  Id128 line{};                                  // see Dial::connection; zero until the first dial
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
  /// No work waits for a lane, a connection or a socket.
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
  /// The peer with that id. A new peer gets `routes` routes and sets `fresh`.
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
  /// A peer that is neither connected nor wanted; PeerId::none when there is none.
  PeerId spare() const {
    for (const auto& [id, peer] : peers_)
      if (!peer.up && !busy_.contains(id)) return id;
    return PeerId::none;
  }

  /// The peers that have work, notifies or a pending connect().
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

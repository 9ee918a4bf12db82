// Connections to peers: dials of their routes, connections up and lost, descriptors, notifies. Not thread-safe: only
// the thread that has the loop's turn calls this class.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "xfer/dispatcher.h"

namespace mc::xfer {

class Peering {
 public:
  Peering(LoopParts& parts, RunningBatches& running, Router& router, Dispatcher& dispatcher)
      : parts_(parts), running_(running), router_(router), dispatcher_(dispatcher) {}

  /// Handles Engine::connect() by descriptor (or null) or by URI. peer_up or peer_lost follows.
  void connect(PeerId id, TimePoint deadline, std::shared_ptr<const Descriptor> descriptor, const std::string& uri);
  /// Ends the peer's requests and closes its connections. The caller must handle the reports of the transports about it
  /// and then call forget(). False: there is no such peer.
  bool leave(PeerId id, const std::string& why);
  void forget(PeerId id);
  /// Dials a route of a peer that has work and no connection.
  void seek(Peer& peer);
  /// The next time at which seek() has something to do for a busy peer.
  TimePoint due(TimePoint now);
  void notify(PeerId id, std::vector<std::byte>&& bytes);

  void on_up(EndpointEvent& event);
  /// Returns the peer to forget when it was a stranger and its last connection is gone; else PeerId::none.
  PeerId on_lost(const EndpointEvent& event);
  void on_descriptor(EndpointEvent& event);

 private:
  void learn_routes(Peer& peer);
  void dial(Peer& peer, size_t route);
  PeerId admit(const EndpointEvent& event);
  void publish(const Peer& peer);
  void emit_up(const Peer& peer);
  void emit_lost(const Peer& peer, Code code, bool gone, const std::string& text);
  std::string reasons(const Peer& peer) const;
  void attempt_failed(Peer& peer, size_t route, const EndpointEvent& event);
  void down(Peer& peer, Code code, bool gone, const std::string& text);
  void gone(Peer& peer, const std::string& text);
  void send_notifies(Peer& peer);
  void drop_notifies(Peer& peer);

  LoopParts& parts_;
  RunningBatches& running_;
  Router& router_;
  Dispatcher& dispatcher_;
};

}  // namespace mc::xfer

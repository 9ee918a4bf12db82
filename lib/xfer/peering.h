// Connections to peers: dialling their routes, connections up and lost, descriptors, notifies. Not thread-safe: it
// belongs to the thread that has the loop's turn.
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

  /// Engine::connect() by descriptor (or null) or by URI: peer_up or peer_lost follows.
  void connect(PeerId id, TimePoint deadline, std::shared_ptr<const Descriptor> descriptor, const std::string& uri);
  /// Ends the peer's requests and closes its connections. When what the transports report about that has been handled,
  /// forget() must follow. False: there is no such peer.
  bool leave(PeerId id, const std::string& why);
  void forget(PeerId id);
  /// Sees to it that a peer with something to do has, or is getting, a connection.
  void seek(Peer& peer);
  /// When seek() has more to do for one of the busy peers.
  TimePoint due(TimePoint now);
  void notify(PeerId id, std::vector<std::byte>&& bytes);

  void on_up(News& news);
  /// The peer to forget, because it was a stranger's and its last connection is gone; else PeerId::none.
  PeerId on_lost(const News& news);
  void on_descriptor(News& news);

 private:
  void learn_routes(Peer& peer);
  void dial(Peer& peer, size_t route);
  PeerId admit(const News& news);
  void publish(const Peer& peer);
  void emit_up(const Peer& peer);
  void emit_lost(const Peer& peer, Code code, bool gone, const std::string& text);
  std::string reasons(const Peer& peer) const;
  void attempt_failed(Peer& peer, size_t route, const News& news);
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

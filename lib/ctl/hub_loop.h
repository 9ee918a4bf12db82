// The hub's thread: one turn polls the sockets, reads them, runs the owner's commands and checks the deadlines. Every
// frame from the network is untrusted until its envelope decodes. A frame that does not decode is counted, logged once
// for each peer, and dropped.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/hub_links.h"

namespace mc::ctl {

class Loop {
 public:
  Loop(Shared& shared, Context context, std::vector<Socket> routers, std::optional<Socket> zap);
  /// Runs turns until Shared::stopping.
  void run();

 private:
  void turn();
  void poll();
  void read_sockets();
  void read_router(size_t router, const PollItem& item);
  void read_dealer(Link& link, const PollItem& item);
  void run_commands();
  void tick(TimePoint now);
  TimePoint next_wakeup(TimePoint now) const;

  void on_router(size_t router, SocketMessage message);
  void on_dealer(Link& link, SocketMessage message);
  void on_router_event(size_t router, const SocketEvent& event);
  void log_failed_handshake(size_t router, const std::string& why, const std::string& from);
  void on_dealer_event(Link& link, const SocketEvent& event);
  std::optional<wire::Envelope> decode(const Bytes& frame, Link* link, std::string_view address, bool& wrong_version);

  Shared& shared_;
  const HubOptions& options_;
  Context context_;  // outlives the sockets below
  Events events_;
  Routers routers_;
  std::map<size_t, std::string> failed_handshakes_;  // router -> cause, until the end of the connection is reported
  Links links_;
  std::vector<PollItem> items_;
  std::vector<LinkId> item_links_;
  TimePoint turn_start_{};
  TimePoint planned_{};  // the time at which this turn was due
  bool reading_ = true;  // this turn: the event ring had room
};

}  // namespace mc::ctl

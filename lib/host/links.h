// The control plane as the machines see it: messages to and from instances. Wraps ctl::Hub: keeps a
// link to the conductor and to every peer of the last SetPeers, finds the link for an instance, encodes
// and decodes bodies. A message arrives, in order, or its instance is reported as lost (PeerLost), so
// that whoever waits for an answer need not wait for its deadline.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ctl/ctl.h"
#include "host/replica_links.h"
#include "node/node.h"

namespace mc::host {

class Links {
 public:
  /// `conductor` empty: this process is the conductor, and every message is from a worker.
  /// A message for a peer that is not connected yet waits at most `kept_for`, then the peer is lost.
  static Result<std::unique_ptr<Links>> open(ctl::HubOptions options, const std::optional<Uri>& conductor,
                                             Duration kept_for = 2s);

  const std::vector<Uri>& bound() const { return hub_.bound(); }
  int event_fd() const { return hub_.event_fd(); }
  /// Received and PeerLost for the machine; nothing when the hub is empty.
  std::optional<node::Event> next();
  void send(const node::Send& send);
  void set_peers(const std::vector<wire::Peer>& peers);
  Result<void> set_keys(const ctl::KeySet& keys) { return hub_.set_keys(keys); }
  void set_name(const std::string& name) {
    hub_.set_name(name);
    if (replicas_ != nullptr) replicas_->set_name(name);
  }
  /// Calls about replicas of values travel on these links too. `replicas` is closed before the links end.
  void carry(ReplicaLinks& replicas) {
    replicas_ = &replicas;
    replicas.open(hub_);
  }
  bool fatal() const { return fatal_; }
  const Error& failure() const { return failure_; }
  /// For tests.
  uint64_t bad_messages() const { return bad_messages_; }
  ctl::HubStats stats() const { return hub_.stats(); }

 private:
  Links(ctl::Hub hub, Duration kept_for) : hub_(std::move(hub)), kept_for_(kept_for) {}
  std::optional<node::Event> convert(ctl::Event event);
  void add_link(const InstanceId& instance, ctl::LinkId link);
  void publish() const;
  std::optional<node::Event> on_lost(const ctl::LinkLost& lost);
  void on_send_failed(const ctl::SendFailed& failed);
  void lost(const NodeId& name, const InstanceId& instance, std::string why);
  void post(ctl::LinkId link, const node::Send& send);
  void keep(const std::string& target, const node::Send& send);
  void flush(const std::string& target, ctl::LinkId link);
  void give_up_kept();
  NodeId called(ctl::LinkId link, const InstanceId& instance, const std::string& claimed) const;

  ctl::Hub hub_;
  ReplicaLinks* replicas_ = nullptr;  // null: this process keeps no values
  Duration kept_for_;
  ctl::LinkId conductor_ = 0;
  // Up, by who is at the other end, oldest first: messages keep to the first one until it is lost, so
  // that they stay in order.
  std::map<InstanceId, std::vector<ctl::LinkId>> links_;  // up, by who is at the other end
  std::map<InstanceId, std::string> names_;               // from SetPeers
  std::map<std::string, ctl::LinkId> dialled_;            // control uri -> outgoing link
  struct Kept {
    node::Send send;
    TimePoint until{};
  };
  std::map<std::string, std::vector<Kept>> kept_;  // until the link is up, by conductor or instance; bounded
  std::deque<node::PeerLost> lost_;                // found while sending, not yet taken by next()
  bool fatal_ = false;
  Error failure_;
  uint64_t bad_messages_ = 0;
};

}  // namespace mc::host

// The control plane as the machines see it: messages to and from instances. Wraps ctl::Hub: keeps a
// link to the conductor and to every peer of the last SetPeers, finds the link for an instance, encodes
// and decodes bodies, and reports an instance as lost when its last link is.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ctl/ctl.h"
#include "node/node.h"

namespace mc::run {

class Links {
 public:
  /// `conductor` empty: this process is the conductor, and every message is from a worker.
  static Result<std::unique_ptr<Links>> open(ctl::HubOptions options, const std::optional<Uri>& conductor);

  const std::vector<Uri>& bound() const { return hub_.bound(); }
  int event_fd() const { return hub_.event_fd(); }
  /// Received and PeerLost for the machine; nothing when the hub is empty.
  std::optional<node::Event> next();
  void send(const node::Send& send);
  void set_peers(const std::vector<wire::Peer>& peers);
  void set_name(const std::string& name) { hub_.set_name(name); }
  /// Why the conductor cannot be reached ("" = it can, or nothing is known yet).
  const std::string& trouble() const { return trouble_; }
  bool fatal() const { return fatal_; }
  const Error& failure() const { return failure_; }
  uint64_t bad_messages() const { return bad_messages_; }
  ctl::HubStats stats() const { return hub_.stats(); }

 private:
  explicit Links(ctl::Hub hub) : hub_(std::move(hub)) {}
  std::optional<node::Event> convert(ctl::Event event);
  void add_link(const InstanceId& instance, ctl::LinkId link);
  void keep(const std::string& target, const node::Send& send);
  void flush(const std::string& target, ctl::LinkId link);
  NodeId called(ctl::LinkId link, const InstanceId& instance, const std::string& claimed) const;

  ctl::Hub hub_;
  ctl::LinkId conductor_ = 0;
  // Up, by who is at the other end, oldest first: messages keep to the first one until it is lost, so
  // that they stay in order.
  std::map<InstanceId, std::vector<ctl::LinkId>> links_;  // up, by who is at the other end
  std::map<InstanceId, std::string> names_;               // from SetPeers
  std::map<std::string, ctl::LinkId> dialled_;            // control uri -> outgoing link
  std::map<std::string, std::vector<node::Send>> kept_;   // until the link is up, by conductor or instance; bounded
  std::string trouble_;
  bool fatal_ = false;
  Error failure_;
  uint64_t bad_messages_ = 0;
};

}  // namespace mc::run

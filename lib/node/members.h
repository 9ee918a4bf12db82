// The members of a cluster: what each node said in its Hello, whether it is alive, drains and serves, and which blocks
// it holds.
//
//   node   Hello -> ready <-> draining -> lost (silent for dead_after, goodbye, or a new instance of the name)
//
// The block index is soft state: the nodes are the truth. Their events are numbered; a gap, or a restart of the
// conductor, costs a snapshot and nothing else.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kv/index.h"
#include "kv/kv.h"
#include "node/node.h"
#include "node/refusal.h"
#include "sched/sched.h"

namespace mc::node {

struct MembersOptions {
  std::string model;          // what is served, for messages
  std::string config_digest;  // kv::Namespace::config a worker must have; "" = whatever the first one has
  Duration heartbeat = 200ms, dead_after = 1s;
};

class Members {
 public:
  struct Node {
    std::string name;
    InstanceId instance;
    kv::NodeOrdinal ordinal = 0;  // in the index, and its slot in the board
    wire::Hello hello;
    wire::Load load;
    TimePoint since{}, heard{};
    uint64_t heartbeats = 0;
    bool draining = false;     // wanted; the node confirms with its heartbeat
    bool drain_known = false;  // whether it drained when it came is known, or somebody has said what is wanted since
    // The answer to an IndexSync, as it is assembled. One that stays away is asked for again.
    uint32_t snapshot_parts = 0;
    uint64_t snapshot_seq = 0;
    std::vector<wire::BlockRef> snapshot;
    TimePoint sync_asked{};
    bool sync_open = false;
    int slot() const { return ordinal; }
  };

  explicit Members(MembersOptions options) : options_(std::move(options)) {}

  // ---- looking ----
  const std::map<std::string, Node>& all() const { return nodes_; }
  Node* find(const std::string& name);
  const Node* find(const std::string& name) const { return const_cast<Members*>(this)->find(name); }
  /// The sender of a message: by the instance that the channel proved, not by what the message claims. null: unknown.
  Node* of(const InstanceId& instance);
  /// The member that a pipeline's leader waits for before it serves; empty: none.
  std::string lacking(const Node& node) const;
  bool serves(const Node& node, wire::Role role, const std::string& model) const;
  NodeState state_of(const Node& node) const;
  /// Why a request could not be served now: no_prefill, no_decode or none.
  Reason unready(const std::string& model) const;
  /// Whether the nodes are here that the request may go to, busy or not.
  bool has_nodes(const Submit& submit) const;
  /// Why the request cannot be served by these members whatever their load: a wrong pin, its length, a drain.
  std::optional<Refusal> refusal_of(const Submit& submit) const;
  std::vector<std::string> models() const;
  /// Longest prompt + answer every node of the model holds; 0 = no such model.
  uint32_t context_tokens(const std::string& model) const;
  /// Namespace of the first node that serves the model; lives until the membership changes. null: no node does.
  const kv::Namespace* namespace_of(const std::string& model) const;
  /// The attention plan that `auto` means on the first node that decodes the model; null: no such node.
  const std::string* decode_attention(const std::string& model) const;
  /// Changes whenever a node came or went.
  uint64_t version() const { return version_; }
  const kv::PrefixIndex& index() const { return index_; }
  kv::PrefixIndex& index() { return index_; }
  /// Tells the board who is here.
  void show_on(sched::Board& board) const;

  // ---- coming and going ----
  /// Why a node may not join: two nodes of one model must agree on everything that shapes KV bytes.
  std::optional<wire::Refused> objection(const wire::Hello& hello) const;
  /// Likewise, because a live node bears its name.
  std::optional<wire::Refused> name_objection(const std::string& name, TimePoint now) const;
  std::string free_name(wire::Role role) const;
  const Node& join(const std::string& name, const InstanceId& instance, const wire::Hello& hello, TimePoint now);
  void remove(const std::string& name);
  /// Nodes that have been silent for too long.
  std::vector<std::string> silent(TimePoint now);
  /// Before that no node has been silent for too long.
  TimePoint next_wakeup() const { return silence_at_; }
  void broadcast(Actions& out);

  // ---- messages and orders ----
  /// True: the node began to drain. The heartbeat closes every gap that a lost message can leave: membership, drain
  /// state, block events.
  bool on_heartbeat(Node& node, const wire::Heartbeat& beat, TimePoint now, Actions& out);
  void on_events(Node& node, const wire::BlockEvents& events, TimePoint now, Actions& out);
  void on_snapshot(Node& node, const wire::BlockSnapshot& snapshot);
  /// As Conductor::drain.
  Result<void> drain(const std::string& name, bool on, Actions& out);

  void check() const;

 private:
  void changed();
  void ask_sync(Node& node, TimePoint now, Actions& out);
  wire::Peers peers() const;
  std::string wrong_pin(const Submit& submit) const;

  MembersOptions options_;
  std::map<std::string, Node> nodes_;
  std::map<InstanceId, Node*> by_instance_;  // into nodes_, whose elements stay where they are
  mutable std::map<std::string, std::optional<kv::Namespace>> namespaces_;  // by model, as far as asked for
  mutable std::map<std::string, uint32_t> contexts_;                        // likewise: context_tokens()
  kv::PrefixIndex index_;
  uint64_t peers_version_ = 0, version_ = 1;
  TimePoint silence_at_ = kNever;
};

}  // namespace mc::node

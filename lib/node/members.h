// The members of a cluster: the Hello of each node, its state (alive, draining, serving), and the blocks that it holds.
//
//   node   Hello -> ready <-> draining -> lost (silent for dead_after, goodbye, or a new instance of the name)
//
// The block index is soft state, because each node owns the list of its blocks. A node numbers its block events. After
// a gap in the numbers, or a restart of the conductor, one snapshot repairs the index.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv/index.h"
#include "kv/kv.h"
#include "node/node.h"
#include "node/refusal.h"
#include "sched/sched.h"

namespace mc::node {

/// The mark of the conductor's own keys for a node of this instance.
using KeysFor = std::function<KeyMark(const InstanceId& node)>;

struct MembersOptions {
  std::string model;          // name of the served model, for messages
  std::string config_digest;  // kv::Namespace::config that a worker must have; "" = that of the first worker
  Duration heartbeat = 200ms, dead_after = 3s;
  KeysFor keys;                        // null: keys are not compared
  kv::PrefixIndex::Bounds blocks_max;  // of the index
};

class Members {
 public:
  struct Node {
    std::string name;
    InstanceId instance;
    kv::NodeOrdinal ordinal = 0;  // node number in the index and slot in the board
    wire::Hello hello;
    wire::Load load;
    TimePoint since{}, heard{};
    Duration member_before{};  // time of this instance before it joined: as a member, or since an earlier conductor
    uint64_t heartbeats = 0;
    bool draining = false;     // drain order; the node confirms it in its heartbeat
    bool drain_known = false;  // the drain state is known from the first heartbeat or from a drain order
    // The snapshot that is being assembled. A node sends one when it joins. One that does not arrive is requested
    // again.
    uint32_t snapshot_parts = 0;
    uint64_t snapshot_seq = 0;
    std::vector<wire::BlockRef> snapshot;
    TimePoint sync_asked{};
    bool sync_open = false;
    int slot() const { return ordinal; }
  };

  /// A node that is no member any more.
  struct Lost {
    InstanceId instance;
    std::string why;
    Duration member{};  // how long it was one
  };
  static constexpr size_t kLostMax = 256;

  static constexpr size_t kNodesMax = 8192;  // the largest simulated cluster has 1,024

  /// A process that may not join.
  struct RefusedNode {
    InstanceId instance;
    std::string name;  // the name that it asked for, or would have got
    wire::Role role = wire::Role::prefill;
    std::string control_uri;
    wire::Refused why;
  };
  struct Refusals {
    std::deque<RefusedNode> last;  // at most kRefusedMax
    uint64_t count = 0;            // of all
  };
  static constexpr size_t kRefusedMax = 64;
  static constexpr size_t kRefusedTextMax = 1024;  // bytes of each text of a RefusedNode; the rest is cut

  explicit Members(MembersOptions options) : options_(std::move(options)), index_(options_.blocks_max) {}

  // ---- looking ----
  const std::map<std::string, Node>& all() const { return nodes_; }
  Node* find(const std::string& name);
  const Node* find(const std::string& name) const { return const_cast<Members*>(this)->find(name); }
  /// The sender of a message, found by the instance that the channel authenticated. The name in the message is not
  /// trusted. null: unknown.
  Node* of(const InstanceId& instance);
  /// The name of the member that a pipeline's leader waits for before it serves; empty: none.
  std::string lacking(const Node& node) const;
  bool serves(const Node& node, wire::Role role, const std::string& model) const;
  NodeState state_of(const Node& node) const;
  /// Why a request could not be served now: no_prefill, no_decode or none.
  Reason unready(const std::string& model) const;
  /// Whether nodes are registered that may serve the request, busy or not.
  bool has_nodes(const Submit& submit) const;
  /// Why these members can never serve the request, whatever their load: a wrong pin, its length, a drain.
  std::optional<Refusal> refusal_of(const Submit& submit) const;
  std::vector<std::string> models() const;
  /// Longest prompt and answer that every node of the model holds; 0 = unknown model.
  uint32_t context_tokens(const std::string& model) const;
  /// Namespace of the first node that serves the model, valid until the membership changes. null: no node serves it.
  const kv::Namespace* namespace_of(const std::string& model) const;
  /// The attention plan that `auto` means on the first node that decodes the model; null: no node decodes it.
  const std::string* decode_attention(const std::string& model) const;
  /// A number that changes whenever a node joins or leaves.
  uint64_t version() const { return version_; }
  const kv::PrefixIndex& index() const { return index_; }
  kv::PrefixIndex& index() { return index_; }
  /// Writes the members into the board.
  void show_on(sched::Board& board) const;

  // ---- coming and going ----
  /// Why a node may not join. Two nodes of one model must agree on everything that shapes KV bytes, and all nodes have
  /// the keys of the conductor.
  std::optional<wire::Refused> objection(const wire::Hello& hello, const InstanceId& instance) const;
  /// Why the name may not be used: a live node has it.
  std::optional<wire::Refused> name_objection(const std::string& name, TimePoint now) const;
  /// Why no node of a new name may join: kNodesMax nodes are here.
  std::optional<wire::Refused> room_objection(const std::string& name) const;
  std::string free_name(wire::Role role) const;
  void note_refused(RefusedNode node);
  const Refusals& refused() const { return refused_; }
  const Node& join(const std::string& name, const InstanceId& instance, const wire::Hello& hello, TimePoint now);
  /// `why` is for the log: see lost().
  void remove(const std::string& name, std::string why);
  /// The nodes that left last, at most kLostMax, each with the reason.
  const std::deque<Lost>& lost() const { return lost_; }
  /// No message was read for `time`, up to now (HostStalled).
  void stalled(Duration time, TimePoint now);
  /// Names of nodes that have been silent for `dead_after`.
  std::vector<std::string> silent(TimePoint now);
  /// The earliest time at which a node can count as silent.
  TimePoint next_wakeup() const { return silence_at_; }
  void broadcast(TimePoint now, Actions& out);

  // ---- messages and orders ----
  /// True: the node has begun to drain. A heartbeat repairs the effect of every lost message: membership, drain state,
  /// block events.
  bool on_heartbeat(Node& node, const wire::Heartbeat& beat, TimePoint now, Actions& out);
  void on_events(Node& node, const wire::BlockEvents& events, TimePoint now, Actions& out);
  /// A part of a snapshot. Without a request by this conductor it is dropped.
  void on_snapshot(Node& node, const wire::BlockSnapshot& snapshot);
  /// See Conductor::drain.
  Result<void> drain(const std::string& name, bool on, Actions& out);

  void check() const;

 private:
  uint64_t snapshot_room(const Node& node) const;
  void changed();
  void ask_sync(Node& node, TimePoint now, Actions& out);
  wire::Peers peers(TimePoint now) const;
  std::optional<Refusal> wrong_pin(const Submit& submit) const;

  MembersOptions options_;
  std::map<std::string, Node> nodes_;
  std::map<InstanceId, Node*> by_instance_;  // points into nodes_, whose elements do not move
  mutable std::map<std::string, std::optional<kv::Namespace>> namespaces_;  // key: model; filled on demand
  mutable std::map<std::string, uint32_t> contexts_;                        // key: model; results of context_tokens()
  kv::PrefixIndex index_;
  uint64_t peers_version_ = 0, version_ = 1;
  TimePoint silence_at_ = kNever;
  std::deque<Lost> lost_;
  Refusals refused_;
};

}  // namespace mc::node

// What prefill, decode and cache nodes have in common: they register with the conductor and keep the
// heartbeat, tell it about their blocks, lease blocks to other nodes, and push cold blocks to an
// mc-cache before they are evicted. The roles derive from this class and add their own messages.
//
//   registration   absent --Hello--> asked --Welcome--> member --(silence | new conductor)--> absent
//
// When the conductor is lost, its requests are orphans: the role drops them all. Blocks stay; the next
// conductor gets a snapshot of them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/extent.h"
#include "base/rng.h"
#include "kv/kv.h"
#include "node/block_book.h"
#include "node/demoter.h"
#include "node/lender.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/peers.h"
#include "node/shelf.h"
#include "sched/cost.h"

namespace mc::node {

inline constexpr std::string_view kConductor = "conductor";

struct WorkerOptions {
  wire::Role role = wire::Role::prefill;
  std::string name;         // "" = the conductor chooses
  InstanceId instance;      // of this process
  std::string control_uri;  // where peers reach us
  wire::Bytes data;         // xfer descriptor of our KV buffer
  std::string http;
  std::string model;
  std::string version;
  kv::Namespace kv;  // salt empty, plan = what `auto` means here
  std::string decode_attention = "full";
  ExtentLayout layout;
  uint32_t page_count = 0;
  uint32_t context_tokens = 0;
  uint32_t stages = 1;  // of the pipeline that a prefill node leads or is a stage of
  sched::Cost cost;
  std::vector<wire::NameValue> labels;
  Duration hello_retry = 500ms;
  Duration lease_ttl_max = 30s;
  double demote_above = 0.85;  // share of pages taken beyond which cold blocks go to an mc-cache
  uint64_t seed = 0;
};

/// Whether a context holds `ids`, a prompt and the `resumed` tokens of its answer so far, and the next token, which
/// needs no place when it is the last of `max_tokens`: nothing is computed with it.
bool fits_context(size_t ids, uint32_t resumed, uint32_t max_tokens, uint32_t context_tokens);

class Worker : public Machine, protected BlockSource {
 public:
  explicit Worker(WorkerOptions options);
  void handle(const Event& event, TimePoint now, Actions& out) final;
  TimePoint next_wakeup() const override;
  void check() const override;
  bool idle() const override;

  const std::string& name() const { return name_; }
  bool registered() const { return state_ == Membership::member; }
  /// The conductor that was last registered with serves tenants, who may not see one another's counts.
  bool has_tenants() const { return has_tenants_; }
  bool draining() const { return draining_; }
  /// The refusal that makes this process useless (layout mismatch, name taken), if there was one.
  const wire::Refused* refused() const { return refused_ ? &*refused_ : nullptr; }
  const Peers& peers() const { return peers_; }
  /// No new requests from now on; those here finish (SIGTERM). The heartbeat tells the conductor.
  void start_draining() { leaving_ = draining_ = true; }
  /// Leaves the cluster: everything here ends, the conductor is told.
  void leave(TimePoint now, Actions& out);
  wire::Load load() const;
  /// All shelves of the node.
  std::span<Shelf* const> shelves() const { return shelves_; }
  /// The one shelf of a prefill or decode node; null in a cache node.
  const Shelf* shelf() const { return shelf_.get(); }
  /// Where a page of pool number `pool` (node::Read::pool) lies in this node's KV buffer, and the shelf it is of.
  virtual uint64_t local_offset(uint32_t pool, kv::PageIndex page) const;
  virtual const Shelf& local_shelf(uint32_t pool) const;

 protected:
  // ---- what a role adds ----
  virtual void on_message(const Received& event, TimePoint now, Actions& out) = 0;
  virtual void on_event(const Event& event, TimePoint now, Actions& out) = 0;  // Notified, ReadDone, runs
  virtual void on_tick(TimePoint now, Actions& out) = 0;
  virtual TimePoint role_wakeup() const = 0;
  /// Every request of the lost conductor ends; nobody is told.
  virtual void drop_all(TimePoint now, Actions& out) = 0;
  virtual void on_peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out) = 0;
  virtual void fill_load(wire::Load& load) const = 0;
  virtual bool role_idle() const = 0;
  virtual void role_check() const = 0;
  bool is_pending(const BlockHash&) const override { return false; }
  Shelf* shelf_of(const NamespaceId&) override { return shelf_.get(); }
  /// A role that has no shelf from the start adds its own; it outlives the worker.
  void add_shelf(Shelf& shelf) { shelves_.push_back(&shelf); }

  // ---- for roles ----
  void send(const NodeId& to, const InstanceId& instance, wire::Message message, Actions& out) const;
  void to_conductor(wire::Message message, Actions& out) const;
  void to_conductor(std::shared_ptr<wire::Tokens> tokens, Actions& out) const;
  BlockBook& blocks() { return blocks_; }
  const BlockBook& blocks() const { return blocks_; }
  /// Blocks of this node are of no use to a cache node.
  void never_demote() { demoter_.reset(); }
  /// Tells the conductor what has been published and evicted so far; else it is told after the event's messages.
  void flush_events(TimePoint now, Actions& out);

  WorkerOptions options_;
  Numbers numbers_;
  std::unique_ptr<Shelf> shelf_;  // null in a cache node
  bool draining_ = false;
  std::string last_error_;

 private:
  enum class Membership : uint8_t { absent, asked, member };

  void on_received(const Received& event, TimePoint now, Actions& out);
  bool on_conductor(const Received& event, TimePoint now, Actions& out);
  void on_peers(const wire::Peers& message, TimePoint now, Actions& out);
  void peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out);
  void lose_conductor(TimePoint now, Actions& out);
  void say_hello(TimePoint now, Actions& out);
  void beat(TimePoint now, Actions& out);
  void send_snapshot(TimePoint now, Actions& out);
  void tend_blocks(TimePoint now, Actions& out);

  std::vector<Shelf*> shelves_;
  Membership state_ = Membership::absent;
  std::string name_;
  InstanceId conductor_;  // instance we are registered with
  TimePoint hello_at_{};  // next Hello while absent or asked
  TimePoint beat_at_ = kNever;
  TimePoint heard_at_{};
  Duration beat_every_ = 200ms, dead_after_ = 1s;
  bool has_tenants_ = false;
  std::optional<wire::Refused> refused_;
  bool left_ = false;
  bool leaving_ = false;  // it drains by itself: no order of the conductor takes that back
  Peers peers_;
  BlockBook blocks_;
  Lender lender_;
  std::optional<Demoter> demoter_;  // of a node with one shelf
  Rng rng_;
};

}  // namespace mc::node

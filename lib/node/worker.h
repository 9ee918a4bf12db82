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
#include "node/block_memory.h"
#include "node/node.h"
#include "sched/cost.h"

namespace mc::node {

inline constexpr std::string_view kConductor = "conductor";

/// Blocks of one layout: a pool, the leases on it, and where its pages lie in the node's KV buffer:
/// in slabs of `slab_pages` pages each. A prefill or decode node has one slab; mc-cache gives slabs to
/// its shelves as they need them.
struct Shelf {
  Shelf(const ExtentLayout& layout, uint32_t page_count, uint32_t slab_pages, kv::EventLog& log)
      : layout(layout), slab_pages(slab_pages), pool({.page_count = page_count}, log), leases(pool) {}
  uint64_t page_offset(kv::PageIndex page) const {
    return slabs.at(page / slab_pages) + uint64_t{page % slab_pages} * layout.page_bytes();
  }
  /// What the bytes of the first `blocks` pages must check out to before they are used again (RunChunk::prefix_crcs).
  std::vector<uint32_t> prefix_crcs(std::span<const kv::PageIndex> pages, uint32_t blocks, LayerRange layers) const;

  ExtentLayout layout;
  uint32_t slab_pages;
  std::vector<uint64_t> slabs;  // offset of each slab in the KV buffer
  kv::Pool pool;
  kv::Leases leases;
};

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

class Worker : public Machine {
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
  const std::map<std::string, wire::Peer>& peers() const { return peers_; }
  /// No new requests from now on; those here finish (SIGTERM). The heartbeat tells the conductor.
  void start_draining() { leaving_ = draining_ = true; }
  /// Leaves the cluster: everything here ends, the conductor is told.
  void leave(TimePoint now, Actions& out);
  wire::Load load() const;
  /// The one shelf of a prefill or decode node; null in a cache node.
  const Shelf* shelf() const { return shelf_.get(); }
  /// Where a page of pool number `pool` (node::Read::pool) lies in this node's KV buffer, and its layout.
  virtual uint64_t local_offset(uint32_t pool, kv::PageIndex page) const;
  virtual const ExtentLayout& local_layout(uint32_t pool) const;
  virtual const kv::Pool& local_pool(uint32_t pool) const;
  uint64_t evicted_blocks() const;

 protected:
  // ---- what a role adds ----
  virtual void on_message(const Received& event, TimePoint now, Actions& out) = 0;
  virtual void on_event(const Event& event, TimePoint now, Actions& out) = 0;  // Notified, ReadDone, runs
  virtual void on_tick(TimePoint now, Actions& out) = 0;
  virtual TimePoint role_wakeup() const = 0;
  /// Every request of the lost conductor ends; nobody is told.
  virtual void drop_all(TimePoint now, Actions& out) = 0;
  virtual void on_peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out) = 0;
  /// The conductor has told who is in the cluster now.
  virtual void on_peers_told(TimePoint, Actions&) {}
  virtual void fill_load(wire::Load& load) const = 0;
  virtual bool role_idle() const = 0;
  virtual void role_check() const = 0;
  /// Hashes that will be published here soon, for readers that would rather wait.
  virtual bool is_pending(const BlockHash&) const { return false; }
  /// The shelf that holds blocks of this namespace; nullptr = none here.
  virtual Shelf* shelf_of(const NamespaceId&) { return shelf_.get(); }
  /// All shelves of the node.
  std::span<Shelf* const> shelves() const { return shelves_; }
  /// A role that has no shelf from the start adds its own; it outlives the worker.
  void add_shelf(Shelf& shelf) { shelves_.push_back(&shelf); }

  // ---- for roles ----
  void send(const NodeId& to, const InstanceId& instance, wire::Message message, Actions& out) const;
  void to_conductor(wire::Message message, Actions& out) const;
  void to_conductor(std::shared_ptr<wire::Tokens> tokens, Actions& out) const;
  bool is_peer(const NodeId& node, const InstanceId& instance) const;
  const wire::Peer* peer(const NodeId& node) const;
  /// Number for reads, runs and leases of this process; never reused.
  uint64_t next_id() { return ++last_id_; }
  wire::LeasedBlock leased_block(const Shelf& shelf, kv::PageIndex page) const;
  kv::EventLog& log() { return log_; }
  /// Takes blocks out of the pool whose bytes are not what was sealed; `rotten` numbers pages and hashes.
  void drop_rotten(std::span<const BlockHash> hashes, std::span<const kv::PageIndex> pages,
                   std::span<const uint32_t> rotten);
  /// Blocks that this node had.
  const BlockMemory& memory() const { return memory_; }
  BlockMemory& memory() { return memory_; }
  /// Tells the conductor what has been published and evicted so far; else it is told after the event's messages.
  void flush_events(TimePoint now, Actions& out);

  WorkerOptions options_;
  std::unique_ptr<Shelf> shelf_;  // null in a cache node
  bool draining_ = false;
  std::string last_error_;

 private:
  enum class Membership : uint8_t { absent, asked, member };
  struct RemoteLease {  // a lease we granted
    NodeId node;
    Shelf* shelf;
    kv::LeaseId id;
  };
  struct WaitingLease {  // a lease request that waits for blocks being computed
    NodeId node;
    InstanceId instance;
    wire::LeaseRequest request;
    TimePoint until;
  };
  struct Demotion {  // an offer of ours that a cache node is reading
    NodeId cache;
    InstanceId instance;
    kv::LeaseId lease;
    TimePoint until;
    std::vector<BlockHash> hashes;
  };

  void on_received(const Received& event, TimePoint now, Actions& out);
  bool on_conductor(const Received& event, TimePoint now, Actions& out);
  void on_peers(const wire::Peers& message, TimePoint now, Actions& out);
  void set_peers(Actions& out) const;
  void peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out);
  void lose_conductor(TimePoint now, Actions& out);
  void say_hello(TimePoint now, Actions& out);
  void beat(TimePoint now, Actions& out);
  void send_snapshot(TimePoint now, Actions& out);
  void on_lease_request(const Received& event, const wire::LeaseRequest& request, TimePoint now, Actions& out);
  void grant(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, TimePoint now,
             Actions& out);
  void serve_waiting(TimePoint now, Actions& out);
  wire::Fallback absence(const Shelf* shelf, const BlockHash& hash, bool waited, TimePoint now, uint64_t& age_ms) const;
  void expire_leases(TimePoint now);
  std::vector<kv::PageIndex> cold_chain(NamespaceId& ns) const;
  void consider_demotion(TimePoint now, Actions& out);
  void on_demote_done(const NodeId& node, const wire::DemoteDone& message);

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
  std::map<std::string, wire::Peer> peers_;
  uint64_t peers_version_ = 0;
  // Peers under the conductor before: a new one learns of them one by one, and meanwhile the
  // connections to them are kept.
  struct Former {
    std::vector<wire::Peer> peers;
    TimePoint until = kNever;
  } former_;
  kv::EventLog log_;
  uint64_t last_id_ = 0;
  std::map<std::pair<InstanceId, uint64_t>, RemoteLease> granted_;
  std::vector<WaitingLease> waiting_;
  std::map<uint64_t, Demotion> demotions_;
  std::set<BlockHash> demoted_;  // blocks a cache node is known to hold
  BlockMemory memory_;
  TimePoint demote_at_{};
  Rng rng_;
};

}  // namespace mc::node

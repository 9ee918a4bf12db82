// The common part of prefill, decode and cache nodes. A worker registers with the conductor, sends heartbeats and block
// events, leases blocks to other nodes, and offers cold blocks to an mc-cache before they are evicted. The roles derive
// from this class and add their own messages.
//
// When the conductor is lost, the role drops all requests of that conductor. The blocks stay, and the next conductor
// receives a snapshot of them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/extent.h"
#include "kv/kv.h"
#include "node/block_book.h"
#include "node/block_orders.h"
#include "node/block_reads.h"
#include "node/demoter.h"
#include "node/device_tier.h"
#include "node/disk_tier.h"
#include "node/last_error.h"
#include "node/lender.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/peers.h"
#include "node/refused_links.h"
#include "node/registration.h"
#include "node/shelf.h"
#include "sched/cost.h"

namespace mc::node {

struct WorkerOptions {
  wire::Role role = wire::Role::prefill;
  std::string name;         // "" = the conductor chooses a name
  InstanceId instance;      // instance of this process
  std::string control_uri;  // address for peers
  wire::Bytes data;         // transfer descriptor of this node's KV buffer
  std::string http;
  std::string model;
  std::string device;  // the device that computes: cpu, cuda:0, emu; "" in a cache node
  std::string version;
  kv::Namespace kv;  // the salt is empty, and plan is the meaning of `auto` on this node
  std::string decode_attention = "full";
  ExtentLayout layout;
  uint32_t page_count = 0;
  uint64_t memory_bytes = 0;  // for blocks; 0 = that of the pages
  uint32_t device_pages = 0;  // in the memory of the device; 0 = runs use the pages of the host, or copies of their own
  uint32_t context_tokens = 0;
  uint32_t stages = 1;         // stages of the pipeline that a prefill node leads or belongs to
  uint32_t inline_tokens = 0;  // see wire::Hello; a decode node sets it
  bool keeps_values = true;    // see wire::Hello
  sched::Cost cost;
  std::vector<wire::NameValue> labels;
  std::function<KeyMark()> keys;  // of the data plane, whose key file may change; null: none
  Duration hello_retry = 500ms;
  Duration lease_ttl_max = 30s;
  const kv::Eviction* eviction = &kv::kLruTail;  // order in which blocks leave memory
  DiskTierOptions disk;
  kv::BlockTable* table = nullptr;  // follows the blocks and outlives the worker; null: none
  bool lookups = false;             // the host carries lookups
  double demote_above = 0.85;       // share of taken pages above which cold blocks are offered to an mc-cache
  uint64_t seed = 0;
};

/// Whether a context has room for a prompt of `ids` tokens, the `resumed` tokens of its answer so far, and the next
/// token. The last of `max_tokens` tokens needs no room, because nothing is computed from it.
bool fits_context(size_t ids, uint32_t resumed, uint32_t max_tokens, uint32_t context_tokens);

class Worker : public Machine, protected BlockSource {
 public:
  explicit Worker(WorkerOptions options);
  void handle(const Event& event, TimePoint now, Actions& out) final;
  TimePoint next_wakeup() const override;
  void check() const override;
  bool idle() const override;

  const std::string& name() const { return registration_.name(); }
  const Registration& registration() const { return registration_; }
  bool draining() const { return draining_; }
  const Peers& peers() const { return peers_; }
  /// Takes no new requests, finishes the present ones, and writes the blocks in memory to the disk that the node has
  /// (SIGTERM). The heartbeat reports it.
  void start_draining(TimePoint now, Actions& out);
  /// Leaves the cluster: ends all requests and sends a goodbye to the conductor, which retries the requests elsewhere
  /// and names `why` where it cannot.
  void leave(std::string why, TimePoint now, Actions& out);
  wire::Load load() const;
  /// All shelves of the node.
  std::span<Shelf* const> shelves() const { return shelves_; }
  /// The only shelf of a prefill or decode node; null in a cache node.
  const Shelf* shelf() const { return shelf_.get(); }
  /// The tier on this node's disk.
  const DiskTier& disk() const { return disk_; }
  /// The offset of a page of pool number `pool` (node::Read::pool) in this node's KV buffer.
  virtual uint64_t local_offset(uint32_t pool, kv::PageIndex page) const;
  /// The orders of operators about the blocks.
  const BlockOrders& orders() const { return orders_; }

 protected:
  // ---- what a role implements ----
  virtual void on_message(const Received& event, TimePoint now, Actions& out) = 0;
  virtual void on_event(const Event& event, TimePoint now, Actions& out) = 0;  // Notified, ReadDone, runs
  virtual void on_tick(TimePoint now, Actions& out) = 0;
  virtual TimePoint role_wakeup() const = 0;
  /// Ends every request of the lost conductor without a report.
  virtual void drop_all(TimePoint now, Actions& out) = 0;
  virtual void on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) = 0;
  virtual void fill_load(wire::Load& load) const = 0;
  virtual bool role_idle() const = 0;
  virtual void role_check() const = 0;
  /// Whether blocks of this layout and namespace, which an earlier process left on disk, can be read here.
  virtual bool takes_found(const DiskBlock& block) { return shelf_ && shelf_->layout == block.layout; }
  bool is_pending(const BlockHash&) const override { return false; }
  Shelf* shelf_of(const NamespaceId&) override { return shelf_.get(); }
  /// Adds a shelf that a role creates later. The shelf must outlive the worker.
  void add_shelf(Shelf& shelf);

  // ---- for roles ----
  void send(const NodeId& to, const InstanceId& instance, wire::Message message, Actions& out) const;
  void to_conductor(wire::Message message, Actions& out) const;
  void to_conductor(std::shared_ptr<wire::Tokens> tokens, Actions& out) const;
  /// Sends the events of published and evicted blocks now instead of after the messages of the current event.
  void flush_events(TimePoint now, Actions& out);

  WorkerOptions options_;
  Numbers numbers_;
  BlockBook blocks_;
  DiskTier disk_;
  DeviceTier device_;
  std::unique_ptr<Shelf> shelf_;  // null in a cache node
  Peers peers_;
  BlockReads reads_;
  bool draining_ = false;
  LastError last_error_;
  RefusedLinks refused_links_;

 private:
  void on_received(const Received& event, TimePoint now, Actions& out);
  bool on_conductor(const Received& event, TimePoint now, Actions& out);
  void on_peers(const wire::Peers& message, TimePoint now, Actions& out);
  void peer_gone(const wire::Peer& peer, TimePoint now, Actions& out);
  void lose_conductor(TimePoint now, Actions& out);
  void send_snapshot(TimePoint now, Actions& out);
  void tend_blocks(TimePoint now, Actions& out);

  std::vector<Shelf*> shelves_;
  Registration registration_;
  bool leaving_ = false;  // the node drains by its own decision, which no order of the conductor reverses
  Lender lender_;
  BlockOrders orders_;
  std::optional<Demoter> demoter_;  // only in a node with one shelf
};

}  // namespace mc::node

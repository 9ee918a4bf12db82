#include "node/worker.h"

#include <algorithm>

#include "base/assert.h"
#include "node/node_name.h"

namespace mc::node {

bool fits_context(size_t ids, uint32_t resumed, uint32_t max_tokens, uint32_t context_tokens) {
  return ids < context_tokens || (ids == context_tokens && resumed + 1 >= max_tokens);
}

namespace {
wire::Hello hello_of(const WorkerOptions& options, const std::string& name) {
  wire::Hello hello;
  hello.role = options.role;
  hello.name = name;
  hello.control_uri = options.control_uri;
  hello.data = options.data;
  hello.http = options.http;
  hello.model = options.model;
  hello.device = options.device;
  if (options.role == wire::Role::cache) hello.cache_bytes = options.memory_bytes + options.disk.capacity_bytes;
  hello.keeps_values = options.keeps_values;
  if (options.kv.layers > 0) hello.kv_namespace = options.kv.text();
  hello.decode_attention = options.decode_attention;
  hello.page_bytes = options.page_count > 0 ? options.layout.page_bytes() : 0;
  hello.page_count = options.page_count;
  hello.context_tokens = options.context_tokens;
  hello.stages = options.stages;
  hello.inline_tokens = options.inline_tokens;
  const auto& c = options.cost;
  hello.cost = {c.prefill_s,        c.prefill_s_per_token,   c.prefill_s_per_token2, c.decode_s,
                c.decode_s_per_row, c.decode_s_per_kv_token, c.read_bytes_per_s};
  hello.labels = options.labels;
  hello.version = options.version;
  if (options.keys) {
    KeyMark mark = options.keys();
    hello.key_file = std::move(mark.file), hello.key_check = std::move(mark.check);
  }
  return hello;
}

uint64_t memory_of(const WorkerOptions& options) {
  return options.memory_bytes > 0 || options.page_count == 0 ? options.memory_bytes
                                                             : options.page_count * options.layout.page_bytes();
}
}  // namespace

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)),
      disk_(options_.disk, blocks_.log(), numbers_),
      device_(options_.device_pages, options_.layout, *options_.eviction, blocks_.log(), numbers_),
      peers_(options_.instance),
      reads_(*this, numbers_, peers_),
      registration_(options_.name, options_.hello_retry, options_.seed),
      lender_(*this, blocks_.memory(), disk_, options_.lease_ttl_max),
      orders_(*this, shelves_, disk_, blocks_, {options_.kv, memory_of(options_)}) {
  if (options_.table) blocks_.log().publish_to(*options_.table);
  if (options_.kv.layers > 0) blocks_.names().add_own(options_.kv, options_.model);
  if (options_.page_count == 0) return;
  MC_ASSERT(options_.eviction != nullptr);
  shelf_ = std::make_unique<Shelf>(options_.layout, options_.page_count, options_.page_count, *options_.eviction,
                                   blocks_.log());
  shelf_->slabs.push_back(0);
  add_shelf(*shelf_);
  demoter_.emplace(*shelf_, options_.demote_above, options_.kv.text(), blocks_.names(), options_.lookups);
}

void Worker::handle(const Event& event, TimePoint now, Actions& out) {
  if (const auto* received = std::get_if<Received>(&event)) {
    on_received(*received, now, out);
  } else if (const auto* error = std::get_if<HostError>(&event)) {
    last_error_.note(error->what);
  } else if (const auto* link = std::get_if<DataLink>(&event)) {
    const bool is_peer = peers_.has(link->node, link->instance);
    if (is_peer) refused_links_.take(*link);
    if (is_peer && !link->refusal.empty())
      last_error_.note("data connection to " + link->node + " refused: " + link->refusal);
  } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
    if (lost->node == kConductor) {
      if (lost->instance == registration_.conductor()) lose_conductor(now, out);
    } else {
      peers_.lost_former(lost->instance);
      if (peers_.has(lost->node, lost->instance)) peer_gone(wire::Peer(*peers_.find(lost->node)), now, out);
    }
  } else if (const auto* stalled = std::get_if<HostStalled>(&event)) {
    registration_.stalled(stalled->time, now);
  } else if (std::holds_alternative<Tick>(event)) {
    if (registration_.is_silent(now)) lose_conductor(now, out);
    if (registration_.hello_due(now)) {
      wire::Hello hello = hello_of(options_, name());
      hello.member_ms = static_cast<uint64_t>(registration_.member_for(now) / 1ms);
      out.push_back(Send{NodeId(kConductor), InstanceId{}, std::move(hello)});
      registration_.asked(now);
    }
    if (registration_.beat_due(now)) {
      to_conductor(wire::Heartbeat{load(), blocks_.last_seq(), peers_.version()}, out);
      registration_.beaten(now);
    }
    if (peers_.drop_former(now)) out.push_back(peers_.told());
    orders_.on_tick(now, out);
    on_tick(now, out);
  } else if (const auto* order = std::get_if<BlockOrder>(&event)) {
    orders_.on_order(*order, now, out);
  } else if (const auto* answer = std::get_if<LookedUp>(&event)) {
    if (demoter_) demoter_->on_looked_up(*answer, now, out);
  } else if (const auto* touched = std::get_if<Touched>(&event)) {
    if (peers_.has(touched->from, touched->instance))
      for (Shelf* shelf : shelves_) shelf->pool.touch(touched->hashes);
  } else {
    if (disk_.on_event(
            event, [this](const DiskBlock& block) { return takes_found(block); }, now, out))
      if (const std::string trouble = disk_.take_trouble(); !trouble.empty())
        disk_.state() == DiskTier::State::lost ? last_error_.keep(trouble) : last_error_.note(trouble);
    const auto* read = std::get_if<ReadDone>(&event);
    if (!read)
      on_event(event, now, out);
    else if (const auto whole = reads_.on_read(*read))
      on_event(*whole, now, out);
    else
      on_tick(now, out);  // a piece of a read has ended: the role may go on with the layers that are here
  }
  tend_blocks(now, out);
}

void Worker::add_shelf(Shelf& shelf) {
  shelf.number = static_cast<uint32_t>(shelves_.size());
  shelves_.push_back(&shelf);
}

TimePoint Worker::next_wakeup() const {
  TimePoint at = std::min(
      {role_wakeup(), registration_.next_wakeup(), peers_.next_wakeup(), lender_.next_wakeup(), orders_.next_wakeup()});
  for (const Shelf* shelf : shelves()) at = std::min(at, shelf->leases.next_expiry());
  at = std::min(at, disk_.next_wakeup());
  return demoter_ ? std::min(at, demoter_->next_wakeup()) : at;
}

void Worker::check() const {
  for (const Shelf* shelf : shelves()) {
    shelf->pool.check();
    shelf->leases.check();
  }
  disk_.check();
  role_check();
}

bool Worker::idle() const {
  for (const Shelf* shelf : shelves()) {
    const auto& counts = shelf->pool.counts();
    const size_t leases = shelf->leases.size() - orders_.pins().count(*shelf);
    if (counts.owned - shelf->spare_pages() + counts.draining + counts.pinned > 0 || leases > 0) return false;
  }
  return disk_.idle() && device_.idle() && reads_.idle() && lender_.idle() && orders_.idle() &&
         (!demoter_ || demoter_->idle()) && role_idle();
}

wire::Load Worker::load() const {
  wire::Load load;
  for (const Shelf* shelf : shelves()) {
    const auto& counts = shelf->pool.counts();
    load.pages_free += counts.free + shelf->spare_pages();
    load.pages_private += counts.owned - shelf->spare_pages() + counts.draining;
    load.pages_cached += counts.cached;
    load.pages_pinned += counts.cached - counts.evictable;
    load.leases += shelf->leases.size() - orders_.pins().count(*shelf);
  }
  load.draining = draining_;
  load.leaving = leaving_;
  load.last_error = last_error_.text();
  disk_.fill_load(load);
  device_.fill_load(load);
  fill_load(load);
  return load;
}

uint64_t Worker::local_offset(uint32_t pool, kv::PageIndex page) const {
  MC_ASSERT_EQ(pool, 0u);
  return shelf_->page_offset(page);
}

void Worker::start_draining(TimePoint now, Actions& out) {
  leaving_ = draining_ = true;
  disk_.start_write_out();
  tend_blocks(now, out);
}

void Worker::leave(std::string why, TimePoint now, Actions& out) {
  if (registration_.has_left()) return;
  to_conductor(wire::Goodbye{std::move(why)}, out);
  drop_all(now, out);
  registration_.leave();
}

void Worker::send(const NodeId& to, const InstanceId& instance, wire::Message message, Actions& out) const {
  out.push_back(Send{to, instance, std::move(message)});
}

void Worker::to_conductor(wire::Message message, Actions& out) const {
  if (registration_.is_member()) send(NodeId(kConductor), registration_.conductor(), std::move(message), out);
}

void Worker::to_conductor(std::shared_ptr<wire::Tokens> tokens, Actions& out) const {
  if (registration_.is_member())
    out.push_back(SendTokens{NodeId(kConductor), registration_.conductor(), std::move(tokens)});
}

// ---- messages --------------------------------------------------------------------------------

bool Worker::on_conductor(const Received& event, TimePoint now, Actions& out) {
  const auto* welcome = std::get_if<wire::Welcome>(&event.message);
  if (welcome && !is_node_name(welcome->name)) {
    last_error_.note("the conductor gave this node a name of " + std::to_string(welcome->name.size()) +
                     " bytes that no node may have");
    return true;
  }
  if (registration_.is_member_elsewhere(event.instance)) {
    if (!welcome) return true;  // an unknown sender, or a late message of the previous conductor
    lose_conductor(now, out);
  }
  registration_.heard(now);
  if (welcome) {
    last_error_.served();  // an earlier refusal does not count any more
    if (registration_.welcomed(event.instance, *welcome, now))
      peers_.new_conductor(now + 2 * registration_.dead_after());
    send_snapshot(now, out);
    return true;
  }
  if (const auto* refused = std::get_if<wire::Refused>(&event.message)) {
    registration_.refused_with(*refused, now);
    last_error_.note(refused->message);
    return true;
  }
  if (!registration_.is_member()) return true;
  if (const auto* ack = std::get_if<wire::HeartbeatAck>(&event.message)) {
    if (!ack->known) lose_conductor(now, out);
    return true;
  }
  if (const auto* peers = std::get_if<wire::Peers>(&event.message)) return on_peers(*peers, now, out), true;
  if (const auto* drain = std::get_if<wire::Drain>(&event.message)) {
    draining_ = drain->on || leaving_;
    registration_.beat_soon(now);
    return true;
  }
  if (std::holds_alternative<wire::IndexSync>(event.message)) return send_snapshot(now, out), true;
  return false;
}

void Worker::on_received(const Received& event, TimePoint now, Actions& out) {
  if (event.from == kConductor) {
    if (!on_conductor(event, now, out)) on_message(event, now, out);
    return;
  }
  if (const auto* request = std::get_if<wire::LeaseRequest>(&event.message)) {
    lender_.on_request(event.from, event.instance, *request, peers_.has(event.from, event.instance), now, out);
  } else if (const auto* renew = std::get_if<wire::LeaseRenew>(&event.message)) {
    // A cache node gets offers and asks for no lease of its own, so a number means one of the two.
    if (!demoter_ || !demoter_->on_renew(event, *renew, now, out))
      lender_.on_renew(event.from, event.instance, *renew, now, out);
  } else if (const auto* release = std::get_if<wire::LeaseRelease>(&event.message)) {
    lender_.on_release(event.instance, release->lease, now);
    if (options_.role == wire::Role::cache) last_error_.served();
  } else if (const auto* done = std::get_if<wire::DemoteDone>(&event.message)) {
    if (demoter_) demoter_->on_done(event.instance, *done, now);
  } else {
    on_message(event, now, out);
  }
}

void Worker::lose_conductor(TimePoint now, Actions& out) {
  registration_.lost(now);
  drop_all(now, out);
}

void Worker::on_peers(const wire::Peers& message, TimePoint now, Actions& out) {
  const auto gone = peers_.gone(message);
  if (!gone) return;  // a newer list arrived before
  for (const auto& p : *gone) peer_gone(p, now, out);
  peers_.take(message);
  if (demoter_) demoter_->on_peers(message, now);
  out.push_back(peers_.told());
  on_tick(now, out);  // continues work that waited for a peer to be listed
}

void Worker::peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) {
  // The conductor declared the instance lost, its connection is closed for good, or a message to it was lost. So its
  // leases end. If the instance is alive after all, its reads of pages that are used again fail their checksums.
  lender_.drop(peer.instance);
  peers_.forget(peer.name, peer.instance);
  if (demoter_) demoter_->drop(peer.instance);
  refused_links_.erase(peer.instance);
  on_peer_gone(peer, now, out);
}

// ---- blocks ----------------------------------------------------------------------------------

void Worker::flush_events(TimePoint now, Actions& out) {
  while (blocks_.has_news()) {
    wire::BlockEvents message = blocks_.take(shelves_, disk_, device_, now);
    for (const auto& e : message.events) {
      if (e.stored && e.block.tier != kv::Tier::disk) continue;
      disk_.left_memory(e.block.hash, now);
      if (demoter_) demoter_->removed(e.block.hash);
    }
    for (const BlockHash& hash : blocks_.evicted_from_memory()) disk_.evicted_from_memory(hash);
    to_conductor(std::move(message), out);  // lost without a conductor, and the next one gets a snapshot
  }
}

void Worker::send_snapshot(TimePoint now, Actions& out) {
  flush_events(now, out);
  for (auto& part : blocks_.snapshot(shelves_, disk_, device_)) to_conductor(std::move(part), out);
}

void Worker::tend_blocks(TimePoint now, Actions& out) {
  device_.tend();
  for (Shelf* shelf : shelves_)
    for (const auto& lease : shelf->leases.expire(now)) {
      lender_.expired(*shelf, lease.id, now);
      orders_.expired(*shelf, lease.id);
      if (demoter_) demoter_->expired(lease.id);
    }
  lender_.serve_waiting(now, out);
  if (draining_ && !leaving_)
    disk_.tend_asked(shelves_, now, out);  // an operator's drain would wait for the other writes
  else
    disk_.tend(shelves_, now, out);
  if (demoter_ && registration_.is_member() && demoter_->due(now))
    if (const HolderParts own = parts()) demoter_->offer(peers_.caches(), *own, numbers_.next(), now, out);
  blocks_.uses().look(shelves_, now);
  flush_events(now, out);
}

}  // namespace mc::node

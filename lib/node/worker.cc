// Registration, heartbeat and membership of a worker. Leases and demotion: worker_blocks.cc.

#include "node/worker.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

bool fits_context(size_t ids, uint32_t resumed, uint32_t max_tokens, uint32_t context_tokens) {
  return ids < context_tokens || (ids == context_tokens && resumed + 1 >= max_tokens);
}

Worker::Worker(WorkerOptions options) : options_(std::move(options)), name_(options_.name), rng_(options_.seed) {
  if (options_.page_count == 0) return;
  shelf_ = std::make_unique<Shelf>(options_.layout, options_.page_count, options_.page_count, log_);
  shelf_->slabs.push_back(0);
  add_shelf(*shelf_);
}

void Worker::handle(const Event& event, TimePoint now, Actions& out) {
  if (const auto* received = std::get_if<Received>(&event)) {
    on_received(*received, now, out);
  } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
    if (lost->node == kConductor) {
      if (lost->instance == conductor_) lose_conductor(now, out);
    } else {
      std::erase_if(former_.peers, [&](const wire::Peer& p) { return p.instance == lost->instance; });
      if (is_peer(lost->node, lost->instance)) peer_gone(lost->node, lost->instance, now, out);
    }
  } else if (std::holds_alternative<Tick>(event)) {
    if (state_ == Membership::member && now - heard_at_ > dead_after_) lose_conductor(now, out);
    if (state_ != Membership::member && now >= hello_at_ && !left_) say_hello(now, out);
    if (state_ == Membership::member && now >= beat_at_) beat(now, out);
    if (now >= former_.until) {
      former_.peers.clear();
      former_.until = kNever;
      set_peers(out);
    }
    on_tick(now, out);
  } else {
    on_event(event, now, out);
  }
  expire_leases(now);
  serve_waiting(now, out);
  consider_demotion(now, out);
  flush_events(now, out);
}

TimePoint Worker::next_wakeup() const {
  TimePoint at = std::min(role_wakeup(), former_.until);
  if (state_ == Membership::member) {
    at = std::min({at, beat_at_, heard_at_ + dead_after_ + 1ms});
  } else if (!left_) {
    at = std::min(at, hello_at_);
  }
  for (const Shelf* shelf : shelves()) at = std::min(at, shelf->leases.next_expiry());
  for (const auto& waiting : waiting_) at = std::min(at, waiting.until);
  for (const auto& [id, demotion] : demotions_) at = std::min(at, demotion.until);
  return at;
}

void Worker::check() const {
  for (const Shelf* shelf : shelves()) {
    shelf->pool.check();
    shelf->leases.check();
  }
  role_check();
}

bool Worker::idle() const {
  for (const Shelf* shelf : shelves()) {
    const auto& counts = shelf->pool.counts();
    if (counts.owned + counts.draining + counts.pinned > 0 || shelf->leases.size() > 0) return false;
  }
  return waiting_.empty() && demotions_.empty() && role_idle();
}

wire::Load Worker::load() const {
  wire::Load load;
  for (const Shelf* shelf : shelves()) {
    const auto& counts = shelf->pool.counts();
    load.pages_free += counts.free;
    load.pages_private += counts.owned + counts.draining;
    load.pages_cached += counts.cached;
    load.pages_pinned += counts.cached - counts.evictable;
    load.leases += shelf->leases.size();
  }
  load.draining = draining_;
  load.leaving = leaving_;
  load.last_error = last_error_;
  fill_load(load);
  return load;
}

uint64_t Worker::evicted_blocks() const {
  uint64_t total = 0;
  for (const Shelf* shelf : shelves()) total += shelf->pool.counts().evicted_total;
  return total;
}

uint64_t Worker::local_offset(uint32_t pool, kv::PageIndex page) const {
  MC_ASSERT_EQ(pool, 0u);
  return shelf_->page_offset(page);
}

const ExtentLayout& Worker::local_layout(uint32_t) const {
  return shelf_->layout;
}

const kv::Pool& Worker::local_pool(uint32_t) const {
  return shelf_->pool;
}

void Worker::leave(TimePoint now, Actions& out) {
  if (left_) return;
  left_ = true;
  if (state_ == Membership::member) to_conductor(wire::Goodbye{"shutdown"}, out);
  drop_all(now, out);
  state_ = Membership::absent;
}

void Worker::send(const NodeId& to, const InstanceId& instance, wire::Message message, Actions& out) const {
  out.push_back(Send{to, instance, std::move(message)});
}

void Worker::to_conductor(wire::Message message, Actions& out) const {
  if (state_ == Membership::member) send(NodeId(kConductor), conductor_, std::move(message), out);
}

void Worker::to_conductor(std::shared_ptr<wire::Tokens> tokens, Actions& out) const {
  if (state_ == Membership::member) out.push_back(SendTokens{NodeId(kConductor), conductor_, std::move(tokens)});
}

const wire::Peer* Worker::peer(const NodeId& node) const {
  const auto it = peers_.find(node);
  return it == peers_.end() ? nullptr : &it->second;
}

bool Worker::is_peer(const NodeId& node, const InstanceId& instance) const {
  const wire::Peer* p = peer(node);
  return p && p->instance == instance;
}

// ---- registration ----------------------------------------------------------------------------

void Worker::say_hello(TimePoint now, Actions& out) {
  wire::Hello hello;
  hello.role = options_.role;
  hello.name = name_;
  hello.control_uri = options_.control_uri;
  hello.data = options_.data;
  hello.http = options_.http;
  hello.model = options_.model;
  if (options_.kv.layers > 0) hello.kv_namespace = options_.kv.text();
  hello.decode_attention = options_.decode_attention;
  hello.page_bytes = shelf_ ? shelf_->layout.page_bytes() : 0;
  hello.page_count = options_.page_count;
  hello.context_tokens = options_.context_tokens;
  hello.stages = options_.stages;
  const auto& c = options_.cost;
  hello.cost = {c.prefill_s,        c.prefill_s_per_token,   c.prefill_s_per_token2, c.decode_s,
                c.decode_s_per_row, c.decode_s_per_kv_token, c.read_bytes_per_s};
  hello.labels = options_.labels;
  hello.version = options_.version;
  out.push_back(Send{NodeId(kConductor), InstanceId{}, std::move(hello)});
  state_ = Membership::asked;
  // Up to +50 % so that a cluster does not knock in step after its conductor comes back.
  hello_at_ = now + options_.hello_retry + Duration(rng_.between(0, options_.hello_retry.count() / 2));
}

void Worker::beat(TimePoint now, Actions& out) {
  to_conductor(wire::Heartbeat{load(), log_.last_seq(), peers_version_}, out);
  beat_at_ = now + beat_every_;
}

bool Worker::on_conductor(const Received& event, TimePoint now, Actions& out) {
  if (state_ == Membership::member && event.instance != conductor_) {
    if (std::holds_alternative<wire::Welcome>(event.message))
      lose_conductor(now, out);
    else
      return true;  // a stranger, or the previous one's last words
  }
  heard_at_ = now;
  if (const auto* welcome = std::get_if<wire::Welcome>(&event.message)) {
    if (conductor_ != event.instance) {
      peers_version_ = 0;
      for (const auto& [name, peer] : peers_) former_.peers.push_back(peer);
    }
    conductor_ = event.instance;
    state_ = Membership::member;
    refused_.reset();
    name_ = welcome->name;
    beat_every_ = std::chrono::milliseconds(std::max<uint32_t>(welcome->heartbeat_ms, 1));
    dead_after_ = std::chrono::milliseconds(std::max<uint32_t>(welcome->dead_after_ms, 1));
    has_tenants_ = welcome->has_tenants;
    beat_at_ = now;
    if (!former_.peers.empty()) former_.until = now + 2 * dead_after_;
    send_snapshot(now, out);
    return true;
  }
  if (const auto* refused = std::get_if<wire::Refused>(&event.message)) {
    refused_ = *refused;
    last_error_ = refused->message;
    return true;
  }
  if (state_ != Membership::member) return true;
  if (const auto* ack = std::get_if<wire::HeartbeatAck>(&event.message)) {
    if (!ack->known) lose_conductor(now, out);
    return true;
  }
  if (const auto* peers = std::get_if<wire::Peers>(&event.message)) return on_peers(*peers, now, out), true;
  if (const auto* drain = std::get_if<wire::Drain>(&event.message))
    return draining_ = drain->on || leaving_, beat_at_ = now, true;
  if (std::holds_alternative<wire::IndexSync>(event.message)) return send_snapshot(now, out), true;
  return false;
}

void Worker::on_received(const Received& event, TimePoint now, Actions& out) {
  if (event.from == kConductor) {
    if (!on_conductor(event, now, out)) on_message(event, now, out);
    return;
  }
  if (const auto* request = std::get_if<wire::LeaseRequest>(&event.message)) {
    on_lease_request(event, *request, now, out);
  } else if (const auto* release = std::get_if<wire::LeaseRelease>(&event.message)) {
    std::erase_if(waiting_, [&](const WaitingLease& w) {
      return w.instance == event.instance && w.request.lease == release->lease;
    });
    const auto it = granted_.find({event.instance, release->lease});
    if (it == granted_.end()) return;
    (void)it->second.shelf->leases.release(it->second.id);  // already over is fine
    granted_.erase(it);
  } else if (const auto* done = std::get_if<wire::DemoteDone>(&event.message)) {
    on_demote_done(event.from, *done);
  } else {
    on_message(event, now, out);
  }
}

void Worker::lose_conductor(TimePoint now, Actions& out) {
  state_ = Membership::absent;
  hello_at_ = now + Duration(rng_.between(0, options_.hello_retry.count() / 2));
  beat_at_ = kNever;
  drop_all(now, out);
}

void Worker::on_peers(const wire::Peers& message, TimePoint now, Actions& out) {
  if (message.version < peers_version_) return;  // overtaken by a newer one
  std::map<std::string, wire::Peer> next;
  for (const auto& p : message.peers)
    if (p.instance != options_.instance) next[p.name] = p;
  std::vector<wire::Peer> gone;
  for (const auto& [name, old] : peers_) {
    const auto it = next.find(name);
    if (it == next.end() || it->second.instance != old.instance) gone.push_back(old);
  }
  for (const auto& p : gone) peer_gone(p.name, p.instance, now, out);
  peers_ = std::move(next);
  peers_version_ = message.version;
  std::erase_if(former_.peers, [&](const wire::Peer& p) { return peers_.contains(p.name); });
  set_peers(out);
  on_peers_told(now, out);
}

void Worker::set_peers(Actions& out) const {
  SetPeers set;
  for (const auto& [name, p] : peers_) set.peers.push_back(p);
  set.peers.insert(set.peers.end(), former_.peers.begin(), former_.peers.end());
  out.push_back(std::move(set));
}

void Worker::peer_gone(const NodeId& node, const InstanceId& instance, TimePoint now, Actions& out) {
  // The conductor has declared the instance dead, or its connection is gone for good: nobody reads.
  // A reader that lives on against all evidence is caught by its own checksums.
  for (auto it = granted_.begin(); it != granted_.end();) {
    if (it->first.first != instance) {
      ++it;
      continue;
    }
    (void)it->second.shelf->leases.release(it->second.id);
    it = granted_.erase(it);
  }
  std::erase_if(waiting_, [&](const WaitingLease& w) { return w.instance == instance; });
  for (auto it = demotions_.begin(); it != demotions_.end();) {
    if (it->second.instance != instance) {
      ++it;
      continue;
    }
    (void)shelf_->leases.release(it->second.lease);
    it = demotions_.erase(it);
  }
  const wire::Peer* known = peer(node);
  if (known && known->instance == instance) {
    if (known->role == wire::Role::cache) demoted_.clear();  // what it held is gone with it
    peers_.erase(node);
    // The conductor may know better (a link that broke between two living nodes): the next heartbeat asks.
    peers_version_ = 0;
  }
  on_peer_gone(node, instance, now, out);
}

}  // namespace mc::node

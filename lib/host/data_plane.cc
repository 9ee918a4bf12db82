#include "host/data_plane.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "host/transfer_flags.h"
#include "wire/notify.h"

namespace mc::host {
namespace {
constexpr size_t kNotifiesKept = 1024;  // of one peer that is not connected yet
constexpr size_t kTransfersKept = 4096;
constexpr Duration kUpWithin = 5s;       // how long a read waits for its connection
constexpr Duration kDialledWithin = 1s;  // how long a peer that this node does not reach may take to dial it
constexpr Duration kConnectFor = 30s;    // the engine retries so long; after it the next SetPeers starts again
}  // namespace

Result<std::unique_ptr<DataPlane>> DataPlane::open(const xfer::Options& options, mem::SharedBuffer& pool) {
  MC_TRY(engine, open_transfers(options));
  MC_CHECK(engine->register_buffer(pool, {.name = "kv", .access = xfer::AccessClass::blocks}));
  return std::unique_ptr<DataPlane>(new DataPlane(std::move(engine), pool));
}

wire::Bytes DataPlane::describe() const {
  const auto bytes = engine_->describe();
  MC_ASSERT(!bytes.empty());
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

void DataPlane::set_peers(const std::vector<wire::Peer>& peers) {
  const TimePoint now = SystemClock::instance().now();
  std::map<InstanceId, Link> next;
  for (const auto& peer : peers) {
    if (peer.data.empty() || peer.instance == engine_->instance()) continue;
    const auto known = links_.find(peer.instance);
    if (known != links_.end()) {
      next[peer.instance] = known->second;
      continue;
    }
    auto id = engine_->connect(std::as_bytes(std::span(peer.data)), now + kConnectFor);
    if (!id) {
      log_warn("peer data plane unusable", {{"peer", peer.name}, {"why", id.error().what}});
      continue;
    }
    MC_ASSERT(*id != xfer::PeerId::none);
    next[peer.instance] = {peer.name, peer.role, *id, {}, {}, {}};
    instances_[*id] = peer.instance;
  }
  for (const auto& [instance, link] : links_) {
    if (next.contains(instance)) continue;
    engine_->disconnect(link.id);
    for (const auto& waiting : link.reads) answer(waiting.read.read, Code::peer_lost, link.name + " left the cluster");
  }
  links_ = std::move(next);
}

std::string DataPlane::transport(const InstanceId& instance) const {
  const auto it = links_.find(instance);
  return it == links_.end() ? "" : engine_->transport(it->second.id);
}

xfer::PeerId DataPlane::peer_of(const InstanceId& instance) const {
  const auto link = links_.find(instance);
  return link == links_.end() ? xfer::PeerId::none : link->second.id;
}

std::string DataPlane::name_of(const InstanceId& instance) const {
  const auto link = links_.find(instance);
  return link == links_.end() ? "?" : link->second.name;
}

std::optional<InstanceId> DataPlane::listed(xfer::PeerId peer) const {
  const auto instance = instances_.find(peer);
  if (instance == instances_.end() || !links_.contains(instance->second)) return std::nullopt;
  return instance->second;
}

namespace {

std::string_view advice(wire::Mismatch mismatch) {
  switch (mismatch) {
    case wire::Mismatch::secret: return "give both nodes the same key set: --auth FILE, or one MCT_RUN_DIR on a host";
    case wire::Mismatch::seal: return "give both nodes the same --tcp-seal";
    case wire::Mismatch::version: return "run the same release on both nodes";
    case wire::Mismatch::none: break;
  }
  return "a node of another host needs --bind ADDRESS";
}

}  // namespace

/// The transports of two nodes can reach one way only, so a peer that this node does not reach has time to dial it.
void DataPlane::refuse_link(const InstanceId& instance, Link& link, const xfer::Event& event) {
  MC_ASSERT(event.code == Code::invalid || event.code == Code::unsupported);
  if (event.code == Code::unsupported) {
    link.refusal = one_line(user_error(err::kTransportUnusable, event.text));
    link.tell_at = SystemClock::instance().now() + kDialledWithin;
    return;
  }
  log_warn("data connection refused", {{"peer", link.name}, {"why", event.text}, {"next", advice(event.mismatch)}});
  link.refusal = event.text;
  ready_.push_back(node::DataLink{link.name, instance, link.refusal});
}

void DataPlane::tell_refusals() {
  const TimePoint now = SystemClock::instance().now();
  for (auto& [instance, link] : links_) {
    if (now < link.tell_at) continue;
    link.tell_at = kNever;
    log_warn("no data connection can be made",
             {{"peer", link.name},
              {"why", link.refusal},
              {"next", "give both nodes the same --transport, or auto; a node of another host needs --bind ADDRESS"}});
    ready_.push_back(node::DataLink{link.name, instance, link.refusal});
  }
}

std::map<std::string, size_t> DataPlane::peers_by_transport() const {
  std::map<std::string, size_t> out;
  for (const auto& [instance, link] : links_)
    if (const std::string transport = engine_->transport(link.id); !transport.empty()) ++out[transport];
  return out;
}

// The first announcement may be faster than the first connection; it waits for it, in order.
void DataPlane::notify(const node::SendNotify& notify) {
  const auto it = links_.find(notify.instance);
  if (it == links_.end()) return;
  Link& link = it->second;
  auto messages = wire::encode_extents_ready(notify.ready);
  MC_ASSERT(messages.has_value());
  for (auto& bytes : *messages) {
    const Code code = link.notifies.empty() ? engine_->notify(link.id, bytes) : Code::peer_lost;
    if (code == Code::ok) continue;
    if (link.notifies.size() < kNotifiesKept)
      link.notifies.push_back(std::move(bytes));
    else
      log_warn("notify dropped: the queue is full",
               {{"to", notify.to}, {"queued", kNotifiesKept}, {"why", to_string(code)}});
  }
  MC_ASSERT_LE(link.notifies.size(), kNotifiesKept);
}

void DataPlane::on_up(const InstanceId& instance, Link& link) {
  const bool was_told = !link.refusal.empty() && link.tell_at == kNever;
  link.refusal.clear(), link.tell_at = kNever;
  if (was_told) ready_.push_back(node::DataLink{link.name, instance, ""});
  size_t sent = 0;
  while (sent < link.notifies.size() && engine_->notify(link.id, link.notifies[sent]) == Code::ok) ++sent;
  link.notifies.erase(link.notifies.begin(), link.notifies.begin() + static_cast<std::ptrdiff_t>(sent));
  const auto reads = std::move(link.reads);
  link.reads.clear();
  for (const auto& waiting : reads)
    if (!start(link, waiting.read, waiting.place))
      answer(waiting.read.read, Code::peer_lost, link.name + " offers no KV buffer");
}

void DataPlane::give_up_late_reads() {
  const TimePoint now = SystemClock::instance().now();
  for (auto& [instance, link] : links_)
    for (size_t i = 0; i < link.reads.size();) {
      if (now < link.reads[i].until) {
        ++i;
        continue;
      }
      answer(link.reads[i].read.read, Code::timeout,
             "no data connection to " + link.name + " within the time-out of the read");
      link.reads.erase(link.reads.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

void DataPlane::answer(uint64_t read, Code code, std::string what) {
  ready_.push_back(node::ReadDone{read, code, std::move(what)});
}

void DataPlane::read(const node::Read& read, const node::PagePlace& place) {
  MC_ASSERT(place);
  MC_ASSERT(!reads_.contains(read.read));  // the machine gives each read a number of its own
  const auto link = links_.find(read.instance);
  if (link == links_.end()) return answer(read.read, Code::peer_lost, "no data connection to " + read.peer);
  if (start(link->second, read, place)) return;
  const TimePoint until = after(SystemClock::instance().now(), std::min(read.budget, kUpWithin));
  link->second.reads.push_back({read, place, until});
}

// False while the peer's descriptor is not known: its connection is not up yet.
bool DataPlane::start(Link& link, const node::Read& read, const node::PagePlace& place) {
  const auto descriptor = engine_->descriptor(link.id);
  const wire::BufferInfo* buffer = descriptor ? descriptor->find("kv") : nullptr;
  if (!buffer) return false;
  std::vector<xfer::Request> requests;
  requests.reserve(read.slices.size());
  for (const auto& slice : read.slices) {
    xfer::Request request;
    request.op = xfer::Op::read;
    request.peer = link.id;
    // The place is the machine's: its page, and a part of the page by the layout.
    const uint64_t at = place(read.pool, slice.page) + slice.page_offset;
    MC_ASSERT_LE(at + slice.bytes, pool_.bytes().size());
    request.local = pool_.bytes().subspan(at, slice.bytes);
    request.buffer = buffer->id;
    request.offset = slice.remote_offset;
    request.crc32c = slice.crc;
    request.transfer_class = read.urgent ? xfer::TransferClass::urgent : xfer::TransferClass::bulk;
    requests.push_back(request);
  }
  uint64_t bytes = 0;
  for (const auto& request : requests) bytes += request.local.size();
  const TimePoint now = SystemClock::instance().now();
  const TimePoint deadline = after(now, std::max(read.budget, Duration(0)));
  auto batch = engine_->submit(requests, deadline, read.read);
  if (!batch) {
    answer(read.read, batch.error().code, batch.error().what);
    return true;
  }
  batches_[*batch] = {read.read, Code::ok, "", link.id, link.role, bytes, now};
  reads_[read.read] = *batch;
  MC_ASSERT_EQ(batches_.size(), reads_.size());
  return true;
}

void DataPlane::cancel(uint64_t read) {
  if (const auto it = reads_.find(read); it != reads_.end()) return engine_->cancel(it->second);
  for (auto& [instance, link] : links_)
    if (std::erase_if(link.reads, [&](const Waiting& w) { return w.read.read == read; }) > 0)
      return answer(read, Code::cancelled, "the read was cancelled before its connection was up");
}

std::optional<node::Event> DataPlane::finish(xfer::BatchId batch) {
  const auto it = batches_.find(batch);
  if (it == batches_.end()) return std::nullopt;
  if (auto closed = engine_->close(batch); !closed) {
    log_warn("batch not closed", {{"why", closed.error().what}});
    return std::nullopt;  // batch_released follows
  }
  Outstanding done = std::move(it->second);
  batches_.erase(it);
  const size_t known = reads_.erase(done.read);
  MC_ASSERT_EQ(known, 1u);
  return node::ReadDone{done.read, done.code, std::move(done.what)};
}

void DataPlane::arrived(const Outstanding& read) {
  const std::string transport = engine_->transport(read.peer);
  read_bytes_[{transport, read.role}] += read.bytes;
  MC_ASSERT_LE(transfers_.size(), kTransfersKept);
  if (transfers_.size() == kTransfersKept) return;
  transfers_.push_back({transport, read.bytes, to_seconds(SystemClock::instance().now() - read.began)});
}

std::optional<node::Event> DataPlane::convert(xfer::Event event) {
  using Kind = xfer::Event::Kind;
  if (watch_ && watch_(event)) return std::nullopt;
  switch (event.kind) {
    case Kind::batch_done: {
      const auto it = batches_.find(event.batch);
      if (it == batches_.end()) return std::nullopt;
      it->second.code = event.code;
      it->second.what = std::move(event.text);
      if (event.code == Code::ok) arrived(it->second);
      return event.quarantined ? std::nullopt : finish(event.batch);
    }
    case Kind::batch_released: return finish(event.batch);
    case Kind::immediate: return std::nullopt;  // of a channel, or of nobody: peers write no KV
    case Kind::notify: {
      const auto from = instances_.find(event.peer);
      auto ready = wire::parse_extents_ready(event.bytes);
      if (from == instances_.end() || !ready) {
        if (!ready) log_warn("notify dropped", {{"why", ready.error().what}});
        return std::nullopt;
      }
      const auto link = links_.find(from->second);
      if (link == links_.end()) return std::nullopt;
      return node::Notified{link->second.name, from->second, std::move(*ready)};
    }
    case Kind::peer_up: {
      if (event.claimed) {  // served, and not believed: its notifies are dropped above
        log_info("data connection of an unknown node", {{"via", event.text}});
        return std::nullopt;
      }
      const auto descriptor = engine_->descriptor(event.peer);
      if (descriptor) instances_[event.peer] = descriptor->instance;  // it dialled us
      const auto link = descriptor ? links_.find(descriptor->instance) : links_.end();
      if (link != links_.end()) {
        link->second.id = event.peer;
        on_up(link->first, link->second);
      }
      // A node without a name from the conductor is logged under its descriptor's name.
      const std::string name = link != links_.end() ? link->second.name : descriptor ? descriptor->name : "?";
      // Connections over shared memory are many and all alike; a network connection's path is information.
      const LogLevel level = event.networked ? LogLevel::info : LogLevel::debug;
      log(level, "data connection up", {{"peer", name}, {"via", event.text}});
      return std::nullopt;
    }
    case Kind::peer_lost: {
      const auto from = instances_.find(event.peer);
      if (from == instances_.end()) return std::nullopt;
      const auto link = links_.find(from->second);
      if (event.gone) instances_.erase(from);
      if (link == links_.end()) return std::nullopt;
      log_info("data connection lost", {{"peer", link->second.name}, {"gone", event.gone}, {"why", event.text}});
      const bool is_refusal = event.code == Code::invalid || event.code == Code::unsupported;
      if (is_refusal) refuse_link(link->first, link->second, event);
      if (is_refusal || !event.gone) return std::nullopt;
      return node::PeerLost{link->second.name, link->first, event.text};
    }
    case Kind::peer_changed: return std::nullopt;
  }
  return std::nullopt;
}

std::optional<node::Event> DataPlane::next() {
  give_up_late_reads();
  tell_refusals();
  for (;;) {
    if (!ready_.empty()) {
      node::Event event = std::move(ready_.front());
      ready_.erase(ready_.begin());
      return event;
    }
    if (arrived_.empty()) {
      engine_->poll(arrived_, TimePoint{});
      std::reverse(arrived_.begin(), arrived_.end());
      if (arrived_.empty()) return std::nullopt;
    }
    xfer::Event event = std::move(arrived_.back());
    arrived_.pop_back();
    if (auto converted = convert(std::move(event))) return converted;
  }
}

}  // namespace mc::host

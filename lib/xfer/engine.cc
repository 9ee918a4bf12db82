// The public face: checks what is local, queues a command for the engine's thread, reads what it
// published.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/assert.h"
#include "base/uri.h"
#include "xfer/core.h"

namespace mc::xfer {
namespace {

Result<void> check_options(const Options& options, std::span<const TransportEntry* const> table) {
  const auto bad = [](const std::string& what) { return Error{Code::invalid, "xfer: " + what}; };
  if (options.name.empty() || options.name.size() > wire::kXferNameBytesMax)
    return bad("name needs 1 to " + std::to_string(wire::kXferNameBytesMax) + " bytes, has " +
               std::to_string(options.name.size()));
  if (!options.secret.empty() && options.secret.size() != 32)
    return bad("secret needs 32 bytes, has " + std::to_string(options.secret.size()));
  if (options.slice_bytes_min < 4096 || options.slice_bytes_min > options.slice_bytes_max ||
      options.slice_bytes_max > wire::kFrameDataMax)
    return bad("slice sizes need 4096 <= slice_bytes_min <= slice_bytes_max <= " + std::to_string(wire::kFrameDataMax));
  if (options.attempts_max < 1) return bad("attempts_max needs at least 1");
  if (options.peers_max < 1 || options.batches_max < 1 || options.events_max < 1)
    return bad("peers_max, batches_max and events_max need at least 1");
  for (const TransportEntry* entry : table) MC_CHECK(entry->check(options));
  return {};
}

/// tcp://name:port becomes tcp://1.2.3.4:port. Runs on the caller's thread because it may block.
Result<std::string> resolve(const std::string& scheme, const std::string& uri) {
  MC_TRY(place, parse_host_port(std::string_view(uri).substr(scheme.size() + 3)));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(place.host.c_str(), nullptr, &hints, &found);
  if (rc != 0) return Error{Code::not_found, "xfer: cannot resolve '" + place.host + "': " + ::gai_strerror(rc)};
  char text[NI_MAXHOST];
  const int named = ::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  ::freeaddrinfo(found);
  if (named != 0) return Error{Code::not_found, "xfer: cannot resolve '" + place.host + "'"};
  place.host = text;
  return scheme + "://" + place.text();
}

}  // namespace

Engine::Engine(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Engine::~Engine() {
  core_->stop();
}

Result<std::unique_ptr<Engine>> Engine::open(const Options& options, std::span<const TransportEntry* const> table) {
  MC_CHECK(check_options(options, table));
  auto core = std::make_unique<Core>(options, table);
  MC_CHECK(core->start());
  return std::unique_ptr<Engine>(new Engine(std::move(core)));
}

const std::string& Engine::name() const {
  return core_->options_.name;
}
InstanceId Engine::instance() const {
  return core_->home_.instance;
}
std::vector<std::string> Engine::transports() const {
  return core_->transport_texts_;
}
std::vector<std::string> Engine::uris() const {
  return core_->home_.uris;
}
std::vector<std::byte> Engine::describe() const {
  Descriptor descriptor = build_descriptor(core_->home_);
  if (!core_->secured_) descriptor.ticket = core_->home_.ticket;
  return wire::encode(descriptor);
}

Result<BufferId> Engine::register_buffer(std::span<std::byte> memory, const Buffer& buffer) {
  return core_->add_buffer(memory, buffer, -1);
}

Result<BufferId> Engine::register_buffer(mem::SharedBuffer& memory, const Buffer& buffer) {
  const int seals = ::fcntl(memory.fd(), F_GET_SEALS);
  const bool read_only = seals >= 0 && (seals & F_SEAL_FUTURE_WRITE) != 0;
  if (buffer.access == AccessClass::blocks && !read_only)
    return Error{Code::invalid,
                 "xfer: buffer '" + buffer.name + "' is for reading, but peers could map it for writing (peers_write)"};
  if (buffer.access == AccessClass::landing && read_only)
    return Error{Code::invalid,
                 "xfer: landing buffer '" + buffer.name + "' is sealed against writing: create it with peers_write"};
  return core_->add_buffer(memory.bytes(), buffer, memory.fd());
}

Result<void> Engine::unregister(BufferId buffer, TimePoint deadline) {
  core_->access_.revoke(buffer);
  core_->push({.kind = Command::Kind::publish});
  return core_->access_.remove(buffer, deadline, [&] { core_->detach(buffer); });
}

Result<PeerId> Engine::connect(std::span<const std::byte> descriptor, TimePoint deadline) {
  MC_TRY(decoded, wire::decode_descriptor(descriptor));
  if (decoded.instance == core_->home_.instance)
    return Error{Code::invalid, "xfer: connect: that is this very process"};
  PeerId id{};
  {
    std::lock_guard lock(core_->mutex_);
    const auto at = core_->known_.find(decoded.instance);
    if (at != core_->known_.end()) {
      id = at->second;
    } else {
      if (core_->faces_.size() >= core_->options_.peers_max)
        return Error{Code::busy, "xfer: connect: " + std::to_string(core_->faces_.size()) +
                                     " peers are known, the most there may be (peers_max)"};
      id = PeerId{++core_->last_peer_};
      core_->known_.emplace(decoded.instance, id);
      core_->faces_[id];
    }
  }
  core_->push({.kind = Command::Kind::connect,
               .peer = id,
               .deadline = deadline,
               .descriptor = std::make_shared<const Descriptor>(std::move(decoded))});
  return id;
}

Result<PeerId> Engine::connect(const std::string& uri, TimePoint deadline) {
  const TransportEntry* entry = core_->speaker_of(uri);
  if (entry == nullptr) return Error{Code::unsupported, "xfer: connect: no transport of this engine speaks " + uri};
  std::string numeric = uri;
  if (entry->dials_hosts) {
    MC_TRY(resolved, resolve(entry->scheme, uri));
    numeric = std::move(resolved);
  }
  PeerId id{};
  {
    std::lock_guard lock(core_->mutex_);
    if (core_->faces_.size() >= core_->options_.peers_max)
      return Error{Code::busy, "xfer: connect: " + std::to_string(core_->faces_.size()) +
                                   " peers are known, the most there may be (peers_max)"};
    id = PeerId{++core_->last_peer_};
    core_->faces_[id];
  }
  core_->push({.kind = Command::Kind::connect, .peer = id, .deadline = deadline, .uri = std::move(numeric)});
  return id;
}

Result<void> Engine::set_secret(const std::string& secret) {
  if (!core_->secured_) return {Code::invalid, "the engine was opened without a secret"};
  if (secret.size() != 32) return {Code::invalid, "secret needs 32 bytes, has " + std::to_string(secret.size())};
  core_->push({.kind = Command::Kind::secret, .uri = secret});
  return {};
}

void Engine::disconnect(PeerId peer) {
  {
    std::lock_guard lock(core_->mutex_);
    const auto at = core_->faces_.find(peer);
    if (at != core_->faces_.end()) at->second.leaving = true;
    core_->disown(peer);  // whoever connects to that process from now on gets another peer
  }
  core_->push({.kind = Command::Kind::disconnect, .peer = peer});
}

std::shared_ptr<const Descriptor> Engine::descriptor(PeerId peer) const {
  std::lock_guard lock(core_->mutex_);
  const auto at = core_->faces_.find(peer);
  return at == core_->faces_.end() ? nullptr : at->second.descriptor;
}

std::string Engine::transport(PeerId peer) const {
  std::lock_guard lock(core_->mutex_);
  const auto at = core_->faces_.find(peer);
  return at == core_->faces_.end() || !at->second.up ? std::string()
                                                     : core_->active_[at->second.transport].entry->scheme;
}

Result<BatchId> Engine::submit(std::span<const Request> requests, TimePoint deadline, uint64_t cookie) {
  if (requests.empty() || requests.size() > kBatchRequestsMax)
    return Error{Code::invalid, "xfer: a batch has 1 to " + std::to_string(kBatchRequestsMax) + " requests, not " +
                                    std::to_string(requests.size())};
  if (deadline == kNever) return Error{Code::invalid, "xfer: every batch has a deadline"};
  for (size_t i = 0; i < requests.size(); ++i)
    if (requests[i].immediate && (requests[i].op != Op::write || requests[i].local.empty()))
      return Error{Code::invalid, "xfer: request " + std::to_string(i) +
                                      ": an immediate travels with a write of at least one byte; notify() needs none"};
  auto batch = core_->new_batch();
  batch->cookie = cookie;
  batch->deadline = deadline;
  batch->requests.assign(requests.begin(), requests.end());
  batch->states.resize(requests.size());
  batch->results.resize(requests.size());
  batch->unfinished = requests.size();
  batch->pins.reserve(requests.size());
  if (const size_t i = core_->access_.pin_local(requests, batch->pins); i < requests.size())
    return Error{Code::invalid, "xfer: request " + std::to_string(i) + ": its " +
                                    std::to_string(requests[i].local.size()) +
                                    " local bytes are not inside one registered buffer"};
  Batch* raw = batch.get();
  BatchId id{};
  bool full = false;
  bool here = false;
  std::vector<Core::Place> places;
  {
    std::lock_guard lock(core_->mutex_);
    full = core_->batches_.size() >= core_->options_.batches_max;
    if (!full) {
      here = core_->places_of(*batch, places);
      id = BatchId{++core_->last_batch_};
      batch->id = id;
      core_->batches_.emplace(id, std::move(batch));
    }
  }
  if (full) {
    core_->access_.unpin(batch->pins);
    return Error{Code::busy, "xfer: " + std::to_string(core_->options_.batches_max) +
                                 " batches are open (batches_max): close some"};
  }
  core_->tally_.add(Count::batches_open);
  if (here)
    core_->copy_here(*raw, places);
  else if (core_->options_.spin > Duration{})
    core_->submit_here(*raw);
  else
    core_->push({.kind = Command::Kind::submit, .batch = raw});
  return id;
}

std::span<const RequestResult> Engine::results(BatchId batch) const {
  std::lock_guard lock(core_->mutex_);
  const auto at = core_->batches_.find(batch);
  if (at == core_->batches_.end() || !at->second->done) return {};
  return at->second->results;
}

void Engine::cancel(BatchId batch) {
  {
    std::lock_guard lock(core_->mutex_);
    const auto at = core_->batches_.find(batch);
    if (at == core_->batches_.end() || at->second->done || std::exchange(at->second->cancelled, true)) return;
  }
  core_->push({.kind = Command::Kind::cancel, .batch_id = batch});
}

Result<void> Engine::close(BatchId batch) {
  return close(batch, TimePoint{});
}

Result<void> Engine::close(BatchId batch, TimePoint deadline) {
  std::unique_ptr<Batch> closed;
  {
    std::unique_lock lock(core_->mutex_);
    const auto at = core_->batches_.find(batch);
    if (at == core_->batches_.end())
      return Error{Code::not_found, "xfer: close: there is no batch " + std::to_string(static_cast<uint64_t>(batch))};
    Batch& open = *at->second;
    if (!open.released && deadline == TimePoint{})
      return Error{Code::busy, open.done ? "xfer: close: a transport may still touch the batch's memory"
                                         : "xfer: close: the batch is still running"};
    const auto released = [&] { return open.released; };
    if (deadline == kNever)
      core_->changed_.wait(lock, released);
    else if (!core_->changed_.wait_until(lock, deadline, released))
      return Error{Code::timeout, open.done ? "xfer: close: a transport may still touch the batch's memory"
                                            : "xfer: close: the batch is still running"};
    closed = std::move(at->second);
    core_->batches_.erase(at);
  }
  core_->recycle(std::move(closed));
  core_->tally_.sub(Count::batches_open);
  return {};
}

Code Engine::notify(PeerId peer, std::span<const std::byte> bytes) {
  if (bytes.size() > kNotifyBytesMax) return Code::invalid;
  {
    std::lock_guard lock(core_->mutex_);
    const auto at = core_->faces_.find(peer);
    if (at == core_->faces_.end() || !at->second.up) return Code::peer_lost;
    if (at->second.notifies >= Core::kNotifiesMax) return Code::busy;
    ++at->second.notifies;
  }
  core_->push({.kind = Command::Kind::notify, .peer = peer, .bytes = {bytes.begin(), bytes.end()}});
  return Code::ok;
}

Result<View> Engine::map(PeerId peer, uint32_t buffer, uint64_t offset, uint64_t length) const {
  std::lock_guard lock(core_->mutex_);
  const auto at = core_->faces_.find(peer);
  if (at == core_->faces_.end()) return Error{Code::not_found, "xfer: map: unknown peer"};
  const auto arena = at->second.arenas.find(buffer);
  if (arena == at->second.arenas.end())
    return Error{Code::unsupported,
                 "xfer: map: buffer " + std::to_string(buffer) + " is not a shared arena of a peer reached over shm"};
  const BufferInfo* info = at->second.descriptor ? at->second.descriptor->find(buffer) : nullptr;
  if (info == nullptr || info->access != AccessClass::blocks)
    return Error{Code::invalid, "xfer: map: buffer " + std::to_string(buffer) + " may not be read"};
  if (!inside(offset, length, std::min<uint64_t>(info->length, arena->second.mapping->size())))
    return Error{Code::invalid, "xfer: map: [" + std::to_string(offset) + ", +" + std::to_string(length) +
                                    ") is beyond the end of '" + info->name + "', " + std::to_string(info->length) +
                                    " bytes"};
  return View(std::as_const(*arena->second.mapping).bytes().subspan(offset, length), arena->second.mapping);
}

int Engine::event_fd() const {
  std::lock_guard lock(core_->events_mutex_);
  core_->events_watched_ = true;  // from now on every event signals it
  if (!core_->events_.empty() && !std::exchange(core_->events_signalled_, true)) core_->events_fd_.signal();
  return core_->events_fd_.fd();
}

size_t Engine::poll(std::vector<Event>& out, TimePoint deadline, size_t max) {
  if (core_->options_.spin > Duration{} && max > 0) core_->watch(deadline);
  for (;;) {
    size_t count = core_->take_events(out, max, false);
    if (count > 0 || max == 0) return count;
    core_->events_fd_.drain();  // a signal may have come after its event was taken
    count = core_->take_events(out, max, true);
    if (count > 0) return count;
    if (!core_->events_fd_.wait(deadline)) return 0;
  }
}

Counters Engine::counters() const {
  return core_->tally_.snapshot(core_->table_);
}

}  // namespace mc::xfer

// The public interface: checks local arguments, then calls the parts that callers share with the loop.
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

constexpr size_t kSecretBytes = 32;

Result<void> check_options(const Options& options, std::span<const TransportEntry* const> table) {
  const auto bad = [](const std::string& what) { return Error{Code::invalid, "xfer: " + what}; };
  if (options.name.empty() || options.name.size() > wire::kXferNameBytesMax)
    return bad("name needs 1 to " + std::to_string(wire::kXferNameBytesMax) + " bytes, has " +
               std::to_string(options.name.size()));
  if (!options.secret.empty() && options.secret.size() != kSecretBytes)
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

/// Replaces tcp://name:port by tcp://1.2.3.4:port. Runs on the caller's thread, because name resolution may block.
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

/// Whether SmallPath may take the batch.
bool is_small(std::span<const Request> requests, const Options& options) {
  return requests.size() == 1 && !requests[0].local.empty() && requests[0].local.size() <= options.slice_bytes_min &&
         !requests[0].immediate;
}

}  // namespace

Engine::Engine(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const Options& options, std::span<const TransportEntry* const> table) {
  MC_CHECK(check_options(options, table));
  auto core = std::make_unique<Core>(options, table);
  MC_CHECK(core->start());
  return std::unique_ptr<Engine>(new Engine(std::move(core)));
}

const std::string& Engine::name() const {
  return core_->options.name;
}
InstanceId Engine::instance() const {
  return core_->services.instance;
}
std::vector<std::string> Engine::transports() const {
  return core_->transports.texts();
}
std::vector<std::string> Engine::uris() const {
  return core_->services.uris;
}
std::vector<std::byte> Engine::describe() const {
  Descriptor descriptor = build_descriptor(core_->services);
  if (!core_->secured) descriptor.ticket = core_->services.ticket;
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
  core_->access.revoke(buffer);
  core_->commands.push({.kind = Command::Kind::publish});
  return core_->access.remove(buffer, deadline, [&] { core_->transports.detach(buffer); });
}

Result<PeerId> Engine::connect(std::span<const std::byte> descriptor, TimePoint deadline) {
  MC_TRY(decoded, wire::decode_descriptor(descriptor));
  if (decoded.instance == core_->services.instance)
    return Error{Code::invalid, "xfer: connect: the descriptor is that of this process"};
  MC_TRY(id, core_->directory.add(decoded.instance));
  core_->commands.push({.kind = Command::Kind::connect,
                        .peer = id,
                        .deadline = deadline,
                        .descriptor = std::make_shared<const Descriptor>(std::move(decoded))});
  return id;
}

Result<PeerId> Engine::connect(const std::string& uri, TimePoint deadline) {
  const TransportEntry* entry = core_->transports.speaker_of(uri);
  if (entry == nullptr) return Error{Code::unsupported, "xfer: connect: no transport of this engine dials " + uri};
  std::string numeric = uri;
  if (entry->dials_hosts) {
    MC_TRY(resolved, resolve(entry->scheme, uri));
    numeric = std::move(resolved);
  }
  MC_TRY(id, core_->directory.add({}));
  core_->commands.push({.kind = Command::Kind::connect, .peer = id, .deadline = deadline, .text = std::move(numeric)});
  return id;
}

Result<void> Engine::set_secret(const std::string& secret) {
  if (!core_->secured) return {Code::invalid, "the engine was opened without a secret"};
  if (secret.size() != kSecretBytes)
    return {Code::invalid, "secret needs 32 bytes, has " + std::to_string(secret.size())};
  core_->commands.push({.kind = Command::Kind::secret, .text = secret});
  return {};
}

void Engine::disconnect(PeerId peer) {
  core_->directory.leave(peer);
  core_->commands.push({.kind = Command::Kind::disconnect, .peer = peer});
}

std::shared_ptr<const Descriptor> Engine::descriptor(PeerId peer) const {
  return core_->directory.descriptor(peer);
}

std::string Engine::transport(PeerId peer) const {
  const auto route = core_->directory.route(peer);
  return route ? core_->transports.entry(*route).scheme : std::string();
}

Result<BatchId> Engine::submit(std::span<const Request> requests, TimePoint deadline, uint64_t cookie) {
  if (is_small(requests, core_->options) && deadline != kNever)
    if (const BatchId id = core_->turns.submit_small(requests[0], deadline, cookie); id != BatchId::none) return id;
  return core_->submit(requests, deadline, cookie);
}

std::span<const RequestResult> Engine::results(BatchId batch) const {
  if (SmallTable::is_small(batch))
    if (const auto results = core_->small.results(batch); !results.empty()) return results;
  return core_->batches.results(batch);
}

void Engine::cancel(BatchId batch) {
  if (SmallTable::is_small(batch)) core_->turns.join_small();
  if (core_->batches.cancel(batch)) core_->commands.push({.kind = Command::Kind::cancel, .batch_id = batch});
}

Result<void> Engine::close(BatchId batch) {
  return core_->close(batch, TimePoint{});
}

Result<void> Engine::close(BatchId batch, TimePoint deadline) {
  return core_->close(batch, deadline);
}

Code Engine::notify(PeerId peer, std::span<const std::byte> bytes) {
  if (bytes.size() > kNotifyBytesMax) return Code::invalid;
  if (const Code code = core_->directory.add_notify(peer); code != Code::ok) return code;
  core_->commands.push({.kind = Command::Kind::notify, .peer = peer, .bytes = {bytes.begin(), bytes.end()}});
  return Code::ok;
}

Result<View> Engine::map(PeerId peer, uint32_t buffer, uint64_t offset, uint64_t length) const {
  return core_->directory.map(peer, buffer, offset, length);
}

int Engine::event_fd() const {
  return core_->events.watch();
}

size_t Engine::poll(std::vector<Event>& out, TimePoint deadline, size_t max) {
  if (max > 0) core_->turns.watch(deadline);
  bool made_room = false;
  const size_t count = core_->events.poll(out, deadline, max, made_room);
  if (made_room) core_->commands.push({.kind = Command::Kind::resume});
  return count;
}

Counters Engine::counters() const {
  return core_->tally.snapshot(core_->table);
}

}  // namespace mc::xfer

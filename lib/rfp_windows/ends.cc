// The table of windows, and the two ends of a channel: set-up by two notifies, then transfers.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/assert.h"
#include "base/log.h"
#include "rfp_windows/rfp_windows.h"
#include "rfp_windows/table.h"

namespace mc::rfp {
namespace {

constexpr std::array kWindows = {&kWindowShm, &kWindowRdma, &kWindowTcp};

std::string name_of(const char* what, uint64_t epoch) {
  char text[48];
  std::snprintf(text, sizeof text, "rfp-%s-%016llx", what, static_cast<unsigned long long>(epoch));
  return text;
}

uint64_t low_bits(const xfer::Engine& engine) {
  uint64_t out = 0;
  for (size_t i = 0; i < 8; ++i) out = out << 8 | engine.instance().bytes[i];
  return out;
}

/// Whether the peer offers the buffer, with at least `bytes`.
bool offers(const xfer::Engine& engine, xfer::PeerId peer, uint32_t id, uint64_t bytes) {
  const auto descriptor = engine.descriptor(peer);
  const xfer::BufferInfo* buffer = descriptor ? descriptor->find(id) : nullptr;
  return buffer != nullptr && buffer->length >= bytes;
}

Result<void> make_buffer(xfer::Engine& engine, uint64_t bytes, const xfer::Buffer& buffer, mem::SharedBuffer& memory,
                         std::vector<xfer::BufferId>& ids) {
  MC_TRY(made, mem::SharedBuffer::create(bytes, {.peers_write = buffer.access == xfer::AccessClass::landing}));
  memory = std::move(made);
  MC_TRY(id, engine.register_buffer(memory, buffer));
  ids.push_back(id);
  return {};
}

/// Unregisters buffers, waits until the deadline at most, and leaves the ones still in use in `ids`. True: none is
/// left.
bool unregister(xfer::Engine& engine, std::vector<xfer::BufferId>& ids, TimePoint deadline) {
  std::erase_if(ids, [&](xfer::BufferId id) { return engine.unregister(id, deadline).has_value(); });
  return ids.empty();
}

/// A batch's deadline and the engine's grace end within the time, but a peer may write its bytes slower than that. The
/// memory then stays mapped until the process ends.
void unregister_or_keep(xfer::Engine& engine, std::vector<xfer::BufferId>& ids, TimePoint deadline,
                        mem::SharedBuffer& first, mem::SharedBuffer& second) {
  if (unregister(engine, ids, std::min(deadline, SystemClock::instance().now() + kReleaseMax))) return;
  log_warn("memory of a channel kept: a peer is still writing into it", {{"bytes", first.size() + second.size()}});
  for (mem::SharedBuffer* memory : {&first, &second})
    (void)std::make_unique<mem::SharedBuffer>(std::move(*memory)).release();
}

Result<InstanceId> instance_of(const xfer::Engine& engine, xfer::PeerId peer) {
  const auto descriptor = engine.descriptor(peer);
  if (!descriptor) return Error{Code::peer_lost, "rfp: the peer is not connected"};
  return descriptor->instance;
}

}  // namespace

std::span<const WindowEntry* const> windows() {
  return kWindows;
}

const WindowEntry* window_to(const xfer::Engine& engine, xfer::PeerId peer) {
  const std::string scheme = engine.transport(peer);
  for (const WindowEntry* entry : windows())
    if (scheme == entry->scheme) return entry;
  return nullptr;
}

Result<std::unique_ptr<ClientEnd>> ClientEnd::open(xfer::Engine& engine, xfer::PeerId peer, uint32_t number,
                                                   const ClientOptions& options, bool wakes) {
  MC_TRY(server, instance_of(engine, peer));
  std::unique_ptr<ClientEnd> end(new ClientEnd(engine, peer, options, wakes));
  const uint64_t epoch = end->options_.epoch = low_bits(engine) + number;
  const wire::RfpGeometry& geometry = options.geometry;
  MC_CHECK(make_buffer(engine, client_bytes(geometry), {.name = name_of("client", epoch)}, end->local_, end->buffers_));
  MC_CHECK(make_buffer(engine, geometry.responses_bytes(),
                       {.name = name_of("pushed", epoch), .access = xfer::AccessClass::landing, .writer = server},
                       end->pushed_, end->buffers_));
  end->transfers_.resize(geometry.slots + 1);
  const wire::RfpOpen asked{
      .epoch = epoch, .geometry = geometry, .pushed = static_cast<uint32_t>(end->buffers_.back())};
  if (const Code code = engine.notify(peer, wire::encode(asked)); code != Code::ok)
    return Error{code, "rfp: the peer cannot be asked for a channel"};
  return end;
}

void ClientEnd::on(const xfer::Event& event) {
  if (window_) window_->on(event);
  if (event.peer != peer_) return;
  if (event.kind == xfer::Event::Kind::peer_lost) {
    refused_ = Code::peer_lost;
    if (client_) client_->fail(Code::peer_lost);
  }
  if (event.kind != xfer::Event::Kind::notify || opened_) return;
  const auto opened = wire::decode_rfp_opened(event.bytes);
  if (!opened || opened->epoch != options_.epoch) return;
  if (opened->code != Code::ok || opened->geometry != options_.geometry)
    refused_ = opened->code != Code::ok ? opened->code : Code::corrupt;
  else
    opened_ = *opened;
}

void ClientEnd::open_window() {
  const wire::RfpGeometry& geometry = options_.geometry;
  const WindowEntry* entry = window_to(engine_, peer_);
  if (!opened_ || entry == nullptr || refused_ != Code::ok) return;
  if (!offers(engine_, peer_, opened_->requests, geometry.requests_bytes()) ||
      !offers(engine_, peer_, opened_->responses, geometry.responses_bytes()))
    return;  // the descriptor that names them is under way
  auto window = entry->open(
      {.engine = &engine_, .peer = peer_, .written = opened_->requests, .read = opened_->responses, .wakes = wakes_});
  if (!window) {
    refused_ = window.error().code;
    return;
  }
  options_.instance = opened_->instance;
  options_.fetches = entry->fetches;
  client_.emplace(options_);
  window_ = std::move(*window);
}

void ClientEnd::run(TimePoint now) {
  if (!window_) open_window();
  if (!window_) return;
  client_->expire(now);
  for (;;) {
    ended_.clear();
    window_->ended(ended_);
    for (const WindowDone& done : ended_) client_->done(memory(), transfers_[done.cookie], done.code, now);
    if (client_->pushes()) client_->look(memory());
    const auto transfer = client_->next(memory(), now);
    if (!transfer) {
      if (ended_.empty()) return;
      continue;
    }
    const bool read = transfer->kind == Transfer::Kind::read;
    const uint64_t cookie =
        transfer->kind == Transfer::Kind::write_mode ? options_.geometry.slots : uint64_t{transfer->slot};
    transfers_[cookie] = *transfer;
    ++(read ? figures_.reads : figures_.writes);
    const auto local = local_.bytes().subspan(transfer->local, transfer->bytes);
    if (read)
      window_->read(transfer->remote, local, cookie);
    else
      window_->write(transfer->remote, local, cookie);
  }
}

bool ClientEnd::close() {
  const bool freed = unregister(engine_, buffers_, TimePoint{});
  return freed && (!window_ || window_->idle());
}

ClientEnd::~ClientEnd() {
  window_.reset();
  unregister_or_keep(engine_, buffers_, release_by_, local_, pushed_);
}

Result<std::unique_ptr<ServerEnd>> ServerEnd::open(xfer::Engine& engine, xfer::PeerId peer, const wire::RfpOpen& asked,
                                                   uint64_t instance, bool wakes) {
  MC_TRY(client, instance_of(engine, peer));
  std::unique_ptr<ServerEnd> end(new ServerEnd(engine, peer, asked, wakes));
  end->instance_ = instance;
  const wire::RfpGeometry& geometry = asked.geometry;
  // The peer chose the epoch, so the name of a buffer has this end's number too.
  const std::string number = "-" + std::to_string(instance);
  MC_CHECK(make_buffer(
      engine, geometry.requests_bytes(),
      {.name = name_of("requests", asked.epoch) + number, .access = xfer::AccessClass::landing, .writer = client},
      end->requests_, end->buffers_));
  MC_CHECK(make_buffer(engine, geometry.responses_bytes(),
                       {.name = name_of("responses", asked.epoch) + number, .access = xfer::AccessClass::blocks},
                       end->responses_, end->buffers_));
  end->payload_.resize(geometry.request_bytes / 8);
  const wire::RfpOpened opened{.epoch = asked.epoch,
                               .instance = instance,
                               .geometry = geometry,
                               .requests = static_cast<uint32_t>(end->buffers_[0]),
                               .responses = static_cast<uint32_t>(end->buffers_[1])};
  if (const Code code = engine.notify(peer, wire::encode(opened)); code != Code::ok)
    return Error{code, "rfp: the peer cannot be answered"};
  return end;
}

void ServerEnd::on(const xfer::Event& event) {
  if (window_) window_->on(event);
}

void ServerEnd::open_window() {
  const WindowEntry* entry = window_to(engine_, peer_);
  if (entry == nullptr || !offers(engine_, peer_, asked_.pushed, asked_.geometry.responses_bytes())) return;
  auto window = entry->open({.engine = &engine_, .peer = peer_, .written = asked_.pushed, .wakes = wakes_});
  if (!window) return;
  ServerOptions options{
      .geometry = asked_.geometry, .epoch = asked_.epoch, .instance = instance_, .always_push = !entry->fetches};
  // A sleeping end looks once for each write. A look that is left out could be the one at the whole request.
  if (wakes_) options.bad_looks_max = 0;
  server_.emplace(options);
  window_ = std::move(*window);
}

void ServerEnd::run() {
  if (!window_) open_window();
  if (!window_) return;
  ended_.clear();
  window_->ended(ended_);
  for (const WindowDone& done : ended_) server_->pushed(static_cast<uint32_t>(done.cookie), done.code);
  while (const auto push = server_->push(memory())) {
    ++figures_.writes;
    window_->write(push->at, responses_.bytes().subspan(push->at, push->bytes), push->slot);
  }
}

std::optional<Server::Request> ServerEnd::poll(TimePoint now) {
  if (!server_) return std::nullopt;
  return server_->poll(memory(), std::as_writable_bytes(std::span(payload_)), now);
}

std::span<const std::byte> ServerEnd::payload(const Server::Request& request) const {
  return std::as_bytes(std::span(payload_)).first(request.size);
}

void ServerEnd::publish(uint64_t sequence, uint16_t status, std::span<const std::byte> payload, TimePoint now) {
  MC_ASSERT(server_.has_value());
  server_->publish(memory(), sequence, status, payload, now);
}

bool ServerEnd::close() {
  const bool freed = unregister(engine_, buffers_, TimePoint{});
  return freed && (!window_ || window_->idle());
}

ServerEnd::~ServerEnd() {
  window_.reset();
  unregister_or_keep(engine_, buffers_, release_by_, requests_, responses_);
}

}  // namespace mc::rfp

#include "xfer_rdma/transport.h"

#include <sys/epoll.h>

#include <cerrno>

#include "base/assert.h"
#include "base/log.h"
#include "base/uri.h"
#include "xfer/poller.h"
#include "xfer/socket.h"
#include "xfer/tally.h"
#include "xfer_rdma/xfer_rdma.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kMemlockMin = uint64_t{64} << 20;  // a lower limit has no room for a useful pool

/// The value of rdma_bind, or any port on tcp's listening host.
std::string bind_text(const Options& options) {
  if (!options.rdma_bind.empty()) return options.rdma_bind;
  const auto place = parse_host_port(options.tcp_bind);
  return place ? HostPort{place->host, 0}.text() : options.tcp_bind;
}

std::string advertise_text(const Options& options) {
  if (!options.rdma_advertise.empty() || options.tcp_advertise.empty()) return options.rdma_advertise;
  const auto place = parse_host_port(options.tcp_advertise);
  return place ? HostPort{place->host, 0}.text() : options.tcp_advertise;
}

Reach probe_rdma(const Options& options) {
  const RdmaReport report = rdma_report(options);
  if (!report.usable) return {false, "", report.reason, Code::unsupported};
  if (report.memlock_bytes < kMemlockMin)  // reported now and not when the first pool is registered
    return {false, "",
            "this process may lock only " + std::to_string(report.memlock_bytes / 1024) +
                " KiB of memory: ulimit -l unlimited, or LimitMEMLOCK=infinity in its unit",
            Code::unsupported};
  Reach reach = may_listen("rdma", bind_text(options), options);
  if (reach.usable) reach.reason = report.reason;
  return reach;
}

Reach reach_by_rdma(const Descriptor&, const Descriptor& remote) {
  for (const auto& uri : remote.uris)
    if (uri.starts_with("rdma://")) return {true, uri, "both sides have RDMA devices"};
  return {false, "", "the peer does not listen on rdma"};
}

Result<void> check_rdma(const Options& options) {
  const auto bad = [](const std::string& what) { return Error{Code::invalid, "xfer: " + what}; };
  if (options.rdma_lanes < 1 || options.rdma_lanes > static_cast<int>(wire::kRdmaLanesMax))
    return bad("rdma_lanes needs 1 to " + std::to_string(wire::kRdmaLanesMax) + ", is " +
               std::to_string(options.rdma_lanes));
  if (options.rdma_pairs_max < static_cast<size_t>(options.rdma_lanes))
    return bad("rdma_pairs_max needs at least rdma_lanes (" + std::to_string(options.rdma_lanes) + "), is " +
               std::to_string(options.rdma_pairs_max));
  if (options.rdma_retry < 0 || options.rdma_retry > 6 || options.rdma_timeout < 1 || options.rdma_timeout > 31)
    return bad("rdma_retry needs 0 to 6 and rdma_timeout 1 to 31: retrying for ever would never report a dead peer");
  const int mtu = options.rdma_mtu_max;
  if (mtu != 0 && (mtu < 256 || mtu > 4096 || (mtu & (mtu - 1)) != 0))
    return bad("rdma_mtu_max needs 0, 256, 512, 1024, 2048 or 4096, is " + std::to_string(mtu));
  if (options.rdma_traffic_class < 0 || options.rdma_traffic_class > 255)
    return bad("rdma_traffic_class needs 0 to 255, is " + std::to_string(options.rdma_traffic_class));
  return check_seal(options);
}

bool rdma_covers(const BufferInfo&) {
  return true;
}

}  // namespace

Result<std::string> RdmaTransport::listen() {
  const Options& options = *parts_.services.options;
  MC_TRY(place, parse_host_port(bind_text(options)));
  MC_TRY(hardware, open_hardware(options));
  MC_TRY(listening, listen_tcp("rdma", place, advertise_text(options)));
  MC_CHECK(listener_.open(std::move(listening.fd)));
  parts_.hardware = std::move(hardware);
  MC_CHECK(watch_.open());
  MC_TRY(joined, parts_.connector.open());
  MC_TRY(token, parts_.services.poller->add(parts_.index, joined, EPOLLIN));
  connector_token_ = token;
  const auto& devices = parts_.hardware.devices;
  parts_.memory.use(devices);
  GpuFacts facts = gpu_facts();
  facts.verbs_dmabuf = facts.devices > 0;
  for (const auto& device : devices) facts.verbs_dmabuf = facts.verbs_dmabuf && device->takes_dmabuf();
  const GpuChoice gpu = choose_gpu_path(facts);
  parts_.memory.set_gpu_path(gpu.path);
  log_info("rdma to gpu memory", {{"path", to_string(gpu.path)}, {"why", gpu.reason}});
  poster_.opened();
  for (const RdmaPort& port : parts_.hardware.ports)
    log_info("rdma port", {{"port", port.name()},
                           {"active", port.active},
                           {"mtu_bytes", uint64_t{port.mtu}},
                           {"address", port.gids.empty() ? "none" : gid_text(port.gids[0].gid)}});
  return "rdma://" + listening.told.text();
}

Result<void> RdmaTransport::attach(BufferId buffer, std::span<std::byte> memory, AccessClass access) {
  return parts_.memory.add(static_cast<uint32_t>(buffer), memory, access);
}

void RdmaTransport::detach(BufferId buffer) {
  parts_.memory.remove(static_cast<uint32_t>(buffer));
}

RdmaEndpoint* RdmaTransport::add(Fd fd, Handshake handshake, TimePoint deadline) {
  auto endpoint = std::make_unique<RdmaEndpoint>(parts_, frames_, std::move(fd), std::move(handshake));
  if (!endpoint->socket.open(parts_.index)) return nullptr;
  endpoint->socket.deadline = deadline;
  parts_.due(deadline);
  ++parts_.strangers;
  RdmaEndpoint* raw = endpoint.get();
  by_token_.emplace(raw->socket.token(), raw);
  parts_.endpoints.emplace(raw->id, std::move(endpoint));
  return raw;
}

EndpointId RdmaTransport::connect(const Dial& dial, Reports& out) {
  Services& services = parts_.services;
  services.tally->add(Count::connects);
  PeerDialling dialling = dial_peer("rdma", dial, *services.options);
  if (!dialling.refused) {
    auto handshake = Handshake::dial(services, dial.wanted, dial.connection, 0, 1, dialling.seal, dial.ticket);
    if (const RdmaEndpoint* endpoint = add(std::move(dialling.fd), std::move(handshake), dial.deadline))
      return endpoint->id;
    dialling.refused = Loss{Code::io, false, "cannot watch a socket"};
  }
  const EndpointId id = services.next_endpoint();
  out.events.push_back(lost(id, *dialling.refused));
  return id;
}

void RdmaTransport::accepted(Fd fd) {
  Services& services = parts_.services;
  if (parts_.strangers >= kStrangersMax || parts_.endpoints.size() >= services.endpoints_max)
    return services.tally->failure("accept: too many connections");
  const auto setting = seal_setting(*services.options, stays_on_host(peer_address(fd.get())));
  RdmaEndpoint* endpoint =
      add(std::move(fd), Handshake::listen(services, setting), now() + services.options->connect_timeout);
  if (endpoint != nullptr) endpoint->accepted = true;
}

void RdmaTransport::ready(uint64_t token, uint32_t events, Reports& out) {
  dropped_.clear();
  parts_.round = now();
  if (listener_.owns(token)) return parts_.due(listener_.accept([this](Fd fd) { accepted(std::move(fd)); }));
  if (token == connector_token_) {
    for (const RdmaConnector::Done& done : parts_.connector.take()) paths_.on_joined(done, out);
  } else if (const auto socket = by_token_.find(token); socket != by_token_.end()) {
    on_socket(*socket->second, events, out);
  } else {
    (void)watch_.ready(token, events, out);
  }
  resting_.share(out);
  sweep(out);
}

void RdmaTransport::on_socket(RdmaEndpoint& endpoint, uint32_t events, Reports& out) {
  PeerSocket& socket = endpoint.socket;
  if (socket.connecting()) {
    if (auto why = socket.connected()) endpoint.doom(std::move(*why));
  } else if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
    if (socket.receive(endpoint, kBudget, out) == FrameStream::Io::broken) broken(endpoint);
  }
}

/// The stream ended, or a frame on it ended the connection.
void RdmaTransport::broken(RdmaEndpoint& endpoint) {
  if (!endpoint.doomed()) endpoint.doom(endpoint.socket.broken());
}

void RdmaTransport::arm(RdmaEndpoint& endpoint) {
  PeerSocket& socket = endpoint.socket;
  if (socket.connecting()) return;
  if (!socket.io.idle()) parts_.due(socket.progress + parts_.services.options->stall_timeout);
  socket.watch(endpoint.up && !parts_.services.reading_notifies);
}

void RdmaTransport::sweep(Reports& out) {
  std::vector<FrameStream::Gone> nothing;  // control frames carry no pins
  std::vector<RdmaEndpoint*> doomed;
  for (auto& [id, endpoint] : parts_.endpoints) {
    PeerSocket& socket = endpoint->socket;
    if (!socket.connecting() && !socket.io.idle() && socket.flush(kBudget, nothing) == FrameStream::Io::broken)
      broken(*endpoint);
    if (endpoint->doomed())
      doomed.push_back(endpoint.get());
    else
      arm(*endpoint);
  }
  for (RdmaEndpoint* endpoint : doomed) lose(*endpoint, out);
}

EndpointEvent RdmaTransport::lost(EndpointId id, const Loss& why) {
  return {.kind = EndpointEvent::Kind::lost,
          .endpoint = id,
          .gone = why.gone,
          .code = why.code,
          .mismatch = why.mismatch,
          .no_listener = why.no_listener,
          .text = "rdma: " + why.text};
}

/// Destroys the queue pairs before it reports, as the contract of `lost` requires.
void RdmaTransport::lose(RdmaEndpoint& endpoint, Reports& out) {
  const Loss& why = *endpoint.loss;
  const bool writes = paths_.abandon(endpoint, out);
  resting_.release(endpoint);
  const bool silent = endpoint.accepted && !endpoint.up;  // the endpoint was never reported to the engine
  if (!silent) {
    // No wait for a close on purpose, because no write is repeated then. No wait for a lost peer, whose queue pairs are
    // gone too.
    const bool wait = writes && why.code != Code::cancelled && !why.gone;
    partings_.push_back({wait ? now() + RdmaHold::kMax : now(), lost(endpoint.id, why)});
    parts_.due(partings_.back().at);
    if (!wait) part(endpoint.id, now(), out);
  }
  if (!endpoint.socket.handshake.complete()) --parts_.strangers;
  endpoint.socket.close();
  by_token_.erase(endpoint.socket.token());
  const auto at = parts_.endpoints.find(endpoint.id);
  MC_ASSERT(at != parts_.endpoints.end());
  dropped_.push_back(std::move(at->second));
  parts_.endpoints.erase(at);
}

/// Reports the losses whose wait is over, and the loss of `id` in any case.
void RdmaTransport::part(EndpointId id, TimePoint at, Reports& out) {
  std::erase_if(partings_, [&](Parting& parting) {
    if (parting.at > at && parting.event.endpoint != id) return false;
    out.events.push_back(std::move(parting.event));
    return true;
  });
  for (const Parting& parting : partings_) parts_.due(parting.at);
}

int RdmaTransport::lanes(EndpointId id) const {
  const RdmaEndpoint* endpoint = parts_.find(id);
  return endpoint == nullptr ? 0 : static_cast<int>(endpoint->rails.size() * endpoint->lanes_per_path);
}

size_t RdmaTransport::post(EndpointId id, int lane, std::span<const Slice> slices, Reports& out) {
  RdmaEndpoint* endpoint = parts_.find(id);
  if (endpoint == nullptr) return 0;
  bool failed = false;
  const size_t taken = poster_.post(*endpoint, lane, slices, out, failed);
  MC_ASSERT_LE(taken, slices.size());
  if (failed) sweep(out);
  return taken;
}

bool RdmaTransport::post_alone(EndpointId id, int lane, const Slice& slice, Reports& out) {
  RdmaEndpoint* endpoint = parts_.find(id);
  if (endpoint != nullptr && !poster_.places(*endpoint) && small_.post(*endpoint, lane, slice)) return true;
  return Transport::post_alone(id, lane, slice, out);
}

bool RdmaTransport::end_alone(uint64_t id, uint32_t& crc, TimePoint& next, Reports& out) {
  if (!small_.has(id)) return Transport::end_alone(id, crc, next, out);
  bool changed = false;
  const bool done = small_.end(crc, changed, out);
  if (changed) sweep(out);
  next = parts_.due_at;
  return done;
}

uint64_t RdmaTransport::slice_bytes(EndpointId id, int lane) const {
  size_t index = 0;
  const RdmaEndpoint* endpoint = parts_.find(id);
  const RdmaRail* rail = endpoint == nullptr ? nullptr : endpoint->rail_of(lane, index);
  return rail == nullptr ? UINT64_MAX : rail->speed.slice_bytes();
}

/// The first lane of a path carries them, up to the number of receives that the peer has. A resting path must be woken.
size_t RdmaTransport::immediates_ahead(EndpointId id, int lane) const {
  size_t index = 0;
  const RdmaEndpoint* endpoint = parts_.find(id);
  const RdmaRail* rail = endpoint == nullptr ? nullptr : endpoint->rail_of(lane, index);
  if (rail == nullptr || rail->attempt.lane_count() == 0) return SIZE_MAX;
  return index == 0 ? rail->attempt.tells_left() : 0;
}

bool RdmaTransport::cancel(EndpointId id, int lane, uint64_t slice) {
  RdmaEndpoint* endpoint = parts_.find(id);
  return endpoint == nullptr || poster_.cancel(*endpoint, lane, slice);
}

Code RdmaTransport::notify(EndpointId id, std::span<const std::byte> bytes, Reports& out) {
  RdmaEndpoint* endpoint = parts_.find(id);
  if (endpoint == nullptr || !endpoint->up || endpoint->doomed()) return Code::peer_lost;
  RdmaMessages& messages = endpoint->messages;
  if (RdmaRail* rail = messages.carrier()) {
    const int error = messages.send(*rail, bytes);
    if (error == 0) return Code::ok;
    if (error != ENOMEM)  // the path is no longer the carrier, and its SENDs are repeated on the socket
      paths_.fail(*endpoint, *rail, PathCause::fault, errno_error("post a notify", error).what, true, out);
  }
  if (!messages.send_on_socket(bytes)) return Code::busy;
  sweep(out);
  return parts_.find(id) == nullptr ? Code::peer_lost : Code::ok;
}

void RdmaTransport::pause_notifies(bool) {
  for (auto& [id, endpoint] : parts_.endpoints) {
    if (!endpoint->up || endpoint->doomed()) continue;
    endpoint->messages.give_credit();
    arm(*endpoint);
  }
}

void RdmaTransport::publish(Reports& out) {
  for (auto& [id, endpoint] : parts_.endpoints)
    if (endpoint->live()) frames_.tell_keys(*endpoint);
  sweep(out);
}

void RdmaTransport::close(EndpointId id, Code code, std::string_view why, Reports& out) {
  RdmaEndpoint* endpoint = parts_.find(id);
  if (endpoint == nullptr) return part(id, now(), out);
  if (endpoint->up && code == Code::cancelled) {  // closed on purpose, so the peer may forget this process at once
    // The queue pairs are destroyed before the NIC may have sent everything.
    endpoint->messages.repeat();
    endpoint->socket.push(goodbye(why));
  }
  endpoint->doom({code, false, std::string(why)});
  sweep(out);
}

void RdmaTransport::shutdown() {
  Reports nobody;
  while (!parts_.endpoints.empty()) close(parts_.endpoints.begin()->first, Code::cancelled, "shutting down", nobody);
  MC_ASSERT(by_token_.empty() && parts_.strangers == 0);
  dropped_.clear();
  paths_.stop();
  if (!listener_.is_open()) return;
  listener_.close();
  watch_.close();
}

/// Ends the connection when a time-out of its socket, or of having no path, has passed.
void RdmaTransport::check_clocks(RdmaEndpoint& endpoint, TimePoint at) {
  const Options& options = *parts_.services.options;
  PeerSocket& socket = endpoint.socket;
  const auto expire = [&](TimePoint when, const char* reason, const std::string& text) {
    if (when > at) return parts_.due(when);
    if (endpoint.doomed()) return;
    parts_.services.tally->failure(reason);
    endpoint.doom({Code::timeout, false, text});
  };
  if (socket.deadline != kNever)
    expire(socket.deadline, "handshake: timeout",
           socket.handshake.complete() ? "no path was up in time" : "the handshake took too long");
  if (!socket.connecting() && !socket.io.idle())
    expire(socket.progress + options.stall_timeout, "stalled lane", "the peer does not read its socket");
  if (!endpoint.up || endpoint.dark_since == kNever) return;
  std::string why;
  for (const auto& rail : endpoint.rails) why += "; " + parts_.name_of(endpoint, *rail) + ": " + rail->last_error;
  // The dialler reconnects. The listener waits longer, so that it does not close a connection under repair.
  expire(endpoint.dark_since + options.rdma_blackout * (endpoint.accepted ? 2 : 1), "rdma: no path left",
         "no path left" + why);
}

TimePoint RdmaTransport::tick(TimePoint at, Reports& out) {
  dropped_.clear();
  poll(false, at, out);
  if (at < parts_.due_at) return parts_.due_at;
  parts_.due_at = listener_.tick(at);
  watch_.tick(at, out);
  for (auto& [id, endpoint] : parts_.endpoints) {
    check_clocks(*endpoint, at);
    paths_.tick(*endpoint, at, out);
  }
  part(EndpointId::none, at, out);
  resting_.share(out);
  sweep(out);
  return parts_.due_at;
}

/// Takes completions; see RdmaPaths::poll.
void RdmaTransport::poll(bool arm, TimePoint at, Reports& out) {
  parts_.round = at;
  if (paths_.poll(arm, out)) sweep(out);
}

TimePoint RdmaTransport::look(Reports& out) {
  poll(false, parts_.round, out);
  return parts_.due_at;
}

void RdmaTransport::doze(Reports& out) {
  poll(true, now(), out);
  if (parts_.due_at <= now()) out.room = true;  // tick() has work already, so the engine must not wait
}

const TransportEntry kTransportRdma = {
    .scheme = "rdma",
    .summary = "RDMA READ and WRITE over InfiniBand or RoCE",
    .dials_hosts = true,
    .maps_memory = false,
    .check = check_rdma,
    .probe = probe_rdma,
    .reach = reach_by_rdma,
    .covers = rdma_covers,
    .make = [](Services& services, uint8_t index) -> std::unique_ptr<Transport> {
      return std::make_unique<RdmaTransport>(services, index);
    },
};

}  // namespace mc::xfer

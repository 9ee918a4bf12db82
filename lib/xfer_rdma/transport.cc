// rdma: the socket of an endpoint and its life. transport.h draws the whole.
#include "xfer_rdma/transport.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/log.h"
#include "base/uri.h"
#include "xfer/access.h"
#include "xfer/poller.h"
#include "xfer/socket.h"
#include "xfer/tally.h"
#include "xfer_rdma/xfer_rdma.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kMemlockMin = uint64_t{64} << 20;  // less holds no pool worth registering

/// rdma_bind, or any port on the host tcp listens on.
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
  if (report.memlock_bytes < kMemlockMin)  // found out now, not when the first pool is registered
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
  MC_TRY(place, parse_host_port(bind_text(*home_.options)));
  MC_TRY(hardware, open_hardware(*home_.options));
  MC_TRY(listening, listen_tcp("rdma", place, advertise_text(*home_.options)));
  MC_TRY(token, home_.poller->add(index_, listening.fd.get(), EPOLLIN));
  hardware_ = std::move(hardware);
  listener_ = std::move(listening.fd);
  listener_token_ = token;
  for (const auto& device : hardware_.devices) MC_CHECK(watch(*device));
  MC_TRY(revived, revival_.open());
  MC_TRY(revival_token, home_.poller->add(index_, revived, EPOLLIN));
  revival_token_ = revival_token;
  MC_TRY(joined, connector_.open());
  MC_TRY(connector_token, home_.poller->add(index_, joined, EPOLLIN));
  connector_token_ = connector_token;
  memory_.use(hardware_.devices);
  if (home_.options->faults.lose_nic > Duration{}) due(now());
  GpuFacts facts = gpu_facts();
  facts.verbs_dmabuf = facts.devices > 0;
  for (const auto& device : hardware_.devices) facts.verbs_dmabuf = facts.verbs_dmabuf && device->takes_dmabuf();
  const GpuChoice gpu = choose_gpu_path(facts);
  memory_.set_gpu_path(gpu.path);
  log_info("rdma to gpu memory", {{"path", to_string(gpu.path)}, {"why", gpu.reason}});
  for (const RdmaPort& port : hardware_.ports) placed_ |= port.place != hardware_.ports[0].place;
  for (const RdmaPort& port : hardware_.ports)
    log_info("rdma port", {{"port", port.name()},
                           {"active", port.active},
                           {"mtu_bytes", uint64_t{port.mtu}},
                           {"address", port.gids.empty() ? "none" : gid_text(port.gids[0].gid)}});
  return "rdma://" + listening.told.text();
}

Result<void> RdmaTransport::attach(BufferId buffer, std::span<std::byte> memory, AccessClass access) {
  return memory_.add(static_cast<uint32_t>(buffer), memory, access);
}

void RdmaTransport::detach(BufferId buffer) {
  memory_.remove(static_cast<uint32_t>(buffer));
}

RdmaEndpoint* RdmaTransport::add(Fd fd, Handshake handshake, uint32_t events) {
  tune_socket(fd.get());
  auto token = home_.poller->add(index_, fd.get(), events);
  if (!token) return nullptr;
  auto endpoint = std::make_unique<RdmaEndpoint>(*this, std::move(fd), std::move(handshake));
  endpoint->id = home_.next_endpoint();
  endpoint->token = *token;
  endpoint->armed = events;
  endpoint->progress = now();
  ++strangers_;
  RdmaEndpoint* raw = endpoint.get();
  by_token_.emplace(*token, raw);
  endpoints_.emplace(raw->id, std::move(endpoint));
  return raw;
}

EndpointId RdmaTransport::connect(const Dial& dial, Reports& out) {
  home_.tally->add(Count::connects);
  const auto refuse = [&](Code code, bool gone, std::string text) {
    const EndpointId id = home_.next_endpoint();
    out.news.push_back(
        {.kind = News::Kind::lost, .endpoint = id, .gone = gone, .code = code, .text = "rdma: " + std::move(text)});
    return id;
  };
  const auto place = parse_host_port(std::string_view(dial.uri).substr(std::min(dial.uri.size(), size_t{7})));
  if (!dial.uri.starts_with("rdma://") || !place) return refuse(Code::invalid, false, "bad address " + dial.uri);
  if (const Reach reach = may_dial(dial.uri, place->host, *home_.options); !reach.usable)
    return refuse(reach.code, false, reach.reason);
  const auto address = numeric_address(*place);
  if (!address) return refuse(Code::invalid, false, address.error().what);
  Dialling dialling = dial_tcp(*address);
  if (dialling.error != 0) {
    const bool refused = dialling.error == ECONNREFUSED && !dial.wanted.is_zero();
    return refuse(refused ? Code::peer_lost : Code::io, refused, errno_error("dial " + dial.uri, dialling.error).what);
  }
  const wire::SealWish wish = seal_wish(*home_.options, stays_on_host(*address));
  RdmaEndpoint* endpoint = add(std::move(dialling.fd),
                               Handshake::dial(home_, dial.wanted, dial.connection, 0, 1, wish, dial.ticket), EPOLLOUT);
  if (endpoint == nullptr) return refuse(Code::io, false, "cannot watch a socket");
  endpoint->wanted = dial.wanted;
  endpoint->connecting = true;
  endpoint->deadline = dial.deadline;
  due(dial.deadline);
  return endpoint->id;
}

void RdmaTransport::accept_some() {
  for (int i = 0; i < 16; ++i) {
    auto [fd, exhausted] = accept_next(listener_.get());
    if (exhausted) {  // look again at the next tick
      home_.tally->failure("accept: out of descriptors or memory");
      home_.poller->modify(listener_token_, listener_.get(), 0);
      listener_paused_ = true;
      due(now() + 100ms);
    }
    if (!fd) return;
    home_.tally->add(Count::accepts);
    if (strangers_ >= kStrangersMax || endpoints_.size() >= home_.endpoints_max) {
      home_.tally->failure("accept: too many connections");
      continue;
    }
    const auto wish = seal_wish(*home_.options, stays_on_host(peer_address(fd.get())));
    RdmaEndpoint* endpoint = add(std::move(fd), Handshake::listen(home_, wish), EPOLLIN);
    if (endpoint == nullptr) continue;
    endpoint->accepted = true;
    endpoint->deadline = now() + home_.options->connect_timeout;
    due(endpoint->deadline);
  }
}

void RdmaTransport::ready(uint64_t token, uint32_t events, Reports& out) {
  dropped_.clear();
  round_ = now();
  if (token == listener_token_) return accept_some();
  if (const auto at = channels_.find(token); at != channels_.end()) {
    RdmaDevice& device = *at->second;
    on_completions(device, out);
    if (device.failed && (events & EPOLLERR) != 0) unwatch_channel(device);
  } else if (token == revival_token_) {
    for (const RdmaRevival::Back& back : revival_.take()) device_back(back);
  } else if (token == connector_token_) {
    for (const RdmaConnector::Done& done : connector_.take()) on_joined(done, out);
  } else if (const auto event = async_.find(token); event != async_.end()) {
    on_device_events(*event->second, out);
  } else if (const auto socket = by_token_.find(token); socket != by_token_.end()) {
    on_socket(*socket->second, events, out);
  }
  share_pairs(out);
  sweep(out);
}

void RdmaTransport::on_socket(RdmaEndpoint& endpoint, uint32_t events, Reports& out) {
  if (endpoint.connecting) {
    if (const int error = connect_error(endpoint.io.fd()); error != 0) {
      const bool refused = error == ECONNREFUSED && !endpoint.wanted.is_zero();
      return doom(endpoint, refused ? Code::peer_lost : Code::io, refused, errno_error("connect", error).what);
    }
    endpoint.connecting = false;
    endpoint.push(endpoint.handshake.opening());
    return;
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  endpoint.out = &out;
  const auto io = endpoint.io.receive(endpoint, size_t{1} << 20);
  endpoint.out = nullptr;
  endpoint.progress = now();
  if (io == FrameStream::Io::broken) broken(endpoint);
}

/// The stream ended, or a frame on it ended the connection.
void RdmaTransport::broken(RdmaEndpoint& endpoint) {
  if (endpoint.doomed) return;
  const Code code = endpoint.io.code();
  const bool complete = endpoint.handshake.complete();
  if (code != Code::peer_lost || !complete)
    home_.tally->failure(endpoint.failure || code != Code::peer_lost ? endpoint.io.reason()
                                                                     : "handshake: closed by the peer");
  if (!complete && !endpoint.failure && code != Code::peer_lost) endpoint.push(refusal(code, endpoint.io.error()));
  if (endpoint.failure)
    doom(endpoint, endpoint.failure->code, endpoint.failure->gone, endpoint.failure->text);
  else
    doom(endpoint, code, false, endpoint.io.error());
}

void RdmaTransport::doom(RdmaEndpoint& endpoint, Code code, bool gone, std::string text) {
  if (std::exchange(endpoint.doomed, true)) return;
  endpoint.failure = News{.kind = News::Kind::lost, .gone = gone, .code = code, .text = std::move(text)};
}

void RdmaTransport::arm(RdmaEndpoint& endpoint) {
  if (endpoint.connecting) return;
  if (!endpoint.io.idle()) due(endpoint.progress + home_.options->stall_timeout);
  const bool paused = endpoint.up && !home_.reading_notifies;
  const uint32_t events = (paused ? EPOLLRDHUP : EPOLLIN) | (endpoint.io.idle() ? 0u : EPOLLOUT);
  if (events == endpoint.armed) return;
  home_.poller->modify(endpoint.token, endpoint.io.fd(), events);
  endpoint.armed = events;
}

void RdmaTransport::sweep(Reports& out) {
  std::vector<FrameStream::Gone> nothing;  // control frames carry no pins
  std::vector<RdmaEndpoint*> doomed;
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->connecting && !endpoint->io.idle()) {
      const size_t before = endpoint->io.queued_bytes();
      const auto io = endpoint->io.flush(size_t{1} << 20, nothing);
      if (endpoint->io.queued_bytes() != before) endpoint->progress = now();
      if (io == FrameStream::Io::broken) broken(*endpoint);
    }
    if (endpoint->doomed)
      doomed.push_back(endpoint.get());
    else
      arm(*endpoint);
  }
  for (RdmaEndpoint* endpoint : doomed) lose(*endpoint, *endpoint->failure, out);
}

/// Destroys the queue pairs, then says so: the contract of `lost`.
void RdmaTransport::lose(RdmaEndpoint& endpoint, const News& why, Reports& out) {
  bool writes = false;
  for (auto& rail : endpoint.rails) {
    rail->fail_lanes();
    RdmaRail::Polled flushed;
    rail->poll(flushed);
    take_messages(endpoint, *rail, flushed.messages, out);  // what it said before it went
    writes |= !rail->hold.empty();
    if (rail->joining) {  // nothing was ever posted on it
      rail->orphan();
      orphans_.push_back(std::move(rail));
      continue;
    }
    for (const auto& failed : rail->close(reaper_)) writes |= failed.slice.op == Op::write;  // they end with `lost`
  }
  release_pairs(endpoint);
  const bool silent = endpoint.accepted && !endpoint.up;  // the engine never heard of it
  if (!silent) {
    // not when we close on purpose: then nobody writes again; nor when the peer is gone, with its queue pairs
    const bool wait = writes && why.code != Code::cancelled && !why.gone;
    News news{.kind = News::Kind::lost,
              .endpoint = endpoint.id,
              .gone = why.gone,
              .code = why.code,
              .text = "rdma: " + why.text};
    partings_.push_back({wait ? now() + RdmaHold::kMax : now(), std::move(news)});
    due(partings_.back().at);
    if (!wait) part(endpoint.id, now(), out);
  }
  if (!endpoint.handshake.complete()) --strangers_;
  home_.poller->remove(endpoint.io.fd());
  ::shutdown(endpoint.io.fd(), SHUT_RDWR);
  by_token_.erase(endpoint.token);
  const auto at = endpoints_.find(endpoint.id);
  MC_ASSERT(at != endpoints_.end());
  dropped_.push_back(std::move(at->second));
  endpoints_.erase(at);
}

/// Reports losses whose wait is over, and that of `id` in any case.
void RdmaTransport::part(EndpointId id, TimePoint at, Reports& out) {
  std::erase_if(partings_, [&](Parting& parting) {
    if (parting.at > at && parting.news.endpoint != id) return false;
    out.news.push_back(std::move(parting.news));
    return true;
  });
  for (const Parting& parting : partings_) due(parting.at);
}

RdmaEndpoint* RdmaTransport::find(EndpointId id) const {
  const auto at = endpoints_.find(id);
  return at == endpoints_.end() ? nullptr : at->second.get();
}

int RdmaTransport::lanes(EndpointId id) const {
  const RdmaEndpoint* endpoint = find(id);
  return endpoint == nullptr ? 0 : static_cast<int>(endpoint->rails.size() * endpoint->lanes_per_path);
}

void RdmaTransport::publish(Reports& out) {
  for (auto& [id, endpoint] : endpoints_)
    if (endpoint->handshake.complete() && !endpoint->doomed) tell_keys(*endpoint);
  sweep(out);
}

void RdmaTransport::close(EndpointId id, Code code, std::string_view why, Reports& out) {
  RdmaEndpoint* endpoint = find(id);
  if (endpoint == nullptr) return part(id, now(), out);
  if (endpoint->up && code == Code::cancelled) {  // on purpose: the peer may forget us at once
    voice_lost(*endpoint);                        // our queue pairs go before the NIC may have sent everything
    const auto* p = reinterpret_cast<const std::byte*>(why.data());
    endpoint->push(control_frame(wire::FrameType::goodbye, {p, p + std::min(why.size(), wire::kReasonBytesMax)}));
  }
  doom(*endpoint, code, false, std::string(why));
  sweep(out);
}

void RdmaTransport::shutdown() {
  Reports nobody;
  while (!endpoints_.empty()) close(endpoints_.begin()->first, Code::cancelled, "shutting down", nobody);
  dropped_.clear();
  connector_.stop();
  for (const auto& rail : orphans_) (void)rail->close(reaper_);
  orphans_.clear();
  if (!listener_) return;
  home_.poller->remove(listener_.get());
  listener_.reset();
  revival_.stop();
  for (const auto& [token, device] : channels_) home_.poller->remove(device->channel()->fd);
  for (const auto& [token, device] : async_) home_.poller->remove(device->context()->async_fd);
  channels_.clear();
  async_.clear();
}

void RdmaTransport::timers(RdmaEndpoint& endpoint, TimePoint at, Reports& out) {
  const auto expire = [&](TimePoint when, const char* reason, const std::string& text) {
    if (when > at) return due(when);
    if (endpoint.doomed) return;
    home_.tally->failure(reason);
    doom(endpoint, Code::timeout, false, text);
  };
  if (endpoint.deadline != kNever)
    expire(endpoint.deadline, "handshake: timeout",
           endpoint.handshake.complete() ? "no path was up in time" : "the handshake took too long");
  if (!endpoint.connecting && !endpoint.io.idle())
    expire(endpoint.progress + home_.options->stall_timeout, "stalled lane", "the peer does not read its socket");
  if (endpoint.up && endpoint.dark_since != kNever) {
    std::string why;
    for (const auto& rail : endpoint.rails) why += "; " + rail_name(endpoint, *rail) + ": " + rail->last_error;
    // the dialler reconnects; the listener waits longer, so that it does not close what is being repaired
    expire(endpoint.dark_since + home_.options->rdma_blackout * (endpoint.accepted ? 2 : 1), "rdma: no path left",
           "no path left" + why);
  }
  const bool awake = pool_.holds(endpoint.id) && !endpoint.resting;
  for (const auto& rail : endpoint.rails) {
    if (endpoint.doomed) return;
    PathMachine& machine = rail->machine;
    answer_pending(endpoint, *rail);
    if (machine.late(at)) fail(endpoint, *rail, PathCause::fault, "not set up and verified in time", true, out);
    if (machine.state() == PathMachine::State::up && !rail->drained() &&
        rail->progress + home_.options->stall_timeout <= at)
      fail(endpoint, *rail, PathCause::fault, "no progress with transfers outstanding", true, out);
    if (machine.state() == PathMachine::State::up && rail->cancelled_since != kNever) {
      // sooner than the engine would close the whole connection for it
      const TimePoint limit = rail->cancelled_since + home_.options->drain_grace / 2;
      if (limit <= at)
        fail(endpoint, *rail, PathCause::restart, "cancelled transfers take too long", true, out);
      else
        due(limit);
    }
    if (machine.state() == PathMachine::State::draining) {
      serve(endpoint, *rail, out);
      // overdue: destroying the queue pairs ends what flushing did not
      if (machine.state() == PathMachine::State::draining && rail->drain_deadline <= at && !rail->joining)
        finish_drain(endpoint, *rail, out);
    }
    rail->hold.take(at, out.done);
    if (rail->paced && !rail->pace.open(at)) {
      due(rail->pace.opens());
    } else if (std::exchange(rail->paced, false)) {
      out.room = true;
    }
    due(rail->hold.due());
    if (!endpoint.accepted && awake && machine.may_begin(at) && startable(endpoint, *rail)) begin(endpoint, *rail);
    if (machine.state() == PathMachine::State::up && !rail->drained())
      due(rail->progress + home_.options->stall_timeout);
    if (machine.state() == PathMachine::State::draining && !rail->joining) due(rail->drain_deadline);
    if (machine.due() > at) due(machine.due());
  }
}

TimePoint RdmaTransport::tick(TimePoint at, Reports& out) {
  dropped_.clear();
  round_ = at;
  poll_rails(false, out);
  if (at >= due_) {
    due_ = kNever;
    if (listener_paused_) {
      listener_paused_ = false;
      home_.poller->modify(listener_token_, listener_.get(), EPOLLIN);
    }
    inject_device_loss(at, out);
    for (auto& [id, endpoint] : endpoints_) timers(*endpoint, at, out);
    part(EndpointId::none, at, out);
    share_pairs(out);
    sweep(out);
  }
  return due_;
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
    .make = [](Home& home, uint8_t index) -> std::unique_ptr<Transport> {
      return std::make_unique<RdmaTransport>(home, index);
    },
};

}  // namespace mc::xfer

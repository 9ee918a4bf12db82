// tcp: persistent streams, opened once for each peer. This file opens and closes connections. Sockets are non-blocking,
// and addresses are numeric, because names are resolved on the caller's thread. Everything that a stranger can hold
// before it has proven itself is bounded: the number of handshakes, their time, the size of their frames.
#include "xfer_tcp/transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <thread>

#include "base/assert.h"
#include "base/uri.h"
#include "xfer/poller.h"
#include "xfer/socket.h"
#include "xfer/tally.h"
#include "xfer_tcp/xfer_tcp.h"

namespace mc::xfer {
namespace {

int data_streams(const Options& options) {
  if (options.tcp_streams > 0) return std::min(options.tcp_streams, static_cast<int>(wire::kXferLanesMax) - 1);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
}

Reach probe_tcp(const Options& options) {
  return may_listen("tcp", options.tcp_bind, options);
}

Reach reach_by_tcp(const Descriptor&, const Descriptor& remote) {
  for (const auto& uri : remote.uris)
    if (uri.starts_with("tcp://")) return {true, uri, "reaches every host"};
  return {false, "", "the peer does not listen on tcp"};
}

Result<void> check_tcp(const Options& options) {
  const auto bad = [](const std::string& what) { return Error{Code::invalid, "xfer: " + what}; };
  if (options.tcp_streams < 0 || options.tcp_streams >= static_cast<int>(wire::kXferLanesMax))
    return bad("tcp_streams needs 0 (automatic) to " + std::to_string(wire::kXferLanesMax - 1) + ", is " +
               std::to_string(options.tcp_streams));
  if (!known_tcp_io(options.tcp_io)) {
    std::string known = "auto";
    for (const TcpIoEntry* entry : tcp_ios()) known += std::string(", ") + entry->name;
    return bad("tcp_io '" + options.tcp_io + "' is unknown; there are: " + known);
  }
  return check_seal(options);
}

bool tcp_covers(const BufferInfo&) {
  return true;
}

}  // namespace

Result<std::string> TcpTransport::listen() {
  MC_TRY(place, parse_host_port(services_.options->tcp_bind));
  MC_TRY(listening, listen_tcp("tcp", place, services_.options->tcp_advertise));
  MC_CHECK(listener_.open(std::move(listening.fd)));
  return "tcp://" + listening.told.text();
}

TcpLane* TcpTransport::add_lane(Fd fd, Handshake handshake, TimePoint deadline) {
  auto lane = std::make_unique<TcpLane>(*this, std::move(fd), std::move(handshake));
  if (!lane->socket.open(index_)) return nullptr;
  lane->socket.deadline = deadline;
  due(deadline);
  ++handshakes_;
  const uint64_t token = lane->socket.token();
  const auto [at, fresh] = lanes_.emplace(token, std::move(lane));
  MC_ASSERT(fresh);
  return at->second.get();
}

EndpointId TcpTransport::connect(const Dial& dial, Reports& out) {
  const EndpointId id = services_.next_endpoint();
  auto endpoint = std::make_unique<TcpEndpoint>();
  endpoint->id = id;
  endpoint->connection = dial.connection;
  endpoint->told_version = services_.describe()->version;
  endpoint->lanes.resize(static_cast<size_t>(data_streams(*services_.options)) + 1);
  TcpEndpoint& self = *endpoints_.emplace(id, std::move(endpoint)).first->second;
  services_.tally->add(Count::connects);
  const auto lane_count = static_cast<uint16_t>(self.lanes.size());
  for (uint16_t i = 0; i < lane_count; ++i) {
    PeerDialling dialling = dial_peer("tcp", dial, *services_.options);
    TcpLane* lane = nullptr;
    if (!dialling.refused) {
      lane =
          add_lane(std::move(dialling.fd),
                   Handshake::dial(services_, dial.wanted, self.connection, i, lane_count, dialling.seal, dial.ticket),
                   dial.deadline);
      if (lane == nullptr) dialling.refused = Loss{Code::io, false, "cannot watch a socket"};
    }
    if (dialling.refused) {
      lose(self, *dialling.refused, out);
      return id;
    }
    MC_ASSERT(self.lanes[i] == nullptr);
    lane->index = i;
    lane->endpoint = &self;
    self.lanes[i] = lane;
  }
  return id;
}

void TcpTransport::accepted(Fd fd) {
  const size_t lanes_max = services_.endpoints_max * (static_cast<size_t>(data_streams(*services_.options)) + 1);
  if (handshakes_ >= kHandshakesMax || endpoints_.size() >= services_.endpoints_max || lanes_.size() >= lanes_max)
    return services_.tally->failure("accept: too many connections");
  const auto setting = seal_setting(*services_.options, stays_on_host(peer_address(fd.get())));
  (void)add_lane(std::move(fd), Handshake::listen(services_, setting), now() + services_.options->connect_timeout);
}

/// The accepted connection that a lane with this hello belongs to. Null: there is none, for the reason in `why`.
TcpEndpoint* TcpTransport::endpoint_of(const wire::XferHello& hello, Reports& out, const char*& why) {
  for (auto& [id, endpoint] : endpoints_)
    if (endpoint->accepted && endpoint->peer == hello.instance && endpoint->connection == hello.connection)
      return endpoint.get();
  if (!take_over(hello, out)) {
    why = "handshake: replaced by a later connection";
    return nullptr;
  }
  auto endpoint = std::make_unique<TcpEndpoint>();
  endpoint->id = services_.next_endpoint();
  endpoint->accepted = true;
  endpoint->peer = hello.instance;
  endpoint->connection = hello.connection;
  endpoint->lanes.resize(hello.lane_count);
  const EndpointId id = endpoint->id;
  return endpoints_.emplace(id, std::move(endpoint)).first->second.get();
}

Code TcpTransport::joined(TcpLane& lane, const char*& why) {
  MC_ASSERT(handshakes_ > 0);
  --handshakes_;
  PeerSocket& socket = lane.socket;
  if (socket.io.sealed()) services_.tally->add(Count::streams_sealed);
  socket.deadline = kNever;
  if (lane.endpoint == nullptr) {
    const wire::XferHello& hello = socket.handshake.hello();
    if (hello.lane_count < 2) {
      why = "handshake: no data lane";
      return Code::corrupt;
    }
    TcpEndpoint* found = endpoint_of(hello, *socket.out, why);
    if (found == nullptr) return Code::peer_lost;
    if (found->lanes.size() != hello.lane_count || found->lanes[hello.lane] != nullptr) {
      why = "handshake: lane out of range or taken";
      return Code::corrupt;
    }
    lane.index = hello.lane;
    lane.endpoint = found;
    found->lanes[hello.lane] = &lane;
    // The endpoint is up when its last lane has arrived. Until then this deadline covers the whole endpoint.
    socket.deadline = now() + services_.options->connect_timeout;
    due(socket.deadline);
  } else {
    const InstanceId peer = socket.handshake.peer_instance();
    if (!lane.endpoint->peer.is_zero() && lane.endpoint->peer != peer) {
      why = "handshake: lanes reached different instances";
      return Code::peer_lost;
    }
    lane.endpoint->peer = peer;
  }
  MC_ASSERT(lane.endpoint->lanes.at(lane.index) == &lane);
  lane.endpoint->proven &= socket.handshake.proven();
  lane.endpoint->established &= !socket.handshake.identity().is_zero();
  if (lane.index == 0) {
    lane.endpoint->descriptor = socket.handshake.descriptor();
    lane.endpoint->name = socket.handshake.peer_name();
    if (lane.endpoint->accepted) lane.endpoint->told_version = 0;
  }
  check_up(*lane.endpoint, *socket.out);
  return Code::ok;
}

/// Closes the connection that the new one replaces, because writes that still lie in its sockets must not be applied
/// after their own retries. False: the new connection is older than the present one.
bool TcpTransport::take_over(const wire::XferHello& hello, Reports& out) {
  std::vector<TcpEndpoint*> earlier;
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->accepted || endpoint->peer != hello.instance) continue;
    if (!same_line(endpoint->connection, hello.connection)) continue;
    if (hello.connection < endpoint->connection) return false;
    earlier.push_back(endpoint.get());
  }
  for (TcpEndpoint* endpoint : earlier)
    lose(*endpoint, {Code::peer_lost, false, "the peer opened a new connection"}, out);
  return true;
}

void TcpTransport::check_up(TcpEndpoint& endpoint, Reports& out) {
  for (const TcpLane* lane : endpoint.lanes)
    if (lane == nullptr || !lane->ready()) return;
  MC_ASSERT(!endpoint.up);  // an endpoint reports `up` once
  endpoint.up = true;
  for (TcpLane* lane : endpoint.lanes) {
    MC_ASSERT(lane->endpoint == &endpoint);
    lane->socket.deadline = kNever;
    if (lane->index != 0) tune_bulk(lane->socket.io.fd());
  }
  out.events.push_back({.kind = EndpointEvent::Kind::up,
                        .endpoint = endpoint.id,
                        .accepted = endpoint.accepted,
                        .proven = endpoint.proven,
                        .sealed = endpoint.lanes[0]->socket.io.sealed(),
                        .row = index_ - 1u,
                        .instance = endpoint.peer,
                        .text = endpoint.name,
                        .descriptor = endpoint.descriptor});
  const auto current = services_.describe();
  if (current->version != endpoint.told_version)
    endpoint.lanes[0]->socket.push(control_frame(wire::FrameType::describe, wire::encode(*current)));
}

void TcpTransport::ready(uint64_t token, uint32_t events, Reports& out) {
  dropped_.clear();
  if (listener_.owns(token)) return due(listener_.accept([this](Fd fd) { accepted(std::move(fd)); }));
  const auto at = lanes_.find(token);
  if (at != lanes_.end()) on_lane(*at->second, events, out);
}

void TcpTransport::on_lane(TcpLane& lane, uint32_t events, Reports& out) {
  if (lane.socket.connecting()) {
    if (const auto why = lane.socket.connected()) return lose(*lane.endpoint, *why, out);
  } else if (events & ~static_cast<uint32_t>(EPOLLOUT)) {
    if (lane.receive(kBudget, out) == FrameStream::Io::broken) return broken(lane, out);
  }
  if (!lane.socket.io.idle() && lane.flush(out) == FrameStream::Io::broken) return broken(lane, out);
  // check_up may have queued a frame on lane 0 although the frame came on another lane.
  if (lane.endpoint != nullptr && lane.endpoint->lanes[0] != nullptr && lane.endpoint->lanes[0] != &lane)
    arm(*lane.endpoint->lanes[0]);
  arm(lane);
}

void TcpTransport::arm(TcpLane& lane) {
  if (lane.socket.connecting()) return;
  if (lane.waiting()) due(lane.socket.progress + services_.options->stall_timeout);
  lane.socket.watch(paused(lane));
}

void TcpTransport::broken(TcpLane& lane, Reports& out) {
  const Loss why = lane.socket.broken();
  if (!lane.ready()) (void)lane.flush(out);  // sends as much of the refusal as the socket takes
  if (lane.endpoint == nullptr) return drop_lane(&lane);
  if (lane.socket.failure) return lose(*lane.endpoint, why, out);
  // A peer that leaves says goodbye on the control lane before it closes any lane. When the end of another lane is seen
  // first, the goodbye has arrived already. It must be read, because a peer that was lost without one would be dialled
  // again.
  TcpLane* control = lane.endpoint->lanes[0];
  if (lane.endpoint->up && control != &lane && !paused(*control) &&
      control->receive(kBudget, out) == FrameStream::Io::broken && control->socket.failure)
    return lose(*lane.endpoint, *control->socket.failure, out);
  lose(*lane.endpoint, why, out);
}

void TcpTransport::drop_lane(TcpLane* lane) {
  const auto at = lanes_.find(lane->socket.token());
  MC_ASSERT(at != lanes_.end());
  MC_ASSERT(lane->ready() || handshakes_ > 0);
  if (!lane->ready()) --handshakes_;
  lane->release();
  lane->socket.close();
  dropped_.push_back(std::move(at->second));
  lanes_.erase(at);
}

/// Closes every lane and reports to the engine once. The endpoint no longer exists afterwards.
void TcpTransport::lose(TcpEndpoint& endpoint, const Loss& why, Reports& out) {
  const EndpointId id = endpoint.id;
  for (TcpLane* lane : endpoint.lanes)
    if (lane != nullptr) drop_lane(lane);
  const bool silent = endpoint.accepted && !endpoint.up;  // the endpoint was never reported to the engine
  if (!silent)
    out.events.push_back({.kind = EndpointEvent::Kind::lost,
                          .endpoint = id,
                          .gone = why.gone,
                          .code = why.code,
                          .mismatch = why.mismatch,
                          .no_listener = why.no_listener,
                          .text = "tcp: " + why.text});
  const size_t left = endpoints_.erase(id);
  MC_ASSERT_EQ(left, 1u);
}

TcpEndpoint* TcpTransport::find(EndpointId id) const {
  const auto at = endpoints_.find(id);
  return at == endpoints_.end() ? nullptr : at->second.get();
}

int TcpTransport::lanes(EndpointId id) const {
  const TcpEndpoint* endpoint = find(id);
  return endpoint == nullptr ? 0 : static_cast<int>(endpoint->lanes.size()) - 1;
}

size_t TcpTransport::post(EndpointId id, int lane_index, std::span<const Slice> slices, Reports& out) {
  TcpEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return 0;
  TcpLane& lane = *endpoint->lanes.at(static_cast<size_t>(lane_index) + 1);
  MC_ASSERT(lane.ready() && lane.index != 0);
  if (!lane.waiting()) lane.socket.progress = now();  // the stall time-out starts when there is work
  const size_t taken = lane.post(slices);
  MC_ASSERT_LE(taken, slices.size());
  if (lane.flush(out) == FrameStream::Io::broken) {
    broken(lane, out);
    return taken;
  }
  arm(lane);
  return taken;
}

bool TcpTransport::cancel(EndpointId id, int lane_index, uint64_t slice) {
  TcpEndpoint* endpoint = find(id);
  if (endpoint == nullptr) return true;
  return endpoint->lanes.at(static_cast<size_t>(lane_index) + 1)->cancel(slice);
}

Code TcpTransport::notify(EndpointId id, std::span<const std::byte> bytes, Reports& out) {
  TcpEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return Code::peer_lost;
  TcpLane& lane = *endpoint->lanes[0];
  if (lane.socket.io.queued() >= kControlQueueMax) return Code::busy;
  lane.socket.push(control_frame(wire::FrameType::notify, {bytes.begin(), bytes.end()}));
  if (lane.flush(out) == FrameStream::Io::broken) {
    broken(lane, out);
    return Code::peer_lost;
  }
  arm(lane);
  return Code::ok;
}

void TcpTransport::publish(Reports& out) {
  const auto payload = wire::encode(*services_.describe());
  std::vector<TcpLane*> failed;
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->up) continue;
    TcpLane& lane = *endpoint->lanes[0];
    lane.socket.push(control_frame(wire::FrameType::describe, payload));
    if (lane.flush(out) == FrameStream::Io::broken)
      failed.push_back(&lane);
    else
      arm(lane);
  }
  for (TcpLane* lane : failed) broken(*lane, out);
}

void TcpTransport::close(EndpointId id, Code code, std::string_view why, Reports& out) {
  TcpEndpoint* endpoint = find(id);
  if (endpoint == nullptr) return;
  if (endpoint->up && code == Code::cancelled) {  // closed on purpose, so the peer may forget this process at once
    endpoint->lanes[0]->socket.push(goodbye(why));
    (void)endpoint->lanes[0]->flush(out);
  }
  lose(*endpoint, {code, false, std::string(why)}, out);
}

void TcpTransport::shutdown() {
  Reports nobody;
  while (!endpoints_.empty()) close(endpoints_.begin()->first, Code::cancelled, "shutting down", nobody);
  while (!lanes_.empty()) drop_lane(lanes_.begin()->second.get());
  MC_ASSERT_EQ(handshakes_, 0u);
  dropped_.clear();
  listener_.close();
}

TimePoint TcpTransport::tick(TimePoint at, Reports& out) {
  dropped_.clear();
  if (at < due_) return due_;
  due_ = listener_.tick(at);
  std::vector<uint64_t> late;
  for (auto& [token, lane] : lanes_) {
    TimePoint lane_due = lane->socket.deadline;
    // A frame that stays half read because of this side's pause is no stall of the peer.
    if (lane->ready() && lane->waiting() && !(paused(*lane) && lane->socket.io.idle()))
      lane_due = std::min(lane_due, lane->socket.progress + services_.options->stall_timeout);
    if (lane_due <= at)
      late.push_back(token);
    else
      due(lane_due);
  }
  std::sort(late.begin(), late.end());
  for (const uint64_t token : late) {
    const auto found = lanes_.find(token);
    if (found == lanes_.end()) continue;  // removed with an earlier lane of its endpoint
    TcpLane& lane = *found->second;
    const bool stalled = lane.ready() && lane.socket.deadline > at;
    services_.tally->failure(stalled ? "stalled lane" : "handshake: timeout");
    if (lane.endpoint != nullptr)
      lose(*lane.endpoint,
           {Code::timeout, false, stalled ? "no progress with work outstanding" : "the handshake took too long"}, out);
    else
      drop_lane(&lane);
  }
  return due_;
}

bool TcpTransport::paused(const TcpLane& lane) const {
  return lane.ready() && (lane.index == 0 || lane.tells) && !services_.reading_notifies;
}

void TcpTransport::pause_notifies(bool pause) {
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->up) continue;
    for (TcpLane* lane : endpoint->lanes) {
      if (lane->index != 0 && !lane->tells) continue;
      if (!pause) lane->socket.progress = now();
      arm(*lane);
    }
  }
}

const TransportEntry kTransportTcp = {
    .scheme = "tcp",
    .summary = "persistent TCP streams to any host",
    .dials_hosts = true,
    .maps_memory = false,
    .check = check_tcp,
    .probe = probe_tcp,
    .reach = reach_by_tcp,
    .covers = tcp_covers,
    .make = [](Services& services, uint8_t index) -> std::unique_ptr<Transport> {
      return std::make_unique<TcpTransport>(services, index);
    },
};

}  // namespace mc::xfer

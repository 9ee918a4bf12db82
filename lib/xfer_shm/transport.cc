// shm: connections between processes of one host, from dial or accept to their end, and the handling of their messages.
#include "xfer_shm/transport.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "xfer/access.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer_shm/xfer_shm.h"

namespace mc::xfer {
namespace {

using wire::FrameHeader;
using wire::FrameType;

constexpr size_t kHandshakesMax = 256;
constexpr size_t kNameDigits = 12;               // digits of the instance in the socket's name
constexpr size_t kQueueMax = 1024;               // limit of frames that wait for one peer
constexpr size_t kCopyBudget = size_t{1} << 20;  // bytes copied in one turn, so that other work gets a turn

Reach probe_shm(const Options&) {
  auto trial = mem::SharedBuffer::create(4096, {.name = "mc-xfer-probe"});
  if (!trial) return {false, "", trial.error().what};
  const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return {false, "", errno_error("AF_UNIX SEQPACKET").what};
  return {.usable = true};
}

Reach reach_by_shm(const Descriptor& local, const Descriptor& remote) {
  if (local.boot.is_zero() || remote.boot.is_zero()) return {false, "", "the boot id of a host is unknown"};
  if (local.boot != remote.boot)
    return {false, "", "another host (boot id " + remote.boot.short_hex() + ", here " + local.boot.short_hex() + ")"};
  for (const auto& uri : remote.uris)
    if (uri.starts_with("shm://")) return {true, uri, "same host (boot id " + local.boot.short_hex() + ")"};
  return {false, "", "the peer does not listen on shm"};
}

}  // namespace

Result<std::string> ShmTransport::listen() {
  const Options& options = *services_.options;
  std::string path = options.shm_path;
  if (path.empty() && !options.shm_folder.empty())
    path = options.shm_folder + "/data-" + services_.instance.short_hex(kNameDigits);
  if (!path.empty() && path[0] != '/') return Error{Code::invalid, "xfer: shm_path " + path + " is not absolute"};
  const std::string uri = "shm://" + (path.empty() ? "mc-xfer-" + services_.instance.hex() : path);
  MC_TRY(fd, listen_shm(uri));
  path_ = path;
  MC_CHECK(listener_.open(std::move(fd)));
  return uri;
}

ShmEndpoint* ShmTransport::add(Fd fd, Handshake handshake, bool ours, TimePoint deadline) {
  auto token = services_.poller->add(index_, fd.get(), EPOLLIN);
  if (!token) return nullptr;
  auto endpoint = std::make_unique<ShmEndpoint>(std::move(fd), std::move(handshake));
  endpoint->id = services_.next_endpoint();
  endpoint->token = *token;
  endpoint->armed = EPOLLIN;
  endpoint->ours = ours;
  endpoint->deadline = deadline;
  ++handshakes_;
  const bool fresh_token = by_token_.emplace(*token, endpoint.get()).second;
  MC_ASSERT(fresh_token);
  const auto [at, fresh_id] = endpoints_.emplace(endpoint->id, std::move(endpoint));
  MC_ASSERT(fresh_id);
  return at->second.get();
}

EndpointId ShmTransport::connect(const Dial& dial, Reports& out) {
  services_.tally->add(Count::connects);
  const auto refuse = [&](Code code, bool gone, std::string text, bool no_listener = false) {
    const EndpointId id = services_.next_endpoint();
    out.events.push_back({.kind = EndpointEvent::Kind::lost,
                          .endpoint = id,
                          .gone = gone,
                          .code = code,
                          .no_listener = no_listener,
                          .text = "shm: " + text});
    return id;
  };
  auto fd = dial_shm(dial.uri);
  if (!fd) {
    const bool refused = fd.error().code == Code::peer_lost;
    const bool gone = refused && !dial.wanted.is_zero();
    return refuse(refused && !gone ? Code::io : fd.error().code, gone, fd.error().what, refused);
  }
  const bool ours = of_our_user(fd->get());
  if (!ours && services_.options->secret.empty()) {
    services_.tally->failure("dial: another user listens there");
    return refuse(Code::unsupported, false, "another user's process listens on " + dial.uri);
  }
  ShmEndpoint* endpoint =
      add(std::move(*fd),
          Handshake::dial(services_, dial.wanted, dial.connection, 0, 1, wire::SealSetting::never, dial.ticket), ours,
          dial.deadline);
  if (endpoint == nullptr) return refuse(Code::io, false, "cannot watch a socket");
  const EndpointId id = endpoint->id;
  ShmFailure failure;
  if (!endpoint->socket.send(endpoint->handshake.opening(), failure) && !failure)
    failure = {Code::io, "socket full", "the socket takes no first frame"};
  if (failure) lose(*endpoint, failure, out);
  return id;
}

void ShmTransport::accepted(Fd fd) {
  if (handshakes_ >= kHandshakesMax || endpoints_.size() >= services_.endpoints_max)
    return services_.tally->failure("accept: too many connections");
  const bool ours = of_our_user(fd.get());
  if (!ours && services_.options->secret.empty())
    return services_.tally->failure("accept: another user without a secret");
  ShmEndpoint* endpoint =
      add(std::move(fd), Handshake::listen(services_), ours, now() + services_.options->connect_timeout);
  if (endpoint != nullptr) endpoint->accepted = true;
}

void ShmTransport::arm(ShmEndpoint& endpoint) {
  const bool paused = endpoint.up && !services_.reading_notifies;
  const bool sending = !endpoint.queue.empty() || endpoint.publish_again || endpoint.full;
  const uint32_t events = (paused ? EPOLLRDHUP : EPOLLIN) | (sending ? EPOLLOUT : 0u);
  if (events == endpoint.armed) return;
  services_.poller->modify(endpoint.token, endpoint.socket.fd(), events);
  endpoint.armed = events;
}

void ShmTransport::ready(uint64_t token, uint32_t events, Reports& out) {
  if (listener_.owns(token)) return (void)listener_.accept([this](Fd fd) { accepted(std::move(fd)); });
  const auto at = by_token_.find(token);
  if (at == by_token_.end()) return;
  ShmEndpoint& endpoint = *at->second;
  ShmFailure failure;
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) failure = receive(endpoint, out);
  if (!failure) failure = flush(endpoint);
  if (failure) return lose(endpoint, failure, out);
  if ((events & EPOLLOUT) != 0 && endpoint.queue.empty() && std::exchange(endpoint.full, false)) out.room = true;
  arm(endpoint);
}

void ShmTransport::lose(ShmEndpoint& endpoint, const ShmFailure& failure, Reports& out) {
  MC_ASSERT(endpoint.handshake.complete() || (handshakes_ > 0 && !endpoint.up));
  if (!endpoint.handshake.complete()) --handshakes_;
  if (failure.code != Code::peer_lost || (!endpoint.up && !failure.gone)) services_.tally->failure(failure.reason);
  services_.poller->remove(endpoint.socket.fd());
  if (endpoint.up || !endpoint.accepted)
    out.events.push_back({.kind = EndpointEvent::Kind::lost,
                          .endpoint = endpoint.id,
                          .gone = failure.gone,
                          .code = failure.code,
                          .mismatch = failure.mismatch,
                          .text = "shm: " + failure.text});
  by_token_.erase(endpoint.token);
  endpoints_.erase(EndpointId{endpoint.id});
  MC_ASSERT_EQ(by_token_.size(), endpoints_.size());
  MC_ASSERT_LE(handshakes_, endpoints_.size());
}

void ShmTransport::close(EndpointId id, Code code, std::string_view why, Reports& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr) return;
  ShmFailure ignored;
  if (endpoint->up && code == Code::cancelled) (void)endpoint->socket.send(goodbye(why), ignored);
  lose(*endpoint, {code, "closed", std::string(why)}, out);
}

void ShmTransport::shutdown() {
  Reports nobody;
  while (!endpoints_.empty()) close(endpoints_.begin()->first, Code::cancelled, "shutting down", nobody);
  MC_ASSERT(handshakes_ == 0 && by_token_.empty());
  if (!listener_.is_open()) return;
  // While this process listens, because afterwards the path may belong to its successor.
  if (!path_.empty()) ::unlink(path_.c_str());
  listener_.close();
}

TimePoint ShmTransport::tick(TimePoint at, Reports& out) {
  TimePoint next = listener_.tick(at);
  std::vector<ShmEndpoint*> late;
  for (auto& [id, endpoint] : endpoints_) {
    if (endpoint->deadline <= at)
      late.push_back(endpoint.get());
    else
      next = std::min(next, endpoint->deadline);
  }
  for (ShmEndpoint* endpoint : late)
    lose(*endpoint, {Code::timeout, "handshake: timeout", "the handshake took too long"}, out);
  return next;
}

void ShmTransport::pause_notifies(bool) {
  for (auto& [id, endpoint] : endpoints_)
    if (endpoint->up) arm(*endpoint);
}

ShmEndpoint* ShmTransport::find(EndpointId id) {
  const auto at = endpoints_.find(id);
  return at == endpoints_.end() ? nullptr : at->second.get();
}

ShmFailure ShmTransport::flush(ShmEndpoint& endpoint) {
  ShmFailure failure;
  while (!endpoint.queue.empty() && endpoint.socket.send(endpoint.queue.front(), failure)) endpoint.queue.pop_front();
  if (!failure && endpoint.queue.empty() && endpoint.publish_again) failure = send_arenas(endpoint);
  return failure;
}

/// Sends the arenas that the peer lacks, then the descriptor. The order matters, so the descriptor waits (as
/// publish_again) until the socket has taken all earlier frames.
ShmFailure ShmTransport::send_arenas(ShmEndpoint& endpoint) {
  MC_ASSERT(endpoint.handshake.complete());
  endpoint.publish_again = true;
  ShmFailure failure;
  if (!endpoint.queue.empty()) return failure;
  const auto descriptor = services_.describe();  // made before the arenas, so that it names no arena that is not sent
  for (const auto& arena : services_.access->shared_with(endpoint.handshake.peer_instance())) {
    if (endpoint.shared.contains(arena.info.id)) continue;
    OutFrame frame = control_frame(FrameType::share, {});
    frame.header.buffer = arena.info.id;
    frame.header.length = arena.info.length;
    frame.header.snapshot = static_cast<uint32_t>(arena.info.access);
    if (!endpoint.socket.send(frame, failure, arena.fd)) return failure;
    endpoint.shared.insert(arena.info.id);
  }
  if (endpoint.socket.send(control_frame(FrameType::describe, wire::encode(*descriptor)), failure))
    endpoint.publish_again = false;
  return failure;
}

ShmFailure ShmTransport::receive(ShmEndpoint& endpoint, Reports& out) {
  constexpr int kMessagesMax = 64;  // messages of one turn
  ShmFailure failure;
  for (int i = 0; i < kMessagesMax && !failure; ++i) {
    ShmMessage message;
    if (!endpoint.socket.receive(inbox_, message, failure)) break;
    failure = take(endpoint, message, out);
  }
  return failure;
}

ShmFailure ShmTransport::take_handshake(ShmEndpoint& endpoint, const ShmMessage& message) {
  Handshake::Step step = endpoint.handshake.take(message.header, message.payload);
  MC_ASSERT(handshakes_ > 0);
  if (endpoint.handshake.complete()) --handshakes_;  // done even when the last frame cannot be sent
  ShmFailure failure;
  if (step.send && !endpoint.socket.send(*step.send, failure) && !failure)
    failure = {Code::io, "socket full", "the socket takes no handshake"};
  if (step.failed) return {step.failed->code, step.reason, step.failed->what, step.gone, step.mismatch};
  if (!failure && endpoint.handshake.complete()) return send_arenas(endpoint);
  return failure;
}

ShmFailure ShmTransport::take(ShmEndpoint& endpoint, const ShmMessage& message, Reports& out) {
  if (!endpoint.handshake.complete()) return take_handshake(endpoint, message);
  const FrameHeader& header = message.header;
  const std::span<const std::byte> payload = message.payload;
  switch (header.kind()) {
    case FrameType::share: return endpoint.arenas.add(header, message.passed);
    case FrameType::describe: return take_descriptor(endpoint, payload, out);
    case FrameType::notify:
      if (!endpoint.up) return {Code::corrupt, "notify before describe", "notify before describe"};
      out.events.push_back(
          {.kind = EndpointEvent::Kind::notify, .endpoint = endpoint.id, .bytes = {payload.begin(), payload.end()}});
      return {};
    case FrameType::immediate:
      if (!endpoint.up || header.id > UINT32_MAX)
        return {Code::corrupt, "immediate out of turn", "immediate " + std::to_string(header.id) + " out of turn"};
      out.events.push_back({.kind = EndpointEvent::Kind::immediate,
                            .endpoint = endpoint.id,
                            .immediate = static_cast<uint32_t>(header.id)});
      return {};
    case FrameType::goodbye:
      return {Code::peer_lost, "goodbye",
              "the peer left: " + std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), true};
    default:
      return {Code::corrupt, "unexpected frame", "unexpected frame '" + std::string(to_string(header.kind())) + "'"};
  }
}

ShmFailure ShmTransport::take_descriptor(ShmEndpoint& endpoint, std::span<const std::byte> payload, Reports& out) {
  auto decoded = wire::decode_descriptor(payload);
  if (!decoded || decoded->instance != endpoint.handshake.peer_instance())
    return {Code::corrupt, "malformed or foreign descriptor", "malformed or foreign descriptor"};
  MC_ASSERT(endpoint.handshake.complete());
  const auto descriptor = std::make_shared<const Descriptor>(std::move(*decoded));
  endpoint.arenas.keep(*descriptor);
  EndpointEvent event{.kind = EndpointEvent::Kind::described, .endpoint = endpoint.id, .descriptor = descriptor};
  if (!endpoint.up) {
    endpoint.up = true;
    endpoint.deadline = kNever;
    event.kind = EndpointEvent::Kind::up;
    event.accepted = endpoint.accepted;
    event.proven = endpoint.ours || endpoint.handshake.proven();
    event.row = index_ - 1u;
    event.instance = endpoint.handshake.peer_instance();
    event.text = endpoint.handshake.peer_name();
  }
  MC_ASSERT(endpoint.deadline == kNever);
  event.mappings = endpoint.arenas.take_fresh();
  out.events.push_back(std::move(event));
  return {};
}

size_t ShmTransport::post(EndpointId id, int, std::span<const Slice> slices, Reports& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return 0;
  size_t copied = 0;
  size_t taken = 0;
  for (const Slice& slice : slices) {
    if (copied >= kCopyBudget) break;
    SliceDone done = endpoint->arenas.copy(slice);
    if (done.code == Code::ok)
      services_.tally->add(index_ - 1u, slice.op == Op::read ? Flow::read_bytes : Flow::written_bytes,
                           slice.local.size());
    ShmFailure failure;
    if (slice.immediate && done.code == Code::ok && !tell(*endpoint, *slice.immediate, failure)) {
      if (failure) lose(*endpoint, failure, out);
      break;  // the immediate was not taken; the bytes are copied again when the socket has room
    }
    out.done.push_back(std::move(done));
    copied += slice.local.size();
    ++taken;
  }
  MC_ASSERT_LE(taken, slices.size());
  return taken;
}

/// Reports to the peer that a write is in place. False: the socket does not take the message now, or is broken. The
/// bytes are visible before the message, because sending and receiving are system calls.
bool ShmTransport::tell(ShmEndpoint& endpoint, uint32_t immediate, ShmFailure& failure) {
  MC_ASSERT(endpoint.up);
  OutFrame frame = control_frame(FrameType::immediate, {});
  frame.header.id = immediate;
  if (endpoint.queue.empty() && endpoint.socket.send(frame, failure)) return true;
  endpoint.full = true;
  arm(endpoint);
  return false;
}

Code ShmTransport::notify(EndpointId id, std::span<const std::byte> bytes, Reports& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return Code::peer_lost;
  if (endpoint->queue.size() >= kQueueMax) return Code::busy;
  OutFrame frame = control_frame(FrameType::notify, {bytes.begin(), bytes.end()});
  ShmFailure failure;
  if (!endpoint->queue.empty() || !endpoint->socket.send(frame, failure)) {
    if (failure) {
      lose(*endpoint, failure, out);
      return Code::peer_lost;
    }
    endpoint->queue.push_back(std::move(frame));
    MC_ASSERT_LE(endpoint->queue.size(), kQueueMax);
    arm(*endpoint);
  }
  return Code::ok;
}

void ShmTransport::publish(Reports& out) {
  std::vector<std::pair<ShmEndpoint*, ShmFailure>> failed;
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->handshake.complete()) continue;
    ShmFailure failure = send_arenas(*endpoint);
    if (failure)
      failed.emplace_back(endpoint.get(), std::move(failure));
    else
      arm(*endpoint);
  }
  for (auto& [endpoint, failure] : failed) lose(*endpoint, failure, out);
}

const TransportEntry kTransportShm = {
    .scheme = "shm",
    .summary = "shared memory arenas of one host",
    .dials_hosts = false,
    .maps_memory = true,
    .check = [](const Options&) -> Result<void> { return {}; },
    .probe = probe_shm,
    .reach = reach_by_shm,
    .covers = [](const BufferInfo& buffer) { return buffer.shared; },
    .make = [](Services& services, uint8_t index) -> std::unique_ptr<Transport> {
      return std::make_unique<ShmTransport>(services, index);
    },
};

}  // namespace mc::xfer

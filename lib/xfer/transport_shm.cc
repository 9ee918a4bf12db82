// shm: peers of one host map each other's memfd arenas, so a read is one memcpy (or none: Engine::map)
// and a write is a memcpy into a landing arena. Descriptors travel over an AF_UNIX socket of type
// SEQPACKET, one frame a message, which also carries notifies, and whose end is the death of the peer.
//
//   handshake; then each side sends   share (buffer, length, fd) ...   describe
//   and an endpoint is up when the peer's first `describe` is here, so a descriptor never names an
//   arena that is not mapped yet. Later registrations repeat share and describe.
//
// The kernel enforces the access classes: an arena that is only read is sealed against new writable
// mappings (lib/mem), and no arena can shrink under a reader.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "base/assert.h"
#include "base/hash.h"
#include "mem/mem.h"
#include "xfer/access.h"
#include "xfer/auth.h"
#include "xfer/handshake.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer/transport.h"

namespace mc::xfer {
namespace {

using wire::FrameHeader;
using wire::FrameType;

constexpr size_t kQueueMax = 1024;  // frames waiting for one peer
constexpr size_t kHandshakesMax = 256;
constexpr size_t kCopyBudget = size_t{1} << 20;   // bytes copied in one turn, so that others get theirs
constexpr size_t kFusedChunk = size_t{16} << 10;  // copied, then summed while still in L1
constexpr size_t kMessageMax = wire::kFrameHeaderBytes + wire::kFrameControlMax;

TimePoint now() {
  return SystemClock::instance().now();
}

struct UnixAddress {
  sockaddr_un raw{};
  socklen_t size = 0;
};

/// "shm:///path" is a file, "shm://name" an abstract name.
Result<UnixAddress> unix_address(std::string_view uri) {
  if (!uri.starts_with("shm://") || uri.size() < 7) return Error{Code::invalid, "bad address " + std::string(uri)};
  const std::string_view name = uri.substr(6);
  UnixAddress address;
  address.raw.sun_family = AF_UNIX;
  const bool abstract = name[0] != '/';
  if (name.size() + 1 >= sizeof address.raw.sun_path)
    return Error{Code::invalid, "address longer than a unix socket allows: " + std::string(uri)};
  std::memcpy(address.raw.sun_path + (abstract ? 1 : 0), name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  return address;
}

/// Returns the CRC32C of the bytes as they lie at `to`: what a hostile owner changes meanwhile is seen.
uint32_t copy_with_crc(std::byte* to, const std::byte* from, size_t size) {
  uint32_t crc = 0;
  for (size_t at = 0; at < size; at += kFusedChunk) {
    const size_t bytes = std::min(kFusedChunk, size - at);
    std::memcpy(to + at, from + at, bytes);
    crc = crc32c({to + at, bytes}, crc);
  }
  return crc;
}

struct ShmEndpoint {
  ShmEndpoint(Fd socket, Handshake shake) : fd(std::move(socket)), handshake(std::move(shake)) {}
  EndpointId id = EndpointId::none;
  Fd fd;
  Handshake handshake;
  uint64_t token = 0;
  uint32_t armed = 0;
  bool accepted = false;
  bool up = false;
  InstanceId wanted{};
  TimePoint deadline = kNever;
  std::deque<OutFrame> queue;  // notifies and descriptors that the socket did not take yet
  std::set<uint32_t> shared;   // own buffers whose descriptor the peer has
  bool publish_again = false;  // the queue was full when the descriptor changed
  std::map<uint32_t, std::shared_ptr<mem::SharedBuffer>> arenas;  // the peer's; shared with Views
  std::vector<Arena> fresh;                                       // of those, what the engine has not heard of yet
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(Home& home, uint8_t index) : home_(home), index_(index), inbox_(kMessageMax) {}
  ~ShmTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const std::string& uri, const InstanceId& wanted, TimePoint deadline, Outbox& out) override;
  int lanes(EndpointId) const override { return 1; }
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Outbox& out) override;
  bool cancel(EndpointId, int, uint64_t) override { return true; }  // post() copies and is done
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Outbox& out) override;
  void publish(Outbox& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Outbox& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Outbox& out) override;
  TimePoint tick(TimePoint at, Outbox& out) override;
  void pause_notifies(bool pause) override;

 private:
  struct Failure {
    Code code = Code::ok;
    const char* reason = "";  // static, for the counter
    std::string text;
    bool gone = false;
  };
  void accept_some();
  ShmEndpoint* add(Fd fd, Handshake handshake, uint32_t events);
  Failure receive(ShmEndpoint& endpoint, Outbox& out);
  Failure take(ShmEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload, Fd fd,
               Outbox& out);
  Failure take_share(ShmEndpoint& endpoint, const FrameHeader& header, Fd fd);
  Failure take_descriptor(ShmEndpoint& endpoint, std::span<const std::byte> payload, Outbox& out);
  Failure send_arenas(ShmEndpoint& endpoint);
  /// False when the socket is full (nothing sent); sets `failure` when it is broken.
  bool send(ShmEndpoint& endpoint, const OutFrame& frame, int fd, Failure& failure);
  Failure flush(ShmEndpoint& endpoint);
  SliceDone copy(ShmEndpoint& endpoint, const Slice& slice);
  void arm(ShmEndpoint& endpoint);
  void lose(ShmEndpoint& endpoint, const Failure& failure, Outbox& out);
  ShmEndpoint* find(EndpointId id);

  Home& home_;
  uint8_t index_;
  Fd listener_;
  uint64_t listener_token_ = 0;
  std::string path_;  // to unlink
  std::map<EndpointId, std::unique_ptr<ShmEndpoint>> endpoints_;
  std::unordered_map<uint64_t, ShmEndpoint*> by_token_;  // looked up only
  size_t handshakes_ = 0;
  std::vector<std::byte> inbox_;
};

Result<std::string> ShmTransport::listen() {
  const std::string& path = home_.options->shm_path;
  const std::string uri = "shm://" + (path.empty() ? "mc-xfer-" + home_.instance.hex() : path);
  MC_TRY(address, unix_address(uri));
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("xfer: shm socket");
  const auto* raw = reinterpret_cast<const sockaddr*>(&address.raw);
  if (!path.empty()) {  // a socket file outlives its process: replace one that nobody answers on
    const Fd trial(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (::connect(trial.get(), raw, address.size) == 0)
      return Error{Code::busy, "xfer: shm_path " + path + " is in use by another process"};
    if (errno == ECONNREFUSED) ::unlink(path.c_str());
  }
  if (::bind(fd.get(), raw, address.size) != 0) return errno_error("xfer: shm bind " + uri);
  if (!path.empty()) {
    path_ = path;
    ::chmod(path.c_str(), 0600);
  }
  if (::listen(fd.get(), 128) != 0) return errno_error("xfer: shm listen " + uri);
  MC_TRY(token, home_.poller->add(index_, fd.get(), EPOLLIN));
  listener_ = std::move(fd);
  listener_token_ = token;
  return uri;
}

ShmEndpoint* ShmTransport::add(Fd fd, Handshake handshake, uint32_t events) {
  auto token = home_.poller->add(index_, fd.get(), events);
  if (!token) return nullptr;
  auto endpoint = std::make_unique<ShmEndpoint>(std::move(fd), std::move(handshake));
  endpoint->id = home_.next_endpoint();
  endpoint->token = *token;
  endpoint->armed = events;
  ++handshakes_;
  by_token_[*token] = endpoint.get();
  return endpoints_.emplace(endpoint->id, std::move(endpoint)).first->second.get();
}

EndpointId ShmTransport::connect(const std::string& uri, const InstanceId& wanted, TimePoint deadline, Outbox& out) {
  home_.tally->add(Count::connects);
  const auto refuse = [&](Code code, bool gone, std::string text) {
    const EndpointId id = home_.next_endpoint();
    out.news.push_back({.kind = News::Kind::lost, .endpoint = id, .gone = gone, .code = code, .text = "shm: " + text});
    return id;
  };
  const auto address = unix_address(uri);
  if (!address) return refuse(Code::invalid, false, address.error().what);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address->raw), address->size) != 0) {
    const bool gone = (errno == ECONNREFUSED || errno == ENOENT) && !wanted.is_zero();
    return refuse(gone ? Code::peer_lost : Code::io, gone, errno_error("dial " + uri).what);
  }
  ShmEndpoint* endpoint = add(std::move(fd), Handshake::dial(home_, wanted, random_id(), 0, 1), EPOLLIN);
  if (endpoint == nullptr) return refuse(Code::io, false, "cannot watch a socket");
  endpoint->deadline = deadline;
  endpoint->wanted = wanted;
  const EndpointId id = endpoint->id;
  Failure failure;
  if (!send(*endpoint, endpoint->handshake.opening(), -1, failure) && failure.code == Code::ok)
    failure = {Code::io, "socket full", "the socket takes no first frame"};
  if (failure.code != Code::ok) lose(*endpoint, failure, out);
  return id;
}

void ShmTransport::accept_some() {
  for (int i = 0; i < 16; ++i) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    home_.tally->add(Count::accepts);
    if (handshakes_ >= kHandshakesMax || endpoints_.size() >= home_.endpoints_max) {
      home_.tally->failure("accept: too many connections");
      continue;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    const bool known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    if (home_.options->secret.empty() && (!known || (peer.uid != ::geteuid() && peer.uid != 0))) {
      home_.tally->failure("accept: another user without a secret");
      continue;
    }
    ShmEndpoint* endpoint = add(std::move(fd), Handshake::listen(home_), EPOLLIN);
    if (endpoint == nullptr) continue;
    endpoint->accepted = true;
    endpoint->deadline = now() + home_.options->connect_timeout;
  }
}

bool ShmTransport::send(ShmEndpoint& endpoint, const OutFrame& frame, int fd, Failure& failure) {
  const auto head = wire::encode(frame.header);
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(head.data()), head.size()},
                              {const_cast<std::byte*>(frame.payload.data()), frame.payload.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  if (::sendmsg(endpoint.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ETOOMANYREFS)
    failure = {Code::peer_lost, "connection lost", errno_error("send").what};
  return false;
}

ShmTransport::Failure ShmTransport::flush(ShmEndpoint& endpoint) {
  Failure failure;
  while (!endpoint.queue.empty() && send(endpoint, endpoint.queue.front(), -1, failure)) endpoint.queue.pop_front();
  if (failure.code == Code::ok && endpoint.queue.empty() && endpoint.publish_again) failure = send_arenas(endpoint);
  return failure;
}

/// Sends the arenas the peer does not have yet, then the descriptor. Order matters, so it waits (as
/// publish_again) until the socket has taken everything before it.
ShmTransport::Failure ShmTransport::send_arenas(ShmEndpoint& endpoint) {
  endpoint.publish_again = true;
  Failure failure;
  if (!endpoint.queue.empty()) return failure;
  const auto descriptor = home_.describe();  // before the arenas: it must not name one that is not sent
  for (const auto& arena : home_.access->shared_with(endpoint.handshake.peer_instance())) {
    if (endpoint.shared.contains(arena.info.id)) continue;
    OutFrame frame = control_frame(FrameType::share, {});
    frame.header.buffer = arena.info.id;
    frame.header.length = arena.info.length;
    frame.header.snapshot = static_cast<uint32_t>(arena.info.access);
    if (!send(endpoint, frame, arena.fd, failure)) return failure;
    endpoint.shared.insert(arena.info.id);
  }
  if (send(endpoint, control_frame(FrameType::describe, wire::encode(*descriptor)), -1, failure))
    endpoint.publish_again = false;
  return failure;
}

ShmTransport::Failure ShmTransport::receive(ShmEndpoint& endpoint, Outbox& out) {
  for (int i = 0; i < 64; ++i) {
    iovec part{inbox_.data(), inbox_.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(endpoint.fd.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (n < 0) return {Code::peer_lost, "connection lost", errno_error("recv").what};
    Fd passed;
    size_t passed_count = 0;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t k = 0; k < count; ++k, ++passed_count) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(head) + k * sizeof fd, sizeof fd);
        passed = Fd(fd);  // of several only the last stays open, and the frame is refused below
      }
    }
    if (n == 0) return {Code::peer_lost, "connection lost", "closed by the peer"};
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || static_cast<size_t>(n) < wire::kFrameHeaderBytes ||
        passed_count > 1)
      return {Code::corrupt, "bad message size", "message of " + std::to_string(n) + " bytes"};
    FrameHeader header;
    const char* why = nullptr;
    const std::span<const std::byte, wire::kFrameHeaderBytes> head(inbox_.data(), wire::kFrameHeaderBytes);
    if (const Code code = wire::decode(head, header, why); code != Code::ok)
      return {code, why, std::string("bad frame: ") + why};
    const std::span<const std::byte> payload(inbox_.data() + head.size(), static_cast<size_t>(n) - head.size());
    if (payload.size() != (header.kind() == FrameType::share ? 0 : header.length) ||
        (header.kind() == FrameType::share) != static_cast<bool>(passed))
      return {Code::corrupt, "bad message size", "message and header disagree"};
    if (Failure failure = take(endpoint, header, payload, std::move(passed), out); failure.code != Code::ok)
      return failure;
  }
  return {};
}

ShmTransport::Failure ShmTransport::take(ShmEndpoint& endpoint, const FrameHeader& header,
                                         std::span<const std::byte> payload, Fd fd, Outbox& out) {
  if (!endpoint.handshake.complete()) {
    Handshake::Step step = endpoint.handshake.take(header, payload);
    Failure failure;
    if (step.send && !send(endpoint, *step.send, -1, failure) && failure.code == Code::ok)
      failure = {Code::io, "socket full", "the socket takes no handshake"};
    if (step.failed) return {step.failed->code, step.reason, step.failed->what, step.gone};
    if (failure.code == Code::ok && endpoint.handshake.complete()) {
      --handshakes_;
      return send_arenas(endpoint);
    }
    return failure;
  }
  switch (header.kind()) {
    case FrameType::share: return take_share(endpoint, header, std::move(fd));
    case FrameType::describe: return take_descriptor(endpoint, payload, out);
    case FrameType::notify:
      if (!endpoint.up) return {Code::corrupt, "notify before describe", "notify before describe"};
      out.news.push_back(
          {.kind = News::Kind::notify, .endpoint = endpoint.id, .bytes = {payload.begin(), payload.end()}});
      return {};
    case FrameType::goodbye:
      return {Code::peer_lost, "goodbye",
              "the peer left: " + std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), true};
    default:
      return {Code::corrupt, "unexpected frame", "unexpected frame '" + std::string(to_string(header.kind())) + "'"};
  }
}

ShmTransport::Failure ShmTransport::take_share(ShmEndpoint& endpoint, const FrameHeader& header, Fd fd) {
  if (endpoint.arenas.size() >= wire::kXferBuffersMax || endpoint.arenas.contains(header.buffer) || header.length == 0)
    return {Code::corrupt, "bad share", "share of buffer " + std::to_string(header.buffer)};
  const bool writable = header.snapshot == static_cast<uint32_t>(AccessClass::landing);
  auto arena = mem::SharedBuffer::map(fd.get(), header.length, writable);
  if (!arena)
    return {arena.error().code == Code::invalid ? Code::corrupt : Code::io, "arena cannot be mapped",
            arena.error().what};
  auto shared = std::make_shared<mem::SharedBuffer>(std::move(*arena));
  endpoint.arenas.emplace(header.buffer, shared);
  endpoint.fresh.push_back({header.buffer, shared});
  return {};
}

ShmTransport::Failure ShmTransport::take_descriptor(ShmEndpoint& endpoint, std::span<const std::byte> payload,
                                                    Outbox& out) {
  auto decoded = wire::decode_descriptor(payload);
  if (!decoded || decoded->instance != endpoint.handshake.peer_instance())
    return {Code::corrupt, "malformed or foreign descriptor", "malformed or foreign descriptor"};
  const auto descriptor = std::make_shared<const Descriptor>(std::move(*decoded));
  std::erase_if(endpoint.arenas, [&](const auto& arena) { return descriptor->find(arena.first) == nullptr; });
  News news{.kind = News::Kind::described, .endpoint = endpoint.id, .descriptor = descriptor};
  if (!endpoint.up) {
    endpoint.up = true;
    endpoint.deadline = kNever;
    news.kind = News::Kind::up;
    news.accepted = endpoint.accepted;
    news.row = index_ - 1u;
    news.instance = endpoint.handshake.peer_instance();
    news.text = endpoint.handshake.peer_name();
  }
  news.arenas = std::exchange(endpoint.fresh, {});
  out.news.push_back(std::move(news));
  return {};
}

SliceDone ShmTransport::copy(ShmEndpoint& endpoint, const Slice& slice) {
  const auto at = endpoint.arenas.find(slice.buffer);
  if (at == endpoint.arenas.end())
    return {slice.id, Code::not_found, 0, "shm: buffer " + std::to_string(slice.buffer) + " is not shared (any more)"};
  mem::SharedBuffer& arena = *at->second;
  const size_t bytes = slice.local.size();
  if (!inside(slice.offset, bytes, arena.size()))
    return {slice.id, Code::invalid, 0, "shm: range beyond the end of the arena"};
  Tally& tally = *home_.tally;
  SliceDone done{slice.id};
  if (slice.op == Op::read) {
    const std::byte* from = std::as_const(arena).data() + slice.offset;
    if (slice.checksum)
      done.crc32c = copy_with_crc(slice.local.data(), from, bytes);
    else
      std::memcpy(slice.local.data(), from, bytes);
    tally.add(index_ - 1u, Flow::read_bytes, bytes);
    return done;
  }
  if (!arena.writable()) return {slice.id, Code::invalid, 0, "shm: write to a buffer that peers may only read"};
  std::memcpy(arena.data() + slice.offset, slice.local.data(), bytes);
  tally.add(index_ - 1u, Flow::written_bytes, bytes);
  return done;
}

size_t ShmTransport::post(EndpointId id, int, std::span<const Slice> slices, Outbox& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return 0;
  size_t copied = 0;
  size_t taken = 0;
  for (const Slice& slice : slices) {
    if (copied >= kCopyBudget) break;
    out.done.push_back(copy(*endpoint, slice));
    copied += slice.local.size();
    ++taken;
  }
  return taken;
}

Code ShmTransport::notify(EndpointId id, std::span<const std::byte> bytes, Outbox& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr || !endpoint->up) return Code::peer_lost;
  if (endpoint->queue.size() >= kQueueMax) return Code::busy;
  OutFrame frame = control_frame(FrameType::notify, {bytes.begin(), bytes.end()});
  Failure failure;
  if (!endpoint->queue.empty() || !send(*endpoint, frame, -1, failure)) {
    if (failure.code != Code::ok) {
      lose(*endpoint, failure, out);
      return Code::peer_lost;
    }
    endpoint->queue.push_back(std::move(frame));
    arm(*endpoint);
  }
  return Code::ok;
}

void ShmTransport::publish(Outbox& out) {
  std::vector<std::pair<ShmEndpoint*, Failure>> failed;
  for (auto& [id, endpoint] : endpoints_) {
    if (!endpoint->handshake.complete()) continue;
    Failure failure = send_arenas(*endpoint);
    if (failure.code != Code::ok)
      failed.emplace_back(endpoint.get(), std::move(failure));
    else
      arm(*endpoint);
  }
  for (auto& [endpoint, failure] : failed) lose(*endpoint, failure, out);
}

void ShmTransport::arm(ShmEndpoint& endpoint) {
  const bool paused = endpoint.up && !home_.reading_notifies;
  const bool sending = !endpoint.queue.empty() || endpoint.publish_again;
  const uint32_t events = (paused ? EPOLLRDHUP : EPOLLIN) | (sending ? EPOLLOUT : 0u);
  if (events == endpoint.armed) return;
  home_.poller->modify(endpoint.token, endpoint.fd.get(), events);
  endpoint.armed = events;
}

void ShmTransport::ready(uint64_t token, uint32_t events, Outbox& out) {
  if (token == listener_token_) return accept_some();
  const auto at = by_token_.find(token);
  if (at == by_token_.end()) return;
  ShmEndpoint& endpoint = *at->second;
  Failure failure;
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) failure = receive(endpoint, out);
  if (failure.code == Code::ok) failure = flush(endpoint);
  if (failure.code != Code::ok)
    lose(endpoint, failure, out);
  else
    arm(endpoint);
}

void ShmTransport::lose(ShmEndpoint& endpoint, const Failure& failure, Outbox& out) {
  if (!endpoint.handshake.complete()) --handshakes_;
  if (failure.code != Code::peer_lost || (!endpoint.up && !failure.gone)) home_.tally->failure(failure.reason);
  home_.poller->remove(endpoint.fd.get());
  if (endpoint.up || !endpoint.accepted)
    out.news.push_back({.kind = News::Kind::lost,
                        .endpoint = endpoint.id,
                        .gone = failure.gone,
                        .code = failure.code,
                        .text = "shm: " + failure.text});
  by_token_.erase(endpoint.token);
  endpoints_.erase(EndpointId{endpoint.id});
}

void ShmTransport::close(EndpointId id, Code code, std::string_view why, Outbox& out) {
  ShmEndpoint* endpoint = find(id);
  if (endpoint == nullptr) return;
  Failure ignored;
  if (endpoint->up && code == Code::cancelled) {
    const auto* p = reinterpret_cast<const std::byte*>(why.data());
    (void)send(*endpoint, control_frame(FrameType::goodbye, {p, p + std::min(why.size(), wire::kReasonBytesMax)}), -1,
               ignored);
  }
  lose(*endpoint, {code, "closed", std::string(why)}, out);
}

void ShmTransport::shutdown() {
  Outbox nobody;
  while (!endpoints_.empty()) close(endpoints_.begin()->first, Code::cancelled, "shutting down", nobody);
  if (listener_) {
    home_.poller->remove(listener_.get());
    listener_.reset();
    if (!path_.empty()) ::unlink(path_.c_str());
  }
}

TimePoint ShmTransport::tick(TimePoint at, Outbox& out) {
  TimePoint next = kNever;
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

Reach probe(const Options&) {
  auto trial = mem::SharedBuffer::create(4096, {.name = "mc-xfer-probe"});
  if (!trial) return {false, "", trial.error().what};
  const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return {false, "", errno_error("AF_UNIX SEQPACKET").what};
  return {true, "", "usable"};
}

Reach reach(const Descriptor& local, const Descriptor& remote) {
  if (local.boot.is_zero() || remote.boot.is_zero()) return {false, "", "the boot id of a host is unknown"};
  if (local.boot != remote.boot)
    return {false, "", "another host (boot id " + remote.boot.short_hex() + ", here " + local.boot.short_hex() + ")"};
  for (const auto& uri : remote.uris)
    if (uri.starts_with("shm://")) return {true, uri, "same host (boot id " + local.boot.short_hex() + ")"};
  return {false, "", "the peer does not listen on shm"};
}

}  // namespace

const TransportEntry kTransportShm = {
    .scheme = "shm",
    .summary = "shared memory arenas of one host",
    .probe = probe,
    .reach = reach,
    .covers = [](const BufferInfo& buffer) { return buffer.shared; },
    .make = [](Home& home, uint8_t index) -> std::unique_ptr<Transport> {
      return std::make_unique<ShmTransport>(home, index);
    },
};

}  // namespace mc::xfer

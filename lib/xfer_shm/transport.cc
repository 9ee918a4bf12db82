// shm, setting up and taking down; what messages mean is in lane.cc.
#include "xfer_shm/transport.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "xfer/poller.h"
#include "xfer/socket.h"
#include "xfer/tally.h"
#include "xfer_shm/xfer_shm.h"

namespace mc::xfer {
namespace {

using wire::FrameType;

constexpr size_t kHandshakesMax = 256;
constexpr size_t kNameDigits = 12;  // of the instance, in the name of the socket

struct UnixAddress {
  sockaddr_un raw{};
  socklen_t size = 0;
  Fd folder{};  // that raw goes through, where the path is longer than a socket's name may be
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};

/// "shm:///path" is a file, "shm://name" an abstract name.
Result<UnixAddress> unix_address(std::string_view uri) {
  if (!uri.starts_with("shm://") || uri.size() < 7) return Error{Code::invalid, "bad address " + std::string(uri)};
  std::string name(uri.substr(6));
  UnixAddress address;
  address.raw.sun_family = AF_UNIX;
  const bool abstract = name[0] != '/';
  if (!abstract && name.size() >= sizeof address.raw.sun_path) {
    const size_t slash = name.rfind('/');
    address.folder = Fd(::open(name.substr(0, slash + 1).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!address.folder) return errno_error("open " + name.substr(0, slash));
    name = "/proc/self/fd/" + std::to_string(address.folder.get()) + name.substr(slash);
  }
  if (name.size() + 1 >= sizeof address.raw.sun_path)
    return Error{Code::invalid, "address longer than a unix socket allows: " + std::string(uri)};
  std::memcpy(address.raw.sun_path + (abstract ? 1 : 0), name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  return address;
}

/// Is the process at the other end of the socket our user's, or root's?
bool of_our_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == ::geteuid() || peer.uid == 0);
}

Reach probe_shm(const Options&) {
  auto trial = mem::SharedBuffer::create(4096, {.name = "mc-xfer-probe"});
  if (!trial) return {false, "", trial.error().what};
  const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return {false, "", errno_error("AF_UNIX SEQPACKET").what};
  return {true, "", "usable"};
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
  const Options& options = *home_.options;
  std::string path = options.shm_path;
  if (path.empty() && !options.shm_folder.empty())
    path = options.shm_folder + "/data-" + home_.instance.short_hex(kNameDigits);
  if (!path.empty() && path[0] != '/') return Error{Code::invalid, "xfer: shm_path " + path + " is not absolute"};
  const std::string uri = "shm://" + (path.empty() ? "mc-xfer-" + home_.instance.hex() : path);
  MC_TRY(address, unix_address(uri));
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("xfer: shm socket");
  if (!path.empty()) {  // a socket file outlives its process: replace one that nobody answers on
    const Fd trial(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (::connect(trial.get(), address.get(), address.size) == 0)
      return Error{Code::busy, "xfer: shm_path " + path + " is in use by another process"};
    if (errno == ECONNREFUSED) ::unlink(path.c_str());
  }
  if (::bind(fd.get(), address.get(), address.size) != 0) return errno_error("xfer: shm bind " + uri);
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

EndpointId ShmTransport::connect(const Dial& dial, Reports& out) {
  home_.tally->add(Count::connects);
  const auto refuse = [&](Code code, bool gone, std::string text) {
    const EndpointId id = home_.next_endpoint();
    out.news.push_back({.kind = News::Kind::lost, .endpoint = id, .gone = gone, .code = code, .text = "shm: " + text});
    return id;
  };
  const auto address = unix_address(dial.uri);
  if (!address) return refuse(Code::invalid, false, address.error().what);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), address->get(), address->size) != 0) {
    const bool gone = (errno == ECONNREFUSED || errno == ENOENT) && !dial.wanted.is_zero();
    return refuse(gone ? Code::peer_lost : Code::io, gone, errno_error("dial " + dial.uri).what);
  }
  const bool ours = of_our_user(fd.get());
  if (!ours && home_.options->secret.empty()) {
    home_.tally->failure("dial: another user listens there");
    return refuse(Code::unsupported, false, "another user's process listens on " + dial.uri);
  }
  ShmEndpoint* endpoint =
      add(std::move(fd), Handshake::dial(home_, dial.wanted, dial.connection, 0, 1, wire::SealWish::never, dial.ticket),
          EPOLLIN);
  if (endpoint == nullptr) return refuse(Code::io, false, "cannot watch a socket");
  endpoint->ours = ours;
  endpoint->deadline = dial.deadline;
  endpoint->wanted = dial.wanted;
  const EndpointId id = endpoint->id;
  Failure failure;
  if (!send(*endpoint, endpoint->handshake.opening(), -1, failure) && failure.code == Code::ok)
    failure = {Code::io, "socket full", "the socket takes no first frame"};
  if (failure.code != Code::ok) lose(*endpoint, failure, out);
  return id;
}

void ShmTransport::accept_some() {
  for (int i = 0; i < 16; ++i) {
    auto [fd, exhausted] = accept_next(listener_.get());
    if (exhausted) {  // look again at a later tick
      home_.tally->failure("accept: out of descriptors or memory");
      home_.poller->modify(listener_token_, listener_.get(), 0);
      accept_again_ = now() + 100ms;
    }
    if (!fd) return;
    home_.tally->add(Count::accepts);
    if (handshakes_ >= kHandshakesMax || endpoints_.size() >= home_.endpoints_max) {
      home_.tally->failure("accept: too many connections");
      continue;
    }
    const bool ours = of_our_user(fd.get());
    if (!ours && home_.options->secret.empty()) {
      home_.tally->failure("accept: another user without a secret");
      continue;
    }
    ShmEndpoint* endpoint = add(std::move(fd), Handshake::listen(home_), EPOLLIN);
    if (endpoint == nullptr) continue;
    endpoint->accepted = true;
    endpoint->ours = ours;
    endpoint->deadline = now() + home_.options->connect_timeout;
  }
}

void ShmTransport::arm(ShmEndpoint& endpoint) {
  const bool paused = endpoint.up && !home_.reading_notifies;
  const bool sending = !endpoint.queue.empty() || endpoint.publish_again || endpoint.full;
  const uint32_t events = (paused ? EPOLLRDHUP : EPOLLIN) | (sending ? EPOLLOUT : 0u);
  if (events == endpoint.armed) return;
  home_.poller->modify(endpoint.token, endpoint.fd.get(), events);
  endpoint.armed = events;
}

void ShmTransport::ready(uint64_t token, uint32_t events, Reports& out) {
  if (token == listener_token_) return accept_some();
  const auto at = by_token_.find(token);
  if (at == by_token_.end()) return;
  ShmEndpoint& endpoint = *at->second;
  Failure failure;
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) failure = receive(endpoint, out);
  if (failure.code == Code::ok) failure = flush(endpoint);
  if (failure.code != Code::ok) return lose(endpoint, failure, out);
  if ((events & EPOLLOUT) != 0 && endpoint.queue.empty() && std::exchange(endpoint.full, false)) out.room = true;
  arm(endpoint);
}

void ShmTransport::lose(ShmEndpoint& endpoint, const Failure& failure, Reports& out) {
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

void ShmTransport::close(EndpointId id, Code code, std::string_view why, Reports& out) {
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
  Reports nobody;
  while (!endpoints_.empty()) close(endpoints_.begin()->first, Code::cancelled, "shutting down", nobody);
  if (listener_) {
    if (!path_.empty()) ::unlink(path_.c_str());  // while we listen: after that it may be a successor's
    home_.poller->remove(listener_.get());
    listener_.reset();
    accept_again_ = kNever;
  }
}

TimePoint ShmTransport::tick(TimePoint at, Reports& out) {
  if (accept_again_ <= at) {
    accept_again_ = kNever;
    home_.poller->modify(listener_token_, listener_.get(), EPOLLIN);
  }
  TimePoint next = accept_again_;
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

const TransportEntry kTransportShm = {
    .scheme = "shm",
    .summary = "shared memory arenas of one host",
    .dials_hosts = false,
    .maps_memory = true,
    .check = [](const Options&) -> Result<void> { return {}; },
    .probe = probe_shm,
    .reach = reach_by_shm,
    .covers = [](const BufferInfo& buffer) { return buffer.shared; },
    .make = [](Home& home, uint8_t index) -> std::unique_ptr<Transport> {
      return std::make_unique<ShmTransport>(home, index);
    },
};

}  // namespace mc::xfer

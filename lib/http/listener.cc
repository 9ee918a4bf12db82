#include "http/listener.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/assert.h"
#include "base/fd.h"

namespace mc::http::detail {
namespace {

constexpr int kBacklog = 1024;
constexpr int kAcceptsMax = 64;  // accepted in a row before connections are served
constexpr Duration kAcceptPause = 200ms;

std::string endpoint_text(const asio::ip::tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

/// "127.0.0.1:51234", or "" for an address of another family.
std::string endpoint_text(const Protocol::endpoint& endpoint) {
  asio::ip::tcp::endpoint tcp;
  const int family = endpoint.protocol().family();
  if ((family != AF_INET && family != AF_INET6) || endpoint.size() > tcp.capacity()) return "";
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  return endpoint_text(tcp);
}

/// "user 1000" for a Unix socket whose other end is this process's user or root, otherwise "".
std::string trusted_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "";
  return peer.uid == ::geteuid() || peer.uid == 0 ? "user " + std::to_string(peer.uid) : "";
}

/// Removes the socket of a process that was killed. True when the path is free now.
bool remove_dead_socket(const asio::local::stream_protocol::endpoint& endpoint) {
  struct stat found {};
  if (::lstat(endpoint.path().c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return false;
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe || ::connect(probe.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0) return false;
  return errno == ECONNREFUSED && ::unlink(endpoint.path().c_str()) == 0;
}

/// Sets keep-alive probes after 30 s and a bound on unacknowledged data, so that a dead host is noticed even on a
/// silent connection.
void tune(Socket& socket) {
  error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int idle_s = 30, interval_s = 10, probes = 3;
  const unsigned user_timeout_ms = 60'000;
  const int fd = socket.native_handle();
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

}  // namespace

Listener::Listener(asio::io_context& io, const ServerOptions& options)
    : io_(io), options_(options), acceptor_(io), pause_(io) {}

Result<void> Listener::open() {
  MC_ASSERT(!acceptor_.is_open());
  if (options_.socket_path.empty()) {
    MC_CHECK(open_tcp());
  } else {
    MC_CHECK(open_socket());
  }
  error_code error;
  acceptor_.non_blocking(true, error);
  if (error) return user_error(err::kCannotListen, "http: " + url_ + ": " + error.message(), "--http");
  return {};
}

Result<void> Listener::open_socket() {
  url_ = "unix:" + options_.socket_path;
  const auto fail = [&](err::Number number, const std::string& why) {
    return user_error(number, "http: socket " + options_.socket_path + ": " + why, "run directory",
                      "set MCT_RUN_DIR to a directory of this cluster's own");
  };
  if (options_.socket_path.size() >= sizeof(sockaddr_un::sun_path))
    return fail(err::kCannotListen, "the path is longer than a Unix socket's may be");
  const asio::local::stream_protocol::endpoint endpoint(options_.socket_path);
  protocol_ = endpoint.protocol();
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  error_code error;
  if (fd >= 0) acceptor_.assign(protocol_, fd, error);
  if (fd < 0 || error) return fail(err::kCannotListen, errno_error("socket").what);
  acceptor_.bind(endpoint, error);
  if (error == asio::error::address_in_use && remove_dead_socket(endpoint)) acceptor_.bind(endpoint, error);
  if (error == asio::error::address_in_use) return fail(err::kPortInUse, "another process listens there");
  if (error) return fail(err::kCannotListen, "bind: " + error.message());
  owns_path_ = true;
  // No client can connect before listen().
  if (::chmod(options_.socket_path.c_str(), 0600) != 0) return fail(err::kCannotListen, errno_error("chmod").what);
  acceptor_.listen(kBacklog, error);
  if (error) return fail(err::kCannotListen, "listen: " + error.message());
  return {};
}

Result<void> Listener::open_tcp() {
  error_code error;
  const std::string host = options_.address == "localhost" ? "127.0.0.1" : options_.address;
  const auto address = asio::ip::make_address(host, error);
  if (error)
    return user_error(err::kCannotListen, "http: \"" + options_.address + "\" is not an IP address", "--http",
                      "write --http 127.0.0.1:8000 or --http [::1]:8000");
  const auto fail = [&](std::string_view step, uint16_t tried) {
    const std::string text = endpoint_text({address, tried});
    if (error == asio::error::address_in_use)
      return user_error(err::kPortInUse,
                        "http: " + text + " is in use" +
                            (options_.port_tries > 1 ? " and so are the next " + std::to_string(options_.port_tries - 1)
                                                     : std::string()),
                        "--http");
    return user_error(err::kCannotListen, "http: " + std::string(step) + " " + text + ": " + error.message(), "--http");
  };
  for (int i = 0; i < std::max(1, options_.port_tries) && options_.port + i <= 65535; ++i) {
    const asio::ip::tcp::endpoint endpoint(address, static_cast<uint16_t>(options_.port + i));
    acceptor_.close(error);
    // Asio does not set close-on-exec, and a child that inherited a socket would keep clients waiting.
    const int fd = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error.assign(errno, boost::system::system_category());
      return fail("socket for", endpoint.port());
    }
    acceptor_.assign(endpoint.protocol(), fd, error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
    if (!error) break;
    if (error != asio::error::address_in_use) return fail("bind", endpoint.port());
  }
  if (error) return fail("bind", options_.port);
  const auto bound = acceptor_.local_endpoint(error);
  if (error) return fail("getsockname", options_.port);
  protocol_ = bound.protocol();
  url_ = "http://" + endpoint_text(bound);
  port_ = static_cast<uint16_t>(std::stoul(url_.substr(url_.rfind(':') + 1)));
  return {};
}

void Listener::start(OnAccept on_accept, OnPause on_pause) {
  MC_ASSERT(on_accept && on_pause);
  on_accept_ = std::move(on_accept);
  on_pause_ = std::move(on_pause);
  accept_next();
}

void Listener::accept_next() {
  acceptor_.async_wait(asio::socket_base::wait_read, [this](error_code stopped) {
    if (stopped || !acceptor_.is_open()) return;
    const char* why = accept_some();
    if (!why) return accept_next();
    // Descriptors or memory have run out. Accepting resumes after a pause, because connections that end free both.
    on_pause_(why);
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code cancelled) {
      if (!cancelled && acceptor_.is_open()) accept_next();
    });
  });
}

/// The reason why the connection that waits cannot be accepted now, or null.
const char* Listener::accept_some() {
  for (int i = 0; i < kAcceptsMax; ++i) {
    const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)) return nullptr;
    if (fd < 0) return std::strerror(errno);
    try {
      accept(fd);
    } catch (const std::bad_alloc&) {  // the socket's destructor closed it
      return "not enough memory";
    }
  }
  return nullptr;
}

void Listener::accept(int fd) {
  error_code error;
  Socket socket(io_);
  socket.assign(protocol_, fd, error);
  if (error) ::close(fd);
  socket.non_blocking(true, error);
  std::string name = options_.socket_path.empty() ? endpoint_text(socket.remote_endpoint(error)) : trusted_user(fd);
  if (error) name.clear();
  if (!name.empty()) tune(socket);
  on_accept_(std::move(socket), name);
}

void Listener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void Listener::remove_path() {
  if (std::exchange(owns_path_, false)) ::unlink(options_.socket_path.c_str());
}

}  // namespace mc::http::detail

#include "xfer/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace mc::xfer {

Result<SocketAddress> numeric_address(const HostPort& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string host = place.host == "localhost" ? "127.0.0.1" : place.host;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (rc != 0) return Error{Code::invalid, "xfer: tcp address " + place.text() + ": " + ::gai_strerror(rc)};
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

bool stays_on_host(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address.family() == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
  }
  return address.family() == AF_UNIX;
}

SocketAddress peer_address(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

void set_option(int fd, int level, int name, int value) {
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

void tune_socket(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

void tune_bulk(int fd) {
  constexpr int kLocalSendBytes = 256 << 10;
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0) return;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0) return;
  if (here.ss_family != there.ss_family) return;
  const auto same = [&](const auto& a, const auto& b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  const bool local = here.ss_family == AF_INET6 ? same(reinterpret_cast<const sockaddr_in6&>(here).sin6_addr,
                                                       reinterpret_cast<const sockaddr_in6&>(there).sin6_addr)
                                                : same(reinterpret_cast<const sockaddr_in&>(here).sin_addr,
                                                       reinterpret_cast<const sockaddr_in&>(there).sin_addr);
  if (local) set_option(fd, SOL_SOCKET, SO_SNDBUF, kLocalSendBytes);
}

Result<Listening> listen_tcp(const std::string& scheme, const HostPort& place, const std::string& advertise) {
  MC_TRY(address, numeric_address(place));
  Listening listening{Fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), place};
  const int fd = listening.fd.get();
  if (!listening.fd) return errno_error("xfer: " + scheme + " socket");
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd, address.get(), address.size) != 0) return errno_error("xfer: " + scheme + " bind " + place.text());
  if (::listen(fd, 128) != 0) return errno_error("xfer: " + scheme + " listen " + place.text());
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return errno_error("xfer: getsockname");
  HostPort& told = listening.told;
  told.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  if (!advertise.empty()) {
    MC_TRY(advertised, parse_host_port(advertise));
    told.host = advertised.host;
    if (advertised.port != 0) told.port = advertised.port;
  } else if (told.host.empty() || told.host == "0.0.0.0" || told.host == "::") {
    return Error{Code::invalid, "xfer: " + scheme + "_bind " + told.text() +
                                    " is a wildcard: name the address that peers should dial (" + scheme +
                                    "_advertise)"};
  }
  return listening;
}

Dialling dial_tcp(const SocketAddress& address) {
  Dialling dialling{Fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))};
  const int rc = dialling.fd ? ::connect(dialling.fd.get(), address.get(), address.size) : -1;
  if (rc != 0 && errno != EINPROGRESS) dialling.error = errno;
  return dialling;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

Accepted accept_next(int listener) {
  Fd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool exhausted = !fd && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
  return {std::move(fd), exhausted};
}

namespace {

/// Whether the process has the credentials for a connection to or from that host.
bool may_use(const std::string& host, const Options& options) {
  if (options.insecure) return true;
  return !options.secret.empty() && (!options.local_secret || is_loopback(host));
}

}  // namespace

Reach may_listen(const std::string& scheme, const std::string& bind, const Options& options) {
  const auto place = parse_host_port(bind);
  if (!place) return {false, "", scheme + "_bind: " + place.error().what};
  if (may_use(place->host, options)) return {.usable = true};
  if (is_loopback(place->host))
    return {false, "",
            "there is no cluster secret, and every user of this host reaches " + place->text() +
                ": share one, or allow it with the insecure option",
            Code::unsupported, err::kAuthRequired};
  return {false, "",
          scheme + "_bind " + place->text() +
              " is off loopback and there is no cluster secret: make one with mc-conductor keygen, or allow it with "
              "the insecure option",
          Code::invalid, err::kAuthRequired};
}

Reach may_dial(const std::string& uri, const std::string& host, const Options& options) {
  if (is_loopback(host) || may_use(host, options)) return {true, uri, "usable"};
  return {false, "", uri + " is off loopback and there is no cluster secret", Code::invalid, err::kAuthRequired};
}

}  // namespace mc::xfer

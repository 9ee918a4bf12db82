// Listening and dialling over TCP, for the transports that need a socket: tcp itself, and rdma for its
// set-up. Addresses are numeric (names are resolved on the caller's thread), nothing blocks.
#pragma once

#include <sys/socket.h>

#include "base/fd.h"
#include "base/result.h"
#include "base/uri.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// 127.0.0.0/8, ::1, and sockets that are no internet sockets: their bytes do not leave the host.
bool stays_on_host(const SocketAddress& address);
/// The other end of a connected socket.
SocketAddress peer_address(int fd);
/// Numeric hosts only: never blocks.
Result<SocketAddress> numeric_address(const HostPort& place);
void set_option(int fd, int level, int name, int value);
/// Latency over batching, and a dead host noticed within seconds. Failures here are not fatal.
void tune_socket(int fd);
/// For a connected bulk stream. Between two processes of one host a send buffer as large as the kernel
/// makes it (4 MiB) only means that every byte has left the cache before it is received; 256 KiB moves
/// 1.5 to 2 times as much. Streams to other hosts keep the kernel's choice: they need their round trip
/// times bandwidth.
void tune_bulk(int fd);

struct Listening {
  Fd fd;
  HostPort told;  // what peers should dial
};
/// Binds `scheme`_bind and finds out what to tell peers; `advertise` may be empty.
Result<Listening> listen_tcp(const std::string& scheme, const HostPort& place, const std::string& advertise);
/// A socket whose connect() was started; `error` is its errno when it failed at once.
struct Dialling {
  Fd fd;
  int error = 0;
};
Dialling dial_tcp(const SocketAddress& address);
/// 0, or the errno of a connect() that has ended.
int connect_error(int fd);
/// The next connection that waits at a listener of any family, else none. `exhausted`: one does wait,
/// but the process is out of descriptors or memory; it stays ready and would spin a loop that polls.
struct Accepted {
  Fd fd;
  bool exhausted = false;
};
Accepted accept_next(int listener);
/// A secret is asked for, off loopback one of the cluster, unless the options say otherwise.
Reach may_listen(const std::string& scheme, const std::string& bind, const Options& options);
/// The same, of a place to dial.
Reach may_dial(const std::string& uri, const std::string& host, const Options& options);

}  // namespace mc::xfer

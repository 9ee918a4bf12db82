// Listening and dialling over TCP, for the transports that need a socket: tcp itself, and rdma for its set-up.
// Addresses are numeric, because names are resolved on the caller's thread. No function blocks.
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

/// True for 127.0.0.0/8, ::1, and sockets that are no internet sockets: their bytes do not leave the host.
bool stays_on_host(const SocketAddress& address);
/// The address of the other end of a connected socket.
SocketAddress peer_address(int fd);
/// Accepts numeric hosts only, so it never blocks.
Result<SocketAddress> numeric_address(const HostPort& place);
void set_option(int fd, int level, int name, int value);
/// Prefers latency over batching, and detects a lost host within seconds. Failures here are not fatal.
void tune_socket(int fd);
/// For a connected bulk stream. Between two processes of one host, a send buffer of the kernel's size (4 MiB) means
/// that every byte has left the cache before it is received. A buffer of 256 KiB moves 1.5 to 2 times as much. Streams
/// to other hosts keep the kernel's choice, because they need round-trip time times bandwidth.
void tune_bulk(int fd);

struct Listening {
  Fd fd;
  HostPort told;  // address that peers should dial
};
/// Binds `scheme`_bind and derives the address for peers. `advertise` may be empty.
Result<Listening> listen_tcp(const std::string& scheme, const HostPort& place, const std::string& advertise);
/// A socket whose connect() was started. `error` is its errno when it failed at once.
struct Dialling {
  Fd fd;
  int error = 0;
};
Dialling dial_tcp(const SocketAddress& address);
/// The result of a connect() that has ended: 0 or an errno.
int connect_error(int fd);
/// The next connection that waits at a listener of any family, else none. `exhausted`: a connection waits, but the
/// process is out of descriptors or memory. The listener then stays ready and would make a polling loop spin.
struct Accepted {
  Fd fd;
  bool exhausted = false;
};
Accepted accept_next(int listener);
/// Whether the process may listen there. A secret is required, off loopback that of the cluster, unless the options say
/// otherwise.
Reach may_listen(const std::string& scheme, const std::string& bind, const Options& options);
/// Whether the process may dial there, by the rule of may_listen().
Reach may_dial(const std::string& uri, const std::string& host, const Options& options);

}  // namespace mc::xfer

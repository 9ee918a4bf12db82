// How tcp moves bytes between its sockets and memory (internal): by system calls, or by an io_uring where
// the kernel gives one. Readiness is epoll's either way, nothing waits, and nothing is in flight between
// two calls: a slice that was cancelled, or a lane that was closed, has no kernel left behind it that may
// still write. To add one: an entry of kTcpIos[] in tcp_io.cc.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::xfer {

class Tally;

/// One an engine; used by one thread at a time, not always the same (core_drive.cc), but for attach and detach.
class TcpIo {
 public:
  virtual ~TcpIo() = default;
  /// As recvmsg(MSG_DONTWAIT | flags) into the parts, one after the other: how many bytes came, 0 at the end
  /// of the stream, or a negative errno.
  virtual ssize_t receive(int fd, std::span<const iovec> parts, int flags) = 0;
  /// As sendmsg(MSG_DONTWAIT | MSG_NOSIGNAL).
  virtual ssize_t send(int fd, std::span<const iovec> parts) = 0;
};

struct TcpIoEntry {
  const char* name;
  const char* summary;
  /// Null: not here, and `why`. One that stops working later counts that as a failure and goes on with
  /// system calls.
  std::unique_ptr<TcpIo> (*open)(Tally& tally, std::string& why);
};

/// The first is what every machine has, and what `auto` takes.
std::span<const TcpIoEntry* const> tcp_ios();
extern const TcpIoEntry kTcpIoEpoll;
extern const TcpIoEntry kTcpIoUring;

/// "auto" or the name of an entry; what this machine cannot do becomes the first, with the reason.
struct TcpIoChoice {
  std::unique_ptr<TcpIo> io;
  std::string text;  // "epoll", "uring", "epoll, for uring is unusable: ..."
};
/// The plain calls: stateless, for any thread at any time.
TcpIo& tcp_calls();
/// The parts must outlive it.
msghdr message_of(std::span<const iovec> parts);
bool known_tcp_io(std::string_view name);
/// For the doctor: each way, tried for a moment.
struct TcpIoReport {
  std::string name;
  std::string trouble;  // why it cannot be used here; empty = it can
};
std::vector<TcpIoReport> tcp_io_report();
TcpIoChoice choose_tcp_io(std::string_view name, Tally& tally);

}  // namespace mc::xfer

// The ways in which tcp moves bytes: system calls, or an io_uring where the kernel gives one. Both wait for
// readiness with epoll. To add one, write its StreamIo and name its entry in kTcpIos[] in io.cc.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xfer/stream_io.h"

namespace mc::xfer {

class Tally;

struct TcpIoEntry {
  const char* name;
  const char* summary;
  /// Null: not here, and `why`. One that stops working later counts that as a failure and goes on with
  /// system calls.
  std::unique_ptr<StreamIo> (*open)(Tally& tally, std::string& why);
};

/// The first is what every machine has, and what `auto` takes.
std::span<const TcpIoEntry* const> tcp_ios();
extern const TcpIoEntry kTcpIoEpoll;
extern const TcpIoEntry kTcpIoUring;

/// "auto" or the name of an entry; what this machine cannot do becomes the first, with the reason.
struct TcpIoChoice {
  std::unique_ptr<StreamIo> io;
  std::string text;  // "epoll", "uring", "epoll, for uring is unusable: ..."
};
bool known_tcp_io(std::string_view name);
/// Every way, opened for a moment: mc-bench doctor prints it.
struct TcpIoReport {
  std::string name;
  std::string trouble;  // why it cannot be used here; empty = it can
};
std::vector<TcpIoReport> tcp_io_report();
TcpIoChoice choose_tcp_io(std::string_view name, Tally& tally);

}  // namespace mc::xfer

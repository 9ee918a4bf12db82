// The I/O methods of tcp: system calls, or an io_uring where the kernel has it. Both wait for readiness with epoll. To
// add one, write its StreamIo and name its entry in kTcpIos[] in io.cc.
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
  /// Null: the method is unusable here, and `why` has the reason. A method that stops working later counts a failure
  /// and goes on with system calls.
  std::unique_ptr<StreamIo> (*open)(Tally& tally, std::string& why);
};

/// The first method works on every machine, and `auto` means it.
std::span<const TcpIoEntry* const> tcp_ios();
extern const TcpIoEntry kTcpIoEpoll;
extern const TcpIoEntry kTcpIoUring;

/// "auto" or the name of an entry. An unusable method is replaced by the first one, with the reason in `text`.
struct TcpIoChoice {
  std::unique_ptr<StreamIo> io;
  std::string text;  // "epoll", "uring", "epoll, for uring is unusable: ..."
};
bool known_tcp_io(std::string_view name);
/// One line for each method, from opening it for a moment. mc-bench doctor prints it.
struct TcpIoReport {
  std::string name;
  std::string trouble;  // why the method is unusable here; empty = usable
};
std::vector<TcpIoReport> tcp_io_report();
TcpIoChoice choose_tcp_io(std::string_view name, Tally& tally);

}  // namespace mc::xfer

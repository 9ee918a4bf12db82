#include "interruption.h"

#include <poll.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/errors.h"
#include "base/exit.h"
#include "child.h"

namespace mc::bench {

Result<std::unique_ptr<Interruption>> Interruption::open(std::function<void()> write, std::function<void()> clean) {
  MC_TRY(signals, host::Signals::open());
  MC_TRY(over, EventFd::open());
  return std::unique_ptr<Interruption>(
      new Interruption(std::move(signals), std::move(over), std::move(write), std::move(clean)));
}

Interruption::Interruption(host::Signals signals, EventFd over, std::function<void()> write,
                           std::function<void()> clean)
    : signals_(std::move(signals)),
      over_(std::move(over)),
      write_(std::move(write)),
      clean_(std::move(clean)),
      thread_([this] { wait(); }) {}

Interruption::~Interruption() {
  over_.signal();
  thread_.join();
  host::Signals::let_through();
}

void Interruption::wait() {
  pollfd fds[2] = {{over_.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
  for (;;) {
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[0].revents != 0) return;
    const auto signal = signals_.next();
    if (signal == SIGINT || signal == SIGTERM) break;
  }
  host::Signals::let_through();
  // The measuring thread holds the mutex for long only when the reader of its output has stalled.
  if (const std::unique_lock lock(mutex_, std::chrono::seconds(2)); lock) {
    write_();
    (void)write_all(2, format_error("mc-bench", user_error(err::kInterrupted, "stopped by a signal")));
  }
  Child::kill_all();
  if (clean_) clean_();
  std::_Exit(kExitInterrupted);
}

}  // namespace mc::bench

#include "host/shutdown.h"

#include <csignal>

#include "base/assert.h"
#include "base/cli.h"

namespace mc::host {

bool Shutdown::ask(int signal, TimePoint now, Duration drain_most) {
  MC_ASSERT(signal == SIGINT || signal == SIGTERM);
  exit_code_ = signal == SIGINT ? kExitInterrupted : 0;
  urgent_ = asked_;
  if (asked_) return false;
  asked_ = true;
  until_ = after(now, drain_most);
  return true;
}

void Shutdown::fail(Error error) {
  if (!failure_) failure_ = std::move(error);
}

Result<int> Shutdown::outcome() const {
  if (failure_) return *failure_;
  return exit_code_;
}

}  // namespace mc::host

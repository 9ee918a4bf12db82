#include "sim_progress.h"

#include <unistd.h>

#include "base/cli_flags.h"
#include "base/fd.h"
#include "print.h"

namespace mc::bench {
SimProgress::SimProgress(const cli::Args& args, size_t requests) : requests_(requests) {
  terminal_ = ::isatty(STDERR_FILENO) == 1;
  shown_ = cli::use_progress(args);
  begin_ = steady_now();
  due_ = begin_ + (terminal_ ? kTerminalEvery : kLogEvery);
}

SimProgress::~SimProgress() {
  if (drawn_) (void)write_all(2, "\r\x1b[K");
}

void SimProgress::next(std::string what) {
  ++runs_;
  what_ = std::move(what);
}

std::function<void(uint64_t)> SimProgress::watcher() {
  if (!shown_) return nullptr;
  return [this](uint64_t over) {
    if (steady_now() >= due_) tell(over);
  };
}

void SimProgress::tell(uint64_t over) {
  std::string line = "mc-bench: run " + std::to_string(runs_) + ", " + what_ + ": " + std::to_string(over) + " of ";
  line += std::to_string(requests_) + " requests are over, " + fixed(to_seconds(steady_now() - begin_), 0) + " s";
  (void)write_all(2, terminal_ ? "\r\x1b[K" + line : line + "\n");
  drawn_ = terminal_;
  due_ = steady_now() + (terminal_ ? kTerminalEvery : kLogEvery);
}

}  // namespace mc::bench

// The processes of a local cluster: started beside the conductor, stopped with it, and an early death
// is reported with its exit code.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace mc::host {

class Children {
 public:
  Children() = default;
  /// Ends what still runs (SIGTERM, then SIGKILL after a while).
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// `command[0]` is looked for beside the running program first, then in PATH. stdout goes to stderr,
  /// so that the parent's stdout carries its own results only.
  Result<void> start(const std::string& name, std::vector<std::string> command);
  struct Ended {
    std::string name;
    int status = 0;  // as waitpid gives it
    std::string text() const;
  };
  /// The first child's end; nullopt when it still runs at `deadline`.
  std::optional<Ended> wait(TimePoint deadline);
  /// A child that ended since the last call.
  std::optional<Ended> reap();
  /// SIGTERM to all, waits until `deadline`, then SIGKILL.
  void stop(TimePoint deadline);
  /// SIGTERM to all.
  void terminate() const;
  /// Waits for the end of all. False: some still run at `deadline`, or the descriptor `wake` is ready.
  bool wait_all(TimePoint deadline, int wake);
  size_t running() const { return children_.size(); }

 private:
  struct Child {
    std::string name;
    pid_t pid = -1;
  };
  std::vector<Child> children_;
};

/// The folder of the running program, without a trailing slash.
std::string program_folder();

}  // namespace mc::host

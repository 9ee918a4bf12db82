#include "host/children.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"

extern char** environ;

namespace mc::host {

std::string program_folder() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

Children::~Children() {
  stop(SystemClock::instance().now() + 2s);
}

Result<void> Children::start(const std::string& name, std::vector<std::string> command) {
  MC_ASSERT(!command.empty());
  const std::string beside = program_folder() + "/" + command[0];
  if (::access(beside.c_str(), X_OK) == 0) command[0] = beside;
  std::vector<char*> argv;
  for (auto& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A process group of its own: Ctrl-C reaches the conductor alone, which then stops them in order.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0)
    return user_error(err::kChildFailed, errno_error("cannot start " + command[0], error).what,
                      program_folder() + ", then the folders of PATH",
                      "put all programs into the folder of this one, or their folder into PATH");
  MC_ASSERT(pid > 0);  // stop() must not signal a group or every process
  children_.push_back({name, pid});
  return {};
}

std::string Children::Ended::text() const {
  MC_ASSERT(WIFSIGNALED(status) || WIFEXITED(status));
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

std::optional<Children::Ended> Children::reap() {
  for (auto it = children_.begin(); it != children_.end(); ++it) {
    int status = 0;
    if (::waitpid(it->pid, &status, WNOHANG) != it->pid) continue;
    Ended ended{it->name, status};
    children_.erase(it);
    return ended;
  }
  return std::nullopt;
}

namespace {

/// A pidfd becomes readable when the process ends: a wait with a deadline and without polling.
bool ends_by(pid_t pid, TimePoint deadline) {
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return process && wait_fd(process.get(), POLLIN, deadline);
}

}  // namespace

std::optional<Children::Ended> Children::wait(TimePoint deadline) {
  if (children_.empty() || !ends_by(children_.front().pid, deadline)) return std::nullopt;
  Ended ended{children_.front().name, 0};
  ::waitpid(children_.front().pid, &ended.status, 0);
  children_.erase(children_.begin());
  return ended;
}

void Children::terminate() const {
  for (const auto& child : children_) ::kill(child.pid, SIGTERM);
}

bool Children::wait_all(TimePoint deadline, int wake) {
  while (!children_.empty()) {
    const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, children_.front().pid, 0)));
    pollfd ends[] = {{process.get(), POLLIN, 0}, {wake, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SystemClock::instance().now()).count();
    if (!process || left <= 0 || (::poll(ends, 2, static_cast<int>(left)) < 0 && errno != EINTR)) return false;
    if ((ends[0].revents & POLLIN) != 0) {
      ::waitpid(children_.front().pid, nullptr, 0);
      children_.erase(children_.begin());
    } else if ((ends[1].revents & POLLIN) != 0) {
      return false;
    }
  }
  return true;
}

void Children::stop(TimePoint deadline) {
  terminate();
  for (const auto& child : children_) {
    if (!ends_by(child.pid, deadline)) ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
  }
  children_.clear();
}

}  // namespace mc::host

#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/errors.h"

extern char** environ;

namespace mc::bench {
namespace {

constexpr size_t kOutputMax = size_t{64} << 20;

std::mutex running_mutex;
std::vector<pid_t> running;

/// A file in memory that reads as `text` from its start: unlike a pipe it takes any amount at once.
Result<Fd> file_of(std::string_view text) {
  Fd file(::memfd_create("input", MFD_CLOEXEC));
  if (!file) return errno_error("memfd_create");
  MC_CHECK(write_all(file.get(), text));
  if (::lseek(file.get(), 0, SEEK_SET) < 0) return errno_error("lseek");
  return file;
}

}  // namespace

Result<Child> Child::start(const std::vector<std::string>& command, std::string_view input) {
  MC_TRY(pipe, make_pipe());
  MC_TRY(stdin_file, file_of(input));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdin_file.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, pipe.write_end.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, pipe.write_end.get(), 2);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  Child child;
  const std::lock_guard lock(running_mutex);
  const int error = ::posix_spawnp(&child.pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    child.pid_ = -1;
    return Error{Code::unsupported, command[0] + ": " + std::strerror(error)};
  }
  running.push_back(child.pid_);
  child.output_ = std::move(pipe.read_end);
  return child;
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), output_(std::move(other.output_)), text_(std::move(other.text_)) {}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status;
  reap(&status);
}

void Child::kill_all() {
  const std::lock_guard lock(running_mutex);
  for (const pid_t pid : running) ::kill(pid, SIGKILL);
}

/// Signals under the lock: a pid in the list cannot have been reused.
void Child::reap(int* status) {
  const std::lock_guard lock(running_mutex);
  std::erase(running, pid_);
  ::waitpid(std::exchange(pid_, -1), status, 0);
}

Result<int> Child::finish(TimePoint deadline) {
  MC_TRY(text, read_to_end(output_.get(), kOutputMax, deadline));
  text_ += text;
  // End of output is not yet its end: a program may close stdout and go on.
  const Fd ends(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!ends) return errno_error("pidfd_open");
  MC_CHECK(wait_fd(ends.get(), POLLIN, deadline));
  int status = 0;
  reap(&status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool Child::stirred(Duration moment) const {
  return wait_fd(output_.get(), POLLIN, SystemClock::instance().now() + moment).has_value();
}

std::string last_words(const std::string& text) {
  const size_t from = text.size() > 300 ? text.size() - 300 : 0;
  std::string out = text.substr(from);
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

}  // namespace mc::bench

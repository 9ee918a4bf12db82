// This test program as another process, to be killed with kill -9: started anew with one of its skipped
// test cases ("child: holder"), with pipes that carry what the two tell each other. The environment
// tells the child the rest: MC_XFER_CHILD_TRANSPORT and whatever else its test case looks for.
#pragma once

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "pair.h"

extern char** environ;

namespace mc::xfer::test {

inline constexpr int kSayFd = 100;  // a child speaks here: doctest has stdout

inline std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes) {
    out += "0123456789abcdef"[static_cast<unsigned>(byte) >> 4];
    out += "0123456789abcdef"[static_cast<unsigned>(byte) & 15];
  }
  return out;
}

inline std::vector<std::byte> unhex(std::string_view text) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  return out;
}

inline std::string read_line(int fd) {
  std::string line;
  for (char c; wait_fd(fd, POLLIN, in(kLong)) && ::read(fd, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

inline size_t open_descriptors() {
  size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

struct Child {
  pid_t pid = -1;
  Fd input;   // to its stdin
  Fd output;  // from its stdout

  Child(const std::string& test_case, const std::string& transport) {
    auto down = make_pipe();
    auto up = make_pipe();
    REQUIRE_OK(down);
    REQUIRE_OK(up);
    ::setenv("MC_XFER_CHILD_TRANSPORT", transport.c_str(), 1);
    // Not fork(): other threads of this test hold locks and pinned pages, which a copy of the process must not touch.
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down->read_end.get(), 0);
    posix_spawn_file_actions_adddup2(&actions, up->write_end.get(), kSayFd);
    std::string words[] = {"child", "--test-case=" + test_case, "--no-skip"};
    char* const argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    REQUIRE(error == 0);
    input = std::move(down->write_end);
    output = std::move(up->read_end);
  }
  void tell(const std::string& line) { REQUIRE_OK(write_all(input.get(), line + "\n", in(kLong))); }
  std::string hear() { return read_line(output.get()); }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(pid, -1), &status, 0);
    CHECK(WIFSIGNALED(status));
  }
  ~Child() { kill(); }
};

// ---- in the child ----

inline std::string child_transport() {
  const char* transport = std::getenv("MC_XFER_CHILD_TRANSPORT");
  return transport != nullptr ? transport : "auto";
}

inline void say(const std::string& line) {
  (void)write_all(kSayFd, line + "\n", in(kLong));
}

}  // namespace mc::xfer::test

// RDMA helpers when the system starts no thread: a child process becomes a user that may have one process only.
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/errors.h"
#include "base/fd.h"
#include "test.h"
#include "xfer_rdma/connector.h"
#include "xfer_rdma/reaper.h"

namespace rdma_threads_test {

using namespace mc;
using namespace mc::xfer;

namespace {

struct Counts final : RdmaReaper::Remains {
  explicit Counts(int& c) : count(c) {}
  ~Counts() override { ++count; }
  int& count;
};

/// Exit code of a child in which no thread starts; `body` says whether all went well there.
int without_threads(const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const rlimit one{1, 1};
    const auto other = static_cast<uid_t>(50'000 + ::getpid() % 10'000);
    if (::setrlimit(RLIMIT_NPROC, &one) != 0 || ::setuid(other) != 0) ::_exit(2);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("xfer/rdma_threads: remains are destroyed by the caller when no thread starts" *
          doctest::skip(::geteuid() != 0)) {
  CHECK(without_threads([] {
          int count = 0;
          RdmaReaper reaper;
          for (int i = 0; i < 3; ++i) reaper.take(std::make_unique<Counts>(count));
          return count == 3;
        }) == 0);
}

TEST_CASE("xfer/rdma_threads: a connection attempt fails alone with MC5006 when no thread starts" *
          doctest::skip(::geteuid() != 0)) {
  CHECK(without_threads([] {
          RdmaConnector connector;
          const auto fd = connector.open();
          if (!fd) return false;
          connector.start({.path = 7}, []() -> Result<void> { return {}; });
          if (!wait_fd(*fd, POLLIN, SystemClock::instance().now() + 20s)) return false;
          const auto done = connector.take();
          return done.size() == 1 && done[0].attempt.path == 7 && done[0].error &&
                 done[0].error->mc == err::kSystemLimit;
        }) == 0);
}

}  // namespace rdma_threads_test

// Memory runs out at every allocation in turn: the part at work loses that piece of work, and the process goes on.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/fd.h"
#include "base/log_writer.h"
#include "failing_memory.h"
#include "test.h"

using namespace mc;

TEST_CASE("attack/base: the notice of dropped lines is written once there is memory for it") {
  const TimePoint soon = after(SystemClock::instance().now(), 120s);
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  const Fd target(::dup(full.get()));
  std::atomic<long> attempts{0};
  LogWriter writer(target.get(), {.notice = [&](uint64_t lines) {
                     test::t_allocations_left = attempts++;  // of the log's thread, from here on
                     return "dropped " + std::to_string(lines) + std::string(100, ' ') + "\n";
                   }});
  REQUIRE_OK(writer.start());
  writer.push("refused\n");
  REQUIRE(writer.flush(soon));
  REQUIRE(::dup2(pipe->write_end.get(), target.get()) >= 0);  // the disk has room again
  constexpr int kPushes = 20;  // a notice makes fewer allocations
  for (int i = 0; i < kPushes; ++i) {
    writer.push("line\n");
    REQUIRE(writer.flush(soon));
  }
  pipe->write_end.reset();
  REQUIRE(::dup2(full.get(), target.get()) >= 0);  // the pipe ends
  const auto all = read_to_end(pipe->read_end.get(), 1 << 20, soon);
  REQUIRE_OK(all);
  size_t lines = 0, notices = 0;
  for (size_t at = 0; at < all->size(); at = all->find('\n', at) + 1)
    all->compare(at, 10, "dropped 1 ") == 0 ? ++notices : ++lines;
  CHECK(lines == kPushes);
  CHECK(notices == 1);
  CHECK(attempts > 1);
  CHECK(writer.dropped() == 1);
}

#include "base/thread_limit.h"

#include <sys/resource.h>

#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/fd.h"

namespace mc {

Error thread_limit_error(int error) {
  rlimit limit{};
  const bool has_limit = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const std::string most = has_limit ? "RLIMIT_NPROC is " + std::to_string(limit.rlim_cur) : "RLIMIT_NPROC is not set";
  return user_error(err::kSystemLimit, errno_error("start a thread", error).what + ": " + most, "ulimit -u",
                    "raise the limit on this user's processes (ulimit -u) or on the control group's (pids.max, "
                    "TasksMax= of systemd), or end other programs of this user");
}

Result<void> check_thread_room(int count) {
  // The kernel counts a thread for a moment after it was joined, so room for both sets is needed.
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  Result<void> room;
  try {
    for (int i = 0; i < 2 * count; ++i) threads.emplace_back([ended] { ended.wait(); });
  } catch (const std::system_error& error) {
    room = thread_limit_error(error.code().value());
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  return room;
}

}  // namespace mc

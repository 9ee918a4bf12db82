// Threads that connect queue pairs (internal). The step to "ready to receive" makes the kernel look up the peer's
// hardware address, which takes 1 s when no host answers. On the engine's thread such a step would stop every other
// path, as often as a peer likes. So the transport hands the work over and goes on. A path is not destroyed while its
// work is here. A peer may again and again offer addresses that no host answers for, so each connection has a few
// threads at most.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "xfer/transport.h"

namespace mc::xfer {

class RdmaConnector {
 public:
  static constexpr size_t kThreadsMax = 16;     // further attempts wait
  static constexpr size_t kPerEndpointMax = 2;  // further attempts of the endpoint wait

  RdmaConnector() = default;
  RdmaConnector(const RdmaConnector&) = delete;
  RdmaConnector& operator=(const RdmaConnector&) = delete;
  ~RdmaConnector() { stop(); }
  /// Ends work that has not begun with Code::cancelled. Waits for the rest.
  void stop();

  /// A descriptor that is readable when take() has results.
  Result<int> open();
  struct Attempt {
    EndpointId endpoint = EndpointId::none;
    uint32_t path = 0;
    uint32_t epoch = 0;
  };
  void start(const Attempt& attempt, std::function<Result<void>()> work);
  struct Done {
    Attempt attempt;
    std::optional<Error> error;
  };
  std::vector<Done> take();

 private:
  struct Job {
    Attempt attempt;
    std::function<Result<void>()> work;
  };
  void run();
  std::deque<Job>::iterator next();  // the oldest job that may begin, or end()

  EventFd ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> waiting_;
  std::map<EndpointId, size_t> running_;  // number of running jobs of each endpoint that has any
  std::vector<Done> done_;
  size_t idle_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // a thread is added when all others are busy; threads stay
};

}  // namespace mc::xfer

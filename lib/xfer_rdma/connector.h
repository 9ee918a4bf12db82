// Threads that connect queue pairs (internal). Moving one to "ready to receive" makes the kernel look up the peer's
// hardware address, and waits for that: 1 s when no host answers. On the engine's thread that would stop every
// other path, and a peer could have it as often as it liked. So the transport hands the work over and goes on; a path
// is not let go of while its work is here. A peer may offer addresses that nobody answers for, again and again: so
// each connection has a few threads at most.
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
  static constexpr size_t kThreadsMax = 16;     // more attempts than that wait for one that ends
  static constexpr size_t kPerEndpointMax = 2;  // and more than that for one of the same endpoint

  RdmaConnector() = default;
  RdmaConnector(const RdmaConnector&) = delete;
  RdmaConnector& operator=(const RdmaConnector&) = delete;
  ~RdmaConnector() { stop(); }
  /// Ends work that was not begun with Code::cancelled; waits for the rest.
  void stop();

  /// Readable when take() has something.
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
  std::deque<Job>::iterator next();  // the oldest that may begin, or end()

  EventFd ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> waiting_;
  std::map<EndpointId, size_t> running_;  // of those that have any
  std::vector<Done> done_;
  size_t idle_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // made when all that there are are busy; they stay
};

}  // namespace mc::xfer

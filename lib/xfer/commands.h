// Commands from callers to the loop, and the descriptor that wakes the engine's thread for them. Any thread pushes
// commands. The thread that has the loop's turn takes them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "xfer/batch.h"

namespace mc::xfer {

struct Command {
  enum class Kind : uint8_t { submit, cancel, connect, disconnect, notify, publish, secret, resume, stop };
  Kind kind{};
  OpenBatch* batch = nullptr;        // submit
  BatchId batch_id = BatchId::none;  // for cancel: an id, because the batch may be closed
  PeerId peer = PeerId::none;
  TimePoint deadline = kNever;
  std::string text{};                              // connect: the URI; secret: the new secret
  std::shared_ptr<const Descriptor> descriptor{};  // shared by caller and loop; never changes
  std::vector<std::byte> bytes{};
};

class CommandQueue {
 public:
  Result<void> open();
  /// Readable when the engine's thread must wake.
  int fd() const { return wake_.fd(); }
  void drain() { wake_.drain(); }

  /// Adds a command. Wakes the engine's thread if it sleeps.
  void push(Command command);
  /// Whether commands wait: a hint, read without the mutex.
  bool any_hint() const { return any_.load(std::memory_order_relaxed); }
  /// Replaces `out` by the waiting commands. False: there are none. A command that another thread is pushing right now
  /// may be missed; that push wakes the engine's thread if it sleeps.
  bool take(std::vector<Command>& out);
  /// Announces that the engine's thread is about to sleep, so that push() and wake() wake it from now on. False:
  /// commands wait.
  bool may_sleep();
  void awake();
  void wake();

 private:
  EventFd wake_;
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> any_{false};  // hint that commands_ is not empty
  bool sleeping_ = false;         // whether the engine's thread waits for descriptors
};

}  // namespace mc::xfer

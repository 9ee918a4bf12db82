// Commands from callers to the loop, and the descriptor that wakes the engine's thread for them. Any thread pushes;
// the thread that has the loop's turn takes.
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
  BatchId batch_id = BatchId::none;  // cancel: the batch itself may be gone
  PeerId peer = PeerId::none;
  TimePoint deadline = kNever;
  std::string text{};                              // connect: the URI; secret: the new one
  std::shared_ptr<const Descriptor> descriptor{};  // shared: kept by caller and loop, never changed
  std::vector<std::byte> bytes{};
};

class CommandQueue {
 public:
  Result<void> open();
  /// Readable when the engine's thread must wake.
  int fd() const { return wake_.fd(); }
  void drain() { wake_.drain(); }

  /// Wakes the engine's thread if that sleeps.
  void push(Command command);
  /// Replaces `out` by the commands that wait; false: none does. A command that another thread is just pushing may be
  /// missed: that push wakes the engine's thread if it sleeps.
  bool take(std::vector<Command>& out);
  /// The engine's thread is about to sleep, and from now on push() and wake() wake it. False: commands wait.
  bool may_sleep();
  void awake();
  void wake();

 private:
  EventFd wake_;
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> any_{false};  // commands_ is not empty: a hint
  bool sleeping_ = false;         // the engine's thread waits for descriptors
};

}  // namespace mc::xfer

// Behaviour when the operating system gives no more memory. Work whose size strangers choose (parsing and tokenising a
// request) runs inside FailsAlone. There an allocation throws std::bad_alloc at once, and the request is answered 503.
// All other threads have state that must not stay half changed, so the reserve is freed for them and their small
// allocations succeed. memory_is_short() then makes servers refuse large requests until the reserve is filled again.
#pragma once

#include <cstddef>
#include <mutex>

#include "base/result.h"

namespace mc {

/// Once, by a daemon at start, before other threads allocate. MC5003 when there is no room for the reserve.
Result<void> keep_memory_reserve(size_t bytes);
/// True from the moment the reserve was given up until refill_memory_reserve() got it back. Any thread.
bool memory_is_short();
/// Tries to fill the reserve again when it was given up; cheap otherwise. Any thread, a few times a second.
void refill_memory_reserve();

/// While one lives, allocations of this thread throw instead of using the reserve; with `false` they use it again
/// (a destructor must not throw).
class FailsAlone {
 public:
  explicit FailsAlone(bool alone = true);
  ~FailsAlone();
  FailsAlone(const FailsAlone&) = delete;
  FailsAlone& operator=(const FailsAlone&) = delete;

 private:
  bool before_;
};

/// Holds the mutex of tables that must not stay half changed: their allocations are small, and they use the reserve
/// also inside FailsAlone.
class TableLock {
 public:
  explicit TableLock(std::mutex& mutex) : lock_(mutex) {}

 private:
  const FailsAlone uses_reserve_{false};
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace mc

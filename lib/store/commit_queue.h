// Group commit: the first caller commits for itself; callers that come meanwhile form the next round, whose first one
// commits for all of them while they sleep. A lone caller hands nothing to another thread, and the end of a round wakes
// its callers by one system call.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "store/index.h"

namespace mc::store {

/// One caller's items, which become part of one group.
struct Commit {
  std::vector<Item> items;
  uint32_t pages = 0;  // of the values
  bool durable = true;
  bool is_apart = false;  // durable; its group is flushed at once, and its result is that of the group alone
  Result<void> result;
};

class CommitQueue {
 public:
  /// Returns when `commit` has its result. `write` commits a whole round and sets the results; one thread at a time is
  /// inside it.
  void run(Commit& commit, const std::function<void(std::span<Commit* const>)>& write);

 private:
  using Word = std::atomic<uint32_t>;  // a round's number, and what a thread sleeps on (futex(2))
  static constexpr size_t kWords = 8;

  std::mutex mutex_;              // of the next three
  bool busy_ = false;             // a round is under way, or its leader is on its way
  uint32_t round_ = 0;            // the last one that began
  std::vector<Commit*> waiting_;  // of the round after it; the first one leads
  // Numbers only grow, but for the wrap. A word outlives every commit, so the thread that wakes others touches nothing
  // of theirs.
  Word leading_{0};                   // highest round whose leader may begin
  std::array<Word, kWords> ended_{};  // by round modulo kWords: the highest that ended
};

}  // namespace mc::store

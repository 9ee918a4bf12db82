#include "store/commit_queue.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/assert.h"

namespace mc::store {
namespace {

bool reached(uint32_t value, uint32_t round) {
  return static_cast<int32_t>(value - round) >= 0;
}

void wait_for_round(std::atomic<uint32_t>& word, uint32_t round) {
  // As long as the disk takes for what is ahead: the caller's memory is in use until then.
  for (;;) {
    const uint32_t now = word.load(std::memory_order_acquire);  // pairs with wake(): results and the queue's order
    if (reached(now, round)) return;
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
  }
}

void wake(std::atomic<uint32_t>& word, int threads) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

}  // namespace

void CommitQueue::run(Commit& commit, const std::function<void(std::span<Commit* const>)>& write) {
  MC_ASSERT_LE(commit.items.size(), wire::kStoreGroupEntriesMax);
  std::unique_lock lock(mutex_);
  waiting_.push_back(&commit);
  const uint32_t mine = round_ + 1;
  if (busy_) {
    const bool leads = waiting_.size() == 1;
    lock.unlock();
    wait_for_round(leads ? leading_ : ended_[mine % kWords], mine);
    if (!leads) return;
    lock.lock();
  }
  MC_ASSERT(waiting_.front() == &commit && round_ + 1 == mine);
  busy_ = true;
  round_ = mine;
  std::vector<Commit*> group;
  group.swap(waiting_);
  lock.unlock();
  write(group);
  lock.lock();
  // Before any later round can begin: a round that took this word in the meantime would be set back.
  ended_[mine % kWords].store(mine, std::memory_order_release);
  const bool next = busy_ = !waiting_.empty();
  // After every round, also where nobody waits: a word left 2^31 rounds behind would look like one ahead.
  leading_.store(mine + 1, std::memory_order_release);
  lock.unlock();
  // The next leader goes first: the disk is idle until it writes.
  if (next) wake(leading_, 1);
  if (group.size() > 1) wake(ended_[mine % kWords], INT_MAX);
}

}  // namespace mc::store

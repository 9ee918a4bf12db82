#include "door/door_pool.h"

#include <malloc.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/assert.h"

namespace mc::door {
namespace {

constexpr double kJobCost = 4096;  // in bytes: of a job however small, so that none is free

}  // namespace

std::string client_of(std::string_view peer) {
  return "at " + std::string(peer.substr(0, peer.rfind(':')));
}

DoorPool::DoorPool(const Options& options) : options_(options) {
  MC_ASSERT(options_.threads >= 2);
  MC_ASSERT(options_.owner_share > 0 && options_.owner_share <= 1);
  running_.reserve(static_cast<size_t>(options_.threads));  // a thread of the pool must not throw
  try {
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
    threads_.emplace_back([this] { watch(); });
  } catch (const std::system_error&) {  // no destructor runs for what is not made
    stop();
    throw;
  }
}

DoorPool::~DoorPool() {
  stop();
}

DoorPool::Admission DoorPool::submit(Job job) {
  // All nodes but the owner's are made here. Once the owner is there, nothing throws: no count is left half changed.
  const auto ticket = std::make_shared<Ticket>();
  const size_t bytes = job.bytes;
  ticket->end_ = std::move(job.end);
  ticket->deadline_ = job.deadline;
  Queue waiting;
  waiting.emplace(std::pair(0.0, 0), Waiting{.job = std::move(job), .ticket = ticket});
  auto queued = waiting.extract(waiting.begin());
  Deadlines deadlines;
  deadlines.emplace(std::pair(ticket->deadline_, 0), ticket);
  auto watched = deadlines.extract(deadlines.begin());
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Admission::stopping;
    MC_ASSERT(queued.mapped().job.run && (ticket->end_ || ticket->deadline_ == kNever));
    const auto share = [&](size_t whole) { return static_cast<double>(whole) * options_.owner_share; };
    const auto owner = owners_.try_emplace(queued.mapped().job.owner).first;
    Owner& o = owner->second;
    const bool is_full = waiting_.size() >= options_.jobs_max || bytes_ + bytes > options_.bytes_max;
    const bool has_share = static_cast<double>(o.jobs + 1) <= share(options_.jobs_max) &&
                           static_cast<double>(o.bytes + bytes) <= share(options_.bytes_max);
    if (is_full || !has_share) {
      if (o.jobs == 0 && o.clock <= clock_) owners_.erase(owner);
      return Admission::full;
    }
    queued.mapped().start = std::max(clock_, o.clock);
    o.clock = queued.mapped().start + static_cast<double>(bytes) + kJobCost;
    ++o.jobs;
    o.bytes += bytes;
    bytes_ += bytes;
    ticket->number_ = ++submitted_;
    ticket->place_ = {o.clock, ticket->number_};
    queued.key() = ticket->place_;
    waiting_.insert(std::move(queued));
    watched.key().second = ticket->number_;
    deadlines_.insert(std::move(watched));
    MC_ASSERT_LE(waiting_.size(), options_.jobs_max);
    MC_ASSERT_LE(bytes_, options_.bytes_max);
    MC_ASSERT_LE(waiting_.size(), deadlines_.size());
  }
  has_work_.notify_one();
  has_deadline_.notify_one();
  return Admission::taken;
}

void DoorPool::set_deadline(const TicketPtr& ticket, TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    auto watched = deadlines_.extract({ticket->deadline_, ticket->number_});
    if (watched.empty()) return;  // it has ended
    watched.key().first = ticket->deadline_ = deadline;
    deadlines_.insert(std::move(watched));
  }
  has_deadline_.notify_one();
}

size_t DoorPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

DoorPool::Queue::iterator DoorPool::next_job() {
  const bool may_be_large = large_running_ < options_.threads - 1;
  return std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    const size_t bytes = entry.second.job.bytes;
    const bool has_room = running_bytes_ == 0 || running_bytes_ + bytes <= options_.running_bytes_max;
    return has_room && (may_be_large || bytes <= options_.large_bytes);
  });
}

DoorPool::Waiting DoorPool::take(Queue::iterator at) {
  Waiting entry = std::move(at->second);
  waiting_.erase(at);
  MC_ASSERT_LE(entry.job.bytes, bytes_);
  bytes_ -= entry.job.bytes;
  const auto owner = owners_.find(entry.job.owner);
  MC_ASSERT(owner != owners_.end());
  MC_ASSERT(owner->second.jobs > 0 && owner->second.bytes >= entry.job.bytes);
  --owner->second.jobs;
  owner->second.bytes -= entry.job.bytes;
  if (owner->second.jobs == 0 && owner->second.clock <= clock_) owners_.erase(owner);
  return entry;
}

/// Waits for a job that may run now, and trims the arenas when that is due meanwhile. False: the pool stops.
bool DoorPool::wait_for_work(std::unique_lock<std::mutex>& lock, Queue::iterator& at) {
  while (!stopping_) {
    at = next_job();
    if (at != waiting_.end()) return true;
    if (trim_at_ == kNever) {
      has_work_.wait(lock);
    } else if (SystemClock::instance().now() < trim_at_) {
      has_work_.wait_until(lock, trim_at_);
    } else {
      trim_at_ = kNever;
      lock.unlock();
      malloc_trim(0);
      lock.lock();
    }
  }
  return false;
}

void DoorPool::work() {
  std::unique_lock lock(mutex_);
  for (Queue::iterator at; wait_for_work(lock, at);) {
    clock_ = std::max(clock_, at->second.start);
    Waiting entry = take(at);
    // Owners whose clocks have been overtaken are as if they had never been here.
    std::erase_if(owners_, [&](const auto& owner) { return owner.second.jobs == 0 && owner.second.clock <= clock_; });
    const size_t bytes = entry.job.bytes;
    const bool is_large = bytes > options_.large_bytes;
    large_running_ += is_large;
    running_bytes_ += bytes;
    running_.push_back(entry.ticket);
    MC_ASSERT_LE(running_.size(), static_cast<size_t>(options_.threads));
    MC_ASSERT_LT(large_running_, options_.threads);
    lock.unlock();
    const TimePoint began = SystemClock::instance().now();
    entry.job.run(entry.ticket);
    entry.job = {};  // a body is large: not kept until the next job
    const TimePoint ended = SystemClock::instance().now();
    lock.lock();
    if (trim_at_ == kNever && (is_large || ended - began >= kCostly)) {
      trim_at_ = ended + kTrimDelay;
      has_work_.notify_all();  // whichever thread is idle then trims
    }
    large_running_ -= is_large;
    MC_ASSERT_LE(bytes, running_bytes_);
    running_bytes_ -= bytes;
    const size_t ran = std::erase(running_, entry.ticket);
    MC_ASSERT(ran == 1 && large_running_ >= 0);
    deadlines_.erase({entry.ticket->deadline_, entry.ticket->number_});
    entry.ticket->end_ = nullptr;
    if (is_large) has_work_.notify_all();  // several jobs may find room now
  }
}

void DoorPool::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const TimePoint first = deadlines_.empty() ? kNever : deadlines_.begin()->first.first;
    if (first == kNever) {
      has_deadline_.wait(lock);
      continue;
    }
    if (SystemClock::instance().now() < first) {
      has_deadline_.wait_until(lock, first);
      continue;
    }
    const TicketPtr ticket = std::move(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    if (!ticket->settle()) continue;
    Job unwanted;
    if (const auto at = waiting_.find(ticket->place_); at != waiting_.end()) unwanted = take(at).job;
    const auto end = std::exchange(ticket->end_, nullptr);
    lock.unlock();
    unwanted = {};
    if (end) end(End::late);
    lock.lock();
  }
}

void DoorPool::stop() {
  std::vector<TicketPtr> ended;
  Queue unwanted;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    for (auto& [place, entry] : waiting_) ended.push_back(entry.ticket);
    ended.insert(ended.end(), running_.begin(), running_.end());
    unwanted.swap(waiting_);
  }
  for (const TicketPtr& ticket : ended) {
    if (!ticket->settle()) continue;
    std::function<void(End)> end;
    {
      const std::lock_guard lock(mutex_);
      end = std::exchange(ticket->end_, nullptr);
    }
    if (end) end(End::stopped);
  }
  has_work_.notify_all();
  has_deadline_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace mc::door

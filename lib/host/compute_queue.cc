#include "host/compute_queue.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::host {
namespace {

/// The number of a run; 0 for work that is no run.
uint64_t run_of(const node::ComputeWork& work) {
  if (const auto* chunk = std::get_if<node::RunChunk>(&work)) return chunk->run;
  if (const auto* step = std::get_if<node::RunStep>(&work)) return step->run;
  return 0;
}

}  // namespace

void ComputeQueue::submit(node::ComputeWork work) {
  std::lock_guard lock(mutex_);
  MC_ASSERT(!stopping_);
  if (const auto* chunk = std::get_if<node::RunChunk>(&work); chunk && chunk->layers_here != UINT32_MAX)
    layers_here_[chunk->run] = chunk->layers_here;
  work_.push_back(std::move(work));
  changed_.notify_one();
}

void ComputeQueue::prefix_here(uint64_t run, uint32_t layers) {
  std::lock_guard lock(mutex_);
  const auto found = layers_here_.find(run);
  if (found == layers_here_.end()) return;
  MC_ASSERT_LE(found->second, layers);
  found->second = layers;
  changed_.notify_one();
}

void ComputeQueue::cancel(uint64_t run) {
  std::lock_guard lock(mutex_);
  const bool waits = std::any_of(work_.begin(), work_.end(), [run](const auto& work) { return run_of(work) == run; });
  if (!waits && std::ranges::find(current_, run) == current_.end())
    return;  // it is over, and nothing would erase the mark
  cancelled_.insert(run);
  changed_.notify_one();
}

std::optional<node::Event> ComputeQueue::next() {
  std::lock_guard lock(mutex_);
  if (events_.empty()) {
    wake_.drain();
    return std::nullopt;
  }
  node::Event event = std::move(events_.front());
  events_.erase(events_.begin());
  return event;
}

void ComputeQueue::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    cancelled_.insert(current_.begin(), current_.end());
  }
  changed_.notify_one();
}

std::optional<node::ComputeWork> ComputeQueue::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
  if (stopping_) return std::nullopt;
  node::ComputeWork work = std::move(work_.front());
  work_.erase(work_.begin());
  if (const uint64_t run = run_of(work); run != 0) {
    MC_ASSERT(is_followed_ || current_.size() <= 1u);
    const auto* chunk = std::get_if<node::RunChunk>(&work);
    is_followed_ = chunk != nullptr && chunk->is_followed;
    current_.push_back(run);
  }
  return work;
}

bool ComputeQueue::is_empty() const {
  const std::lock_guard lock(mutex_);
  return work_.empty() && !stopping_;
}

bool ComputeQueue::is_cancelled(uint64_t run) const {
  std::lock_guard lock(mutex_);
  return cancelled_.contains(run);
}

bool ComputeQueue::await_prefix(uint64_t run, uint32_t layers) {
  std::unique_lock lock(mutex_);
  MC_ASSERT(current_.size() == 1 && run == current_[0]);
  changed_.wait(lock, [&] {
    const auto found = layers_here_.find(run);
    return cancelled_.contains(run) || found == layers_here_.end() || found->second >= layers;
  });
  return !cancelled_.contains(run);
}

void ComputeQueue::post(node::Event event) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  wake_.signal();
}

void ComputeQueue::finish(node::Event done) {
  {
    const auto* chunk = std::get_if<node::ChunkDone>(&done);
    const uint64_t run = chunk != nullptr ? chunk->run : std::get<node::StepDone>(done).run;
    std::lock_guard lock(mutex_);
    MC_ASSERT_EQ(std::erase(current_, run), 1u);
    cancelled_.erase(run);
    layers_here_.erase(run);
  }
  post(std::move(done));
}

}  // namespace mc::host

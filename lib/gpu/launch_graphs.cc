#include "gpu/launch_graphs.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::gpu {

void LaunchGraphs::begin() {
  MC_ASSERT(!is_noting_);
  is_noting_ = true;
  noted_.clear();
  device_.note_launches(&noted_);
}

void LaunchGraphs::drop() {
  if (!std::exchange(is_noting_, false)) return;
  device_.note_launches(nullptr);
}

Result<void> LaunchGraphs::end() {
  if (!is_noting_) return {};
  drop();
  ++lists_;
  return has_memory_ ? queue() : queue_single();
}

Result<void> LaunchGraphs::queue_single() {
  ++counts_.single;
  return device_.launch_noted(noted_);
}

Result<void> LaunchGraphs::queue() {
  const auto [found, is_new] = known_.try_emplace(noted_.bytes());
  Known& known = found->second;
  known.used = lists_;
  if (is_new) {
    make_room();
    return queue_single();
  }
  auto queued = queue_graph(known);
  if (queued || queued.error().code != Code::no_space) return queued;
  free_graphs();
  return queue_single();
}

/// The graph is made when its list comes for the second time.
Result<void> LaunchGraphs::queue_graph(Known& known) {
  if (known.is_captured) {
    ++counts_.replayed;
    return device_.replay(known.graph);
  }
  MC_TRY(graph, device_.capture(noted_));
  known.graph = std::move(graph);
  known.is_captured = true;
  ++counts_.captured;
  return device_.replay(known.graph);
}

/// The list that was queued longest ago goes.
void LaunchGraphs::make_room() {
  if (known_.size() <= kGraphsMax) return;
  const auto oldest = std::ranges::min_element(known_, {}, [](const auto& entry) { return entry.second.used; });
  MC_ASSERT_LT(oldest->second.used, lists_);
  known_.erase(oldest);
}

void LaunchGraphs::free_graphs() {
  ++counts_.refused;
  has_memory_ = std::ranges::any_of(known_, [](const auto& entry) { return entry.second.is_captured; });
  known_.clear();
}

}  // namespace mc::gpu

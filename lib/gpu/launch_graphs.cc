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
  ++spells_;
  return queue();
}

Result<void> LaunchGraphs::queue() {
  const auto [found, is_new] = known_.try_emplace(noted_.bytes());
  Known& known = found->second;
  known.used = spells_;
  if (is_new) {
    make_room();
    ++counts_.single;
    return device_.launch_noted(noted_);
  }
  if (!known.is_captured) {
    MC_TRY(graph, device_.capture(noted_));
    known.graph = std::move(graph);
    known.is_captured = true;
    ++counts_.captured;
  } else {
    ++counts_.replayed;
  }
  return device_.replay(known.graph);
}

/// The spell that was used longest ago goes.
void LaunchGraphs::make_room() {
  if (known_.size() <= kGraphsMax) return;
  const auto oldest = std::ranges::min_element(known_, {}, [](const auto& entry) { return entry.second.used; });
  MC_ASSERT_LT(oldest->second.used, spells_);
  known_.erase(oldest);
}

}  // namespace mc::gpu

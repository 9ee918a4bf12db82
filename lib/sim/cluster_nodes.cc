#include "sim/cluster_nodes.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "sched/pipeline.h"

namespace mc::sim {

ClusterNodes::ClusterNodes(const ClusterOptions& options, uint32_t count)
    : options_(options),
      outages_(count),
      decode_outages_(options.shape.coupled > 0 ? 0 : options.shape.decode),
      up_since_s_(count, -1e9) {}

int ClusterNodes::slot_of_decode(uint32_t decode) const {
  return static_cast<int>(coupled() ? decode : count() + decode);
}

uint32_t ClusterNodes::decode_of_slot(uint32_t slot) const {
  MC_ASSERT(!coupled());
  MC_ASSERT_LE(count(), slot);
  MC_ASSERT_LT(slot - count(), decode_outages_.size());
  return slot - count();
}

bool ClusterNodes::serves() const {
  const auto any = [](const Outages& outages) { return std::find(outages.begin(), outages.end(), 0) != outages.end(); };
  return any(outages_) && (coupled() || any(decode_outages_));
}

bool ClusterNodes::change(uint32_t& outages, bool up) {
  if (!up) return ++outages == 1;
  return outages > 0 && --outages == 0;
}

bool ClusterNodes::set_up(uint32_t node, bool up, double now_s) {
  MC_ASSERT_LT(node, outages_.size());
  const bool changed = change(outages_[node], up);
  if (changed && up) up_since_s_[node] = now_s;
  return changed;
}

bool ClusterNodes::set_decode_up(uint32_t decode, bool up) {
  MC_ASSERT(!coupled());
  MC_ASSERT_LT(decode, decode_outages_.size());
  return change(decode_outages_[decode], up);
}

std::vector<sched::BoardMember> ClusterNodes::members() const {
  const sched::Profile& profile = *options_.profile;
  std::vector<sched::BoardMember> members;
  const auto add = [&](const char* role, uint32_t number, int slot) -> sched::BoardMember& {
    sched::BoardMember& m = members.emplace_back();
    m.slot = static_cast<uint32_t>(slot);
    m.name = role + std::to_string(number);
    m.capacity_tokens = profile.capacity.kv_tokens;
    m.announced = profile.cost;
    return m;
  };
  for (uint32_t i = 0; i < outages_.size(); ++i) {
    if (!is_up(i)) continue;
    sched::BoardMember& m = add(coupled() ? "m" : "p", i, static_cast<int>(i));
    m.prefill = true, m.decode = coupled();
    m.readable = !coupled();
    m.since = TimePoint{} + from_seconds(up_since_s_[i]);
    m.announced = sched::pipeline_cost(profile.cost, options_.pipeline);
  }
  for (uint32_t i = 0; i < decode_outages_.size(); ++i)
    if (decode_outages_[i] == 0) add("d", i, slot_of_decode(i)).decode = true;
  return members;
}

}  // namespace mc::sim

#include "node/pipeline.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

const wire::Peer* Pipeline::member(uint32_t stage) const {
  const wire::Peer* peer = peers_.find(stage_name(leader_, stage));
  return peer && peer->role == wire::Role::stage ? peer : nullptr;
}

std::optional<uint32_t> Pipeline::missing() const {
  for (uint32_t stage = 1; stage < stages_; ++stage)
    if (!member(stage)) return stage;
  return std::nullopt;
}

std::optional<uint32_t> Pipeline::sender(const Received& event) const {
  const auto stage = parse_stage_name(event.from);
  if (!stage || stage->leader != leader_ || stage->stage >= stages_) return std::nullopt;
  const wire::Peer* peer = member(stage->stage);
  if (!peer || peer->instance != event.instance) return std::nullopt;
  return stage->stage;
}

HolderParts Pipeline::parts(const InstanceId& leader, ExtentLayout layout) const {
  std::vector<wire::HolderPart> out;
  for (uint32_t stage = 0; leads() && stage < stages_; ++stage) {
    const wire::Peer* peer = stage == 0 ? nullptr : member(stage);
    if (stage > 0 && !peer) return std::nullopt;
    layout.stage = layers_of(stage);
    out.push_back({peer ? peer->name : leader_, peer ? peer->instance : leader, layout.stage.first, layout.stage.end,
                   layout.page_bytes()});
  }
  return out;
}

std::string Pipeline::objection(const wire::StageDone& done, uint32_t stage, uint32_t blocks) const {
  const LayerRange layers = layers_of(stage);
  if (done.first_layer != layers.first || done.crcs.size() != layers.end - layers.first)
    return "computed layers " + std::to_string(done.first_layer) + ".." +
           std::to_string(done.first_layer + done.crcs.size()) + ", its part of " + std::to_string(stages_) +
           " stages is " + std::to_string(layers.first) + ".." + std::to_string(layers.end) +
           "; give all stages the same --pipeline count";
  for (const auto& crcs : done.crcs)
    if (crcs.size() < blocks)
      return "reported " + std::to_string(crcs.size()) + " checksums for " + std::to_string(blocks) + " blocks";
  return "";
}

void Pipeline::cancel(const wire::RequestSpec& spec, Actions& out) const {
  for (uint32_t stage = 1; stage < stages_; ++stage)
    if (const wire::Peer* peer = member(stage))
      out.push_back(Send{peer->name, peer->instance, wire::Cancel{spec.req, spec.attempt, "failed"}});
}

std::optional<uint32_t> HandedSlots::take(uint64_t run) {
  MC_ASSERT(run != 0 && !slot_of(run));
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].run != 0) continue;
    slots_[i] = {run, kNever};
    return ActivationSlots::kEach + i;
  }
  return std::nullopt;
}

std::optional<uint32_t> HandedSlots::slot_of(uint64_t run) const {
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].run == run) return ActivationSlots::kEach + i;
  return std::nullopt;
}

void HandedSlots::handed_on(uint64_t run, TimePoint until) {
  MC_ASSERT(slot_of(run) && until != kNever);
  slots_[*slot_of(run) - ActivationSlots::kEach].until = until;
}

void HandedSlots::free(uint64_t run) {
  for (Slot& slot : slots_)
    if (slot.run == run) slot = {};
}

void HandedSlots::free_late(TimePoint now) {
  for (Slot& slot : slots_)
    if (now >= slot.until) slot = {};
}

void HandedSlots::free_others(uint64_t run) {
  for (Slot& slot : slots_)
    if (slot.run != run) slot = {};
}

TimePoint HandedSlots::next_wakeup() const {
  TimePoint at = kNever;
  for (const Slot& slot : slots_) at = std::min(at, slot.until);
  return at;
}

bool HandedSlots::is_sound(uint64_t computing) const {
  return std::all_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.run == 0 ? slot.until == kNever : slot.until != kNever || slot.run == computing;
  });
}

void ChunkFlow::add(uint64_t run, uint32_t first_block, uint32_t end_block, uint32_t stages) {
  MC_ASSERT(stages > 1 && stages <= 64);
  MC_ASSERT_LE(first_block, end_block);
  MC_ASSERT(chunks_.empty() || (run > chunks_.rbegin()->first && first_block >= chunks_.rbegin()->second.end_block));
  Chunk& chunk = chunks_[run];
  chunk.first_block = first_block, chunk.end_block = end_block;
  for (uint32_t stage = 1; stage < stages; ++stage) chunk.stages_left |= uint64_t{1} << stage;
}

std::optional<std::pair<uint64_t, ChunkFlow::Chunk>> ChunkFlow::take_done() {
  if (chunks_.empty() || chunks_.begin()->second.stages_left != 0) return std::nullopt;
  std::pair<uint64_t, Chunk> done = std::move(*chunks_.begin());
  chunks_.erase(chunks_.begin());
  return done;
}

}  // namespace mc::node

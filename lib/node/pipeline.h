// A pipeline of prefill processes as its leader sees it (Mooncake, arXiv:2407.00079, "Multi-node Prefill"): the
// members that the conductor lists, the activations that the next stage has not read yet, and the chunks that later
// stages still compute.
//
//   stage 0 (leader)  chunk 0 | chunk 1 | chunk 2 | ...        activations: the next stage READs a slot
//   stage 1                     chunk 0 | chunk 1 | chunk 2    StageDone to the leader: checksums, first token
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>

#include "base/extent.h"
#include "node/node.h"
#include "node/peers.h"
#include "node/stage.h"

namespace mc::node {

class Pipeline {
 public:
  /// `leader`, the name of this node, and `peers` outlive it. With one stage there is no pipeline.
  Pipeline(const std::string& leader, const Peers& peers, uint32_t stages, uint32_t layers)
      : leader_(leader), peers_(peers), stages_(stages), layers_(layers) {}

  bool leads() const { return stages_ > 1; }
  uint32_t stages() const { return stages_; }
  LayerRange layers_of(uint32_t stage) const { return stage_layers(layers_, stage, stages_); }
  LayerRange own_layers() const { return layers_of(0); }

  /// The process that is this stage; nullptr while the conductor lists none.
  const wire::Peer* member(uint32_t stage) const;
  /// Name of the first stage that is not in the cluster; empty when all are.
  std::string missing() const;
  /// The stage that sent a message; nullopt when the sender is no listed member.
  std::optional<uint32_t> sender(const Received& event) const;
  /// Why the checksums and the token of a stage mean nothing here: it counts layers or blocks otherwise. Empty = sound.
  std::string objection(const wire::StageDone& done, uint32_t stage, uint32_t blocks) const;
  /// Calls a request off at every other member.
  void cancel(const wire::RequestSpec& spec, Actions& out) const;

 private:
  const std::string& leader_;
  const Peers& peers_;
  uint32_t stages_, layers_;
};

/// The slots that the leader hands activations on from. A run takes a slot before it is computed. The slot is free when
/// the next stage has read it, or after the run's deadline: a reader that is late finds the CRC of other bytes.
class HandedSlots {
 public:
  /// A free slot, by its number in ActivationSlots.
  std::optional<uint32_t> take(uint64_t run);
  std::optional<uint32_t> slot_of(uint64_t run) const;
  /// The next stage was told of the run's slot.
  void handed_on(uint64_t run, TimePoint until);
  void free(uint64_t run);
  void free_late(TimePoint now);
  /// Frees the slots of all other runs.
  void free_others(uint64_t run);
  TimePoint next_wakeup() const;
  /// Whether each slot is free, handed on, or of the run that `computing` names.
  bool is_sound(uint64_t computing) const;

 private:
  struct Slot {
    uint64_t run = 0;  // 0 = free
    TimePoint until = kNever;
  };
  std::array<Slot, ActivationSlots::kEach> slots_;
};

/// The chunks of one request that later stages still compute. They are done in order: what a stage computed without the
/// chunk before has read KV that is not there.
class ChunkFlow {
 public:
  struct Chunk {
    uint32_t first_block = 0, end_block = 0;
    SampledToken sampled = {};  // by the last stage; its message may come before those of others
    uint64_t stages_left = 0;   // bit s: stage s has not told its part
  };
  void add(uint64_t run, uint32_t first_block, uint32_t end_block, uint32_t stages);
  Chunk& at(uint64_t run) { return chunks_.at(run); }
  bool empty() const { return chunks_.empty(); }
  /// False when the stage has told its part of the chunk before.
  static bool waits_for(const Chunk& chunk, uint32_t stage) { return (chunk.stages_left >> stage & 1) != 0; }
  static void told(Chunk& chunk, uint32_t stage) { chunk.stages_left &= ~(uint64_t{1} << stage); }
  /// Takes the oldest chunk, when every stage has told its part.
  std::optional<std::pair<uint64_t, Chunk>> take_done();
  const std::map<uint64_t, Chunk>& all() const { return chunks_; }
  void clear() { chunks_.clear(); }

 private:
  std::map<uint64_t, Chunk> chunks_;  // by run number, so the oldest is the first
};

}  // namespace mc::node

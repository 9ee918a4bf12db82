// A pipeline of prefill processes, seen by its leader (Mooncake, arXiv:2407.00079, "Multi-node Prefill"): the members
// that the conductor lists, the activations that the next stage has not read yet, and the chunks that later stages have
// not finished.
//
//   stage 0 (leader)  chunk 0 | chunk 1 | chunk 2 | ...        activations: the next stage READs a slot
//   stage 1                     chunk 0 | chunk 1 | chunk 2    StageDone to the leader: checksums, first token
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>

#include "base/extent.h"
#include "node/lender.h"
#include "node/node.h"
#include "node/peers.h"
#include "node/stage.h"

namespace mc::node {

class Pipeline {
 public:
  /// `leader` (the name of this node) and `peers` must outlive the object. stages = 1 means no pipeline.
  Pipeline(const std::string& leader, const Peers& peers, uint32_t stages, uint32_t layers)
      : leader_(leader), peers_(peers), stages_(stages), layers_(layers) {}

  bool leads() const { return stages_ > 1; }
  uint32_t stages() const { return stages_; }
  LayerRange layers_of(uint32_t stage) const { return stage_layers(layers_, stage, stages_); }
  LayerRange own_layers() const { return layers_of(0); }

  /// The process of this stage; nullptr while the conductor lists none.
  const wire::Peer* member(uint32_t stage) const;
  /// The first stage that is not a member; nullopt when all are.
  std::optional<uint32_t> missing() const;
  /// The stage that sent a message; nullopt when the sender is no listed member of the pipeline.
  std::optional<uint32_t> sender(const Received& event) const;
  /// The layers that each member holds. nullopt: a member is missing.
  HolderParts parts(const InstanceId& leader, ExtentLayout layout) const;
  /// Why a stage's report cannot be used: its numbers of layers or blocks differ from the leader's. Empty = usable.
  std::string objection(const wire::StageDone& done, uint32_t stage, uint32_t blocks) const;
  /// Cancels a request at every other member.
  void cancel(const wire::RequestSpec& spec, Actions& out) const;

 private:
  const std::string& leader_;
  const Peers& peers_;
  uint32_t stages_, layers_;
};

/// The slots from which the leader hands on activations. A run takes a slot before it is computed. The slot becomes
/// free when the next stage has read it, or after the run's deadline. A reader that comes later finds a wrong CRC.
class HandedSlots {
 public:
  /// Takes a free slot for the run and returns the slot's number in ActivationSlots.
  std::optional<uint32_t> take(uint64_t run);
  std::optional<uint32_t> slot_of(uint64_t run) const;
  /// The next stage has received the address of the run's slot. The slot is free at `until` at the latest.
  void handed_on(uint64_t run, TimePoint until);
  void free(uint64_t run);
  void free_late(TimePoint now);
  void free_others(uint64_t run);
  TimePoint next_wakeup() const;
  /// Whether each slot is free, handed on, or used by the run `computing`.
  bool is_sound(uint64_t computing) const;

 private:
  struct Slot {
    uint64_t run = 0;  // 0 = free
    TimePoint until = kNever;
  };
  std::array<Slot, ActivationSlots::kEach> slots_;
};

/// The chunks of one request that later stages have not finished. They finish in order, because a stage that computes a
/// chunk without the chunk before has read missing KV.
class ChunkFlow {
 public:
  struct Chunk {
    uint32_t first_block = 0, end_block = 0;
    SampledToken sampled = {};  // token of the last stage, whose report may arrive before those of other stages
    uint64_t stages_left = 0;   // bit s: stage s has not reported yet
  };
  void add(uint64_t run, uint32_t first_block, uint32_t end_block, uint32_t stages);
  Chunk& at(uint64_t run) { return chunks_.at(run); }
  bool empty() const { return chunks_.empty(); }
  /// False when the stage has reported the chunk already.
  static bool waits_for(const Chunk& chunk, uint32_t stage) { return (chunk.stages_left >> stage & 1) != 0; }
  static void told(Chunk& chunk, uint32_t stage) { chunk.stages_left &= ~(uint64_t{1} << stage); }
  /// Takes the oldest chunk, once every stage has reported it.
  std::optional<std::pair<uint64_t, Chunk>> take_done();
  const std::map<uint64_t, Chunk>& all() const { return chunks_; }
  void clear() { chunks_.clear(); }

 private:
  std::map<uint64_t, Chunk> chunks_;  // key: run number, so the oldest chunk is the first
};

}  // namespace mc::node

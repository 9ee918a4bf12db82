// Reads of whole KV blocks from their holder into pages of this node. The holder may be a pipeline, and so may the
// reader: each member of a pipeline has a range of the layers. A read of blocks is then made of pieces, one for each
// member here and member there that have layers in common.
//
//   holder  p1    [ layers 0..1 | 2..3 | 4..5 ]
//                      |       /   |      |            a line is a piece: the leader reads its own (Read), and asks a
//   reader  p0    [ layers 0..2      | 3..5   ]        later stage to read for itself (StageRead)
//
// The read ends when all pieces have ended. It fails when one of them failed, with the first failure. It fails as well
// when a stage of the reader is lost before the end, because the stage's layers of the blocks are lost with it, whether
// its pieces had ended or not. A piece at a later stage ends with the stage's answer, or when the stage is lost, or
// late: its answer may have been lost, and the stage gives up its read after the budget.
//
// A long read of one node by another one may be cut by layers as well, so that the reader computes with the first
// layers while later ones are on their way. The reads of one holder arrive in their order.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "node/lender.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/peers.h"

namespace mc::node {

struct BlockRead {
  uint64_t read = 0;  // ReadDone::read of the whole
  NodeId node;
  InstanceId instance;
  std::vector<wire::HolderPart> parts;  // of `node`, as in LeaseGrant
  uint32_t pool = 0;
  std::span<const wire::LeasedBlock> blocks;
  std::span<const kv::PageIndex> pages;  // one for each block
  /// For each block: bit s is set when member s of the reader's pipeline has its layers already. Empty: none has any.
  std::vector<uint64_t> held = {};
  Duration budget{};
  bool urgent = false;
  bool by_layer = false;  // cut by layers, if both nodes have all layers
};

/// Whether `parts` are the layers 0 to `layers` once and in order, and name pages of possible sizes. No parts are
/// sound.
bool are_sound(std::span<const wire::HolderPart> parts, uint32_t layers);

class BlockReads {
 public:
  static constexpr Duration kAnswerTime = 5s;  // after the budget; then a stage's answer is lost
  static constexpr uint32_t kLayerPieces = 8;  // most pieces of a read that is cut by layers

  /// `reader` (this node), `numbers` and `peers` must outlive the object.
  BlockReads(const BlockSource& reader, Numbers& numbers, const Peers& peers)
      : reader_(reader), numbers_(numbers), peers_(peers) {}

  /// `layout` is that of this process's pages. False: a member of either pipeline is missing, and nothing was begun.
  bool start(const BlockRead& read, const ExtentLayout& layout, TimePoint now, Actions& out);
  /// Number of leading layers that are here of all blocks of a read that has not ended. 0 for a read in one piece.
  uint32_t layers_here(uint64_t read) const;
  /// Ends the read early at every member of the reader. The end comes with ReadDone as always.
  void cancel(uint64_t read, Actions& out) const;

  /// The end of a read of blocks, when `done` ended its last piece. A read that was not begun here is returned as it
  /// is.
  std::optional<ReadDone> on_read(const ReadDone& done);
  std::optional<ReadDone> on_stage_read(const NodeId& stage, const InstanceId& instance,
                                        const wire::StageReadDone& done);
  /// The reads that end because the stage is lost. Other reads in which it took part fail when they end.
  std::vector<ReadDone> on_stage_gone(const InstanceId& instance);
  /// The reads that end because answers of stages are late.
  std::vector<ReadDone> on_tick(TimePoint now);
  TimePoint next_wakeup() const;
  bool idle() const { return pieces_.empty(); }

 private:
  struct Piece {
    uint64_t whole = 0;
    NodeId node = {};
    InstanceId stage = {};  // zero: read by this process
    TimePoint until = kNever;
    uint32_t first_layer = 0;
  };
  struct Whole {
    uint32_t pieces_left = 0;
    uint32_t layers_here = 0;
    std::vector<InstanceId> stages;  // later members of the reader's pipeline
    ReadDone done;                   // first failure

    void fail(Code code, const std::string& what, bool refused);
  };

  void start_by_layer(const BlockRead& read, const wire::HolderPart& from, const ExtentLayout& layout, Actions& out);
  void start_here(const BlockRead& read, std::span<const size_t> blocks, const wire::HolderPart& from,
                  LayerRange layers, const ExtentLayout& layout, uint64_t piece, Actions& out) const;
  void start_there(const BlockRead& read, std::span<const size_t> blocks, const wire::HolderPart& from,
                   const wire::HolderPart& to, LayerRange layers, const ExtentLayout& layout, uint64_t piece,
                   Actions& out) const;
  std::optional<ReadDone> end(std::map<uint64_t, Piece>::iterator piece, Code code, const std::string& what,
                              bool refused = false);
  uint32_t first_unread(uint64_t read) const;

  const BlockSource& reader_;
  Numbers& numbers_;
  const Peers& peers_;
  std::map<uint64_t, Piece> pieces_;  // key: number of the piece
  std::map<uint64_t, Whole> wholes_;  // key: number of the read
};

}  // namespace mc::node

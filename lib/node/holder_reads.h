// Reads of prompt blocks that a decode node makes from the nodes that hold them, into pages of the request. The
// conductor names the holders (sched/direct_plan.h). A part is a run of blocks from one holder:
//
//   waiting --prefill node has the prefix--> asked --LeaseGrant--> reading --ReadDone--> ended
//      '-- part that need not wait -----------^'-- no grant, KvComplete, holder lost --------^
//
// The prefill node announces the blocks as well. Blocks that the holder does not bring are read from the prefill node,
// which costs time but never the request. The holder keeps the blocks under the lease until the read has ended or the
// lease has expired. A read that outlasts its lease renews it. A read that was given up may still write into the pages,
// so its part ends with ReadDone too.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "node/block_reads.h"
#include "node/decode_request.h"
#include "node/lease_term.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/peers.h"

namespace mc::node {

class HolderReads {
 public:
  using RequestPtr = std::shared_ptr<DecodeRequest>;

  /// The end of a part: `blocks` are the first blocks of [first, end), which are here. The others do not come from the
  /// holder.
  struct Ended {
    RequestPtr request;
    uint32_t first = 0, end = 0;
    std::vector<wire::LeasedBlock> blocks;
  };
  struct Stats {
    uint64_t blocks = 0;    // blocks read
    uint64_t failures = 0;  // parts that ended without their blocks
    uint64_t checksum_failures = 0;
  };

  /// `layout` is that of the node's pages. `reads`, `numbers` and `peers` must outlive the object. `timeout` bounds one
  /// lease request or read.
  HolderReads(const ExtentLayout& layout, BlockReads& reads, Numbers& numbers, const Peers& peers, Duration timeout)
      : layout_(layout), reads_(reads), numbers_(numbers), peers_(peers), timeout_(timeout) {}

  /// Asks the sources of a request for their blocks. `hashes` names the blocks of its prompt that may come from a
  /// cache.
  void start(const RequestPtr& r, std::span<const BlockHash> hashes, TimePoint now, Actions& out);
  /// The prefill node has the prefix: parts that waited for it begin.
  void begin_waiting(const DecodeRequest& r, TimePoint now, Actions& out);
  /// The prefill node has all blocks: parts that are not being read end.
  void give_up_unread(const DecodeRequest& r, Actions& out);
  /// The request has ended. Its reads end as soon as the host has ended them.
  void end(const DecodeRequest& r, Actions& out);

  /// False when the grant belongs to no part.
  bool on_grant(const Received& event, const wire::LeaseGrant& grant, TimePoint now, Actions& out);
  /// False when the lease belongs to no part.
  bool on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now);
  /// False when the read belongs to no part.
  bool on_read(const ReadDone& done, TimePoint now, Actions& out);
  void on_tick(TimePoint now, Actions& out);
  void on_peer_gone(const InstanceId& instance, TimePoint now, Actions& out);
  TimePoint next_wakeup() const;
  /// The parts that have ended since the last call.
  std::vector<Ended> take_ended() { return std::exchange(ended_, {}); }

  const Stats& stats() const { return stats_; }
  void check() const;

 private:
  enum class State : uint8_t { waiting, asked, reading, leaving };  // leaving: a read that was given up
  struct Part {
    RequestPtr request;
    wire::Source source;  // the blocks of this part, which may be fewer than the holder has
    std::vector<BlockHash> hashes;
    State state = State::waiting;
    uint64_t read = 0;  // 0 = not begun
    TimePoint asked_at{}, read_at{};
    TimePoint until = kNever;
    LeaseTerm term;                             // while the part is being read
    wire::Fallback why = wire::Fallback::none;  // reason of an end at `until`, or of the read that was given up
    wire::LeaseGrant grant;

    uint32_t end() const { return source.first_block + source.block_count; }
  };
  using Parts = std::map<uint64_t, Part>;  // key: number of the lease

  void add(const RequestPtr& r, wire::Source source, std::span<const BlockHash> hashes, TimePoint now, Actions& out);
  void ask(uint64_t lease, Part& part, TimePoint now, Actions& out);
  void split(Part& part, const wire::LeaseGrant& grant, TimePoint now, Actions& out);
  bool read(Part& part, TimePoint now, Actions& out);
  /// Ends a part that is not being read.
  Parts::iterator give_up(Parts::iterator part, wire::Fallback why, Actions& out);
  /// Cancels a read. The part ends when the host has ended the read.
  void cancel(Part& part, wire::Fallback why, Actions& out);
  void note_end(const Part& part, std::vector<wire::LeasedBlock> blocks, wire::Fallback why);

  ExtentLayout layout_;
  BlockReads& reads_;
  Numbers& numbers_;
  const Peers& peers_;
  Duration timeout_;
  Parts parts_;
  std::map<uint64_t, uint64_t> by_read_;  // number of the read -> of the lease
  std::vector<Ended> ended_;
  Stats stats_;
};

}  // namespace mc::node

// The parts of a prefix that one fetch brings from several holders. A part is a run of blocks from one holder. The
// parts are disjoint, they have no gap, and they begin after the blocks that the prompt has already.
//
//   waiting --asked for a lease--> leasing --grant--> granted --pages--> reading --ReadDone--> here --its turn--> taken
//
// A part is granted for a moment only, unless its pages are those of reads that were given up and have not ended, or it
// is held until other parts are granted. A part that is here is taken when the blocks before it are here.
// When a holder does not bring its blocks, other holders of the same blocks take its place. Blocks that no other holder
// can bring end the prefix: all later parts are useless then.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "kv/kv.h"
#include "node/lease_term.h"
#include "wire/messages.h"

namespace mc::node {

struct FetchPart {
  enum class State : uint8_t { waiting, leasing, granted, reading, here };
  wire::Source source;  // the blocks of this part, which may be fewer than the holder has
  State state = State::waiting;
  uint64_t lease = 0, read = 0;  // 0 = none outstanding
  TimePoint until = kNever;
  TimePoint asked_at{};           // when the lease was requested
  LeaseTerm term;                 // of a lease that was granted, until its read has ended
  TimePoint hold_until = kNever;  // granted: the read waits so long for other grants; kNever = it waits for none
  TimePoint read_at{};            // when the read began
  uint64_t loan = 0;              // of the pages, which the request owns then; 0 = the part owns them
  wire::LeaseGrant grant;
  std::vector<kv::PageIndex> pages;  // pages that the read fills
  std::vector<uint64_t> held;        // see BlockRead; set with the pages

  uint32_t first() const { return source.first_block; }
  uint32_t end() const { return source.first_block + source.block_count; }
};

class FetchParts {
 public:
  FetchParts() = default;
  /// Plans the blocks [have, end). `sources` are ascending runs, and after them holders that may replace another one:
  /// where runs overlap, the first one is read. A run that begins after a gap is of use if other runs fill the gap.
  FetchParts(std::vector<wire::Source> sources, uint32_t have, uint32_t end);

  bool empty() const { return parts_.empty(); }
  bool covers(uint32_t block) const;
  /// The parts by first block. References stay valid until the part is removed.
  std::map<uint32_t, FetchPart>& all() { return parts_; }
  const std::map<uint32_t, FetchPart>& all() const { return parts_; }
  /// The part with this lease or read; null = none.
  FetchPart* find(uint64_t operation);
  /// The first part that waits; null = none, or `active_max` parts are being leased or read.
  FetchPart* next_waiting(uint32_t active_max);
  /// Removes and returns the part that begins with block `have`, if it is here.
  std::optional<FetchPart> take(uint32_t have);

  /// Shortens a part to the blocks before `end`. Its holder will be asked again for the others.
  void ask_again(FetchPart& part, uint32_t end);
  /// Shortens or removes a part whose holder does not bring the blocks from `block` on. Other holders replace it for
  /// these blocks as far as they can. The holder replaces no other one from now on.
  void replace(FetchPart& part, uint32_t block);
  /// The end of the run of parts that begins with block `have`. Parts after it are useless, because a block between is
  /// brought by none.
  uint32_t end_of_prefix(uint32_t have) const;
  void remove(const FetchPart& part) { parts_.erase(part.first()); }
  /// Adds parts for the blocks from `block` on and before `end`, of which none has a part, as far as holders have them.
  void fill(uint32_t block, uint32_t end);
  void check(uint32_t have) const;

 private:
  void add(const wire::Source& source, uint32_t first, uint32_t end);

  std::map<uint32_t, FetchPart> parts_;  // key: first block
  std::vector<wire::Source> sources_;    // runs of blocks that holders have, best first
  std::vector<InstanceId> refused_;      // holders that did not bring their blocks
};

}  // namespace mc::node

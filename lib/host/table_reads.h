// Lookups of blocks by one-sided reads of the table that another node publishes (kv/block_table.h). The transfer engine
// reads the two buckets of each block, all in one batch, and the holder runs no code. Torn buckets are read again, a
// few times (kv/block_look.h).
//
// Only small lookups go this way. A larger one costs less as a call over a channel (node/lease_carrier.h), which is one
// request in place of hundreds of reads. One lookup is under way at a time: a node asks for one chain after another. A
// holder whose reads failed is not read for a while (host/pauses.h).
//
// All calls are the loop's.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "host/pauses.h"
#include "kv/block_look.h"
#include "mem/mem.h"
#include "node/node.h"
#include "xfer/xfer.h"

namespace mc::host {

class TableReads {
 public:
  static constexpr size_t kBlocksMax = 64;  // of one lookup

  /// `engine` outlives it.
  explicit TableReads(xfer::Engine& engine) : engine_(engine) {}
  /// Waits until no transport uses its memory, for 15 s at most.
  ~TableReads();
  TableReads(const TableReads&) = delete;
  TableReads& operator=(const TableReads&) = delete;

  /// Starts to read `table`, a buffer of the peer, whose epoch is that of the lookup's instance. False: the lookup has
  /// to go another way, because it is too large, another one is under way, the holder did not answer lately, or the
  /// buffer is no table.
  bool start(const node::Lookup& lookup, xfer::PeerId peer, const wire::BufferInfo& table, TimePoint now);
  /// True: the event was for this object alone.
  bool on(const xfer::Event& event, TimePoint now);

  /// The end of a lookup. `held` is absent when the reads failed or the table was torn each time.
  struct Ended {
    node::Lookup lookup;
    std::optional<std::vector<wire::HeldIn>> held;
  };
  std::optional<Ended> take() { return std::exchange(ended_, std::nullopt); }

  /// Forgets the pauses of the holders for which is_gone(holder) is true.
  template <class IsGone>
  void forget(const IsGone& is_gone) {
    pauses_.forget(is_gone);
  }
  /// Cancels the lookup under way. The destructor waits until `deadline` at most, which others may share.
  void stop(TimePoint deadline);

  /// Number of lookups in which a copy of a bucket was torn, however many were.
  uint64_t torn() const { return torn_; }

 private:
  struct Running {
    node::Lookup lookup;
    kv::BlockLook look;
    xfer::PeerId peer{};
    uint32_t buffer = 0;
    TimePoint deadline{};  // of all rounds together
    xfer::BatchId batch = xfer::BatchId::none;
  };

  bool has_memory();
  bool read_round(TimePoint now);
  void fail(TimePoint now);
  void end(std::optional<std::vector<wire::HeldIn>> held);

  xfer::Engine& engine_;
  mem::SharedBuffer memory_;  // for the buckets of one round; empty before the first lookup
  xfer::BufferId buffer_{};
  std::optional<Running> running_;
  std::optional<Ended> ended_;
  Pauses pauses_;
  uint64_t torn_ = 0;
  TimePoint release_by_ = kNever;
};

}  // namespace mc::host

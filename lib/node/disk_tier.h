// The tier below a node's memory: blocks on a disk (Mooncake, arXiv:2407.00079, section 4).
//
//   in memory --write, tail first--> in memory and on disk --evicted from memory--> on disk
//                                       ^                                              |
//                                       '------------------- load ---------------------'
//
// node/disk_writes.h says which blocks are written, and when. A prompt or a lease loads the run of blocks that it needs
// with all reads at once. A block that was loaded for the first time is on trial in memory
// (kv::Pool::set_trial): it is evicted first, unless a second reader comes. So a scan of cold prefixes does not push
// hot blocks out.
//
// The disk may lose blocks, return late or fail. A block that fails a checksum is dropped and computed again. A disk
// that keeps failing is given up: the node goes on without the tier.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "node/disk_blocks.h"
#include "node/disk_writes.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/shelf.h"

namespace mc::node {

class DiskTier {
 public:
  enum class State : uint8_t { none, on, lost };
  struct Stats {
    uint64_t written_blocks = 0, written_bytes = 0, write_failures = 0;
    uint64_t loaded_blocks = 0, loaded_bytes = 0, load_failures = 0;
    uint64_t drop_failures = 0, maintain_failures = 0;
    uint64_t checksum_failures = 0, evicted_blocks = 0, found_blocks = 0, foreign_blocks = 0, promoted_blocks = 0;
  };
  using LoadId = uint64_t;

  /// `log` and `numbers` must outlive the tier.
  DiskTier(const DiskTierOptions& options, kv::EventLog& log, Numbers& numbers);

  State state() const { return state_; }
  bool has(const BlockHash& hash) const { return blocks_.has(hash); }
  /// The leading blocks of `hashes` that are in memory or on disk.
  uint32_t match(const kv::Pool& pool, std::span<const BlockHash> hashes) const;
  const DiskBlocks& blocks() const { return blocks_; }
  const DiskWrites& writes() const { return writes_; }
  DiskWrites& writes() { return writes_; }
  /// Forgets a block, because an operator wants its space. False: it is being loaded or written, or is not on disk.
  bool evict(const BlockHash& hash, Actions& out);

  // ---- loads ----
  /// Brings the blocks of `hashes` that are on disk into memory after the leading run that is there, and pins them
  /// with that run until end(). 0: the first block that memory lacks is not on disk under this namespace, or the disk
  /// does not answer; nothing was begun.
  LoadId load(Shelf& shelf, const NamespaceId& ns, std::span<const BlockHash> hashes, TimePoint now, Actions& out);
  struct Ahead {
    uint32_t end = 0;    // the block after those that the load brings; fewer than at its beginning where one is lost
    uint32_t pages = 0;  // most pages that it will still take; blocks that are here or being read have theirs
  };
  Ahead ahead(LoadId id) const {
    const Job& job = jobs_.at(id);
    return {static_cast<uint32_t>(job.end), static_cast<uint32_t>(job.end - job.next)};
  }
  /// Whether every block of the load is in memory, up to the first one that could not be brought.
  bool done(LoadId id) const;
  void end(LoadId id);
  /// A request uses these blocks: those on trial in memory stay from now on, the disk may get them again, and the use
  /// counts for DiskTierOptions::uses_min.
  void hit(kv::Pool& pool, std::span<const BlockHash> hashes);
  /// The block is not in memory any more. When it comes back, it may be written like any other.
  void left_memory(const BlockHash& hash, TimePoint now);
  /// The block was evicted from memory. When it comes back, that counts as another use.
  void evicted_from_memory(const BlockHash& hash) {
    if (state_ == State::on) writes_.evicted(hash);
  }

  // ---- events ----
  /// Whether a node has a shelf for a block that an earlier process left.
  using Usable = std::function<bool(const DiskBlock&)>;
  /// True when the event was of the disk.
  bool on_event(const Event& event, const Usable& usable, TimePoint now, Actions& out);
  /// Begins the writes that are due now.
  void tend(std::span<Shelf* const> shelves, TimePoint now, Actions& out);
  /// Begins those that an operator waits for.
  void tend_asked(std::span<Shelf* const> shelves, TimePoint now, Actions& out);
  /// The node stops: its blocks in memory go to disk, and the tier is idle when they are there.
  void start_write_out();
  /// When tend() has something to do without an event.
  TimePoint next_wakeup() const { return writes_.next_wakeup(); }

  // ---- looking ----
  void fill_load(wire::Load& load) const;
  /// The text of the newest failure, once. "" = none since the last call.
  std::string take_trouble() { return std::exchange(trouble_, {}); }
  const Stats& stats() const { return stats_; }
  /// Pins that the tier has on pages of `pool`, for the audit of a role.
  uint64_t pins(const kv::Pool& pool) const;
  /// Pages of `pool` that loads fill.
  uint64_t owned(const kv::Pool& pool) const;
  bool idle() const { return jobs_.empty() && loads_.empty() && writes_.idle(); }
  void check() const;

 private:
  struct Job {  // a run of blocks that a reader waits for
    Shelf* shelf = nullptr;
    NamespaceId name_space;
    std::vector<BlockHash> hashes;
    std::vector<kv::PageIndex> pages;  // pinned page of each block; kNoPage = not there yet
    size_t next = 0;                   // first block that was not looked for yet
    size_t end = 0;                    // the blocks from here on are not brought
    size_t ready = 0;                  // leading blocks that are there
  };
  struct Load {
    BlockHash hash, parent;
    uint32_t first_position = 0;
    NamespaceId name_space;
    Shelf* shelf = nullptr;
    kv::PageIndex page = kv::kNoPage;
    TimePoint began{};
    std::vector<std::pair<LoadId, size_t>> waiting;  // jobs, and the block's index in each
  };

  void on_found(const DiskFound& found, const Usable& usable, TimePoint now);
  void on_written(const DiskWritten& done, TimePoint now, Actions& out);
  void on_loaded(const DiskLoaded& done, TimePoint now, Actions& out);
  void on_evicted(const DiskEvicted& evicted);
  void forget(const BlockHash& hash);
  void on_upkeep_failed(const DiskUpkeepFailed& failed);
  bool has_other(const NamespaceId& ns, const BlockHash& hash) const;
  void pump(TimePoint now, Actions& out);
  void advance(LoadId id, Job& job, TimePoint now, Actions& out);
  static void settle(Job& job);
  void arrived(const Load& load, const DiskLoaded& done, TimePoint now);
  bool stalled(TimePoint now) const;
  void count_failure(const std::string& what);
  void measure(const Load& load, TimePoint now);

  DiskTierOptions options_;
  Numbers& numbers_;
  State state_;
  DiskBlocks blocks_;
  std::map<LoadId, Job> jobs_;
  std::map<uint64_t, Load> loads_;         // key: number of the operation; in the order of their beginning
  std::map<BlockHash, uint64_t> loading_;  // the load of a block
  DiskWrites writes_;
  uint32_t failures_in_row_ = 0;
  TimePoint write_failed_at_{};  // the last write among them that was counted
  std::string trouble_;
  TimePoint measured_at_{};  // end of the last load
  double block_s_ = 0;       // smoothed seconds of one load while others are under way; 0 = none yet
  Stats stats_;
};

}  // namespace mc::node

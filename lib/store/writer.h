// The one writer of a store: puts groups at the end of the log, begins the next segment when one is full, and makes
// room by taking the oldest segment back (a circular log whose read blocks get a second chance: CLOCK, Corbato 1969).
// One thread at a time.
//
// A write or flush that fails is never tried again on that file: the kernel may have marked the lost pages clean
// ("fsyncgate", Rebello et al., USENIX ATC 2020). The group is written once more at the start of another segment, and
// an error goes to the callers when that fails too.
#pragma once

#include <atomic>
#include <optional>

#include "store/segment_reader.h"
#include "store/segments.h"

namespace mc::store {

struct WriterCounters {
  uint64_t groups = 0, flushes = 0;
  uint64_t evicted_blocks = 0, moved_blocks = 0;  // of segments that were taken back
  uint64_t faults = 0;                            // writes and flushes that failed
  uint64_t lost_groups = 0;                       // written, and given up before a flush
};

class Writer {
 public:
  struct Options {
    size_t segments_max = kSegmentsMin;
    bool keeps_all = false;  // no block is forgotten for space; segments_max >= kSegmentsKept
  };
  /// All references outlive it.
  Writer(Log& log, Segments& segments, Index& index, const SegmentReader& reader, Disk& disk, const Options& options);
  static constexpr size_t kSegmentsMin = 4;    // being filled, free, and two with blocks
  static constexpr size_t kSegmentsKept = 12;  // with keeps_all
  static constexpr size_t kSegmentsApart = 3;  // of these: being filled, and free for blocks that are moved

  /// After recovery: goes on in `active`, or in a free segment. `sequence` is the highest in use.
  Result<void> start(std::optional<std::pair<Segment, SegmentContent>> active, uint64_t sequence);

  /// One group: on the disk when this returns, durable if so wanted, and in the index.
  Result<void> write(std::span<Item* const> items, bool durable);
  /// io: groups that were written before were lost to a fault.
  Result<void> flush();
  /// At the end of the store's life: seals nothing, but makes everything durable and says so in a last group, so that
  /// the next start checks no values.
  Result<void> finish();

  /// True: a segment should be made before it is needed. The caller makes one (Segments::create) or takes one back.
  bool wants_segment() const { return segments_.free_count() < kFreeAhead; }
  /// Segments that the store may have: fewer than it was given once the file system was full. Any thread.
  size_t segments_max() const { return growth_.max; }
  bool may_grow() const { return segments_.total() < growth_.max; }
  /// Files cannot be added: the store stays at its present size until go_on_growing().
  void stop_growing() { growth_.max = std::max(segments_.total(), size_t{1}); }
  /// Whether a store that stopped growing should try again: each call is a turn, and one of kTurnsStopped tries.
  bool tries_growing() { return growth_.max < growth_.wanted && ++growth_.stopped_turns % kTurnsStopped == 0; }
  /// A file was added.
  void go_on_growing() { growth_.max = std::max(growth_.wanted, segments_.total()); }
  /// Takes the oldest segment back. no_space: there is none.
  Result<void> take_back();

  const WriterCounters& counters() const { return counters_; }
  const std::string& last_fault() const { return last_fault_; }

 private:
  static constexpr size_t kFreeAhead = 2;
  static constexpr uint64_t kTurnsStopped = 16;

  Result<void> place(std::span<Item* const> items);
  Result<void> flush_log();
  Result<void> next_segment();
  Result<void> make_room();
  /// Makes room when fewer segments are free than moves need.
  Result<void> keep_reserve();
  Result<void> take_back_until_free();
  /// Moves blocks of `content` that were read, at most half a segment of them, and forgets the rest.
  Result<void> save_read_blocks(const Segment& segment, const SegmentContent& content);
  Result<void> move_blocks(const Segment& segment, std::vector<Item>& items);
  void fault(const Error& error);

  Log& log_;
  Segments& segments_;
  Index& index_;
  const SegmentReader& reader_;
  Disk& disk_;
  struct Growth {
    std::atomic<size_t> max;     // segments that the store may have now; a number, ordered with nothing
    const size_t wanted;         // that it was given
    uint64_t stopped_turns = 0;  // calls of tries_growing() while it has less
  };
  Growth growth_;
  const bool keeps_all_;
  uint64_t sequence_ = 0, taken_back_ = 0;  // of the last segment; segments so far
  bool taking_back_ = false;
  bool moving_ = true;      // blocks that were read get another round
  uint64_t lost_told_ = 0;  // lost groups that a flush has reported
  PageBuffer values_;
  WriterCounters counters_;
  std::string last_fault_;
};

}  // namespace mc::store

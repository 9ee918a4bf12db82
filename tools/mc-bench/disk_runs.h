// The measurements of `mc-bench disk`: puts, gets and restarts of a block store (lib/store), against the clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/result.h"
#include "store/store.h"

namespace mc::bench {

struct DiskPlan {
  std::string directory;  // of the store; made
  std::string disk_io;    // a kind of disk
  uint64_t capacity_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t jobs = 1;   // threads
  uint64_t depth = 1;  // blocks of one call
  bool durable = true;
  Duration duration = 1s;
  uint64_t seed = 0;
};

struct DiskFigures {
  uint64_t blocks = 0, failed = 0;  // that moved; that did not, or had other bytes
  Duration elapsed{};
  Histogram latency_us;       // of a call
  double group_blocks = 0;    // puts: blocks of one write, in mean
  std::string disk_io;        // the kind that was opened
  std::string first_failure;  // text of it
};

/// A store with page-aligned content to put into it.
class DiskTarget {
 public:
  static Result<std::unique_ptr<DiskTarget>> open(const DiskPlan& plan);
  ~DiskTarget();
  /// From now on a thread that opens a store waits until the program ends. An interrupt calls it, and then removes the
  /// folder, which the opening of a store would make again.
  static void open_no_more();
  /// Every job puts `depth` new blocks at a time. Segments are made ahead, so that the first round writes as later ones
  /// do.
  DiskFigures put(const DiskPlan& plan);
  /// Every job gets `depth` random blocks at a time, of those that are there.
  DiskFigures get(const DiskPlan& plan);
  /// Puts blocks until half of the capacity is used.
  Result<void> fill(const DiskPlan& plan);

  struct RestartFigures {
    double fill_s = 0, open_s = 0, first_get_s = 0;
    store::Restart restart;
  };
  /// Puts `blocks` blocks, closes the store, and opens it again.
  Result<RestartFigures> restart(const DiskPlan& plan, uint64_t blocks);

 private:
  DiskTarget() = default;
  Result<void> open_store(const DiskPlan& plan);
  std::span<const std::byte> content(const DiskPlan& plan, uint64_t block) const;

  struct Memory;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<store::Store> store_;
  std::string disk_io_;
  uint64_t next_block_ = 0;  // blocks are numbered from 0; the number is in the id
};

}  // namespace mc::bench

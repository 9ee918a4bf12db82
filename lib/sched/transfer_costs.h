// The cost of a read from one node into another, learnt for each pair (source, reader) from reads that have ended:
//
//   seconds(bytes) = fixed_s + s_per_byte bytes max(1, (1 + leaving) / (1 + usual leaving))
//
// `leaving` are the other transfers that leave the source. A finished read includes what they cost it, so a prediction
// grows only when more of them leave than usual.
//
// A pair keeps its last reads, and its rate is the median of them, so a single outlier changes little. The fixed
// part is told from the rate when the reads differ in size (the median slope, after Theil and Sen). As long as there
// are few reads, the reader's link votes as well. Its rate is what the reader has announced.
//
// A learnt cost fades: after each half-life, half of the difference (of logarithms) to the announced rate is left.
// Nothing is read over a link that counts as slow, so only fading lets the scheduler try the link again. Older reads
// that contradict a new one are dropped then.
//
// A reader reports its own reads alone, so wrong reports can only change the costs of reading into that reader. The
// memory is bounded for each reader. The object reads no clock. Nodes are named by slots, as in sched/board.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"

namespace mc::sched {

/// A read that has brought all its bytes.
struct FinishedRead {
  double bytes = 0, seconds = 0;
  uint32_t leaving = 0;  // other transfers that left the source
};

/// The cost of a read. `reads`: number of reads that it was learnt from.
struct TransferCost {
  double fixed_s = 0, s_per_byte = 0, leaving = 0;
  uint32_t reads = 0;

  double seconds(double bytes, double leaving_now) const {
    return fixed_s + s_per_byte * bytes * std::max(1.0, (1 + leaving_now) / (1 + leaving));
  }
};

class TransferCosts {
 public:
  static constexpr size_t kReadsKept = 5;     // of each pair
  static constexpr size_t kSourcesMax = 64;   // of each reader; those read last stay
  static constexpr double kFactorMax = 1024;  // most that a read may differ from the announced rate
  static constexpr Duration kHalfLife = 120s;

  struct Member {
    uint32_t slot = 0;
    bool readable = true;   // other nodes may read from it, and it from them
    double s_per_byte = 0;  // announced for reads into the node
  };
  /// Sets the nodes. The costs of others are forgotten.
  void set_members(std::span<const Member> members);

  /// A read has ended. Ignored are numbers that are not positive and finite, and reads into a node that cannot be read.
  void add(uint32_t source, uint32_t reader, const FinishedRead& read, TimePoint now);

  /// Whether no read of any pair is known.
  bool empty() const { return pairs_ == 0; }
  /// The cost as of now; nullopt = no read of this pair is known, or one of the nodes cannot be read.
  std::optional<TransferCost> find(uint32_t source, uint32_t reader, TimePoint now) const;
  /// The predicted time of a read without other transfers.
  double seconds(uint32_t source, uint32_t reader, double bytes, TimePoint now) const;
  /// Seconds a byte for a source that the reader has not read from: the middle of its other sources and its announced
  /// rate. One source alone says nothing of others.
  double s_per_byte(uint32_t reader, TimePoint now) const;
  /// The least seconds a byte of all sources of the reader. Several sources together are not assumed to be faster.
  double least_s_per_byte(uint32_t reader, TimePoint now) const;

  struct Pair {
    uint32_t source = 0, reader = 0;
    TransferCost cost;
    double usual_s_per_byte = 0;  // s_per_byte() of the reader
    Duration age{};               // since the last read
  };
  /// All pairs, by reader and source.
  std::vector<Pair> pairs(TimePoint now) const;
  void check() const;

 private:
  struct Sample {
    FinishedRead read;
    TimePoint at{};
    double rate() const { return read.seconds / read.bytes; }
  };
  struct Source {
    uint32_t slot = 0;
    TransferCost cost;            // as of the last read
    std::vector<Sample> samples;  // oldest first, at most kReadsKept
  };
  struct Reader {
    bool here = false, readable = true;
    double s_per_byte = 0;  // announced
    std::vector<Source> sources;
  };
  const Reader* reader_at(uint32_t slot) const {
    return slot < readers_.size() && readers_[slot].here ? &readers_[slot] : nullptr;
  }
  static Source& source_of(Reader& reader, uint32_t slot);
  static void learn(Source& source, double announced);
  static TransferCost faded(const Source& source, double announced, TimePoint now);

  std::vector<Reader> readers_;  // index: slot
  size_t pairs_ = 0;
};

}  // namespace mc::sched

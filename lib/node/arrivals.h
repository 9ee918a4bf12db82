// The extents (one layer of one block) of a prompt's KV at the decode node: each is absent, being read, or here.
// The prefill node announces extents as it seals them; one that is announced twice is read once.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "node/node.h"

namespace mc::node {

class Arrivals {
 public:
  static constexpr uint32_t kRereadsMax = 3;  // of a request: a flipped bit is worth another try, a liar is not

  /// A read under way: what was announced, and by which node.
  struct Reading {
    wire::ExtentsReady ready;
    NodeId from;  // the prefill node, or a later stage of its pipeline
    InstanceId instance;
  };
  struct Extent {
    uint32_t block;
    uint64_t offset;  // in the announcer's KV buffer
    uint32_t crc;
  };

  Arrivals() = default;
  /// The prompt has `blocks` blocks; its first `here` are on this node already.
  Arrivals(uint32_t blocks, uint32_t here, uint32_t layers);

  /// Whether an announcement names extents of this prompt.
  bool names_ours(const wire::ExtentsReady& ready) const;
  /// The announced extents that are absent. They count as being read from now on.
  std::vector<Extent> wanted(const wire::ExtentsReady& ready);
  /// `extents` as wanted() gave them: the read brings these alone, whatever else was announced with them.
  void started(uint64_t read, Reading reading, const std::vector<Extent>& extents);
  /// The read is over: its extents are here, or absent again. How many they were.
  struct Ended {
    Reading reading;
    uint32_t extents = 0;
  };
  Ended ended(uint64_t read, bool arrived);
  /// Counts another try of extents that came with a wrong checksum; false when there were too many.
  bool may_read_again() { return ++rereads_ <= kRereadsMax; }

  uint32_t missing() const { return missing_; }
  uint32_t blocks() const { return blocks_; }
  bool reading() const { return !reads_.empty(); }
  struct Read {
    Reading reading;
    std::vector<uint32_t> blocks;
  };
  const std::map<uint64_t, Read>& reads() const { return reads_; }
  /// The announced checksums of a block, one a layer.
  std::vector<uint32_t> crcs(uint32_t block) const;
  void check() const;

 private:
  enum class State : uint8_t { absent, reading, here };
  size_t at(uint32_t block, uint32_t layer) const { return size_t{block} * layers_ + layer; }

  uint32_t blocks_ = 0, layers_ = 0, missing_ = 0, rereads_ = 0;
  std::vector<uint32_t> crcs_;  // [block][layer]
  std::vector<State> states_;   // [block][layer]
  std::map<uint64_t, Read> reads_;
};

}  // namespace mc::node

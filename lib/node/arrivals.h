// The extents (one layer of one block) of a prompt's KV at the decode node. Each extent is absent, being read, or here.
// The prefill node announces an extent when it has sealed it. An extent that is announced twice is read once.
//
//   absent --announced--> reading --> here
//      |  '--a holder is to bring its block--> expected --> here
//      '------------the holder does not-----------'
//
// An announcement of expected extents is kept. When the holder does not bring them, they are read as announced.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "node/node.h"

namespace mc::node {

class Arrivals {
 public:
  // Rereads for each request: one flipped bit deserves another try, a wrong source does not.
  static constexpr uint32_t kRereadsMax = 3;

  /// A read under way: the extents that were announced, and the node that announced them.
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
  /// The prompt has `blocks` blocks. The first `here` of them are on this node already.
  Arrivals(uint32_t blocks, uint32_t here, uint32_t layers);

  /// Whether an announcement names extents of this prompt.
  bool names_ours(const wire::ExtentsReady& ready) const;
  /// A holder is to bring the blocks [first, end), of which no extent was announced.
  void expect(uint32_t first, uint32_t end);
  /// Whether an announcement names extents that a holder is to bring.
  bool expects(const wire::ExtentsReady& ready) const;
  /// Keeps an announcement as far as it names expected extents that no kept one names. So all kept ones together name
  /// each extent once, whatever the prefill node sends.
  void keep(const Reading& reading);
  /// A holder has brought the blocks from `first` on.
  void brought(uint32_t first, std::span<const wire::LeasedBlock> blocks);
  /// The holder does not bring the blocks [first, end). Returns all kept announcements, those of other blocks too. The
  /// caller keep()s these again.
  std::vector<Reading> give_up(uint32_t first, uint32_t end);

  /// The announced extents that are absent. From now on they count as being read.
  std::vector<Extent> wanted(const wire::ExtentsReady& ready);
  /// Books the read of `extents`, which wanted() returned. Other extents of the announcement are not part of the read.
  void started(uint64_t read, Reading reading, const std::vector<Extent>& extents);
  /// Ends the read. Its extents are here now, or absent again.
  struct Ended {
    Reading reading;
    uint32_t extents = 0;
  };
  Ended ended(uint64_t read, bool arrived);
  /// Counts another try for extents that arrived with a wrong checksum. False when the limit is reached.
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
  enum class State : uint8_t { absent, expected, announced, reading, here };  // announced: expected, and in kept_
  static bool is_expected(State state) { return state == State::expected || state == State::announced; }
  size_t at(uint32_t block, uint32_t layer) const { return size_t{block} * layers_ + layer; }

  uint32_t blocks_ = 0, layers_ = 0, missing_ = 0, rereads_ = 0;
  std::vector<uint32_t> crcs_;  // [block][layer]
  std::vector<State> states_;   // [block][layer]
  std::map<uint64_t, Read> reads_;
  std::vector<Reading> kept_;  // runs of announced extents
};

}  // namespace mc::node

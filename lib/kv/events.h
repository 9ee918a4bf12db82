// The log of a node's block events for the conductor: stored and removed, numbered without a gap from 1. The pools of
// a node share one log, so the conductor receives one ordered stream a node. The log is bounded. When its owner does
// not drain it (the conductor is unreachable), the oldest events are dropped; the reader then finds a gap in the
// numbers and requests a snapshot.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "wire/tier.h"

namespace mc::kv {

class BlockTable;
using wire::Tier;

/// The reason why a block was removed.
enum class Removal : uint8_t {
  evicted = 0,     // space was needed
  dropped = 1,     // a caller removed it
  corrupt = 2,     // its bytes failed their checksum
  demoted = 3,     // it moved to another tier or node
  unreadable = 4,  // the disk that held it failed
};
std::string_view to_string(Removal removal);

struct BlockEvent {
  enum class Kind : uint8_t { stored = 0, removed = 1 };
  uint64_t seq = 0;
  Kind kind = Kind::stored;
  Tier tier = Tier::host;
  Removal reason = Removal::evicted;  // meaningful for removed
  BlockHash hash;
  BlockHash parent;             // zero for the first block of a prompt
  uint32_t first_position = 0;  // position of the block's first token
  bool operator==(const BlockEvent&) const = default;
};

class EventLog {
 public:
  explicit EventLog(size_t event_count_max = 1 << 16) : event_count_max_(event_count_max) {}
  void append(BlockEvent event);  // assigns the event's number
  /// Each event from now on changes `table`, which outlives the log.
  void publish_to(BlockTable& table) { table_ = &table; }
  /// Takes all events (or the oldest `count_max`), oldest first.
  std::vector<BlockEvent> drain(size_t count_max = SIZE_MAX);
  /// Number of the newest event ever appended; 0 before the first. A snapshot carries it.
  uint64_t last_seq() const { return last_seq_; }
  size_t size() const { return events_.size(); }
  /// For tests.
  uint64_t lost_count() const { return lost_count_; }

 private:
  size_t event_count_max_;
  uint64_t last_seq_ = 0;
  uint64_t lost_count_ = 0;
  std::deque<BlockEvent> events_;
  BlockTable* table_ = nullptr;
};

/// A resident block as listed in a snapshot.
struct ResidentBlock {
  BlockHash hash;
  BlockHash parent;
  uint32_t first_position = 0;
  Tier tier = Tier::host;
  bool operator==(const ResidentBlock&) const = default;
};

}  // namespace mc::kv

// A lookup in the table of another node (kv/block_table.h) whose memory is not mapped here. Somebody else copies
// buckets, such as the transfer engine by one-sided reads, and this object says which ones, and judges the copies:
//
//   wanted() --copies--> take() --all sound--> held()
//      ^                    '-- some torn: wanted again, at most kRoundsMax times in all --> given_up()
//
// It takes a copy by the rule of the mapped reader: version even, epoch as expected, CRC32C right. The two buckets of a
// block are copied in one round, because a round costs more time than a bucket.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/block_index.h"

namespace mc::kv {

class BlockLook {
 public:
  static constexpr int kRoundsMax = 8;

  /// A table of this many buckets, a power of two from 2 to BlockTable::kBucketsMax, of a node with this epoch.
  BlockLook(std::span<const BlockHash> hashes, uint64_t buckets, uint64_t epoch);

  /// The numbers of the buckets that are to be copied, each once; empty: the lookup has ended.
  std::span<const uint64_t> wanted() const { return wanted_; }
  /// Copies of wanted(), in their order.
  void take(std::span<const wire::BlockBucket> copies);
  /// A bucket was torn in every round: the node changes it without end, is of another start, or publishes garbage.
  bool given_up() const { return wanted_.empty() && torn_ > 0; }
  /// Number of copies that were not one state of their bucket.
  uint64_t torn() const { return torn_copies_; }
  /// Where the node has each block. The lookup has ended and was not given up.
  const std::vector<wire::HeldIn>& held() const { return held_; }

 private:
  std::vector<BlockHash> hashes_;
  uint64_t buckets_, epoch_;
  int rounds_ = 0;
  size_t torn_ = 0;  // buckets that were torn in the last round
  uint64_t torn_copies_ = 0;
  std::vector<uint64_t> wanted_;
  std::vector<wire::HeldIn> held_;
};

}  // namespace mc::kv

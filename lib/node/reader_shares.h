// How much of a shelf one reader holds under leases that it asked for. Each lease has an end, but a reader may ask for
// the same blocks again under new numbers. Without a bound it would keep them for ever, and the holder could evict
// nothing.
//
// A reader may hold any number of pages for a while. The time for which it holds more than half of the shelf counts up,
// and the time for which it holds less counts down. When the count has reached its limit, the reader gets no lease
// beyond half of the shelf and no renewal while it holds more, until the count is down to 0.
//
//   pages  ####half####                   limit: 8 times the longest lease
//   count  0 ........ rises ..... limit | at most half ... falls ..... 0 | any number again
//
// A reader that reads blocks and releases them never holds half of a shelf for so long.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/clock.h"
#include "node/shelf.h"

namespace mc::node {

class ReaderShares {
 public:
  explicit ReaderShares(Duration limit) : limit_(limit) {}

  /// Number of pages that the reader may lease beside those that it holds. `now` never decreases.
  uint32_t room(const Shelf& shelf, const InstanceId& reader, TimePoint now);
  /// Whether the reader may prolong a lease.
  bool may_renew(const Shelf& shelf, const InstanceId& reader, TimePoint now);
  /// A lease of the reader on `pages` pages begins or has ended.
  void begun(const Shelf& shelf, const InstanceId& reader, uint32_t pages, TimePoint now);
  void ended(const Shelf& shelf, const InstanceId& reader, uint32_t pages, TimePoint now);
  /// The reader is gone, and all its leases have ended.
  void forget(const InstanceId& reader);

 private:
  struct Share {
    uint64_t pages = 0;     // a page counts once for each lease on it
    Duration above{};       // the count
    TimePoint at{};         // of the count
    bool is_bound = false;  // the limit was reached, and the count is not down to 0
  };
  using Key = std::pair<InstanceId, const Shelf*>;

  static uint64_t half(const Shelf& shelf) { return shelf.pool.counts().total / 2; }
  Share& counted(const Shelf& shelf, const InstanceId& reader, TimePoint now);

  Duration limit_;
  std::map<Key, Share> shares_;  // of readers that asked for leases and are not gone
};

}  // namespace mc::node

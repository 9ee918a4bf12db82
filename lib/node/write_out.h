// The order in which a node that leaves writes the blocks in its memory to its disk. The chains used last go first, and
// a block goes after its parent, because time or space may run out, and the rest of a chain is useless without its
// head.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "node/shelf.h"

namespace mc::node {

class WriteOut {
 public:
  /// A cached page, as long as its generation is that of the pool.
  struct Place {
    Shelf* shelf = nullptr;
    kv::PageIndex page = kv::kNoPage;
    uint64_t generation = 0;
    bool is_cached() const {
      return shelf->pool.generation(page) == generation && shelf->pool.state(page) == kv::PageState::cached;
    }
  };

  /// At most `bytes_max` are written.
  explicit WriteOut(uint64_t bytes_max) : bytes_left_(bytes_max) {}

  /// The next block, which advance() passes. Looks at blocks that were published meanwhile when the others are done.
  /// nullptr = there is none now.
  const Place* next(std::span<Shelf* const> shelves);
  void advance();
  /// Counts a block that is written. False: it is beyond the bound, and nothing is written any more.
  bool spend(uint64_t bytes);
  /// Whether next() had none when it was last called.
  bool is_done() const { return done_; }

 private:
  std::vector<Place> places_;
  size_t next_ = 0;
  uint64_t bytes_left_;
  std::optional<uint64_t> stored_;  // publications in all pools when places_ was made
  bool done_ = false;
};

}  // namespace mc::node

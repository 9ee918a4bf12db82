// The order in which a node that stops writes the blocks in its memory to its disk. The chains used last go first, and
// a block goes after its parent, because time or space may run out, and the rest of a chain is useless without its
// head.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "node/shelf.h"

namespace mc::node {

class WriteOut {
 public:
  /// A page that was cached when it was listed.
  struct Place {
    Shelf* shelf = nullptr;
    kv::PageIndex page = kv::kNoPage;
    uint64_t generation = 0;
    bool is_cached() const {
      return shelf->pool.generation(page) == generation && shelf->pool.state(page) == kv::PageState::cached;
    }
  };
  /// Whether a cached page has still to be written.
  using Wanted = std::function<bool(const Shelf& shelf, kv::PageIndex page)>;

  /// At most `bytes_max` are written.
  explicit WriteOut(uint64_t bytes_max) : bytes_left_(bytes_max) {}

  /// The next block, which advance() passes; nullptr: there is none now. When all places are passed, and blocks were
  /// published or look_again() was called since they were listed, it lists the wanted blocks anew, at most ten times a
  /// second.
  const Place* next(std::span<Shelf* const> shelves, const Wanted& wanted, TimePoint now);
  void advance();
  /// Counts a block that is written. False: it is beyond the bound, and nothing is written any more.
  bool spend(uint64_t bytes);
  /// A block that was written or on disk is not there.
  void look_again() { listed_.reset(); }
  /// Whether next() had none when it was last called, and listing anew would find none.
  bool is_done() const { return done_; }
  /// Blocks that are listed and not passed.
  size_t left() const { return places_.size() - next_; }

 private:
  std::vector<Place> places_;
  size_t next_ = 0;
  uint64_t bytes_left_;
  std::optional<uint64_t> listed_;  // publications in all pools when places_ was listed
  TimePoint list_at_{};             // before it places_ is not listed again
  bool done_ = false;
};

}  // namespace mc::node

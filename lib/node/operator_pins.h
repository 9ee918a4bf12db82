// Pins of operators: chains of blocks that stay in the memory of a node for a time. A pin is a lease that the operators
// hold, so everything that spares leased blocks spares pinned ones. A pin ends with its time or with the process.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "node/shelf.h"

namespace mc::node {

class OperatorPins {
 public:
  static constexpr size_t kPinsMax = 1024;

  /// Pinned blocks take at most this share of `memory_bytes`, so that requests always find pages.
  static constexpr double kShare = 0.5;

  explicit OperatorPins(uint64_t memory_bytes) : bytes_max_(static_cast<uint64_t>(kShare * double(memory_bytes))) {}

  /// Pins the chain that ends with `last` until `until`, in place of an earlier pin of it. Each page must be cached.
  /// MC5003 with the numbers beyond the bound; the earlier pin then stays.
  Result<void> pin(const BlockHash& last, Shelf& shelf, const std::vector<kv::PageIndex>& pages, TimePoint until);
  /// The number of blocks of the pin; nothing when there is none.
  std::optional<uint64_t> unpin(const BlockHash& last);
  /// The lease has expired.
  void expired(const Shelf& shelf, kv::LeaseId lease);

  bool is_pinned(const Shelf& shelf, kv::PageIndex page) const { return pages_.contains({shelf.number, page}); }
  /// When the last pin of the page ends; nothing for a page without one.
  std::optional<TimePoint> until(const Shelf& shelf, kv::PageIndex page) const;
  /// Pins on blocks of this shelf.
  size_t count(const Shelf& shelf) const;
  /// The leases of the pins on a page.
  uint32_t leases(const Shelf& shelf, kv::PageIndex page) const;
  /// Bytes of all pinned pages; a page with several pins counts once.
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_max() const { return bytes_max_; }

 private:
  struct Pin {
    Shelf* shelf = nullptr;
    kv::LeaseId lease = 0;
    TimePoint until{};
    std::vector<kv::PageIndex> pages;
  };
  using Place = std::pair<uint32_t, kv::PageIndex>;  // number of the shelf, page
  void add(const BlockHash& last, Pin pin);
  Pin take(std::map<BlockHash, Pin>::iterator at);

  uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::map<BlockHash, Pin> pins_;                  // by the last block of the chain
  std::map<Place, std::vector<BlockHash>> pages_;  // the pins on a page
};

}  // namespace mc::node

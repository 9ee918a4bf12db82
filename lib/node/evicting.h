// One eviction that an operator ordered. It goes over the blocks of the node in bounded steps, because heartbeats wait
// during a step:
//
//   keep_memory, keep_disk   each block that must stay protects its ancestors, which it is useless without
//   free_memory, free_disk   each block that meets the filter and is not protected is freed, or counted as stayed
//
// A block that comes meanwhile may be freed or not. Nothing is freed that something holds at that moment.
#pragma once

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "node/disk_tier.h"
#include "node/namespace_book.h"
#include "node/operator_pins.h"
#include "node/orders.h"
#include "node/shelf.h"
#include "node/use_clock.h"

namespace mc::node {

/// The parts of a node that hold its blocks.
struct BlockHolders {
  const std::vector<Shelf*>& shelves;
  DiskTier& disk;
};

class Evicting {
 public:
  static constexpr size_t kLooksAStep = 1024;

  Evicting(const EvictBlocks& order, const NamespaceBook& names, const UseClock& uses, const OperatorPins& pins)
      : order_(order), names_(names), uses_(uses), pins_(pins) {
    report_.knows_tenant = order.filter.tenant.empty() || names.knows_tenant(order.filter.tenant);
    report_.knows_model = order.filter.model.empty() || names.knows_model(order.filter.model);
  }

  /// Goes on by one step. True: the eviction is over.
  bool step(const BlockHolders& node, TimePoint now, Actions& out);
  const EvictReport& report() const { return report_; }

 private:
  enum class Phase : uint8_t { keep_memory, keep_disk, free_memory, free_disk, over };
  enum class Match : uint8_t { no, unknown, yes };
  struct Block {  // in memory or on disk
    BlockHash hash, parent;
    NamespaceId name_space;
    bool is_old = false;
  };
  template <class Visit>
  void look_at_memory(const BlockHolders& node, TimePoint now, Visit visit);
  template <class Visit>
  void look_at_disk(const BlockHolders& node, TimePoint now, Visit visit);
  void next_phase();
  void begin_again(size_t buckets);
  Match match(const Block& block, const BlockHolders& node);
  Match match_owner(const NamespaceId& ns);
  bool continues_prefix(const Block& block, const BlockHolders& node);
  void protect_ancestors(const Block& block, const BlockHolders& node);
  std::optional<Stayed> hold_of(const Shelf& shelf, kv::PageIndex page) const;
  void free_page(Shelf& shelf, kv::PageIndex page, const Block& block, const BlockHolders& node, Actions& out);
  void free_on_disk(const Block& block, uint64_t bytes, const BlockHolders& node, Actions& out);
  void stays(Stayed why, uint64_t bytes);

  const EvictBlocks order_;
  const NamespaceBook& names_;
  const UseClock& uses_;
  const OperatorPins& pins_;
  Phase phase_ = Phase::keep_memory;
  size_t shelf_ = 0, at_ = 0, buckets_ = 0;
  std::unordered_set<BlockHash, Id128Hash> needed_;
  std::unordered_map<BlockHash, bool, Id128Hash> continues_;  // blocks that were looked at, with --prefix
  EvictReport report_, report_before_;                        // `before`: as it was at the beginning of the phase
};

}  // namespace mc::node

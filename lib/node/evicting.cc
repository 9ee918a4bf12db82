#include "node/evicting.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

std::string_view to_string(Stayed why) {
  switch (why) {
    case Stayed::leased: return "leased";
    case Stayed::pinned: return "pinned";
    case Stayed::in_use: return "in_use";
    case Stayed::needed: return "needed";
    case Stayed::unknown: return "unknown";
  }
  return "?";
}

bool Evicting::step(const BlockHolders& node, TimePoint now, Actions& out) {
  switch (phase_) {
    case Phase::keep_memory:
      look_at_memory(node, now, [&](Shelf& shelf, kv::PageIndex page, const Block& block) {
        if (match(block, node) != Match::yes || hold_of(shelf, page)) protect_ancestors(block, node);
      });
      break;
    case Phase::keep_disk:
      look_at_disk(node, now, [&](const Block& block, uint64_t) {
        if (match(block, node) != Match::yes) protect_ancestors(block, node);
      });
      break;
    case Phase::free_memory:
      look_at_memory(node, now, [&](Shelf& shelf, kv::PageIndex page, const Block& block) {
        free_page(shelf, page, block, node, out);
      });
      break;
    case Phase::free_disk:
      look_at_disk(node, now, [&](const Block& block, uint64_t bytes) { free_on_disk(block, bytes, node, out); });
      break;
    case Phase::over: break;
  }
  return phase_ == Phase::over;
}

void Evicting::next_phase() {
  MC_ASSERT(phase_ != Phase::over);
  phase_ = static_cast<Phase>(static_cast<uint8_t>(phase_) + 1);
  shelf_ = at_ = buckets_ = 0;
  report_before_ = report_;
}

/// The table of the blocks on disk has grown, and its blocks have moved. The blocks that were freed are not in it any
/// more; the others are counted again.
void Evicting::begin_again(size_t buckets) {
  at_ = 0, buckets_ = buckets;
  report_.stayed = report_before_.stayed;
  if (order_.dry_run) report_.disk = report_before_.disk;
}

template <class Visit>
void Evicting::look_at_memory(const BlockHolders& node, TimePoint now, Visit visit) {
  for (size_t looks = 0; looks < kLooksAStep; ++looks) {
    while (shelf_ < node.shelves.size() && at_ >= node.shelves[shelf_]->pool.end_page()) ++shelf_, at_ = 0;
    if (shelf_ == node.shelves.size()) return next_phase();
    Shelf& shelf = *node.shelves[shelf_];
    const auto page = static_cast<kv::PageIndex>(at_++);
    if (shelf.pool.state(page) != kv::PageState::cached) continue;
    const kv::BlockMeta& meta = shelf.pool.meta(page);
    const bool is_old = order_.filter.older == Duration{} ||
                        shelf.pool.use(page).last_use <= uses_.stamp_at(shelf.number, now - order_.filter.older);
    visit(shelf, page, Block{meta.hash, meta.parent, meta.name_space, is_old});
  }
}

/// Blocks that are in memory too were looked at there.
template <class Visit>
void Evicting::look_at_disk(const BlockHolders& node, TimePoint now, Visit visit) {
  const DiskBlocks& blocks = node.disk.blocks();
  if (buckets_ != blocks.buckets()) begin_again(blocks.buckets());
  std::vector<std::pair<Block, uint64_t>> seen;  // a visit may change the table
  for (const size_t end = std::min(buckets_, at_ + kLooksAStep); at_ < end; ++at_)
    blocks.look_at_bucket(at_, [&](const BlockHash& hash, const DiskBlocks::Entry& entry) {
      const bool is_here = std::any_of(node.shelves.begin(), node.shelves.end(),
                                       [&](const Shelf* shelf) { return shelf->pool.find(hash) != kv::kNoPage; });
      if (is_here) return;
      const bool is_old = order_.filter.older == Duration{} || entry.used <= now - order_.filter.older;
      seen.emplace_back(Block{hash, entry.parent, entry.name_space, is_old}, entry.bytes);
    });
  for (const auto& [block, bytes] : seen) visit(block, bytes);
  if (at_ >= buckets_) next_phase();
}

// ---- which blocks are meant ------------------------------------------------------------------

Evicting::Match Evicting::match_owner(const NamespaceId& ns) {
  const BlockFilter& filter = order_.filter;
  if (filter.tenant.empty() && filter.model.empty()) return Match::yes;
  const NamespaceBook::Entry* entry = names_.find(ns);
  if (!entry) return Match::unknown;
  if (!filter.model.empty() && !entry->has_model(filter.model)) return Match::no;
  if (filter.tenant.empty()) return Match::yes;
  if (!entry->tenant) return Match::unknown;
  return *entry->tenant == filter.tenant ? Match::yes : Match::no;
}

Evicting::Match Evicting::match(const Block& block, const BlockHolders& node) {
  if (!block.is_old) return Match::no;
  if (order_.filter.prefix && !continues_prefix(block, node)) return Match::no;
  return match_owner(block.name_space);
}

namespace {
/// The parent of a block that is on the node; zero for a head and for a block that is not there.
BlockHash parent_of(const BlockHash& hash, const BlockHolders& node) {
  for (const Shelf* shelf : node.shelves)
    if (const kv::PageIndex page = shelf->pool.find(hash); page != kv::kNoPage) return shelf->pool.meta(page).parent;
  const DiskBlocks::Entry* entry = node.disk.blocks().find(hash);
  return entry ? entry->parent : BlockHash{};
}
}  // namespace

/// Each block on the way to the head is looked at once in all steps together. Names from peers could form a circle,
/// whose blocks count as no continuation.
bool Evicting::continues_prefix(const Block& block, const BlockHolders& node) {
  std::vector<BlockHash> way;
  bool found = false;
  BlockHash at = block.hash, next = block.parent;
  for (;;) {
    if (at == *order_.filter.prefix) {
      found = true;
      break;
    }
    const auto [seen, fresh] = continues_.try_emplace(at, false);
    if (!fresh) {
      found = seen->second;
      break;
    }
    way.push_back(at);
    if (next.is_zero()) break;
    at = next;
    next = parent_of(at, node);
  }
  for (const BlockHash& hash : way) continues_[hash] = found;
  return found;
}

// ---- which of them stay ----------------------------------------------------------------------

void Evicting::protect_ancestors(const Block& block, const BlockHolders& node) {
  for (BlockHash at = block.parent; !at.is_zero() && needed_.insert(at).second;) at = parent_of(at, node);
}

std::optional<Stayed> Evicting::hold_of(const Shelf& shelf, kv::PageIndex page) const {
  const kv::Pool& pool = shelf.pool;
  const uint32_t pins = pins_.leases(shelf, page);
  MC_ASSERT_LE(pins, pool.leases(page));
  if (pool.leases(page) > pins) return Stayed::leased;
  if (pool.pins(page) > 0) return Stayed::in_use;
  if (pins > 0) return Stayed::pinned;
  return std::nullopt;
}

void Evicting::stays(Stayed why, uint64_t bytes) {
  BlockTotal& total = report_.stayed[static_cast<size_t>(why)];
  ++total.blocks;
  total.bytes += bytes;
}

void Evicting::free_page(Shelf& shelf, kv::PageIndex page, const Block& block, const BlockHolders& node, Actions& out) {
  const uint64_t bytes = shelf.layout.page_bytes();
  const Match meant = match(block, node);
  if (meant == Match::no) return;
  if (meant == Match::unknown) return stays(Stayed::unknown, bytes);
  if (const auto hold = hold_of(shelf, page)) return stays(*hold, bytes);
  if (needed_.contains(block.hash) || shelf.pool.chains().is_held(page)) return stays(Stayed::needed, bytes);
  if (const DiskBlocks::Entry* entry = node.disk.blocks().find(block.hash)) {
    const uint64_t disk_bytes = entry->bytes;
    if (!order_.dry_run && !node.disk.evict(block.hash, out)) return stays(Stayed::in_use, bytes);
    ++report_.disk.blocks;
    report_.disk.bytes += disk_bytes;
  }
  ++report_.memory.blocks;
  report_.memory.bytes += bytes;
  if (!order_.dry_run) shelf.pool.remove(block.hash, kv::Removal::evicted);
}

void Evicting::free_on_disk(const Block& block, uint64_t bytes, const BlockHolders& node, Actions& out) {
  const Match meant = match(block, node);
  if (meant == Match::no) return;
  if (meant == Match::unknown) return stays(Stayed::unknown, bytes);
  if (needed_.contains(block.hash)) return stays(Stayed::needed, bytes);
  if (!order_.dry_run && !node.disk.evict(block.hash, out)) return stays(Stayed::in_use, bytes);
  ++report_.disk.blocks;
  report_.disk.bytes += bytes;
}

}  // namespace mc::node

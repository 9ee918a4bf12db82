// Book-keeping of a pool of equal pages, each holding one KV block with all its layers. The pool
// never touches page bytes, reads no clock and makes no thread, so live nodes and the simulator
// run the same code. A page is in one of these states:
//
//   free --allocate--> owned --publish--> cached --evict/remove--> free
//                        |                   |--remove while held--> draining --last hold ends--> free
//                        |                   `--take_out--> owned
//                        `--release while leased--> draining
//
//   owned     one request is filling it, and no other can find it
//   cached    indexed under its BlockHash, immutable, shared; pins (local users) and leases (remote
//             readers) keep it from being evicted
//   draining  out of the index and ownerless, but a pin or a lease still reads it
//
//   evictable   = cached, and neither the block nor a descendant has a pin or a lease (kv/chain_forest.h)
//
// Invariants (check()): free + owned + cached + draining == page_count; the blocks of the forest are
// the cached ones; a block is evicted only when nothing holds it or any resident descendant, and
// only after its children (tail first). Costs: those of the forest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kv/chain_forest.h"
#include "kv/events.h"
#include "kv/eviction.h"

namespace mc::kv {

struct BlockMeta {
  BlockHash hash;
  BlockHash parent;  // zero for the first block of a prompt
  NamespaceId name_space;
  uint32_t first_position = 0;
  std::vector<uint32_t> layer_crcs;  // CRC32C of each layer extent; empty in simulations
  std::vector<uint32_t> tokens;      // the block's token ids; empty where they are not known
};

enum class PageState : uint8_t { free = 0, owned, cached, draining, absent };

class Pool {
 public:
  struct Options {
    uint32_t page_count = 0;
    Tier tier = Tier::host;
    const Eviction* eviction = &kLruTail;
  };
  struct Counts {
    uint32_t total = 0, free = 0, owned = 0, cached = 0, draining = 0;
    uint32_t evictable = 0;  // cached pages that allocate() may evict
    uint32_t pinned = 0;     // pages with at least one pin
    uint32_t leased = 0;     // pages with at least one lease
    uint64_t stored_total = 0, evicted_total = 0, removed_total = 0, duplicate_total = 0;
    uint64_t uses_total = 0;  // publications and touches; the stamp of the newest use
    bool operator==(const Counts&) const = default;
  };
  struct Published {
    PageIndex page = kNoPage;
    bool duplicate = false;  // the block was already cached, so `page` is the cached page
  };

  /// `log` receives stored and removed events and must outlive the pool. Pools of one node share a log.
  Pool(const Options& options, EventLog& log);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // -- a request's own pages ------------------------------------------------------------------
  /// Allocates `count` pages, free ones first, then victims of the eviction policy, or none. Code::busy when free +
  /// evictable < count; nothing is evicted then.
  Result<std::vector<PageIndex>> allocate(uint32_t count);
  /// Writes the pages into `out` instead.
  Result<void> allocate(std::span<PageIndex> out);
  /// Frees an owned page. A page that is still leased drains first.
  void release(PageIndex page);
  void release(std::span<const PageIndex> pages);
  /// Caches an owned page under meta.hash. The caller's ownership becomes one pin on the returned page. If the hash is
  /// already cached, its page is pinned and returned, and `page` is released. The parent should be resident, but need
  /// not be.
  Published publish(PageIndex page, BlockMeta meta);

  // -- shared pages ---------------------------------------------------------------------------
  /// The number of leading hashes that are resident. Does not count as a use.
  uint32_t match(std::span<const BlockHash> hashes) const;
  /// The page holding `hash`, or kNoPage.
  PageIndex find(const BlockHash& hash) const { return chains_.find(hash); }
  /// Pins each page of the leading resident run of `hashes` once, and returns them.
  std::vector<PageIndex> pin_prefix(std::span<const BlockHash> hashes);
  /// `page` must be cached.
  void pin(PageIndex page);
  /// `page` must be pinned; frees it when it was draining and this was the last hold.
  void unpin(PageIndex page);
  void unpin(std::span<const PageIndex> pages);
  /// Marks a chain as used, from its last block to its first, so that heads are the most recent, unless the policy
  /// wants the other order. Absent hashes and pages that are not cached are skipped.
  /// `uses`: 0 for a request that goes on and was counted before.
  void touch(std::span<const BlockHash> hashes, uint32_t uses = 1);
  void touch(std::span<const PageIndex> pages);
  /// Takes a block out of the index at once, even when it is held. False when it is not resident. Its resident
  /// children stay, and are valid again as soon as the block is published again.
  bool remove(const BlockHash& hash, Removal reason);
  /// Takes a resident block that nothing holds out of the index, and gives its page with its bytes to the caller as an
  /// owned page.
  PageIndex take_out(const BlockHash& hash, Removal reason);
  /// Removes `root` and its descendants (without `root` resident: descendants of that id) that nothing holds. Returns
  /// the number of removed blocks.
  uint32_t remove_subtree(const BlockHash& root, Removal reason);

  /// A block on trial is evicted before all others, whatever its use. It was brought here for one reader, and the next
  /// one shows whether it is worth its page. `page` must be cached.
  void set_trial(PageIndex page, bool on);
  bool on_trial(PageIndex page) const { return at(page).trial; }

  // -- leases (kv/lease.h has their holders and expiry) --------------------------------------
  /// `page` must be owned or cached.
  void add_lease(PageIndex page);
  void drop_lease(PageIndex page);

  // -- pressure ---------------------------------------------------------------------------------
  /// Up to `count` blocks in the order the policy would evict them now, leaves only.
  std::vector<PageIndex> candidates(uint32_t count) const { return chains_.leaves(count); }
  /// The number of used pages beyond `share` of the pool (0.9: a high watermark of 90 %).
  uint32_t pages_over(double share) const;

  // -- looking ------------------------------------------------------------------------------------
  const Counts& counts() const { return counts_; }
  /// The cached blocks as chains.
  const ChainForest& chains() const { return chains_; }
  uint32_t available() const { return counts_.free + counts_.evictable; }
  /// One past the last page, retired ones included.
  PageIndex end_page() const { return static_cast<PageIndex>(pages_.size()); }
  PageState state(PageIndex page) const { return at(page).state; }
  /// Description of a cached or draining page.
  const BlockMeta& meta(PageIndex page) const;
  const Use& use(PageIndex page) const { return at(page).use; }
  uint32_t pins(PageIndex page) const { return at(page).pins; }
  uint32_t leases(PageIndex page) const { return at(page).leases; }
  /// The number of allocations of this page. A changed generation shows that the page was reused.
  uint64_t generation(PageIndex page) const { return at(page).generation; }
  /// All resident blocks as of log.last_seq(): roots first, then level by level, each sorted by hash.
  std::vector<ResidentBlock> snapshot() const;
  /// Aborts the process if the books do not balance. O(pages).
  void check() const;

  // -- resizing (mc-cache moves slabs of memory between pools of different page sizes) ----------
  /// Adds `count` free pages with fresh indexes; returns the first.
  PageIndex grow(uint32_t count);
  /// Evicts every block in [first, first + count) and removes the pages from the pool. Does nothing and returns false
  /// if one of the pages is owned or held.
  bool retire(PageIndex first, uint32_t count);
  /// Puts retired pages back.
  void restore(PageIndex first, uint32_t count);

 private:
  struct Page {
    PageState state = PageState::free;
    bool trial = false;
    uint32_t pins = 0, leases = 0;
    uint64_t generation = 0;
    Use use;
    BlockMeta meta;
  };

  Page& at(PageIndex page);
  const Page& at(PageIndex page) const;
  void settle(PageIndex page);
  void unindex(PageIndex page, Removal reason);
  void to_free(PageIndex page);
  void touch_page(PageIndex page, uint32_t uses);
  uint64_t rank(const Page& page) const { return page.trial ? 0 : eviction_->rank(page.use); }

  const Eviction* eviction_;
  Tier tier_;
  EventLog& log_;
  std::vector<Page> pages_;
  std::vector<PageIndex> free_;  // a stack: the page freed last is taken first
  ChainForest chains_;           // the cached blocks
  Counts counts_;
};

}  // namespace mc::kv

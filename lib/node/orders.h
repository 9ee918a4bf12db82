// Orders of operators about the KV blocks of one node, and their results. An order is an event of the node's state
// machine (node/block_orders.h), and its result is an action for the host.
//
//   EvictBlocks   frees blocks                                     -> EvictReport
//   PinBlocks     keeps the chain up to a block from eviction      -> PinReport
//   UnpinBlocks   ends a pin                                       -> UnpinReport
//   ReadBlocks    leases a run of a chain, for the host to copy    -> BlockRun, then EndOrder
//   WriteBlocks   takes pages for a run, for the host to fill      -> PagesToFill, then EndOrder -> WriteReport
//   CancelOrder   nobody waits for the order any more
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/extent.h"
#include "base/ids.h"
#include "base/result.h"
#include "kv/kv.h"

namespace mc::node {

/// Blocks must meet every condition that is set.
struct BlockFilter {
  std::optional<BlockHash> prefix;  // the block, and the blocks of prompts that continue it
  std::string tenant;               // node/namespace_book.h; "" = of every tenant
  std::string model;                // name as served, or the first digits of the weights' digest; "" = of every model
  Duration older{};                 // not used for so long; 0 = any
  static constexpr Duration kOlderMax = std::chrono::hours(366 * 24);
};

struct EvictBlocks {
  BlockFilter filter;
  bool dry_run = false;
};

/// Why a block that meets the filter was not freed.
enum class Stayed : uint8_t {
  leased = 0,   // another node or an export reads it
  pinned = 1,   // an operator pinned it
  in_use = 2,   // a request, a write to disk or a load from disk uses it
  needed = 3,   // a later block stays, which is useless without it
  unknown = 4,  // the node does not know whose block it is: an earlier process or an import left it
};
inline constexpr size_t kStayedCount = 5;
std::string_view to_string(Stayed why);

struct BlockTotal {
  uint64_t blocks = 0, bytes = 0;
};
struct EvictReport {
  BlockTotal memory, disk;  // freed from each tier; a block in both counts in both
  std::array<BlockTotal, kStayedCount> stayed{};
  bool knows_tenant = true, knows_model = true;  // whether the node knows the tenant and the model of the filter
};

struct PinBlocks {
  BlockHash prefix;  // last block of the chain
  Duration time{};
  bool durable = false;  // the order ends when all blocks of the chain are on disk
  static constexpr Duration kTimeMax = std::chrono::hours(30 * 24);
};
struct PinReport {
  BlockTotal chain;
  uint64_t loaded_blocks = 0;                       // part of the chain that was on disk alone
  uint64_t pinned_bytes = 0, pinned_bytes_max = 0;  // of all pins of the node, and the bound
  bool durable = false;                             // the chain is on disk as well
};

struct UnpinBlocks {
  BlockHash prefix;
};
struct UnpinReport {
  uint64_t blocks = 0;
};

struct ReadBlocks {
  BlockHash prefix;        // last block of the chain
  uint32_t first = 0;      // first block of the run, counted from the root of the chain
  uint64_t bytes_max = 0;  // of the run's pages, but at least one block is read
};
/// The pages stay leased until EndOrder.
struct BlockRun {
  uint32_t shelf = 0;
  ExtentLayout layout;
  NamespaceId name_space;
  std::string kv_namespace;  // text without a salt; "" = the node does not know it
  std::string model;
  uint32_t first = 0, chain_blocks = 0;
  std::vector<kv::PageIndex> pages;
  std::vector<kv::BlockMeta> blocks;
};

/// The host has verified ids and checksums of the blocks. They follow each other.
struct WriteBlocks {
  kv::Namespace kv;  // without a salt
  NamespaceId name_space;
  std::string model;
  ExtentLayout layout;
  std::vector<kv::BlockMeta> blocks;
};
/// The host fills the page of each block, then ends the order.
struct PagesToFill {
  uint32_t shelf = 0;
  std::vector<size_t> blocks;        // indexes into WriteBlocks::blocks
  std::vector<kv::PageIndex> pages;  // a page for each
};
struct WriteReport {
  uint64_t stored = 0;   // blocks that were written
  uint64_t known = 0;    // blocks that the node had
  uint64_t omitted = 0;  // blocks at the end for which the node had no page
  // Set where they differ: only requests that ask for the blocks' attention find them here.
  std::string attention, node_attention;
};

/// The host has read or filled the pages.
struct EndOrder {
  std::vector<uint32_t> rotten;  // of a read: blocks of the run whose bytes fail their checksums
};
struct CancelOrder {};

/// The event. All but EndOrder and CancelOrder begin an order, and `id` is then fresh.
struct BlockOrder {
  uint64_t id = 0;
  TimePoint deadline = kNever;
  std::variant<EvictBlocks, PinBlocks, UnpinBlocks, ReadBlocks, WriteBlocks, EndOrder, CancelOrder> what;
};

/// The action. An error, or the result of the order.
struct OrderAnswer {
  uint64_t id = 0;
  std::variant<Error, EvictReport, PinReport, UnpinReport, BlockRun, PagesToFill, WriteReport> what;
};

}  // namespace mc::node

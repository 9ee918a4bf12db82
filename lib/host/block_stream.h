// Runs of KV blocks between the memory of a node and a .mckv stream (wire/mckv.h): GET /blocks/export and POST
// /blocks/import. A chain travels in parts of bounded size, each a stream of its own, so that neither side holds more.
//
// Every byte that arrives is checked before the node sees a block of it: the id of each block is that of its token ids,
// namespace and parent, and each extent has its checksum.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "node/node.h"

namespace mc::host {

inline constexpr uint64_t kStreamPartBytes = uint64_t{8} << 20;  // pages of one part; a larger page goes alone

/// The header with the number of blocks of the whole chain.
inline constexpr std::string_view kChainBlocksHeader = "x-mc-chain-blocks";

/// Bytes of the largest part whose pages have `page_bytes`.
size_t stream_part_max(uint64_t page_bytes);

/// The memory of a page of the run's shelf.
using PageMemory = std::function<std::byte*(uint32_t shelf, kv::PageIndex page)>;

/// The run as a part of a stream. MC6004 when a page does not match its checksums. MC4007 when the node does not know
/// the model or the token ids of a block, which nodes of older releases do not send.
Result<std::string> write_part(const node::BlockRun& run, const std::string& writer, const PageMemory& memory);

/// The blocks of the run whose bytes do not match their checksums, as indexes.
std::vector<uint32_t> rotten_blocks(const node::BlockRun& run, const PageMemory& memory);

struct ReadPart {
  node::WriteBlocks order;
  std::shared_ptr<const std::string> body;
  std::vector<size_t> offsets;  // of each block's extents in the body

  /// Fills the pages that the node gave for blocks of the part.
  void fill(const node::PagesToFill& pages, const PageMemory& memory) const;
};
/// Checks all of `body`. MC4002 names the fault.
Result<ReadPart> read_part(std::string body);

}  // namespace mc::host

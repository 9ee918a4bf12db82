// A chain of KV blocks in the hands of a verb: read from a stream or from a node, checked, and given to a node.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "http/client.h"
#include "wire/mckv.h"

namespace mc::verbs {

/// The pages of a chain in a temporary file that has no name, because a chain may be larger than memory.
class Spool {
 public:
  /// In TMPDIR, else in /tmp.
  static Result<Spool> open();
  Result<void> append(std::span<const std::byte> page);
  /// The next read() begins at the first page.
  Result<void> rewind();
  Result<void> read(std::span<std::byte> page);

 private:
  explicit Spool(Fd file) : file_(std::move(file)) {}
  Fd file_;
};

/// The full blocks of a stream: their names here, their pages in the spool.
struct BlockChain {
  struct Block {
    BlockHash hash;
    std::vector<uint32_t> crcs;
  };
  wire::KvPrologue prologue;  // ids: those of the blocks that were read
  ExtentLayout layout;
  std::vector<Block> blocks;
  Spool spool;

  size_t page_bytes() const { return layout.layers * layout.layer_bytes(); }
  BlockHash last() const { return blocks.empty() ? BlockHash{} : blocks.back().hash; }
  /// Appends the full blocks of a stream. Each id is that of its token ids, and each extent has its checksum.
  Result<void> append(wire::KvReader& reader);
  /// Writes the chain as one stream.
  Result<void> write(const wire::WriteBytes& write);
};

/// The pages of a node, for orders about its blocks.
struct BlockDoor {
  std::string place;
  http::Headers headers;
  Duration time{};                                                          // of each call
  std::string next = "start the node, or name it as mc-conductor ps does";  // advice where nothing answers

  /// The door of a node that is named as place_of() takes it, with the keys of `args`.
  static Result<BlockDoor> open(const cli::Args& args, const std::string& node, Duration time);
  /// An answer below 300; other answers are the errors that they tell.
  Result<http::Response> call(http::Method method, const std::string& path, std::string body) const;
};

/// The chain from its root to the block `last`, which the node gives in parts.
Result<BlockChain> fetch_chain(const BlockDoor& node, const BlockHash& last);

struct Imported {
  uint64_t stored = 0, known = 0, omitted = 0;
  std::string node;
  std::string attention, node_attention;  // set where they differ (node/orders.h)
};
/// Sends the chain in parts, from its root on, until the node has no room.
Result<Imported> send_chain(const BlockDoor& node, BlockChain& chain);

}  // namespace mc::verbs

#include "verbs/block_streams.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/ids.h"
#include "base/json.h"
#include "verbs/block_chain.h"

namespace mc::verbs {
namespace {

Error stream_fault(Error error) {
  if (error.mc != 0) return error;
  return as_user_error(error.code == Code::unsupported ? err::kKvFileVersion : err::kKvFileCorrupt,
                       within("stdin", std::move(error)));
}

}  // namespace

Result<int> export_blocks(const cli::Args& args) {
  if (!args.present(flags::kExportPrefix))
    return user_error(err::kUsage, "no block is named", "mc-cache export",
                      "give --prefix HASH; mc-cache ls prints ids");
  if (::isatty(1))
    return user_error(err::kUsage, "stdout is a terminal, and a stream is not text", "mc-cache export",
                      "write it to a file: mc-cache export NODE --prefix HASH > p.mckv");
  const BlockHash prefix{*Id128::from_hex(args.text(flags::kExportPrefix))};  // capital digits are as good
  MC_TRY(node, BlockDoor::open(args, args.positional_one("NODE"), args.duration(flags::kBlocksTimeout)));
  MC_TRY(chain, fetch_chain(node, prefix));
  MC_ASSERT(chain.last() == prefix);
  MC_CHECK(chain.write([](std::span<const std::byte> bytes) { return write_all(1, bytes); }));
  return 0;
}

Result<int> import_blocks(const cli::Args& args) {
  MC_TRY(node, BlockDoor::open(args, args.positional_one("NODE"), args.duration(flags::kBlocksTimeout)));
  MC_TRY(spool, Spool::open());
  auto opened = wire::KvReader::open([](std::span<std::byte> bytes) { return read_all(0, bytes); });
  if (!opened) return stream_fault(std::move(opened).error());
  if (opened->prologue().first_position != 0)
    return user_error(err::kKvFileCorrupt, "stdin: the stream is the part of a chain from position " +
                                               std::to_string(opened->prologue().first_position) + " on");
  BlockChain chain{opened->prologue(), opened->layout(), {}, std::move(spool)};
  chain.prologue.ids.clear();
  if (auto read = chain.append(*opened); !read) return stream_fault(std::move(read).error());
  if (chain.blocks.empty())
    return user_error(err::kKvFileCorrupt,
                      "stdin: the prompt of " + std::to_string(opened->prologue().ids.size()) +
                          " tokens has no full block of " + std::to_string(chain.layout.block_tokens),
                      "", "only full blocks are shared");
  MC_TRY(sum, send_chain(node, chain));
  if (args.on(flags::kJson)) {
    Json json = Json::object({{"node", sum.node}, {"prefix", chain.last().hex()}, {"blocks", chain.blocks.size()}});
    json.set("stored", sum.stored).set("known", sum.known).set("omitted", sum.omitted);
    if (!sum.attention.empty()) json.set("attention", sum.attention).set("node_attention", sum.node_attention);
    MC_CHECK(write_all(1, json.dump() + "\n"));
  } else {
    std::string text = sum.node + ": " + std::to_string(sum.stored) + " of " + std::to_string(chain.blocks.size()) +
                       " blocks stored, " + std::to_string(sum.known) + " were there";
    if (sum.omitted > 0) text += ", " + std::to_string(sum.omitted) + " at the end of the chain found no room";
    if (!sum.attention.empty())
      text += "\nthe blocks are of attention " + sum.attention + ", and this node's prompts use " + sum.node_attention +
              ": only requests that ask for the former (mc.attention) find them";
    MC_CHECK(write_foreign(1, text + "\nprefix " + chain.last().hex() + "\n"));
  }
  return sum.omitted > 0 ? kExitFailed : 0;
}

}  // namespace mc::verbs

#include "verbs/lookup.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "wire/block_index.h"

namespace mc::verbs {
namespace {

/// The blocks that the arguments name.
Result<std::vector<BlockHash>> asked_blocks(const cli::Args& args, Duration time) {
  const std::vector<std::string> named = args.positional("HASH");
  const bool has_prompt = args.present(flags::kChainFile) || args.present(flags::kChainSystem);
  if (named.empty() != has_prompt)
    return user_error(err::kUsage,
                      has_prompt ? "both blocks and a prompt are given" : "no block and no prompt is given",
                      "mc-cache lookup", "name blocks by their hashes, or a prompt by -f FILE or --system TEXT");
  std::vector<BlockHash> out;
  for (const std::string& text : named) {
    if (const auto checked = flags::check_block_hash(text); !checked)
      return user_error(err::kBadValue, checked.error().what, "HASH");
    out.push_back(BlockHash{*Id128::from_hex(text)});
  }
  if (!has_prompt) return out;
  MC_TRY(conductor, conductor_door(args, time));
  MC_TRY(request, prompt_request(args, conductor));
  MC_TRY(prompt, explain_whole(conductor, request));
  return prompt.hashes;
}

/// The tier of each block, as the node names it.
Result<std::vector<std::string>> tiers_of(const BlockDoor& node, const std::vector<BlockHash>& blocks) {
  std::vector<std::string> out;
  for (size_t first = 0; first < blocks.size(); first += wire::kLookupBlocksMax) {
    Json hashes = Json::array();
    const size_t end = std::min(blocks.size(), first + wire::kLookupBlocksMax);
    for (size_t i = first; i < end; ++i) hashes.push(Json(blocks[i].hex()));
    Json body = Json::object();
    body.set("hashes", std::move(hashes));
    MC_TRY(response, node.call(http::Method::post, "/blocks/lookup", body.dump()));
    const auto json = Json::parse(response.body);
    if (!json || (*json)["tiers"].size() != end - first)
      return user_error(err::kPeerGarbage, "the answer does not name the tier of each block", node.place,
                        "compare the versions of the node and of this program");
    for (const Json& tier : (*json)["tiers"].items()) out.emplace_back(tier.as_string());
  }
  MC_ASSERT_EQ(out.size(), blocks.size());
  return out;
}

constexpr std::string_view kNone = "none";

/// One line for each run of blocks in one tier.
std::string runs_text(const std::vector<BlockHash>& blocks, const std::vector<std::string>& tiers) {
  std::string out;
  for (size_t first = 0, end = 0; first < tiers.size(); first = end) {
    while (end < tiers.size() && tiers[end] == tiers[first]) ++end;
    const std::string run =
        end - first == 1 ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(end - 1);
    out += "  " + run + std::string(run.size() < 11 ? 11 - run.size() : 1, ' ') + tiers[first] +
           std::string(tiers[first].size() < 12 ? 12 - tiers[first].size() : 1, ' ') + blocks[first].hex() + "\n";
  }
  return out;
}

}  // namespace

Result<int> look_up_blocks(const cli::Args& args) {
  const Duration time = args.duration(flags::kBlocksTimeout);
  const std::string node = args.positional_one("NODE");
  MC_TRY(blocks, asked_blocks(args, time));
  MC_TRY(door, BlockDoor::open(args, node, time));
  MC_TRY(tiers, tiers_of(door, blocks));
  const auto held = blocks.size() - static_cast<size_t>(std::ranges::count(tiers, kNone));
  const auto leading = static_cast<size_t>(std::ranges::find(tiers, kNone) - tiers.begin());
  if (args.on(flags::kJson)) {
    Json row = Json::object({{"node", node}, {"blocks", blocks.size()}, {"held", held}, {"leading", leading}});
    Json hashes = Json::array(), named = Json::array();
    for (const BlockHash& hash : blocks) hashes.push(Json(hash.hex()));
    for (const std::string& tier : tiers) named.push(Json(tier));
    row.set("hashes", std::move(hashes)).set("tiers", std::move(named));
    MC_CHECK(write_all(1, row.dump() + "\n"));
  } else {
    MC_CHECK(write_foreign(1, node + ": " + std::to_string(held) + " of " + std::to_string(blocks.size()) +
                                  " blocks, the first " + std::to_string(leading) + " without a gap\n" +
                                  runs_text(blocks, tiers)));
  }
  return held == blocks.size() ? 0 : kExitFailed;
}

}  // namespace mc::verbs

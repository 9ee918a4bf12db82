#include "verbs/block_verbs.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/units.h"
#include "node/node.h"
#include "verbs/block_chain.h"

namespace mc::flags {

Result<void> check_block_hash(std::string_view value) {
  const auto id = Id128::from_hex(value);
  if (id && !id->is_zero()) return {};
  return Error{Code::invalid, "not the id of a block: 32 hex digits, as mc-cache ls prints"};
}

}  // namespace mc::flags

namespace mc::verbs {
namespace {

struct Keys {
  std::vector<std::string> keys;
};
/// Values by their keys, or the chain of blocks that ends with a block.
using Target = std::variant<Keys, BlockHash>;

Result<Target> target_of(const cli::Args& args) {
  Keys keys{args.positional("KEY")};
  const bool has_prefix = args.present(flags::kChainPrefix);
  if (has_prefix == !keys.keys.empty())
    return user_error(err::kUsage, has_prefix ? "both keys and --prefix are given" : "no key and no --prefix is given",
                      "mc-cache " + std::string(args.verb()),
                      "name values by their keys, or KV blocks by --prefix HASH");
  if (!has_prefix) return Target(std::move(keys));
  return Target(BlockHash{*Id128::from_hex(args.text(flags::kChainPrefix))});
}

Result<Json> order(const cli::Args& args, const std::string& path, const Json& body) {
  MC_TRY(door, BlockDoor::open(args, args.positional_one("NODE"), args.duration(flags::kBlocksTimeout)));
  MC_TRY(response, door.call(http::Method::post, path, body.dump()));
  auto json = Json::parse(response.body);
  if (json) return json;
  return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, door.place + path,
                    "compare the versions of the node and of this program");
}

uint64_t number(const Json& json, std::string_view field) {
  return static_cast<uint64_t>(std::max<int64_t>(0, json[field].as_int()));
}

/// The meaning of each reason to keep a block, by node::Stayed.
constexpr std::array<std::string_view, node::kStayedCount> kStayedMeanings = {
    "another node reads them", "an operator pinned them", "requests or the disk use them",
    "blocks that stay continue them", "the node does not know their tenant or model"};

std::string_view meaning(std::string_view reason) {
  for (size_t i = 0; i < kStayedMeanings.size(); ++i)
    if (to_string(static_cast<node::Stayed>(i)) == reason) return kStayedMeanings[i];
  return "";
}

/// The note on an order that met no block; else nothing.
std::string none_text(const Json& report) {
  if (number(report, "memory_blocks") + number(report, "disk_blocks") > 0) return "";
  std::string out = "no block of the node meets the conditions\n";
  for (const char* name : {"tenant", "model"})
    if (const Json& known = report[std::string("knows_") + name]; known.is_bool() && !known.as_bool())
      out += std::string("the node knows no such ") + name + "; mc-cache ls --json shows the " + name +
             "s of its blocks\n";
  return out;
}

std::string evict_text(const Json& report, bool dry_run) {
  char line[160];
  std::string out = std::string(report["node"].as_string()) + (dry_run ? ": would free\n" : ": freed\n");
  const auto row = [&](std::string_view name, uint64_t blocks, uint64_t bytes, std::string_view why) {
    std::snprintf(line, sizeof line, "  %-8s %9llu blocks  %11s", std::string(name.substr(0, 40)).c_str(),
                  static_cast<unsigned long long>(blocks), human_bytes(bytes).c_str());
    out += line + (why.empty() ? std::string() : "  " + std::string(why)) + "\n";
  };
  row("memory", number(report, "memory_blocks"), number(report, "memory_bytes"), "");
  row("disk", number(report, "disk_blocks"), number(report, "disk_bytes"), "");
  if (report["stayed"].size() == 0) return out + none_text(report);
  out += dry_run ? "would not free\n" : "not freed\n";
  for (const Json& stayed : report["stayed"].items()) {
    const std::string_view reason = stayed["reason"].as_string();
    row(reason, number(stayed, "blocks"), number(stayed, "bytes"), meaning(reason));
  }
  return out;
}

Result<int> pin_chain(const cli::Args& args, const BlockHash& prefix) {
  if (args.duration(flags::kPinFor) > node::PinBlocks::kTimeMax)
    return user_error(err::kBadValue,
                      format_duration(args.duration(flags::kPinFor)) + " is not from 1ms to " +
                          format_duration(node::PinBlocks::kTimeMax) + ", as a pin of blocks may last",
                      "--for");
  MC_ASSERT(!prefix.is_zero());
  Json body = Json::object({{"prefix", prefix.hex()}, {"for_ms", args.duration(flags::kPinFor) / 1ms}});
  if (asks_for_disk(args)) body.set("durability", args.text(flags::kPinDurability));
  MC_TRY(report, order(args, "/blocks/pin", body));
  if (args.on(flags::kJson)) {
    MC_CHECK(write_all(1, report.dump() + "\n"));
    return 0;
  }
  MC_CHECK(write_foreign(
      1, std::string(report["node"].as_string()) + ": pinned " + std::to_string(number(report, "blocks")) +
             " blocks, " + human_bytes(number(report, "bytes")) + ", for " +
             format_duration(args.duration(flags::kPinFor)) + "; " + std::to_string(number(report, "loaded_blocks")) +
             " of them came from disk" + (report["durability"].as_string() == "d2" ? "; all are on disk" : "") + "\n" +
             human_bytes(number(report, "pinned_bytes")) + " of at most " +
             human_bytes(number(report, "pinned_bytes_max")) + " are pinned\n"));
  return 0;
}

Result<int> unpin_chain(const cli::Args& args, const BlockHash& prefix) {
  MC_TRY(report, order(args, "/blocks/unpin", Json::object({{"prefix", prefix.hex()}})));
  if (args.on(flags::kJson))
    MC_CHECK(write_all(1, report.dump() + "\n"));
  else
    MC_CHECK(write_foreign(1, std::string(report["node"].as_string()) + ": unpinned " +
                                  std::to_string(number(report, "blocks")) + " blocks\n"));
  return 0;
}

}  // namespace

bool asks_for_disk(const cli::Args& args) {
  return choice_of(args, flags::kPinDurability) == node::Durability::d2;
}

Result<int> evict_blocks(const cli::Args& args) {
  Json body = Json::object();
  if (args.present(flags::kEvictPrefix)) body.set("prefix", args.text(flags::kEvictPrefix));
  if (args.present(flags::kEvictTenant)) body.set("tenant", args.text(flags::kEvictTenant));
  if (args.present(flags::kEvictModel)) body.set("model", args.text(flags::kEvictModel));
  if (args.present(flags::kEvictOlder)) body.set("older_ms", args.duration(flags::kEvictOlder) / 1ms);
  if ((body.size() == 0) == !args.on(flags::kEvictAll))
    return user_error(err::kUsage,
                      body.size() == 0 ? "nothing says which blocks to evict" : "--all excludes the other conditions",
                      "mc-cache evict", "give --prefix, --tenant, --model or --older, or --all for all blocks");
  if (args.on(flags::kEvictAll)) body.set("all", true);
  const bool dry_run = args.on(flags::kDryRun);
  if (dry_run) body.set("dry_run", true);
  MC_TRY(report, order(args, "/blocks/evict", body));
  if (args.on(flags::kJson))
    MC_CHECK(write_all(1, report.set("dry_run", dry_run).dump() + "\n"));
  else
    MC_CHECK(write_foreign(1, evict_text(report, dry_run)));
  return 0;
}

Result<int> pin_any(const cli::Args& args) {
  MC_TRY(target, target_of(args));
  const auto* prefix = std::get_if<BlockHash>(&target);
  if (!prefix && asks_for_disk(args))
    return user_error(err::kUsage, "a value keeps the level of its put", "--durability",
                      "put the value again with another --durability, or name blocks with --prefix");
  return prefix ? pin_chain(args, *prefix) : pin_values(args);
}

Result<int> unpin_any(const cli::Args& args) {
  MC_TRY(target, target_of(args));
  const auto* prefix = std::get_if<BlockHash>(&target);
  return prefix ? unpin_chain(args, *prefix) : unpin_values(args);
}

}  // namespace mc::verbs

#include "verbs/warm.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "base/units.h"
#include "verbs/block_chain.h"

namespace mc::verbs {
namespace {

constexpr Duration kLookInterval = 50ms;

/// Computes the prompt, and waits until the conductor has learnt who holds its blocks.
Result<AskedPrompt> compute(const cli::Args& args, const BlockDoor& conductor, Json request, Duration time) {
  const TimePoint deadline = SystemClock::instance().now() + time;
  MC_TRY(prompt, explain_whole(conductor, request));
  if (prompt.holders.empty()) MC_CHECK(call_conductor(conductor, "/v1/completions", request.dump()));
  while (prompt.holders.empty()) {
    const Duration left = deadline - SystemClock::instance().now();
    if (left <= 0s)
      return user_error(err::kDeadlineExceeded,
                        "no node reports all " + std::to_string(prompt.hashes.size()) + " blocks",
                        "the conductor's index", "raise --timeout, or give the nodes more memory");
    // Each look makes the conductor hash the whole prompt, and there is no event to wait for.
    (void)::poll(nullptr, 0, static_cast<int>(std::min<Duration>(kLookInterval, left) / 1ms));
    MC_TRY(door, conductor_door(args, left));
    MC_TRY(again, explain_prompt(door, request));
    prompt = std::move(again);
  }
  MC_ASSERT(!prompt.holders.empty());
  return prompt;
}

/// NODE, then nodes that have the blocks, then cache, decode and prefill nodes.
Result<std::vector<std::string>> targets_of(const cli::Args& args, const BlockDoor& conductor,
                                            const AskedPrompt& prompt) {
  const size_t count = args.count(flags::kWarmCopies);
  std::vector<std::string> out{args.positional_one("NODE")};
  const auto add = [&](const std::string& node) {
    if (out.size() < count && std::find(out.begin(), out.end(), node) == out.end()) out.push_back(node);
  };
  if (count == 1) return out;
  for (const std::string& holder : prompt.holders) add(holder);
  MC_TRY(response, conductor.call(http::Method::get, "/cluster", ""));
  MC_TRY(cluster, answered_json(conductor, response));
  for (const std::string_view role : {"cache", "decode", "prefill"})
    for (const Json& node : cluster["nodes"].items())
      if (node["role"].as_string() == role) add(std::string(node["id"].as_string()));
  if (out.size() == count) return out;
  return user_error(
      err::kBadValue,
      std::to_string(count) + " copies need as many nodes, and the cluster has " + std::to_string(out.size()),
      "--copies", "mc-conductor ps lists the nodes");
}

struct Warmed {
  std::string node;
  uint64_t stored = 0, omitted = 0;
  bool is_pinned = false;
};

/// MC4031 when the blocks are to be on a disk that the node does not have. Nothing was moved then.
Result<void> check_durability(const cli::Args& args, const std::string& node) {
  if (!asks_for_disk(args)) return {};
  MC_TRY(door, BlockDoor::open(args, node, args.duration(flags::kBlocksTimeout)));
  MC_TRY(response, door.call(http::Method::get, "/blocks?limit=0", ""));
  MC_TRY(list, answered_json(door, response));
  if (list["disk_capacity_bytes"].as_int() > 0 && !list["disk_lost"].as_bool()) return {};
  return user_error(
      err::kNotDurable,
      node + (list["disk_lost"].as_bool() ? " has lost its disk" : " has no disk, and keeps blocks at d0"),
      "--durability", "name nodes with --ssd, or leave --durability out; nothing was moved");
}

/// The blocks come from a holder, whose chain is fetched once.
class Mover {
 public:
  Mover(const cli::Args& args, const AskedPrompt& prompt) : args_(args), prompt_(prompt) {}

  Result<Warmed> warm(const std::string& node) {
    const Duration time = args_.duration(flags::kBlocksTimeout);
    MC_TRY(door, BlockDoor::open(args_, node, time));
    Warmed out{node};
    if (std::find(prompt_.holders.begin(), prompt_.holders.end(), node) == prompt_.holders.end()) {
      MC_CHECK(fetch(time));
      MC_ASSERT(chain_.has_value());
      MC_TRY(sum, send_chain(door, *chain_));
      out.stored = sum.stored, out.omitted = sum.omitted;
    }
    if (!args_.present(flags::kWarmPin) || out.omitted > 0) return out;
    Json body =
        Json::object({{"prefix", prompt_.hashes.back().hex()}, {"for_ms", args_.duration(flags::kWarmPin) / 1ms}});
    if (asks_for_disk(args_)) body.set("durability", args_.text(flags::kPinDurability));
    if (auto pinned = door.call(http::Method::post, "/blocks/pin", body.dump()); !pinned) {
      Error error = std::move(pinned).error();
      error.what = node + ": " + error.what;
      return error;
    }
    out.is_pinned = true;
    return out;
  }

 private:
  Result<void> fetch(Duration time) {
    if (chain_) return {};
    MC_ASSERT(!prompt_.holders.empty());
    MC_TRY(holder, BlockDoor::open(args_, prompt_.holders.front(), time));
    MC_TRY(chain, fetch_chain(holder, prompt_.hashes.back()));
    chain_.emplace(std::move(chain));
    return {};
  }

  const cli::Args& args_;
  const AskedPrompt& prompt_;
  std::optional<BlockChain> chain_;
};

Result<void> print(const cli::Args& args, const AskedPrompt& prompt, const Warmed& warmed) {
  if (args.on(flags::kJson)) {
    Json row =
        Json::object({{"node", warmed.node}, {"prefix", prompt.hashes.back().hex()}, {"blocks", prompt.hashes.size()}});
    row.set("stored", warmed.stored).set("omitted", warmed.omitted).set("pinned", warmed.is_pinned);
    if (warmed.is_pinned) row.set("durability", args.text(flags::kPinDurability));
    return write_all(1, row.dump() + "\n");
  }
  std::string text = warmed.node + ": " + std::to_string(prompt.hashes.size() - warmed.omitted) + " of " +
                     std::to_string(prompt.hashes.size()) + " blocks, " + std::to_string(warmed.stored) + " moved here";
  if (warmed.is_pinned) text += ", pinned for " + format_duration(args.duration(flags::kWarmPin));
  if (warmed.is_pinned && asks_for_disk(args)) text += ", all on disk";
  if (warmed.omitted > 0) text += "; " + std::to_string(warmed.omitted) + " found no room, and nothing was pinned";
  return write_foreign(1, text + "\n");
}

}  // namespace

Result<int> warm_node(const cli::Args& args) {
  const Duration time = args.duration(flags::kBlocksTimeout);
  if (asks_for_disk(args) && !args.present(flags::kWarmPin))
    return user_error(err::kUsage, "only pinned blocks have a durability", "--durability", "give --pin T as well");
  MC_TRY(conductor, conductor_door(args, time));
  MC_TRY(request, prompt_request(args, conductor));
  MC_TRY(prompt, compute(args, conductor, request, time));
  MC_TRY(targets, targets_of(args, conductor, prompt));
  for (const std::string& node : targets) MC_CHECK(check_durability(args, node));
  Mover mover(args, prompt);
  int exit_code = 0;
  for (const std::string& node : targets) {
    MC_TRY(warmed, mover.warm(node));
    if (warmed.omitted > 0) exit_code = kExitFailed;
    MC_CHECK(print(args, prompt, warmed));
  }
  if (!args.on(flags::kJson)) MC_CHECK(write_all(1, "prefix " + prompt.hashes.back().hex() + "\n"));
  return exit_code;
}

}  // namespace mc::verbs

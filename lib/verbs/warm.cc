#include "verbs/warm.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/exit.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/units.h"
#include "ctl/ctl.h"
#include "host/conductor_process.h"
#include "verbs/block_chain.h"

namespace mc::verbs {
namespace {

constexpr size_t kWarmBytesMax = size_t{16} << 20;
constexpr Duration kLookInterval = 50ms;

/// The operators' socket of the conductor, which needs no key.
Result<BlockDoor> conductor_of(Duration time) {
  MC_TRY(directory, ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); }));
  BlockDoor door{"unix:" + directory + "/" + std::string(host::kOperatorsSocket),
                 {},
                 time,
                 "start the conductor, or set MCT_RUN_DIR to its run directory"};
  door.headers.push_back({"Content-Type", "application/json"});
  door.headers.push_back({"x-mc-deadline-ms", std::to_string(std::max<int64_t>(1, time / 1ms))});
  return door;
}

Result<Json> json_of(const BlockDoor& door, const http::Response& response) {
  auto json = Json::parse(response.body);
  if (json) return json;
  return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, door.place,
                    "compare the versions of the conductor and of this program");
}

/// The full blocks of the prompt, and the nodes that have all of them.
struct Prompt {
  std::string last;
  uint64_t blocks = 0, tokens = 0, tail_tokens = 0;
  std::vector<std::string> holders;
};

Result<Prompt> explain(const BlockDoor& conductor, const Json& request) {
  MC_TRY(response, conductor.call(http::Method::post, "/admin/explain", request.dump()));
  MC_TRY(json, json_of(conductor, response));
  Prompt prompt;
  const Json& hashes = json["block_hashes"];
  prompt.tail_tokens = static_cast<uint64_t>(json["tail_tokens"].as_int());
  prompt.blocks = hashes.size(), prompt.tokens = static_cast<uint64_t>(json["prompt_tokens"].as_int());
  if (prompt.blocks == 0)
    return user_error(err::kBadValue,
                      "the prompt of " + std::to_string(prompt.tokens) + " tokens fills no block of " +
                          std::to_string(json["block_tokens"].as_int()),
                      "-f", "only full blocks are shared: give a longer prompt");
  prompt.last = std::string(hashes[prompt.blocks - 1].as_string());
  if (const auto checked = flags::check_block_hash(prompt.last); !checked)
    return user_error(err::kPeerGarbage, "the answer names no block", conductor.place);
  for (const Json& holder : json["holders"].items())
    if (static_cast<uint64_t>(holder["match_blocks"].as_int()) == prompt.blocks)
      prompt.holders.emplace_back(holder["node"].as_string());
  MC_ASSERT(prompt.blocks > 0 && !prompt.last.empty());
  return prompt;
}

/// The token ids of a text, or of messages in the form that the model's chat template gives them. The template's
/// beginning of an answer is left out, because other messages may follow.
Result<Json> tokenize(const BlockDoor& conductor, Json request) {
  request.set("add_generation_prompt", false);
  MC_TRY(response, conductor.call(http::Method::post, "/tokenize", request.dump()));
  MC_TRY(json, json_of(conductor, response));
  Json ids = json["tokens"];
  if (!ids.is_array() || ids.size() == 0)
    return user_error(err::kPeerGarbage, "the answer has no tokens", conductor.place);
  return ids;
}

/// The prompt as token ids with one more. The last token of a prompt is always computed, so the conductor does not look
/// for a block that ends with it.
Result<Json> longer(const BlockDoor& conductor, const Json& request) {
  Json ids = request["prompt"];
  if (!ids.is_array()) {
    Json text = Json::object({{"prompt", ids}});
    if (request.has("model")) text.set("model", request["model"]);
    MC_TRY(read, tokenize(conductor, std::move(text)));
    ids = std::move(read);
  }
  MC_ASSERT(ids.size() > 0);
  ids.push(Json(ids[ids.size() - 1].as_int()));
  Json out = request;
  out.set("prompt", std::move(ids));
  return out;
}

/// Computes the prompt, and waits until the conductor has learnt who holds its blocks.
Result<Prompt> compute(const BlockDoor& conductor, Json request, Duration time) {
  const TimePoint deadline = SystemClock::instance().now() + time;
  MC_TRY(prompt, explain(conductor, request));
  if (prompt.tail_tokens == 0) {
    MC_TRY(extended, longer(conductor, request));
    request = std::move(extended);
    MC_TRY(again, explain(conductor, request));
    prompt = std::move(again);
  }
  if (prompt.holders.empty()) MC_CHECK(conductor.call(http::Method::post, "/v1/completions", request.dump()));
  while (prompt.holders.empty()) {
    const Duration left = deadline - SystemClock::instance().now();
    if (left <= 0s)
      return user_error(err::kDeadlineExceeded, "no node reports all " + std::to_string(prompt.blocks) + " blocks",
                        "the conductor's index", "raise --timeout, or give the nodes more memory");
    // Each look makes the conductor hash the whole prompt, and there is no event to wait for.
    (void)::poll(nullptr, 0, static_cast<int>(std::min<Duration>(kLookInterval, left) / 1ms));
    MC_TRY(door, conductor_of(left));
    MC_TRY(again, explain(door, request));
    prompt = std::move(again);
  }
  MC_ASSERT(!prompt.holders.empty());
  return prompt;
}

/// NODE, then nodes that have the blocks, then cache, decode and prefill nodes.
Result<std::vector<std::string>> targets_of(const cli::Args& args, const BlockDoor& conductor, const Prompt& prompt) {
  const size_t count = args.count(flags::kWarmCopies);
  std::vector<std::string> out{args.positional_one("NODE")};
  const auto add = [&](const std::string& node) {
    if (out.size() < count && std::find(out.begin(), out.end(), node) == out.end()) out.push_back(node);
  };
  if (count == 1) return out;
  for (const std::string& holder : prompt.holders) add(holder);
  MC_TRY(response, conductor.call(http::Method::get, "/cluster", ""));
  MC_TRY(cluster, json_of(conductor, response));
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

/// The blocks come from a holder, whose chain is fetched once.
class Mover {
 public:
  Mover(const cli::Args& args, const Prompt& prompt) : args_(args), prompt_(prompt) {}

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
    Json body = Json::object({{"prefix", prompt_.last}, {"for_ms", args_.duration(flags::kWarmPin) / 1ms}});
    MC_CHECK(door.call(http::Method::post, "/blocks/pin", body.dump()));
    out.is_pinned = true;
    return out;
  }

 private:
  Result<void> fetch(Duration time) {
    if (chain_) return {};
    MC_ASSERT(!prompt_.holders.empty());
    MC_TRY(holder, BlockDoor::open(args_, prompt_.holders.front(), time));
    MC_TRY(chain, fetch_chain(holder, BlockHash{*Id128::from_hex(prompt_.last)}));
    chain_.emplace(std::move(chain));
    return {};
  }

  const cli::Args& args_;
  const Prompt& prompt_;
  std::optional<BlockChain> chain_;
};

Result<void> print(const cli::Args& args, const Prompt& prompt, const Warmed& warmed) {
  if (args.on(flags::kJson)) {
    Json row = Json::object({{"node", warmed.node}, {"prefix", prompt.last}, {"blocks", prompt.blocks}});
    row.set("stored", warmed.stored).set("omitted", warmed.omitted).set("pinned", warmed.is_pinned);
    return write_all(1, row.dump() + "\n");
  }
  std::string text = warmed.node + ": " + std::to_string(prompt.blocks - warmed.omitted) + " of " +
                     std::to_string(prompt.blocks) + " blocks, " + std::to_string(warmed.stored) + " moved here";
  if (warmed.is_pinned) text += ", pinned for " + format_duration(args.duration(flags::kWarmPin));
  if (warmed.omitted > 0) text += "; " + std::to_string(warmed.omitted) + " found no room, and nothing was pinned";
  return write_foreign(1, text + "\n");
}

/// The messages with which chats begin, as the flags describe them; null: the prompt is plain text.
Result<Json> messages_of(const cli::Args& args, const std::string& text) {
  const std::string role = args.text(flags::kWarmChat);
  const bool has_system = args.present(flags::kWarmSystem);
  if (role == "none" && !has_system) return Json();
  if (role == "system" && has_system)
    return user_error(err::kUsage, "the chat has two system messages", "mc-cache warm",
                      "give --system TEXT, or the file of --chat system");
  Json messages = Json::array();
  if (has_system) messages.push(Json::object({{"role", "system"}, {"content", args.text(flags::kWarmSystem)}}));
  if (args.present(flags::kWarmFile))
    messages.push(Json::object({{"role", role == "system" ? "system" : "user"}, {"content", text}}));
  MC_ASSERT(messages.size() > 0);
  return messages;
}

/// The request that computes the prompt: one token of answer is the fewest that there can be.
Result<Json> request_of(const cli::Args& args, const BlockDoor& conductor) {
  if (!args.present(flags::kWarmFile) && (!args.present(flags::kWarmSystem) || args.text(flags::kWarmChat) != "none"))
    return user_error(err::kUsage, "no prompt is given", "mc-cache warm",
                      "give the prompt with -f FILE (- is stdin), or a system message with --system TEXT");
  Result<std::string> text = std::string();
  if (args.present(flags::kWarmFile)) {
    const std::string& path = args.text(flags::kWarmFile);
    text = path == "-" ? read_to_end(0, kWarmBytesMax) : read_file(path, kWarmBytesMax);
  }
  if (!text) return as_user_error(err::kFileAccess, std::move(text).error());
  MC_TRY(messages, messages_of(args, *text));
  Json named = Json::object();
  if (args.present(flags::kWarmModel)) named.set("model", args.text(flags::kWarmModel));
  Json request = named;
  request.set("max_tokens", 1).set("temperature", 0);
  if (messages.is_null()) return request.set("prompt", *text);
  MC_TRY(ids, tokenize(conductor, named.set("messages", std::move(messages))));
  return request.set("prompt", std::move(ids));
}

}  // namespace

Result<int> warm_node(const cli::Args& args) {
  const Duration time = args.duration(flags::kBlocksTimeout);
  MC_TRY(conductor, conductor_of(time));
  MC_TRY(request, request_of(args, conductor));
  MC_TRY(prompt, compute(conductor, request, time));
  MC_TRY(targets, targets_of(args, conductor, prompt));
  Mover mover(args, prompt);
  int exit_code = 0;
  for (const std::string& node : targets) {
    MC_TRY(warmed, mover.warm(node));
    if (warmed.omitted > 0) exit_code = kExitFailed;
    MC_CHECK(print(args, prompt, warmed));
  }
  if (!args.on(flags::kJson)) MC_CHECK(write_all(1, "prefix " + prompt.last + "\n"));
  return exit_code;
}

}  // namespace mc::verbs

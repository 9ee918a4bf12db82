#include "verbs/asked_prompt.h"

#include <algorithm>
#include <cstdlib>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "ctl/ctl.h"
#include "host/conductor_process.h"
#include "verbs/client_key.h"
#include "verbs/text_input.h"

namespace mc::verbs {
namespace {

constexpr size_t kPromptBytesMax = size_t{16} << 20;

/// The messages with which chats begin, as the flags describe them; null: the prompt is plain text.
Result<Json> messages_of(const cli::Args& args, const std::string& text) {
  using Role = flags::ChatRole;
  const Role role = choice_of(args, flags::kChainChat);
  const bool has_system = args.present(flags::kChainSystem);
  if (role == Role::none && !has_system) return Json();
  if (role == Role::system && has_system)
    return user_error(err::kUsage, "the chat has two system messages", "mc-cache " + std::string(args.verb()),
                      "give --system TEXT, or the file of --chat system");
  Json messages = Json::array();
  if (has_system) messages.push(Json::object({{"role", "system"}, {"content", args.text(flags::kChainSystem)}}));
  if (args.present(flags::kChainFile))
    messages.push(Json::object({{"role", role == Role::system ? "system" : "user"}, {"content", text}}));
  MC_ASSERT(messages.size() > 0);
  return messages;
}

/// The prompt as token ids with one more. The last token of a prompt is always computed, so the conductor does not look
/// for a block that ends with it.
Result<Json> longer(const BlockDoor& conductor, const Json& request) {
  Json ids = request["prompt"];
  if (!ids.is_array()) {
    Json text = Json::object({{"prompt", ids}});
    if (request.has("model")) text.set("model", request["model"]);
    MC_TRY(read, tokenize_prompt(conductor, std::move(text)));
    ids = std::move(read);
  }
  MC_ASSERT(ids.size() > 0);
  ids.push(Json(ids[ids.size() - 1].as_int()));
  Json out = request;
  out.set("prompt", std::move(ids));
  return out;
}

/// The error where the conductor names no block: the prompt is too short, or no node with the model has joined.
Error no_blocks(const Json& explained) {
  const int64_t tokens = explained["prompt_tokens"].as_int(), block_tokens = explained["block_tokens"].as_int();
  if (tokens < block_tokens)
    return user_error(
        err::kBadValue,
        "the prompt of " + std::to_string(tokens) + " tokens fills no block of " + std::to_string(block_tokens),
        "the prompt", "only full blocks are shared: give a longer prompt");
  return user_error(err::kNoPrefill, "no prefill or decode node has joined, and only they can name the " +
                                         std::to_string(tokens / block_tokens) + " blocks of the prompt (" +
                                         std::string(explained["reason"].as_string()) + ")");
}

}  // namespace

Result<Json> answered_json(const BlockDoor& door, const http::Response& response) {
  auto json = Json::parse(response.body);
  if (json) return json;
  return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, door.place,
                    "compare the versions of the conductor and of this program");
}

Result<BlockDoor> conductor_door(const cli::Args& args, Duration time) {
  MC_TRY(directory, ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); }));
  MC_TRY(headers, api_key_headers(args));
  BlockDoor door{"unix:" + directory + "/" + std::string(host::kOperatorsSocket), std::move(headers), time,
                 "start the conductor, or set MCT_RUN_DIR to its run directory"};
  door.headers.push_back({"Content-Type", "application/json"});
  door.headers.push_back({"x-mc-deadline-ms", std::to_string(std::max<int64_t>(1, time / 1ms))});
  return door;
}

Result<http::Response> call_conductor(const BlockDoor& conductor, const std::string& path, std::string body) {
  auto response = conductor.call(http::Method::post, path, std::move(body));
  if (response || response.error().mc != err::kUnauthorized) return response;
  Error error = std::move(response).error();
  error.next = "the prompt is computed for a tenant: send its key with --api-key-file FILE, or with MCT_API_KEY";
  return error;
}

Result<AskedPrompt> explain_prompt(const BlockDoor& conductor, const Json& request) {
  MC_TRY(response, call_conductor(conductor, "/admin/explain", request.dump()));
  MC_TRY(json, answered_json(conductor, response));
  AskedPrompt prompt;
  const Json& hashes = json["block_hashes"];
  prompt.tail_tokens = static_cast<uint64_t>(json["tail_tokens"].as_int());
  prompt.tokens = static_cast<uint64_t>(json["prompt_tokens"].as_int());
  if (hashes.size() == 0) return no_blocks(json);
  for (const Json& hash : hashes.items()) {
    const auto id = Id128::from_hex(hash.as_string());
    if (!id || id->is_zero()) return user_error(err::kPeerGarbage, "the answer names no block", conductor.place);
    prompt.hashes.push_back(BlockHash{*id});
  }
  for (const Json& holder : json["holders"].items())
    if (static_cast<uint64_t>(holder["match_blocks"].as_int()) == prompt.hashes.size())
      prompt.holders.emplace_back(holder["node"].as_string());
  MC_ASSERT(!prompt.hashes.empty());
  return prompt;
}

Result<Json> tokenize_prompt(const BlockDoor& conductor, Json request) {
  request.set("add_generation_prompt", false);
  MC_TRY(response, call_conductor(conductor, "/tokenize", request.dump()));
  MC_TRY(json, answered_json(conductor, response));
  Json ids = json["tokens"];
  if (!ids.is_array() || ids.size() == 0)
    return user_error(err::kPeerGarbage, "the answer has no tokens", conductor.place);
  return ids;
}

Result<AskedPrompt> explain_whole(const BlockDoor& conductor, Json& request) {
  MC_TRY(prompt, explain_prompt(conductor, request));
  if (prompt.tail_tokens > 0) return prompt;
  MC_TRY(extended, longer(conductor, request));
  request = std::move(extended);
  return explain_prompt(conductor, request);
}

Result<Json> prompt_request(const cli::Args& args, const BlockDoor& conductor) {
  const bool has_system = args.present(flags::kChainSystem);
  if (!args.present(flags::kChainFile) && (!has_system || choice_of(args, flags::kChainChat) != flags::ChatRole::none))
    return user_error(err::kUsage, "no prompt is given", "mc-cache " + std::string(args.verb()),
                      "give the prompt with -f FILE (- is stdin), or a system message with --system TEXT");
  Result<std::string> text = std::string();
  if (args.present(flags::kChainFile)) {
    const std::string& path = args.text(flags::kChainFile);
    text = path == "-" ? read_to_end(0, kPromptBytesMax) : read_file(path, kPromptBytesMax);
  }
  if (!text) return as_user_error(err::kFileAccess, std::move(text).error());
  MC_CHECK(check_text(*text, "-f"));
  if (has_system) MC_CHECK(check_text(args.text(flags::kChainSystem), "--system"));
  MC_TRY(messages, messages_of(args, *text));
  Json named = Json::object();
  if (args.present(flags::kChainModel)) named.set("model", args.text(flags::kChainModel));
  Json request = named;
  request.set("max_tokens", 1).set("temperature", 0);
  if (messages.is_null()) return request.set("prompt", *text);
  MC_TRY(ids, tokenize_prompt(conductor, named.set("messages", std::move(messages))));
  return request.set("prompt", std::move(ids));
}

}  // namespace mc::verbs

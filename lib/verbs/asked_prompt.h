// The prompt that a verb of mc-cache names by a text or by messages, and the KV blocks that its conductor finds in it.
#pragma once

#include <string>
#include <vector>

#include "base/choice.h"
#include "base/cli_flags.h"
#include "base/ids.h"
#include "base/json.h"
#include "verbs/block_chain.h"

namespace mc::flags {

inline constexpr Flag kChainModel{.name = "model",
                                  .letter = 'm',
                                  .value = "M",
                                  .help = "name of the model; needed where the conductor serves several",
                                  .one_shot = true};
inline constexpr Flag kChainFile{.name = "prompt-file",
                                 .letter = 'f',
                                 .value = "FILE",
                                 .help = "the beginning of the prompts to come, as text; - is stdin",
                                 .one_shot = true};
/// The role of a chat's first message; none: the prompt is no chat.
enum class ChatRole : uint8_t { none, system, user };
inline constexpr FlagWord<ChatRole> kChainRoles[] = {
    {"none", ChatRole::none}, {"system", ChatRole::system}, {"user", ChatRole::user}};
inline constexpr ChoiceFlag kChainChat =
    with_choices<kChainRoles>({.name = "chat",
                               .kind = FlagKind::choice,
                               .value = "ROLE",
                               .fallback = "none",
                               .help = "FILE is the first message of a chat, of this role; none: it is plain text",
                               .one_shot = true});
inline constexpr Flag kChainSystem{.name = "system",
                                   .value = "TEXT",
                                   .help = "the system message of the chat; FILE, if any, is the user's message",
                                   .one_shot = true};

}  // namespace mc::flags

namespace mc::verbs {

/// The operators' socket of this run directory's conductor. Its pages need no key there, and its models need the key
/// of a tenant where there are tenants, so the API key of `args` is sent.
Result<BlockDoor> conductor_door(const cli::Args& args, Duration time);
/// Asks the conductor. Where it wants a key, the error names the flags with which this verb sends one.
Result<http::Response> call_conductor(const BlockDoor& conductor, const std::string& path, std::string body);
/// The JSON of an answer; MC2102 where it is none.
Result<Json> answered_json(const BlockDoor& door, const http::Response& response);
/// The token ids of a text, or of messages in the form that the model's chat template gives them. The template's
/// beginning of an answer is left out, because other messages may follow.
Result<Json> tokenize_prompt(const BlockDoor& conductor, Json request);
/// The request that computes the prompt of the flags: one token of answer is the fewest that there can be.
Result<Json> prompt_request(const cli::Args& args, const BlockDoor& conductor);

/// The full blocks of a prompt, at least one, and the nodes that have all of them.
struct AskedPrompt {
  std::vector<BlockHash> hashes;
  uint64_t tokens = 0, tail_tokens = 0;
  std::vector<std::string> holders;
};
Result<AskedPrompt> explain_prompt(const BlockDoor& conductor, const Json& request);
/// As explain_prompt(), with the block that the prompt's last token completes. `request` then has one more token.
Result<AskedPrompt> explain_whole(const BlockDoor& conductor, Json& request);

}  // namespace mc::verbs

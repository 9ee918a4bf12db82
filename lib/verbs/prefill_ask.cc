#include "verbs/prefill_ask.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/units.h"
#include "host/engine.h"
#include "http/client.h"
#include "model/find.h"
#include "verbs/ask.h"
#include "verbs/misses_text.h"
#include "verbs/node_place.h"
#include "verbs/prompt.h"

namespace mc {

Result<void> flags::check_ask_timeout(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= 1ms && time <= std::chrono::hours(1)) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not from 1ms to 1h, which a node may take for a prompt"};
}

}  // namespace mc

namespace mc::verbs {
namespace {

/// The tokenizer of -m, and the name of the model. Ids that are given as such need neither.
struct AskModel {
  std::optional<text::Tokenizer> tokenizer;
  std::string name;

  std::string text_of(int64_t id) const {
    MC_ASSERT(id >= 0 && id <= UINT32_MAX);
    const uint32_t ids[] = {static_cast<uint32_t>(id)};
    return tokenizer ? tokenizer->decode(ids, false) : "";
  }
};

Result<AskModel> open_model(const cli::Args& args) {
  AskModel model;
  if (args.given(flags::kPromptIds) && !args.present(flags::kAskModel)) return model;
  MC_TRY(directory, model::find_model(args.text(flags::kAskModel)));
  MC_TRY(tokenizer, text::Tokenizer::open_or_ids(directory));
  model.tokenizer.emplace(std::move(tokenizer));
  model.name = host::served_name(directory);
  return model;
}

Result<Json> ask(const cli::Args& args, const std::string& place, http::Headers headers, const Json& body) {
  constexpr const char* kPath = "/prefill";
  const Duration time = args.duration(flags::kAskTimeout);
  headers.push_back({"Content-Type", "application/json"});
  headers.push_back({"x-mc-deadline-ms", std::to_string(std::max<int64_t>(1, time / 1ms))});
  const TimePoint deadline = SystemClock::instance().now() + time + kAnswerSlack;
  auto response = http::fetch(http::Method::post, place, kPath, headers, body.dump(), deadline);
  if (!response)
    return user_error(err::kPeerUnreachable, "the node gave no answer: " + response.error().what, place,
                      "look whether the node runs; its log names the cause");
  auto json = Json::parse(response->body);
  if (!json) return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, place + kPath);
  if (response->status < 300) return json;
  Error error = with_key_advice(args, told_error(*json, response->status, place + kPath));
  if (error.mc == err::kDeadlineExceeded) error.next = "raise --timeout, or send a shorter prompt";
  return error;
}

/// One line of printable ASCII in quotes; "" for a model without text.
std::string quoted(const Json& text) {
  return text.is_null() ? "" : text.dump();
}

std::string answer_text(const Json& a) {
  char line[200];
  const auto number = [&](const char* key) { return std::to_string(a[key].as_int()); };
  std::string out = std::string(a["node"].as_string()) + ": first token " + number("token") + " " + quoted(a["text"]);
  out += "\nprompt " + number("prompt_tokens") + " tokens: " + number("cached_tokens") + " cached (" +
         number("cached_disk_tokens") + " from disk), " + number("computed_tokens") + " computed in " +
         number("chunks") + (a["chunks"].as_int() == 1 ? " chunk\n" : " chunks\n");
  for (const Json& run : a["misses"].items()) out += missed_line(run) + "\n";
  std::snprintf(line, sizeof line, "queue %.1f ms   load %.1f ms   compute %.1f ms   total %.1f ms\n",
                a["queue_ms"].as_double(), a["load_ms"].as_double(), a["compute_ms"].as_double(),
                a["total_ms"].as_double());
  out += line;
  if (a["top"].size() == 0) return out;
  std::snprintf(line, sizeof line, "%9s %9s  %s\n", "ID", "LOGPROB", "TEXT");
  out += line;
  for (const Json& t : a["top"].items()) {
    std::snprintf(line, sizeof line, "%9ld %9.4f  ", static_cast<long>(t["id"].as_int()), t["logprob"].as_double());
    out += line + quoted(t["text"]) + "\n";
  }
  return out;
}

/// The answer of the node, with the text of its tokens.
Json with_text(const Json& answer, const AskModel& model) {
  if (!model.tokenizer || model.tokenizer->no_text()) return answer;
  Json out = answer, top = Json::array();
  for (Json token : answer["top"].items()) {
    if (!token.is_object()) continue;
    const int64_t id = token["id"].as_int();
    const std::string text = id < 0 || id > UINT32_MAX ? "" : model.text_of(id);
    top.push(std::move(token.set("text", text)));
  }
  return std::move(out.set("text", model.text_of(answer["token"].as_int())).set("top", std::move(top)));
}

}  // namespace

Result<int> prefill_ask(const cli::Args& args) {
  MC_TRY(model, open_model(args));
  MC_TRY(ids, read_prompt(args, model.tokenizer ? &*model.tokenizer : nullptr, UINT32_MAX));
  MC_ASSERT(!ids.empty());
  MC_TRY(headers, key_headers(args));
  MC_TRY(place, place_of(args.positional_one("NODE"), !headers.empty()));
  Json prompt = Json::array();
  for (const uint32_t id : ids) prompt.push(id);
  Json body = Json::object({{"prompt", std::move(prompt)}, {"logprobs", args.count(flags::kTopTokens)}});
  if (!model.name.empty()) body.set("model", model.name);
  if (args.on(flags::kNoCache)) body.set("no_cache", true);
  MC_TRY(answer, ask(args, place, std::move(headers), body));
  for (const char* key : {"token", "prompt_tokens", "cached_tokens", "computed_tokens"})
    if (answer[key].as_int(-1) < 0 || answer[key].as_int() > UINT32_MAX)
      return user_error(err::kPeerGarbage, "the answer has no " + std::string(key), place,
                        "compare the versions of the node and of this program");
  const Json shown = with_text(answer, model);
  if (args.on(flags::kJson))
    MC_CHECK(write_all(1, shown.dump() + "\n"));
  else
    MC_CHECK(write_foreign(1, answer_text(shown)));
  return 0;
}

}  // namespace mc::verbs

// Requests of the OpenAI API, vLLM's extras and this server's own, field by field.
#include <algorithm>
#include <map>
#include <utility>

#include "base/units.h"
#include "http/fields.h"
#include "http/openai.h"

namespace mc::http {
namespace {

constexpr size_t kMembersMax = 1000;  // members of the top object; each known field costs one search over them
constexpr size_t kMessagesMax = 8192;
constexpr size_t kStopsMax = 32, kStopBytesMax = 1024;
constexpr size_t kNameBytesMax = 256;
constexpr int64_t kTokensMax = int64_t{1} << 31;
constexpr int64_t kMillisMax = int64_t{7} * 24 * 3600 * 1000;

Result<Json> parse_object(std::string_view body, const JsonLimits& limits) {
  if (const auto bad = find_invalid_utf8(body))
    return user_error(err::kInputNotUtf8, "the body is not valid UTF-8 at byte " + std::to_string(*bad));
  auto json = Json::parse(body, limits);
  if (!json && json.error().code == Code::no_space) return user_error(err::kNotEnoughMemory, json.error().what);
  if (!json) return user_error(err::kMalformedJson, "the body is not JSON: " + json.error().what);
  if (!json->is_object())
    return user_error(err::kMalformedJson, "the body must be a JSON object, not " + std::string(json->kind_name()));
  if (json->members().size() > kMembersMax)
    return user_error(err::kMalformedJson, "the body has more than " + std::to_string(kMembersMax) + " fields");
  return std::move(*json);
}

void read_logit_bias(Fields& f, const ApiLimits& limits, SamplingFields& out) {
  const Json* bias = f.object("logit_bias");
  if (!bias || bias->size() == 0) return;
  if (!limits.has_logit_bias) return f.fail_unsupported("logit_bias", "this server cannot bias tokens");
  if (bias->size() > 1024) return f.fail("logit_bias", "must have at most 1024 tokens");
  const uint64_t last = limits.vocab_size > 0 ? limits.vocab_size - 1 : kTokensMax - 1;
  for (const JsonMember& member : bias->members()) {
    const auto id = parse_u64(member.key, 0, last);
    const double value = member.value.as_double(1e9);
    const std::string name = "\"" + member.key.substr(0, 40) + "\"";
    if (!id) return f.fail("logit_bias", "has the key " + name + ", not a token id from 0 to " + std::to_string(last));
    if (!(value >= -100 && value <= 100))
      return f.fail("logit_bias", "must give token " + name + " a number from -100 to 100");
    out.logit_bias.emplace_back(static_cast<uint32_t>(*id), value);
  }
}

void read_sampling(Fields& f, const ApiLimits& limits, SamplingFields& out) {
  f.real("temperature", 0, 100, out.temperature);
  f.real("top_p", 0, 1, out.top_p);
  if (out.top_p == 0.0) f.fail("top_p", "must be above 0");
  f.integer("top_k", -1, kTokensMax, out.top_k);
  f.real("min_p", 0, 1, out.min_p);
  if (out.min_p.value_or(0) != 0 && !limits.has_min_p) f.fail_unsupported("min_p", "use top_p or top_k");
  f.real("presence_penalty", -2, 2, out.presence_penalty);
  f.real("frequency_penalty", -2, 2, out.frequency_penalty);
  f.real("repetition_penalty", 0.01, 100, out.repetition_penalty);
  if (!limits.has_penalties) {
    constexpr std::string_view kWhy = "this server cannot penalise repetition";
    if (out.presence_penalty.value_or(0) != 0) f.fail_unsupported("presence_penalty", kWhy);
    if (out.frequency_penalty.value_or(0) != 0) f.fail_unsupported("frequency_penalty", kWhy);
    if (out.repetition_penalty.value_or(1) != 1) f.fail_unsupported("repetition_penalty", kWhy);
  }
  f.integer("seed", INT64_MIN, INT64_MAX, out.seed);
  f.integer("max_tokens", 0, kTokensMax, out.max_tokens);
  f.integer("min_tokens", 0, kTokensMax, out.min_tokens);
  f.boolean("ignore_eos", out.ignore_eos);
  f.strings("stop", kStopsMax, kStopBytesMax, out.stop);
  f.token_ids("stop_token_ids", 256, limits.vocab_size, out.stop_token_ids);
  f.boolean("include_stop_str_in_output", out.include_stop_str_in_output);
  f.boolean("skip_special_tokens", out.skip_special_tokens);
  f.integer("n", 1, limits.sequences_max, out.n);
  f.integer("prompt_logprobs", 0, limits.logprobs_max, out.prompt_logprobs);
  read_logit_bias(f, limits, out);
}

void refuse_unsupported(Fields& f) {
  constexpr std::string_view kNoGrammar = "response_format forces an answer into a JSON schema";
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                           "structural_tag", "guided_decoding_backend"})
    f.refuse(name, kNoGrammar);
  f.refuse("use_beam_search", "answers are sampled");
  f.refuse("length_penalty", "only beam search uses it");
  f.refuse("allowed_token_ids", "use logit_bias or top_k");
  f.refuse("bad_words", "use stop");
  f.refuse("logits_processors", "nothing from a request is executed");
  f.refuse("kv_transfer_params", "the conductor decides where KV goes");
  f.accept({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention", "spaces_between_special_tokens", "detokenize", "request_id"});
}

void read_format(Fields& f, ResponseFormat& out) {
  const Json* format = f.object("response_format");
  if (!format || format->size() == 0) return;
  const std::string_view type = (*format)["type"].as_string();
  if (type == "text") return;
  if (type == "json_object") {
    out.kind = ResponseFormat::Kind::json_object;
    return;
  }
  if (type != "json_schema") return f.fail("response_format.type", "must be text, json_object or json_schema");
  const Json& named = (*format)["json_schema"];
  if (!named.is_object() || !named.has("schema"))
    return f.fail("response_format.json_schema", "must be an object with a schema");
  if (const Json& strict = named["strict"]; !strict.is_null() && !strict.is_bool())
    return f.fail("response_format.json_schema.strict", "must be true or false");
  out.kind = ResponseFormat::Kind::json_schema;
  out.schema = named["schema"];
  out.strict = named["strict"].as_bool();
}

/// An answer that is forced into a form ends where the form does.
void check_forced(Fields& f, const GenerateRequest& request) {
  const bool is_call =
      request.chat.tool_choice == ToolChoice::required || request.chat.tool_choice == ToolChoice::named;
  if (request.format.kind == ResponseFormat::Kind::text && !is_call) return;
  const std::string with = is_call ? "tool_choice" : "response_format";
  if (request.sampling.ignore_eos) f.fail("ignore_eos", "cannot be combined with " + with);
  if (request.sampling.min_tokens > 0) f.fail("min_tokens", "cannot be combined with " + with);
  if (!request.sampling.stop_token_ids.empty()) f.fail("stop_token_ids", "cannot be combined with " + with);
}

void read_stream(Fields& f, GenerateRequest& out) {
  f.boolean("stream", out.stream);
  const Json* options = f.object("stream_options");
  if (!options) return;
  Fields inner(*options, "stream_options.");
  inner.boolean("include_usage", out.include_usage);
  inner.boolean("continuous_usage_stats", out.continuous_usage);
  inner.accept({"include_obfuscation"});
  f.adopt(inner);
  if (!out.stream && (out.include_usage || out.continuous_usage)) f.fail("stream_options", "needs \"stream\": true");
  // Continuous usage without the final chunk would be useless to the client.
  out.include_usage = out.include_usage || out.continuous_usage;
}

std::optional<Duration> milliseconds(const std::optional<int64_t>& value) {
  if (!value) return std::nullopt;
  return std::chrono::milliseconds(*value);
}

void read_mc_object(Fields& f, McFields& out, std::vector<std::string>& ignored) {
  const Json* mc = f.object("mc");
  if (!mc) return;
  Fields inner(*mc, "mc.");
  std::optional<int64_t> deadline_ms, ttft_ms, tbt_ms;
  inner.integer("deadline_ms", 1, kMillisMax, deadline_ms);
  inner.integer("ttft_slo_ms", 1, kMillisMax, ttft_ms);
  inner.integer("tbt_slo_ms", 1, kMillisMax, tbt_ms);
  out.deadline = milliseconds(deadline_ms);
  out.ttft_slo = milliseconds(ttft_ms);
  out.tbt_slo = milliseconds(tbt_ms);
  inner.boolean("no_cache", out.no_cache);
  inner.boolean("explain", out.explain);
  inner.boolean("split_reasoning", out.split_reasoning);
  inner.string("session", kNameBytesMax, out.session);
  inner.string("attention", kNameBytesMax, out.attention);
  if (const Json* pin = inner.object("pin")) {
    constexpr std::string_view kPin = "mc.pin.";
    Fields pins(*pin, std::string(kPin));
    pins.string("prefill", kNameBytesMax, out.pin_prefill);
    pins.string("decode", kNameBytesMax, out.pin_decode);
    // A misspelt pin is an error, because a client could not see that it has no effect.
    for (const std::string& name : pins.ignored())
      pins.fail(std::string_view(name).substr(kPin.size()), "is not a field of mc.pin; there are prefill and decode");
    inner.adopt(pins);
  }
  f.adopt(inner);
  for (std::string& name : inner.ignored()) ignored.push_back(std::move(name));
}

Result<void> read_mc_headers(const Headers& headers, McFields& out, std::vector<std::string>& ignored) {
  constexpr std::string_view kPrefix = "x-mc-";
  for (const Header& header : headers) {
    if (header.name.size() <= kPrefix.size() || !iequals(header.name.substr(0, kPrefix.size()), kPrefix)) continue;
    const std::string_view name = std::string_view(header.name).substr(kPrefix.size());
    const auto bad = [&](std::string_view what) {
      return user_error(err::kInvalidField, header.name + " " + std::string(what), header.name);
    };
    const auto duration = [&](std::optional<Duration>& target) -> Result<void> {
      const auto value = parse_i64(header.value, 1, kMillisMax);
      if (!value) return bad("must be an integer from 1 to " + std::to_string(kMillisMax));
      target = std::chrono::milliseconds(*value);
      return {};
    };
    const auto flag = [&](bool& target) -> Result<void> {
      const auto value = parse_bool(header.value);
      if (!value) return bad("must be true or false");
      target = *value;
      return {};
    };
    const auto text = [&](std::string& target) -> Result<void> {
      if (header.value.size() > kNameBytesMax || find_invalid_utf8(header.value))
        return bad("must be UTF-8 of at most " + std::to_string(kNameBytesMax) + " bytes");
      target = header.value;
      return {};
    };
    if (iequals(name, "deadline-ms"))
      MC_CHECK(duration(out.deadline));
    else if (iequals(name, "ttft-slo-ms"))
      MC_CHECK(duration(out.ttft_slo));
    else if (iequals(name, "tbt-slo-ms"))
      MC_CHECK(duration(out.tbt_slo));
    else if (iequals(name, "no-cache"))
      MC_CHECK(flag(out.no_cache));
    else if (iequals(name, "explain"))
      MC_CHECK(flag(out.explain));
    else if (iequals(name, "session"))
      MC_CHECK(text(out.session));
    else if (iequals(name, "attention"))
      MC_CHECK(text(out.attention));
    else if (iequals(name, "pin-prefill"))
      MC_CHECK(text(out.pin_prefill));
    else if (iequals(name, "pin-decode"))
      MC_CHECK(text(out.pin_decode));
    else if (name.size() >= 3 && iequals(name.substr(0, 3), "pin"))
      return user_error(
          err::kInvalidField,
          header.name.substr(0, 64) + " is not a header of this server; there are x-mc-pin-prefill and x-mc-pin-decode",
          header.name.substr(0, 64));
    else if (ignored.size() < 32)
      ignored.push_back(header.name.substr(0, 64));
  }
  return {};
}

void read_common(Fields& f, const ApiLimits& limits, GenerateRequest& out) {
  f.string("model", kNameBytesMax, out.model);
  read_sampling(f, limits, out.sampling);
  read_stream(f, out);
  read_format(f, out.format);
  f.boolean("return_token_ids", out.return_token_ids);
  f.boolean("add_special_tokens", out.add_special_tokens);
  f.string("cache_salt", kNameBytesMax, out.cache_salt);
  f.integer("priority", -kPriorityMax, kPriorityMax, out.priority);
  f.integer("truncate_prompt_tokens", 1, kTokensMax, out.truncate_prompt_tokens);
  refuse_unsupported(f);
}

/// Makes the last checks, which need several fields.
Result<GenerateRequest> finish(Fields& f, const Headers& headers, GenerateRequest out) {
  std::vector<std::string> mc_ignored;
  if (out.sampling.max_tokens == 0u && !out.echo)
    f.fail("max_tokens", out.is_chat ? "must be at least 1"
                                     : "must be at least 1; 0 needs \"echo\": true, which gives the prompt back");
  if (out.stream && out.sampling.prompt_logprobs)
    f.fail("prompt_logprobs", "cannot be streamed; use echo with logprobs, or no stream");
  read_mc_object(f, out.mc, mc_ignored);
  if (out.sampling.max_tokens && out.sampling.min_tokens > *out.sampling.max_tokens)
    f.fail("min_tokens", "must not exceed max_tokens (" + std::to_string(*out.sampling.max_tokens) + ")");
  check_forced(f, out);
  MC_CHECK(f.status());
  out.ignored = f.ignored();
  for (std::string& name : mc_ignored) out.ignored.push_back(std::move(name));
  MC_CHECK(read_mc_headers(headers, out.mc, out.ignored));
  return out;
}

void read_prompts(Fields& f, std::string_view name, const ApiLimits& limits, GenerateRequest& out) {
  const Json* prompt = f.take(name);
  if (!prompt) return f.fail(name, "is required");
  const auto add_ids = [&](const Json& list) {
    Prompt ids;
    ids.is_ids = true;
    if (list.size() == 0 || !read_token_ids(list, limits.json.values, limits.vocab_size, ids.ids)) {
      f.fail(name, "must be text or a list of token ids" +
                       (limits.vocab_size > 0 ? " below " + std::to_string(limits.vocab_size) : std::string()));
      return false;
    }
    out.prompts.push_back(std::move(ids));
    return true;
  };
  if (prompt->is_string()) {
    out.prompts.push_back({.text = std::string(prompt->as_string())});
  } else if (prompt->is_array() && prompt->size() > 0 && (*prompt)[0].is_number()) {
    if (!add_ids(*prompt)) return;
  } else if (prompt->is_array() && prompt->size() > 0) {
    if (prompt->size() > static_cast<size_t>(limits.sequences_max))
      return f.fail(name, "must have at most " + std::to_string(limits.sequences_max) + " prompts");
    for (const Json& item : prompt->items()) {
      if (item.is_string())
        out.prompts.push_back({.text = std::string(item.as_string())});
      else if (!add_ids(item))
        return;
    }
  } else {
    return f.fail(name, "must be a string, a list of strings, a list of token ids or a list of such lists");
  }
  if (out.prompts.size() * static_cast<size_t>(out.answers()) > static_cast<size_t>(limits.sequences_max))
    f.fail(out.best_of ? "best_of" : "n",
           "times the number of prompts must not exceed " + std::to_string(limits.sequences_max));
}

/// Reads a message's content. Returns the fault, or "" when there is none.
std::string read_content(const Json& content, std::string& out) {
  if (content.is_string()) {
    out = content.as_string();
    return {};
  }
  if (!content.is_array()) return "must be a string or a list of parts";
  for (const Json& part : content.items()) {
    const std::string_view type = part["type"].as_string();
    if (type != "text" && type != "refusal") {
      if (!part.is_object() || type.empty()) return "must be a string or a list of parts with a type";
      return "has a part of type \"" + std::string(type.substr(0, 40)) + "\"; only text is supported";
    }
    const Json& text = part[type];
    if (!text.is_string()) return "has a " + std::string(type) + " part without " + std::string(type);
    if (&part != content.items().data()) out += '\n';
    out += text.as_string();
  }
  return {};
}

void read_messages(Fields& f, std::vector<ChatMessage>& out) {
  const Json* messages = f.array("messages");
  if (!f.is_ok()) return;
  if (!messages || messages->size() == 0) return f.fail("messages", "must be a list of at least one message");
  if (messages->size() > kMessagesMax)
    return f.fail("messages", "must have at most " + std::to_string(kMessagesMax) + " messages");
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string at = "messages[" + std::to_string(i) + "]";
    const Json& item = (*messages)[i];
    if (!item.is_object() || item.size() > 64) return f.fail(at, "must be an object");
    ChatMessage message;
    message.role = item["role"].as_string();
    if (std::find(std::begin(kRoles), std::end(kRoles), message.role) == std::end(kRoles))
      return f.fail(at + ".role", "must be system, developer, user, assistant or tool");
    message.tool_calls = item["tool_calls"];
    if (!message.tool_calls.is_null() && !message.tool_calls.is_array())
      return f.fail(at + ".tool_calls", "must be a list");
    const bool may_lack_content = message.role == "assistant" && message.tool_calls.size() > 0;
    if (const Json& content = item["content"]; !content.is_null()) {
      if (const std::string wrong = read_content(content, message.content); !wrong.empty())
        return f.fail(at + ".content", wrong);
    } else if (const Json& refusal = item["refusal"]; message.role == "assistant" && refusal.is_string()) {
      message.content = refusal.as_string();
    } else if (!may_lack_content) {
      return f.fail(at + ".content", "is required");
    }
    message.name = item["name"].as_string();
    message.tool_call_id = item["tool_call_id"].as_string();
    message.reasoning_content = item["reasoning_content"].as_string();
    out.push_back(std::move(message));
  }
}

const Json* tool_named(const Json& tools, std::string_view name) {
  for (const Json& tool : tools.items())
    if (tool["function"]["name"].as_string() == name) return &tool;
  return nullptr;
}

/// Reads a tool_choice of type allowed_tools, which keeps some tools and a mode.
void read_allowed_tools(Fields& f, const Json& allowed, GenerateRequest& out) {
  const std::string_view mode = allowed["mode"].as_string();
  if (mode != "auto" && mode != "required")
    return f.fail("tool_choice", "needs the allowed_tools.mode auto or required");
  // A request may have 100,000 tools and as many names. Clients choose the names, so no hash table keeps them.
  std::map<std::string_view, const Json*> tools;  // by name; of two tools of one name the first counts
  for (const Json& tool : out.chat.tools.items()) tools.emplace(tool["function"]["name"].as_string(), &tool);
  Json kept = Json::array();
  for (const Json& wanted : allowed["tools"].items()) {
    const std::string_view name = wanted["function"]["name"].as_string();
    const auto tool = tools.find(name);
    if (tool == tools.end())
      return f.fail("tool_choice", "allows \"" + std::string(name.substr(0, 64)) + "\", which is none of the tools");
    if (const Json* unused = std::exchange(tool->second, nullptr)) kept.push(*unused);
  }
  if (kept.size() == 0) return f.fail("tool_choice", "needs a list allowed_tools.tools of at least one tool");
  out.chat.tools = std::move(kept);
  if (mode == "required") out.chat.tool_choice = ToolChoice::required;
}

void read_tool_choice(Fields& f, const Json& choice, GenerateRequest& out) {
  const std::string_view text = choice.as_string(), type = choice["type"].as_string();
  if (text == "none")
    out.chat.tools = Json(), out.chat.tool_choice = ToolChoice::none;
  else if (text == "required")
    out.chat.tool_choice = ToolChoice::required;
  else if (type == "function")
    out.chat.tool_choice = ToolChoice::named, out.chat.tool_name = choice["function"]["name"].as_string();
  else if (type == "allowed_tools")
    read_allowed_tools(f, choice["allowed_tools"], out);
  else if (text != "auto")
    f.fail("tool_choice",
           "must be none, auto, required, {\"type\":\"function\",\"function\":{\"name\":...}} or "
           "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":...,\"tools\":[...]}}");
}

void read_tools(Fields& f, const ApiLimits& limits, GenerateRequest& out) {
  if (const Json* tools = f.array("tools"); tools && tools->size() > 0) {
    if (!limits.has_tools) return f.fail_unsupported("tools", "this model's chat template does not support tools");
    for (size_t i = 0; i < tools->size(); ++i)
      if (const std::string_view type = (*tools)[i]["type"].as_string(); !type.empty() && type != "function")
        return f.fail("tools[" + std::to_string(i) + "].type",
                      "must be function, not \"" + std::string(type.substr(0, 40)) + "\"");
    out.chat.tools = *tools;
  }
  if (const Json* choice = f.take("tool_choice")) read_tool_choice(f, *choice, out);
  if (out.chat.tool_choice != ToolChoice::required && out.chat.tool_choice != ToolChoice::named) return;
  if (out.chat.tools.size() == 0) return f.fail("tool_choice", "needs tools");
  if (out.chat.tool_choice == ToolChoice::named && !tool_named(out.chat.tools, out.chat.tool_name))
    f.fail("tool_choice", "names \"" + out.chat.tool_name.substr(0, 64) + "\", which is none of the tools");
}

void read_chat_logprobs(Fields& f, const ApiLimits& limits, SamplingFields& out) {
  bool wants = false;
  int top = 0;
  f.boolean("logprobs", wants);
  f.integer("top_logprobs", 0, limits.logprobs_max, top);
  if (top > 0 && !wants) f.fail("top_logprobs", "needs \"logprobs\": true");
  if (wants) out.logprobs = top;
}

Result<GenerateRequest> read_completion(const Json& json, const Headers& headers, const ApiLimits& limits) {
  GenerateRequest out;
  Fields f(json);
  read_common(f, limits, out);
  f.integer("best_of", 1, limits.sequences_max, out.best_of);
  if (out.best_of && *out.best_of < out.sampling.n)
    f.fail("best_of", "must be at least n (" + std::to_string(out.sampling.n) + ")");
  if (out.stream && out.answers() > out.sampling.n)
    f.fail("best_of", "above n cannot be streamed: the best answers are known only at their end");
  read_prompts(f, "prompt", limits, out);
  f.integer("logprobs", 0, limits.logprobs_max, out.sampling.logprobs);
  f.boolean("echo", out.echo);
  f.refuse("suffix", "text cannot be inserted before an end");
  if (!out.sampling.max_tokens) {
    constexpr uint32_t kDefault = 16;  // the default of OpenAI
    out.sampling.max_tokens = std::max(kDefault, out.sampling.min_tokens);
  }
  return finish(f, headers, std::move(out));
}

Result<GenerateRequest> read_chat(const Json& json, const Headers& headers, const ApiLimits& limits) {
  GenerateRequest out;
  out.is_chat = true;
  Fields f(json);
  read_common(f, limits, out);
  std::optional<uint32_t> completion_tokens;
  f.integer("max_completion_tokens", 1, kTokensMax, completion_tokens);
  if (completion_tokens) out.sampling.max_tokens = completion_tokens;  // max_tokens is its deprecated name
  read_messages(f, out.chat.messages);
  read_tools(f, limits, out);
  f.refuse("functions", "use tools");
  f.refuse("function_call", "use tools");
  f.accept({"parallel_tool_calls"});
  read_chat_logprobs(f, limits, out.sampling);
  f.boolean("add_generation_prompt", out.chat.add_generation_prompt);
  f.boolean("continue_final_message", out.chat.continue_final_message);
  if (out.chat.continue_final_message && out.chat.add_generation_prompt) {
    const Json* given = json.find("add_generation_prompt");
    if (given && given->as_bool()) f.fail("continue_final_message", "cannot be combined with add_generation_prompt");
    out.chat.add_generation_prompt = false;
  }
  if (const Json* kwargs = f.object("chat_template_kwargs")) out.chat.template_kwargs = *kwargs;
  f.refuse("chat_template", "the model's own template is used");
  f.refuse("documents", "put the text into a message");
  f.refuse("audio", "messages are text");
  f.refuse("web_search_options", "there is no web search");
  f.refuse("echo", "the answer holds new text only");
  std::optional<int> best_of;
  f.integer("best_of", 1, limits.sequences_max, best_of);
  if (best_of && *best_of != out.sampling.n)
    f.fail_unsupported("best_of", "answers of a chat are not ranked; /v1/completions ranks them");
  if (const Json* modalities = f.array("modalities"))
    for (const Json& item : modalities->items())
      if (item.as_string() != "text") f.fail_unsupported("modalities", "messages are text");
  return finish(f, headers, std::move(out));
}

}  // namespace

Result<GenerateRequest> parse_completion(std::string_view body, const Headers& headers, const ApiLimits& limits) {
  MC_TRY(json, parse_object(body, limits.json));
  return read_completion(json, headers, limits);
}

Result<GenerateRequest> parse_chat(std::string_view body, const Headers& headers, const ApiLimits& limits) {
  MC_TRY(json, parse_object(body, limits.json));
  return read_chat(json, headers, limits);
}

Result<GenerateRequest> parse_either(std::string_view body, const Headers& headers, const ApiLimits& limits) {
  MC_TRY(json, parse_object(body, limits.json));
  return json.has("messages") ? read_chat(json, headers, limits) : read_completion(json, headers, limits);
}

Result<GenerateRequest> parse_embedding(std::string_view body, const Headers& headers, const ApiLimits& limits) {
  MC_TRY(json, parse_object(body, limits.json));
  GenerateRequest out;
  out.embeds = true;
  Fields f(json);
  f.string("model", kNameBytesMax, out.model);
  read_prompts(f, "input", limits, out);
  std::string format = "float";
  f.string("encoding_format", 16, format);
  if (format != "float" && format != "base64") f.fail("encoding_format", "must be float or base64");
  out.as_base64 = format == "base64";
  f.refuse("dimensions", "a vector has the size of the model's hidden state");
  f.boolean("add_special_tokens", out.add_special_tokens);
  f.string("cache_salt", kNameBytesMax, out.cache_salt);
  f.integer("priority", -kPriorityMax, kPriorityMax, out.priority);
  f.integer("truncate_prompt_tokens", 1, kTokensMax, out.truncate_prompt_tokens);
  f.accept({"user"});
  read_mc_object(f, out.mc, out.ignored);
  MC_CHECK(f.status());
  for (std::string& name : f.ignored()) out.ignored.push_back(std::move(name));
  MC_CHECK(read_mc_headers(headers, out.mc, out.ignored));
  out.sampling.max_tokens = 0;  // the one token that is drawn is not told
  return out;
}

Result<TokenizeRequest> parse_tokenize(std::string_view body, const ApiLimits& limits) {
  MC_TRY(json, parse_object(body, limits.json));
  TokenizeRequest out;
  Fields f(json);
  f.string("model", kNameBytesMax, out.model);
  f.boolean("add_special_tokens", out.add_special_tokens);
  f.boolean("add_generation_prompt", out.add_generation_prompt);
  f.accept({"return_token_strs"});
  if (json.has("messages")) {
    read_messages(f, out.messages);
  } else {
    if (!json.has("prompt")) f.fail("prompt", "is required");
    f.string("prompt", limits.json.bytes, out.prompt);
  }
  MC_CHECK(f.status());
  out.ignored = f.ignored();
  return out;
}

Result<DetokenizeRequest> parse_detokenize(std::string_view body, const ApiLimits& limits) {
  MC_TRY(json, parse_object(body, limits.json));
  DetokenizeRequest out;
  Fields f(json);
  f.string("model", kNameBytesMax, out.model);
  if (!json["tokens"].is_array()) f.fail("tokens", "must be a list of token ids");
  f.token_ids("tokens", limits.json.values, limits.vocab_size, out.tokens);
  MC_CHECK(f.status());
  out.ignored = f.ignored();
  return out;
}

Result<AdminRequest> parse_admin(std::string_view body, const Headers& headers) {
  if (!find_header(headers, "origin").empty())
    return user_error(err::kUnauthorized, "requests from web pages (with an Origin header) are refused");
  MC_TRY(json,
         parse_object(body.empty() ? std::string_view("{}") : body, {.bytes = 64 << 10, .depth = 8, .values = 1000}));
  AdminRequest out;
  Fields f(json);
  f.string("node", 64, out.node);
  f.string("role", 16, out.role);
  if (!out.role.empty() && out.role != "prefill" && out.role != "decode" && out.role != "cache")
    f.fail("role", "must be prefill, decode or cache");
  // A misspelt field of a command that changes the cluster is an error, so that the command does not run with a
  // default instead.
  for (const std::string& name : f.ignored()) f.fail(name, "is not a field of this command");
  MC_CHECK(f.status());
  return out;
}

}  // namespace mc::http

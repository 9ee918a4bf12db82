#include "http/openai.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "test.h"

using namespace mc;
using namespace mc::http;

namespace {

GenerateRequest completion(std::string_view body, const Headers& headers = {}, const ApiLimits& limits = {}) {
  auto request = parse_completion(body, headers, limits);
  REQUIRE_OK(request);
  return std::move(*request);
}

GenerateRequest chat(std::string_view fields, const Headers& headers = {}, const ApiLimits& limits = {}) {
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}";
  auto request = parse_chat(body, headers, limits);
  REQUIRE_OK(request);
  return std::move(*request);
}

struct Refused {
  int status;
  std::string code, param, message;
};

template <class T>
Refused refused(const Result<T>& result) {
  REQUIRE_FALSE(result);
  const Response response = error_response(result.error());
  const auto json = Json::parse(response.body);
  REQUIRE_OK(json);
  const Json& error = (*json)["error"];
  return {response.status, std::string(error["code"].as_string()), std::string(error["param"].as_string()),
          std::string(error["message"].as_string())};
}

Refused bad_completion(std::string_view body, const Headers& headers = {}, const ApiLimits& limits = {}) {
  return refused(parse_completion(body, headers, limits));
}
/// A completion with one more field.
Refused bad_field(std::string_view field) {
  return bad_completion(R"({"prompt":"x",)" + std::string(field) + "}");
}
Refused bad_chat(std::string_view body) {
  return refused(parse_chat(body, {}, {}));
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

TEST_CASE("http/openai: a completion's prompt is text, ids, or a list of either") {
  CHECK(completion(R"({"prompt":"Once upon"})").prompts[0].text == "Once upon");
  CHECK(completion(R"({"prompt":["a","b"]})").prompts[1].text == "b");
  CHECK(completion(R"({"prompt":[5,17,9]})").prompts[0].ids == std::vector<uint32_t>{5, 17, 9});
  const auto lists = completion(R"({"prompt":[[1,2],[3]]})");
  CHECK(lists.prompts.size() == 2);
  CHECK(lists.prompts[1].ids == std::vector<uint32_t>{3});
  CHECK(completion(R"({"prompt":""})").prompts[0].text.empty());
  for (const char* bad : {R"({})", R"({"prompt":null})", R"({"prompt":7})", R"({"prompt":[]})", R"({"prompt":[[]]})",
                          R"({"prompt":[1,"a"]})", R"({"prompt":[1.5]})", R"({"prompt":[-1]})", R"({"prompt":{}})"}) {
    INFO(bad);
    CHECK(bad_completion(bad).param == "prompt");
  }
  CHECK(contains(bad_completion(R"({"prompt":[100]})", {}, {.vocab_size = 100}).message, "below 100"));
}

TEST_CASE("http/openai: a body that may be either is a chat where it has messages") {
  const auto either = [](const char* body) { return parse_either(body, {}, ApiLimits{.vocab_size = 100}); };
  const auto completion = either(R"({"prompt":"x","max_tokens":3})");
  const auto chat = either(R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3})");
  REQUIRE_OK(completion);
  REQUIRE_OK(chat);
  CHECK_FALSE(completion->is_chat);
  CHECK(chat->is_chat);
  CHECK(either("{").error().mc == err::kMalformedJson);
}

TEST_CASE("http/openai: every sampling field arrives, null means absent") {
  const auto request = completion(
      R"({"prompt":"x","model":"m","temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"presence_penalty":1,)"
      R"("frequency_penalty":-1,"repetition_penalty":1.1,"seed":-7,"max_tokens":99,"min_tokens":3,"ignore_eos":true,)"
      R"("stop":["a","b"],"stop_token_ids":[2],"include_stop_str_in_output":true,"skip_special_tokens":false,)"
      R"("logit_bias":{"5":-100},"logprobs":2,"n":3,"best_of":3,"echo":false,"suffix":null,"user":"u",)"
      R"("return_token_ids":true,"cache_salt":"s","priority":-2,"truncate_prompt_tokens":10,)"
      R"("add_special_tokens":false})",
      {}, {.has_min_p = true, .has_penalties = true, .has_logit_bias = true});
  const SamplingFields& s = request.sampling;
  CHECK(s.temperature == 0.5);
  CHECK(s.top_p == 0.9);
  CHECK(s.top_k == 40);
  CHECK(s.min_p == 0.05);
  CHECK(s.presence_penalty == 1.0);
  CHECK(s.frequency_penalty == -1.0);
  CHECK(s.repetition_penalty == 1.1);
  CHECK(s.seed == -7);
  CHECK(s.max_tokens == 99u);
  CHECK(s.min_tokens == 3);
  CHECK(s.ignore_eos);
  CHECK(s.stop == std::vector<std::string>{"a", "b"});
  CHECK(s.stop_token_ids == std::vector<uint32_t>{2});
  CHECK(s.include_stop_str_in_output);
  CHECK_FALSE(s.skip_special_tokens);
  CHECK(s.logit_bias == std::vector<std::pair<uint32_t, double>>{{5, -100.0}});
  CHECK(s.logprobs == 2);
  CHECK(s.n == 3);
  CHECK(request.return_token_ids);
  CHECK(request.cache_salt == "s");
  CHECK(request.priority == -2);
  CHECK(request.truncate_prompt_tokens == 10u);
  CHECK(request.add_special_tokens == false);
  CHECK(request.ignored.empty());

  const auto nulls =
      completion(R"({"prompt":"x","temperature":null,"seed":null,"stop":null,"logprobs":null,"n":null})");
  CHECK_FALSE(nulls.sampling.temperature);
  CHECK_FALSE(nulls.sampling.logprobs);
  CHECK(nulls.sampling.n == 1);
  CHECK(nulls.sampling.max_tokens == 16u);
}

TEST_CASE("http/openai: a number out of bounds or of another kind is refused with its field") {
  for (const auto& [field, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("temperature":-0.1)", "temperature"},
           {R"("temperature":"1")", "temperature"},
           {R"("temperature":1e300)", "temperature"},
           {R"("top_p":0)", "top_p"},
           {R"("top_p":1.01)", "top_p"},
           {R"("top_k":-2)", "top_k"},
           {R"("top_k":1.5)", "top_k"},
           {R"("max_tokens":0)", "max_tokens"},
           {R"("max_tokens":-5)", "max_tokens"},
           {R"("max_tokens":1e30)", "max_tokens"},
           {R"("max_tokens":true)", "max_tokens"},
           {R"("n":0)", "n"},
           {R"("n":65)", "n"},
           {R"("seed":1e40)", "seed"},
           {R"("logprobs":21)", "logprobs"},
           {R"("logprobs":true)", "logprobs"},
           {R"("presence_penalty":2.5)", "presence_penalty"},
           {R"("stop":"")", "stop"},
           {R"("stop":[1])", "stop"},
           {R"("stop_token_ids":["x"])", "stop_token_ids"},
           {R"("stream":1)", "stream"},
           {R"("min_tokens":17,"max_tokens":16)", "min_tokens"},
           {R"("ignore_eos":"yes")", "ignore_eos"},
           {R"("model":5)", "model"},
           {R"("priority":3000000000)", "priority"},
           {R"("stream_options":[])", "stream_options"},
           {R"("stream_options":{"include_usage":true})", "stream_options"},
           {R"("mc":{"deadline_ms":0})", "mc.deadline_ms"},
           {R"("mc":{"pin":{"prefill":1}})", "mc.pin.prefill"},
           {R"("mc":{"pin":{"prefil":"p0"}})", "mc.pin.prefil"},
           {R"("mc":{"pin":"p0"})", "mc.pin"},
           {R"("priority":101)", "priority"},
           {R"("priority":-101)", "priority"},
           {R"("mc":7)", "mc"},
           {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"}}) {
    INFO(field);
    const Refused refusal = bad_field(field);
    CHECK(refusal.status == 400);
    CHECK(refusal.code == "invalid_value");
    CHECK(refusal.param == name);
    CHECK(contains(refusal.message, name));
  }
}

TEST_CASE("http/openai: answers to choose from are at least as many as answers given, and never a stream") {
  const auto best = completion(R"({"prompt":"x","n":2,"best_of":5})");
  CHECK(best.answers() == 5);
  CHECK(completion(R"({"prompt":"x","n":2})").answers() == 2);
  CHECK(completion(R"({"prompt":"x","n":2,"best_of":2,"stream":true})").answers() == 2);
  CHECK(contains(bad_completion(R"({"prompt":"x","n":3,"best_of":2})").message, "best_of must be at least n (3)"));
  CHECK(contains(bad_completion(R"({"prompt":"x","best_of":2,"stream":true})").message, "cannot be streamed"));
  CHECK(bad_completion(R"({"prompt":["x","y"],"best_of":33})").param == "best_of");
  CHECK(bad_completion(R"({"prompt":"x","best_of":65})").param == "best_of");
}

TEST_CASE("http/openai: log-probabilities of the prompt are asked for by prompt_logprobs, or by echo with logprobs") {
  CHECK_FALSE(completion(R"({"prompt":"x","logprobs":4})").wanted_of_prompt());
  CHECK_FALSE(completion(R"({"prompt":"x","echo":true})").wanted_of_prompt());
  CHECK(completion(R"({"prompt":"x","prompt_logprobs":0})").wanted_of_prompt() == 0);
  CHECK(completion(R"({"prompt":"x","echo":true,"logprobs":4})").wanted_of_prompt() == 4);
  CHECK(completion(R"({"prompt":"x","echo":true,"logprobs":4,"prompt_logprobs":7})").wanted_of_prompt() == 7);
  CHECK(bad_completion(R"({"prompt":"x","prompt_logprobs":21})").param == "prompt_logprobs");
  CHECK(bad_completion(R"({"prompt":"x","prompt_logprobs":1,"stream":true})").param == "prompt_logprobs");
}

TEST_CASE("http/openai: no token at all may be asked for with echo alone") {
  CHECK(completion(R"({"prompt":"x","echo":true,"max_tokens":0})").sampling.max_tokens == 0u);
  CHECK(contains(bad_completion(R"({"prompt":"x","max_tokens":0})").message, "at least 1; 0 needs \"echo\""));
  const std::string chat = bad_chat(R"({"messages":[{"role":"user","content":"x"}],"max_tokens":0})").message;
  CHECK(contains(chat, "at least 1"));
  CHECK(!contains(chat, "echo"));  // which chats do not have
}

TEST_CASE("http/openai: a chat's answers are not ranked: best_of other than n is refused") {
  const std::string head = R"({"messages":[{"role":"user","content":"x"}],)";
  CHECK(bad_chat(head + R"("best_of":3})").param == "best_of");
  CHECK(bad_chat(head + R"("n":2,"best_of":3})").param == "best_of");
  REQUIRE_OK(parse_chat(head + R"("n":2,"best_of":2})", {}, {}));
}

TEST_CASE("http/openai: a bad logit_bias names the key or the token") {
  const ApiLimits limits{.vocab_size = 100, .has_logit_bias = true};
  const auto message = [&](const char* bias) {
    return bad_completion(R"({"prompt":"x","logit_bias":)" + std::string(bias) + "}", {}, limits).message;
  };
  CHECK(contains(message(R"({"3":1,"the":1})"), R"(the key "the", not a token id from 0 to 99)"));
  CHECK(contains(message(R"({"100":1})"), R"("100")"));
  CHECK(contains(message(R"({"7":-101})"), R"(token "7" a number from -100 to 100)"));
}

TEST_CASE("http/openai: log-probabilities of a prompt are written as vLLM does, null for the first token") {
  const auto request = completion(R"({"prompt":"x","prompt_logprobs":1})");
  Choice choice;
  const std::vector<PromptLogprob> rows = {{}, {{{7, "a", -0.5, 2}, {9, "b", -0.25, 1}}}};
  choice.prompt_logprobs = std::make_shared<const std::vector<PromptLogprob>>(rows);
  const auto body = Json::parse(answer_body({"cmpl-1", 1, "m", false}, request, {&choice, 1}, {}));
  REQUIRE_OK(body);
  CHECK((*body)["choices"][0]["prompt_logprobs"].dump() ==
        R"([null,{"7":{"logprob":-0.5,"rank":2,"decoded_token":"a"},)"
        R"("9":{"logprob":-0.25,"rank":1,"decoded_token":"b"}}])");
}

TEST_CASE("http/openai: what we do not have is refused by name, its neutral value accepted") {
  for (const auto& [field, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("suffix":"end")", "suffix"},
           {R"("use_beam_search":true)", "use_beam_search"},
           {R"("guided_json":{"a":1})", "guided_json"},
           {R"("min_p":0.1)", "min_p"},
           {R"("presence_penalty":0.5)", "presence_penalty"},
           {R"("logit_bias":{"1":1})", "logit_bias"},
           {R"("kv_transfer_params":{"a":1})", "kv_transfer_params"}}) {
    INFO(field);
    const Refused refusal = bad_field(field);
    CHECK(refusal.status == 400);
    CHECK(refusal.code == "unsupported_parameter");
    CHECK(refusal.param == name);
  }
  (void)completion(
      R"({"prompt":"x","suffix":"","best_of":1,"use_beam_search":false,"response_format":{"type":"text"},"min_p":0,)"
      R"("presence_penalty":0.0,"frequency_penalty":0,"repetition_penalty":1.0,"logit_bias":{},"guided_json":null})");
}

TEST_CASE("http/openai: a body that is not UTF-8, not JSON, not an object or too deep is refused") {
  const Refused utf8 = bad_completion("{\"prompt\":\"\xff\"}");
  CHECK(utf8.status == 400);
  CHECK(utf8.code == "invalid_utf8");
  CHECK(contains(utf8.message, "at byte 11"));
  CHECK(bad_completion("{\"prompt\":").code == "malformed_json");
  CHECK(contains(bad_completion("{\"prompt\":}").message, "byte 11"));
  CHECK(bad_completion("[]").code == "malformed_json");
  CHECK(bad_completion("").code == "malformed_json");
  CHECK(bad_completion(R"({"prompt":"x","prompt":"y"})").code == "malformed_json");
  CHECK(bad_completion(R"({"prompt":)" + std::string(100, '[') + std::string(100, ']') + "}").code == "malformed_json");
  std::string many = "{\"prompt\":\"x\"";
  for (int i = 0; i < 2000; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  CHECK(contains(bad_completion(many + "}").message, "more than 1000 fields"));
}

TEST_CASE("http/openai: unknown fields are ignored and reported, cleaned for logs") {
  const auto request =
      completion("{\"prompt\":\"x\",\"brand_new\":1,\"a\\nb\":2,\"mc\":{\"later\":1}}", {{"x-mc-new", "1"}});
  CHECK(request.ignored == std::vector<std::string>{"brand_new", "a?b", "mc.later", "x-mc-new"});
}

TEST_CASE("http/openai: the mc object and headers arrive, and a header wins") {
  const auto request = completion(
      R"({"prompt":"x","mc":{"deadline_ms":1500,"ttft_slo_ms":200,"tbt_slo_ms":50,)"
      R"("pin":{"prefill":"p1","decode":"d0"},)"
      R"("no_cache":true,"session":"s1","explain":true,"attention":"full"}})",
      {{"x-mc-deadline-ms", "900"}, {"X-MC-Pin-Prefill", "p0"}, {"x-mc-no-cache", "false"}, {"x-mc-session", "s2"}});
  CHECK(request.mc.deadline == Duration(900ms));
  CHECK(request.mc.ttft_slo == Duration(200ms));
  CHECK(request.mc.tbt_slo == Duration(50ms));
  CHECK(request.mc.pin_prefill == "p0");
  CHECK(request.mc.pin_decode == "d0");
  CHECK_FALSE(request.mc.no_cache);
  CHECK(request.mc.session == "s2");
  CHECK(request.mc.explain);
  CHECK(request.mc.attention == "full");
  CHECK(bad_completion(R"({"prompt":"x"})", {{"x-mc-deadline-ms", "soon"}}).param == "x-mc-deadline-ms");
  CHECK(bad_completion(R"({"prompt":"x"})", {{"x-mc-explain", "maybe"}}).param == "x-mc-explain");
  CHECK(bad_completion(R"({"prompt":"x"})", {{"x-mc-session", "\xff"}}).param == "x-mc-session");
  for (const char* name : {"x-mc-pin", "X-Mc-Pin-Prefil", "x-mc-pins"})
    CHECK(
        contains(bad_completion(R"({"prompt":"x"})", {{name, "p0"}}).message, "x-mc-pin-prefill and x-mc-pin-decode"));
}

TEST_CASE("http/openai: chat messages take text and text parts; other parts are refused by type") {
  const auto request = parse_chat(
      R"({"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"a"},)"
      R"({"type":"text","text":"b"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},)"
      R"({"role":"tool","content":"42","tool_call_id":"1","name":"f"}],"max_tokens":5,"max_completion_tokens":7,)"
      R"("logprobs":true,"top_logprobs":3,"chat_template_kwargs":{"enable_thinking":false},"stream":true,)"
      R"("stream_options":{"include_usage":true}})",
      {}, {});
  REQUIRE_OK(request);
  CHECK(request->chat.messages[1].content == "a\nb");
  CHECK(request->chat.messages[2].tool_calls.size() == 1);
  CHECK(request->chat.messages[3].tool_call_id == "1");
  CHECK(request->sampling.max_tokens == 7u);
  CHECK(request->sampling.logprobs == 3);
  CHECK(request->chat.template_kwargs["enable_thinking"].is_bool());
  CHECK(request->stream);
  CHECK(request->include_usage);

  const auto message = [](std::string_view text) { return bad_chat(R"({"messages":[)" + std::string(text) + "]}"); };
  CHECK(
      contains(message(R"({"role":"user","content":[{"type":"image_url","image_url":{}}]})").message, "\"image_url\""));
  CHECK(message(R"({"role":"robot","content":"x"})").param == "messages[0].role");
  CHECK(message(R"({"role":"user"})").param == "messages[0].content");
  CHECK(message(R"({"role":"user","content":"x"},7)").param == "messages[1]");
  CHECK(message("").param == "messages");
  CHECK(bad_chat("{}").param == "messages");
}

TEST_CASE("http/openai: a refusal that an assistant gave goes back as its text") {
  const auto content = [](std::string_view message) {
    const auto request = parse_chat(R"({"messages":[)" + std::string(message) + "]}", {}, {});
    return request ? request->chat.messages[0].content : "refused: " + refused(request).param;
  };
  CHECK(content(R"({"role":"assistant","content":null,"refusal":"no"})") == "no");
  CHECK(content(R"({"role":"assistant","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"b"}]})") ==
        "a\nb");
  CHECK(content(R"({"role":"assistant","content":"yes","refusal":null})") == "yes");
  CHECK(content(R"({"role":"assistant","content":null})") == "refused: messages[0].content");
  CHECK(content(R"({"role":"user","content":null,"refusal":"no"})") == "refused: messages[0].content");
}

TEST_CASE("http/openai: chat features beyond us are refused by name") {
  for (const auto& [field, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{R"("tools":[{"type":"function"}])", "tools"},
                                                                  {R"("functions":[{"name":"f"}])", "functions"},
                                                                  {R"("chat_template":"x")", "chat_template"},
                                                                  {R"("modalities":["audio"])", "modalities"},
                                                                  {R"("audio":{"voice":"a"})", "audio"}}) {
    INFO(field);
    const Refused refusal = bad_chat(R"({"messages":[{"role":"user","content":"x"}],)" + std::string(field) + "}");
    CHECK(refusal.code == "unsupported_parameter");
    CHECK(refusal.param == name);
  }
  CHECK(chat(R"(,"tools":[{"type":"function"}],"tool_choice":"auto")", {}, {.has_tools = true}).chat.tools.size() == 1);
  CHECK(chat(R"(,"tools":[],"tool_choice":"none","modalities":["text"])").chat.tools.is_null());
}

TEST_CASE("http/openai: allowed tools keep their tools and their mode") {
  const auto ask = [](const std::string& allowed) {
    return R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}},)"
           R"({"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":)" +
           allowed + "}}";
  };
  for (const char* mode : {"auto", "required"}) {
    const auto request = parse_chat(
        ask(R"({"mode":")" + std::string(mode) +
            R"(","tools":[{"function":{"name":"g"}},{"function":{"name":"g"}}]})"),
        {}, {.has_tools = true});
    REQUIRE_OK(request);
    REQUIRE(request->chat.tools.size() == 1);
    CHECK(request->chat.tools[0]["function"]["name"].as_string() == "g");
    CHECK((request->chat.tool_choice == ToolChoice::required) == (mode == std::string_view("required")));
  }
  for (const char* wrong : {R"({"mode":"auto","tools":[]})", R"({"mode":"auto"})", R"({"tools":[{}]})", "7",
                            R"({"mode":"auto","tools":[{"function":{"name":"h"}}]})"}) {
    INFO(wrong);
    const auto request = parse_chat(ask(wrong), {}, {.has_tools = true});
    CHECK(refused(request).param == "tool_choice");
  }
}

TEST_CASE("http/openai: tools that are no functions are refused by their type") {
  const auto request = parse_chat(
      R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"custom","custom":{"name":"f"}}]})", {},
      {.has_tools = true});
  CHECK(refused(request).param == "tools[0].type");
  CHECK(contains(refused(request).message, "\"custom\""));
}

TEST_CASE("http/openai: forms of an answer are read, and what contradicts them is refused by name") {
  const GenerateRequest schema = chat(
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"null"}}})");
  CHECK(schema.format.kind == ResponseFormat::Kind::json_schema);
  CHECK(schema.format.strict);
  CHECK(schema.format.schema.dump() == R"({"type":"null"})");
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)";
  CHECK(chat(tools + R"("required")", {}, {.has_tools = true}).chat.tool_choice == ToolChoice::required);
  const GenerateRequest named = chat(tools + R"({"type":"function","function":{"name":"f"}})", {}, {.has_tools = true});
  CHECK(named.chat.tool_choice == ToolChoice::named);
  CHECK(named.chat.tool_name == "f");
  for (const auto& [field, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("response_format":{"type":"xml"})", "response_format.type"},
           {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
           {R"("response_format":{"type":"json_object"},"ignore_eos":true)", "ignore_eos"},
           {R"("response_format":{"type":"json_object"},"min_tokens":2)", "min_tokens"},
           {R"("response_format":{"type":"json_object"},"stop_token_ids":[1])", "stop_token_ids"},
           {R"("tool_choice":"required")", "tool_choice"},
           {R"("tool_choice":"sometimes")", "tool_choice"}}) {
    INFO(field);
    const Refused refusal = bad_chat(R"({"messages":[{"role":"user","content":"x"}],)" + std::string(field) + "}");
    CHECK(refusal.code == "invalid_value");
    CHECK(refusal.param == name);
  }
}

TEST_CASE("http/openai: reasoning and calls have fields of their own, whole and streamed") {
  const GenerateRequest request = chat("");
  Choice choice;
  choice.reasoning = "why";
  choice.finish_reason = "tool_calls";
  choice.tool_calls.push_back({"call_1", "f", R"({"x":1})"});
  const auto body = Json::parse(answer_body({"chatcmpl-1", 1, "m", true}, request, {&choice, 1}, {}));
  REQUIRE_OK(body);
  CHECK((*body)["choices"][0]["message"].dump() ==
        R"({"role":"assistant","content":null,"reasoning_content":"why","tool_calls":[)"
        R"({"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]})");
  StreamWriter writer({"chatcmpl-1", 1, "m", true}, request);
  std::string out;
  writer.append_reasoning(out, 0, "why", {});
  choice.tool_calls[0].arguments = "{\"x\":\"" + std::string(1500, 'a') + "\xC3\xA9\"}";
  writer.append_call(out, 0, 0, choice.tool_calls[0], {});
  std::string arguments;
  size_t pieces = 0;
  for (size_t at = out.find("data: "); at != std::string::npos; at = out.find("data: ", at + 1)) {
    const auto chunk = Json::parse(out.substr(at + 6, out.find('\n', at) - at - 6));
    REQUIRE_OK(chunk);
    const Json& call = (*chunk)["choices"][0]["delta"]["tool_calls"][0];
    CHECK(call["index"].as_int(0) == 0);
    arguments += call["function"]["arguments"].as_string();
    pieces += call.is_object();
  }
  CHECK(arguments == choice.tool_calls[0].arguments);
  CHECK(pieces == 3);
}

TEST_CASE("http/openai: an embedding request is read, and its vectors are written as numbers or base64") {
  const auto request = parse_embedding(R"({"input":["a","b"],"encoding_format":"base64"})", {}, {});
  REQUIRE_OK(request);
  CHECK(request->prompts.size() == 2);
  CHECK(request->sampling.max_tokens == 0u);
  const auto refused = parse_embedding(R"({"input":"a","dimensions":8})", {}, {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(contains(refused.error().what, "dimensions"));
  Choice choice;
  choice.embedding = {0.5f, -0.25f};
  CHECK(contains(embedding_body({"e", 1, "m", false}, *request, {&choice, 1}, {}), R"("embedding":"AAAAPwAAgL4=")"));
  GenerateRequest numbers = *request;
  numbers.as_base64 = false;
  CHECK(contains(embedding_body({"e", 1, "m", false}, numbers, {&choice, 1}, {}), R"("embedding":[0.5,-0.25])"));
}

TEST_CASE("http/openai: tokenize takes text or messages, detokenize ids, admin a node and nothing unknown") {
  CHECK(parse_tokenize(R"({"model":"m","prompt":"a","add_special_tokens":false})", {})->add_special_tokens == false);
  CHECK(parse_tokenize(R"({"messages":[{"role":"user","content":"x"}]})", {})->messages.size() == 1);
  CHECK(refused(parse_tokenize("{}", {})).param == "prompt");
  CHECK(parse_detokenize(R"({"tokens":[1,2]})", {})->tokens == std::vector<uint32_t>{1, 2});
  CHECK(refused(parse_detokenize(R"({"tokens":[99]})", {.vocab_size = 10})).param == "tokens");
  CHECK(refused(parse_detokenize("{}", {})).param == "tokens");
  CHECK(parse_admin(R"({"node":"p1","role":"decode"})", {})->role == "decode");
  CHECK(parse_admin("", {})->node.empty());
  CHECK(refused(parse_admin(R"({"nod":"p1"})", {})).param == "nod");
  CHECK(refused(parse_admin(R"({"node":"p1","role":"king"})", {})).param == "role");
  CHECK(refused(parse_admin(R"({"node":"p1"})", {{"origin", "http://evil.example"}})).status == 401);
}

TEST_CASE("http/openai: rejections carry Retry-After, the predicted and the allowed time") {
  const Response response = rejection_response({.number = err::kPredictedSloMiss,
                                                .message = "the first token would come after 2184 ms",
                                                .bound = "ttft",
                                                .predicted = 2184ms,
                                                .allowed = 2000ms,
                                                .retry_after = 1200ms});
  CHECK(response.status == 429);
  CHECK(find_header(response.headers, "retry-after") == "2");
  CHECK(find_header(response.headers, "x-mc-reason") ==
        "predicted_slo_miss; bound=ttft; predicted_ms=2184; allowed_ms=2000");
  CHECK(rejection_response({.number = err::kNoPrefill, .message = "x", .retry_after = 0ms}).status == 503);
}

TEST_CASE("http/openai: answers and stream events are those of the golden file") {
  std::string text;
  const auto section = [&](std::string_view name, std::string_view body) {
    text += "# " + std::string(name) + "\n" + std::string(body) + (body.ends_with('\n') ? "" : "\n");
  };
  const Usage usage{.prompt_tokens = 12, .completion_tokens = 2, .cached_tokens = 0};
  const std::vector<TokenLogprob> logprobs = {{"Hé", -0.5, {{"Hé", -0.5}, {"\xc3", -1.25}}}, {"!", -INFINITY, {}}};
  const AnswerHead chat_head{answer_id(true, "req_01J"), 1700000000, "mc-tiny", true};
  const AnswerHead text_head{answer_id(false, "req_01J"), 1700000000, "mc-tiny", false};
  for (const bool full : {false, true}) {
    const std::string more =
        full ? R"(,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true})" : "";
    const auto as_chat = chat(more + (full ? R"(,"logprobs":true,"top_logprobs":2)" : ""));
    const auto as_text = completion(R"({"prompt":"x")" + more + (full ? R"(,"logprobs":2})" : "}"));
    Choice choice{.text = "Hé!", .finish_reason = "stop"};
    if (full)
      choice.logprobs = logprobs, choice.token_ids = {7, 8}, choice.prompt_token_ids = {1, 2},
      choice.stop_reason = "\n";
    const std::string suffix = full ? ", everything asked for" : "";
    section("chat answer" + suffix,
            answer_body(chat_head, as_chat, {&choice, 1}, usage, full ? Json::object({{"prefill", "p0"}}) : Json()));
    section("completion answer" + suffix, answer_body(text_head, as_text, {&choice, 1}, usage));
    for (const bool is_chat : {true, false}) {
      StreamWriter writer(is_chat ? chat_head : text_head, is_chat ? as_chat : as_text);
      std::string out;
      const std::vector<uint32_t> id = {7};
      writer.append_text(out, 0, "", usage);
      if (full) {
        writer.append_text(out, 0, "Hé", usage, {logprobs.data(), 1}, id);
        writer.append_text(out, 0, "!", usage, {logprobs.data() + 1, 1}, id);
      } else {
        writer.append_text(out, 0, "Hé\n", usage);
      }
      writer.append_finish(out, 0, "stop", usage, choice.stop_reason);
      writer.append_end(out, usage);
      section((is_chat ? "chat stream" : "completion stream") + suffix, out);
    }
  }
  const auto continuous =
      chat(R"(,"stream":true,"n":2,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  StreamWriter writer(chat_head, continuous);
  std::string out;
  writer.append_text(out, 1, "b", usage);
  writer.append_finish(out, 0, "length", usage);
  writer.append_end(out, usage, Json::object({{"decode", "d0"}}));
  section("chat stream, two choices, continuous usage", out);
  const ModelCard card{"mc-tiny", "models/mc-tiny", 1700000000, 8192};
  section("models", models_body({&card, 1}));
  section("model", model_body(card));
  section("tokenize", tokenize_body(std::vector<uint32_t>{1, 2, 3}, 8192));
  section("detokenize", detokenize_body("a\"b"));
  section("error", error_response(err::kModelNotFound, "the model \"x\" is not served here").body);

  const std::string path = test::source_dir() + "/tests/golden/http/openai.txt";
  if (std::getenv("MC_SET_GOLDEN")) std::ofstream(path) << text;
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  CHECK(text == golden.str());
}

// An answer as its client sees it: status, code and numbers of an answer that failed, and the prompt's
// log-probabilities of an answer that asked for them.

#include "door/answer.h"

#include <functional>

#include "base/json.h"
#include "http/client.h"
#include "test.h"
#include "unit/text/small_tokenizer.h"

using namespace mc;
using namespace mc::door;

namespace {

http::Response response_of(std::string code, node::Reply::Kind kind = node::Reply::Kind::failed) {
  node::Reply reply;
  reply.kind = kind;
  reply.reason = node::reason_named(code);
  reply.stage = node::RequestStage::prefill;
  reply.message = "why";
  return reply_response(reply);
}

http::GenerateRequest asked(const std::string& fields) {
  auto parsed = http::parse_completion(R"({"prompt":"x",)" + fields + "}", {}, {});
  REQUIRE_OK(parsed);
  return std::move(*parsed);
}

/// The output of an Answer, sent by a server, as the client reads it.
http::Response told(const http::GenerateRequest& request, const std::function<void(Answer&)>& feed,
                    const text::Tokenizer& tokenizer = test::small_tokenizer()) {
  auto server = http::Server::open({}, [&](http::Request, http::Responder out) {
    Answer answer(request, {"cmpl-1", 1, "m", false}, std::move(out), tokenizer);
    feed(answer);
  });
  REQUIRE_OK(server);
  auto response = http::fetch(http::Method::get, (*server)->url() + "/", {}, "", SystemClock::instance().now() + 20s);
  REQUIRE_OK(response);
  return std::move(*response);
}

/// The events of a stream, as the client reads them.
std::vector<std::string> streamed(const http::GenerateRequest& request, const std::function<void(Answer&)>& feed,
                                  const http::ServerOptions& options = {},
                                  const text::AnswerReader& reader = text::AnswerReader({})) {
  const auto tokenizer = test::small_tokenizer();
  auto server = http::Server::open(options, [&](http::Request, http::Responder out) {
    Answer answer(request, {"cmpl-1", 1, "m", false}, std::move(out), tokenizer, reader);
    feed(answer);
  });
  REQUIRE_OK(server);
  auto client = http::Client::open((*server)->url());
  REQUIRE_OK(client);
  std::vector<std::string> events;
  http::ClientEvents on;
  on.event = [&](std::string_view data, TimePoint) { events.emplace_back(data); };
  on.done = [](http::ClientOutcome&&) {};
  http::ClientCall call;
  call.deadline = SystemClock::instance().now() + 20s;
  (*client)->start(std::move(call), std::move(on));
  CHECK((*client)->run(call.deadline));
  CHECK((*server)->stats().closed_for(http::CloseReason::slow_reader) == 0);
  REQUIRE(!events.empty());
  return events;
}

/// Choices "0", "1", ... of one prompt: each gets the token "!" and ends; choice 0 brings `rows` of its prompt.
void answer_all(Answer& answer, const std::vector<uint32_t>& prompt, size_t choices, size_t rows) {
  for (size_t i = 0; i < choices; ++i) REQUIRE_OK(answer.add_choice(std::to_string(i), prompt));
  for (size_t i = 0; i < choices; ++i) {
    node::Reply token;
    token.req = std::to_string(i);
    token.kind = node::Reply::Kind::token;
    token.token = '!';
    if (answer.asks_for_prompt(i))
      for (size_t row = 0; row < rows; ++row)
        token.prompt_logprobs.push_back({-0.5, 2, {{'a', -0.25}, {prompt[row + 1], -0.5}}});
    answer.on_token(token.req, token);
    if (answer.failed()) return;
    node::Reply end;
    end.req = token.req;
    end.kind = node::Reply::Kind::finished;
    end.finish = node::Finish::length;
    answer.on_end(end.req, end);
  }
}

}  // namespace

TEST_CASE("door/answer: of several choices the mc object has one, with the nodes and the KV of its last attempt") {
  const auto response = told(asked(R"("n":2,"mc":{"explain":true})"), [](Answer& answer) {
    node::Reply token, end;
    token.kind = node::Reply::Kind::token, token.token = '!';
    end.kind = node::Reply::Kind::finished, end.finish = node::Finish::length;
    for (const std::string req : {"0", "1"}) {
      REQUIRE_OK(answer.add_choice(req, {'a'}));
      token.req = req, token.summary.prefill = "p" + req, token.summary.decode = "d" + req;
      answer.on_token(req, token);
    }
    end.summary.prefill = "p2", end.summary.decode = "d2", end.summary.attempts = 2;
    end.summary.kv = {"1", 2, 64, 9, 128, {{"c0", "128"}}, 5, wire::Fallback::evicted};
    answer.on_end("1", end);
    end.summary.prefill = "p0", end.summary.decode = "d0", end.summary.attempts = 1;
    end.summary.kv = {"0", 1, 0, 192, 0, {}, 0, wire::Fallback::corrupt};
    answer.on_end("0", end);
  });
  const auto body = Json::parse(response.body);
  REQUIRE_OK(body);
  const Json& mc = (*body)["mc"];
  CHECK(mc["prefill_node"].as_string() == "p2");
  CHECK(mc["decode_node"].as_string() == "d2");
  CHECK(mc["attempts"].as_int() == 2);
  CHECK(mc["kv_from"].dump() == R"({"d2":64,"c0":128,"p2":9})");
  CHECK(mc["kv_fallback"].as_string() == "evicted");
}

TEST_CASE("door/answer: the prompts' log-probabilities are bounded over all prompts and answers of a request") {
  const auto allowed = [](const std::string& fields, std::vector<size_t> tokens) {
    std::vector<std::vector<uint32_t>> prompts;
    for (const size_t count : tokens) prompts.emplace_back(count, 1);
    return check_prompt_logprobs(asked(fields), prompts);
  };
  CHECK(allowed(R"("n":64)", {100'000}));  // asks for none
  CHECK(allowed(R"("prompt_logprobs":0)", {65'536}));
  CHECK(allowed(R"("prompt_logprobs":7,"n":8)", {1024}));
  const auto refused = allowed(R"("prompt_logprobs":20,"n":64)", {8000});
  REQUIRE(!refused);
  CHECK(refused.error().mc == err::kInvalidField);
  CHECK(refused.error().where == "prompt_logprobs");
  CHECK(refused.error().what.find("10752000 numbers; at most 65536") != std::string::npos);
  CHECK(!allowed(R"("prompt_logprobs":0,"best_of":2)", {32'769}));
  CHECK(!allowed(R"("echo":true,"logprobs":0)", {32'768, 32'769}));
  CHECK(allowed(R"("echo":true,"logprobs":0,"stream":true)", {16'384}));
  const auto streamed = allowed(R"("echo":true,"logprobs":0,"stream":true,"n":2)", {8193});
  REQUIRE(!streamed);
  CHECK(streamed.error().what.find("16386 numbers; at most 16384 are given in a stream") != std::string::npos);
}

TEST_CASE("door/answer: a prompt of k tokens has k rows, the first null, in each of its choices") {
  for (const size_t tokens : {1, 2, 5}) {
    CAPTURE(tokens);
    const std::vector<uint32_t> prompt(tokens, 'b');
    const auto response =
        told(asked(R"("prompt_logprobs":1,"n":3)"), [&](Answer& a) { answer_all(a, prompt, 3, tokens - 1); });
    CHECK(response.status == 200);
    const auto body = Json::parse(response.body);
    REQUIRE_OK(body);
    REQUIRE((*body)["choices"].size() == 3);
    for (const Json& choice : (*body)["choices"].items()) {
      const Json& rows = choice["prompt_logprobs"];
      REQUIRE(rows.size() == tokens);
      CHECK(rows[0].is_null());
      for (size_t i = 1; i < tokens; ++i)
        CHECK(rows[i].dump() == R"({"98":{"logprob":-0.5,"rank":2,"decoded_token":"b"},)"
                                R"("97":{"logprob":-0.25,"rank":1,"decoded_token":"a"}})");
    }
  }
}

TEST_CASE("door/answer: missing rows of a prompt fail the request with both counts") {
  for (const char* fields : {R"("prompt_logprobs":1)", R"("echo":true,"logprobs":1)"}) {
    const auto response = told(asked(fields), [&](Answer& a) { answer_all(a, {'a', 'b', 'c'}, 1, 1); });
    CHECK(response.status == 500);
    CHECK(response.body.find("log-probabilities of 1 prompt tokens; the prompt has 2 to score") != std::string::npos);
  }
}

TEST_CASE("door/answer: the offsets of an echoed prompt count no space that the start of a text loses") {
  // SentencePiece's form: a mark for each space, the first of which the text does not have.
  const auto tokenizer = text::Tokenizer::parse({.tokenizer = R"({"version":"1.0","added_tokens":[],"normalizer":null,
    "pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},
    "post_processor":null,
    "decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},
    "model":{"type":"BPE","vocab":{"\u2581":0,"a":1,"b":2,"\u2581a":3,"\u2581b":4},
             "merges":[["\u2581","a"],["\u2581","b"]]}})"});
  REQUIRE_OK(tokenizer);
  const std::vector<uint32_t> prompt{3, 2, 4, 1};  // " ab ba"
  const auto feed = [&](Answer& answer) {
    REQUIRE_OK(answer.add_choice("0", prompt));
    node::Reply token;
    token.req = "0";
    token.kind = node::Reply::Kind::token;
    token.token = 3;
    token.prompt_logprobs.resize(prompt.size() - 1);
    answer.on_token("0", token);
    node::Reply end;
    end.req = "0";
    end.kind = node::Reply::Kind::finished;
    end.finish = node::Finish::length;
    answer.on_end("0", end);
  };
  const auto response = told(asked(R"("echo":true,"logprobs":0)"), feed, *tokenizer);
  const auto body = Json::parse(response.body);
  REQUIRE_OK(body);
  const Json& choice = (*body)["choices"][0];
  CHECK(choice["text"].as_string() == "ab ba a");
  CHECK(choice["logprobs"]["text_offset"].dump() == "[0,1,2,4,5]");
}

TEST_CASE("door/answer: a streamed prompt that is more than the queue holds ends in an error event that says so") {
  const auto request = asked(R"("echo":true,"logprobs":1,"stream":true)");
  const std::vector<uint32_t> prompt(2000, 'b');
  for (const bool fits : {true, false}) {
    CAPTURE(fits);
    const auto feed = [&](Answer& answer) {
      answer_all(answer, prompt, 1, prompt.size() - 1);
      CHECK(answer.failed() == !fits);
    };
    const size_t queue = fits ? http::ServerOptions{}.queue_bytes_max : size_t{32} << 10;
    const auto events = streamed(request, feed, {.queue_bytes_max = queue});
    CHECK((events.back() == "[DONE]") == fits);
    CHECK((events[0].find("without stream") != std::string::npos) == !fits);
  }
}

TEST_CASE("door/answer: held text that is more than the queue holds ends in an error event that says so") {
  auto request = asked(R"("stream":true,"max_tokens":10)");
  request.is_chat = true;
  const text::AnswerReader reader({.form = {.calls = text::CallForm::tagged}});
  // A call, a call that is none, and a call that the answer's end cuts off.
  for (const char* end : {"\"}</tool_call>", "\"}</tool>", ""}) {
    CAPTURE(end);
    const std::string text = "<tool_call>{\"name\":\"f\",\"arguments\":\"" + std::string(10'000, ' ') + "{}" + end;
    for (const bool fits : {true, false}) {
      CAPTURE(fits);
      const auto feed = [&](Answer& answer) {
        REQUIRE_OK(answer.add_choice("0", {'a'}));
        node::Reply token;
        token.kind = node::Reply::Kind::token;
        for (const char c : text) {
          token.token = static_cast<uint8_t>(c);
          if (answer.on_token("0", token)) break;
        }
        node::Reply last;
        last.kind = node::Reply::Kind::finished;
        last.finish = node::Finish::length;
        CHECK(answer.on_end("0", last));
        CHECK(answer.failed() == !fits);
      };
      const auto events = streamed(request, feed, {.queue_bytes_max = size_t{fits ? 64u : 8u} << 10}, reader);
      CHECK((events.back() == "[DONE]") == fits);
      CHECK((events.back().find("without stream") != std::string::npos) == !fits);
    }
  }
}

TEST_CASE("door/answer: of a stream's choices one asks for the prompt; the others wait for it and lose nothing") {
  const auto request = asked(R"("echo":true,"logprobs":1,"stream":true,"n":3)");
  const std::vector<uint32_t> prompt(4, 'b');
  const auto reply_to = [](const std::string& req, node::Reply::Kind kind) {
    node::Reply reply;
    reply.req = req;
    reply.kind = kind;
    reply.token = '!';
    reply.finish = node::Finish::length;
    return reply;
  };
  const auto feed = [&](Answer& answer) {
    const auto token = node::Reply::Kind::token, finished = node::Reply::Kind::finished;
    for (const char* req : {"0", "1", "2"}) REQUIRE_OK(answer.add_choice(req, prompt));
    CHECK(answer.asks_for_prompt(0));
    CHECK_FALSE(answer.asks_for_prompt(1));
    CHECK_FALSE(answer.asks_for_prompt(2));
    // Choice 1 is over and 2 has begun when the rows come with choice 0.
    for (const char* req : {"1", "2", "1"}) answer.on_token(req, reply_to(req, token));
    CHECK_FALSE(answer.on_end("1", reply_to("1", finished)));
    node::Reply first = reply_to("0", token);
    first.prompt_logprobs.resize(prompt.size() - 1, {-0.5, 2, {}});
    answer.on_token("0", first);
    answer.on_token("2", reply_to("2", token));
    CHECK_FALSE(answer.on_end("0", reply_to("0", finished)));
    CHECK(answer.on_end("2", reply_to("2", finished)));
    CHECK_FALSE(answer.failed());
  };
  const std::vector<std::string> events = streamed(request, feed);
  CHECK(events.back() == "[DONE]");
  std::string texts[3];
  size_t logprobs[3] = {}, ends[3] = {};
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto event = Json::parse(events[i]);
    REQUIRE_OK(event);
    for (const Json& choice : (*event)["choices"].items()) {
      const auto index = static_cast<size_t>(choice["index"].as_int());
      REQUIRE(index < 3);
      CHECK(ends[index] == 0);
      texts[index] += choice["text"].as_string();
      const Json& offsets = choice["logprobs"]["text_offset"];
      for (const Json& offset : offsets.items()) CHECK(static_cast<size_t>(offset.as_int()) == logprobs[index]++);
      ends[index] += choice["finish_reason"].is_string();
    }
  }
  CHECK(texts[0] == "bbbb!");
  CHECK(texts[1] == "bbbb!!");
  CHECK(texts[2] == "bbbb!!");
  for (size_t i = 0; i < 3; ++i) {
    CHECK(logprobs[i] == texts[i].size());
    CHECK(ends[i] == 1);
  }
}

TEST_CASE("door/answer: every code a machine can end a request with has its HTTP status; none is a plain 500") {
  const std::pair<const char*, int> rows[] = {
      {"predicted_slo_miss", 429},
      {"queue_full", 429},
      {"no_prefill", 503},
      {"no_decode", 503},
      {"draining", 503},
      {"deadline_exceeded", 504},
      {"timeout", 504},
      {"context_length_exceeded", 400},
      {"invalid", 400},
      {"unsupported", 400},
      {"peer_lost", 503},
      {"corrupt", 503},
      {"layout", 503},
      {"unknown_peer", 503},
      {"not_found", 503},
      {"busy", 503},
      {"io", 503},
      {"cancelled", 503},
      {"no_space", 503},
  };
  for (const auto& [code, status] : rows) {
    CAPTURE(code);
    CHECK(response_of(code).status == status);
  }
  CHECK(response_of("no such code").status == 500);
}

TEST_CASE("door/answer: a reply that names a wrong field of the request has it as the param of the error") {
  node::Reply reply;
  reply.kind = node::Reply::Kind::rejected;
  reply.reason = node::Reason::invalid;
  reply.message = "mc.pin.prefill names p9, which is not in the cluster";
  CHECK(reply_response(reply).body.find(R"("param":null)") != std::string::npos);
  reply.param = "mc.pin.prefill";
  const http::Response response = reply_response(reply);
  CHECK(response.status == 400);
  CHECK(response.body.find(R"("param":"mc.pin.prefill")") != std::string::npos);
}

TEST_CASE("door/answer: a rejection carries both numbers and when to come back") {
  node::Reply reply;
  reply.kind = node::Reply::Kind::rejected;
  reply.reason = node::Reason::predicted_slo_miss;
  reply.message = "predicted TBT 900 ms, allowed 200 ms";
  reply.bound = sched::Bound::tbt;
  reply.predicted_ms = 900, reply.allowed_ms = 200;
  reply.retry_after = 3s;
  const http::Response response = reply_response(reply);
  CHECK(response.status == 429);
  std::string retry;
  for (const auto& [name, value] : response.headers)
    if (name == "Retry-After") retry = value;
  CHECK(retry == "3");
  CHECK(response.body.find("900") != std::string::npos);
  CHECK(response.body.find("200") != std::string::npos);
  CHECK(http::find_header(response.headers, "x-mc-reason") ==
        "predicted_slo_miss; bound=tbt; predicted_ms=900; allowed_ms=200");
}

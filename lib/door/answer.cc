#include "door/answer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "door/misses.h"
#include "door/request_records.h"

namespace mc::door {
namespace {

// One request's: what the loop's thread writes at once. A number is some 60 bytes of JSON; all events of a stream's
// prompts are queued together, and the queue holds 1 MiB (http/server.h).
constexpr uint64_t kPromptLogprobsMax = uint64_t{1} << 16, kPromptLogprobsMaxStreamed = uint64_t{1} << 14;

}  // namespace

Error reply_error(const node::Reply& reply) {
  return user_error(number_of(reply.reason), reply.message, reply.param);
}

http::Response reply_response(const node::Reply& reply) {
  const err::Number number = number_of(reply.reason);
  const int status = find_error(number)->http_status;
  if (status != 429 && status != 503) return http::error_response(reply_error(reply));
  http::Rejection rejection;
  rejection.number = number;
  rejection.message = reply.message;
  rejection.bound = to_string(reply.bound);
  if (reply.allowed_ms > 0) {
    rejection.predicted = from_seconds(reply.predicted_ms * 1e-3);
    rejection.allowed = from_seconds(reply.allowed_ms * 1e-3);
  }
  rejection.retry_after = std::max<Duration>(reply.retry_after, 1s);
  return http::rejection_response(rejection);
}

Result<void> check_prompt_logprobs(const http::GenerateRequest& request,
                                   std::span<const std::vector<uint32_t>> prompts) {
  const auto wanted = request.wanted_of_prompt();
  if (!wanted) return {};
  uint64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size();
  const uint64_t answers = static_cast<uint64_t>(request.answers());
  const uint64_t numbers = tokens * (uint64_t{1} + static_cast<uint64_t>(*wanted)) * answers;
  const uint64_t most = request.stream ? kPromptLogprobsMaxStreamed : kPromptLogprobsMax;
  if (numbers <= most) return {};
  return user_error(err::kInvalidField,
                    "log-probabilities of " + std::to_string(tokens) + " prompt tokens with " +
                        std::to_string(*wanted) + " alternatives for " + std::to_string(answers) +
                        " answers of each prompt are " + std::to_string(numbers) + " numbers; at most " +
                        std::to_string(most) + " are given" + (request.stream ? " in a stream" : ""),
                    request.sampling.prompt_logprobs ? "prompt_logprobs" : "logprobs");
}

Answer::Answer(http::GenerateRequest request, http::AnswerHead head, http::Responder out,
               const text::Tokenizer& tokenizer, text::AnswerReader reader)
    : request_(std::move(request)),
      head_(std::move(head)),
      out_(std::move(out)),
      tokenizer_(tokenizer),
      reader_(std::move(reader)),
      writer_(head_, request_) {
  MC_ASSERT(request_.answers() > 0);
}

Result<void> Answer::add_choice(const RequestId& req, std::vector<uint32_t> prompt) {
  MC_ASSERT(!prompt.empty());
  MC_ASSERT(find(req) == nullptr);
  MC_TRY(stops, text::StopMatcher::build(request_.sampling.stop, request_.sampling.include_stop_str_in_output));
  http::Choice out;
  out.index = static_cast<int>(choices_.size());
  if (request_.return_token_ids) out.prompt_token_ids = prompt;
  choices_.push_back({req, std::move(prompt),
                      text::Detokenizer(tokenizer_, request_.sampling.skip_special_tokens, text::TextStart::before),
                      std::move(stops), reader_, std::move(out)});
  return {};
}

Answer::Choice* Answer::find(const RequestId& req) {
  const auto it = std::find_if(choices_.begin(), choices_.end(), [&](const Choice& c) { return c.req == req; });
  return it == choices_.end() ? nullptr : &*it;
}

http::Usage Answer::usage() const {
  http::Usage usage;
  // A prompt that is sampled n times is one prompt.
  const size_t n = static_cast<size_t>(request_.answers());
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i % n == 0) usage.prompt_tokens += static_cast<uint32_t>(choices_[i].prompt.size());
    usage.completion_tokens += choices_[i].tokens;
    usage.reasoning_tokens += choices_[i].reasoning_tokens;
  }
  usage.cached_tokens = std::min(summary_.report.cached_local + summary_.report.cached_remote, usage.prompt_tokens);
  return usage;
}

http::TokenLogprob Answer::logprob_of(uint32_t token, double logprob,
                                      std::span<const std::pair<uint32_t, double>> top) const {
  http::TokenLogprob out{std::string(tokenizer_.token_bytes(token)), logprob, {}, is_hidden(token)};
  for (const auto& [id, value] : top) out.top.emplace_back(std::string(tokenizer_.token_bytes(id)), value);
  return out;
}

bool Answer::asks_for_prompt(size_t choice) const {
  return request_.wanted_of_prompt() && choice % static_cast<size_t>(request_.answers()) == 0;
}

/// False, and the answer failed, unless the bytes are a vector that has a length.
bool Answer::take_embedding(Choice& choice, std::span<const uint8_t> bytes) {
  if (!request_.embeds) return true;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  if (bytes.size() % sizeof(float) == 0 && std::isfinite(squares) && squares > 0) {
    for (float& value : values) value = static_cast<float>(value / std::sqrt(squares));
    choice.out.embedding = std::move(values);
    return true;
  }
  node::Reply reply;
  reply.kind = node::Reply::Kind::failed;
  reply.reason = node::Reason::internal;
  reply.stage = node::RequestStage::prefill;
  reply.message = "the prefill node gave no hidden state that could be an embedding (" + std::to_string(bytes.size()) +
                  " bytes); nodes without a model give none";
  fail(reply);
  return false;
}

/// False, and the answer failed, unless every token of the prompt but the first has a row.
bool Answer::take_prompt_logprobs(Choice& choice, std::vector<wire::PromptLogprob> rows) {
  if (!asks_for_prompt(static_cast<size_t>(choice.out.index)) || choice.prompt_logprobs) return true;
  if (rows.size() + 1 == choice.prompt.size()) {
    share_prompt_logprobs(choice, std::move(rows));
    return true;
  }
  node::Reply reply;
  reply.kind = node::Reply::Kind::failed;
  reply.reason = node::Reason::internal;
  reply.stage = node::RequestStage::prefill;
  reply.message = "the prefill node sent log-probabilities of " + std::to_string(rows.size()) +
                  " prompt tokens; the prompt has " + std::to_string(choice.prompt.size() - 1) + " to score";
  fail(reply);
  return false;
}

// Told once for all choices of a prompt, which share them; a stream's choices may have waited for that.
void Answer::share_prompt_logprobs(Choice& choice, std::vector<wire::PromptLogprob> rows) {
  const size_t n = static_cast<size_t>(request_.answers());
  const size_t at = static_cast<size_t>(choice.out.index);
  MC_ASSERT_EQ(at % n, size_t{0});  // the first choice of each prompt asks for the rows
  MC_ASSERT_EQ(rows.size() + 1, choice.prompt.size());
  const auto group = std::span(choices_).subspan(at, std::min(n, choices_.size() - at));
  const auto shared = std::make_shared<const std::vector<wire::PromptLogprob>>(std::move(rows));
  for (Choice& one : group) one.prompt_logprobs = shared;
  for (Choice& one : group) send_waiting(one);
  if (!request_.sampling.prompt_logprobs || failed_) return;
  const auto named = [&](uint32_t id, double logprob, uint32_t rank) {
    return http::PromptLogprob::Entry{id, std::string(tokenizer_.token_bytes(id)), logprob, rank};
  };
  auto table = std::make_shared<std::vector<http::PromptLogprob>>(choice.prompt.size());
  for (size_t i = 0; i < shared->size(); ++i) {
    const wire::PromptLogprob& row = (*shared)[i];
    auto& entries = (*table)[i + 1].entries;
    entries.push_back(named(choice.prompt[i + 1], row.logprob, row.rank));
    const size_t wanted = std::min(static_cast<size_t>(*request_.sampling.prompt_logprobs), row.top.size());
    for (uint32_t k = 0; k < wanted; ++k)
      if (row.top[k].first != choice.prompt[i + 1])
        entries.push_back(named(row.top[k].first, row.top[k].second, k + 1));
  }
  for (Choice& one : group) one.out.prompt_logprobs = table;
}

namespace {

size_t characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

/// Offsets do not count the part of the first tokens that `text` leaves out.
void mark_lost(std::string_view text, std::vector<http::TokenLogprob>& logprobs) {
  std::string spelt;
  for (const auto& item : logprobs)
    if (!item.hidden) spelt += item.token;
  if (!spelt.ends_with(text)) return;  // bytes that are no character: the text has U+FFFD
  size_t left = characters(std::string_view(spelt).substr(0, spelt.size() - text.size()));
  for (auto& item : logprobs) {
    if (item.hidden) continue;
    item.lost = std::min(left, characters(item.token));
    left -= item.lost;
  }
}

}  // namespace

std::vector<http::TokenLogprob> Answer::echoed_logprobs(const Choice& choice) const {
  std::vector<http::TokenLogprob> out;
  if (!request_.sampling.logprobs) return out;
  MC_ASSERT(choice.prompt_logprobs != nullptr);  // a choice that has no rows failed
  const auto& rows = *choice.prompt_logprobs;
  MC_ASSERT_LT(rows.size(), choice.prompt.size());
  out.push_back({std::string(tokenizer_.token_bytes(choice.prompt[0])), std::nullopt, {}, is_hidden(choice.prompt[0])});
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t wanted = std::min(static_cast<size_t>(*request_.sampling.logprobs), rows[i].top.size());
    out.push_back(logprob_of(choice.prompt[i + 1], rows[i].logprob, std::span(rows[i].top).first(wanted)));
  }
  return out;
}

void Answer::start_stream() {
  if (started_ || !request_.stream) return;
  started_ = true;
  out_.start_stream();
}

void Answer::begin_stream() {
  if (started_ || failed_ || !request_.stream) return;
  start_stream();
  (void)out_.send(http::kSsePing);
}

// The prompt goes in front of the choice's own text: in a stream when the first token is there, else at the end.
void Answer::echo(Choice& choice) {
  if (!request_.echo || choice.echoed) return;
  choice.echoed = true;
  const std::string text = tokenizer_.decode(choice.prompt, request_.sampling.skip_special_tokens);
  std::vector<http::TokenLogprob> logprobs = echoed_logprobs(choice);
  mark_lost(text, logprobs);
  if (!request_.stream) {
    choice.out.text.insert(0, text);
    choice.out.logprobs.insert(choice.out.logprobs.begin(), std::move_iterator(logprobs.begin()),
                               std::move_iterator(logprobs.end()));
    return;
  }
  std::string bytes;
  writer_.append_text(bytes, choice.out.index, text, usage(), logprobs);
  send_whole(bytes, "the prompt");
}

/// An answer longer than its queue fails: a closed stream would look like a lost server.
void Answer::send_whole(const std::string& bytes, const char* what) {
  if (!out_.is_open() || bytes.size() <= out_.room_bytes()) return (void)out_.send(bytes);
  node::Reply reply;
  reply.kind = node::Reply::Kind::failed;
  reply.reason = node::Reason::invalid;
  reply.stage = node::RequestStage::answer;
  reply.message = std::string(what) + " is " + std::to_string(bytes.size()) +
                  " bytes, and the queue of the stream has room for " + std::to_string(out_.room_bytes()) +
                  "; send the request without stream";
  fail(reply);
}

/// The text that the token adds. A special token that opens or closes a part of the answer counts as text.
std::string Answer::fresh_text(Choice& choice, uint32_t token) {
  std::string fresh = choice.detokenizer.push(token);
  if (request_.is_chat && is_hidden(token) && choice.reader.is_mark(tokenizer_.token_bytes(token)))
    fresh += tokenizer_.token_bytes(token);
  return fresh;
}

http::CalledTool Answer::called(const text::ToolCall& call) const {
  std::string id = http::new_request_id();
  id.erase(0, id.find('_') + 1);
  constexpr size_t kShort = 9;  // Mistral's templates refuse ids that are no 9 letters and digits
  if (reader_.is_mark(text::kMistralStart)) {
    std::erase_if(id, [](unsigned char c) { return std::isalnum(c) == 0; });
    id.insert(0, kShort, '0');
    id.erase(0, id.size() - kShort);
  } else {
    id.insert(0, "call_");
  }
  return {std::move(id), call.name, call.arguments};
}

void Answer::emit_parts(Choice& choice, const std::vector<text::AnswerPart>& parts,
                        std::vector<http::TokenLogprob> logprobs, std::span<const uint32_t> ids) {
  using Kind = text::AnswerPart::Kind;
  std::string bytes;
  if (request_.stream) start_stream();
  bool has_call = false;
  bool is_told = false;  // the token itself, which goes with the first content
  for (const auto& part : parts) {
    if (part.kind == Kind::call) choice.out.tool_calls.push_back(called(part.call)), has_call = true;
    if (!request_.stream) {
      (part.kind == Kind::reasoning ? choice.out.reasoning : choice.out.text) += part.text;
      continue;
    }
    const int at = choice.out.index;
    if (part.kind == Kind::reasoning) writer_.append_reasoning(bytes, at, part.text, usage());
    if (part.kind == Kind::call)
      writer_.append_call(bytes, at, choice.out.tool_calls.size() - 1, choice.out.tool_calls.back(), usage());
    if (part.kind != Kind::content) continue;
    writer_.append_text(bytes, at, part.text, usage(), is_told ? std::span<const http::TokenLogprob>() : logprobs,
                        is_told ? std::span<const uint32_t>() : ids);
    is_told = true;
  }
  if (request_.stream) {
    if (!is_told) writer_.append_text(bytes, choice.out.index, "", usage(), logprobs, ids);
    // Text held back as a call may be longer than the queue, also when it turned out to be none.
    return send_whole(bytes, has_call ? "the tool call" : "the text");
  }
  for (auto& l : logprobs) choice.out.logprobs.push_back(std::move(l));
  choice.out.token_ids.insert(choice.out.token_ids.end(), ids.begin(), ids.end());
}

void Answer::emit(Choice& choice, std::string text, const node::Reply* reply) {
  std::vector<http::TokenLogprob> logprobs;
  std::vector<uint32_t> ids;
  if (reply && request_.sampling.logprobs)
    logprobs.push_back(logprob_of(reply->token, reply->logprobs.chosen, reply->logprobs.top));
  if (reply && request_.return_token_ids) ids.push_back(reply->token);
  if (request_.is_chat) {
    std::vector<text::AnswerPart> parts;
    choice.reader.push(text, parts);
    return emit_parts(choice, parts, std::move(logprobs), ids);
  }
  if (!request_.stream) {
    choice.out.text += text;
    for (auto& l : logprobs) choice.out.logprobs.push_back(std::move(l));
    choice.out.token_ids.insert(choice.out.token_ids.end(), ids.begin(), ids.end());
    return;
  }
  if (!waits(choice)) return send_piece(choice, {std::move(text), std::move(logprobs), std::move(ids)});
  if (!choice.waiting) choice.waiting.emplace();
  choice.waiting->text += text;
  for (auto& l : logprobs) choice.waiting->logprobs.push_back(std::move(l));
  choice.waiting->ids.insert(choice.waiting->ids.end(), ids.begin(), ids.end());
}

void Answer::send_piece(Choice& choice, const Choice::Piece& piece) {
  MC_ASSERT(request_.stream);
  start_stream();
  echo(choice);
  if (failed_) return;
  std::string bytes;
  writer_.append_text(bytes, choice.out.index, piece.text, usage(), piece.logprobs, piece.ids);
  if (!choice.waiting) return (void)out_.send(bytes);
  choice.waiting.reset();
  send_whole(bytes, "the text that waited for the prompt");
}

void Answer::send_waiting(Choice& choice) {
  if (!request_.stream || failed_) return;
  if (choice.waiting) send_piece(choice, Choice::Piece(*choice.waiting));
  if (choice.ended && !failed_) send_finish(choice);
}

bool Answer::on_token(const RequestId& req, const node::Reply& reply) {
  MC_ASSERT(reply.kind == node::Reply::Kind::token);
  Choice* choice = find(req);
  MC_ASSERT(choice != nullptr);
  if (choice->stopped || choice->ended || failed_) return false;
  if (reply.index == 0) summary_ = reply.summary, summarised_ = req;
  if (reply.index == 0 && (!take_prompt_logprobs(*choice, reply.prompt_logprobs) || failed_)) return true;
  if (reply.index == 0 && !take_embedding(*choice, reply.embedding)) return true;
  if (is_prompt_alone()) return false;  // this token ends the request
  ++choice->tokens;
  choice->logprob_sum += reply.logprobs.chosen;
  choice->last_token = reply.token;
  const std::string fresh = fresh_text(*choice, reply.token);
  const bool may_stop = choice->tokens > request_.sampling.min_tokens, was_thinking = choice->reader.is_thinking();
  emit(*choice, may_stop ? choice->stops.push(fresh) : choice->stops.pass(fresh), &reply);
  choice->reasoning_tokens += was_thinking || choice->reader.is_thinking();
  if (failed_) return true;
  if (!choice->stops.stopped()) return false;
  choice->stopped = true;
  choice->out.stop_reason = Json(choice->stops.stop());
  return true;
}

uint32_t Answer::longest_choice() const {
  uint32_t most = 0;
  for (const Choice& choice : choices_) most = std::max(most, choice.tokens);
  return most;
}

bool Answer::on_end(const RequestId& req, const node::Reply& reply) {
  MC_ASSERT(reply.kind != node::Reply::Kind::token);
  Choice* choice = find(req);
  MC_ASSERT(choice != nullptr);
  if (choice->ended || failed_) return failed_;
  if (reply.kind == node::Reply::Kind::failed || reply.kind == node::Reply::Kind::rejected) {
    fail(reply);
    return true;
  }
  if (!take_prompt_logprobs(*choice, {}) || failed_) return true;  // ended without a token
  if (req == summarised_) summary_ = reply.summary;
  const auto& stop_ids = request_.sampling.stop_token_ids;
  const bool by_id = !choice->stopped && choice->tokens > 0 && reply.finish == node::Finish::stop &&
                     std::find(stop_ids.begin(), stop_ids.end(), choice->last_token) != stop_ids.end();
  if (by_id) choice->out.stop_reason = Json(choice->last_token);
  finish_choice(*choice, choice->stopped     ? node::Finish::stop
                         : is_prompt_alone() ? node::Finish::length
                                             : reply.finish);
  if (failed_) return true;
  if (!unfinished().empty()) return false;
  if (request_.stream) {
    std::string bytes;
    writer_.append_end(bytes, usage(), explanation());
    (void)out_.send(bytes);
    out_.finish();
  } else {
    write_whole();
  }
  return true;
}

void Answer::finish_choice(Choice& choice, node::Finish finish) {
  MC_ASSERT(!choice.ended);
  choice.ended = true;
  if (!choice.stopped) {
    const std::string rest = choice.stops.push(choice.detokenizer.flush()) + choice.stops.flush();
    if (!rest.empty()) emit(choice, rest, nullptr);
    if (failed_) return;
  }
  if (request_.is_chat) {
    std::vector<text::AnswerPart> parts;
    choice.reader.flush(parts);
    if (!parts.empty()) emit_parts(choice, parts, {}, {});
    if (failed_) return;
  }
  choice.out.finish_reason = to_string(finish);
  if (finish == node::Finish::stop && !choice.out.tool_calls.empty()) choice.out.finish_reason = "tool_calls";
  if (request_.stream && !waits(choice)) send_finish(choice);
}

void Answer::send_finish(Choice& choice) {
  MC_ASSERT(request_.stream && choice.ended);
  start_stream();
  echo(choice);
  if (failed_) return;
  std::string bytes;
  writer_.append_finish(bytes, choice.out.index, choice.out.finish_reason, usage(), choice.out.stop_reason);
  (void)out_.send(bytes);
}

// The answer to `"mc": {"explain": true}`: where the request went and where its prefix came from.
Json Answer::explanation() const {
  if (!request_.mc.explain) return {};
  Json mc = Json::object();
  mc.set("prefill_node", summary_.prefill).set("decode_node", summary_.decode);
  mc.set("attempts", summary_.attempts).set("predicted_ttft_ms", summary_.predicted_ttft_s * 1e3);
  mc.set("cached_local_tokens", summary_.report.cached_local).set("cached_disk_tokens", summary_.report.cached_disk);
  mc.set("cached_remote_tokens", summary_.report.cached_remote);
  Json sources = Json::object();
  for (const auto& [node, tokens] : summary_.report.sources) sources.set(node, std::atoll(tokens.c_str()));
  mc.set("cached_from", std::move(sources));
  mc.set("queue_ms", summary_.report.queue_ms).set("fetch_ms", summary_.report.fetch_ms);
  mc.set("fetch_hidden_ms", summary_.report.fetch_hidden_ms);
  mc.set("accept_ms", summary_.report.accept_ms).set("prefill_ms", summary_.report.compute_ms);
  mc.set("miss_reason", first_miss(summary_.report.misses, MissReader::client));
  mc.set("misses", misses_json(summary_.report.misses, MissReader::client));
  mc.set("fallback", wire::describe(summary_.report.fallback));
  mc.set("kv_from", kv_from_json(summary_)).set("kv_fallback", wire::to_string(summary_.kv.fallback));
  return mc;
}

// Keeps for each prompt the n answers with the largest mean log-probability of a token, best first; equals as drawn.
std::vector<http::Choice> Answer::take_best_choices() {
  const size_t drawn = static_cast<size_t>(request_.answers()), given = static_cast<size_t>(request_.sampling.n);
  const auto mean = [](const Choice* c) { return c->tokens > 0 ? c->logprob_sum / c->tokens : 0.0; };
  std::vector<http::Choice> out;
  for (size_t first = 0; first < choices_.size(); first += drawn) {
    std::vector<Choice*> order;
    for (size_t i = first; i < std::min(first + drawn, choices_.size()); ++i) order.push_back(&choices_[i]);
    if (given < drawn)
      std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return mean(a) > mean(b); });
    order.resize(std::min(given, order.size()));
    for (Choice* choice : order) {
      out.push_back(std::move(choice->out));
      out.back().index = static_cast<int>(out.size() - 1);
    }
  }
  return out;
}

void Answer::write_whole() {
  MC_ASSERT(!started_ && unfinished().empty());
  for (Choice& choice : choices_) echo(choice);
  const std::vector<http::Choice> choices = take_best_choices();
  if (request_.embeds)
    return out_.respond(http::json_response(200, http::embedding_body(head_, request_, choices, usage())));
  out_.respond(http::json_response(200, http::answer_body(head_, request_, choices, usage(), explanation())));
}

void Answer::fail(const node::Reply& reply) {
  MC_ASSERT(!failed_);  // a client gets one error
  failed_ = true;
  if (started_) {
    out_.fail_stream(http::error_body(reply_error(reply)));
  } else {
    out_.respond(reply_response(reply));
  }
}

void Answer::out_of_memory() {
  if (std::exchange(failed_, true)) return;
  const Error error = user_error(err::kNotEnoughMemory, "there is not enough memory for this answer");
  if (started_)
    out_.fail_stream(http::error_body(error));
  else
    out_.respond(http::error_response(error));
}

std::vector<RequestId> Answer::unfinished() const {
  std::vector<RequestId> out;
  for (const auto& choice : choices_)
    if (!choice.ended) out.push_back(choice.req);
  return out;
}

}  // namespace mc::door

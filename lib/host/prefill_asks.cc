#include "host/prefill_asks.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/units.h"
#include "door/misses.h"
#include "node/failure.h"

namespace mc::host {
namespace {

constexpr size_t kBytesPerId = 12;               // a uint32_t in decimal, a comma and a space
constexpr size_t kOtherBytes = size_t{4} << 10;  // of a body, beside the ids
constexpr size_t kOtherValues = 64;              // in a body, beside the ids
/// A body up to this size is read by the thread of the HTTP server. It takes less than a millisecond.
constexpr size_t kInlineBytes = size_t{32} << 10;
constexpr uint64_t kLogprobsMax = 20;
constexpr size_t kShownBytes = 40;  // of a wrong value, in the error
constexpr Duration kTime = std::chrono::minutes(1);
constexpr Duration kTimeMax = std::chrono::hours(1);

Result<uint32_t> read_id(const Json& value, size_t place, uint32_t vocab) {
  const int64_t id = value.as_int(-1);
  if (value.is_int() && id >= 0 && id < int64_t{vocab}) return static_cast<uint32_t>(id);
  return user_error(err::kInvalidField,
                    "element " + std::to_string(place) + ", " + value.dump().substr(0, kShownBytes) +
                        ", is not a token id below " + std::to_string(vocab),
                    "prompt", "give token ids; mc-prefill ask -p makes them from text");
}

/// The loop and the node copy the ids and must not fail at it: throws std::bad_alloc here when there is no room.
void try_room(size_t ids) {
  constexpr size_t kSmall = size_t{1} << 20;  // the reserve covers it
  const size_t bytes = 3 * sizeof(uint32_t) * ids;
  if (memory_is_short()) throw std::bad_alloc();
  if (bytes > kSmall) ::operator delete(::operator new(bytes));
}

Error late_ask(Duration time) {
  return user_error(err::kDeadlineExceeded, "deadline of " + std::to_string(time / 1ms) + " ms passed in stage body",
                    "stage body", "raise --timeout");
}

http::Response stopping() {
  return http::error_response(err::kDraining, "the node is stopping");
}

}  // namespace

size_t AskedNode::body_bytes_max() const {
  return vocab == 0 ? 0 : context_tokens * kBytesPerId + kOtherBytes;
}

Result<PrefillAsk> PrefillAsk::parse(std::string_view body, const AskedNode& node) {
  MC_ASSERT(node.vocab > 0 && node.context_tokens > 0);
  const size_t values = size_t{node.context_tokens} + kOtherValues;
  // A value costs 40 bytes of memory. All values but the last of an array or object are followed by a comma.
  if (const auto commas = std::count(body.begin(), body.end(), ','); static_cast<size_t>(commas) >= values)
    return user_error(err::kContextLength,
                      "prompt of about " + std::to_string(commas + 1) + " tokens, this node holds " +
                          std::to_string(node.context_tokens),
                      "prompt", "shorten the prompt, or raise --kv-mem of the node");
  auto json = Json::parse(body, {.bytes = node.body_bytes_max(), .depth = 4, .values = values});
  if (!json && json.error().code == Code::no_space) return as_user_error(err::kNotEnoughMemory, json.error());
  if (!json) return user_error(err::kInvalidField, "the body is not JSON: " + json.error().what, "body");
  for (const JsonMember& member : json->members())
    if (member.key != "prompt" && member.key != "model" && member.key != "logprobs" && member.key != "no_cache")
      return user_error(err::kInvalidField, "there is no field \"" + member.key.substr(0, 100) + "\"", "body",
                        "the fields are prompt, model, logprobs and no_cache");
  const Json& prompt = (*json)["prompt"];
  if (!prompt.is_array() || prompt.size() == 0)
    return user_error(err::kInvalidField, "the prompt is not a list of token ids", "prompt",
                      "give at least one id; mc-prefill ask -p makes them from text");
  if (!node::fits_context(prompt.size(), 0, 1, node.context_tokens))
    return user_error(err::kContextLength,
                      "prompt of " + std::to_string(prompt.size()) + " tokens, this node holds " +
                          std::to_string(node.context_tokens),
                      "prompt", "shorten the prompt, or raise --kv-mem of the node");
  if (const Json* model = json->find("model"); model && model->as_string() != node.model)
    return user_error(err::kModelNotFound,
                      "the prompt is in tokens of the model \"" + std::string(model->as_string().substr(0, 100)) +
                          "\", and this node has " + node.model,
                      "model", "name the model of the node with -m");
  PrefillAsk ask;
  for (const Json& id : prompt.items()) {
    MC_TRY(read, read_id(id, ask.ids.size(), node.vocab));
    ask.ids.push_back(read);
  }
  const Json& logprobs = (*json)["logprobs"];
  const int64_t count = logprobs.as_int(ask.logprobs);
  if ((!logprobs.is_null() && !logprobs.is_int()) || count < 0 || count > int64_t{kLogprobsMax})
    return user_error(err::kInvalidField, "logprobs is not a number from 0 to " + std::to_string(kLogprobsMax),
                      "logprobs");
  ask.logprobs = static_cast<uint32_t>(count);
  const Json& no_cache = (*json)["no_cache"];
  if (!no_cache.is_null() && !no_cache.is_bool())
    return user_error(err::kInvalidField, "no_cache is neither true nor false", "no_cache");
  ask.no_cache = no_cache.as_bool();
  MC_ASSERT_EQ(ask.ids.size(), prompt.size());
  return ask;
}

Result<Duration> ask_time_left(const http::Request& request, TimePoint now) {
  MC_ASSERT(now >= request.received);
  Duration time = kTime;
  if (const std::string_view header = http::find_header(request.headers, "x-mc-deadline-ms"); !header.empty()) {
    const auto asked = parse_u64(header, 1, static_cast<uint64_t>(kTimeMax / 1ms));
    if (!asked)
      return user_error(err::kInvalidField, "not a number of milliseconds from 1 to " + std::to_string(kTimeMax / 1ms),
                        "x-mc-deadline-ms");
    time = std::chrono::milliseconds(*asked);
  }
  const Duration left = time - (now - request.received);
  if (left >= 1ms) return left;
  return late_ask(time);
}

PrefillAsks::PrefillAsks(node::MachineLoop& loop, node::Worker& worker, AskedNode node)
    : loop_(loop), worker_(worker), node_(std::move(node)) {
  if (node_.vocab > 0) pool_.emplace(door::DoorPool::Options{});
}

PrefillAsks::~PrefillAsks() {
  pool_.reset();  // its threads use the loop
  for (const auto& [req, waiting] : waiting_) waiting.out.respond(stopping());
}

void PrefillAsks::ask(http::Request request, const http::Responder& out) {
  MC_ASSERT(pool_.has_value());
  if (request.body.size() > kInlineBytes) return put_in_pool(std::move(request), out);
  take(request, out, nullptr);
}

void PrefillAsks::put_in_pool(http::Request request, const http::Responder& out) {
  const TimePoint now = SystemClock::instance().now();
  const auto left = ask_time_left(request, now);
  if (!left) return out.respond(http::error_response(left.error()));
  door::DoorPool::Job job;
  job.owner = door::client_of(request.peer);
  job.bytes = request.body.size();
  job.deadline = after(now, *left);
  job.end = [out, time = job.deadline - request.received](door::DoorPool::End end) {
    out.respond(end == door::DoorPool::End::late ? http::error_response(late_ask(time)) : stopping());
  };
  job.run = [this, out, asked = std::make_shared<const http::Request>(std::move(request))](
                const door::DoorPool::TicketPtr& ticket) { take(*asked, out, ticket); };
  switch (pool_->submit(std::move(job))) {
    case door::DoorPool::Admission::taken: return;
    case door::DoorPool::Admission::stopping: return out.respond(stopping());
    case door::DoorPool::Admission::full: break;
  }
  http::Response full = http::error_response(err::kQueueFull, "the queue of large prompts is full");
  full.headers.push_back({"Retry-After", "1"});
  out.respond(std::move(full));
}

/// Reads a request and gives it to the loop. When memory runs out, only this request fails. `ticket` is null on the
/// server's thread.
void PrefillAsks::take(const http::Request& request, const http::Responder& out,
                       const door::DoorPool::TicketPtr& ticket) {
  try {
    const FailsAlone alone;
    auto read_start = read(request);
    if (!read_start) return out.respond(http::error_response(read_start.error()));
    try_room(read_start->spec.ids.size());
    if (ticket && !ticket->settle()) return;  // the pool has answered
    loop_.post([this, start = std::move(*read_start), out, received = request.received](
                   TimePoint now, node::Actions& actions) mutable {
      start.spec.req = std::string(node::kOperators) + "-" + std::to_string(++count_);
      waiting_[start.spec.req] = {out, received, start.spec.ids.size()};
      worker_.handle(node::Received{NodeId(node::kOperators), InstanceId{}, std::move(start)}, now, actions);
    });
    return;
  } catch (const std::bad_alloc&) {
    log_warn("prompt refused: not enough memory");
  }
  out.respond(http::error_response(err::kNotEnoughMemory, "there is not enough memory for this prompt; retry"));
}

Result<wire::PrefillStart> PrefillAsks::read(const http::Request& request) const {
  MC_TRY(asked, PrefillAsk::parse(request.body, node_));
  MC_TRY(left, ask_time_left(request, SystemClock::instance().now()));
  wire::PrefillStart start;
  start.spec.prefill_attention = start.spec.decode_attention = node_.kv.attention;
  start.spec.ns = node_.kv.id();
  start.spec.ids = std::move(asked.ids);
  start.spec.no_cache = asked.no_cache;
  start.spec.sampling.temperature = 0;
  start.spec.sampling.logprobs = static_cast<int32_t>(asked.logprobs);
  start.spec.stopping.max_tokens = 1;
  start.spec.deadline_ms = static_cast<uint64_t>(left / 1ms);
  return start;
}

Json PrefillAsks::result(const wire::FirstToken& first, const Waiting& waiting) const {
  const wire::PrefillReport& report = first.report;
  const uint32_t cached = report.cached_local + report.cached_remote;
  MC_ASSERT(cached < waiting.prompt_tokens && report.cached_disk <= cached);
  Json out = Json::object({{"node", worker_.name().empty() ? node_.title : worker_.name()}, {"model", node_.model}});
  out.set("prompt_tokens", waiting.prompt_tokens).set("cached_tokens", cached);
  out.set("cached_disk_tokens", report.cached_disk).set("computed_tokens", waiting.prompt_tokens - cached);
  out.set("chunks", report.chunks).set("token", first.token).set("logprob", first.logprobs.chosen);
  Json top = Json::array();
  for (const auto& [token, logprob] : first.logprobs.top) top.push(Json::object({{"id", token}, {"logprob", logprob}}));
  out.set("top", std::move(top)).set("misses", door::misses_json(report.misses, door::MissReader::operators));
  out.set("queue_ms", report.queue_ms).set("load_ms", report.load_ms).set("compute_ms", report.compute_ms);
  return std::move(out.set("total_ms", to_ms(SystemClock::instance().now() - waiting.received)));
}

void PrefillAsks::answer(const wire::Message& message) {
  const auto* first = std::get_if<wire::FirstToken>(&message);
  const auto* failed = std::get_if<wire::Failed>(&message);
  MC_ASSERT(first || failed);
  const auto it = waiting_.find(first ? first->req : failed->req);
  if (it == waiting_.end()) return;  // its client left while the answer was on its way
  const Waiting waiting = std::move(it->second);
  waiting_.erase(it);
  if (first)
    return waiting.out.respond(
        {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = result(*first, waiting).dump()});
  const node::Failure failure = node::failure_of(*failed);
  waiting.out.respond(http::error_response(user_error(node::number_of(node::reason_of(failure)), failed->message)));
}

void PrefillAsks::drop_gone(TimePoint now, node::Actions& out) {
  std::vector<RequestId> gone;
  for (const auto& [req, waiting] : waiting_)
    if (!waiting.out.is_open()) gone.push_back(req);
  for (const RequestId& req : gone) {
    waiting_.erase(req);
    const wire::Cancel cancel{req, 1, std::string(to_string(node::CancelReason::client_gone))};
    worker_.handle(node::Received{NodeId(node::kOperators), InstanceId{}, cancel}, now, out);
  }
}

}  // namespace mc::host

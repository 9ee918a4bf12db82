#include "node/flights.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {

constexpr size_t kStraysMax = 64;  // cancels for one message with tokens of unknown attempts

/// The parts of the cluster that an attempt goes through.
std::vector<sched::Part> parts_of(const Request& r) {
  if (r.attempt.is_inlined()) return {{"", r.attempt.decode}};
  return {r.pair(), {r.attempt.prefill, ""}, {"", r.attempt.decode}};
}

/// The part that the failure is charged to; nullopt: none.
std::optional<sched::Part> part_at_fault(const Request& r, const Failure& failure) {
  const Blame blamed = blame_of(failure);
  if (blamed == Blame::nobody) return std::nullopt;
  if (r.attempt.is_inlined() || blamed == Blame::decode) return sched::Part{"", r.attempt.decode};
  return blamed == Blame::pair ? r.pair() : sched::Part{r.attempt.prefill, ""};
}

}  // namespace

RequestStage Request::stage() const {
  if (!is_placed()) return RequestStage::route;
  return attempt.first_token ? RequestStage::decode : RequestStage::prefill;
}

std::span<const BlockHash> Request::reusable(uint32_t block_tokens) const {
  const uint32_t count = may_reuse() ? kv::reusable_blocks(tokens(), block_tokens) : 0;
  return std::span(blocks.hashes).first(std::min<size_t>(count, blocks.hashes.size()));
}

wire::RequestSpec Request::spec(double tbt_slo_s, TimePoint now) const {
  wire::RequestSpec out;
  out.req = submit.req;
  out.attempt = attempt.number + 1;
  out.ids = submit.ids;
  out.ids.insert(out.ids.end(), answer.given().begin(), answer.given().end());
  out.resumed = static_cast<uint32_t>(answer.size());
  out.ns = blocks.ns;
  out.salt = submit.salt;
  out.prefill_attention = blocks.prefill_attention;
  out.decode_attention = blocks.decode_attention;
  out.sampling = submit.sampling;
  out.stopping = submit.stopping;
  out.deadline_ms = static_cast<uint64_t>(std::max<int64_t>(1, (deadline - now) / 1ms));
  out.tbt_slo_ms = 1e3 * tbt_slo_s;
  out.no_cache = submit.no_cache;
  out.reuse_nothing = damage == Damage::avoided;
  if (answer.empty()) out.prompt_logprobs = submit.prompt_logprobs;  // otherwise the client has received them
  return out;
}

// ---- looking ---------------------------------------------------------------------------------

Request& Flights::add(const Submit& submit, TimePoint deadline, TimePoint now) {
  const auto [at, fresh] = requests_.try_emplace(submit.req);
  MC_ASSERT(fresh);
  ++stats_.submitted;
  Request& r = at->second;
  r.submit = submit;
  r.arrived = now;
  r.deadline = deadline;
  r.tenant = books_.tenants.find(submit.tenant);  // a rejected request counts for its tenant too
  ++books_.tenants.count(r.tenant).submitted;
  watch(r);
  return r;
}

Request* Flights::find(const RequestId& req) {
  const auto it = requests_.find(req);
  return it == requests_.end() ? nullptr : &it->second;
}

Request* Flights::find(const RequestId& req, uint32_t attempt) {
  Request* r = find(req);
  return r && r->is_placed() && r->attempt.number == attempt ? r : nullptr;
}

std::vector<std::pair<RequestId, RequestStage>> Flights::on_node(const NodeId& name) const {
  std::vector<std::pair<RequestId, RequestStage>> out;
  for (const auto& [id, r] : requests_) {
    if (!r.is_placed()) continue;
    const Attempt& a = r.attempt;
    if (a.decode == name)
      out.emplace_back(id, a.first_token    ? RequestStage::decode
                           : a.is_inlined() ? RequestStage::prefill
                                            : RequestStage::transfer);
    else if (a.prefill == name && !a.first_token)
      out.emplace_back(id, RequestStage::prefill);
  }
  return out;
}

std::vector<RequestId> Flights::ids(const std::function<bool(const Request&)>& wanted) const {
  std::vector<RequestId> out;
  for (const auto& [id, r] : requests_)
    if (wanted(r)) out.push_back(id);
  return out;
}

// ---- time ------------------------------------------------------------------------------------

TimePoint Flights::due_of(const Request& r, bool held) {
  return std::min({r.deadline, r.is_placed() ? kNever : r.parked_until, held ? r.expires : kNever});
}

void Flights::watch(Request& r) {
  const TimePoint at = due_of(r, books_.line.contains(r.submit.req));
  if (at >= r.timer && timers_.contains({r.timer, r.submit.req})) return;
  timers_.erase({r.timer, r.submit.req});
  r.timer = at;
  timers_.emplace(at, r.submit.req);
  MC_ASSERT_EQ(timers_.size(), requests_.size());
}

std::vector<RequestId> Flights::due(TimePoint now) {
  std::vector<RequestId> out;
  for (auto at = timers_.begin(); at != timers_.end() && at->first <= now; ++at) out.push_back(at->second);
  for (const RequestId& id : out) {
    Request& r = requests_.at(id);
    timers_.erase({r.timer, id});
    r.timer = due_of(r, books_.line.contains(id));
    timers_.emplace(r.timer, id);
  }
  std::erase_if(out, [&](const RequestId& id) { return requests_.at(id).timer > now; });
  return out;
}

// ---- attempts --------------------------------------------------------------------------------

void Flights::depart(Request& r, Attempt attempt, TimePoint now) {
  MC_ASSERT(!r.is_placed());
  attempt.number = r.attempt.number + 1;
  attempt.placed_at = now;
  r.attempt = std::move(attempt);
  r.answer.restart();
  r.summary.kv = {}, r.summary.report.reads.clear();  // of the attempt before
  r.parked_until = kNever;
  books_.line.erase(r.submit.req);
  books_.board.place(r.attempt.booking, now);
  if (!r.submit.no_cache)
    books_.members.index().add_pending(static_cast<kv::NodeOrdinal>(r.attempt.booking.prefill), r.blocks.hashes);
  if (books_.breakers.empty()) return;
  for (const sched::Part& part : parts_of(r)) books_.breakers.placed(part, r.submit.req);
}

// The prefill node has finished its part. Otherwise the attempt ends before that.
void Flights::end_prefill(Request& r, TimePoint now, bool finished) {
  sched::Booking& booking = r.attempt.booking;
  const bool queued = booking.queued;
  books_.board.end_prefill(booking, now, finished);
  if (!queued) return;
  if (!r.submit.no_cache)
    books_.members.index().settle_pending(static_cast<kv::NodeOrdinal>(booking.prefill), r.blocks.hashes);
  books_.line.room_changed();
}

void Flights::unplace(Request& r, TimePoint now) {
  MC_ASSERT(r.is_placed());
  end_prefill(r, now, false);
  if (!books_.breakers.empty())
    for (const sched::Part& part : parts_of(r)) books_.breakers.left(part, r.submit.req);
  books_.board.end(r.attempt.booking, now);
  books_.line.room_changed();  // the decode node of the request has room again
}

void Flights::forget_source(int slot) {
  for (auto& [id, r] : requests_) sched::Board::forget_source(r.attempt.booking, slot);
}

// Charges the failure to breakers. A retry avoids the pair that failed this request even while the pair's breaker is
// closed.
void Flights::blame(Request& r, const Failure& failure, TimePoint now) {
  const Attempt& a = r.attempt;
  r.summary.failed.push_back({a.prefill, a.decode, failure.stage, reason_of(failure)});
  const auto part = part_at_fault(r, failure);
  if (!part) return;
  if (*part == r.pair()) r.failed_on.push_back(*part);
  // A node that left since has no breaker any more.
  const Members::Node *prefill = books_.members.find(a.prefill), *decode = books_.members.find(a.decode);
  const bool prefill_here = prefill && prefill->instance == a.prefill_instance;
  const bool decode_here = decode && decode->instance == a.decode_instance;
  if ((!part->prefill.empty() && !prefill_here) || (!part->decode.empty() && !decode_here)) return;
  books_.breakers.failed(*part, r.submit.req, a.placed_at, now);
}

// A breaker that closes makes room for held requests.
void Flights::succeed(const sched::Part& part) {
  if (!books_.breakers.empty() && books_.breakers.succeeded(part)) books_.line.room_changed();
}

void Flights::cancel_workers(const Request& r, CancelReason reason, Actions& out) {
  if (!r.is_placed()) return;
  const Attempt& a = r.attempt;
  const wire::Cancel cancel{r.submit.req, a.number, std::string(to_string(reason))};
  if (!a.is_inlined()) out.push_back(Send{a.prefill, a.prefill_instance, cancel});
  out.push_back(Send{a.decode, a.decode_instance, cancel});
}

// ---- what workers send -----------------------------------------------------------------------

// Chunks arrive in order. A chunk that is out of order, or that was not requested, is dropped.
void Flights::on_prompt_logprobs(const Received& event, const wire::PromptLogprobs& told) {
  Request* r = find(told.req, told.attempt);
  if (!r || event.instance != r->attempt.prefill_instance || r->attempt.first_token || !r->answer.empty()) return;
  auto& rows = r->attempt.prompt_logprobs;
  const bool fits = told.first == rows.size() + 1 && rows.size() + told.rows.size() < r->submit.ids.size();
  if (r->submit.prompt_logprobs < 0 || !fits) return;
  rows.insert(rows.end(), told.rows.begin(), told.rows.end());
}

// A node may report anything about its own reads: no read is longer than its attempt or brings more than the prompt.
void Flights::learn_reads(const Request& r, const NodeId& name, std::span<const wire::EndedRead> reads, TimePoint now) {
  const kv::Namespace* ns = books_.members.namespace_of(r.submit.model);
  const Members::Node* reader = books_.members.find(name);
  MC_ASSERT(reader != nullptr);
  if (!ns) return;
  const double attempt_s = to_seconds(now - r.attempt.placed_at);
  uint64_t tokens_left = r.tokens();
  for (const wire::EndedRead& read : reads.first(std::min(reads.size(), wire::kEndedReadsMax))) {
    const Members::Node* source = books_.members.find(read.node);
    if (!source || source == reader || read.tokens > tokens_left) continue;
    tokens_left -= read.tokens;
    const double read_s = std::min(read.ms * 1e-3, attempt_s);
    const double blocks = static_cast<double>(read.tokens) / ns->block_tokens;
    const double bytes = blocks * static_cast<double>(reader->hello.page_bytes);
    if (!(bytes > 0) || !(read_s > 0)) continue;
    errors_.read.observe(books_.board.transfers().seconds(source->ordinal, reader->ordinal, bytes, now), read_s);
    books_.board.read(source->slot(), reader->slot(), bytes, read_s, now);
  }
}

std::vector<Flights::Link> Flights::links(TimePoint now) const {
  const auto name = [&](uint32_t slot) { return books_.members.index().name_of(static_cast<kv::NodeOrdinal>(slot)); };
  std::vector<Link> out;
  for (const sched::TransferCosts::Pair& pair : books_.board.transfers().pairs(now))
    out.push_back({name(pair.source), name(pair.reader), pair.cost, pair.usual_s_per_byte, pair.age});
  return out;
}

void Flights::learn_prefill(const Request& r, const wire::PrefillReport& report, TimePoint now) {
  const int slot = r.attempt.booking.prefill;
  const sched::Cost& cost = books_.board.predictor(slot).cost();
  const double tokens = r.tokens(), reused = report.cached_local + report.cached_remote;
  const double seconds = report.compute_ms * 1e-3;
  if (report.fetch_hidden_ms == 0) {  // otherwise computing may have waited for layers of the prefix
    errors_.prefill.observe(cost.prefill(tokens, reused), seconds);
    books_.board.prefilled(slot, tokens, reused, seconds);
  }
  if (!report.reads.empty()) return learn_reads(r, r.attempt.prefill, report.reads, now);
  // An older node reports the time of the whole fetch. Several senders together say nothing about the rate of one.
  if (report.cached_remote == 0 || report.fallback != wire::Fallback::none || r.attempt.fetch_waited) return;
  // Beside a load from disk, fetch_ms is only what the fetch took beyond the load.
  if (report.sources.size() != 1 || report.load_ms > 0) return;
  const wire::EndedRead read{report.sources[0].first, report.cached_remote, report.fetch_ms + report.fetch_hidden_ms};
  learn_reads(r, r.attempt.prefill, std::span(&read, 1), now);
}

void Flights::on_first_token(const Received& event, const wire::FirstToken& first, TimePoint now, Actions& out) {
  Request* r = find(first.req, first.attempt);
  if (!r || event.instance != r->attempt.prefill_instance || r->attempt.first_token) return;
  // Log-probabilities of a prompt cost extra work, so such a prefill teaches the predictor nothing.
  if (r->submit.prompt_logprobs < 0) {
    learn_prefill(*r, first.report, now);
    if (r->attempt.number == 1) errors_.ttft.observe(r->summary.predicted_ttft_s, to_seconds(now - r->arrived));
  }
  r->attempt.first_token_at = now;
  if (r->answer.empty()) r->answer_began = now;
  const bool is_inlined = r->attempt.is_inlined();
  stats_.inlined += is_inlined;
  succeed(is_inlined ? sched::Part{"", r->attempt.decode} : sched::Part{r->attempt.prefill, ""});
  end_prefill(*r, now, true);
  r->attempt.first_token = true;
  books_.board.arrive(r->attempt.booking);
  if (r->answer.empty()) {
    r->summary.report = first.report;
    r->summary.report.misses = books_.evicted.explain(first.report.misses, r->blocks.hashes, r->attempt.placed_at, now);
  } else {
    r->summary.report.reads = first.report.reads;  // into the node that the summary names
  }
  r->attempt.embedding = first.embedding;
  const uint32_t index = static_cast<uint32_t>(r->answer.size());
  give(*r, {index, first.token, first.logprobs}, finish_named(first.finish_reason), now, out);
}

void Flights::on_kv_report(const Received& event, const wire::KvReport& report, TimePoint now) {
  Request* r = find(report.req, report.attempt);
  if (!r || event.instance != r->attempt.decode_instance || r->attempt.handed_over) return;
  r->summary.kv = report;
  stats_.from_holders += report.from_holders;
  if (!report.reads.empty()) return learn_reads(*r, r->attempt.decode, report.reads, now);
  // As in learn_prefill(), of an older node.
  if (report.holders.size() != 1 || report.fallback != wire::Fallback::none) return;
  const wire::EndedRead read{report.holders[0].first, report.from_holders, report.holders_ms};
  learn_reads(*r, r->attempt.decode, std::span(&read, 1), now);
}

void Flights::on_tokens(const Received& event, const wire::Tokens& tokens, TimePoint now, Actions& out) {
  if (const Members::Node* node = books_.members.of(event.instance)) {
    const double kv_tokens = static_cast<double>(tokens.kv_tokens), seconds = tokens.step_ms * 1e-3;
    errors_.step.observe(books_.board.predictor(node->slot()).cost().step(tokens.batch, kv_tokens), seconds);
    books_.board.stepped(node->slot(), tokens.batch, kv_tokens, seconds);
  }
  size_t strays = 0;
  for (const auto& row : tokens.rows) {
    Request* r = find(row.req, row.attempt);
    if (!r && ++strays <= kStraysMax)  // the attempt is over, and the node may not have got its cancel
      out.push_back(Send{event.from, event.instance,
                         wire::Cancel{row.req, row.attempt, std::string(to_string(CancelReason::superseded))}});
    if (!r || event.instance != r->attempt.decode_instance) continue;
    if (!r->attempt.handed_over) {
      if (!r->attempt.is_inlined()) succeed(r->pair());
      succeed({"", r->attempt.decode});
    }
    r->attempt.handed_over = true;
    give(*r, {row.index, row.token, row.logprobs}, finish_named(row.finish_reason), now, out);
  }
}

void Flights::give(Request& r, AnswerTokens::Token token, Finish finish, TimePoint now, Actions& out) {
  if (token.index >= r.submit.stopping.max_tokens) return;
  r.answer.put(std::move(token), finish);
  while (auto next = r.answer.take(first_with_second_)) {
    Reply reply;
    reply.req = r.submit.req;
    reply.kind = Reply::Kind::token;
    reply.index = next->index;
    reply.token = next->token;
    reply.logprobs = std::move(next->logprobs);
    if (reply.index == 0) {  // once for each request, as its prompt tokens
      const uint64_t local = r.summary.report.cached_local, remote = r.summary.report.cached_remote;
      stats_.cached_local += local;
      stats_.cached_remote += remote;
      stats_.computed += r.submit.ids.size() - std::min<uint64_t>(r.submit.ids.size(), local + remote);
      reply.summary = r.summary;
      reply.prompt_logprobs = std::move(r.attempt.prompt_logprobs);
      reply.embedding = std::move(r.attempt.embedding);
    }
    books_.board.add_tokens(r.attempt.booking, 1);
    ++stats_.answer_tokens;
    ++books_.tenants.count(r.tenant).tokens;
    books_.line.tenants().charge(r.tenant, 1, sched::seconds_of(now));
    out.push_back(std::move(reply));
  }
  MC_ASSERT_EQ(r.attempt.booking.tokens, r.tokens());
  const Finish ended = r.answer.ended();
  if (ended == Finish::none) return;
  if (r.attempt.number == 1 && r.answer.size() > 1)
    errors_.tbt.observe(r.summary.predicted_tbt_s,
                        to_seconds(now - r.attempt.first_token_at) / static_cast<double>(r.answer.size() - 1));
  this->finish(r, ended, now, out);
}

// ---- ends ------------------------------------------------------------------------------------

void Flights::finish(Request& r, Finish finish, TimePoint now, Actions& out) {
  MC_ASSERT(finish != Finish::none);
  Reply reply;
  reply.kind = Reply::Kind::finished;
  reply.finish = finish;
  if (finish == Finish::abort) {
    ++stats_.cancelled;  // the length that the answer would have reached is unknown
  } else {
    ++stats_.finished;
    // A request that is stopped before its first token says nothing about the lengths of answers.
    if (r.answer_began != kNever)
      books_.board.answered(static_cast<uint32_t>(r.answer.size()), to_seconds(now - r.answer_began));
  }
  end(r, std::move(reply), now, out);
}

Reply Flights::refusal(const Refusal& why, RequestStage stage, Reply::Kind kind) {
  MC_ASSERT(why.reason != Reason::none && stage != RequestStage::none);
  Reply reply;
  reply.kind = kind;
  reply.reason = why.reason;
  reply.stage = stage;
  reply.message = why.message;
  reply.param = why.param;
  reply.bound = why.miss.bound;
  reply.predicted_ms = why.miss.predicted_s * 1e3;
  reply.allowed_ms = why.miss.allowed_s * 1e3;
  return reply;
}

void Flights::reject(Request& r, RequestStage stage, Refusal why, TimePoint now, Actions& out) {
  ++stats_.rejected;
  ++books_.tenants.count(r.tenant).rejected;
  if (why.miss.bound != sched::Bound::none) ++stats_.missed[why.miss.bound];
  Reply reply = refusal(why, stage, Reply::Kind::rejected);
  const double over_s = why.retry_s > 0 ? why.retry_s : why.miss.predicted_s - why.miss.allowed_s;
  reply.retry_after = from_seconds(std::max(1.0, over_s));
  end(r, std::move(reply), now, out);
}

void Flights::fail(Request& r, RequestStage stage, Refusal why, TimePoint now, Actions& out) {
  ++stats_.failed;
  end(r, refusal(why, stage, Reply::Kind::failed), now, out);
}

void Flights::end(Request& r, Reply reply, TimePoint now, Actions& out) {
  const RequestId id = r.submit.req;
  if (r.is_placed()) unplace(r, now);
  books_.line.erase(id);
  timers_.erase({r.timer, id});
  if (r.admitted) {
    std::optional<double> refund;  // set when the request was rejected before any work
    if (reply.kind == Reply::Kind::rejected && r.attempt.number == 0) refund = static_cast<double>(r.submit.ids.size());
    books_.line.leave(r.tenant, r.submit.priority, refund, now);
  }
  reply.req = id;
  reply.index = static_cast<uint32_t>(r.answer.size());
  reply.summary = std::move(r.summary);
  out.push_back(std::move(reply));
  requests_.erase(id);
  MC_ASSERT_EQ(timers_.size(), requests_.size());
}

void Flights::check() const {
  MC_ASSERT_EQ(stats_.submitted,
               requests_.size() + stats_.finished + stats_.failed + stats_.rejected + stats_.cancelled);
  MC_ASSERT_EQ(timers_.size(), requests_.size());
  size_t held = 0;
  std::vector<uint32_t> admitted(books_.line.tenants().tenant_count());
  for (const auto& [id, r] : requests_) {
    const bool is_held = books_.line.contains(id);
    held += is_held;
    MC_ASSERT(!is_held || !r.is_placed());
    admitted[r.tenant] += r.admitted;
    MC_ASSERT(r.timer <= due_of(r, is_held));
    MC_ASSERT(timers_.contains({r.timer, id}));
    if (r.is_placed()) MC_ASSERT_EQ(r.attempt.booking.tokens, r.tokens());
  }
  MC_ASSERT_EQ(held, books_.line.size());
  for (uint32_t i = 0; i < admitted.size(); ++i) MC_ASSERT_EQ(admitted[i], books_.line.tenants().unfinished(i));
  // A probe is a request that was placed on the pair or node of an open breaker.
  for (const auto& [part, entry] : books_.breakers.entries()) {
    MC_ASSERT(part.prefill.empty() || books_.members.find(part.prefill));
    MC_ASSERT(part.decode.empty() || books_.members.find(part.decode));
    if (entry.probe.empty()) continue;
    const Request& r = requests_.at(entry.probe);
    MC_ASSERT(r.is_placed() && (part.prefill.empty() || part.prefill == r.attempt.prefill));
    MC_ASSERT(part.decode.empty() || part.decode == r.attempt.decode);
  }
}

}  // namespace mc::node

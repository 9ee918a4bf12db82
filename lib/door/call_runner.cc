#include "door/call_runner.h"

#include <algorithm>
#include <new>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/units.h"
#include "http/openai.h"

namespace mc::door {
namespace {

/// A body up to this size is worked on by the HTTP thread. Its size bounds parsing, merging and the search for added
/// tokens at a few milliseconds; the tokenizer's patterns have a bound of their own.
constexpr size_t kInlineBytes = size_t{32} << 10;
/// Processor time of the patterns for one request on the HTTP thread. A request that needs more moves to the pool.
constexpr Duration kInlineMatching = 5ms;
/// Least size of such a request in the pool's queue: text that takes about as long at 30 ns a byte.
constexpr size_t kCostlyBytes = size_t{160} << 10;
/// Bytes of a body that cost the tenant's quota one token, where no prompt is paid for or the body is large.
constexpr size_t kBytesPerToken = 64;

bool is_generation(http::Route route) {
  return route == http::Route::completions || route == http::Route::chat_completions;
}

std::optional<Duration> read_ms(std::string_view text) {
  constexpr int64_t kMillisMax = int64_t{7} * 24 * 3600 * 1000;
  const auto ms = parse_i64(text, 1, kMillisMax);
  return ms ? std::optional<Duration>(std::chrono::milliseconds(*ms)) : std::nullopt;
}

/// The object that the JSON `body` has under "mc", if it is short. Nothing else is checked. No text can look like the
/// object, because its quotation marks are escaped.
std::string_view find_mc(std::string_view body) {
  constexpr std::string_view kName = "\"mc\"", kBlank = " \t\r\n";
  constexpr size_t kBytesMax = 4096;
  const size_t name = body.find(kName);
  if (name == body.npos) return {};
  const size_t colon = body.find_first_not_of(kBlank, name + kName.size());
  if (colon == body.npos || body[colon] != ':') return {};
  const size_t begin = body.find_first_not_of(kBlank, colon + 1);
  if (begin == body.npos || body[begin] != '{') return {};
  int depth = 0;
  bool in_text = false;
  for (size_t at = begin; at < std::min(body.size(), begin + kBytesMax); ++at) {
    const char c = body[at];
    if (in_text && c == '\\') {
      ++at;
    } else if (c == '"') {
      in_text = !in_text;
    } else if (!in_text) {
      depth += (c == '{') - (c == '}');
      if (depth == 0) return body.substr(begin, at + 1 - begin);
    }
  }
  return {};
}

/// The deadline that a request asks for, as far as it shows before the body is parsed.
std::optional<Duration> asked_deadline(const http::Request& request, bool with_body) {
  if (const std::string_view header = http::find_header(request.headers, "x-mc-deadline-ms"); !header.empty())
    return read_ms(header);
  if (!with_body) return std::nullopt;
  const auto mc = Json::parse(find_mc(request.body), {.bytes = 4096, .depth = 8, .values = 256});
  const int64_t ms = mc ? (*mc)["deadline_ms"].as_int() : 0;
  return ms > 0 ? read_ms(std::to_string(ms)) : std::nullopt;
}

http::Response draining() {
  return http::error_response(err::kDraining, "the server is stopping");
}

}  // namespace

http::Response late_response(TimePoint received, TimePoint complete, Duration deadline) {
  const std::string stage = complete - received >= deadline ? "body" : "tokenise";
  return http::error_response(
      user_error(err::kDeadlineExceeded,
                 "deadline of " + std::to_string(deadline / 1ms) + " ms passed in stage " + stage, "stage " + stage));
}

text::EncodeLimits Call::encode_limits() const {
  text::EncodeLimits limits{.stop = [this] { return is_over(); }};
  if (!ticket) limits.matching_max = kInlineMatching;
  return limits;
}

CallRunner::CallRunner(node::MachineLoop& loop, node::Conductor& conductor, Duration deadline, Work work)
    : loop_(loop), conductor_(conductor), deadline_(deadline), work_(std::move(work)) {
  MC_ASSERT(work_);
}

bool CallRunner::set_deadline(const Call& call, Duration deadline) {
  const TimePoint received = call.request.received;
  if (SystemClock::instance().now() - received >= deadline) {
    call.respond(late_response(received, call.complete, deadline));
    return false;
  }
  if (call.ticket) pool_.set_deadline(call.ticket, after(received, deadline));
  return true;
}

// The tenant pays first: a call that it has no quota for is not worked on.
void CallRunner::take(Call given) {
  MC_ASSERT(!given.ticket && given.complete >= given.request.received);
  const auto call = std::make_shared<Call>(std::move(given));
  const Duration deadline = asked_deadline(call->request, false).value_or(deadline_);
  if (call->complete - call->request.received >= deadline)
    return call->respond(late_response(call->request.received, call->complete, deadline));
  const size_t bytes = call->request.body.size();
  const bool is_large = bytes > kInlineBytes;
  if (call->grant.tenant.empty() || (is_generation(call->route) && !is_large))
    return is_large ? put_in_pool(call) : run_inline(call);
  loop_.post([this, call, bytes](TimePoint now, node::Actions&) {
    const auto tokens = static_cast<double>((bytes + kBytesPerToken - 1) / kBytesPerToken);
    const auto unpaid = conductor_.tenants().pay(call->grant.tenant, tokens, now);
    if (!unpaid) return put_in_pool(call);
    http::Rejection rejection;
    rejection.number = err::kTenantQuota;
    rejection.message = unpaid->message;
    rejection.retry_after = std::max<Duration>(from_seconds(unpaid->retry_s), 1s);
    call->respond(http::rejection_response(rejection));
  });
}

void CallRunner::put_in_pool(std::shared_ptr<Call> call) {
  MC_ASSERT(!call->ticket);  // a call enters the pool once
  const TimePoint received = call->request.received, complete = call->complete;
  const Duration deadline = asked_deadline(call->request, true).value_or(deadline_);
  DoorPool::Job job;
  job.owner = call->grant.tenant.empty() ? client_of(call->request.peer) : "tenant " + call->grant.tenant;
  job.bytes = std::max(call->request.body.size(), call->is_costly ? kCostlyBytes : 0);
  job.deadline = after(received, deadline);
  job.end = [out = call->out, received, complete, deadline](DoorPool::End end) {
    out.respond(end == DoorPool::End::late ? late_response(received, complete, deadline) : draining());
  };
  job.run = [this, call](const DoorPool::TicketPtr& ticket) {
    call->ticket = ticket;
    if (!call->is_over()) run_alone(*call);
  };
  const DoorPool::Admission admission = pool_.submit(std::move(job));
  if (admission == DoorPool::Admission::taken) return;
  if (admission == DoorPool::Admission::stopping) return call->respond(draining());
  http::Rejection rejection;
  rejection.number = err::kQueueFull;
  rejection.message = "the queue of large requests is full; send the request again later";
  rejection.retry_after = 1s;
  call->respond(http::rejection_response(rejection));
}

void CallRunner::run_inline(const std::shared_ptr<Call>& call) {
  work_(*call);
  if (call->is_costly) put_in_pool(call);
}

/// Runs a call on a thread of the pool. When memory runs out, only this call fails, as on the HTTP thread.
void CallRunner::run_alone(Call& call) {
  MC_ASSERT(call.ticket);
  try {
    const FailsAlone alone;
    return work_(call);
  } catch (const std::bad_alloc&) {
    log_warn("request refused: not enough memory");
  }
  call.respond(http::error_response(err::kNotEnoughMemory, "there is not enough memory for this request; retry"));
}

}  // namespace mc::door

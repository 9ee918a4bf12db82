// The handler's side of an answer: every call becomes a command to the server's thread. Stream bytes are framed here,
// on the caller's thread, and counted against the connection's bound before they are queued, so a producer gets
// Code::busy at once when its reader is too slow.
#include <new>

#include "base/assert.h"
#include "base/memory_reserve.h"
#include "http/exchange.h"

namespace mc::http {
namespace {
constexpr size_t kChunkFrameBytes = 24;  // at most the length in hex and two line ends
}

namespace detail {

void Outbox::push(Command command) {
  {
    const std::lock_guard lock(mutex);
    if (wake) {
      commands.push_back(std::move(command));
      if (commands.size() == 1) wake();
      return;
    }
  }
  // The server has stopped. Only a close hook is still called.
  if (auto* hook = std::get_if<command::OnClose>(&command.what)) hook->callback(CloseReason::shutdown);
}

Exchange::~Exchange() {
  const FailsAlone uses_reserve(false);  // this may run while the stack unwinds after a failed allocation
  try {
    push(command::Dropped{});
  } catch (const std::bad_alloc&) {  // the request gets no answer and ends by the client's own time-out
  }
}

void Exchange::push(decltype(Command::what) what) {
  link_->outbox->push({link_, std::move(what)});
}

}  // namespace detail

Responder::Responder(std::shared_ptr<detail::Exchange> exchange) : exchange_(std::move(exchange)) {}

void Responder::respond(Response response) const {
  MC_ASSERT(exchange_ != nullptr);
  exchange_->push(detail::command::Respond{std::move(response)});
}

void Responder::start_stream(Headers extra) const {
  MC_ASSERT(exchange_ != nullptr);
  Headers headers = find_header(extra, "content-type").empty() ? sse_headers() : Headers();
  for (Header& header : extra) headers.push_back(std::move(header));
  exchange_->push(detail::command::Start{std::move(headers)});
}

Code Responder::send_event(std::string_view json) const {
  std::string event;
  event.reserve(json.size() + 8);
  append_sse_data(event, json);
  return send(event);
}

Code Responder::send(std::string_view bytes) const {
  MC_ASSERT(exchange_ != nullptr);
  detail::Link& link = exchange_->link();
  if (link.too_slow.load(std::memory_order_relaxed)) return Code::busy;
  if (link.closed.load(std::memory_order_acquire)) return Code::cancelled;
  if (bytes.empty() || link.head_only) return Code::ok;
  std::string framed;
  if (link.chunked) {
    framed.reserve(bytes.size() + 12);
    append_chunk(framed, bytes);
  } else {
    framed = bytes;
  }
  const size_t queued = link.queued.fetch_add(framed.size(), std::memory_order_relaxed) + framed.size();
  if (queued > link.queue_bytes_max) {
    link.too_slow.store(true, std::memory_order_relaxed);
    exchange_->push(detail::command::Abort{CloseReason::slow_reader});
    return Code::busy;
  }
  exchange_->push(detail::command::Bytes{std::move(framed)});
  return Code::ok;
}

void Responder::finish() const {
  MC_ASSERT(exchange_ != nullptr);
  exchange_->push(detail::command::Finish{});
}

void Responder::abort() const {
  MC_ASSERT(exchange_ != nullptr);
  exchange_->push(detail::command::Abort{CloseReason::aborted});
}

void Responder::fail_stream(std::string_view error_json) const {
  (void)send_event(error_json);
  abort();
}

void Responder::on_close(std::function<void(CloseReason)> callback) const {
  MC_ASSERT(exchange_ != nullptr);
  exchange_->push(detail::command::OnClose{std::move(callback)});
}

bool Responder::is_open() const {
  return exchange_ && !exchange_->link().closed.load(std::memory_order_acquire);
}

size_t Responder::queued_bytes() const {
  return exchange_ ? exchange_->link().queued.load(std::memory_order_relaxed) : 0;
}

size_t Responder::room_bytes() const {
  if (!is_open()) return 0;
  const detail::Link& link = exchange_->link();
  const size_t used = link.queued.load(std::memory_order_relaxed) + kChunkFrameBytes;
  return used < link.queue_bytes_max ? link.queue_bytes_max - used : 0;
}

std::string_view to_string(CloseReason reason) {
  static constexpr std::string_view kNames[] = {"done",         "client_gone", "head_timeout", "body_timeout",
                                                "idle_timeout", "slow_reader", "bad_request",  "too_many",
                                                "aborted",      "shutdown",    "no_memory"};
  static_assert(std::size(kNames) == kCloseReasonCount);
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace mc::http

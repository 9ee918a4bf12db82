#include "http/connection.h"

#include <algorithm>

#include "base/assert.h"
#include "base/units.h"

namespace mc::http::detail {
namespace {
constexpr std::string_view kStatusLineBegin = "HTTP/1.1 ";  // the first nine bytes of every answer
}

Connection::Connection(ConnectionHost& host, const ServerOptions& options, std::string peer)
    : host_(host), options_(options), peer_(std::move(peer)) {
  received_ = progress_ = host_.now();
  deadline_ = after(received_, options_.head_timeout);
}

Connection::~Connection() {
  MC_ASSERT(link_ == nullptr);
}

void Connection::on_bytes(std::string_view bytes, Duration age) {
  switch (phase_) {
    case Phase::idle:
    case Phase::head:
    case Phase::body: parse(bytes, age); break;
    case Phase::answering:
    case Phase::flushing: ahead_ += bytes; break;
    case Phase::refused:
    case Phase::closed: break;
  }
}

void Connection::parse(std::string_view bytes, Duration age) {
  if (phase_ == Phase::idle) {
    phase_ = Phase::head;
    deadline_ = after(host_.now(), options_.head_timeout);
  }
  if (!parser_) {
    parser_ = std::make_unique<RequestParser>(options_.limits);
    received_ = host_.now() - age;
    late_ = kNever;
  }
  const size_t used = parser_->feed(bytes);
  if (parser_->state() == RequestParser::State::failed) {
    const Response failure = parser_->failure();
    return refuse(failure, CloseReason::bad_request);
  }
  if (parser_->state() == RequestParser::State::body && phase_ == Phase::head) {
    // All bodies share one limit. A client that may not use the server is refused before its body takes a part of it.
    if (auto refusal = host_.refuse_head(parser_->head())) return refuse(*refusal, CloseReason::bad_request);
    begin_body();
  }
  if (parser_->body_bytes() > body_reserved_) {
    const size_t more = parser_->body_bytes() - body_reserved_;
    switch (host_.reserve_body(more, parser_->body_bytes())) {
      case ConnectionHost::Room::none:
        return refuse(err::kQueueFull, "too many request bodies are being read; retry", CloseReason::too_many);
      case ConnectionHost::Room::short_of_memory: return out_of_memory();
      case ConnectionHost::Room::taken: body_reserved_ += more;
    }
  }
  if (parser_->state() == RequestParser::State::done) {
    ahead_.assign(bytes.substr(used));
    begin_answer();
  }
}

void Connection::begin_body() {
  phase_ = Phase::body;
  deadline_ = after(host_.now(), options_.body_timeout);
  if (!options_.deadline_header.empty())
    if (const auto ms = parse_i64(parser_->header(options_.deadline_header), 1, INT32_MAX))
      late_ = after(received_, std::chrono::milliseconds(*ms));
  deadline_ = std::min(deadline_, late_);
  if (parser_->take_expect_continue()) out_ += "HTTP/1.1 100 Continue\r\n\r\n";
}

void Connection::begin_answer() {
  Request request = parser_->take();
  parser_.reset();
  host_.release_body(std::exchange(body_reserved_, 0));
  request.received = received_;
  request.peer = peer_;
  host_.fill_ids(request);
  request_id_ = request.request_id;
  http11_ = request.http11;
  head_only_ = request.method == Method::head;
  close_after_ = !request.keep_alive || !http11_;
  streaming_ = false;
  phase_ = Phase::answering;
  deadline_ = kNever;
  after_flush_ = CloseReason::done;
  ask_pause_ = kAskPause;
  next_ask_ = after(host_.now(), kAskPause);

  link_ = std::make_shared<Link>();
  link_->outbox = host_.outbox();
  link_->chunked = http11_;
  link_->head_only = head_only_;
  link_->queue_bytes_max = options_.queue_bytes_max;
  link_->connection = this;
  host_.dispatch(std::move(request), Responder(std::make_shared<Exchange>(link_)));
}

void Connection::refuse(err::Number number, std::string_view message, CloseReason reason) {
  Response response = error_response(number, message);
  if (response.status == 429) response.headers.push_back({"Retry-After", "1"});
  refuse(response, reason);
}

void Connection::refuse(const Response& response, CloseReason reason) {
  parser_.reset();
  host_.release_body(std::exchange(body_reserved_, 0));
  Request nameless;  // an empty request gives the answer its x-request-id
  host_.fill_ids(nameless);
  request_id_ = nameless.request_id;
  close_after_ = true;
  append_head(response.status, response.headers, Framing::length, response.body.size());
  out_ += response.body;
  phase_ = Phase::refused;
  reason_ = reason;
  deadline_ = after(host_.now(), kLinger);
}

void Connection::append_head(int status, Headers headers, Framing framing, size_t body_bytes) {
  if (find_header(headers, "x-request-id").empty()) headers.push_back({"x-request-id", request_id_});
  if (host_.draining() || framing == Framing::until_close) close_after_ = true;
  const size_t before = out_.size();
  append_response_head(out_, status, headers, framing, body_bytes, close_after_);
  MC_ASSERT_EQ(std::string_view(out_).substr(before, kStatusLineBegin.size()), kStatusLineBegin);
  out_.erase(before, std::exchange(head_begun_, 0));
  if (link_) link_->queued.fetch_add(out_.size() - before, std::memory_order_relaxed);
  host_.count_response(status);
}

void Connection::apply(Command& command) {
  if (!link_ || command.link != link_) return;
  if (auto* bytes = std::get_if<command::Bytes>(&command.what)) {
    if (!streaming_) return;
    out_ += bytes->framed;
    last_sent_ = host_.now();
  } else if (auto* answer = std::get_if<command::Respond>(&command.what)) {
    respond(std::move(answer->response));
  } else if (auto* start = std::get_if<command::Start>(&command.what)) {
    start_stream(std::move(start->headers));
  } else if (std::holds_alternative<command::Finish>(command.what)) {
    finish_stream();
  } else if (auto* stop = std::get_if<command::Abort>(&command.what)) {
    if (stop->reason == CloseReason::slow_reader) return close(stop->reason);
    close_after_ = true;
    after_flush_ = stop->reason;
    end_answer();
  } else if (auto* hook = std::get_if<command::OnClose>(&command.what)) {
    on_close_ = std::move(hook->callback);
  } else if (std::holds_alternative<command::Dropped>(command.what)) {
    if (phase_ != Phase::answering) return;
    if (!streaming_) return respond(error_response(err::kInternal, "the request was dropped without an answer"));
    close_after_ = true;
    after_flush_ = CloseReason::aborted;
    end_answer();
  }
}

void Connection::respond(Response response) {
  if (streaming_) {  // a second answer ends the stream, without the mark of completeness
    close_after_ = true;
    after_flush_ = CloseReason::aborted;
    return end_answer();
  }
  const bool bodyless = response.status == 204 || response.status == 304;
  append_head(response.status, std::move(response.headers), bodyless ? Framing::none : Framing::length,
              response.body.size());
  if (!head_only_ && !bodyless) {
    link_->queued.fetch_add(response.body.size(), std::memory_order_relaxed);
    out_ += response.body;
  }
  end_answer();
}

void Connection::start_stream(Headers headers) {
  if (streaming_) return;
  is_event_stream_ = find_header(headers, "content-type").starts_with("text/event-stream");
  append_head(200, std::move(headers), http11_ ? Framing::chunked : Framing::until_close, 0);
  streaming_ = true;
  last_sent_ = host_.now();
  if (head_only_) end_answer();
}

void Connection::finish_stream() {
  if (!streaming_) return respond(error_response(err::kInternal, "the stream ended before it began"));
  if (http11_) {
    out_ += kLastChunk;
    link_->queued.fetch_add(kLastChunk.size(), std::memory_order_relaxed);
  }
  end_answer();
}

void Connection::end_answer() {
  on_close_ = nullptr;
  release_link(false);
  phase_ = Phase::flushing;
  if (unsent().empty()) on_written(0);
}

void Connection::release_link(bool is_lost) {
  if (!link_) return;
  link_->connection = nullptr;
  link_->is_lost = is_lost;
  link_->lost_reason = reason_;
  link_->closed.store(true, std::memory_order_release);
  link_.reset();
  host_.end_answer();
}

void Connection::on_written(size_t count) {
  out_done_ += count;
  progress_ = host_.now();
  if (link_)
    link_->queued.fetch_sub(std::min(count, link_->queued.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  if (out_done_ < out_.size()) {
    if (out_done_ >= kAheadMax) {
      out_.erase(0, out_done_);
      out_done_ = 0;
    }
    return;
  }
  out_done_ = 0;
  if (out_.capacity() > kKeepBytes)
    std::string().swap(out_);
  else
    out_.clear();
  if (phase_ != Phase::flushing) return;
  if (close_after_) return close(after_flush_);
  next_request();
}

void Connection::next_request() {
  if (host_.draining()) return close(CloseReason::shutdown);
  phase_ = Phase::idle;
  waiting_since_ = host_.now();
  deadline_ = after(waiting_since_, options_.idle_timeout);
  if (!ahead_.empty()) {
    const std::string bytes = std::exchange(ahead_, {});
    parse(bytes);
  }
  const bool is_reading = phase_ == Phase::idle || phase_ == Phase::head || phase_ == Phase::body;
  if (input_ended_ && is_reading) close(phase_ == Phase::idle ? CloseReason::done : CloseReason::client_gone);
}

/// Sends one byte of the status line, whose first nine are those of every answer, or a comment of the event stream. A
/// client that closed only its sending side takes it; the kernel of one that is gone answers with a reset, which
/// on_lost() reports. One byte at a time, since a client may take the first and close afterwards. In the middle of
/// another body than an event stream the next bytes of the body do the same.
void Connection::ask_for_life() {
  const size_t before = out_.size();
  if (!streaming_ && head_begun_ < kStatusLineBegin.size()) {
    out_ += kStatusLineBegin[head_begun_++];
  } else if (is_event_stream_ && http11_) {
    append_chunk(out_, kSsePing);
  } else if (is_event_stream_) {
    out_ += kSsePing;
  }
  if (link_) link_->queued.fetch_add(out_.size() - before, std::memory_order_relaxed);
  next_ask_ = after(host_.now(), ask_pause_);
  ask_pause_ = streaming_ ? std::min(2 * ask_pause_, options_.ping_interval) : 2 * ask_pause_;
}

void Connection::on_end_of_input() {
  input_ended_ = true;
  // The answer is still delivered: the client may have closed only its side.
  if (phase_ == Phase::answering) return ask_for_life();
  if (phase_ == Phase::flushing) {
    if (unsent().empty()) close(CloseReason::client_gone);
    return;
  }
  close(phase_ == Phase::refused ? reason_ : CloseReason::client_gone);
}

void Connection::on_lost() {
  input_ended_ = true;
  close(phase_ == Phase::refused ? reason_ : CloseReason::client_gone);
}

void Connection::on_tick() {
  const TimePoint now = host_.now();
  if (!unsent().empty() && now - progress_ > options_.write_timeout) return close(CloseReason::slow_reader);
  if (unsent().empty()) progress_ = now;
  if (now >= deadline_) {
    switch (phase_) {
      case Phase::head:
        if (!parser_) return close(CloseReason::head_timeout);  // the client never sent a byte
        return refuse(err::kSlowClient, "the request head did not arrive in time", CloseReason::head_timeout);
      case Phase::body:
        if (now >= late_)
          return refuse(err::kDeadlineExceeded,
                        "deadline of " + std::to_string((late_ - received_) / 1ms) + " ms passed in stage body",
                        CloseReason::body_timeout);
        return refuse(err::kSlowClient, "the request body did not arrive in time", CloseReason::body_timeout);
      case Phase::idle: return close(CloseReason::idle_timeout);
      case Phase::refused: return close(reason_);
      default: return;
    }
  }
  if (phase_ == Phase::answering && input_ended_ && unsent().empty() && now >= next_ask_) ask_for_life();
  if (phase_ == Phase::answering && is_event_stream_ && streaming_ && unsent().empty() &&
      now - last_sent_ >= options_.ping_interval) {
    const size_t before = out_.size();
    if (http11_)
      append_chunk(out_, kSsePing);
    else
      out_ += kSsePing;
    link_->queued.fetch_add(out_.size() - before, std::memory_order_relaxed);
    last_sent_ = now;
  }
}

void Connection::out_of_memory() {
  if (phase_ != Phase::head && phase_ != Phase::body) return close(CloseReason::no_memory);
  refuse(err::kNotEnoughMemory, "there is not enough memory to read this request; retry", CloseReason::no_memory);
}

void Connection::close(CloseReason reason) {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  reason_ = reason;
  parser_.reset();
  host_.release_body(std::exchange(body_reserved_, 0));
  std::string().swap(ahead_);
  const auto callback = std::exchange(on_close_, nullptr);
  release_link(true);
  if (callback) callback(reason);
}

}  // namespace mc::http::detail

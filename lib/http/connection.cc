#include "http/connection.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::http::detail {

Connection::Connection(ConnectionHost& host, const ServerOptions& options, std::string peer)
    : host_(host),
      options_(options),
      peer_(std::move(peer)),
      deadline_(after(host.now(), options.head_timeout)),
      output_(host.now()) {}

Connection::~Connection() {
  MC_ASSERT(!answer_);
}

void Connection::on_bytes(std::string_view bytes, Duration age) {
  if (is_reading()) return parse(bytes, age);
  if (phase_ == Phase::answering || phase_ == Phase::flushing) ahead_ += bytes;
}

void Connection::parse(std::string_view bytes, Duration age) {
  MC_ASSERT(is_reading());
  if (phase_ == Phase::idle) {
    phase_ = Phase::head;
    deadline_ = after(host_.now(), options_.head_timeout);
  }
  if (!intake_) intake_ = std::make_unique<Intake>(options_, host_.bodies(), host_.now() - age);
  const size_t used = intake_->feed(bytes);
  const RequestParser& parser = intake_->parser();
  if (parser.state() == RequestParser::State::failed) return refuse(parser.failure(), CloseReason::bad_request);
  if (parser.state() == RequestParser::State::body && phase_ == Phase::head) {
    // All bodies share one limit. A client that may not use the server is refused before its body takes a part of it.
    if (auto refusal = host_.refuse_head(parser.head())) return refuse(std::move(*refusal), CloseReason::bad_request);
    begin_body();
  }
  switch (intake_->reserve()) {
    case BodyBudget::Room::none:
      return refuse(err::kQueueFull, "too many request bodies are being read; retry", CloseReason::too_many);
    case BodyBudget::Room::short_of_memory: return out_of_memory();
    case BodyBudget::Room::taken: break;
  }
  if (parser.state() != RequestParser::State::done) return;
  ahead_.assign(bytes.substr(used));
  begin_answer();
}

void Connection::begin_body() {
  phase_ = Phase::body;
  if (intake_->begin_body()) output_.append("HTTP/1.1 100 Continue\r\n\r\n");
  deadline_ = std::min(after(host_.now(), options_.body_timeout), intake_->late());
}

void Connection::begin_answer() {
  MC_ASSERT(!answer_);
  Request request = intake_->take();
  intake_.reset();
  request.peer = peer_;
  request.id = new_request_id();
  const std::string_view given = find_header(request.headers, "x-request-id");
  request.request_id = is_sane_request_id(given) ? std::string(given) : request.id;
  phase_ = Phase::answering;
  deadline_ = kNever;

  auto link = std::make_shared<Link>();
  link->outbox = host_.outbox();
  link->chunked = request.http11;
  link->head_only = request.method == Method::head;
  link->queue_bytes_max = options_.queue_bytes_max;
  Responder responder(std::make_shared<Exchange>(link));
  answer_.emplace(host_, options_, output_, request, link);
  link->connection = this;  // no later step fails, so the host counts every answer that was dispatched
  host_.dispatch(std::move(request), std::move(responder));
}

void Connection::refuse(err::Number number, std::string_view message, CloseReason reason) {
  Response response = error_response(number, message);
  if (response.status == 429) response.headers.push_back({"Retry-After", "1"});
  refuse(std::move(response), reason);
}

void Connection::refuse(Response response, CloseReason reason) {
  MC_ASSERT(is_reading());
  intake_.reset();
  response.headers.push_back({"x-request-id", new_request_id()});
  append_answer_head(output_, host_, response.status, response.headers, Framing::length, response.body.size(), true);
  output_.append(response.body);
  phase_ = Phase::refused;
  reason_ = reason;
  deadline_ = after(host_.now(), kLinger);
}

void Connection::apply(Command& command) {
  if (!answer_ || !answer_->takes(command)) return;
  switch (answer_->apply(command)) {
    case AnswerWriter::State::under_way: return;
    case AnswerWriter::State::too_slow: return close(CloseReason::slow_reader);
    case AnswerWriter::State::cut_off: close_after_answer_ = CloseReason::aborted; break;
    case AnswerWriter::State::complete:
      if (answer_->closes()) close_after_answer_ = CloseReason::done;
  }
  end_answer();
}

void Connection::end_answer() {
  MC_ASSERT(phase_ == Phase::answering);
  answer_->release();
  answer_.reset();
  phase_ = Phase::flushing;
  if (output_.is_empty()) on_written(0);
}

void Connection::on_written(size_t count) {
  output_.on_written(count, host_.now());
  if (answer_) answer_->on_written(count);
  if (phase_ != Phase::flushing || !output_.is_empty()) return;
  if (close_after_answer_) return close(*close_after_answer_);
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
  if (input_ended_ && is_reading()) close(phase_ == Phase::idle ? CloseReason::done : CloseReason::client_gone);
}

void Connection::on_end_of_input() {
  input_ended_ = true;
  // The answer is still delivered, because the client may have closed only its side.
  if (phase_ == Phase::answering) return answer_->probe();
  if (phase_ == Phase::flushing && !output_.is_empty()) return;
  close(phase_ == Phase::refused ? reason_ : CloseReason::client_gone);
}

void Connection::on_lost() {
  input_ended_ = true;
  close(phase_ == Phase::refused ? reason_ : CloseReason::client_gone);
}

void Connection::on_tick() {
  const TimePoint now = host_.now();
  if (output_.is_stalled(now, options_.write_timeout, options_.lent_bytes_min)) return close(CloseReason::slow_reader);
  if (now >= deadline_) return end_phase(now);
  if (answer_) answer_->on_tick(input_ended_);
}

/// The phase's deadline has passed.
void Connection::end_phase(TimePoint now) {
  switch (phase_) {
    case Phase::head:
      if (!intake_) return close(CloseReason::head_timeout);  // the client never sent a byte
      return refuse(err::kSlowClient, "the request head did not arrive in time", CloseReason::head_timeout);
    case Phase::body:
      if (now >= intake_->late())
        return refuse(err::kDeadlineExceeded,
                      "deadline of " + std::to_string(intake_->deadline_ms()) + " ms passed in stage body",
                      CloseReason::body_timeout);
      return refuse(err::kSlowClient, "the request body did not arrive in time", CloseReason::body_timeout);
    case Phase::idle: return close(CloseReason::idle_timeout);
    case Phase::refused: return close(reason_);
    case Phase::answering:
    case Phase::flushing:
    case Phase::closed: return;
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
  intake_.reset();
  std::string().swap(ahead_);
  if (!answer_) return;
  const auto callback = answer_->lose(reason);
  answer_.reset();
  if (callback) callback(reason);
}

}  // namespace mc::http::detail

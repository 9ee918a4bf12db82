#include "http/answer_writer.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::http::detail {
namespace {

constexpr std::string_view kStatusLineBegin = "HTTP/1.1 ";  // the first nine bytes of every answer
constexpr size_t kHeadBytesUsual = 256;                     // bytes of most heads
constexpr Duration kProbePause = 250ms;                     // pause before the second probe; it doubles each time

}  // namespace

size_t append_answer_head(Output& output, ConnectionHost& host, int status, const Headers& headers, Framing framing,
                          size_t body_bytes, bool closes, size_t begun) {
  std::string head;
  head.reserve(kHeadBytesUsual);
  append_response_head(head, status, headers, framing, body_bytes, closes);
  MC_ASSERT_EQ(std::string_view(head).substr(0, kStatusLineBegin.size()), kStatusLineBegin);
  MC_ASSERT_LE(begun, kStatusLineBegin.size());
  output.append(std::string_view(head).substr(begun));
  host.count_response(status);
  return head.size() - begun;
}

AnswerWriter::AnswerWriter(ConnectionHost& host, const ServerOptions& options, Output& output, const Request& request,
                           std::shared_ptr<Link> link)
    : host_(host),
      options_(options),
      output_(output),
      link_(std::move(link)),
      request_id_(request.request_id),
      http11_(request.http11),
      head_only_(request.method == Method::head),
      closes_(!request.keep_alive || !request.http11),
      probe_pause_(kProbePause),
      next_probe_(after(host.now(), kProbePause)) {
  MC_ASSERT(link_ != nullptr);
}

AnswerWriter::State AnswerWriter::apply(Command& command) {
  MC_ASSERT(takes(command));
  if (auto* bytes = std::get_if<command::Bytes>(&command.what)) {
    if (!is_stream_) return State::under_way;
    output_.append(bytes->framed);  // Responder::send() has counted them
    last_sent_ = host_.now();
    return State::under_way;
  }
  if (auto* answer = std::get_if<command::Respond>(&command.what)) return respond(std::move(answer->response));
  if (auto* start = std::get_if<command::Start>(&command.what)) return start_stream(std::move(start->headers));
  if (std::holds_alternative<command::Finish>(command.what)) return finish_stream();
  if (auto* stop = std::get_if<command::Abort>(&command.what))
    return stop->reason == CloseReason::slow_reader ? State::too_slow : State::cut_off;
  if (std::holds_alternative<command::Dropped>(command.what))
    return is_stream_ ? State::cut_off
                      : respond(error_response(err::kInternal, "the request was dropped without an answer"));
  if (auto* hook = std::get_if<command::OnClose>(&command.what)) on_close_ = std::move(hook->callback);
  return State::under_way;
}

AnswerWriter::State AnswerWriter::respond(Response response) {
  if (is_stream_) return State::cut_off;  // a second answer ends the stream, without the mark of completeness
  const bool bodyless = response.status == 204 || response.status == 304;
  MC_ASSERT(response.lent.empty() || response.held);
  if (response.held) output_.hold(std::move(response.held));
  const size_t bytes = response.body.size() + response.lent.size();
  append_head(response.status, std::move(response.headers), bodyless ? Framing::none : Framing::length,
              head_only_ && bytes == 0 ? response.get_bytes : bytes);
  if (head_only_ || bodyless) return State::complete;
  append_counted(response.body);
  output_.lend(response.lent);
  link_->queued.fetch_add(response.lent.size(), std::memory_order_relaxed);
  return State::complete;
}

AnswerWriter::State AnswerWriter::start_stream(Headers headers) {
  if (is_stream_) return State::under_way;
  may_ping_ = find_header(headers, "content-type").starts_with("text/event-stream");
  if (!http11_) closes_ = true;
  append_head(200, std::move(headers), http11_ ? Framing::chunked : Framing::until_close, 0);
  is_stream_ = true;
  last_sent_ = host_.now();
  return head_only_ ? State::complete : State::under_way;
}

AnswerWriter::State AnswerWriter::finish_stream() {
  if (!is_stream_) return respond(error_response(err::kInternal, "the stream ended before it began"));
  if (http11_) append_counted(kLastChunk);
  return State::complete;
}

void AnswerWriter::append_head(int status, Headers headers, Framing framing, size_t body_bytes) {
  if (find_header(headers, "x-request-id").empty()) headers.push_back({"x-request-id", request_id_});
  if (host_.draining()) closes_ = true;
  const size_t bytes =
      append_answer_head(output_, host_, status, headers, framing, body_bytes, closes_, std::exchange(head_begun_, 0));
  link_->queued.fetch_add(bytes, std::memory_order_relaxed);
}

void AnswerWriter::append_counted(std::string_view bytes) {
  output_.append(bytes);
  link_->queued.fetch_add(bytes.size(), std::memory_order_relaxed);
}

void AnswerWriter::append_ping() {
  std::string framed;
  if (http11_)
    append_chunk(framed, kSsePing);
  else
    framed = kSsePing;
  append_counted(framed);
}

void AnswerWriter::on_written(size_t count) {
  link_->queued.fetch_sub(std::min(count, link_->queued.load(std::memory_order_relaxed)), std::memory_order_relaxed);
}

void AnswerWriter::probe() {
  if (!is_stream_ && head_begun_ < kStatusLineBegin.size()) {
    append_counted(kStatusLineBegin.substr(head_begun_++, 1));
  } else if (may_ping_) {
    append_ping();
  }
  next_probe_ = after(host_.now(), probe_pause_);
  probe_pause_ = is_stream_ ? std::min(2 * probe_pause_, options_.ping_interval) : 2 * probe_pause_;
}

void AnswerWriter::on_tick(bool input_ended) {
  const TimePoint now = host_.now();
  if (input_ended && output_.is_empty() && now >= next_probe_) probe();
  if (!may_ping_ || !output_.is_empty() || now - last_sent_ < options_.ping_interval) return;
  append_ping();
  last_sent_ = now;
}

std::function<void(CloseReason)> AnswerWriter::lose(CloseReason reason) {
  auto callback = std::exchange(on_close_, nullptr);
  release(true, reason);
  return callback;
}

void AnswerWriter::release(bool is_lost, CloseReason reason) {
  on_close_ = nullptr;
  link_->connection = nullptr;
  link_->is_lost = is_lost;
  link_->lost_reason = reason;
  link_->closed.store(true, std::memory_order_release);
  host_.end_answer();
}

}  // namespace mc::http::detail

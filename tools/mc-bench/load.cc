#include "load.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <thread>

#include "base/fd.h"
#include "base/histogram.h"
#include "print.h"

namespace mc::bench {
namespace {

constexpr Duration kPrepareAhead = 25ms;  // a body of 100,000 ids takes some milliseconds to write

std::string request_body(const PlannedRequest& r, const Target& target) {
  std::string body = "{\"model\":";
  append_json_string(body, target.model);
  if (target.is_chat) {
    body += ",\"messages\":[{\"role\":\"user\",\"content\":";
    append_json_string(body, r.text);
    body += "}]";
  } else if (!r.text.empty()) {
    body += ",\"prompt\":";
    append_json_string(body, r.text);
  } else {
    body += ",\"prompt\":[";
    for (uint32_t id : prompt_ids(r.prompt, target.tokens)) body += std::to_string(id) + ",";
    body.back() = ']';
  }
  body += ",\"max_tokens\":" + std::to_string(r.output_tokens);
  body += ",\"temperature\":" + format_f64(target.temperature);
  body += ",\"seed\":" + std::to_string(target.tokens.seed & 0x7FFFFFFF);
  body += target.ignore_eos ? ",\"ignore_eos\":true" : "";
  body += ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"return_token_ids\":true";
  body += ",\"mc\":{\"explain\":true}}";
  return body;
}

/// Rejected: capacity exists but was refused, or is absent; no work was spent.
bool is_rejection(int status, std::string_view code) {
  return status == 429 || (status == 503 && (code == "no_prefill" || code == "no_decode" || code == "draining"));
}

class Load {
 public:
  Load(const Plan& plan, const Target& target, const Progress& progress)
      : plan_(plan), target_(target), progress_(progress), live_(plan.requests.size()) {
    out_.records.resize(plan.requests.size());
  }

  Result<void> open() {
    MC_TRY(client, http::Client::open(target_.base_url));
    client_ = std::move(client);
    return {};
  }
  void stop() { client_->stop(); }

  LoadResult run() {
    begin_ = steady_now() + 2 * kPrepareAhead;
    for (size_t i = 0; i < plan_.requests.size(); ++i) {
      out_.records[i].planned_s = to_seconds(plan_.requests[i].at);
      out_.records[i].input_tokens = plan_.requests[i].input_tokens;
      live_[i].planned = begin_ + plan_.requests[i].at;
    }
    prepare_next();
    if (progress_.shown) tick();
    (void)client_->run();
    closing_ = true;
    out_.interrupted = ended_ < plan_.requests.size();
    out_.duration_s = std::max(0.0, to_seconds((out_.interrupted ? steady_now() : last_end_) - begin_));
    if (progress_.shown && progress_.terminal) (void)write_all(2, "\r\x1b[K");
    return std::move(out_);
  }

 private:
  struct Live {
    TimePoint planned, last_token;
    std::string body;
    uint64_t chunks_tokens = 0;
    bool done_seen = false;
  };

  // One timer at a time: each request's preparation arms its own sending and the next preparation, so a
  // plan of a million requests does not become a million timers.
  void prepare_next() {
    if (prepared_ == plan_.requests.size()) return;
    const size_t i = prepared_++;
    client_->at(live_[i].planned - kPrepareAhead, [this, i] {
      live_[i].body = request_body(plan_.requests[i], target_);
      client_->at(live_[i].planned, [this, i] { due(i); });
      prepare_next();
    });
  }

  void due(size_t i) {
    out_.records[i].late_s = std::max(0.0, to_seconds(steady_now() - live_[i].planned));
    if (target_.max_concurrency != 0 && flying_ >= target_.max_concurrency)
      waiting_.push_back(i);
    else
      send(i);
  }

  void send(size_t i) {
    Record& record = out_.records[i];
    record.queued_s = std::max(0.0, to_seconds(steady_now() - live_[i].planned) - record.late_s);
    out_.max_concurrent = std::max<uint64_t>(out_.max_concurrent, ++flying_);
    http::ClientCall call{.method = http::Method::post,
                          .target = target_.path,
                          .headers = target_.headers,
                          .body = std::move(live_[i].body),
                          .deadline = live_[i].planned + target_.timeout};
    client_->start(std::move(call),
                   {.head = {},
                    .event = [this, i](std::string_view data, TimePoint at) { event(i, data, at); },
                    .done = [this, i](http::ClientOutcome&& outcome) { done(i, std::move(outcome)); }});
  }

  void event(size_t i, std::string_view data, TimePoint at) {
    Record& record = out_.records[i];
    Live& live = live_[i];
    if (data == "[DONE]") {
      live.done_seen = true;
      return;
    }
    auto chunk = Json::parse(data);
    if (!chunk) {
      record.error = "an event is not JSON: " + chunk.error().what;
      return;
    }
    const Json& c = *chunk;
    if (c.has("error")) {
      record.error = std::string(c["error"]["message"].as_string());
      record.reason = std::string(c["error"]["code"].as_string());
      return;
    }
    const Json& choice = c["choices"][0];
    // Servers that do not return ids are counted by text: a chunk is a token then, until usage says better.
    const std::string_view text =
        target_.is_chat ? choice["delta"]["content"].as_string() : choice["text"].as_string();
    const size_t tokens = choice["token_ids"].is_array() ? choice["token_ids"].size() : text.empty() ? 0 : 1;
    if (tokens > 0) {
      if (live.chunks_tokens == 0)
        record.ttft_s = to_seconds(at - live.planned);
      else
        record.itl_s.push_back(to_seconds(at - live.last_token));
      live.last_token = at;
      live.chunks_tokens += tokens;
    }
    if (const Json& usage = c["usage"]; usage.is_object()) {
      record.output_tokens = static_cast<uint64_t>(usage["completion_tokens"].as_int());
      record.input_tokens = static_cast<uint64_t>(usage["prompt_tokens"].as_int(plan_.requests[i].input_tokens));
      record.cached_tokens = static_cast<uint64_t>(usage["prompt_tokens_details"]["cached_tokens"].as_int());
    }
    if (c.has("mc")) record.stages = c["mc"];
  }

  void done(size_t i, http::ClientOutcome&& outcome) {
    if (closing_) return;  // abandoned by an interrupt
    Record& record = out_.records[i];
    const Live& live = live_[i];
    --flying_;
    ++ended_;
    last_end_ = std::max(last_end_, outcome.times.ended);
    record.http_status = outcome.http_status;
    record.e2el_s = to_seconds(outcome.times.ended - live.planned);
    if (record.output_tokens == 0) record.output_tokens = live.chunks_tokens;
    if (!outcome.status) {
      record.error = outcome.status.error().what;
    } else if (outcome.http_status != 200) {
      auto body = Json::parse(outcome.body);
      const Json error = body ? (*body)["error"] : Json();
      record.reason = std::string(error["code"].as_string());
      record.error = "HTTP " + std::to_string(outcome.http_status) + ": " +
                     std::string(error["message"].as_string(std::string_view(outcome.body).substr(0, 200)));
    } else if (record.error.empty() && !live.done_seen) {
      record.error = "the stream ended without [DONE]";
    } else if (record.error.empty() && live.chunks_tokens == 0) {
      record.error = "the answer has no tokens";
    }
    record.outcome = record.error.empty()                               ? Outcome::completed
                     : is_rejection(outcome.http_status, record.reason) ? Outcome::rejected
                                                                        : Outcome::failed;
    failed_ += record.outcome != Outcome::completed;
    if (record.outcome == Outcome::completed) ttft_ms_.record(record.ttft_s * 1000);
    if (!waiting_.empty()) {
      const size_t next = waiting_.front();
      waiting_.pop_front();
      send(next);
    }
    // A progress timer may still wait; it must not hold the run back.
    if (ended_ == plan_.requests.size()) client_->stop();
  }

  // [=====>    ] 251/500 4.0/s ttft p50 540ms p99 1.71s inflight 23 fail 0 eta 62s
  void tick() {
    const TimePoint at = steady_now();
    const double elapsed_s = std::max(1e-9, to_seconds(at - begin_));
    const size_t total = plan_.requests.size();
    std::string line = std::to_string(ended_) + "/" + std::to_string(total);
    line += " " + (ended_ > 0 ? fixed(static_cast<double>(ended_) / elapsed_s, 1) : "-") + "/s";
    line += " ttft p50 " + ttft_text(.5) + " p99 " + ttft_text(.99);
    line += " inflight " + std::to_string(flying_) + " fail " + std::to_string(failed_) + " eta ";
    const double one_s = ended_ > 0 ? elapsed_s / static_cast<double>(ended_) : 0;
    line += ended_ > 0 ? fixed(one_s * static_cast<double>(total - ended_), 0) + "s" : "-";
    if (progress_.terminal)
      (void)write_all(2, "\r\x1b[K" + with_bar(line, terminal_columns(2)));
    else if (at >= begin_)
      (void)write_all(2, with_bar(line, kTerminalColumns) + "\n");
    client_->at(at + (progress_.terminal ? kTerminalEvery : kLogEvery), [this] { tick(); });
  }

  std::string ttft_text(double q) const {
    if (ttft_ms_.count() == 0) return "-";
    std::string text = human_duration(from_seconds(ttft_ms_.quantile(q) / 1000));
    std::erase(text, ' ');
    return text;
  }

  /// A progress line must stay short of the last column, or the terminal wraps it.
  std::string with_bar(const std::string& line, size_t columns) const {
    const size_t room = columns > line.size() + 4 ? std::min<size_t>(columns - line.size() - 4, 10) : 0;
    if (room < 3 || plan_.requests.empty()) return line.substr(0, columns - 1);
    std::string bar(ended_ * room / plan_.requests.size(), '=');
    if (bar.size() < room) bar += ">" + std::string(room - bar.size() - 1, ' ');
    return "[" + bar + "] " + line;
  }

  const Plan& plan_;
  const Target& target_;
  const Progress progress_;
  LoadResult out_;
  std::vector<Live> live_;
  std::deque<size_t> waiting_;
  TimePoint begin_{}, last_end_{};
  size_t prepared_ = 0, ended_ = 0, flying_ = 0, failed_ = 0;
  bool closing_ = false;
  Histogram ttft_ms_;
  std::unique_ptr<http::Client> client_;  // last: its callbacks touch the rest
};

/// Waits on a thread of its own for an interrupt and stops the loop.
class Interrupt {
 public:
  static Result<std::unique_ptr<Interrupt>> watch(int fd, Load& load) {
    MC_TRY(over, EventFd::open());
    return std::unique_ptr<Interrupt>(new Interrupt(fd, std::move(over), load));
  }
  ~Interrupt() {
    over_.signal();
    thread_.join();
  }

 private:
  Interrupt(int fd, EventFd over, Load& load) : over_(std::move(over)) {
    thread_ = std::thread([this, fd, &load] {
      pollfd fds[2] = {{over_.fd(), POLLIN, 0}, {fd, POLLIN, 0}};
      while (::poll(fds, 2, -1) < 0 && errno == EINTR) {
      }
      if (fds[1].revents != 0) load.stop();
    });
  }
  EventFd over_;
  std::thread thread_;
};

}  // namespace

Result<LoadResult> run_load(const Plan& plan, const Target& target, int interrupt_fd, const Progress& progress) {
  Load load(plan, target, progress);
  MC_CHECK(load.open());
  MC_TRY(interrupt, Interrupt::watch(interrupt_fd, load));  // ends before the client that it stops
  return load.run();
}

}  // namespace mc::bench

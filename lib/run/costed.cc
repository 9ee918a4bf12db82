#include "run/costed.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"

namespace mc::run {
namespace {

TimePoint now() {
  return SystemClock::instance().now();
}

}  // namespace

Result<std::unique_ptr<Costed>> Costed::open(CostedOptions options) {
  Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return {Code::io, std::string("timerfd: ") + std::strerror(errno)};
  return std::unique_ptr<Costed>(new Costed(std::move(options), std::move(timer)));
}

Costed::Costed(CostedOptions options, Fd timer)
    : options_(std::move(options)), standin_(options_.layout), timer_(std::move(timer)) {
  const ExtentLayout& layout = options_.layout;
  bytes_scale_ = static_cast<double>(options_.profile.kv_bytes_per_token) * layout.block_tokens /
                 static_cast<double>(layout.layers * layout.layer_bytes());
}

std::vector<std::byte*> Costed::pages_of(const std::vector<uint32_t>& indexes) const {
  std::vector<std::byte*> pages;
  for (uint32_t index : indexes) {
    MC_ASSERT_LT(index, options_.page_count);
    pages.push_back(options_.pool + size_t{index} * options_.layout.page_bytes());
  }
  return pages;
}

void Costed::at(TimePoint when, Due due) {
  due_.emplace(when, std::move(due));
  arm();
}

// Steady clock and CLOCK_MONOTONIC are the same on Linux, so due times are absolute timer values.
void Costed::arm() {
  itimerspec spec{};
  if (!due_.empty()) {
    const auto ns = std::max<int64_t>(due_.begin()->first.time_since_epoch() / 1ns, 1);
    spec.it_value = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  MC_ASSERT_EQ(::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr), 0);
}

void Costed::submit(node::RunChunk run) {
  queue_.emplace_back(std::move(run));
  start_next();
}

void Costed::submit(node::RunStep run) {
  queue_.emplace_back(std::move(run));
  start_next();
}

void Costed::start_next() {
  if (current_.index() != 0 || queue_.empty()) return;
  auto run = std::move(queue_.front());
  queue_.erase(queue_.begin());
  failed_ = false;
  began_ = now();
  if (auto* chunk = std::get_if<node::RunChunk>(&run))
    begin_chunk(std::move(*chunk));
  else
    begin_step(std::move(std::get<node::RunStep>(run)));
}

void Costed::begin_chunk(node::RunChunk run) {
  const sched::Profile& p = options_.profile;
  const uint32_t bt = options_.layout.block_tokens;
  const double begin = run.start, end = begin + static_cast<double>(run.tokens.size());
  double seconds = p.chunk_s + p.chunk_compute_s(begin, end);
  const bool first = run.start == run.reused;
  if (first) seconds += p.fixed_s() + p.reused_s_per_token * run.reused;
  // The prefix came from a cache or from other nodes: the whole of it is looked at once.
  const uint32_t blocks = run.start / bt;
  if (auto sound = standin_.verify(pages_of(run.pages), run.start, first ? 0 : blocks - 1); !sound)
    failed_ = true, failure_ = std::move(sound).error();
  if (run.prompt_logprobs >= 0 && !run.targets.empty())
    failed_ = true,
    failure_ = Error{Code::invalid, "--runner costed computes no logits: a prompt has no log-probabilities here"};
  const uint32_t layers = options_.layout.layers;
  for (uint32_t layer = 0; !failed_ && layer < layers; ++layer)
    at(began_ + from_seconds(seconds * (layer + 1) / layers), ChunkLayer{layer});
  node::ChunkDone done;
  done.run = run.run;
  done.elapsed = from_seconds(seconds);
  current_ = std::move(run);
  at(failed_ ? began_ : began_ + done.elapsed, std::move(done));
}

void Costed::begin_step(node::RunStep run) {
  double kv_tokens = 0, joining = 0;
  for (const auto& row : run.rows) kv_tokens += row.position + 1, joining += row.joined;
  const sched::Profile& p = options_.profile;
  const double seconds = p.step_s(static_cast<double>(run.rows.size()), kv_tokens) + joining * p.join_s;
  node::StepDone done;
  done.run = run.run;
  done.elapsed = from_seconds(seconds);
  current_ = std::move(run);
  at(began_ + done.elapsed, std::move(done));
}

// What is due of a cancelled chunk is dropped, but its end comes, at once.
void Costed::cancel(uint64_t run) {
  const auto* chunk = std::get_if<node::RunChunk>(&current_);
  if (chunk == nullptr || chunk->run != run) return;  // a step runs on; the role queues no second run
  std::erase_if(due_, [](const auto& due) {
    return std::holds_alternative<ChunkLayer>(due.second) || std::holds_alternative<node::ChunkDone>(due.second);
  });
  failed_ = true;
  failure_ = Error{Code::cancelled, "cancelled"};
  node::ChunkDone done;
  done.run = run;
  at(now(), std::move(done));
}

std::optional<node::Event> Costed::next() {
  uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  if (due_.empty() || due_.begin()->first > now()) {
    arm();
    return std::nullopt;
  }
  Due due = std::move(due_.begin()->second);
  due_.erase(due_.begin());
  arm();
  if (const auto* layer = std::get_if<ChunkLayer>(&due)) return finish_layer(layer->layer);
  if (auto* read = std::get_if<node::ReadDone>(&due)) {
    link_.end(read->read, now());  // carried: nobody behind it gains
    return std::move(*read);
  }
  node::Event event;
  if (auto* chunk = std::get_if<node::ChunkDone>(&due)) {
    finish_chunk(*chunk);
    event = std::move(*chunk);
  } else {
    auto& step = std::get<node::StepDone>(due);
    finish_step(step);
    event = std::move(step);
  }
  current_ = std::monostate{};
  start_next();
  return event;
}

node::Event Costed::finish_layer(uint32_t layer) {
  const auto& run = std::get<node::RunChunk>(current_);
  const auto pages = pages_of(run.pages);
  standin_.write(pages, layer, run.start, run.tokens);
  const ExtentLayout& layout = options_.layout;
  node::LayerDone done{run.run, layer, run.start / layout.block_tokens, {}};
  for (size_t block = done.first_block; block < pages.size(); ++block)
    done.crcs.push_back(crc32c({pages[block] + layout.layer_offset(layer), layout.layer_bytes()}));
  return done;
}

void Costed::finish_chunk(node::ChunkDone& done) {
  const auto& run = std::get<node::RunChunk>(current_);
  if (failed_) {
    done.code = failure_.code, done.what = failure_.what;
    return;
  }
  if (!run.sample) return;
  const uint32_t end = run.start + static_cast<uint32_t>(run.tokens.size());
  const auto tag = standin_.verify(pages_of(run.pages), end, (end - 1) / options_.layout.block_tokens);
  if (!tag) {
    done.code = tag.error().code, done.what = tag.error().what;
    return;
  }
  done.sampled.token = Standin::token_after(*tag, options_.vocab);
}

void Costed::finish_step(node::StepDone& done) {
  const auto& run = std::get<node::RunStep>(current_);
  const ExtentLayout& layout = options_.layout;
  for (const auto& row : run.rows) {
    const auto pages = pages_of(row.pages);
    const uint32_t last = row.position / layout.block_tokens;
    // Everything that arrived is looked at once; after that only this step writes here.
    const auto before = standin_.verify(pages, row.position, row.joined || last == 0 ? 0 : last - 1);
    if (!before) {
      done.code = before.error().code, done.what = before.error().what;
      done.rows.clear();
      return;
    }
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      standin_.write(pages, layer, row.position, {&row.token, 1});
    node::StepRow out;
    out.sampled.token = Standin::token_after(Standin::extend(*before, row.token), options_.vocab);
    if ((row.position + 1) % layout.block_tokens == 0)
      for (uint32_t layer = 0; layer < layout.layers; ++layer)
        out.sealed_crcs.push_back(crc32c({pages[last] + layout.layer_offset(layer), layout.layer_bytes()}));
    done.rows.push_back(std::move(out));
  }
}

void Costed::reading(const node::Read& read) {
  double bytes = 0;
  for (const auto& slice : read.slices) bytes += slice.bytes;
  link_.begin(read.read, from_seconds(bytes * bytes_scale_ / options_.profile.net.bytes_per_s), now());
}

// The link is free for the reads behind it: those that have really arrived are told when it has carried them now.
void Costed::end_read(uint64_t read) {
  link_.end(read, now());
  std::vector<Due> held;
  std::erase_if(due_, [&](auto& due) {
    const auto* done = std::get_if<node::ReadDone>(&due.second);
    if (done == nullptr || !link_.carried_at(done->read)) return false;
    held.push_back(std::move(due.second));
    return true;
  });
  const Duration latency = from_seconds(options_.profile.net.latency_s);
  for (Due& due : held) {
    const TimePoint when = *link_.carried_at(std::get<node::ReadDone>(due).read) + latency;
    at(when, std::move(due));
  }
}

// What has arrived but is not carried yet ends now; what has not, when the data plane says so.
void Costed::cancel_read(uint64_t read) {
  const auto held = std::ranges::find_if(due_, [&](const auto& due) {
    const auto* done = std::get_if<node::ReadDone>(&due.second);
    return done != nullptr && done->read == read;
  });
  if (held != due_.end()) {
    due_.erase(held);
    at(now(), node::ReadDone{read, Code::cancelled, "cancelled"});
  }
  end_read(read);
}

std::optional<node::Event> Costed::hold(node::Event event) {
  auto* done = std::get_if<node::ReadDone>(&event);
  const auto carried = done ? link_.carried_at(done->read) : std::nullopt;
  if (!carried) return event;
  const TimePoint when = *carried + from_seconds(options_.profile.net.latency_s);
  if (done->code != Code::ok || when <= now()) {
    end_read(done->read);
    return event;
  }
  at(when, std::move(*done));
  return std::nullopt;
}

}  // namespace mc::run

#include "costed/costed.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"

namespace mc::costed {
namespace {

TimePoint now() {
  return SystemClock::instance().now();
}

/// The part of a node that the chunk needs and a costed worker lacks; "" = none.
std::string_view lack_of(const node::RunChunk& run) {
  if (run.sample && !run.sampling.grammar.empty()) return "tokenizer, so it cannot force the form of an answer";
  if (run.sample && run.sampling.embed) return "model, so it computes no embedding";
  return "";
}

}  // namespace

Result<std::unique_ptr<Costed>> Costed::open(CostedOptions options) {
  Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return {Code::io, std::string("timerfd: ") + std::strerror(errno)};
  return std::unique_ptr<Costed>(new Costed(std::move(options), std::move(timer)));
}

Costed::Costed(CostedOptions options, Fd timer)
    : options_(std::move(options)), standin_(options_.layout), timer_(std::move(timer)) {}

std::byte* Costed::page(uint32_t index) const {
  MC_ASSERT_LT(index, options_.page_count);
  return options_.pool + size_t{index} * options_.layout.page_bytes();
}

std::vector<std::byte*> Costed::pages_of(const std::vector<uint32_t>& indexes) const {
  std::vector<std::byte*> pages;
  pages.reserve(indexes.size());
  for (const uint32_t index : indexes) pages.push_back(page(index));
  return pages;
}

void Costed::at(TimePoint when, Due due) {
  due_.emplace(when, std::move(due));
  arm();
}

// Steady clock and CLOCK_MONOTONIC are the same on Linux, so due times are absolute timer values.
void Costed::arm() {
  itimerspec spec{};
  if (!due_.empty() && !is_waiting()) {
    const auto ns = std::max<int64_t>(due_.begin()->first.time_since_epoch() / 1ns, 1);
    spec.it_value = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  MC_ASSERT_EQ(::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr), 0);
}

void Costed::submit(node::ComputeWork work) {
  if (auto* load = std::get_if<node::LoadPages>(&work)) return begin_load(std::move(*load));
  queue_.push_back(std::move(work));
  start_next();
}

void Costed::start_next() {
  while (current_.index() == 0 && !queue_.empty()) {
    node::ComputeWork work = std::move(queue_.front());
    queue_.erase(queue_.begin());
    failed_ = false;
    began_ = now();
    if (auto* chunk = std::get_if<node::RunChunk>(&work))
      begin_chunk(std::move(*chunk));
    else if (auto* step = std::get_if<node::RunStep>(&work))
      begin_step(std::move(*step));
    else if (const auto* join = std::get_if<node::JoinBatch>(&work))
      MC_ASSERT(batch_.try_emplace(join->sequence, Sequence{pages_of(join->pages), join->position}).second);
    else if (const auto* leave = std::get_if<node::LeaveBatch>(&work))
      MC_ASSERT_EQ(batch_.erase(leave->sequence), 1u);
  }
}

std::span<uint64_t> Costed::activations(uint32_t slot, size_t tokens) const {
  MC_ASSERT_LT(slot, node::ActivationSlots::count());
  MC_ASSERT_LE(tokens * sizeof(uint64_t), options_.slots.slot_bytes);
  return {reinterpret_cast<uint64_t*>(options_.pool + options_.slots.offset(slot)), tokens};
}

double Costed::chunk_seconds(const node::RunChunk& run) const {
  const sched::Profile& p = options_.profile;
  const double begin = run.start, end = begin + static_cast<double>(run.tokens.size());
  double seconds = p.chunk_s + p.chunk_compute_s(begin, end);
  if (run.start == run.reused) seconds += p.fixed_s();
  // The copies of a prefix to the device, which the tier there does for itself.
  if (run.start == run.reused && run.device_pages.empty()) seconds += p.reused_s_per_token * run.reused;
  return seconds * options_.share;
}

std::vector<uint32_t> Costed::rotten(const node::RunChunk& run) const {
  const ExtentLayout& layout = options_.layout;
  const LayerRange held = layout.held();
  MC_ASSERT(run.prefix_crcs.size() % held.count() == 0);
  std::vector<uint32_t> out;
  for (size_t i = 0; i < run.prefix_crcs.size(); ++i) {
    const auto block = static_cast<uint32_t>(i / held.count());
    const auto layer = held.first + static_cast<uint32_t>(i % held.count());
    const uint32_t crc = crc32c({page(run.pages.at(block)) + layout.layer_offset(layer), layout.layer_bytes()});
    if (crc != run.prefix_crcs[i] && (out.empty() || out.back() != block)) out.push_back(block);
  }
  return out;
}

/// Checks what the chunk is computed from: the KV before it, and the activations that the stage before handed on. Fills
/// tags_.
Result<void> Costed::check_inputs(const node::RunChunk& run) {
  if (run.prompt_logprobs >= 0 && !run.targets.empty())
    return {Code::invalid, "--runner costed computes no logits: a prompt has no log-probabilities here"};
  if (layers_here_ < options_.layout.layers) return {};  // not in a pipeline; prefix_here() checks it when it is here
  // The prefix came from a cache or from other nodes, so the first chunk checks the whole of it.
  const bool is_first = run.start == run.reused;
  MC_TRY(before,
         standin_.verify(pages_of(run.pages), run.start, is_first ? 0 : run.start / options_.layout.block_tokens - 1));
  tags_.clear();
  for (const uint32_t token : run.tokens)
    tags_.push_back(Standin::extend(tags_.empty() ? before : tags_.back(), token));
  const uint32_t first_layer = options_.layout.held().first;
  const auto is_of = [&](uint64_t row, uint64_t tag) { return row == Standin::activation(tag, first_layer); };
  if (first_layer > 0 && !std::ranges::equal(activations(run.slots.in, tags_.size()), tags_, is_of))
    return {Code::corrupt, "the activations of positions " + std::to_string(run.start) + ".." +
                               std::to_string(run.start + run.tokens.size()) +
                               " are of other tokens or layers than the chunk"};
  return {};
}

void Costed::fail(Error error) {
  failed_ = true;
  failure_ = std::move(error);
}

void Costed::begin_chunk(node::RunChunk run) {
  node::ChunkDone done;
  done.run = run.run;
  done.rotten = rotten(run);
  layers_here_ = run.layers_here;
  const bool is_cancelled = cancelled_.erase(run.run) > 0;
  double seconds = 0;
  if (!done.rotten.empty())
    fail({Code::corrupt, std::to_string(done.rotten.size()) + " cached blocks changed in memory; the first is block " +
                             std::to_string(done.rotten.front()) + " of the prompt"});
  else if (is_cancelled)
    fail({Code::cancelled, "cancelled"});
  else if (!run.tokens.empty()) {  // otherwise a stage has its part of a cached prefix checked
    seconds = chunk_seconds(run);
    if (auto sound = check_inputs(run); !sound) fail(std::move(sound).error());
  }
  const LayerRange held = options_.layout.held();
  layer_time_ = from_seconds(seconds / held.count());
  const Duration whole = from_seconds(seconds);
  Duration late{};  // a layer is computed when that of the prefix is on the device (Mooncake 5.2)
  for (uint32_t n = 0; !run.tokens.empty() && !failed_ && n < held.count(); ++n) {
    late = std::max(late, on_device_at(run, n + 1) - (began_ + whole * n / held.count()));
    at(began_ + late + whole * (n + 1) / held.count(), ChunkLayer{held.first + n});
  }
  done.elapsed = whole + late;
  current_ = std::move(run);
  at(failed_ ? began_ : began_ + done.elapsed, std::move(done));
}

void Costed::begin_load(node::LoadPages load) {
  const ExtentLayout& layout = options_.layout;
  MC_ASSERT(!load.pages.empty() && load.crcs.size() == load.pages.size() * layout.layers);
  const sched::Profile& p = options_.profile;
  const double bytes = static_cast<double>(load.pages.size() * layout.block_tokens * p.kv_bytes_per_token);
  Load at{.asked = std::move(load), .began = std::max(now(), loads_end_)};
  at.layer_time = from_seconds(p.paths.load.seconds(bytes) / layout.layers);
  loads_end_ = at.began + at.layer_time * layout.layers;
  node::PagesLoaded done;
  done.load = at.asked.load;
  done.busy = loads_end_ - at.began;
  loads_.emplace(done.load, std::move(at));
  this->at(loads_end_, std::move(done));
}

void Costed::finish_load(node::PagesLoaded& done) {
  const Load load = std::move(loads_.extract(done.load).mapped());
  const ExtentLayout& layout = options_.layout;
  for (uint32_t i = 0; i < load.asked.pages.size(); ++i)
    for (uint32_t layer = 0; layer < layout.layers; ++layer) {
      const std::byte* extent = page(load.asked.pages[i]) + layout.layer_offset(layer);
      if (crc32c({extent, layout.layer_bytes()}) == load.asked.crcs[size_t{i} * layout.layers + layer]) continue;
      done.rotten.push_back(i);
      break;
    }
  if (done.rotten.empty()) return;
  done.code = Code::corrupt;
  done.what = std::to_string(done.rotten.size()) + " cached blocks changed in memory";
}

TimePoint Costed::on_device_at(const node::RunChunk& run, uint32_t count) const {
  TimePoint at{};
  for (const auto& [number, load] : loads_) {
    const auto uses = [&](uint32_t page) {
      return std::ranges::find(run.device_pages, page) != run.device_pages.end();
    };
    if (std::ranges::any_of(load.asked.device_pages, uses)) at = std::max(at, load.began + load.layer_time * count);
  }
  return at;
}

void Costed::begin_step(node::RunStep run) {
  double kv_tokens = 0, joining = 0;
  for (const auto& row : run.rows->in) kv_tokens += row.position + 1, joining += row.joined;
  const sched::Profile& p = options_.profile;
  const double seconds = p.step_s(static_cast<double>(run.rows->in.size()), kv_tokens) + joining * p.join_s;
  node::StepDone done;
  done.run = run.run;
  done.rows = run.rows;
  done.elapsed = from_seconds(seconds);
  current_ = std::move(run);
  at(began_ + done.elapsed, std::move(done));
}

bool Costed::is_waiting() const {
  if (due_.empty()) return false;
  const auto* next = std::get_if<ChunkLayer>(&due_.begin()->second);
  return next != nullptr && next->layer >= layers_here_;
}

void Costed::prefix_here(uint64_t run, uint32_t layers) {
  const auto* chunk = std::get_if<node::RunChunk>(&current_);
  if (chunk == nullptr || chunk->run != run || layers <= layers_here_) return;
  if (is_waiting()) {  // the layer begins now, and the later ones follow it
    const Duration late = now() - (due_.begin()->first - layer_time_);
    std::multimap<TimePoint, Due> later;
    for (auto& [when, due] : due_) later.emplace(when + std::max(late, Duration{}), std::move(due));
    due_ = std::move(later);
  }
  layers_here_ = layers;
  if (layers >= options_.layout.layers)
    if (auto sound = standin_.verify(pages_of(chunk->pages), chunk->start); !sound)
      return fail_chunk(std::move(sound).error());
  arm();
}

// A step runs on.
void Costed::cancel(uint64_t run) {
  const auto* chunk = std::get_if<node::RunChunk>(&current_);
  if (chunk != nullptr && chunk->run == run) return fail_chunk({Code::cancelled, "cancelled"});
  const auto waits = [&](const node::ComputeWork& work) {
    const auto* queued = std::get_if<node::RunChunk>(&work);
    return queued != nullptr && queued->run == run;
  };
  if (std::ranges::any_of(queue_, waits)) cancelled_.insert(run);
}

/// Drops the layers of the current chunk that are left. Its end comes at once.
void Costed::fail_chunk(Error error) {
  const uint64_t run = std::get<node::RunChunk>(current_).run;
  std::erase_if(due_, [](const auto& due) {
    return std::holds_alternative<ChunkLayer>(due.second) || std::holds_alternative<node::ChunkDone>(due.second);
  });
  fail(std::move(error));
  node::ChunkDone done;
  done.run = run;
  at(now(), std::move(done));
}

std::optional<node::Event> Costed::next() {
  uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  if (due_.empty() || is_waiting() || due_.begin()->first > now()) {
    arm();
    return std::nullopt;
  }
  Due due = std::move(due_.begin()->second);
  due_.erase(due_.begin());
  arm();
  if (const auto* layer = std::get_if<ChunkLayer>(&due)) return finish_layer(layer->layer);
  if (auto* loaded = std::get_if<node::PagesLoaded>(&due)) {
    finish_load(*loaded);
    return std::move(*loaded);
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
  if (const std::string_view lack = lack_of(run); !lack.empty()) {
    done.code = Code::unsupported;
    done.what = "this worker models times and has no " + std::string(lack);
    return;
  }
  const LayerRange held = options_.layout.held();
  if (held.end < options_.layout.layers && !run.tokens.empty()) {  // the next stage computes from them
    const auto out = activations(run.slots.out, tags_.size());
    std::ranges::transform(tags_, out.begin(), [&](uint64_t tag) { return Standin::activation(tag, held.end); });
    done.activations_crc = crc32c(std::as_bytes(out));
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
  done.rows->out.resize(done.rows->in.size());
  for (size_t i = 0; i < done.rows->in.size(); ++i) {
    const auto finished = finish_row(done.rows->in[i], done.rows->out[i]);
    if (finished) continue;
    done.code = finished.error().code, done.what = finished.error().what;
    return;
  }
}

Result<void> Costed::finish_row(const node::RunRow& row, node::StepRow& out) {
  const ExtentLayout& layout = options_.layout;
  Sequence& sequence = batch_.at(row.sequence);
  out.sealed_crcs.clear();
  if (row.page != node::RunRow::kNoPage) sequence.pages.push_back(page(row.page));
  const uint32_t last = row.position / layout.block_tokens;
  MC_ASSERT(row.position == sequence.position && row.token != node::RunRow::kFed);  // its role waits for each step
  MC_ASSERT_EQ(sequence.pages.size(), last + 1);
  // Everything that arrived is looked at once; after that only this step writes here.
  MC_TRY(before, standin_.verify(sequence.pages, row.position, row.joined || last == 0 ? 0 : last - 1));
  for (uint32_t layer = 0; layer < layout.layers; ++layer)
    standin_.write(sequence.pages, layer, row.position, {&row.token, 1});
  out.sampled.token = Standin::token_after(Standin::extend(before, row.token), options_.vocab);
  if (++sequence.position % layout.block_tokens == 0)
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      out.sealed_crcs.push_back(crc32c({sequence.pages[last] + layout.layer_offset(layer), layout.layer_bytes()}));
  return {};
}

}  // namespace mc::costed

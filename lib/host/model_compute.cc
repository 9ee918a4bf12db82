#include "host/model_compute.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/memory_reserve.h"

namespace mc::host {
namespace {

/// The name of a sequence for the runner, where 0 is none.
constexpr uint64_t name_of(uint64_t sequence) {
  return sequence + 1;
}

/// The draw of the token at told.position.
model::DrawRow draw_of(const node::JoinBatch& told) {
  MC_ASSERT_LE(told.prompt_tokens, told.position);
  const bool may_end = told.position - told.prompt_tokens >= told.min_tokens;
  return {&told.sampling, told.position, told.history, told.prompt_tokens,
          may_end ? std::span<const uint32_t>{} : told.banned};
}

node::SampledToken to_node(const ops::Sampled& sampled) {
  node::SampledToken out;
  out.token = sampled.token;
  out.logprobs.chosen = sampled.logprob;
  for (const auto& top : sampled.top) out.logprobs.top.emplace_back(top.token, top.logprob);
  return out;
}

}  // namespace

Result<std::unique_ptr<ModelCompute>> ModelCompute::open(model::Runner runner, Parallel& parallel,
                                                         const ComputeOptions& options) {
  MC_ASSERT(options.pool != nullptr && options.page_count > 0);
  MC_TRY(wake, EventFd::open());
  return std::unique_ptr<ModelCompute>(new ModelCompute(std::move(runner), parallel, std::move(wake), options));
}

ModelCompute::ModelCompute(model::Runner runner, Parallel& parallel, EventFd wake, const ComputeOptions& options)
    : runner_(std::move(runner)),
      model_(runner_.model()),
      parallel_(parallel),
      sampler_(runner_.kernels()),
      constraints_(Constraints::open(model_.directory(), model_.config().vocab)),
      options_(options),
      layout_(runner_.layout()),
      queue_(std::move(wake)) {
  logits_.resize(size_t{runner_.options().max_batch} * model_.config().vocab);
  thread_ = std::thread([this] { loop(); });
}

ModelCompute::~ModelCompute() {
  queue_.stop();
  thread_.join();
}

std::string ModelCompute::kernels() const {
  return runner_.kernels().name;
}

std::optional<node::Event> ModelCompute::next() {
  auto event = queue_.next();
  if (event && std::holds_alternative<node::HostError>(*event)) is_lost_ = true;
  return event;
}

std::optional<Error> ModelCompute::lost() const {
  return is_lost_ ? failure_ : std::nullopt;
}

void ModelCompute::finish(node::Event done) {
  queue_.finish(std::move(done));
  if (options_.device == nullptr || !options_.device->failure() || failure_) return;
  failure_ = options_.device->failure();
  queue_.post(node::HostError{failure_->what});
}

void ModelCompute::loop() {
  while (auto work = queue_.take()) {
    if (const auto* chunk = std::get_if<node::RunChunk>(&*work))
      finish(run_chunk(*chunk));
    else if (const auto* step = std::get_if<node::RunStep>(&*work))
      finish(run_step(*step));
    else if (auto* joins = std::get_if<node::JoinBatch>(&*work))
      join(std::move(*joins));
    else
      leave(std::get<node::LeaveBatch>(*work));
  }
}

Result<attn::Plan> ModelCompute::plan(const std::string& text) const {
  MC_TRY(asked, attn::parse_plan(text));
  return attn::resolve(asked, model_.config().attention, static_cast<int32_t>(model_.config().layers),
                       static_cast<int32_t>(layout_.block_tokens));
}

std::span<float> ModelCompute::activations(uint32_t slot, size_t tokens) const {
  MC_ASSERT_LT(slot, node::ActivationSlots::count());
  MC_ASSERT_LE(tokens * model_.config().hidden * sizeof(float), options_.slots.slot_bytes);
  auto* start = reinterpret_cast<float*>(options_.pool + options_.slots.offset(slot));
  return {start, tokens * model_.config().hidden};
}

std::vector<uint32_t> ModelCompute::layer_crcs(const node::RunChunk& run, uint32_t layer) const {
  if (const auto made = runner_.checksums(layer); !made.empty()) return {made.begin(), made.end()};
  std::vector<uint32_t> crcs;
  for (size_t block = run.start / layout_.block_tokens; block < run.pages.size(); ++block)
    crcs.push_back(crc32c({page(run.pages[block]) + layout_.layer_offset(layer), layout_.layer_bytes()}));
  return crcs;
}

uint32_t ModelCompute::row_crc(size_t row, const std::byte* page, uint32_t layer) const {
  if (const auto made = runner_.checksums(layer); !made.empty()) return made[row];
  return crc32c({page + layout_.layer_offset(layer), layout_.layer_bytes()});
}

// One pass over the bytes at the speed of memory, by all threads; computing what they hold again would take hundreds of
// times as long.
std::vector<uint32_t> ModelCompute::rotten(std::span<const uint32_t> pages, std::span<const uint32_t> crcs,
                                           LayerRange layers) const {
  const uint32_t each = layers.end - layers.first;
  MC_ASSERT(each > 0 && crcs.size() % each == 0 && crcs.size() / each <= pages.size());
  for (const uint32_t index : pages.first(crcs.size() / each)) MC_ASSERT_LT(index, options_.page_count);
  std::vector<char> bad(crcs.size());
  parallel_.for_each(static_cast<int64_t>(crcs.size()), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    const uint32_t layer = layers.first + static_cast<uint32_t>(at % each);
    bad[at] = crc32c({page(pages[at / each]) + layout_.layer_offset(layer), layout_.layer_bytes()}) != crcs[at];
  });
  std::vector<uint32_t> out;
  for (uint32_t block = 0; block < crcs.size() / each; ++block)
    if (std::any_of(bad.begin() + block * each, bad.begin() + (block + 1) * each, [](char b) { return b != 0; }))
      out.push_back(block);
  return out;
}

std::vector<std::byte*> ModelCompute::pages_of(const node::RunChunk& run) const {
  const size_t end = run.start + run.tokens.size();
  MC_ASSERT_LE(end, run.pages.size() * layout_.block_tokens);
  std::vector<std::byte*> pages;
  for (uint32_t index : run.pages) {
    MC_ASSERT_LT(index, options_.page_count);
    pages.push_back(page(index));
  }
  if (end % layout_.block_tokens != 0) std::fill_n(pages.back(), layout_.page_bytes(), std::byte{0});
  return pages;
}

node::ChunkDone ModelCompute::run_chunk(const node::RunChunk& run) {
  const TimePoint began = SystemClock::instance().now();
  node::ChunkDone done;
  done.run = run.run;
  const auto fail = [&](const Error& error) {
    done.code = error.code, done.what = error.what;
    return done;
  };
  done.rotten =
      rotten(run.pages, run.prefix_crcs, {run.first_layer, run.end_layer == 0 ? layout_.layers : run.end_layer});
  if (!done.rotten.empty())
    return fail({Code::corrupt, std::to_string(done.rotten.size()) + " cached blocks changed in memory; the first is " +
                                    "block " + std::to_string(done.rotten.front()) + " of the prompt"});
  if (run.tokens.empty()) return done;
  const auto chosen = plan(run.attention);
  if (!chosen) return fail(chosen.error());
  std::vector<std::byte*> pages = pages_of(run);
  model::PrefillChunk chunk;
  chunk.tokens = run.tokens, chunk.start = run.start;
  chunk.pages = pages.data();
  chunk.plan = &*chosen;
  const size_t vocab = model_.config().vocab;
  const bool hands_on = run.end_layer != 0 && run.end_layer < layout_.layers;
  chunk.first_layer = run.first_layer, chunk.end_layer = run.end_layer;
  if (run.first_layer > 0) chunk.activations_in = activations(run.slot_in, run.tokens.size());
  if (hands_on) chunk.activations_out = activations(run.slot_out, run.tokens.size());
  if (run.sample) chunk.logits = std::span(logits_).first(vocab);
  if (run.sample && run.sampling.embed) {
    hidden_.resize(model_.config().hidden);
    chunk.hidden = hidden_;
  }
  chunk.on_layer = [&](uint32_t layer) {
    queue_.post(node::LayerDone{run.run, layer, run.start / layout_.block_tokens, layer_crcs(run, layer)});
    return !queue_.is_cancelled(run.run);
  };
  MC_ASSERT(options_.device == nullptr || run.layers_here >= layout_.layers);  // it copies layers ahead
  chunk.before_prefix = [&](uint32_t layer) { return queue_.await_prefix(run.run, layer + 1); };
  std::optional<Error> broken;
  if (run.prompt_logprobs >= 0 && !run.targets.empty()) {
    if (hands_on || run.targets.size() > run.tokens.size() ||
        std::any_of(run.targets.begin(), run.targets.end(), [&](uint32_t token) { return token >= vocab; }))
      return fail({Code::invalid, std::to_string(run.targets.size()) + " targets of " +
                                      std::to_string(run.tokens.size()) + " tokens, or ids outside the vocabulary"});
    chunk.scored = run.targets.size();
    chunk.on_logits = [&](size_t row, std::span<const float> logits) {
      auto scored = sampler_.score(logits, run.targets[row], static_cast<size_t>(run.prompt_logprobs));
      if (!scored) {
        broken = std::move(scored).error();
        return false;
      }
      done.prompt_logprobs.push_back({scored->logprob, scored->rank, {}});
      for (const auto& top : scored->top) done.prompt_logprobs.back().top.emplace_back(top.token, top.logprob);
      return !queue_.is_cancelled(run.run);
    };
  }
  if (auto ran = runner_.prefill(chunk); !ran) return fail(broken.value_or(ran.error()));
  if (hands_on) done.activations_crc = crc32c(std::as_bytes(chunk.activations_out));
  if (run.sample) {
    auto first = draw_first(run, chunk.logits);
    if (!first) return fail(first.error());
    done.sampled = std::move(*first);
    if (run.sampling.embed) {
      const auto bytes = std::as_bytes(std::span(hidden_));
      done.sampled.embedding.resize(bytes.size());
      std::memcpy(done.sampled.embedding.data(), bytes.data(), bytes.size());
    }
  }
  done.elapsed = SystemClock::instance().now() - began;
  return done;
}

ModelCompute::Sequence::Sequence(node::JoinBatch join, const ExtentLayout& layout)
    : told(std::move(join)), plan(attn::Plan{}), centroids(layout) {}

void ModelCompute::join(node::JoinBatch joins) {
  const auto [it, fresh] = batch_.try_emplace(joins.sequence, std::move(joins), layout_);
  MC_ASSERT(fresh);
  Sequence& sequence = it->second;
  MC_ASSERT_EQ(sequence.told.pages.size(), sequence.told.position / layout_.block_tokens + 1);
  sequence.plan = plan(sequence.told.attention);
  sequence.pages.reserve(sequence.told.tokens_max / layout_.block_tokens + 1);
  for (const uint32_t index : sequence.told.pages) {
    MC_ASSERT_LT(index, options_.page_count);
    sequence.pages.push_back(page(index));
  }
  if (sequence.told.sampling.needs_history()) sequence.told.history.reserve(sequence.told.tokens_max + size_t{1});
}

void ModelCompute::leave(const node::LeaveBatch& leaves) {
  runner_.forget(name_of(leaves.sequence));
  MC_ASSERT_EQ(batch_.erase(leaves.sequence), 1u);
}

node::StepDone ModelCompute::run_step(const node::RunStep& run) {
  const TimePoint began = SystemClock::instance().now();
  node::StepDone done;
  done.run = run.run;
  done.rows = run.rows;
  if (auto computed = compute_rows(*run.rows); !computed)
    done.code = computed.error().code, done.what = computed.error().what;
  done.elapsed = SystemClock::instance().now() - began;
  return done;
}

Result<void> ModelCompute::compute_rows(node::StepRows& step) {
  rows_.clear();
  computed_.clear();
  MC_ASSERT_LE(step.in.size(), size_t{runner_.options().max_batch});
  MC_ASSERT_LE(step.in.size(), batch_.size());
  step.out.resize(step.in.size());
  for (size_t i = 0; i < step.in.size(); ++i) {
    const node::RunRow& row = step.in[i];
    Sequence& sequence = batch_.at(row.sequence);
    node::StepRow& out = step.out[i];
    out.sealed_crcs.clear();
    out.rotten.clear();
    out.refusal.reset();
    MC_ASSERT_EQ(row.position, sequence.told.position);
    if (!sequence.plan) return sequence.plan.error();
    if (row.joined) out.rotten = rotten(sequence.told.pages, sequence.told.prefix_crcs, {0, layout_.layers});
    if (!out.rotten.empty()) continue;
    if (row.page != node::RunRow::kNoPage) {
      MC_ASSERT_LT(row.page, options_.page_count);
      sequence.pages.push_back(page(row.page));
    }
    MC_ASSERT_EQ(sequence.pages.size(), row.position / layout_.block_tokens + 1);
    if (row.position % layout_.block_tokens == 0)  // a fresh page: unused rows are zero
      std::fill_n(sequence.pages.back(), layout_.page_bytes(), std::byte{0});
    computed_.push_back(i);
    rows_.push_back(
        {row.token, row.position, sequence.pages.data(), &*sequence.plan, &sequence.centroids, name_of(row.sequence)});
  }
  MC_CHECK(decode_rows(step));
  for (size_t n = 0; n < computed_.size(); ++n) {
    const node::RunRow& row = step.in[computed_[n]];
    node::StepRow& out = step.out[computed_[n]];
    Sequence& sequence = batch_.at(row.sequence);
    node::JoinBatch& told = sequence.told;
    const auto allowed = allowed_after(sequence, row.token);
    if (!allowed) {  // this row alone ends, not the step
      out.refusal = allowed.error();
      continue;
    }
    MC_TRY(drawn, draw_row(n, *allowed));
    out.sampled = std::move(drawn);
    if (told.position % layout_.block_tokens == 0)
      for (uint32_t layer = 0; layer < layout_.layers; ++layer)
        out.sealed_crcs.push_back(row_crc(n, sequence.pages.back(), layer));
  }
  return {};
}

/// Computes rows_, and draws their tokens too where the device can. The token of each row is then a part of its
/// sequence. After an error the sequences are as they were.
Result<void> ModelCompute::decode_rows(const node::StepRows& step) {
  draws_.clear();
  drawn_.clear();
  if (rows_.empty()) return {};
  for (const size_t i : computed_) {
    node::JoinBatch& told = batch_.at(step.in[i].sequence).told;
    ++told.position;
    if (told.sampling.needs_history()) told.history.push_back(step.in[i].token);
    draws_.push_back(draw_of(told));
  }
  const bool on_device = std::ranges::all_of(draws_, [&](const model::DrawRow& row) { return runner_.draws(row); });
  if (on_device) drawn_.resize(rows_.size());
  const std::span<float> logits = std::span(logits_).first(rows_.size() * model_.config().vocab);
  auto done = on_device ? runner_.decode_and_draw(rows_, draws_, drawn_) : runner_.decode(rows_, logits);
  if (done) return {};
  for (const size_t i : computed_) {
    node::JoinBatch& told = batch_.at(step.in[i].sequence).told;
    --told.position;
    if (told.sampling.needs_history()) told.history.pop_back();
  }
  return done;
}

Result<node::SampledToken> ModelCompute::draw_row(size_t n, std::span<const uint64_t> allowed) {
  if (!drawn_.empty()) return to_node(drawn_[n]);
  const size_t vocab = model_.config().vocab;
  return draw(std::span(logits_).subspan(n * vocab, vocab), draws_[n], allowed);
}

Result<node::SampledToken> ModelCompute::draw_first(const node::RunChunk& run, std::span<const float> logits) {
  std::unique_ptr<Constraint> constraint;
  std::span<const uint64_t> allowed;
  if (!run.sampling.grammar.empty()) {
    if (run.history.size() < run.prompt_tokens)
      return Error{Code::invalid, "the grammar needs " + std::to_string(run.prompt_tokens) + " tokens, " +
                                      std::to_string(run.history.size()) + " came"};
    const auto mask = within_memory(true, [&]() -> Result<std::span<const uint64_t>> {
      MC_TRY(begun, constraints_.begin(run.sampling, std::span(run.history).subspan(run.prompt_tokens)));
      constraint = std::move(begun);
      return constraint->allowed();
    });
    if (!mask) {
      // A refused grammar is the request's fault, because every other worker would refuse it as well. A lack of memory
      // is not.
      const Code code = mask.error().code;
      return Error{code == Code::busy || code == Code::no_space ? code : Code::invalid, mask.error().what};
    }
    allowed = *mask;
  }
  return draw(logits, {&run.sampling, run.start + run.tokens.size(), run.history, run.prompt_tokens, run.banned},
              allowed);
}

Result<std::span<const uint64_t>> ModelCompute::allowed_after(Sequence& sequence, uint32_t token) {
  const node::JoinBatch& told = sequence.told;
  if (told.sampling.grammar.empty()) return std::span<const uint64_t>();
  auto allowed = within_memory(!sequence.constraint, [&]() -> Result<std::span<const uint64_t>> {
    if (sequence.constraint) {
      MC_CHECK(sequence.constraint->accept(token));
    } else {
      MC_ASSERT_LE(told.prompt_tokens, told.history.size());
      MC_TRY(begun, constraints_.begin(told.sampling, std::span(told.history).subspan(told.prompt_tokens)));
      sequence.constraint = std::move(begun);
    }
    return sequence.constraint->allowed();
  });
  if (!allowed) sequence.constraint.reset();  // it may have stopped half-way
  return allowed;
}

template <class Work>
Result<std::span<const uint64_t>> ModelCompute::within_memory(bool begins, Work work) {
  // While memory is short, the room that is left is the reserve, which belongs to the control loop.
  if (!begins || !memory_is_short()) {
    try {
      const FailsAlone alone;
      return work();
    } catch (const std::bad_alloc&) {
    }
  }
  constraints_.forget();
  return Error{Code::no_space, "the worker has not enough memory for the grammar of the answer"};
}

Result<node::SampledToken> ModelCompute::draw(std::span<const float> logits, const model::DrawRow& row,
                                              std::span<const uint64_t> allowed) {
  MC_TRY(sampled,
         sampler_.sample(logits, *row.sampling, row.position, row.history, row.prompt_tokens, row.banned, allowed));
  return to_node(sampled);
}

}  // namespace mc::host

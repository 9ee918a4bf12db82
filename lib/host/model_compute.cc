#include "host/model_compute.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>
#include <utility>

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
      loads_(runner_.loads(), [this](uint32_t index) { return page(index); }),
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
  loads_.report(queue_);
  queue_.finish(std::move(done));
  note_failure();
}

/// Reports that a device has failed. The events of the work that it failed come first.
void ModelCompute::note_failure() {
  if (options_.devices == nullptr || failure_) return;
  failure_ = options_.devices->failure();
  if (!failure_) return;
  queue_.post(node::HostError{failure_->what});
}

void ModelCompute::loop() {
  for (;;) {
    loads_.copy_until_work(queue_);
    note_failure();
    auto work = queue_.take();
    if (!work) break;
    if (auto* chunk = std::get_if<node::RunChunk>(&*work))
      run_chunks(std::move(*chunk));
    else if (auto* step = std::get_if<node::RunStep>(&*work))
      run_step(std::move(*step));
    else if (std::holds_alternative<node::CollectSteps>(*work))
      collect();
    else if (auto* joins = std::get_if<node::JoinBatch>(&*work))
      join(std::move(*joins));
    else if (const auto* load = std::get_if<node::LoadPages>(&*work))
      loads_.begin(*load);
    else
      leave(std::get<node::LeaveBatch>(*work));
  }
  if (queued_ == nullptr) return;
  queued_->drawn.resize(queued_->rows.size());
  (void)runner_.collect_step(queued_->drawn);  // its result is of no use any more
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

// ---- chunks ----

void ModelCompute::run_chunks(node::RunChunk first) {
  std::deque<Chunk> chunks;
  const auto add = [&](node::RunChunk run) {
    chunks.push_back({.run = std::move(run), .began = SystemClock::instance().now()});
  };
  add(std::move(first));
  std::optional<node::RunStep> followed_by;
  while (chunks.back().run.is_followed && !followed_by) {
    auto next = queue_.take();
    if (!next) return;  // nobody asks for the runs any more
    if (auto* chunk = std::get_if<node::RunChunk>(&*next))
      add(std::move(*chunk));
    else if (auto* joins = std::get_if<node::JoinBatch>(&*next))
      join(std::move(*joins));
    else if (const auto* leaves = std::get_if<node::LeaveBatch>(&*next))
      leave(*leaves);
    else if (const auto* load = std::get_if<node::LoadPages>(&*next))
      loads_.begin(*load);
    else
      followed_by = std::move(std::get<node::RunStep>(*next));
  }
  collect();
  std::vector<Chunk*> sound;
  for (Chunk& chunk : chunks) {
    auto prepared = prepare(chunk);
    const bool is_computed = !chunk.run.tokens.empty();
    // A pass of several runs does not wait layer by layer, so that a copy that fails fails one run.
    if (prepared && is_computed && (chunks.size() > 1 || followed_by)) {
      const size_t below = std::min<size_t>(chunk.run.start / layout_.block_tokens, chunk.device_pages.size());
      prepared = loads_.finish(std::span(chunk.device_pages).first(below));
    }
    if (prepared && is_computed)
      sound.push_back(&chunk);
    else
      report(chunk, prepared);
  }
  Step* step = followed_by ? &begin(*std::move(followed_by)) : nullptr;
  if (step != nullptr) {
    if (const auto prepared = prepare(*step); !prepared) report(*std::exchange(step, nullptr), prepared);
  }
  compute(sound, step);
}

/// Computes as many chunks in a pass as it takes. The step is in the first pass, because clients wait for its tokens.
void ModelCompute::compute(std::span<Chunk* const> chunks, Step* step) {
  const auto is_whole = [&](const Chunk& chunk) {
    return chunk.pass.scored == 0 && chunk.pass.first_layer == 0 && chunk.pass.end_layer == 0;
  };
  while (!chunks.empty() || step != nullptr) {
    const size_t rows = step != nullptr ? step->rows.size() : 0;
    std::vector<const model::PrefillChunk*> pass;
    for (const Chunk* chunk : chunks) {
      pass.push_back(&chunk->pass);
      if (is_whole(*chunk) && runner_.shares_pass(pass, rows)) continue;
      pass.pop_back();
      break;
    }
    const auto together = chunks.first(pass.size());
    if (rows == 0 && step != nullptr) report(*std::exchange(step, nullptr), {});
    if (step == nullptr && together.size() <= 1) {
      if (!chunks.empty()) compute_alone(*chunks.front());
      chunks = chunks.subspan(std::min<size_t>(chunks.size(), 1));
      continue;
    }
    compute_together(together, std::exchange(step, nullptr));
    chunks = chunks.subspan(together.size());
  }
}

void ModelCompute::compute_alone(Chunk& chunk) {
  auto ran = runner_.prefill(chunk.pass);
  if (!ran && chunk.unscored) ran = *chunk.unscored;
  report(chunk, ran ? note_results(chunk) : ran);
}

void ModelCompute::compute_together(std::span<Chunk* const> chunks, Step* step) {
  std::vector<const model::PrefillChunk*> list;
  for (const Chunk* chunk : chunks) list.push_back(&chunk->pass);
  model::MixedPass pass{.chunks = list};
  if (step != nullptr) {
    const bool on_device = draws(*step);
    step->drawn.resize(on_device ? step->rows.size() : 0);
    pass.rows = step->rows;
    if (on_device) pass.draws = step->draws, pass.drawn = step->drawn;
    if (!on_device) pass.logits = std::span(logits_).first(step->rows.size() * model_.config().vocab);
  }
  const auto ends = runner_.mixed(pass);
  if (step != nullptr) report(*step, ends.step ? note_results(*step) : ends.step);
  for (size_t i = 0; i < chunks.size(); ++i)
    report(*chunks[i], ends.chunks[i] ? note_results(*chunks[i]) : ends.chunks[i]);
}

Result<void> ModelCompute::prepare(Chunk& chunk) {
  const node::RunChunk& run = chunk.run;
  node::ChunkDone& done = chunk.done;
  done.run = run.run;
  done.rotten =
      rotten(run.pages, run.prefix_crcs, {run.first_layer, run.end_layer == 0 ? layout_.layers : run.end_layer});
  if (!done.rotten.empty())
    return Error{Code::corrupt, std::to_string(done.rotten.size()) +
                                    " cached blocks changed in memory; the first is block " +
                                    std::to_string(done.rotten.front()) + " of the prompt"};
  if (run.tokens.empty()) return {};
  MC_TRY(chosen, plan(run.attention));
  chunk.plan = std::move(chosen);
  chunk.pages = pages_of(run);
  MC_ASSERT_EQ(run.device_pages.size(), loads_.exist() ? run.pages.size() : 0);
  chunk.device_pages.assign(run.device_pages.begin(), run.device_pages.end());
  const bool hands_on = run.end_layer != 0 && run.end_layer < layout_.layers;
  model::PrefillChunk& pass = chunk.pass;
  pass.tokens = run.tokens, pass.start = run.start;
  pass.pages = chunk.pages.data();
  pass.device_pages = chunk.device_pages;
  pass.plan = &chunk.plan;
  pass.first_layer = run.first_layer, pass.end_layer = run.end_layer;
  if (run.first_layer > 0) pass.activations_in = activations(run.slots.in, run.tokens.size());
  if (hands_on) pass.activations_out = activations(run.slots.out, run.tokens.size());
  if (run.sample) {
    chunk.logits.resize(model_.config().vocab);
    if (run.sampling.embed) chunk.hidden.resize(model_.config().hidden);
    pass.logits = chunk.logits, pass.hidden = chunk.hidden;
  }
  pass.on_layer = [this, &run](uint32_t layer) {
    queue_.post(node::LayerDone{run.run, layer, run.start / layout_.block_tokens, layer_crcs(run, layer)});
    return !queue_.is_cancelled(run.run);
  };
  // A device copies layers ahead, and the runs of a pass do not wait for the prefix of one.
  MC_ASSERT((options_.devices == nullptr && !run.is_followed) || run.layers_here >= layout_.layers);
  if (run.layers_here < layout_.layers)
    pass.before_prefix = [this, &run](uint32_t layer) { return queue_.await_prefix(run.run, layer + 1); };
  if (run.prompt_logprobs < 0 || run.targets.empty()) return {};
  const auto vocab = model_.config().vocab;
  if (hands_on || run.targets.size() > run.tokens.size() ||
      std::ranges::any_of(run.targets, [&](uint32_t token) { return token >= vocab; }))
    return Error{Code::invalid, std::to_string(run.targets.size()) + " targets of " +
                                    std::to_string(run.tokens.size()) + " tokens, or ids outside the vocabulary"};
  return prepare_scores(chunk);
}

Result<void> ModelCompute::prepare_scores(Chunk& chunk) {
  chunk.pass.scored = chunk.run.targets.size();
  chunk.pass.on_logits = [this, &chunk](size_t row, std::span<const float> logits) {
    const node::RunChunk& run = chunk.run;
    auto scored = sampler_.score(logits, run.targets[row], static_cast<size_t>(run.prompt_logprobs));
    if (!scored) {
      chunk.unscored = std::move(scored).error();
      return false;
    }
    auto& rows = chunk.done.prompt_logprobs;
    rows.push_back({scored->logprob, scored->rank, {}});
    for (const auto& top : scored->top) rows.back().top.emplace_back(top.token, top.logprob);
    return !queue_.is_cancelled(run.run);
  };
  return {};
}

Result<void> ModelCompute::note_results(Chunk& chunk) {
  const node::RunChunk& run = chunk.run;
  node::ChunkDone& done = chunk.done;
  if (!chunk.pass.activations_out.empty()) done.activations_crc = crc32c(std::as_bytes(chunk.pass.activations_out));
  if (!run.sample) return {};
  MC_TRY(first, draw_first(run, chunk.logits));
  done.sampled = std::move(first);
  const auto bytes = std::as_bytes(std::span(chunk.hidden));
  done.sampled.embedding.resize(bytes.size());
  if (!bytes.empty()) std::memcpy(done.sampled.embedding.data(), bytes.data(), bytes.size());
  return {};
}

void ModelCompute::report(Chunk& chunk, const Result<void>& ended) {
  node::ChunkDone& done = chunk.done;
  if (!ended) done.code = ended.error().code, done.what = ended.error().what;
  done.elapsed = SystemClock::instance().now() - chunk.began;
  finish(std::move(done));
}

// ---- the batch ----

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
  MC_ASSERT_EQ(sequence.told.device_pages.size(), loads_.exist() ? sequence.pages.size() : 0);
  if (loads_.exist()) sequence.device_pages.reserve(sequence.pages.capacity());
  sequence.device_pages.assign(sequence.told.device_pages.begin(), sequence.told.device_pages.end());
  if (sequence.told.sampling.needs_history()) sequence.told.history.reserve(sequence.told.tokens_max + size_t{1});
}

void ModelCompute::leave(const node::LeaveBatch& leaves) {
  runner_.forget(name_of(leaves.sequence));
  MC_ASSERT_EQ(batch_.erase(leaves.sequence), 1u);
}

// ---- steps ----

ModelCompute::Step& ModelCompute::begin(node::RunStep run) {
  Step& step = steps_[turn_];
  turn_ = (turn_ + 1) % steps_.size();
  MC_ASSERT(&step != queued_);
  step.run = std::move(run);
  step.began = SystemClock::instance().now();
  return step;
}

void ModelCompute::run_step(node::RunStep run) {
  const bool is_followed = run.is_followed;
  Step& step = begin(std::move(run));
  const auto prepared = prepare(step);
  if (prepared && is_followed && !step.rows.empty() && draws(step)) {
    const auto queued = runner_.queue_step(step.rows, step.draws);
    collect();
    if (!queued) return report(step, queued);
    for (size_t n = 0; n < step.computed.size(); ++n)
      batch_.at(step.run.rows->in[step.computed[n]].sequence).queued_row = static_cast<int32_t>(n);
    queued_ = &step;
    return;
  }
  collect();
  resolve_fed(step);
  report(step, prepared ? compute(step) : prepared);
}

void ModelCompute::collect() {
  if (queued_ == nullptr) return;
  Step& step = *std::exchange(queued_, nullptr);
  for (const size_t i : step.computed) batch_.at(step.run.rows->in[i].sequence).queued_row = -1;
  step.drawn.resize(step.rows.size());
  const auto collected = runner_.collect_step(step.drawn);
  report(step, collected ? note_results(step) : collected);
}

void ModelCompute::report(Step& step, const Result<void>& ended) {
  refused_graphs_.note(runner_.refused_graphs());
  node::StepDone done;
  done.run = step.run.run;
  done.rows = std::move(step.run.rows);
  if (!ended) {
    done.code = ended.error().code, done.what = ended.error().what;
    for (const node::RunRow& row : done.rows->in) batch_.at(row.sequence).is_over = true;
  }
  // A step that was queued behind another one began when that one ended.
  const TimePoint now = SystemClock::instance().now();
  done.elapsed = now - std::max(step.began, step_ended_);
  step_ended_ = now;
  finish(std::move(done));
}

Result<void> ModelCompute::prepare(Step& step) {
  node::StepRows& rows = *step.run.rows;
  MC_ASSERT_LE(rows.in.size(), size_t{runner_.options().max_batch});
  MC_ASSERT_LE(rows.in.size(), batch_.size());
  step.computed.clear(), step.rows.clear(), step.draws.clear(), step.drawn.clear();
  rows.out.resize(rows.in.size());
  for (size_t i = 0; i < rows.in.size(); ++i) {
    const node::RunRow& row = rows.in[i];
    MC_TRY(is_computed, prepare_row(row, rows.out[i]));
    if (!is_computed) continue;
    Sequence& sequence = batch_.at(row.sequence);
    const bool is_fed = row.token == node::RunRow::kFed;
    const uint32_t token = is_fed ? sequence.drawn : row.token;
    const int32_t fed = is_fed ? sequence.queued_row : -1;
    step.computed.push_back(i);
    step.rows.push_back({token, row.position, sequence.pages.data(), &*sequence.plan, &sequence.centroids,
                         name_of(row.sequence), fed, loads_.exist() ? sequence.device_pages.data() : nullptr});
    ++sequence.told.position;
    if (sequence.told.sampling.needs_history()) sequence.told.history.push_back(token);
    step.draws.push_back(draw_of(sequence.told));
    step.draws.back().fed = fed;
  }
  return {};
}

Result<bool> ModelCompute::prepare_row(const node::RunRow& row, node::StepRow& out) {
  Sequence& sequence = batch_.at(row.sequence);
  out.sealed_crcs.clear();
  out.rotten.clear();
  out.refusal.reset();
  if (sequence.is_over) return false;
  MC_ASSERT_EQ(row.position, sequence.told.position);
  // A request names its plan. One that cannot be computed ends this row alone, not the step.
  const auto computed = sequence.plan ? runner_.check_plan(*sequence.plan, int64_t{row.position} + 1)
                                      : Result<void>(sequence.plan.error());
  if (!computed) {
    out.refusal = computed.error();
    sequence.is_over = true;
    return false;
  }
  if (row.joined) out.rotten = rotten(sequence.told.pages, sequence.told.prefix_crcs, {0, layout_.layers});
  sequence.is_over = !out.rotten.empty();
  if (sequence.is_over) return false;
  if (row.page != node::RunRow::kNoPage) {
    MC_ASSERT_LT(row.page, options_.page_count);
    sequence.pages.push_back(page(row.page));
    if (loads_.exist()) sequence.device_pages.push_back(static_cast<int32_t>(row.device_page));
  }
  MC_ASSERT_EQ(sequence.pages.size(), row.position / layout_.block_tokens + 1);
  if (row.position % layout_.block_tokens == 0)  // a fresh page: unused rows are zero
    std::fill_n(sequence.pages.back(), layout_.page_bytes(), std::byte{0});
  return true;
}

void ModelCompute::resolve_fed(Step& step) {
  size_t kept = 0;
  for (size_t n = 0; n < step.rows.size(); ++n) {
    const Sequence& sequence = batch_.at(step.run.rows->in[step.computed[n]].sequence);
    if (sequence.is_over) continue;
    step.computed[kept] = step.computed[n];
    step.rows[kept] = step.rows[n];
    step.draws[kept] = step.draws[n];
    if (step.rows[kept].fed >= 0) step.rows[kept].token = sequence.drawn;
    step.rows[kept].fed = step.draws[kept].fed = -1;
    ++kept;
  }
  step.computed.resize(kept), step.rows.resize(kept), step.draws.resize(kept);
}

bool ModelCompute::draws(const Step& step) const {
  return std::ranges::all_of(step.draws, [&](const model::DrawRow& row) { return runner_.draws(row); });
}

Result<void> ModelCompute::compute(Step& step) {
  if (step.rows.empty()) return {};
  if (draws(step)) {
    step.drawn.resize(step.rows.size());
    MC_CHECK(runner_.decode_and_draw(step.rows, step.draws, step.drawn));
  } else {
    MC_CHECK(runner_.decode(step.rows, std::span(logits_).first(step.rows.size() * model_.config().vocab)));
  }
  return note_results(step);
}

Result<void> ModelCompute::note_results(Step& step) {
  for (size_t n = 0; n < step.computed.size(); ++n) {
    const node::RunRow& row = step.run.rows->in[step.computed[n]];
    node::StepRow& out = step.run.rows->out[step.computed[n]];
    Sequence& sequence = batch_.at(row.sequence);
    const auto allowed = allowed_after(sequence, step.rows[n].token);
    if (!allowed) {  // this row alone ends, not the step
      out.refusal = allowed.error();
      sequence.is_over = true;
      continue;
    }
    MC_TRY(drawn, draw_row(step, n, *allowed));
    out.sampled = std::move(drawn);
    sequence.drawn = out.sampled.token;
    const size_t end = size_t{row.position} + 1;
    if (sequence.told.history.size() > end) sequence.told.history[end] = sequence.drawn;  // the next row is prepared
    const std::byte* page = sequence.pages[row.position / layout_.block_tokens];
    for (uint32_t layer = 0; end % layout_.block_tokens == 0 && layer < layout_.layers; ++layer) {
      const auto made = runner_.checksums(layer);
      out.sealed_crcs.push_back(made.empty() ? crc32c({page + layout_.layer_offset(layer), layout_.layer_bytes()})
                                             : made[n]);
    }
  }
  return {};
}

Result<node::SampledToken> ModelCompute::draw_row(const Step& step, size_t n, std::span<const uint64_t> allowed) {
  if (!step.drawn.empty()) return to_node(step.drawn[n]);
  const size_t vocab = model_.config().vocab;
  return draw(std::span(logits_).subspan(n * vocab, vocab), step.draws[n], allowed);
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

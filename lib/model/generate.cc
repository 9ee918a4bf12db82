#include "model/generate.h"

#include <algorithm>

#include "base/errors.h"

namespace mc::model {
namespace {

/// The draw of the token after `out`.
DrawRow next_draw(const GenerateRequest& request, std::span<const uint32_t> history, const Generated& out) {
  const bool too_early = static_cast<int32_t>(out.ids.size()) < request.min_tokens;
  return {&request.sampling, history.size(), history, request.prompt.size(),
          too_early ? request.stop_ids : std::span<const uint32_t>{}};
}

Result<ops::Sampled> draw(ops::Sampler& sampler, std::span<const float> logits, const DrawRow& row) {
  return sampler.sample(logits, *row.sampling, row.position, row.history, row.prompt_tokens, row.banned);
}

/// Appends the drawn token. Sets the end when it is the last. False = the answer has ended.
bool take(const Runner& runner, const GenerateRequest& request, ops::Sampled drawn, std::vector<uint32_t>& history,
          Generated& out) {
  const uint32_t token = drawn.token;
  out.ids.push_back(token);
  history.push_back(token);
  out.sampled.push_back(std::move(drawn));
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), token) != request.stop_ids.end()) {
    out.end = AnswerEnd::stop;
    return false;
  }
  if (request.on_token && !request.on_token(out.sampled.back())) {
    out.end = AnswerEnd::cancelled;
    return false;
  }
  if (static_cast<int32_t>(out.ids.size()) < request.max_tokens &&
      history.size() < runner.model().config().max_positions)
    return true;
  out.end = AnswerEnd::length;
  return false;
}

/// A sequence whose pages a device keeps from step to step, until this object goes.
struct KeptSequence {
  static constexpr uint64_t kName = 1;
  Runner& runner;
  ~KeptSequence() { runner.forget(kName); }
};

std::vector<uint32_t> history_of(const GenerateRequest& request, const Generated& out) {
  std::vector<uint32_t> history = request.prompt;
  history.insert(history.end(), out.ids.begin(), out.ids.end());
  return history;
}

}  // namespace

std::string_view to_string(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::length: return "length";
    case AnswerEnd::stop: return "stop";
    case AnswerEnd::cancelled: break;
  }
  return "cancelled";
}

Result<LocalPages> LocalPages::allocate(const ExtentLayout& layout, int64_t tokens) {
  LocalPages local;
  const auto count =
      static_cast<size_t>((std::max<int64_t>(tokens, 1) + layout.block_tokens - 1) / layout.block_tokens);
  local.page_bytes_ = layout.page_bytes();
  local.capacity_ = static_cast<int64_t>(count * layout.block_tokens);
  MC_TRY(storage, mem::HostBuffer::allocate(count * local.page_bytes_, {.name = "KV pages", .huge_pages = true}));
  local.storage_ = std::move(storage);
  for (size_t i = 0; i < count; ++i) local.pages_.push_back(local.storage_.data() + i * local.page_bytes_);
  return local;
}

Result<void> run_prefill(Runner& runner, LocalPages& pages, const GenerateRequest& request, const Clock& clock,
                         Generated& out) {
  const TimePoint begin = clock.now();
  const auto total = static_cast<int64_t>(request.prompt.size());
  const int64_t block = runner.options().block_tokens;
  if (request.cached_tokens < 0 || request.cached_tokens % block != 0 || request.cached_tokens >= total)
    return Error{Code::invalid, "a cached prefix of " + std::to_string(request.cached_tokens) +
                                    " tokens for a prompt of " + std::to_string(total) +
                                    ": it must be whole blocks of " + std::to_string(block) +
                                    " and leave at least one token to compute"};
  const int64_t wanted = std::min<int64_t>(request.chunk_tokens, runner.options().max_chunk_tokens);
  const int64_t step = std::max(block, wanted / block * block);
  std::vector<float> logits(runner.model().config().vocab);
  for (int64_t start = request.cached_tokens; start < total; start += step) {
    const int64_t count = std::min(step, total - start);
    PrefillChunk chunk;
    chunk.tokens = std::span(request.prompt).subspan(static_cast<size_t>(start), static_cast<size_t>(count));
    chunk.start = start;
    chunk.pages = pages.pages();
    chunk.plan = &request.prefill_plan;
    if (start + count == total) chunk.logits = logits;
    MC_CHECK(runner.prefill(chunk));
    ++out.prefill_chunks;
  }
  if (request.max_tokens > 0) {
    ops::Sampler sampler(runner.kernels());
    std::vector<uint32_t> history = history_of(request, out);
    MC_TRY(first, draw(sampler, logits, next_draw(request, history, out)));
    take(runner, request, std::move(first), history, out);
  }
  out.prefill += clock.now() - begin;
  return {};
}

Result<void> run_decode(Runner& runner, LocalPages& pages, const GenerateRequest& request, const Clock& clock,
                        Generated& out) {
  const TimePoint begin = clock.now();
  if (out.ids.empty()) return Error{Code::invalid, "decode needs the first token of the answer"};
  ops::Sampler sampler(runner.kernels());
  std::vector<uint32_t> history = history_of(request, out);
  std::vector<float> logits(runner.model().config().vocab);
  attn::CentroidIndex centroids(runner.layout());
  const auto stopped = [&] {
    return std::find(request.stop_ids.begin(), request.stop_ids.end(), out.ids.back()) != request.stop_ids.end();
  };
  const KeptSequence kept{runner};
  bool more = out.end == AnswerEnd::length && !stopped() && static_cast<int32_t>(out.ids.size()) < request.max_tokens &&
              history.size() < runner.model().config().max_positions;
  while (more) {
    const auto position = static_cast<int64_t>(history.size()) - 1;
    if (position >= pages.capacity_tokens())
      return Error{Code::no_space, "the KV pages hold " + std::to_string(pages.capacity_tokens()) + " tokens"};
    const DecodeRow row{history.back(), position, pages.pages(), &request.decode_plan, &centroids, kept.kName};
    const DrawRow next = next_draw(request, history, out);
    ops::Sampled drawn;
    if (runner.draws(next)) {
      MC_CHECK(runner.decode_and_draw({&row, 1}, {&next, 1}, {&drawn, 1}));
    } else {
      MC_CHECK(runner.decode({&row, 1}, logits));
      MC_TRY(sampled, draw(sampler, logits, next));
      drawn = std::move(sampled);
    }
    more = take(runner, request, std::move(drawn), history, out);
  }
  out.decode += clock.now() - begin;
  return {};
}

Result<Generated> generate(Runner& runner, const GenerateRequest& request, const Clock& clock) {
  const size_t total = request.prompt.size() + static_cast<size_t>(std::max(request.max_tokens, 0));
  const uint32_t context = runner.model().config().max_positions;
  if (request.prompt.empty()) return user_error(err::kInvalidField, "the prompt has no tokens");
  if (request.prompt.size() > context || total > context)
    return user_error(err::kContextLength, "a prompt of " + std::to_string(request.prompt.size()) + " tokens and " +
                                               std::to_string(request.max_tokens) +
                                               " to generate exceed the context of " + std::to_string(context));
  MC_TRY(pages, LocalPages::allocate(runner.layout(), static_cast<int64_t>(total)));
  Generated out;
  MC_CHECK(run_prefill(runner, pages, request, clock, out));
  if (!out.ids.empty()) MC_CHECK(run_decode(runner, pages, request, clock, out));
  return out;
}

}  // namespace mc::model

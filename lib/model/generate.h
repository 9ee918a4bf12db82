// Runs one request from prompt to answer in this process. It is the oracle that a cluster's answers are compared with
// (`mc-prefill once`, `mc-decode once`, tests): chunked prefill into local pages, then one row a step. It makes no
// threads, uses no cache and does no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "mem/mem.h"
#include "model/runner.h"
#include "ops/sample.h"

namespace mc::model {

/// The pages of one sequence in this process's memory. Token t is in page t / block_tokens.
class LocalPages {
 public:
  /// Allocates room for `tokens` tokens. Fresh pages are zero. no_space names the required size.
  static Result<LocalPages> allocate(const ExtentLayout& layout, int64_t tokens);
  std::byte* const* pages() const { return pages_.data(); }
  size_t page_count() const { return pages_.size(); }
  std::span<std::byte> page(size_t index) const { return {pages_[index], page_bytes_}; }
  int64_t capacity_tokens() const { return capacity_; }

 private:
  mem::HostBuffer storage_;
  std::vector<std::byte*> pages_;
  size_t page_bytes_ = 0;
  int64_t capacity_ = 0;
};

struct GenerateRequest {
  std::vector<uint32_t> prompt;
  int32_t max_tokens = 16;         // limit of the answer
  int32_t min_tokens = 0;          // stop ids may not be drawn before this many tokens
  std::vector<uint32_t> stop_ids;  // usually config.special.eos; empty = ignore EOS
  wire::Sampling sampling;
  uint32_t chunk_tokens = 4096;  // rounded down to whole blocks, at least one, at most the runner's limit
  attn::Plan prefill_plan, decode_plan;
  /// Number of prompt tokens whose KV is in the pages already (a multiple of block_tokens, less than the prompt).
  int64_t cached_tokens = 0;
  /// Called with every drawn token. False ends the answer (AnswerEnd::cancelled).
  std::function<bool(const ops::Sampled&)> on_token;
};

/// Why an answer ended: at its largest length, at a stop id, or because `on_token` wanted no more.
enum class AnswerEnd : uint8_t { length, stop, cancelled };
std::string_view to_string(AnswerEnd end);

struct Generated {
  std::vector<uint32_t> ids;          // the stop id is included, as in vLLM's token_ids
  std::vector<ops::Sampled> sampled;  // one per id
  AnswerEnd end = AnswerEnd::length;
  Duration prefill{};  // prompt to first token
  Duration decode{};   // first token to the end
  int32_t prefill_chunks = 0;
};

/// Prefills the uncached tokens and draws the first token. Adds to `out`.
Result<void> run_prefill(Runner& runner, LocalPages& pages, const GenerateRequest& request, const Clock& clock,
                         Generated& out);
/// Generates the rest of the answer from the KV of the prompt and at least one drawn token in `out`. The runner has no
/// other sequence meanwhile.
Result<void> run_decode(Runner& runner, LocalPages& pages, const GenerateRequest& request, const Clock& clock,
                        Generated& out);
/// Runs prefill and decode with pages of its own. invalid (MC4005) when prompt + max_tokens exceed the context or the
/// prompt is empty.
Result<Generated> generate(Runner& runner, const GenerateRequest& request, const Clock& clock);

}  // namespace mc::model

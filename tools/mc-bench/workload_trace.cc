// The trace workload of `replay`: timestamps and lengths as recorded; prompts synthesised so that equal
// hash_ids give equal blocks of 512 tokens and thus, after equal prefixes, the reuse the trace had.

#include <algorithm>

#include "base/assert.h"
#include "base/choice.h"
#include "base/errors.h"
#include "print.h"
#include "sim/lru.h"
#include "sim/replacement.h"
#include "trace.h"
#include "workload.h"

namespace mc::bench {
namespace flag {

constexpr Flag kSpeedup{.name = "speedup",
                        .kind = FlagKind::number,
                        .value = "X",
                        .fallback = "1",
                        .help = "divide the trace's times by X",
                        .check = check_speedup};
constexpr Flag kLimit{.name = "limit",
                      .kind = FlagKind::count,
                      .value = "N",
                      .fallback = "all",
                      .help = "first N requests only",
                      .choices = "all"};
constexpr Flag kMaxInput{.name = "max-input",
                         .kind = FlagKind::count,
                         .value = "N",
                         .fallback = "off",
                         .help = "cut longer prompts to their first N tokens",
                         .choices = "off"};
constexpr Flag kMaxOutput{.name = "max-output",
                          .kind = FlagKind::count,
                          .value = "N",
                          .fallback = "off",
                          .help = "cut longer answers to N tokens",
                          .choices = "off"};

}  // namespace flag

namespace {

uint32_t bounded(const cli::Args& args, const Flag& flag, uint64_t value) {
  const uint64_t most = args.present(flag) ? args.count(flag) : UINT32_MAX;
  return static_cast<uint32_t>(std::max<uint64_t>(1, std::min(value, most)));
}

/// The share of the prompts that one endless cache would hit, for comparison with the measured hit rate. At least the
/// last token of a prompt is computed, so a node hits only the whole KV blocks before it, also when it has seen all of
/// the prompt. Prompts that do not end here share whole blocks of the trace, which are whole KV blocks.
double ideal_token_hit(const std::vector<TraceRequest>& sent) {
  constexpr uint64_t kKvBlockTokens = 64;  // the default of --block-tokens
  static_assert(kTraceBlockTokens % kKvBlockTokens == 0);
  const sim::TraceBlocks numbers(sent);
  const auto leading = sim::replay_cache(numbers, sim::kUnlimitedBlocks, *sim::find_replacement("lru"));
  MC_ASSERT_EQ(leading.size(), sent.size());
  uint64_t tokens = 0, hit = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const uint64_t input = sent[i].input_tokens;  // at least 1
    tokens += input;
    hit += std::min(leading[i] * kTraceBlockTokens, (input - 1) / kKvBlockTokens * kKvBlockTokens);
  }
  return static_cast<double>(hit) / static_cast<double>(tokens);
}

Result<Plan> plan_trace(const cli::Args& args, double) {
  const double speedup = args.number(flag::kSpeedup);
  for (const Flag* flag : {&flag::kLimit, &flag::kMaxInput, &flag::kMaxOutput})
    if (args.text(*flag) == "0") return out_of_range(*flag, "0", "at least 1");
  const std::string path = args.positional_one("TRACE");
  MC_TRY(trace, read_trace(path, is_word(args, flag::kLimit) ? UINT64_MAX : args.count(flag::kLimit)));
  Plan plan;
  uint64_t cut = 0, blocks = 0;
  for (const TraceRequest& recorded : trace) {
    PlannedRequest r;
    r.at = from_seconds((recorded.timestamp_ms - trace.front().timestamp_ms) / 1000 / speedup);
    r.input_tokens = bounded(args, flag::kMaxInput, recorded.input_tokens);
    r.output_tokens = bounded(args, flag::kMaxOutput, recorded.output_tokens);
    cut += r.input_tokens < recorded.input_tokens;
    uint32_t left = r.input_tokens;
    for (size_t i = 0; left > 0; ++i) {
      const uint32_t count = std::min<uint32_t>(left, kTraceBlockTokens);
      r.prompt.push_back({i < recorded.hash_ids.size() ? recorded.hash_ids[i] : 0, count});
      left -= count;
    }
    blocks += r.prompt.size();
    plan.requests.push_back(std::move(r));
  }
  const double span_s = to_seconds(plan.requests.back().at);
  plan.rate_per_s = span_s > 0 ? static_cast<double>(trace.size()) / span_s : 0;
  std::vector<TraceRequest> as_sent = std::move(trace);
  for (size_t i = 0; i < as_sent.size(); ++i) {
    as_sent[i].input_tokens = plan.requests[i].input_tokens;
    as_sent[i].hash_ids.resize(std::min(as_sent[i].hash_ids.size(), plan.requests[i].prompt.size()));
  }
  plan.facts.set("trace", path).set("speedup", speedup).set("trace_requests", plan.requests.size());
  plan.facts.set("trace_blocks", blocks).set("inputs_cut", cut).set("trace_span_s", span_s * speedup);
  plan.facts.set("ideal_token_hit", ideal_token_hit(as_sent));
  return plan;
}

}  // namespace

const Workload kTraceWorkload{
    .name = "trace", .help = "a recorded trace: its times, its lengths, its shared prefixes", .plan = plan_trace};

}  // namespace mc::bench

// `mc-bench trace ACTION FILE`: what a request trace holds and what a cache would make of it.

#include "trace.h"

#include "base/choice.h"
#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "print.h"
#include "sim/lru.h"
#include "sim/synth.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kCache{.name = "cache",
                      .kind = FlagKind::sweep_counts,
                      .value = "BLOCKS",
                      .help = "stats: also replay through one LRU cache of N blocks of 512 tokens: 1000,10k"};
constexpr Flag kCheckpoints{.name = "checkpoints",
                            .kind = FlagKind::sweep_counts,
                            .value = "N,N",
                            .fallback = "10,100,1000,2000,3000,5000,10000",
                            .help = "stats: reuse of an unlimited cache after N requests"};
constexpr Flag kCachePolicy{
    .name = "policy",
    .kind = FlagKind::list,
    .value = "P,P",
    .fallback = "lru",
    .help = "cache: eviction policy: lru, lru-head, fifo, lfu, lfu-forever, length-aware, belady, pool"};
constexpr Flag kTraceBlocks{.name = "blocks",
                            .kind = FlagKind::sweep_counts,
                            .value = "N,N",
                            .fallback = "unlimited",
                            .help = "cache: sizes in blocks of 512 tokens",
                            .choices = "unlimited"};
constexpr Flag kRequests{.name = "requests",
                         .kind = FlagKind::count,
                         .value = "N",
                         .fallback = "auto",
                         .help = "synth: number of requests; auto is that of FILE",
                         .choices = "auto"};
constexpr Flag kFrom{.name = "from",
                     .kind = FlagKind::duration,
                     .value = "T",
                     .fallback = "0s",
                     .help = "convert: drop earlier requests"};
constexpr Flag kTo{.name = "to",
                   .kind = FlagKind::duration,
                   .value = "T",
                   .fallback = "off",
                   .help = "convert: drop requests at this time or later",
                   .choices = "off"};
constexpr Flag kTraceSpeedup{.name = "speedup",
                             .kind = FlagKind::number,
                             .value = "X",
                             .fallback = "1",
                             .help = "convert: divide times by X",
                             .check = check_speedup};
constexpr Flag kTraceLimit{.name = "limit",
                           .kind = FlagKind::count,
                           .value = "N",
                           .fallback = "all",
                           .help = "first N requests of each file only",
                           .choices = "all"};

constexpr auto kTraceFlagTable =
    flags::join(flags::list(&kCache, &kCheckpoints, &kCachePolicy, &kTraceBlocks, &kRequests, &kFrom, &kTo,
                            &kTraceSpeedup, &kTraceLimit, &flags::kSeed, &flags::kOutput),
                flags::kEveryRun);

using Traces = std::vector<std::vector<TraceRequest>>;  // one a file

constexpr double kForeverMs = 1e18;

Result<std::vector<uint64_t>> read_sizes(const cli::Args& args, const Flag& flag) {
  if (args.text(flag).empty()) return std::vector<uint64_t>{};
  if (is_word(args, flag)) return std::vector<uint64_t>{sim::kUnlimitedBlocks};
  std::vector<uint64_t> out = args.sweep(flag);
  for (const uint64_t blocks : out)
    if (blocks == 0) {
      const std::string name = "--" + std::string(flag.name);
      return user_error(err::kBadValue, name + " is 0; a cache has at least one block", name);
    }
  return out;
}

Result<int> stats(const cli::Args& args, Traces traces) {
  const std::vector<TraceRequest>& trace = traces.front();
  MC_TRY(sink, Sink::open(args));
  TraceStatsOptions options;
  MC_TRY(sizes, read_sizes(args, kCache));
  options.cache_blocks = std::move(sizes);
  options.checkpoints = args.sweep(kCheckpoints);
  Json result = result_head("mc.trace.stats.v1", args);
  result.set("trace", args.positional("FILE").front());
  const Json statistics = trace_statistics(trace, options);
  for (const JsonMember& member : statistics.members()) result.set(member.key, member.value);
  MC_CHECK(sink.text(describe_statistics(result)));
  MC_CHECK(sink.line(result));
  MC_CHECK(sink.finish());
  return 0;
}

Result<int> cache(const cli::Args& args, Traces traces) {
  const std::vector<TraceRequest>& trace = traces.front();
  MC_TRY(sink, Sink::open(args));
  MC_TRY(sizes, read_sizes(args, kTraceBlocks));
  MC_TRY(points, trace_caches(trace, args.list(kCachePolicy), sizes));
  if (points.size() == 0) return user_error(err::kBadValue, "--policy names no policy", "--policy");
  Table table({"policy", "blocks", "block hit %", "token hit %", "mean of requests %"});
  for (const Json& point : points.items()) {
    const auto percent = [&](const char* key) { return fixed(100 * point[key].as_double(), 2); };
    const Json& size = point["cache_blocks"];
    table.add({std::string(point["policy"].as_string()),
               size.is_null() ? "unlimited" : thousands(static_cast<uint64_t>(size.as_int())), percent("block_hit"),
               percent("token_hit"), percent("mean_request_token_hit")});
    if (points.size() > 1) MC_CHECK(sink.line(point_line(point)));
  }
  Json result = result_head("mc.trace.cache.v1", args);
  result.set("trace", args.positional("FILE").front()).set("requests", trace.size());
  MC_CHECK(sink.text(table.text()));
  MC_CHECK(sink.line(with_points(std::move(result), {points.items().begin(), points.items().end()})));
  MC_CHECK(sink.finish());
  return 0;
}

/// The lines are the result, with --json and without.
Result<int> write_trace(const cli::Args& args, const std::vector<TraceRequest>& trace) {
  std::string text;
  for (const TraceRequest& r : trace) text += sim::trace_line(r);
  MC_CHECK(write_output(args.text(flags::kOutput), text, flags::kOutput));
  return 0;
}

Result<int> synth(const cli::Args& args, Traces traces) {
  const std::vector<TraceRequest>& trace = traces.front();
  const uint64_t count = is_word(args, kRequests) ? trace.size() : args.count(kRequests);
  if (count == 0) return out_of_range(kRequests, "0", "at least 1");
  Rng rng(args.count(flags::kSeed));
  const std::vector<TraceRequest> made = sim::TraceModel(trace).generate(count, rng);
  const Json fitted = trace_statistics(trace), ours = trace_statistics(made);
  const auto line = [](const char* what, const Json& s) {
    return std::string(what) + " " + thousands(static_cast<uint64_t>(s["requests"].as_int())) + " requests, " +
           fixed(s["arrivals"]["rate_per_s"].as_double(), 2) + "/s, in mean " +
           fixed(s["input_tokens"]["mean"].as_double(), 0) + ", out " +
           fixed(s["output_tokens"]["mean"].as_double(), 0) + ", ideal token hit " +
           fixed(100 * s["ideal"]["token_hit"].as_double(), 1) + " %";
  };
  note(args, line("fitted to", fitted));
  note(args, line("made", ours));
  return write_trace(args, made);
}

Result<int> convert(const cli::Args& args, Traces traces) {
  const double speedup = args.number(kTraceSpeedup);
  const double from_ms = to_seconds(args.duration(kFrom)) * 1e3;
  const double to_ms = args.present(kTo) ? to_seconds(args.duration(kTo)) * 1e3 : kForeverMs;
  size_t requests = 0;
  double last_ms = 0;
  for (std::vector<TraceRequest>& trace : traces) {
    requests += trace.size();
    for (const TraceRequest& r : trace) last_ms = std::max(last_ms, r.timestamp_ms);
    std::erase_if(trace, [&](const TraceRequest& r) { return r.timestamp_ms < from_ms || r.timestamp_ms >= to_ms; });
    for (TraceRequest& r : trace) r.timestamp_ms = (r.timestamp_ms - from_ms) / speedup;
  }
  const std::vector<TraceRequest> merged = sim::merge_traces(std::move(traces));
  if (merged.empty())
    return user_error(err::kTraceInvalid,
                      "none of the " + std::to_string(requests) +
                          " requests is between --from and --to; the last comes at " + fixed(last_ms / 1e3, 3) + " s",
                      "--from", "choose a range within the trace");
  return write_trace(args, merged);
}

struct Action {
  std::string_view name;
  Result<int> (*run)(const cli::Args&, Traces);
  bool many = false;  // takes more than one file
};
constexpr Action kActions[] = {{"stats", stats}, {"cache", cache}, {"synth", synth}, {"convert", convert, true}};

}  // namespace

const cli::FlagList kTraceFlags = kTraceFlagTable;

Result<int> trace(const cli::Args& args) {
  const std::string name = args.positional_one("ACTION");
  std::string known;
  for (const Action& action : kActions) {
    known += (known.empty() ? "" : ", ") + std::string(action.name);
    if (action.name != name) continue;
    const std::vector<std::string>& files = args.positional("FILE");
    if (files.size() > 1 && !action.many)
      return user_error(err::kUsage, "trace " + name + " takes one file, not " + std::to_string(files.size()));
    Traces traces;
    for (const std::string& file : files) {
      MC_TRY(requests, read_trace(file, is_word(args, kTraceLimit) ? UINT64_MAX : args.count(kTraceLimit)));
      traces.push_back(std::move(requests));
    }
    return action.run(args, std::move(traces));
  }
  return user_error(err::kUsage, "trace has no action '" + name + "'; it has: " + known);
}

}  // namespace mc::bench

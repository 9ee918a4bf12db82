// `mc-bench trace ACTION FILE`: what a request trace holds and what a cache would make of it.

#include "trace.h"

#include "base/common_flags.h"
#include "base/errors.h"
#include "print.h"
#include "sim/lru.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kCache{.name = "cache",
                      .kind = FlagKind::sweep_counts,
                      .value = "BLOCKS",
                      .help = "stats: also replay through one LRU cache of so many blocks of 512 tokens: 1000,10k"};
constexpr Flag kCheckpoints{.name = "checkpoints",
                            .kind = FlagKind::sweep_counts,
                            .value = "N,N",
                            .fallback = "10,100,1000,2000,3000,5000,10000",
                            .help = "stats: reuse of an endless cache after so many requests"};
constexpr Flag kPolicy{
    .name = "policy",
    .kind = FlagKind::list,
    .value = "P,P",
    .fallback = "lru",
    .help = "cache: what is evicted: lru, lru-head, fifo, lfu, lfu-forever, length-aware, belady; pool"};
constexpr Flag kBlocks{.name = "blocks",
                       .kind = FlagKind::sweep_counts,
                       .value = "N,N",
                       .fallback = "unlimited",
                       .help = "cache: sizes in blocks of 512 tokens",
                       .choices = "unlimited"};
constexpr Flag kLimit{.name = "limit",
                      .kind = FlagKind::count,
                      .value = "N",
                      .fallback = "all",
                      .help = "first N requests only",
                      .choices = "all"};

constexpr const Flag* kFlags[] = {&kCache,
                                  &kCheckpoints,
                                  &kPolicy,
                                  &kBlocks,
                                  &kLimit,
                                  &flags::kConfig,
                                  &flags::kJson,
                                  &flags::kOutput,
                                  &flags::kLogLevel,
                                  &flags::kLogFormat,
                                  &flags::kPrintConfig};

Result<std::vector<uint64_t>> read_sizes(const cli::Args& args, const Flag& flag) {
  if (args.text(flag).empty()) return std::vector<uint64_t>{};
  if (args.text(flag) == "unlimited") return std::vector<uint64_t>{sim::kUnlimitedBlocks};
  std::vector<uint64_t> out = args.sweep(flag);
  for (const uint64_t blocks : out)
    if (blocks == 0) {
      const std::string name = "--" + std::string(flag.name);
      return user_error(err::kBadValue, name + " is 0; a cache has at least one block", name);
    }
  return out;
}

Result<int> stats(const cli::Args& args, const std::vector<TraceRequest>& trace, Sink& sink) {
  TraceStatsOptions options;
  MC_TRY(sizes, read_sizes(args, kCache));
  options.cache_blocks = std::move(sizes);
  options.checkpoints = args.sweep(kCheckpoints);
  Json result = result_head("mc.trace.stats.v1", args);
  result.set("trace", args.positional_one("FILE"));
  const Json statistics = trace_statistics(trace, options);
  for (const JsonMember& member : statistics.members()) result.set(member.key, member.value);
  MC_CHECK(sink.text(describe_statistics(result)));
  MC_CHECK(sink.line(result));
  return 0;
}

Result<int> cache(const cli::Args& args, const std::vector<TraceRequest>& trace, Sink& sink) {
  MC_TRY(sizes, read_sizes(args, kBlocks));
  MC_TRY(points, trace_caches(trace, args.list(kPolicy), sizes));
  if (points.size() == 0) return user_error(err::kBadValue, "--policy names none", "--policy");
  Table table({"policy", "blocks", "block hit %", "token hit %", "mean of requests %"});
  for (const Json& point : points.items()) {
    const auto percent = [&](const char* key) { return fixed(100 * point[key].as_double(), 2); };
    const Json& size = point["cache_blocks"];
    table.add({std::string(point["policy"].as_string()),
               size.is_null() ? "unlimited" : thousands(static_cast<uint64_t>(size.as_int())), percent("block_hit"),
               percent("token_hit"), percent("mean_request_token_hit")});
    Json line = Json::object({{"type", "point"}});
    for (const JsonMember& member : point.members()) line.set(member.key, member.value);
    if (points.size() > 1) MC_CHECK(sink.line(line));
  }
  Json result = result_head("mc.trace.cache.v1", args);
  result.set("trace", args.positional_one("FILE")).set("requests", trace.size());
  if (points.size() == 1)
    for (const JsonMember& member : points[0].members()) result.set(member.key, member.value);
  else
    result.set("points", std::move(points));
  MC_CHECK(sink.text(table.text()));
  MC_CHECK(sink.line(result));
  return 0;
}

struct Action {
  std::string_view name;
  Result<int> (*run)(const cli::Args&, const std::vector<TraceRequest>&, Sink&);
};
constexpr Action kActions[] = {{"stats", stats}, {"cache", cache}};

}  // namespace

const cli::FlagList kTraceFlags = kFlags;

Result<int> trace(const cli::Args& args) {
  const std::string name = args.positional_one("ACTION");
  std::string known;
  for (const Action& action : kActions) {
    known += (known.empty() ? "" : ", ") + std::string(action.name);
    if (action.name != name) continue;
    MC_TRY(requests,
           read_trace(args.positional_one("FILE"), args.text(kLimit) == "all" ? UINT64_MAX : args.count(kLimit)));
    Sink sink(args);
    MC_TRY(code, action.run(args, requests, sink));
    MC_CHECK(sink.finish());
    return code;
  }
  return user_error(err::kUsage, "trace has no action '" + name + "'; it has: " + known);
}

}  // namespace mc::bench

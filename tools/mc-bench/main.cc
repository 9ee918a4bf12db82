// mc-bench: measures the parts and the whole, makes test models, reads traces.

#include "base/cli.h"
#include "base/common_flags.h"
#include "base/errors.h"
#include "mc_version.h"
#include "run/inspect.h"
#include "verbs.h"

using namespace mc;

namespace {

constexpr const Flag* kDiffFlags[] = {&flags::kConfig, &flags::kJson, &flags::kLogLevel, &flags::kLogFormat,
                                      &flags::kPrintConfig};
constexpr const Flag* kEveryVerb[] = {&flags::kConfig, &flags::kJson, &flags::kLogLevel, &flags::kLogFormat,
                                      &flags::kPrintConfig};
constexpr cli::Positional kDiffArgs[] = {{.name = "LEFT", .help = "a .mckv stream; - is stdin"},
                                         {.name = "RIGHT", .help = "the other one"}};
constexpr cli::Positional kTokArgs[] = {{.name = "CORPUS", .help = "UTF-8 text files", .min = 0, .max = -1}};
constexpr cli::Positional kXferArgs[] = {
    {.name = "PEER", .help = "host of a --server, or one of its URIs; without it both ends run here", .min = 0}};
constexpr cli::Positional kDoctorArgs[] = {
    {.name = "PEER", .help = "connect to these too: URIs of nodes, or hosts", .min = 0, .max = -1}};
constexpr cli::Positional kReplayArgs[] = {
    {.name = "TRACE", .help = "Mooncake JSONL; - is stdin"},
    {.name = "GOAL", .help = "more goals of --goodput, as in --goodput ttft:2000 tpot:100", .min = 0, .max = -1}};
constexpr cli::Positional kServeArgs[] = {
    {.name = "GOAL", .help = "more goals of --goodput, as in --goodput ttft:2000 tpot:100", .min = 0, .max = -1}};
constexpr cli::Positional kSimArgs[] = {
    {.name = "TRACE", .help = "Mooncake JSONL; - is stdin; none with --calibrate", .min = 0}};
constexpr cli::Positional kTraceArgs[] = {
    {.name = "ACTION", .help = "stats, cache (hit rates), synth (one like FILE) or convert (cut, scale, merge)"},
    {.name = "FILE", .help = "Mooncake JSONL; - is stdin; convert merges several", .max = -1}};

constexpr cli::Positional kPlotArgs[] = {
    {.name = "FILE", .help = "results: lines of JSON, folders of them; - is stdin", .max = -1}};

Result<int> simulate(const cli::Args& args) {
  const bool sim = args.verb() == "sim";
  if (sim && bench::wants_calibration(args)) return bench::calibrate(args);
  if (args.positional("TRACE").empty())
    return user_error(err::kUsage, sim ? "sim needs a TRACE, or --calibrate RUNS" : "advise needs a TRACE");
  return sim ? bench::simulate(args) : bench::advise(args);
}

}  // namespace

int main(int argc, char** argv) {
  const cli::Verb verbs[] = {
      {.name = "serve",
       .summary = "open-loop load on an OpenAI endpoint",
       .args = kServeArgs,
       .flags = bench::kServeFlags,
       .example = "mc-bench serve --request-rate 4 --num-prompts 40 --input-len 512 --output-len 16"},
      {.name = "replay",
       .summary = "a request trace against an OpenAI endpoint",
       .args = kReplayArgs,
       .flags = bench::kReplayFlags,
       .example = "mc-bench replay conversation_trace.jsonl --speedup 10 --limit 500 --max-input 4096"},
      {.name = "trace",
       .summary = "what a request trace asks of a cache; traces like it, or parts of it",
       .args = kTraceArgs,
       .flags = bench::kTraceFlags,
       .example = "mc-bench trace stats conversation_trace.jsonl"},
      {.name = "sim",
       .summary = "what a policy and a cluster would do with a trace",
       .args = kSimArgs,
       .flags = bench::with_calibration(bench::kSimFlags),
       .example = "mc-bench sim conversation_trace.jsonl --cluster 8p8d --policy kv-centric,cache-aware,load"},
      {.name = "advise",
       .summary = "what to deploy for a trace, what it would bear, when not to disaggregate",
       .args = kSimArgs,
       .flags = bench::kAdviseFlags,
       .example = "mc-bench advise conversation_trace.jsonl --nodes 16 --profile h800-70b --tbt-slo 100ms"},
      {.name = "route",
       .summary = "what one routing decision costs, against nodes and indexed blocks",
       .flags = bench::kRouteFlags,
       .example = "mc-bench route --nodes 64,1024 --blocks 100k -t 500ms"},
      {.name = "model",
       .summary = "prefill and decode speed of a model in this process",
       .flags = bench::kModelFlags,
       .example = "mc-bench model -p 128,512 -n 16 -d 0,1024 -r 3"},
      {.name = "attn",
       .summary = "speed of attention alone, as a share of the machine's peak and beside full attention",
       .flags = bench::kAttnFlags,
       .example = "mc-bench attn --phase prefill -n 1024,4096 --attention full,moba:block=128,top_k=3 -r 3"},
      {.name = "recall",
       .summary = "what a model finds in its context under full and sparse attention",
       .flags = bench::kRecallFlags,
       .example = "mc-bench recall -p 1024,2048 -r 20"},
      {.name = "tok",
       .summary = "speed of a tokenizer on one thread, and whether its ids are the expected ones",
       .args = kTokArgs,
       .flags = bench::kTokFlags,
       .example = "mc-bench tok -m models/q3 corpus.txt"},
      {.name = "xfer",
       .summary = "speed of the transfer engine beside memcpy and a raw socket",
       .args = kXferArgs,
       .flags = bench::kXferFlags,
       .example = "mc-bench xfer --transport shm,tcp --size 64KiB-4MiB*8 -t 1s"},
      {.name = "doctor",
       .summary = "what transfers can use here and towards peers, why not the rest, and what to do",
       .args = kDoctorArgs,
       .flags = bench::kDoctorFlags,
       .example = "mc-bench doctor --memory 1GiB"},
      {.name = "plot",
       .summary = "figures out of result files",
       .args = kPlotArgs,
       .flags = bench::kPlotFlags,
       .example = "mc-bench plot runs/ --x request_rate --y p99_ttft_ms --slo 2000 --svg fig.svg"},
      {.name = "mkmodel",
       .summary = "write a random model for tests",
       .flags = bench::kMkmodelFlags,
       .example = "mc-bench mkmodel --arch qwen3 --layers 2 --hidden 64 -o tiny"},
      {.name = "diff-kv",
       .summary = "compare two .mckv streams",
       .args = kDiffArgs,
       .flags = kDiffFlags,
       .example = "mc-bench diff-kv a.mckv b.mckv"},
  };
  const cli::Program program{.name = "mc-bench",
                             .summary = "measures the parts and the whole, makes test models, reads traces",
                             .flags = kEveryVerb,
                             .verbs = verbs,
                             .example = "mc-bench xfer --transport shm,tcp --size 64KiB-4MiB*8 -t 1s",
                             .needs_verb = true,
                             .version = MC_VERSION,
                             .commit = MC_COMMIT};
  return cli::run(program, argc, argv, [](const cli::Args& args) -> Result<int> {
    const std::string_view verb = args.verb();
    if (verb == "serve") return bench::serve(args);
    if (verb == "replay") return bench::replay(args);
    if (verb == "trace") return bench::trace(args);
    if (verb == "sim" || verb == "advise") return simulate(args);
    if (verb == "route") return bench::route(args);
    if (verb == "model") return bench::measure_model(args);
    if (verb == "attn") return bench::measure_attention(args);
    if (verb == "recall") return bench::measure_recall(args);
    if (verb == "tok") return bench::measure_tokenizer(args);
    if (verb == "xfer") return bench::xfer(args);
    if (verb == "doctor") return bench::doctor(args);
    if (verb == "plot") return bench::plot(args);
    if (verb == "mkmodel") return bench::mkmodel(args);
    return run::diff_streams(args);
  });
}

// The table of mc-bench's verbs, as --help lists them.
#include "verbs.h"

#include "base/cli_flags.h"
#include "base/errors.h"
#include "verbs/inspect.h"

namespace mc::bench {
namespace {

constexpr auto kEveryVerb = flags::kEveryRun;

constexpr cli::Positional kDiffArgs[] = {{.name = "LEFT", .help = "a .mckv stream; - is stdin"},
                                         {.name = "RIGHT", .help = "the other one"}};
constexpr cli::Positional kTokArgs[] = {{.name = "CORPUS", .help = "UTF-8 text files", .min = 0, .max = -1}};
constexpr cli::Positional kModelArgs[] = {
    {.name = "ACTION", .help = "inspect: print what the file holds, and measure nothing", .min = 0},
    {.name = "FILE", .help = "the model to inspect: a GGUF file or a directory; without it that of -m", .min = 0}};
constexpr cli::Positional kXferArgs[] = {
    {.name = "PEER", .help = "host of a --server, or one of its URIs; without it both ends run here", .min = 0}};
constexpr cli::Positional kKvArgs[] = {{.name = "NODE", .help = "a cache node's id, or http://HOST:PORT"}};
constexpr cli::Positional kDiskArgs[] = {
    {.name = "DIR", .help = "folder on the disk to measure; without it this one", .min = 0}};
constexpr cli::Positional kDoctorArgs[] = {
    {.name = "PEER", .help = "connect to these too: URIs of nodes, or hosts", .min = 0, .max = -1}};
constexpr cli::Positional kReplayArgs[] = {
    {.name = "TRACE", .help = "Mooncake JSONL; - is stdin"},
    {.name = "GOAL", .help = "more goals of --goodput, as in --goodput ttft:2000 tpot:100", .min = 0, .max = -1}};
constexpr cli::Positional kServeArgs[] = {
    {.name = "GOAL", .help = "more goals of --goodput, as in --goodput ttft:2000 tpot:100", .min = 0, .max = -1}};
constexpr cli::Positional kSimArgs[] = {
    {.name = "TRACE", .help = "Mooncake JSONL; - is stdin; none with --calibrate", .min = 0}};
constexpr cli::Positional kAdviseArgs[] = {{.name = "TRACE", .help = "Mooncake JSONL; - is stdin"}};
constexpr cli::Positional kTraceArgs[] = {
    {.name = "ACTION", .help = "stats, cache (hit rates), synth (one like FILE) or convert (cut, scale, merge)"},
    {.name = "FILE", .help = "Mooncake JSONL; - is stdin; convert merges several", .max = -1}};
constexpr cli::Positional kPlotArgs[] = {
    {.name = "FILE", .help = "results: lines of JSON, folders of them; - is stdin", .max = -1}};

Result<int> sim_or_calibrate(const cli::Args& args) {
  if (wants_calibration(args)) return calibrate(args);
  if (args.positional("TRACE").empty()) return user_error(err::kUsage, "sim needs a TRACE, or --calibrate RUNS");
  return simulate(args);
}

const cli::Verb kVerbs[] = {
    {.name = "serve",
     .summary = "load an OpenAI endpoint with synthetic requests",
     .args = kServeArgs,
     .flags = kServeFlags,
     .example = "mc-bench serve --request-rate 4 --num-prompts 40 --input-len 512 --output-len 16",
     .run = serve},
    {.name = "replay",
     .summary = "load an OpenAI endpoint with the requests of a trace",
     .args = kReplayArgs,
     .flags = kReplayFlags,
     .example = "mc-bench replay conversation_trace.jsonl --speedup 10 --limit 500 --max-input 4096",
     .run = replay},
    {.name = "trace",
     .summary = "read, replay, make and convert request traces",
     .args = kTraceArgs,
     .flags = kTraceFlags,
     .example = "mc-bench trace stats conversation_trace.jsonl",
     .run = trace},
    {.name = "sim",
     .summary = "simulate a cluster that serves a trace",
     .args = kSimArgs,
     .flags = with_calibration(kSimFlags),
     .example = "mc-bench sim conversation_trace.jsonl --cluster 8p8d --policy kv-centric,cache-aware,load",
     .run = sim_or_calibrate},
    {.name = "advise",
     .summary = "choose a cluster for a trace, and say whether to disaggregate",
     .args = kAdviseArgs,
     .flags = kAdviseFlags,
     .example = "mc-bench advise conversation_trace.jsonl --nodes 16 --profile h800-70b --tbt-slo 100ms",
     .run = advise},
    {.name = "route",
     .summary = "time routing decisions by nodes and indexed blocks",
     .flags = kRouteFlags,
     .example = "mc-bench route --nodes 64,1024 --blocks 100k -t 500ms",
     .run = route},
    {.name = "model",
     .summary = "time prefill and decode of a model in this process",
     .args = kModelArgs,
     .flags = kModelFlags,
     .example = "mc-bench model -p 128,512 -n 16 -d 0,1024 -r 3",
     .run = measure_model},
    {.name = "attn",
     .summary = "speed of attention, as a share of the machine's limit and beside full attention",
     .flags = kAttnFlags,
     .example = "mc-bench attn --phase prefill -n 1024,4096 --attention full,moba:block=128,top_k=3 -r 3",
     .run = measure_attention},
    {.name = "ops",
     .summary = "speed and error of the other kernels in every variant",
     .flags = kOpsFlags,
     .example = "mc-bench ops --op decode --dtype bf16,int8 --rows 1,8 --size 4096x4096 -r 3",
     .run = measure_operators},
    {.name = "gpu",
     .summary = "run the GPU kernels in the emulator and compare them with the reference",
     .flags = kGpuFlags,
     .example = "mc-bench gpu --kernel decode -n 200 --attention full,moba:block=64,top_k=2 --schedules 3",
     .run = check_gpu},
    {.name = "recall",
     .summary = "measure what a model finds in its context under full and sparse attention",
     .flags = kRecallFlags,
     .example = "mc-bench recall -p 1024,2048 -r 20",
     .run = measure_recall},
    {.name = "grammar",
     .summary = "time the masks that force an answer into a JSON schema",
     .flags = kGrammarFlags,
     .example = "mc-bench grammar --vocab 150000",
     .run = measure_grammars},
    {.name = "tok",
     .summary = "time a tokenizer on one thread and check its ids",
     .args = kTokArgs,
     .flags = kTokFlags,
     .example = "mc-bench tok -m models/q3 corpus.txt",
     .run = measure_tokenizer},
    {.name = "xfer",
     .summary = "time the transfer engine beside memcpy and a raw socket",
     .args = kXferArgs,
     .flags = kXferFlags,
     .example = "mc-bench xfer --transport shm,tcp --size 64KiB-4MiB*8 -t 1s",
     .run = xfer},
    {.name = "rfp",
     .summary = "time calls by remote fetching over each transport",
     .flags = kRfpFlags,
     .example = "mc-bench rfp --transport shm,tcp --depth 1,8 -t 1s",
     .run = measure_fetching},
    {.name = "disk",
     .summary = "time the block store's durable puts, gets and restarts on a disk",
     .args = kDiskArgs,
     .flags = kDiskFlags,
     .example = "mc-bench disk --rw write,randread --bs 256KiB --jobs 1,8 -t 2s",
     .run = measure_disk},
    {.name = "kv",
     .summary = "time put, get and exist of values in a cache node",
     .args = kKvArgs,
     .flags = kKvFlags,
     .example = "mc-bench kv c0 --op put,get --value 64KiB,1MiB --clients 1,4",
     .run = measure_values},
    {.name = "doctor",
     .summary = "say which transports work here and to peers, why others do not, and what to do",
     .args = kDoctorArgs,
     .flags = kDoctorFlags,
     .example = "mc-bench doctor --memory 1GiB",
     .run = doctor},
    {.name = "plot",
     .summary = "draw figures from result files",
     .args = kPlotArgs,
     .flags = kPlotFlags,
     .example = "mc-bench plot runs/ --x request_rate --y p99_ttft_ms --slo 2000 --svg fig.svg",
     .run = plot},
    {.name = "mkmodel",
     .summary = "write a random model for tests",
     .flags = kMkmodelFlags,
     .example = "mc-bench mkmodel --arch qwen3 --layers 2 --hidden 64 -o tiny",
     .run = mkmodel},
    {.name = "diff-kv",
     .summary = "compare two .mckv streams",
     .args = kDiffArgs,
     .flags = kEveryVerb,
     .example = "mc-bench diff-kv a.mckv b.mckv",
     .run = verbs::diff_streams},
};

}  // namespace

const cli::FlagList kEveryVerbFlags = kEveryVerb;

std::span<const cli::Verb> verbs() {
  return kVerbs;
}

Error bad_value(const Flag& flag, const std::string& what) {
  return user_error(err::kBadValue, "--" + std::string(flag.name) + ": " + what, "--" + std::string(flag.name));
}

}  // namespace mc::bench

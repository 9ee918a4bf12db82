// `mc-bench serve` and `mc-bench replay`: a plan, an endpoint, a run, a verdict. Flags are spelt as in
// `vllm bench serve` where it has them. What is measured is load.h; what is reported, summary.h.

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <random>

#include "base/choice.h"
#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "ctl/ctl.h"
#include "host/conductor_process.h"
#include "host/signals.h"
#include "load.h"
#include "model/config.h"
#include "model/find.h"
#include "print.h"
#include "summary.h"
#include "verbs.h"
#include "verbs/client_key.h"
#include "workload.h"

namespace mc::bench {
namespace {

constexpr Flag kBaseUrl{
    .name = "base-url", .value = "URL", .help = "server; without it and --host, --port the conductor in MCT_RUN_DIR"};
constexpr Flag kHost{.name = "host", .value = "ADDR", .fallback = "127.0.0.1", .help = "server"};
constexpr Flag kPort{
    .name = "port", .kind = FlagKind::count, .value = "N", .fallback = "8000", .help = "port of the server"};
constexpr Flag kEndpoint{.name = "endpoint",
                         .value = "PATH",
                         .fallback = "/v1/completions",
                         .help = "OpenAI path: completions, or chat/completions with --dataset"};
constexpr Flag kServedModel{
    .name = "served-model-name", .value = "NAME", .help = "model to ask for; without it the first of /v1/models"};
constexpr Flag kVocab{.name = "vocab",
                      .kind = FlagKind::count,
                      .value = "N",
                      .fallback = "auto",
                      .help = "prompt ids are below N; auto is the vocabulary of -m DIR or of mc-tiny, else 1024",
                      .choices = "auto"};
constexpr Flag kHeader{
    .name = "header", .kind = FlagKind::list, .value = "K=V", .help = "HTTP header to send; may be repeated"};
constexpr Flag kMaxConcurrency{
    .name = "max-concurrency",
    .kind = FlagKind::count,
    .value = "N",
    .fallback = "off",
    .help = "largest number of requests in flight; others wait in the client, which counts as latency",
    .choices = "off"};
constexpr Flag kNumWarmups{.name = "num-warmups",
                           .kind = FlagKind::count,
                           .value = "N",
                           .fallback = "1",
                           .help = "requests sent before, one after the other, and not counted"};
constexpr Flag kIgnoreEos{
    .name = "ignore-eos", .kind = FlagKind::boolean, .help = "the end token does not end an answer"};
constexpr Flag kTemperature{
    .name = "temperature", .kind = FlagKind::number, .value = "X", .fallback = "0", .help = "0 is greedy"};
constexpr Flag kTimeout{.name = "timeout",
                        .kind = FlagKind::duration,
                        .value = "T",
                        .fallback = "10m",
                        .help = "a request fails when it takes longer"};
constexpr Flag kGoodput{.name = "goodput",
                        .kind = FlagKind::list,
                        .value = "METRIC:MS",
                        .help = "count requests within these bounds: ttft:2000 tpot:100 e2el:8000"};
constexpr Flag kFailIf{.name = "fail-if",
                       .kind = FlagKind::list,
                       .value = "COND",
                       .help = "exit with 4 when the condition holds: goodput<3.5/s, ttft_p99>2s, failed>0"};
constexpr Flag kPercentileMetrics{.name = "percentile-metrics",
                                  .kind = FlagKind::list,
                                  .value = "M,M",
                                  .fallback = "ttft,tpot,itl,e2el",
                                  .help = "metrics with percentiles"};
constexpr Flag kMetricPercentiles{.name = "metric-percentiles",
                                  .kind = FlagKind::sweep_numbers,
                                  .value = "P,P",
                                  .fallback = "99",
                                  .help = "percentiles to give: 50,90,99"};
constexpr Flag kServedFrom{.name = "model",
                           .letter = 'm',
                           .value = "DIR",
                           .help = "directory of the served model, for the size of its vocabulary"};
constexpr Flag kLateMax{
    .name = "late-max",
    .kind = FlagKind::duration,
    .value = "T",
    .fallback = "5ms",
    .help = "the run fails when p99 lateness exceeds this, 1 % of the interval and of the median TTFT"};
constexpr Flag kMetadata{
    .name = "metadata", .kind = FlagKind::list, .value = "K=V", .help = "key and value to add to the result"};
constexpr Flag kSaveResult{.name = "save-result", .kind = FlagKind::boolean, .help = "also write the result to a file"};
constexpr Flag kSaveDetailed{.name = "save-detailed",
                             .kind = FlagKind::boolean,
                             .help = "with --save-result, write each request as a line of FILE.requests.jsonl"};
constexpr Flag kResultDir{
    .name = "result-dir", .value = "DIR", .help = "directory of --save-result; default is the current directory"};
constexpr Flag kResultFilename{.name = "result-filename",
                               .value = "FILE",
                               .help = "file name of --save-result; default is made of rate, model and time"};
constexpr Flag kLoadSeed{.name = "seed",
                         .kind = FlagKind::count,
                         .value = "N",
                         .fallback = "0",
                         .help =
                             "lengths and arrivals derive from it; prompts too where it is given, else each run "
                             "draws new ones, which no cache holds"};
constexpr Flag kDryRun{.name = "dry-run",
                       .kind = FlagKind::boolean,
                       .help = "print the requests that would be sent, one JSON line each; send nothing",
                       .one_shot = true};

constexpr std::array<const Flag*, 30> kTargetFlags = {&kBaseUrl,
                                                      &kHost,
                                                      &kPort,
                                                      &kEndpoint,
                                                      &kServedModel,
                                                      &kServedFrom,
                                                      &kVocab,
                                                      &flags::kApiKeyFile,
                                                      &flags::kApiKey,
                                                      &kHeader,
                                                      &kMaxConcurrency,
                                                      &kNumWarmups,
                                                      &kTemperature,
                                                      &kTimeout,
                                                      &kGoodput,
                                                      &kFailIf,
                                                      &kPercentileMetrics,
                                                      &kMetricPercentiles,
                                                      &kLateMax,
                                                      &kMetadata,
                                                      &kSaveResult,
                                                      &kSaveDetailed,
                                                      &kResultDir,
                                                      &kResultFilename,
                                                      &kDryRun,
                                                      &kLoadSeed,
                                                      &flags::kJson,
                                                      &flags::kOutput,
                                                      &flags::kQuiet,
                                                      &flags::kProgress};
constexpr std::array<const Flag*, 4> kProgramFlags = {&flags::kConfig, &flags::kLogLevel, &flags::kLogFormat,
                                                      &flags::kPrintConfig};

template <size_t N>
constexpr auto with_target(const std::array<const Flag*, N>& own) {
  std::array<const Flag*, N + kTargetFlags.size() + kProgramFlags.size()> out{};
  size_t at = 0;
  for (const Flag* flag : own) out[at++] = flag;
  for (const Flag* flag : kTargetFlags) out[at++] = flag;
  for (const Flag* flag : kProgramFlags) out[at++] = flag;
  return out;
}
constexpr auto kServe = with_target(std::array<const Flag*, 9>{&flag::kDataset, &flag::kRequestRate, &flag::kBurstiness,
                                                               &flag::kNumPrompts, &flag::kInputLen, &flag::kOutputLen,
                                                               &flag::kRangeRatio, &flag::kPrefixShare, &kIgnoreEos});
constexpr auto kReplay =
    with_target(std::array<const Flag*, 4>{&flag::kSpeedup, &flag::kLimit, &flag::kMaxInput, &flag::kMaxOutput});

struct Server {
  std::string model;
  Json cluster;  // "1p1d1c", or null where the server is not ours
  uint64_t context = 0;
};

Result<Json> get_json(const Target& target, const std::string& path) {
  MC_TRY(answer, http::fetch(http::Method::get, target.base_url, path, target.headers, "",
                             SystemClock::instance().now() + 10s));
  if (answer.status == 401 || answer.status == 403) {
    auto body = Json::parse(answer.body);
    const Json said = body ? (*body)["error"]["message"] : Json();
    return user_error(answer.status == 401 ? err::kUnauthorized : err::kForbidden,
                      "HTTP " + std::to_string(answer.status) + ": " + std::string(said.as_string(answer.body)),
                      target.base_url + path, "give the key with --api-key-file FILE or MCT_API_KEY");
  }
  if (answer.status != 200)
    return Error{Code::not_found, target.base_url + path + " answers HTTP " + std::to_string(answer.status)};
  return Json::parse(answer.body);
}

/// The pages of the conductor in MCT_RUN_DIR, which its user may read without a key.
Result<Target> operators_pages(Target target) {
  MC_TRY(directory, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
  target.base_url = "unix:" + directory + "/" + std::string(host::kOperatorsSocket);
  return target;
}

/// The URL that the conductor in MCT_RUN_DIR, or in the default run directory, has for clients. MC2101 without one.
Result<std::string> conductors_url() {
  MC_TRY(pages, operators_pages({}));
  auto cluster = get_json(pages, "/cluster");
  if (cluster && (*cluster)["url"].is_string()) return std::string((*cluster)["url"].as_string());
  return user_error(err::kPeerUnreachable,
                    cluster ? "the conductor has no HTTP address" : "no conductor answers: " + cluster.error().what,
                    pages.base_url,
                    "start mc-conductor, set MCT_RUN_DIR to its run directory, or name the server with --base-url URL");
}

/// The URL of --base-url, or of --host and --port; without them that of the conductor in MCT_RUN_DIR. Who names a run
/// directory means the cluster there, so no other server may take its load.
Result<std::string> base_url(const cli::Args& args) {
  if (!args.text(kBaseUrl).empty()) return args.text(kBaseUrl);
  const std::string address = "http://" + args.text(kHost) + ":" + std::to_string(args.count(kPort));
  if (args.given(kHost) || args.given(kPort)) return address;
  auto found = conductors_url();
  const char* named = std::getenv("MCT_RUN_DIR");
  const bool is_named = named != nullptr && *named != '\0';
  if (found || (is_named && !args.on(kDryRun))) return found;
  if (!args.on(kDryRun)) note(args, "no conductor answers in the default run directory; the server is " + address);
  return address;
}

/// The nodes behind the server, from its page for operators. On one host the socket in MCT_RUN_DIR has them without a
/// key, if the conductor there is this very server: its model list has the time of its start.
Result<Json> ask_cluster(const Target& target, const Result<Json>& models) {
  if (auto cluster = get_json(target, "/cluster")) return cluster;
  MC_TRY(socket, operators_pages(target));
  MC_TRY(here, get_json(socket, "/v1/models"));
  if (!models || here.dump() != models->dump()) return Error{Code::not_found, "another conductor runs here"};
  return get_json(socket, "/cluster");
}

/// Asks the server what it serves; MC2101 when nobody answers.
Result<Server> ask_server(const Target& target, const std::string& wanted) {
  Server server{.model = wanted, .cluster = {}};
  auto models = get_json(target, "/v1/models");
  if (!models && (models.error().mc == err::kUnauthorized || models.error().mc == err::kForbidden))
    return models.error();
  if (!models && models.error().code != Code::not_found) {
    Error error = as_user_error(err::kPeerUnreachable, models.error());
    if (error.where.empty())
      error.where = target.base_url, error.next = "start mc-conductor, or name the server with --base-url URL";
    return error;
  }
  if (models && server.model.empty()) server.model = std::string((*models)["data"][0]["id"].as_string());
  if (models) server.context = static_cast<uint64_t>((*models)["data"][0]["max_model_len"].as_int());
  if (server.model.empty())
    return user_error(err::kPeerUnreachable, target.base_url + "/v1/models lists no model", target.base_url,
                      "name it with --served-model-name");
  if (auto cluster = ask_cluster(target, models)) {
    int64_t roles[3] = {0, 0, 0};
    for (const Json& node : (*cluster)["nodes"].items()) {
      const std::string_view role = node["role"].as_string();
      roles[role == "prefill" ? 0 : role == "decode" ? 1 : 2] += 1;
    }
    std::string text;
    for (int i = 0; i < 3; ++i)
      if (roles[i] > 0) text += std::to_string(roles[i]) + "pdc"[i];
    server.cluster = text;
  }
  return server;
}

/// Exclusive bound of prompt ids: from the flag, from the model's config, or what every vocabulary has.
Result<uint32_t> vocabulary(const cli::Args& args, const std::string& served) {
  constexpr uint32_t kEveryModelHas = 1024;
  // Above this lie the special tokens of Llama 3 (128000) and Qwen (151643).
  constexpr uint64_t kMost = 100'000;
  uint64_t vocab = kEveryModelHas;
  if (args.present(kVocab)) {
    vocab = args.count(kVocab);
    if (vocab <= TokenRange::kFirstToken || vocab > UINT32_MAX)
      return out_of_range(kVocab, vocab, TokenRange::kFirstToken + 1, UINT32_MAX);
    return static_cast<uint32_t>(vocab);
  }
  if (!args.text(kServedFrom).empty() || served == "mc-tiny") {
    MC_TRY(directory, model::find_model(args.text(kServedFrom).empty() ? served : args.text(kServedFrom)));
    MC_TRY(config, model::read_config(directory));
    vocab = std::min<uint64_t>(config.vocab, kMost);
  }
  return static_cast<uint32_t>(std::max<uint64_t>(vocab, TokenRange::kFirstToken + 1));
}

Result<http::Headers> read_headers(const cli::Args& args) {
  MC_TRY(out, verbs::key_headers(args));
  out.push_back({"Content-Type", "application/json"});
  for (const std::string& text : args.list(kHeader)) {
    const size_t at = text.find('=');
    if (at == 0 || at == std::string::npos)
      return user_error(err::kBadValue, "'" + text + "' is not a header; write NAME=VALUE", "--header");
    out.push_back({text.substr(0, at), text.substr(at + 1)});
  }
  return out;
}

/// Whether an endpoint is that of chats, whose requests hold messages. Every other one takes the prompt of a
/// completion.
bool is_chat_endpoint(std::string_view path) {
  return path.substr(0, path.find('?')).ends_with("/chat/completions");
}

Result<Target> read_target(const cli::Args& args, bool ignore_eos) {
  Target target{.path = args.text(kEndpoint), .model = args.text(kServedModel)};
  if (args.count(kPort) == 0 || args.count(kPort) > 65535) return out_of_range(kPort, args.count(kPort), 1, 65535);
  target.is_chat = is_chat_endpoint(target.path);
  const bool has_texts = args.has(flag::kDataset) && args.present(flag::kDataset);
  if (target.path.empty() || target.path[0] != '/' || (target.is_chat && !has_texts))
    return user_error(err::kBadValue, "--endpoint " + target.path + " takes no random token ids", "--endpoint",
                      "use /v1/completions, or give texts with --dataset FILE");
  MC_TRY(url, base_url(args));
  target.base_url = std::move(url);
  while (target.base_url.ends_with('/')) target.base_url.pop_back();
  MC_TRY(headers, read_headers(args));
  target.headers = std::move(headers);
  target.tokens.seed = args.count(kLoadSeed);
  if (!args.given(kLoadSeed)) target.tokens.seed = std::random_device()();
  target.ignore_eos = ignore_eos;
  target.temperature = args.number(kTemperature);
  target.timeout = args.duration(kTimeout);
  if (args.present(kMaxConcurrency)) target.max_concurrency = std::max<uint64_t>(1, args.count(kMaxConcurrency));
  return target;
}

Result<SummaryPlan> read_summary_plan(const cli::Args& args) {
  SummaryPlan how;
  std::vector<std::string> goals = args.list(kGoodput);
  for (const std::string& more : args.positional("GOAL")) goals.push_back(more);
  MC_TRY(parsed, parse_goals(goals));
  how.goals = std::move(parsed);
  how.metrics = args.list(kPercentileMetrics);
  for (const std::string& metric : how.metrics)
    if (metric != "ttft" && metric != "tpot" && metric != "itl" && metric != "e2el")
      return user_error(err::kBadValue, "'" + metric + "' is no metric; there are ttft, tpot, itl, e2el",
                        "--percentile-metrics");
  how.percentiles = args.sweep_numbers(kMetricPercentiles);
  for (double p : how.percentiles)
    if (!(p > 0 && p <= 100))
      return out_of_range(kMetricPercentiles, args.text(kMetricPercentiles), "numbers above 0 and at most 100");
  return how;
}

Result<void> print_plan(const Plan& plan, const Target& target, Sink& sink) {
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& r = plan.requests[i];
    Json ids = Json::array();
    for (uint32_t id : prompt_ids(r.prompt, target.tokens)) ids.push(id);
    Json line =
        Json::object({{"type", "planned"}, {"index", i}, {"at_ms", to_ms(r.at)}, {"input_tokens", r.input_tokens}});
    line.set("output_tokens", r.output_tokens).set("prompt", r.text.empty() ? std::move(ids) : Json(r.text));
    MC_CHECK(sink.json() ? sink.line(line) : sink.text(line.dump() + "\n"));
  }
  return sink.finish();
}

std::string result_dir(const cli::Args& args) {
  return args.text(kResultDir).empty() ? "." : args.text(kResultDir);
}

bool saves(const cli::Args& args) {
  return args.on(kSaveResult) || args.on(kSaveDetailed);
}

Result<void> make_result_dir(const cli::Args& args) {
  if (::mkdir(result_dir(args).c_str(), 0755) == 0 || errno == EEXIST) return {};
  return as_user_error(err::kFileAccess, errno_error("mkdir " + result_dir(args)));
}

/// vLLM's habit: rate, model and time make the name.
std::string result_file(const cli::Args& args, const Json& result) {
  std::string name = args.text(kResultFilename);
  if (name.empty()) {
    char stamp[32] = "";
    const time_t at = static_cast<time_t>(SystemClock::instance().unix_ms() / 1000);
    tm parts{};
    ::gmtime_r(&at, &parts);
    ::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &parts);
    const Json& rate = result["request_rate"];
    const std::string rate_text =
        rate.is_string() ? std::string(rate.as_string()) : format_f64(std::round(rate.as_double() * 1000) / 1000);
    name = "mc-" + rate_text + "qps-" + std::string(result["model"].as_string()) + "-" + stamp + ".json";
    for (char& c : name)
      if (c == '/') c = '_';
  }
  return result_dir(args) + "/" + name;
}

Result<void> save(const cli::Args& args, const Json& result, const LoadResult& load) {
  if (!saves(args)) return {};
  MC_CHECK(make_result_dir(args));
  const std::string path = result_file(args, result);
  MC_CHECK(write_file_atomic(path, result.dump() + "\n"));
  note(args, "result written to " + path);
  if (!args.on(kSaveDetailed)) return {};
  std::string lines;
  for (size_t i = 0; i < load.records.size(); ++i) lines += record_json(load.records[i], i).dump() + "\n";
  return write_file_atomic(path + ".requests.jsonl", lines);
}

/// Requests like the first one but with prompts of their own, one after the other; not counted.
Result<void> warm_up(const cli::Args& args, const Plan& plan, Target target, int interrupt_fd) {
  const uint64_t count = args.count(kNumWarmups);
  if (count == 0) return {};
  Plan warm;
  for (uint64_t i = 0; i < std::min<uint64_t>(count, 100'000); ++i) {
    PlannedRequest r = plan.requests.front();
    r.at = {};
    r.prompt = {{~i, r.input_tokens}};
    if (!r.text.empty()) r.text = "Hello";
    warm.requests.push_back(std::move(r));
  }
  target.max_concurrency = 1;
  MC_TRY(load, run_load(warm, target, interrupt_fd, {}));
  uint64_t ok = 0;
  for (const Record& r : load.records) ok += r.outcome == Outcome::completed;
  note(args, std::to_string(ok) + " of " + std::to_string(count) + " warm-up request(s) answered in " +
                 human_duration(from_seconds(load.duration_s)) + ", not counted");
  if (ok == 0 && !load.interrupted) note(args, "the first warm-up failed: " + load.records.front().error);
  return {};
}

/// Judges the run after its results are printed.
Result<int> verdict(const cli::Args& args, const Plan& plan, const LoadResult& load, const Json& result,
                    const std::vector<Condition>& conditions) {
  if (load.interrupted)
    return user_error(err::kInterrupted, result["completed"].dump() + " of " + std::to_string(load.records.size()) +
                                             " requests had been answered");
  const double late_s = lateness_p99_s(load);
  const double bound_s = lateness_bound_s(plan, load, to_seconds(args.duration(kLateMax)));
  if (late_s > bound_s)
    return user_error(err::kClientLate,
                      "99 % of the requests were sent within " + fixed(late_s * 1000, 1) +
                          " ms of their planned times, and the latencies above include this delay; " +
                          fixed(bound_s * 1000, 1) + " ms are allowed",
                      "--late-max",
                      "nothing is broken; for figures to compare, lower the rate or use a less busy machine, else "
                      "allow the delay with --late-max " +
                          std::to_string(static_cast<int64_t>(late_s * 1000) + 1) + "ms");
  for (const Condition& condition : conditions) {
    MC_TRY(failed, holds(condition, result));
    if (failed)
      return user_error(
          err::kGoalMissed,
          condition.text + " holds: " + condition.key + " is " + rounded(result[condition.key].as_double()),
          "--fail-if");
  }
  if (result["completed"].as_int() == 0) {
    // The user can look up the name that the server gave the first failure.
    const Record& first = load.records.front();
    err::Number number = err::kPeerLost;
    for (const ErrorInfo& info : error_table())
      if (!first.reason.empty() && info.openai_code == first.reason) number = static_cast<err::Number>(info.number);
    return user_error(number, "no request was answered; the first says: " + first.error);
  }
  return 0;
}

/// Each point of a sweep has its own prompts, because the first point would warm the cache for the others.
TokenRange tokens_of_point(TokenRange tokens, uint64_t point) {
  tokens.seed += point * 0x9e3779b97f4a7c15ull;
  return tokens;
}

struct Setting {
  Target target;
  SummaryPlan how;
  std::vector<Condition> conditions;
  Json cluster;
};

Result<int> run_one(const cli::Args& args, const Workload& workload, const Plan& plan, const Setting& setting,
                    int interrupt_fd, Sink& sink) {
  const Progress progress{.shown = cli::use_progress(args), .terminal = ::isatty(2) != 0};
  Json result = result_head("mc.bench.serve.v1", args);
  const Json limit = setting.target.max_concurrency > 0 ? Json(setting.target.max_concurrency) : Json();
  if (progress.shown) {
    Json planned = Json::object({{"max_concurrency", limit}});
    summarise(plan, LoadResult{}, setting.how, planned);
    note(args, load_text(planned.set("num_prompts", plan.requests.size())));
  }
  if (!args.given(kLoadSeed)) result.set("seed", Json());  // the prompts are drawn anew
  MC_TRY(load, run_load(plan, setting.target, interrupt_fd, progress));
  result.set("workload", workload.name).set("model", setting.target.model).set("base_url", setting.target.base_url);
  result.set("cluster", setting.cluster).set("unix_ms", SystemClock::instance().unix_ms());
  for (const std::string& pair : args.list(kMetadata)) {
    const size_t at = pair.find('=');
    if (at != std::string::npos && at > 0) result.set(pair.substr(0, at), pair.substr(at + 1));
  }
  result.set("max_concurrency", limit);
  summarise(plan, load, setting.how, result);
  MC_CHECK(sink.text(result_table(result, load, setting.how)));
  MC_CHECK(sink.line(result));
  MC_CHECK(save(args, result, load));
  if (result["warm_cache"].as_bool())
    note(args, "warning: WARM CACHE: the server had " + fixed(100 * result["hit_rate"].as_double(), 1) +
                   " % of the prompt tokens cached, where --prefix-share allows " +
                   fixed(100 * result["ideal_token_hit"].as_double(), 1) +
                   " %: it has seen these prompts before, so its TTFT is too good. Leave out --seed, or give another");
  return verdict(args, plan, load, result, setting.conditions);
}

Result<int> load_verb(const cli::Args& args, const Workload& workload, const std::vector<double>& rates,
                      bool ignore_eos) {
  Setting setting;
  MC_TRY(target, read_target(args, ignore_eos));
  setting.target = std::move(target);
  MC_TRY(how, read_summary_plan(args));
  setting.how = std::move(how);
  MC_TRY(conditions, parse_conditions(args.list(kFailIf)));
  setting.conditions = std::move(conditions);
  std::vector<Plan> plans;  // before the server is asked: a bad flag is told first
  for (double rate : rates) {
    MC_TRY(plan, workload.plan(args, rate));
    plans.push_back(std::move(plan));
  }
  MC_TRY(sink, Sink::open(args));
  const bool dry = args.on(kDryRun);
  Server server;
  if (!dry) {
    MC_TRY(asked, ask_server(setting.target, setting.target.model));
    server = std::move(asked);
    setting.target.model = server.model;
    setting.cluster = server.cluster;
  }
  MC_TRY(vocab, vocabulary(args, dry ? setting.target.model : server.model));
  setting.target.tokens.end = vocab;
  if (dry) {
    MC_CHECK(print_plan(plans.front(), setting.target, sink));
    return 0;
  }
  // A condition on a key that no result has is told before the load, not after.
  Json empty = Json::object();
  summarise(plans.front(), LoadResult{}, setting.how, empty);
  for (const Condition& condition : setting.conditions) MC_CHECK(holds(condition, empty));
  uint64_t too_long = 0;
  for (const PlannedRequest& r : plans.front().requests)
    too_long += server.context > 0 && r.input_tokens + r.output_tokens > server.context;
  if (too_long > 0)
    note(args, std::to_string(too_long) + " of " + std::to_string(plans.front().requests.size()) +
                   " requests exceed the served context of " + std::to_string(server.context) +
                   " tokens and will be refused");
  if (saves(args)) {  // told now, not after the load
    MC_CHECK(make_result_dir(args));
    MC_CHECK(check_output(result_dir(args) + "/" + args.text(kResultFilename) + ".json", kResultDir));
  }
  MC_TRY(signals, host::Signals::open());
  MC_CHECK(warm_up(args, plans.front(), setting.target, signals.fd()));
  // In a sweep every point is run and printed; the first failure is the program's.
  Result<int> code = 0;
  const TokenRange tokens = setting.target.tokens;
  for (size_t point = 0; point < plans.size(); ++point) {
    setting.target.tokens = tokens_of_point(tokens, point);
    Result<int> one = run_one(args, workload, plans[point], setting, signals.fd(), sink);
    const bool stop = !one && one.error().mc == err::kInterrupted;
    if (!one && (code || stop)) code = std::move(one);
    if (stop) break;
  }
  MC_CHECK(sink.finish());
  return code;
}

}  // namespace

const cli::FlagList kServeFlags = kServe;
const cli::FlagList kReplayFlags = kReplay;

Result<int> serve(const cli::Args& args) {
  std::vector<double> rates{std::numeric_limits<double>::infinity()};
  if (!is_word(args, flag::kRequestRate)) rates = args.sweep_numbers(flag::kRequestRate);
  for (double rate : rates)
    if (!(rate > 0)) return out_of_range(flag::kRequestRate, args.text(flag::kRequestRate), "above 0, or inf");
  return load_verb(args, *find_workload("synthetic"), rates, args.on(kIgnoreEos));
}

Result<int> replay(const cli::Args& args) {
  // A recorded output_length is how long the answer was; the model's own idea of an end must not shorten it.
  return load_verb(args, *find_workload("trace"), {0}, true);
}

}  // namespace mc::bench

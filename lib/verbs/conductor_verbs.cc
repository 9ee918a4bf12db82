#include "verbs/conductor_verbs.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/assert.h"
#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "base/secret_file.h"
#include "ctl/ctl.h"
#include "door/bearer.h"
#include "host/conductor_process.h"
#include "http/client.h"
#include "verbs/ask.h"
#include "verbs/client_key.h"
#include "verbs/cluster_table.h"
#include "verbs/operators.h"
#include "verbs/request_text.h"
#include "verbs/store_verbs.h"
#include "verbs/text_input.h"
#include "verbs/top.h"
#include "wire/codec.h"

namespace mc {
namespace flags {
namespace {

Result<void> check_answer_tokens(std::string_view value) {
  MC_TRY(tokens, parse_count(value));
  if (tokens >= 1) return {};
  return {Code::invalid, "an answer has at least 1 token"};
}

constexpr Flag kWide{.name = "wide",
                     .kind = FlagKind::boolean,
                     .help = "all columns: also MODEL and DEVICE if all nodes have the same, and SSD without a disk"};
constexpr Flag kTimeout{
    .name = "timeout", .kind = FlagKind::duration, .value = "T", .fallback = "30s", .help = "how long to wait"};
constexpr Flag kWantPrefill{.name = "prefill",
                            .kind = FlagKind::count,
                            .value = "N",
                            .fallback = "1",
                            .help = "prefill nodes that must be ready"};
constexpr Flag kWantDecode{.name = "decode",
                           .kind = FlagKind::count,
                           .value = "N",
                           .fallback = "1",
                           .help = "decode nodes that must be ready"};
constexpr Flag kWantCache{
    .name = "cache", .kind = FlagKind::count, .value = "N", .fallback = "0", .help = "cache nodes that must be ready"};
constexpr Flag kAdmin{
    .name = "admin", .kind = FlagKind::boolean, .help = "make an admin key for --admin-key-file, not a key set"};
constexpr Flag kKeyOutput =
    with_default(flags::kOutput, "-", "file to make, mode 0600; nothing is overwritten; - is stdout");
constexpr Flag kDrainWait{
    .name = "wait", .kind = FlagKind::boolean, .help = "until nothing runs on the nodes, at most --timeout"};
constexpr Flag kLast{.name = "last", .kind = FlagKind::boolean, .help = "the request that ended last"};
constexpr Flag kPromptText{.name = "prompt", .letter = 'p', .value = "TEXT", .help = "a prompt in place of a request"};
constexpr Flag kAnswerTokens{.name = "tokens",
                             .letter = 'n',
                             .kind = FlagKind::count,
                             .value = "N",
                             .fallback = "256",
                             .help = "most tokens of the answer",
                             .check = check_answer_tokens};
constexpr Flag kAskTemperature{.name = "temperature",
                               .kind = FlagKind::number,
                               .value = "X",
                               .fallback = "auto",
                               .help = "0 is greedy; auto is the model's own",
                               .choices = "auto"};
constexpr Flag kAnswerTime{.name = "timeout",
                           .kind = FlagKind::duration,
                           .value = "T",
                           .fallback = "30s",
                           .help = "longest time of the answer, 1ms to 1h",
                           .check = check_time<1>};
constexpr Flag kSystem{.name = "system", .value = "TEXT", .help = "the system message before the question"};
constexpr Flag kQuestionFile{
    .name = "file", .letter = 'f', .value = "FILE", .help = "the question, in place of TEXT; - is stdin"};
constexpr Flag kRequestFile{
    .name = "request", .letter = 'f', .value = "FILE", .help = "body of a completion or chat request; - is stdin"};

}  // namespace
}  // namespace flags

namespace verbs {
namespace {

constexpr auto kPsFlags = flags::join(kUrlFlags, flags::list(&flags::kWide));
constexpr auto kWaitFlags = flags::join(
    kPlaceFlags, flags::list(&flags::kWantPrefill, &flags::kWantDecode, &flags::kWantCache, &flags::kTimeout));
constexpr auto kExplainFlags =
    flags::join(kPlaceFlags, flags::list(&flags::kRequestFile, &flags::kPromptText, &flags::kJson));
constexpr auto kDrainFlags = flags::join(kUrlFlags, flags::list(&flags::kDrainWait, &flags::kTimeout));
constexpr auto kWhyFlags = flags::join(kUrlFlags, flags::list(&flags::kLast));
constexpr auto kAskFlags =
    flags::join(kUrlFlags, flags::list(&flags::kSystem, &flags::kQuestionFile, &flags::kAnswerTokens,
                                       &flags::kAskTemperature, &flags::kAnswerTime));
constexpr const Flag* kKeygenFlags[] = {&flags::kAdmin, &flags::kKeyOutput};
constexpr cli::Positional kRequestArgs[] = {
    {.name = "REQUEST", .help = "its id, or the client's x-request-id; without it the list of requests", .min = 0}};
constexpr cli::Positional kNodeArgs[] = {{.name = "NODE", .help = "its id in ps", .max = -1}};
constexpr cli::Positional kAskArgs[] = {{.name = "TEXT", .help = "what to say to the model", .min = 0}};

bool wants_json(const cli::Args& args) {
  return args.on(flags::kJson);
}

Result<int> ps(const cli::Args& args) {
  MC_TRY(cluster, ask_conductor(args, http::Method::get, "/cluster", "", soon(5s)));
  if (!wants_json(args)) {
    MC_CHECK(write_all(1, cluster_line(cluster) + cluster_table(cluster, args.on(flags::kWide))));
    return 0;
  }
  std::string out;
  for (const auto& node : cluster["nodes"].items()) out += node.dump() + "\n";
  Json end = Json::object();
  end.set("type", "end").set("model", cluster["model"]);
  end.set("url", cluster["url"]).set("requests_unfinished", cluster["requests_unfinished"]);
  end.set("totals", cluster["totals"]).set("breakers", cluster["breakers"]);
  MC_CHECK(write_all(1, out + end.dump() + "\n"));
  return 0;
}

/// Sleeps without spinning: a timer descriptor and a deadline.
void pause_until(TimePoint when) {
  MC_ASSERT(when != kNever);
  Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  (void)wait_fd(timer.get(), POLLIN /* an unarmed timer never fires: this waits for the deadline */, when);
}

Result<int> wait(const cli::Args& args) {
  const TimePoint deadline = soon(args.duration(flags::kTimeout));
  const int64_t want_p = static_cast<int64_t>(args.count(flags::kWantPrefill));
  const int64_t want_d = static_cast<int64_t>(args.count(flags::kWantDecode));
  const int64_t want_c = static_cast<int64_t>(args.count(flags::kWantCache));
  MC_TRY(place, conductor_place(args));
  Error last = user_error(err::kPeerUnreachable, "no answer from " + place);
  bool answered = false;
  for (;;) {
    auto cluster = ask_conductor(args, http::Method::get, "/cluster", "", std::min(deadline, soon(2s)));
    if (cluster) {
      answered = true;
      int64_t p = 0, d = 0, c = 0;
      std::string others;
      for (const auto& n : (*cluster)["nodes"].items()) {
        if (n["state"].as_string() != "ready") {
          others += "; " + std::string(n["id"].as_string()) + " is " + std::string(n["state"].as_string());
          for (const char* key : {"lacks", "last_error"})
            if (const std::string why(n[key].as_string()); !why.empty()) others += ", " + why;
          continue;
        }
        const auto role = wire::role_from(n["role"].as_string());
        p += role == wire::Role::prefill, d += role == wire::Role::decode, c += role == wire::Role::cache;
      }
      if (p >= want_p && d >= want_d && c >= want_c) return 0;
      last = user_error(err::kNodesMissing,
                        "ready: " + std::to_string(p) + " prefill, " + std::to_string(d) + " decode, " +
                            std::to_string(c) + " cache; wanted " + std::to_string(want_p) + ", " +
                            std::to_string(want_d) + ", " + std::to_string(want_c) + others,
                        place);
    } else if (!answered || soon(0s) < deadline) {  // else --timeout cut this call short, which says nothing new
      last = cluster.error();
    }
    if (soon(100ms) >= deadline) return last;
    pause_until(soon(100ms));
  }
}

/// Number of requests on a node; 0 after the node has left.
Result<int64_t> requests_on(const cli::Args& args, const std::string& name, TimePoint deadline) {
  MC_ASSERT(!name.empty() && deadline != kNever);
  MC_TRY(cluster, ask_conductor(args, http::Method::get, "/cluster", "", deadline));
  for (const auto& n : cluster["nodes"].items())
    if (n["id"].as_string() == name)
      return std::max(n["requests"].as_int(), n["running"].as_int() + n["waiting"].as_int());
  return 0;
}

Result<int> set_drain(const cli::Args& args, bool on) {
  const bool waits = on && args.on(flags::kDrainWait);
  if (on && !waits && args.said(flags::kTimeout))
    return user_error(err::kUsage, "--timeout means nothing without --wait", "--timeout",
                      "add --wait, or leave it out");
  const auto tell = [&](const std::string& node, const char* state, const char* is) {
    const std::string json = Json::object({{"node", node}, {"state", state}}).dump();
    const std::string text = node + " is " + is;
    return write_all(1, (wants_json(args) ? json : text) + "\n");
  };
  for (const std::string& node : args.positional("NODE")) {
    const std::string body = Json::object({{"node", node}}).dump();
    MC_TRY(answer, ask_conductor(args, http::Method::post, on ? "/admin/drain" : "/admin/undrain", body, soon(5s)));
    MC_CHECK(on ? tell(node, "drain", "draining") : tell(node, "ready", "ready"));
  }
  const TimePoint deadline = waits ? soon(args.duration(flags::kTimeout)) : kNever;
  for (const std::string& node : waits ? args.positional("NODE") : std::vector<std::string>()) {
    for (;;) {
      // A look has a limit of its own. One that --timeout cut short would say that the conductor cannot be reached.
      MC_TRY(left, requests_on(args, node, soon(5s)));
      if (left == 0) break;
      if (soon(100ms) >= deadline)
        return user_error(err::kDeadlineExceeded, node + " still has " + std::to_string(left) + " requests",
                          "--timeout", "wait longer; mc-conductor why lists them, and undrain takes the drain back");
      pause_until(soon(100ms));
    }
    MC_CHECK(tell(node, "drained", "drained"));
  }
  return 0;
}

Result<void> print_answer(const cli::Args& args, const std::string& path, const Json& body, TimePoint deadline) {
  MC_TRY(answer, ask_conductor(args, http::Method::post, path, body.dump(), deadline));
  return write_all(1, answer.dump() + "\n");
}

Result<void> print_stream(const cli::Args& args, const std::string& path, const Json& body, TimePoint deadline) {
  MC_TRY(place, conductor_place(args));
  MC_TRY(headers, key_headers(args));
  return stream_answer(place, path, std::move(headers), body, deadline);
}

/// Sends the request and writes the answer. The conductor ends the request at --timeout with the stage that took the
/// time.
Result<void> send_question(const cli::Args& args, const std::string& path, Json body) {
  const Duration time = args.duration(flags::kAnswerTime);
  body.set("max_tokens", args.count(flags::kAnswerTokens));
  body.set("mc", Json::object({{"deadline_ms", std::max<int64_t>(1, time / 1ms)}}));
  if (args.present(flags::kAskTemperature)) body.set("temperature", args.number(flags::kAskTemperature));
  const TimePoint deadline = soon(time + kAnswerSlack);
  auto sent = wants_json(args) ? print_answer(args, path, body, deadline) : print_stream(args, path, body, deadline);
  if (sent || sent.error().mc != err::kDeadlineExceeded) return sent;
  Error error = std::move(sent).error();
  error.next = "raise --timeout, or lower -n";
  return error;
}

/// Sends a chat request, or a completion if the model has no chat template.
Result<int> ask_model(const cli::Args& args) {
  if (args.positional("TEXT").empty() != args.present(flags::kQuestionFile))
    return user_error(err::kUsage, "say something with TEXT, or with -f FILE (- is stdin)", "TEXT");
  Result<std::string> text = std::string();
  if (args.present(flags::kQuestionFile))
    text = read_file(args.text(flags::kQuestionFile), size_t{16} << 20);
  else
    text = args.positional("TEXT").front();
  if (!text) return as_user_error(err::kFileAccess, std::move(text).error());
  MC_CHECK(check_text(*text, args.present(flags::kQuestionFile) ? "-f" : "TEXT"));
  if (args.present(flags::kSystem)) MC_CHECK(check_text(args.text(flags::kSystem), "--system"));
  Json messages = Json::array();
  if (args.present(flags::kSystem))
    messages.push(Json::object({{"role", "system"}, {"content", args.text(flags::kSystem)}}));
  messages.push(Json::object({{"role", "user"}, {"content", *text}}));
  auto sent = send_question(args, "/v1/chat/completions", Json::object({{"messages", std::move(messages)}}));
  if (!sent && sent.error().mc == err::kTemplateUnsupported && !args.present(flags::kSystem))
    sent = send_question(args, "/v1/completions", Json::object({{"prompt", *text}}));
  MC_CHECK(sent);
  return 0;
}

Result<int> explain(const cli::Args& args) {
  if (args.present(flags::kRequestFile) == args.given(flags::kPromptText))
    return user_error(err::kUsage, "give a prompt with -p TEXT, or the request with -f FILE (- is stdin)", "-p");
  MC_CHECK(check_text(args.text(flags::kPromptText), "-p"));
  Result<std::string> body = Json::object({{"prompt", args.text(flags::kPromptText)}}).dump();
  if (args.present(flags::kRequestFile)) body = read_file(args.text(flags::kRequestFile), size_t{16} << 20);
  if (!body) return as_user_error(err::kFileAccess, std::move(body).error());
  if (auto read = Json::parse(*body); !read)  // the conductor would name its own address as the place
    return user_error(err::kMalformedJson, "the request is not JSON: " + read.error().what,
                      "-f " + args.text(flags::kRequestFile));
  MC_TRY(answer, ask_conductor(args, http::Method::post, "/admin/explain", *body, soon(10s)));
  MC_CHECK(write_all(1, wants_json(args) ? answer.dump() + "\n" : explanation_text(answer)));
  return 0;
}

Result<int> why(const cli::Args& args) {
  std::string id(args.positional("REQUEST").empty() ? "" : args.positional_one("REQUEST"));
  if (!id.empty() && args.on(flags::kLast))
    return user_error(err::kUsage, "--last selects the request that ended last; leave out " + id, "--last");
  if (id.empty()) {
    MC_TRY(answer, ask_conductor(args, http::Method::get, "/requests", "", soon(5s)));
    const Json& list = answer["requests"];
    if (!args.on(flags::kLast)) {
      if (wants_json(args))
        for (const Json& r : list.items()) MC_CHECK(write_all(1, r.dump() + "\n"));
      else
        MC_CHECK(write_all(1, requests_table(list)));
      return 0;
    }
    for (const Json& r : list.items())
      if (id.empty() && r["outcome"].as_string() != "running") id = r["id"].as_string();
    if (id.empty()) return user_error(err::kNotFound, "no request has ended yet", "--last");
  }
  MC_TRY(record, ask_conductor(args, http::Method::get, "/requests/" + id, "", soon(5s)));
  MC_CHECK(write_all(1, wants_json(args) ? record.dump() + "\n" : record_text(record)));
  return 0;
}

Result<int> keygen(const cli::Args& args) {
  std::string text;
  if (args.on(flags::kAdmin)) {
    MC_TRY(key, door::new_admin_key());
    text = key + "\n";
  } else {
    MC_TRY(keys, ctl::new_key_set());
    text = ctl::format_key_set(keys);
  }
  MC_ASSERT(text.ends_with('\n'));
  const std::string& path = args.text(flags::kKeyOutput);
  MC_CHECK(path == "-" ? write_secret(1, text) : create_secret_file(path, text, "-o"));
  return 0;
}

Result<int> drain(const cli::Args& args) {
  return set_drain(args, true);
}

Result<int> undrain(const cli::Args& args) {
  return set_drain(args, false);
}

constexpr cli::Verb kVerbs[] = {
    {.name = "ps",
     .summary = "list the nodes of the cluster",
     .flags = kPsFlags,
     .example = "mc-conductor ps",
     .run = ps},
    {.name = "top",
     .summary = "show the nodes, rates and requests, again every second",
     .flags = kTopFlags,
     .example = "mc-conductor top --once",
     .run = top},
    {.name = "wait",
     .summary = "wait until so many nodes are ready",
     .flags = kWaitFlags,
     .example = "mc-conductor wait --prefill 2 --decode 1 --timeout 30s",
     .run = wait},
    {.name = "drain",
     .summary = "give a node no new requests; its requests finish",
     .args = kNodeArgs,
     .flags = kDrainFlags,
     .example = "mc-conductor drain p1 --wait",
     .run = drain},
    {.name = "undrain",
     .summary = "give a drained node requests again",
     .args = kNodeArgs,
     .flags = kUrlFlags,
     .example = "mc-conductor undrain p1",
     .run = undrain},
    {.name = "ask",
     .summary = "stream one answer of the served model",
     .args = kAskArgs,
     .flags = kAskFlags,
     .example = "mc-conductor ask 'Once upon a time' -n 32",
     .run = ask_model},
    {.name = "explain",
     .summary = "show where a request would go now and why; nothing is run",
     .flags = kExplainFlags,
     .example = "mc-conductor explain -p 'Once upon'",
     .run = explain},
    {.name = "why",
     .summary = "show where a request went, what each stage took, and the candidates",
     .args = kRequestArgs,
     .flags = kWhyFlags,
     .example = "mc-conductor why my-request-1",
     .run = why},
    {.name = "keygen",
     .summary = "make a new key set for --auth, or a key for --admin-key-file",
     .flags = kKeygenFlags,
     .example = "mc-conductor keygen -o cluster.key",
     .run = keygen},
};

}  // namespace

const std::span<const cli::Verb> kConductorVerbs = kVerbs;

}  // namespace verbs
}  // namespace mc

#include "verbs/conductor_verbs.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
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
#include "node/node.h"
#include "verbs/ask.h"
#include "verbs/client_key.h"
#include "verbs/misses_text.h"
#include "wire/codec.h"

namespace mc {
namespace flags {
namespace {

constexpr Flag kUrl{.name = "url",
                    .value = "URL",
                    .help = "the conductor's HTTP address; replaces its socket in MCT_RUN_DIR and needs a key"};
constexpr Flag kAdminKey = with_default(kAdminKeyFile, "", "key of the operators' pages, for --url");
constexpr Flag kVerbKeyFile = with_default(kApiKeyFile, "", "key of a tenant with admin = true, for --url");
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
                             .help = "most tokens of the answer"};
constexpr Flag kSystem{.name = "system", .value = "TEXT", .help = "the system message before the question"};
constexpr Flag kQuestionFile{
    .name = "file", .letter = 'f', .value = "FILE", .help = "the question, in place of TEXT; - is stdin"};
constexpr Flag kRequestFile{
    .name = "request", .letter = 'f', .value = "FILE", .help = "body of a completion or chat request; - is stdin"};

}  // namespace
}  // namespace flags

namespace verbs {
namespace {

constexpr auto kPlaceFlags = flags::list(&flags::kUrl, &flags::kAdminKey, &flags::kVerbKeyFile, &flags::kApiKey);
constexpr auto kUrlFlags = flags::join(kPlaceFlags, flags::list(&flags::kJson));
constexpr auto kWaitFlags = flags::join(
    kPlaceFlags, flags::list(&flags::kWantPrefill, &flags::kWantDecode, &flags::kWantCache, &flags::kTimeout));
constexpr auto kExplainFlags =
    flags::join(kPlaceFlags, flags::list(&flags::kRequestFile, &flags::kPromptText, &flags::kJson));
constexpr auto kDrainFlags = flags::join(kUrlFlags, flags::list(&flags::kDrainWait, &flags::kTimeout));
constexpr auto kWhyFlags = flags::join(kUrlFlags, flags::list(&flags::kLast));
constexpr auto kAskFlags = flags::join(
    kUrlFlags, flags::list(&flags::kSystem, &flags::kQuestionFile, &flags::kAnswerTokens, &flags::kTimeout));
constexpr const Flag* kKeygenFlags[] = {&flags::kAdmin, &flags::kKeyOutput};
constexpr cli::Positional kRequestArgs[] = {
    {.name = "REQUEST", .help = "its id, or the client's x-request-id; without it the list of requests", .min = 0}};
constexpr cli::Positional kNodeArgs[] = {{.name = "NODE", .help = "its id in ps", .max = -1}};
constexpr cli::Positional kAskArgs[] = {{.name = "TEXT", .help = "what to say to the model", .min = 0}};

bool wants_json(const cli::Args& args) {
  return args.on(flags::kJson);
}

/// --url, or the socket of the conductor that uses this run directory.
Result<std::string> conductor_place(const cli::Args& args) {
  if (args.present(flags::kUrl)) return args.text(flags::kUrl);
  MC_TRY(directory, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
  return "unix:" + directory + "/" + std::string(host::kOperatorsSocket);
}

Result<Json> ask(const cli::Args& args, http::Method method, const std::string& path, std::string body,
                 TimePoint deadline) {
  MC_ASSERT(path.starts_with('/') && deadline != kNever);
  MC_TRY(place, conductor_place(args));
  const std::string url = place + path;
  MC_TRY(headers, key_headers(args));
  if (!body.empty()) headers.push_back({"Content-Type", "application/json"});
  auto response = http::fetch(method, place, path, headers, std::move(body), deadline);
  if (!response) return unreachable(place, path, std::move(response).error());
  auto json = Json::parse(response->body);
  if (!json) return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, url);
  if (response->status >= 300)
    return with_key_advice(args, told_error(*json, response->status, url),
                           "leave --url out: the verb uses the socket in MCT_RUN_DIR");
  // Nodes choose some of these texts. JSON escapes them when it is printed.
  if (!(args.has(flags::kJson) && wants_json(args)) && ::isatty(1) == 1) return show_controls_in(*json);
  return std::move(*json);
}

TimePoint soon(Duration d) {
  return SystemClock::instance().now() + d;
}

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes >= 0x1p30 ? "%.1fG" : "%.0fM",
                bytes >= 0x1p30 ? bytes / 0x1p30 : bytes / 0x1p20);
  return text;
}

std::string up_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  char text[32];
  if (s >= 3600)
    std::snprintf(text, sizeof text, "%ldh%02ldm", static_cast<long>(s / 3600), static_cast<long>(s / 60 % 60));
  else
    std::snprintf(text, sizeof text, "%ldm%02lds", static_cast<long>(s / 60), static_cast<long>(s % 60));
  return text;
}

void print_breakers(const Json& cluster) {
  for (const auto& b : cluster["breakers"].items()) {
    const std::string prefill(b["prefill"].as_string()), decode(b["decode"].as_string());
    const std::string who = prefill.empty()  ? "node " + decode
                            : decode.empty() ? "node " + prefill
                                             : "pair " + prefill + " -> " + decode;
    const std::string when = b["state"].as_string() == "open"
                                 ? "tried again in " + up_text(b["retry_in_ms"].as_double() / 1e3 + 1)
                                 : "the next request tries it";
    std::printf("%s is set aside: its last %ld requests failed; %s\n", who.c_str(),
                static_cast<long>(b["failures"].as_int()), when.c_str());
  }
}

/// The HTTP address of a node. A node of another host that listens on its loopback is shown as HOST (lo:PORT).
std::string address_of(const Json& node) {
  const std::string http(node["http"].as_string());
  const auto place = parse_host_port(http);
  const auto control = parse_uri(node["control"].as_string());
  if (!place || !control || !is_loopback(place->host) || is_local(*control)) return http;
  return control->host + " (lo:" + std::to_string(place->port) + ")";
}

/// The model of a node, or the profile of its modelled times.
std::string model_of(const Json& node) {
  const Json* runner = node["labels"].find("runner");
  const std::string model(runner ? runner->as_string() : node["model"].as_string());
  return model.empty() ? "-" : model;
}

/// The device that computes; "-" where nothing is computed.
std::string device_of(const Json& node) {
  const std::string device(node["device"].as_string());
  return device.empty() ? "-" : device;
}

/// The use of a node's disk, or what became of it.
std::string disk_of(const Json& node) {
  const double capacity = node["disk_capacity_bytes"].as_double();
  if (capacity <= 0) return "-";
  return node["disk_lost"].as_bool() ? "lost" : gib(node["disk_bytes"].as_double()) + "/" + gib(capacity);
}

Result<int> ps(const cli::Args& args) {
  MC_TRY(cluster, ask(args, http::Method::get, "/cluster", "", soon(5s)));
  if (wants_json(args)) {
    std::string out;
    for (const auto& node : cluster["nodes"].items()) out += node.dump() + "\n";
    Json end = Json::object();
    end.set("type", "end").set("model", cluster["model"]);
    end.set("url", cluster["url"]).set("requests_unfinished", cluster["requests_unfinished"]);
    end.set("totals", cluster["totals"]).set("breakers", cluster["breakers"]);
    MC_CHECK(write_all(1, out + end.dump() + "\n"));
    return 0;
  }
  std::printf("%-5s %-8s %-7s %-21s %-15s %-7s %4s %5s %-15s %-13s %6s %-8s %s\n", "ID", "ROLE", "STATE", "ADDR",
              "MODEL", "DEVICE", "RUN", "QUEUE", "KV USED/TOTAL", "SSD", "HIT%", "UP", "LAST ERROR");
  for (const auto& n : cluster["nodes"].items()) {
    const double page = n["page_bytes"].as_double();
    const double total = n["pages_total"].as_double(), free = n["pages_free"].as_double();
    const std::string kv = page > 0 ? gib((total - free) * page) + "/" + gib(total * page)
                                    : std::to_string(n["pages_cached"].as_int()) + " blocks";
    const std::string lacks(n["lacks"].as_string()), error(lacks.empty() ? n["last_error"].as_string() : lacks);
    std::printf("%-5s %-8s %-7s %-21s %-15s %-7s %4ld %5ld %-15s %-13s %6.1f %-8s %s\n",
                std::string(n["id"].as_string()).c_str(), std::string(n["role"].as_string()).c_str(),
                std::string(n["state"].as_string()).c_str(), address_of(n).c_str(), model_of(n).c_str(),
                device_of(n).c_str(), static_cast<long>(n["running"].as_int()),
                static_cast<long>(n["waiting"].as_int()), kv.c_str(), disk_of(n).c_str(),
                100 * n["hit_rate"].as_double(), up_text(n["up_s"].as_double()).c_str(),
                error.empty() ? "-" : error.c_str());
  }
  print_breakers(cluster);
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
    auto cluster = ask(args, http::Method::get, "/cluster", "", std::min(deadline, soon(2s)));
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
  MC_TRY(cluster, ask(args, http::Method::get, "/cluster", "", deadline));
  for (const auto& n : cluster["nodes"].items())
    if (n["id"].as_string() == name)
      return std::max(n["requests"].as_int(), n["running"].as_int() + n["waiting"].as_int());
  return 0;
}

Result<int> set_drain(const cli::Args& args, bool on) {
  const bool waits = on && args.on(flags::kDrainWait);
  const TimePoint deadline = on ? soon(args.duration(flags::kTimeout)) : kNever;
  const auto tell = [&](const std::string& node, const char* state, const char* is) {
    const std::string json = Json::object({{"node", node}, {"state", state}}).dump();
    const std::string text = node + " is " + is;
    return write_all(1, (wants_json(args) ? json : text) + "\n");
  };
  for (const std::string& node : args.positional("NODE")) {
    const std::string body = Json::object({{"node", node}}).dump();
    MC_TRY(answer, ask(args, http::Method::post, on ? "/admin/drain" : "/admin/undrain", body, soon(5s)));
    MC_CHECK(on ? tell(node, "drain", "draining") : tell(node, "ready", "ready"));
  }
  for (const std::string& node : waits ? args.positional("NODE") : std::vector<std::string>()) {
    for (;;) {
      MC_TRY(left, requests_on(args, node, std::min(deadline, soon(5s))));
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

Result<void> send_question(const cli::Args& args, const std::string& path, const Json& body, TimePoint deadline) {
  if (wants_json(args)) {
    MC_TRY(answer, ask(args, http::Method::post, path, body.dump(), deadline));
    return write_all(1, answer.dump() + "\n");
  }
  MC_TRY(place, conductor_place(args));
  MC_TRY(headers, key_headers(args));
  return stream_answer(place, path, std::move(headers), body, deadline);
}

/// Sends a chat request, or a completion if the model has no chat template.
Result<int> ask_model(const cli::Args& args) {
  const TimePoint deadline = soon(args.duration(flags::kTimeout));
  if (args.positional("TEXT").empty() != args.present(flags::kQuestionFile))
    return user_error(err::kUsage, "say something with TEXT, or with -f FILE (- is stdin)", "TEXT");
  Result<std::string> text = std::string();
  if (args.present(flags::kQuestionFile))
    text = read_file(args.text(flags::kQuestionFile), size_t{16} << 20);
  else
    text = args.positional("TEXT").front();
  if (!text) return as_user_error(err::kFileAccess, std::move(text).error());
  const uint64_t tokens = args.count(flags::kAnswerTokens);
  Json messages = Json::array();
  if (args.present(flags::kSystem))
    messages.push(Json::object({{"role", "system"}, {"content", args.text(flags::kSystem)}}));
  messages.push(Json::object({{"role", "user"}, {"content", *text}}));
  const Json chat = Json::object({{"messages", std::move(messages)}, {"max_tokens", tokens}});
  auto sent = send_question(args, "/v1/chat/completions", chat, deadline);
  if (!sent && sent.error().mc == err::kTemplateUnsupported && !args.present(flags::kSystem))
    sent = send_question(args, "/v1/completions", Json::object({{"prompt", *text}, {"max_tokens", tokens}}), deadline);
  MC_CHECK(sent);
  return 0;
}

/// The blocks that a candidate fetches, and from which nodes: "60 of c0", "20 of p1+40 of c0".
std::string fetch_text(const Json& candidate) {
  std::string out;
  for (const Json& source : candidate["sources"].items())
    out += (out.empty() ? "" : "+") + std::to_string(source["blocks"].as_int()) + " of " +
           std::string(source["node"].as_string());
  return out.empty() ? "-" : out;
}

void print_explanation(const Json& e) {
  std::printf("prompt %ld tokens = %ld blocks of %ld + %ld tail, %ld reusable     deadline %.0f s\n",
              static_cast<long>(e["prompt_tokens"].as_int()), static_cast<long>(e["blocks"].as_int()),
              static_cast<long>(e["block_tokens"].as_int()), static_cast<long>(e["tail_tokens"].as_int()),
              static_cast<long>(e["reusable_blocks"].as_int()), e["deadline_ms"].as_double() / 1e3);
  std::printf("%-6s %7s %6s %12s %9s %8s %9s %9s %11s  %s\n", "NODE", "MATCH", "(SSD)", "FETCH", "QUEUE ms", "LOAD ms",
              "FETCH ms", "PREFILL", "TTFT(pred)", "VERDICT");
  for (const auto& c : e["candidates"].items()) {
    std::printf("%-6s %3ld/%-3ld %6ld %12s %9.1f %8.1f %9.1f %9.1f %8.1f ms  %s\n",
                std::string(c["node"].as_string()).c_str(), static_cast<long>(c["match_blocks"].as_int()),
                static_cast<long>(e["reusable_blocks"].as_int()), static_cast<long>(c["disk_blocks"].as_int()),
                fetch_text(c).c_str(), c["queue_ms"].as_double(), c["load_ms"].as_double(), c["fetch_ms"].as_double(),
                c["prefill_ms"].as_double(), c["ttft_ms"].as_double(),
                (std::string(c["verdict"].as_string()) + (c["unmeasured"].as_bool() ? ", unmeasured" : "")).c_str());
  }
  for (const auto& h : e["holders"].items())
    if (h["match_blocks"].as_int() > 0)
      std::printf("holds  %s %ld blocks, %ld of them on its disk\n", std::string(h["node"].as_string()).c_str(),
                  static_cast<long>(h["match_blocks"].as_int()), static_cast<long>(h["disk_blocks"].as_int()));
  const Json& d = e["decode"];
  if (d.is_object())
    std::printf("decode %s: %ld requests, TBT %.1f ms predicted%s     ", std::string(d["node"].as_string()).c_str(),
                static_cast<long>(d["rows"].as_int()), d["tbt_ms"].as_double(),
                d["unmeasured"].as_bool() ? ", unmeasured" : "");
  const Json& hold = e["hold"];
  if (hold["waits"].as_bool())
    std::printf("hold   %ld requests wait here, its turn is predicted in %.1f ms\n",
                static_cast<long>(hold["held"].as_int()), hold["before_ms"].as_double());
  std::printf("admit: %s%s%s\n", e["admit"].as_bool() ? "yes" : "no", e["admit"].as_bool() ? "" : ", ",
              std::string(e["reason"].as_string()).c_str());
}

Result<int> explain(const cli::Args& args) {
  if (args.present(flags::kRequestFile) == args.given(flags::kPromptText))
    return user_error(err::kUsage, "give a prompt with -p TEXT, or the request with -f FILE (- is stdin)", "-p");
  Result<std::string> body = Json::object({{"prompt", args.text(flags::kPromptText)}}).dump();
  if (args.present(flags::kRequestFile)) body = read_file(args.text(flags::kRequestFile), size_t{16} << 20);
  if (!body) return as_user_error(err::kFileAccess, std::move(body).error());
  MC_TRY(answer, ask(args, http::Method::post, "/admin/explain", *body, soon(10s)));
  if (wants_json(args))
    std::printf("%s\n", answer.dump().c_str());
  else
    print_explanation(answer);
  return 0;
}

std::string text_of(const Json& value) {
  return value.as_string().empty() ? "-" : std::string(value.as_string());
}

void print_record(const Json& r) {
  std::printf("%s  %s%s%s   prompt %ld tokens, answer %ld   %s -> %s   attempts %ld\n", text_of(r["id"]).c_str(),
              text_of(r["outcome"]).c_str(), r["reason"].as_string().empty() ? "" : ", ",
              std::string(r["reason"].as_string()).c_str(), static_cast<long>(r["prompt_tokens"].as_int()),
              static_cast<long>(r["output_tokens"].as_int()), text_of(r["prefill_node"]).c_str(),
              text_of(r["decode_node"]).c_str(), static_cast<long>(r["attempts"].as_int()));
  if (r.has("message")) std::printf("%s: %s\n", text_of(r["stage"]).c_str(), text_of(r["message"]).c_str());
  std::printf("%-10s %10s  %s\n", "STAGE", "ms", "");
  const auto row = [&](const char* name, const char* key, const std::string& note) {
    if (r[key].is_number()) std::printf("%-10s %10.1f  %s\n", name, r[key].as_double(), note.c_str());
  };
  const node::Held held = node::held_named(r["held_for"].as_string());
  if (held.kind == node::Held::Kind::prefix)
    row("hold", "held_ms", "waited here while " + held.node + " computed its prefix");
  else if (held.kind == node::Held::Kind::turn)
    row("hold", "held_ms", "waited here for its turn");
  row("queue", "queue_ms", "");
  row("accept", "accept_ms", "");
  if (r["load_ms"].as_double() > 0) row("load", "load_ms", "");
  row("fetch", "fetch_ms",
      std::to_string(r["cached_remote_tokens"].as_int()) + " tokens from others" +
          (r["fallback"].as_string().empty() ? "" : ", failed: " + std::string(r["fallback"].as_string())));
  row("prefill", "prefill_ms", std::to_string(r["cached_local_tokens"].as_int()) + " tokens were here");
  for (const auto& miss : r["misses"].items()) std::printf("%-10s %10s  %s\n", "", "", missed_line(miss).c_str());
  char predicted[64];
  std::snprintf(predicted, sizeof predicted, "%.1f ms predicted", r["predicted_ttft_ms"].as_double());
  row("TTFT", "ttft_ms", predicted);
  row("decode", "decode_ms", "");
  row("total", "total_ms", "");
  for (const auto& f : r["failed_attempts"].items())
    std::printf("failed on %s -> %s in %s: %s\n", text_of(f["prefill"]).c_str(), text_of(f["decode"]).c_str(),
                text_of(f["stage"]).c_str(), text_of(f["reason"]).c_str());
  if (r["set_aside"].as_int() > 0)
    std::printf("%ld pairs or nodes that fail requests were not used\n", static_cast<long>(r["set_aside"].as_int()));
  if (r["considered"].size() == 0) return;
  std::printf("%-6s %6s %6s %12s %9s %8s %9s %9s %11s\n", "NODE", "MATCH", "(SSD)", "FETCH", "QUEUE ms", "LOAD ms",
              "FETCH ms", "PREFILL", "TTFT(pred)");
  for (const auto& c : r["considered"].items()) {
    std::printf("%-6s %6ld %6ld %12s %9.1f %8.1f %9.1f %9.1f %8.1f ms%s\n", text_of(c["node"]).c_str(),
                static_cast<long>(c["match_blocks"].as_int()), static_cast<long>(c["disk_blocks"].as_int()),
                fetch_text(c).c_str(), c["queue_ms"].as_double(), c["load_ms"].as_double(), c["fetch_ms"].as_double(),
                c["prefill_ms"].as_double(), c["ttft_ms"].as_double(), c["unmeasured"].as_bool() ? "  unmeasured" : "");
  }
}

void print_requests(const Json& list) {
  std::printf("%-32s %-9s %-16s %-13s %7s %7s %9s %10s\n", "ID", "OUTCOME", "REASON", "NODES", "PROMPT", "ANSWER",
              "TTFT ms", "TOTAL ms");
  for (const Json& r : list.items()) {
    const std::string why = text_of(r["reason"].as_string().empty() ? r["stage"] : r["reason"]);
    char ttft[32] = "-";
    if (r["ttft_ms"].is_number()) std::snprintf(ttft, sizeof ttft, "%.1f", r["ttft_ms"].as_double());
    std::printf("%-32s %-9s %-16s %-13s %7ld %7ld %9s %10.1f\n", text_of(r["id"]).c_str(),
                text_of(r["outcome"]).c_str(), why.c_str(),
                (text_of(r["prefill_node"]) + " -> " + text_of(r["decode_node"])).c_str(),
                static_cast<long>(r["prompt_tokens"].as_int()), static_cast<long>(r["output_tokens"].as_int()), ttft,
                r["total_ms"].as_double());
  }
}

Result<int> why(const cli::Args& args) {
  std::string id(args.positional("REQUEST").empty() ? "" : args.positional_one("REQUEST"));
  if (!id.empty() && args.on(flags::kLast))
    return user_error(err::kUsage, "--last selects the request that ended last; leave out " + id, "--last");
  if (id.empty()) {
    MC_TRY(answer, ask(args, http::Method::get, "/requests", "", soon(5s)));
    const Json& list = answer["requests"];
    if (!args.on(flags::kLast)) {
      if (wants_json(args))
        for (const Json& r : list.items()) MC_CHECK(write_all(1, r.dump() + "\n"));
      else
        print_requests(list);
      return 0;
    }
    for (const Json& r : list.items())
      if (id.empty() && r["outcome"].as_string() != "running") id = r["id"].as_string();
    if (id.empty()) return user_error(err::kNotFound, "no request has ended yet", "--last");
  }
  MC_TRY(record, ask(args, http::Method::get, "/requests/" + id, "", soon(5s)));
  if (wants_json(args))
    std::printf("%s\n", record.dump().c_str());
  else
    print_record(record);
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
     .flags = kUrlFlags,
     .example = "mc-conductor ps",
     .run = ps},
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

// `mc-bench sim --calibrate DIR -o mine.toml`: a cost profile fitted to measured runs. What a run leaves with
// --save-detailed has all that is needed: how long each prompt computed and what it reused, what it fetched and
// how long that took, and when every token came, from which the batch each decode step had is put together
// again. A fit is judged on every second request, which it has not seen.

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "host/profile.h"
#include "print.h"
#include "sched/sched.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kCalibrate{
    .name = "calibrate", .value = "RUNS", .help = "fit a cost profile to the runs in this folder and write it to -o"};
constexpr Flag kFittedProfile{.name = "profile",
                              .value = "P",
                              .fallback = "cpu",
                              .help = "with --calibrate: built-in name or TOML file that gives a node its shape"};

constexpr size_t kRunBytesMax = size_t{512} << 20;
constexpr size_t kWindow = 8;  // steps averaged into one sample: a client sees tokens in clumps

struct Answer {
  double first_s = 0, end_s = 0;  // of its tokens, from the start of the run
  double input_tokens = 0;
  std::vector<double> gaps_s;
};

struct Samples {
  std::vector<sched::PrefillSample> prefills;
  std::vector<double> ttft_rest_s, ttft_s;  // of the same requests: what TTFT has besides computing, and TTFT
  std::vector<sched::StepSample> steps;
  std::vector<std::array<double, kWindow>> gaps_s;  // of each of `steps`
  std::vector<double> first_gaps_s;                 // from the token that prefill gave to the first of decode
  std::vector<sched::ReadSample> reads;             // their bytes in tokens, until the profile says how many bytes
  size_t requests = 0;
};

/// The batch around the middle of each window of an answer: who else had tokens on the node then.
void add_steps(const std::vector<Answer>& node, Samples& out) {
  for (const Answer& a : node) {
    if (a.gaps_s.empty()) continue;
    out.first_gaps_s.push_back(a.gaps_s.front());
    double at = a.first_s + a.gaps_s.front();  // the first has the hand-off in it
    for (size_t i = 1; i + kWindow <= a.gaps_s.size(); i += kWindow) {
      double took = 0;
      for (size_t k = 0; k < kWindow; ++k) took += a.gaps_s[i + k];
      const double middle = at + took / 2;
      at += took;
      double rows = 0, kv = 0;
      for (const Answer& other : node) {
        if (other.first_s > middle || other.end_s < middle) continue;
        const double share = other.end_s > other.first_s ? (middle - other.first_s) / (other.end_s - other.first_s) : 0;
        rows += 1, kv += other.input_tokens + share * static_cast<double>(other.gaps_s.size());
      }
      if (took <= 0 || rows <= 0) continue;
      out.steps.push_back({rows, kv, took / kWindow});
      std::copy_n(a.gaps_s.begin() + static_cast<ptrdiff_t>(i), kWindow, out.gaps_s.emplace_back().begin());
    }
  }
}

void add_request(const Json& r, Samples& out, std::map<std::string, std::vector<Answer>>& nodes) {
  const Json& mc = r["mc"];
  const double input = r["input_tokens"].as_double(), prefill_ms = mc["prefill_ms"].as_double();
  if (r["outcome"].as_string() != "completed" || mc.is_null() || mc["attempts"].as_int(1) != 1) return;
  ++out.requests;
  const double remote = mc["cached_remote_tokens"].as_double();
  const double reused = mc["cached_local_tokens"].as_double() + remote;
  const double hidden_ms = mc["fetch_hidden_ms"].as_double();  // computing may have waited for layers of the prefix
  if (prefill_ms > 0 && reused < input && hidden_ms == 0) {
    out.prefills.push_back({input, reused, prefill_ms * 1e-3});
    out.ttft_s.push_back(r["ttft_ms"].as_double() * 1e-3);
    out.ttft_rest_s.push_back((r["ttft_ms"].as_double() - prefill_ms) * 1e-3);
  }
  if (remote > 0 && mc["fallback"].as_string().empty() && mc["fetch_ms"].as_double() > 0)
    out.reads.push_back({remote, (mc["fetch_ms"].as_double() + hidden_ms) * 1e-3});
  Answer answer;
  answer.first_s = r["start_s"].as_double() + r["ttft_ms"].as_double() * 1e-3;
  answer.end_s = r["start_s"].as_double() + r["e2el_ms"].as_double() * 1e-3;
  answer.input_tokens = input;
  for (const Json& gap : r["itl_ms"].items()) answer.gaps_s.push_back(gap.as_double() * 1e-3);
  nodes[std::string(mc["decode_node"].as_string())].push_back(std::move(answer));
}

Result<void> read_run(const std::string& path, Samples& out) {
  MC_TRY(text, read_input(path, kRunBytesMax));
  std::map<std::string, std::vector<Answer>> nodes;
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto line = Json::parse(std::string_view(text).substr(begin, end - begin));
    ++line_number;
    begin = end + 1;
    if (!line) return user_error(err::kBadValue, line.error().what, path + ":" + std::to_string(line_number));
    if ((*line)["type"].as_string() == "request") add_request(*line, out, nodes);
  }
  for (const auto& [name, answers] : nodes) add_steps(answers, out);
  return {};
}

Result<std::vector<std::string>> run_files(const std::string& place) {
  std::error_code error;
  if (!std::filesystem::is_directory(place, error)) return std::vector<std::string>{place};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(place, error))
    if (entry.path().string().ends_with(".requests.jsonl")) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  if (files.empty())
    return user_error(err::kBadValue, place + " has no results of a run", "--calibrate",
                      "measure with mc-bench serve or replay --save-result --save-detailed --result-dir " + place);
  return files;
}

template <class T>
std::vector<T> half(const std::vector<T>& all, size_t which) {
  std::vector<T> out;
  for (size_t i = which; i < all.size(); i += 2) out.push_back(all[i]);
  return out;
}

double mape(const auto& samples, auto&& predicted, auto&& observed) {
  double sum = 0;
  for (const auto& s : samples) sum += std::abs(predicted(s) - observed(s)) / observed(s);
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

/// How steps scatter about the fitted model, as means of equal shares of them; and what a hand-off takes, which is what
/// the first gaps have beside a step and, on average, the half of one under way.
void fit_spread(const Samples& s, sched::Profile& p) {
  constexpr size_t kShares = 64;
  std::vector<double> ratios;
  double step_s = 0;
  for (size_t i = 0; i < s.steps.size(); ++i) {
    const double model_s = p.cost.step(s.steps[i].rows, s.steps[i].kv_tokens);
    step_s += model_s / static_cast<double>(s.steps.size());
    for (const double gap_s : s.gaps_s[i])
      if (model_s > 0) ratios.push_back(gap_s / model_s);
  }
  std::sort(ratios.begin(), ratios.end());
  p.step_spread.clear();
  for (size_t i = 0; i < kShares && ratios.size() >= 4 * kShares; ++i) {
    const size_t begin = i * ratios.size() / kShares, end = (i + 1) * ratios.size() / kShares;
    p.step_spread.push_back(std::accumulate(ratios.begin() + static_cast<ptrdiff_t>(begin),
                                            ratios.begin() + static_cast<ptrdiff_t>(end), 0.0) /
                            static_cast<double>(end - begin));
  }
  if (s.reads.size() >= 8 || s.first_gaps_s.empty()) return;  // fetches tell better
  std::vector<double> first = s.first_gaps_s;
  std::nth_element(first.begin(), first.begin() + static_cast<ptrdiff_t>(first.size() / 2), first.end());
  p.paths.net.latency_s = std::max(0.0, first[first.size() / 2] - 1.5 * step_s);
}

/// Fits on the samples of `which` half; 2 = all.
sched::Profile fitted(const sched::Profile& base, const Samples& s, size_t which) {
  sched::Profile p = base;
  p.kind = sched::Profile::Kind::fitted;
  p.cost.prefill_s_per_token2 = p.cost.decode_s_per_kv_token = 0;
  p.reused_s_per_token = p.chunk_s = p.join_s = 0;
  const bool all = which == 2;
  sched::fit_prefill(all ? s.prefills : half(s.prefills, which), p.cost);
  sched::fit_step(all ? s.steps : half(s.steps, which), p.cost);
  std::vector<sched::ReadSample> reads = all ? s.reads : half(s.reads, which);
  for (auto& read : reads) read.bytes *= static_cast<double>(p.kv_bytes_per_token);
  sched::fit_path(reads, p.paths.net);
  if (all) fit_spread(s, p);
  return p;
}

}  // namespace

cli::FlagList with_calibration(cli::FlagList sim_flags) {
  static std::vector<const Flag*> flags;
  flags.assign(sim_flags.begin(), sim_flags.end());
  for (const Flag* flag : {&kCalibrate, &kFittedProfile})
    if (std::none_of(flags.begin(), flags.end(), [&](const Flag* f) { return f->name == flag->name; }))
      flags.push_back(flag);
  return flags;
}

bool wants_calibration(const cli::Args& args) {
  return args.present(kCalibrate);
}

Result<int> calibrate(const cli::Args& args) {
  MC_TRY(base, host::open_profile(args.given(kFittedProfile) ? args.text(kFittedProfile)
                                                             : std::string(kFittedProfile.fallback)));
  MC_TRY(files, run_files(args.text(kCalibrate)));
  Samples samples;
  for (const std::string& file : files) MC_CHECK(read_run(file, samples));
  if (samples.prefills.size() < 8 || samples.steps.size() < 8)
    return user_error(err::kBadValue,
                      std::to_string(samples.prefills.size()) + " prompts and " + std::to_string(samples.steps.size()) +
                          " decode intervals are too few for a fit; at least 8 of each are needed",
                      "--calibrate");
  const sched::Profile judged = fitted(base, samples, 0);
  sched::Profile profile = fitted(base, samples, 2);
  const auto tests = half(samples.prefills, 1);
  const auto rest_s = half(samples.ttft_rest_s, 1), ttft_s = half(samples.ttft_s, 1);
  profile.error.prefill_mape = mape(
      tests, [&](const auto& s) { return judged.prefill_s(s.tokens, s.reused); },
      [](const auto& s) { return s.seconds; });
  profile.error.step_mape = mape(
      half(samples.steps, 1), [&](const auto& s) { return judged.step_s(s.rows, s.kv_tokens); },
      [](const auto& s) { return s.seconds; });
  profile.error.net_mape = mape(
      half(samples.reads, 1),
      [&](const auto& r) { return judged.paths.net.seconds(r.bytes * static_cast<double>(judged.kv_bytes_per_token)); },
      [](const auto& r) { return r.seconds; });
  double ttft_mape = 0;
  for (size_t i = 0; i < tests.size(); ++i)
    ttft_mape += std::abs(rest_s[i] + judged.prefill_s(tests[i].tokens, tests[i].reused) - ttft_s[i]) / ttft_s[i] /
                 static_cast<double>(tests.size());
  profile.name = "fitted";
  profile.hardware = profile.model = "as measured in " + args.text(kCalibrate);
  if (auto done = profile.complete(); !done) return user_error(err::kBadValue, done.error().what, "--profile");
  const std::string text = sched::format_profile(profile);
  const bool to_file = args.text(flags::kOutput) != "-";
  if (to_file) MC_CHECK(write_output(args.text(flags::kOutput), text, flags::kOutput));
  Json out = result_head("mc.calibrate.v1", args);
  out.set("runs", files.size()).set("requests", samples.requests).set("prompts", samples.prefills.size());
  out.set("step_samples", samples.steps.size()).set("fetches", samples.reads.size());
  out.set("prefill_mape", profile.error.prefill_mape).set("step_mape", profile.error.step_mape);
  out.set("net_mape", profile.error.net_mape).set("ttft_mape", ttft_mape);
  if (args.on(flags::kJson)) {
    MC_CHECK(write_all(1, out.dump() + "\n"));
    return 0;
  }
  const auto percent = [](double share) { return fixed(100 * share, 1) + " %"; };
  const std::string told = std::to_string(samples.requests) + " requests of " + std::to_string(files.size()) +
                           " runs; mean error on requests left out: prefill " + percent(profile.error.prefill_mape) +
                           ", TTFT " + percent(ttft_mape) + ", step " + percent(profile.error.step_mape) +
                           (samples.reads.empty() ? "" : ", fetch " + percent(profile.error.net_mape)) + "\n";
  MC_CHECK(write_all(to_file ? 1 : 2, told));
  if (!to_file) MC_CHECK(write_all(1, text));
  return 0;
}

}  // namespace mc::bench

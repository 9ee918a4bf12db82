// `mc-bench plot FILE`: figures out of result files: a rate against a percentile with its goal, the capacity
// of policies side by side, timelines, distributions. gnuplot draws; the figure is one SVG that needs no
// network, a chart in the terminal, or the script for those who want to edit it. The same files and flags
// give the same bytes.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "plot_data.h"
#include "plot_gnuplot.h"
#include "print.h"
#include "verbs.h"

namespace mc::bench {
namespace {

constexpr Flag kX{.name = "x", .value = "KEY", .help = "key of the horizontal axis: request_rate"};
constexpr Flag kY{.name = "y",
                  .kind = FlagKind::list,
                  .value = "KEY,KEY",
                  .help = "keys of the vertical axis, one line each; a.b is b inside a"};
constexpr Flag kCdf{.name = "cdf",
                    .kind = FlagKind::list,
                    .value = "KEY,KEY",
                    .help = "draw the distribution of these keys: ttfts, or ttft_ms of requests; excludes --x and --y"};
constexpr Flag kBy{.name = "by",
                   .kind = FlagKind::list,
                   .value = "KEY,KEY",
                   .fallback = "auto",
                   .help = "keys whose values divide lines into series; auto: text keys that differ",
                   .choices = "auto|none"};
constexpr Flag kWhere{
    .name = "where", .kind = FlagKind::list, .value = "KEY=V,KEY=V", .help = "use the lines with these values only"};
constexpr Flag kSlo{.name = "slo",
                    .kind = FlagKind::number,
                    .value = "X",
                    .fallback = "off",
                    .help = "draw a bound, in the unit of the keys",
                    .choices = "off"};
constexpr Flag kLog{.name = "log",
                    .kind = FlagKind::choice,
                    .value = "AXES",
                    .fallback = "none",
                    .help = "axes with a logarithmic scale",
                    .choices = "none|x|y|xy"};
constexpr Flag kTitle{.name = "title", .value = "TEXT", .help = "title above the figure"};
constexpr Flag kSvg{.name = "svg", .value = "FILE", .help = "write the figure; - is stdout"};
constexpr Flag kGnuplot{
    .name = "gnuplot", .value = "FILE", .help = "write the gnuplot script with its data; - is stdout"};
constexpr Flag kTerminal{.name = "terminal",
                         .kind = FlagKind::boolean,
                         .help = "draw with characters; the default without --svg and --gnuplot"};

constexpr auto kPlotFlagTable = flags::join(
    flags::list(&kX, &kY, &kCdf, &kBy, &kWhere, &kSlo, &kLog, &kTitle, &kSvg, &kGnuplot, &kTerminal, &flags::kOutput),
    flags::kEveryRun);

Result<PlotPlan> read_plan(const cli::Args& args) {
  PlotPlan plan{.distribution = args.given(kCdf), .x = args.text(kX), .y = args.list(kY), .by = args.list(kBy)};
  if (plan.distribution && (args.given(kX) || args.given(kY)))
    return user_error(err::kUsage, "--cdf has no --x and no --y", "--cdf", "leave out --cdf, or both --x and --y");
  if (plan.distribution) plan.y = args.list(kCdf);
  if (!plan.distribution && (plan.x.empty() || plan.y.empty()))
    return user_error(err::kUsage, "say what to plot: --x KEY and --y KEY, or --cdf KEY", "--x");
  if (plan.by == std::vector<std::string>{"none"}) plan.by.clear();
  for (const std::string& condition : args.list(kWhere)) {
    const size_t equals = condition.find('=');
    if (equals == std::string::npos || equals == 0)
      return user_error(err::kBadValue, "--where " + condition + " is not KEY=VALUE", "--where");
    plan.where.emplace_back(condition.substr(0, equals), condition.substr(equals + 1));
  }
  return plan;
}

/// The axis title of a key: p99_ttft_ms is "p99 TTFT (ms)", request_rate is "request rate".
std::string readable(const std::string& key) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"ttft", "TTFT"}, {"ttfts", "TTFT"}, {"tbt", "TBT"}, {"itl", "TBT"}, {"tpot", "TPOT"}, {"e2el", "latency"}};
  static constexpr std::string_view kUnits[] = {"ms", "us", "s", "bytes", "tokens"};
  std::string out;
  for (size_t at = 0; at < key.size();) {
    const size_t end = std::min(key.find('_', at), key.size());
    std::string word = key.substr(at, end - at);
    for (const auto& [name, text] : kWords)
      if (word == name) word = text;
    const bool is_unit = end == key.size() && at > 0 && std::ranges::count(kUnits, word) > 0;
    out += (out.empty() ? "" : " ") + (is_unit ? "(" + word + ")" : word);
    at = end + 1;
  }
  return out;
}

std::string joined(const std::vector<std::string>& keys) {
  std::string out;
  for (const std::string& key : keys) out += (out.empty() ? "" : ", ") + readable(key);
  return out;
}

PlotLook look_of(const cli::Args& args, const PlotPlan& plan) {
  PlotLook look{.title = args.text(kTitle), .steps = plan.distribution};
  look.x_label = plan.distribution ? joined(plan.y) : readable(plan.x);
  look.y_label = plan.distribution ? "share" : joined(plan.y);
  look.log_x = args.text(kLog).starts_with('x');
  look.log_y = args.text(kLog).ends_with('y');
  if (args.present(kSlo)) look.slo = args.number(kSlo);
  return look;
}

Json json_of(const std::vector<PlotSeries>& series, const cli::Args& args) {
  Json all = Json::array();
  for (const PlotSeries& one : series) {
    Json points = Json::array();
    for (const PlotPoint& point : one.points) points.push(Json::array({point.x, point.y}));
    all.push(Json::object({{"name", one.name}, {"points", std::move(points)}}));
  }
  Json out = result_head("mc.plot.v1", args);
  return std::move(out.set("series", std::move(all)));
}

std::string terminal_of_stdout() {
  winsize size{};
  if (::ioctl(1, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return text_terminal(79, 24);
  return text_terminal(std::clamp<int>(size.ws_col - 1, 40, 250), std::clamp<int>(size.ws_row - 2, 15, 80));
}

Result<void> draw_svg(const std::string& path, const std::string& script) {
  MC_TRY(svg, run_gnuplot(svg_terminal() + script));
  // gnuplot warns on the same stream: better no figure than one no reader takes.
  if (!svg.starts_with("<?xml") || svg.find("</svg>") == std::string::npos)
    return user_error(err::kGnuplot, "gnuplot wrote no SVG: " + svg.substr(0, 300), "gnuplot");
  return write_output(path, svg, kSvg);
}

}  // namespace

const cli::FlagList kPlotFlags = kPlotFlagTable;

Result<int> plot(const cli::Args& args) {
  MC_TRY(plan, read_plan(args));
  for (const Flag* flag : {&kSvg, &kGnuplot}) MC_CHECK(check_output(args.text(*flag), *flag));
  MC_TRY(sink, Sink::open(args));
  MC_TRY(lines, read_result_lines(args.positional("FILE")));
  MC_TRY(series, series_of(lines, plan));
  MC_CHECK(sink.line(json_of(series, args)));
  for (PlotSeries& one : series)  // a series that is one key has its name in words, as the axes do
    if (std::ranges::count(plan.y, one.name) > 0) one.name = readable(one.name);
  const std::string script = gnuplot_script(series, look_of(args, plan));
  if (args.given(kGnuplot)) MC_CHECK(write_output(args.text(kGnuplot), script, kGnuplot));
  if (args.given(kSvg)) MC_CHECK(draw_svg(args.text(kSvg), script));
  if (args.on(kTerminal) || !(sink.json() || args.given(kGnuplot) || args.given(kSvg))) {
    MC_TRY(chart, run_gnuplot(terminal_of_stdout() + script));
    MC_CHECK(sink.text(chart));
  }
  MC_CHECK(sink.finish());
  return 0;
}

}  // namespace mc::bench

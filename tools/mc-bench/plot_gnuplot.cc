#include "plot_gnuplot.h"

#include "base/errors.h"
#include "child.h"

namespace mc::bench {
namespace {

constexpr Duration kDrawTime = 60s;

void add_number(std::string& out, double value) {
  append_json_number(out, value);
}

/// One block of lines a series: x y low high.
void add_data(std::string& out, const PlotSeries& series, size_t index) {
  out += "$s" + std::to_string(index) + " << END\n";
  for (const PlotPoint& point : series.points) {
    add_number(out, point.x);
    for (double value : {point.y, point.low, point.high}) {
      out += ' ';
      add_number(out, value);
    }
    out += '\n';
  }
  out += "END\n";
}

bool below_zero(const std::vector<PlotSeries>& series) {
  for (const PlotSeries& one : series)
    for (const PlotPoint& point : one.points)
      if (point.y < 0) return true;
  return false;
}

bool has_spread(const PlotSeries& series) {
  for (const PlotPoint& point : series.points)
    if (point.low < point.high) return true;
  return false;
}

}  // namespace

std::string gnuplot_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return out + "'";
}

std::string gnuplot_script(const std::vector<PlotSeries>& series, const PlotLook& look) {
  std::string out;
  for (size_t i = 0; i < series.size(); ++i) add_data(out, series[i], i);
  if (!look.title.empty()) out += "set title " + gnuplot_quoted(look.title) + " noenhanced\n";
  out += "set xlabel " + gnuplot_quoted(look.x_label) + " noenhanced\n";
  out += "set ylabel " + gnuplot_quoted(look.y_label) + " noenhanced\n";
  out += "set key outside below noenhanced\nset grid\n";
  if (look.log_x) out += "set logscale x\n";
  if (look.log_y) out += "set logscale y\n";
  std::string goal;
  if (look.slo) add_number(goal, *look.slo);
  // The frame holds the goal too. "LOW<*" is an automatic end that is at most LOW (gnuplot manual, set xrange).
  const std::string least = goal.empty() ? "*" : "*<" + goal, most = goal.empty() ? "*" : goal + "<*";
  // An axis that does not begin at zero makes small differences look large.
  const bool from_zero = !look.log_y && !below_zero(series) && look.slo.value_or(0) >= 0;
  if (look.steps) out += "set xrange [" + least + ":" + most + "]\nset yrange [0:1]\n";
  if (!look.steps) out += "set yrange [" + (from_zero ? "0" : least) + ":" + most + "]\n";
  if (look.slo) {
    out += look.steps ? "set arrow from first " + goal + ", graph 0 to first " + goal + ", graph 1"
                      : "set arrow from graph 0, first " + goal + " to graph 1, first " + goal;
    out += " nohead dashtype 2 linewidth 2 linecolor rgb 'red'\n";
  }
  out += "plot ";
  for (size_t i = 0; i < series.size(); ++i) {
    const std::string data = "$s" + std::to_string(i), color = " linecolor " + std::to_string(i + 1);
    out += (i ? ", \\\n     " : "") + data + " using 1:2 with " + (look.steps ? "steps" : "linespoints pointtype 7") +
           " linewidth 2" + color + " title " + gnuplot_quoted(series[i].name);
    if (!look.steps && has_spread(series[i]))
      out += ", \\\n     " + data + " using 1:2:3:4 with yerrorbars" + color + " notitle";
  }
  return out + "\n";
}

std::string svg_terminal() {
  return "set terminal svg size 900,600 font 'sans,14' background rgb 'white'\n";
}

std::string text_terminal(int columns, int rows) {
  return "set terminal dumb size " + std::to_string(columns) + "," + std::to_string(rows) + "\n";
}

Result<std::string> run_gnuplot(const std::string& script) {
  // -d: no start-up file of the user's changes the figure.
  auto child = Child::start({"gnuplot", "-d"}, script);
  if (!child) return user_error(err::kGnuplot, child.error().what, "gnuplot");
  auto status = child->finish(SystemClock::instance().now() + kDrawTime);
  if (!status) return user_error(err::kGnuplot, status.error().what, "gnuplot");
  if (*status != 0)
    return user_error(err::kGnuplot,
                      "gnuplot ended with exit code " + std::to_string(*status) + ": " + last_words(child->text()),
                      "gnuplot");
  return child->text();
}

}  // namespace mc::bench

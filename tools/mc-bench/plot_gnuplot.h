// Series as a gnuplot script, and the picture gnuplot makes of it. The script holds its data, so it can be
// kept and edited. Every text in it may come from a file of anybody: it is quoted so that gnuplot neither
// substitutes nor formats anything in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plot_data.h"

namespace mc::bench {

struct PlotLook {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  bool steps = false;         // a distribution: horizontal steps, y from 0 to 1
  std::optional<double> slo;  // a line at this y, or at this x of a distribution
};

/// Without a terminal: what `--gnuplot` writes, and what follows svg_terminal() and text_terminal().
std::string gnuplot_script(const std::vector<PlotSeries>& series, const PlotLook& look);
/// `text` between single quotes, on one line, without control characters.
std::string gnuplot_quoted(std::string_view text);

std::string svg_terminal();
std::string text_terminal(int columns, int rows);

/// Runs the script and returns the output of gnuplot. MC8007: gnuplot is not installed, or the error that it printed.
Result<std::string> run_gnuplot(const std::string& script);

}  // namespace mc::bench

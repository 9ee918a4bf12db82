// The series of points that `mc-bench plot` draws, read from result lines. Any result file will do, and any JSON Lines
// with numbers in them. A key may name a member of a member (stages.queue_ms). The files may be hostile, so the numbers
// of lines, points and series are bounded.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace mc::bench {

struct PlotPoint {
  double x = 0;
  double y = 0;              // the median where several lines have the same x
  double low = 0, high = 0;  // the least and greatest of them
};

struct PlotSeries {
  std::string name;               // "p99_ttft_ms kv-centric"
  std::vector<PlotPoint> points;  // by x, rising
};

struct PlotPlan {
  bool distribution = false;    // x is a value and y the share of values at most x; `x` is not used
  std::string x;                // key of the abscissa
  std::vector<std::string> y;   // keys of the ordinate, a series each
  std::vector<std::string> by;  // keys whose values part the lines into series; "auto": see series_of
  std::vector<std::pair<std::string, std::string>> where;  // keep lines whose KEY prints as VALUE
};

/// The lines of result files, in order; a folder stands for its *.json and *.jsonl files by name; `-` is stdin.
/// Where a file has lines of type `point`, only those count: its last line repeats them. Errors name the
/// file and the line.
Result<std::vector<Json>> read_result_lines(const std::vector<std::string>& paths);

/// Lines that lack a key of the plan are passed over. Keys that hold arrays give a point an element (x and y
/// of the same length), or all their numbers to the distribution. By "auto" the lines are parted by those of
/// their own keys with text in them that differ among them and are no longer than a label. Series are in the
/// order in which they first occur. MC1002: no line has the keys (names those that exist), too many series.
Result<std::vector<PlotSeries>> series_of(const std::vector<Json>& lines, const PlotPlan& plan);

}  // namespace mc::bench

// The points of a measurement, each written when it is measured: a row of a table, or a line of --json. After an
// interrupt the summary has the points until then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "interruption.h"
#include "print.h"
#include "product/flags.h"

namespace mc::bench {

/// Shared by the verbs that measure kernels.
inline constexpr Flag kRepeats{.name = "repeats",
                               .letter = 'r',
                               .kind = FlagKind::count,
                               .value = "N",
                               .fallback = "5",
                               .help = "turns of each point, 1 to 10000",
                               .check = flags::check_between<1, 10'000>};
/// Shared by the verbs that measure stores.
inline constexpr Flag kStoreTime{.name = "time",
                                 .letter = 't',
                                 .kind = FlagKind::duration,
                                 .value = "T",
                                 .fallback = "2s",
                                 .help = "how long each point runs, at least 1ms",
                                 .check = check_measured_time};

struct RowsOptions {
  std::string_view list = "points";  // key of the points in the summary
  std::function<void()> clean = {};  // called after an interrupt, when the summary is written
};

class Rows {
 public:
  /// Opens an Interruption, so no other thread may have started.
  static Result<std::unique_ptr<Rows>> open(const cli::Args& args, std::string_view schema, Table table,
                                            RowsOptions options = {});

  /// Announces cells of a later row: columns are wide enough for them from the first row on.
  void expect(const std::vector<std::string>& cells) { table_.expect(cells); }
  /// Adds a member to the summary.
  void fact(std::string_view key, Json value);
  /// Writes a line before or between the rows; writes nothing with --json.
  Result<void> text(std::string_view text);
  Result<void> add(Json point, std::vector<std::string> cells);
  /// Several points that one row of the table shows.
  Result<void> add(std::vector<Json> points, std::vector<std::string> cells);
  /// Writes the summary and the file of -o.
  Result<void> finish();

 private:
  Rows(Sink sink, Json head, Table table, std::string_view list);
  Result<void> summary(bool interrupted);

  Sink sink_;
  Table table_;
  std::string list_;
  Json result_, points_ = Json::array();
  std::unique_ptr<Interruption> interruption_;  // last: its thread reads the rest
};

}  // namespace mc::bench

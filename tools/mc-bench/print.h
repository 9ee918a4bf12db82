// How results leave the program: lines of JSON or a table, to stdout or to -o FILE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/choice.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/table.h"

namespace mc::bench {

/// The interval between two progress lines on a terminal and in a log.
inline constexpr Duration kTerminalEvery = 500ms, kLogEvery = 10s;
inline TimePoint steady_now() {
  return SystemClock::instance().now();
}

/// printf-like for numbers in tables: "%.1f" of a double.
std::string fixed(double value, int decimals);
/// At most three decimals, none that is a trailing zero: 233.36570500000002 -> "233.366", 2.0 -> "2". A number below 1
/// has three significant digits.
std::string rounded(double value);
/// 144793823 -> "144,793,823".
std::string thousands(uint64_t value);

inline constexpr FlagWord<TableForm> kTableForms[] = {
    {"text", TableForm::text}, {"md", TableForm::markdown}, {"csv", TableForm::csv}};
inline constexpr ChoiceFlag kFormat =
    with_choices<kTableForms>({.name = "format",
                               .kind = FlagKind::choice,
                               .value = "F",
                               .fallback = "text",
                               .help = "form of the table; csv has no lines beside it"});
/// The form that --format names; text for a verb without it.
TableForm table_form(const cli::Args& args);

/// A file that the user named; MC5005 naming it when it cannot be read, MC1008 when it is too large.
Result<std::string> read_input(const std::string& path, size_t bytes_max);

/// MC1002 of a flag whose number is out of range: "--batch is 300; it must be 1 to 256".
Error out_of_range(const Flag& flag, uint64_t value, uint64_t least, uint64_t most);
/// With the value as it was given: "--theta is -1; it must be at least 0".
Error out_of_range(const Flag& flag, std::string_view value, std::string_view range);

/// --time and --sample: at least 1ms.
Result<void> check_measured_time(std::string_view value);
/// --speedup: above 0 and at most a million, as its inverse is.
Result<void> check_speedup(std::string_view value);

/// A file that is written when all is done: MC5005 now, naming it and the flag, if it could not be. "" and "-" pass.
Result<void> check_output(const std::string& path, const Flag& flag);
/// Replaces it, or what "-" means; the same error.
Result<void> write_output(const std::string& path, std::string_view text, const Flag& flag);

/// Collects what a verb has to say and writes it where -o says. Lines go to stdout at once, so that a
/// reader of the pipe sees them; a file is replaced as a whole at the end.
class Sink {
 public:
  /// Refuses -o md and -o csv of a verb with --format: they are forms and hardly names of files.
  static Result<Sink> open(const cli::Args& args);
  bool json() const { return json_; }
  /// One line of --json; nothing without it.
  Result<void> line(const Json& object);
  /// Prints text for people; nothing with --json or --format csv.
  Result<void> text(std::string_view text);
  /// The table in the form of --format; nothing with --json.
  Result<void> table(const Table& table) { return json_ ? Result<void>() : put(table.text(form_)); }
  /// The next row of a table whose rows are measured slowly.
  Result<void> next(Table& table, std::vector<std::string> row) {
    const std::string text = table.next(std::move(row), form_);
    return json_ ? Result<void>() : put(text);
  }
  /// Writes the file, if there is one.
  Result<void> finish();

 private:
  explicit Sink(const cli::Args& args);
  Result<void> put(std::string_view text);
  bool json_;
  TableForm form_;
  std::string path_, kept_;
};

/// The members every summary starts with: schema, host, git_commit, seed, argv.
Json result_head(std::string_view schema, const cli::Args& args);
/// One point as it is printed, by itself or in the list "points": its members behind "type".
Json point_line(const Json& figures);
/// `result` with what was measured: the members of a single point, else the list "points".
Json with_points(Json result, const std::vector<Json>& points);
/// To stderr unless --quiet.
void note(const cli::Args& args, std::string_view text);

}  // namespace mc::bench

// Shared by the cli_*.cc files only: turning raw values into Args, and the flags every program has
// without listing them.
#pragma once

#include "base/cli.h"

namespace mc::cli {

inline constexpr Flag kHelp{.name = "help",
                            .letter = 'h',
                            .kind = FlagKind::boolean,
                            .help = "this text; help VERB, help common and help MC2104 say more",
                            .common = true,
                            .one_shot = true};
inline constexpr Flag kVersion{
    .name = "version", .kind = FlagKind::boolean, .help = "name, version and commit", .common = true, .one_shot = true};
inline constexpr Flag kCompletion{.name = "completion",
                                  .value = "SHELL",
                                  .help = "print the completion script for bash or zsh",
                                  .choices = "bash|zsh",
                                  .common = true,
                                  .one_shot = true};
inline constexpr const Flag* kBuiltins[] = {&kHelp, &kVersion, &kCompletion};

/// "a|b|c": Flag::choices and the names of Flag::table.
std::string choices_of(const Flag& flag);
bool is_choice(const Flag& flag, std::string_view value);
/// The value of a flag that nobody gave.
std::string default_text(const Flag& flag);
/// Does `value` fit the flag's kind, words and check? The error quotes the value.
Result<void> check_value(const Flag& flag, const std::string& value);
const Verb* find_verb(const Program& program, std::string_view name);
/// Flags of one invocation: the verb's, or the program's when `verb` is null.
FlagList flags_of(const Program& program, const Verb* verb);
/// The output of `mc-x help [TOPIC]`: the program, a verb, "common", "errors", an MC number, or "mdoc-options" and
/// "mdoc-errors", the parts of the manual pages that come from the tables.
Result<std::string> help_topic(const Program& program, std::string_view topic);

/// The raw values that CLI11 found on the command line.
struct CommandLine {
  const Verb* verb = nullptr;
  std::map<std::string, std::vector<std::string>, std::less<>> values;       // flag name -> raw values
  std::map<std::string, std::vector<std::string>, std::less<>> positionals;  // argument name -> values
};
/// The CLI11 fence (cli_parse.cc). MC1001 for anything unknown, missing or repeated.
Result<CommandLine> parse_command_line(const Program& program, const std::vector<std::string>& argv);

class Builder {
 public:
  Builder(const Program& program, const Environment& environment) : program_(program), environment_(environment) {}
  Result<Args> build(const CommandLine& line, std::vector<std::string> argv);

 private:
  Result<void> add(const Flag& flag, const CommandLine& line);
  Result<void> load_file(const CommandLine& line);
  Result<Args::Setting> pick(const Flag& flag, const CommandLine& line) const;

  const Program& program_;
  const Environment& environment_;
  std::map<std::string, std::pair<std::string, std::string>, std::less<>> file_;  // key -> value, "file:line"
  Args args_;
};

}  // namespace mc::cli

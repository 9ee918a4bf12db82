// One table of flags per program feeds parsing, --help, `help TOPIC`, --completion, the manual
// page's OPTIONS, the names of environment variables and the keys of the --config file.
//
//   constexpr const Flag* kFlags[] = {&flags::kModel, &kDram, ...};
//   constexpr cli::Verb kVerbs[] = {{.name = "inspect", ...}};
//   constexpr cli::Program kProgram{.name = "mc-cache", ..., .flags = kFlags, .verbs = kVerbs, .run = serve};
//   int main(int argc, char** argv) { return mc::cli::run(kProgram, argc, argv); }
//
// Precedence: flag > MCT_* environment > --config file > default; --print-config shows the winner.
// Every value is checked against its kind while parsing, wherever it came from, so the getters of
// Args cannot fail: asking for a flag that the program does not list, or as another kind, is a bug.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/units.h"
#include "base/uri.h"

namespace mc {

/// How the text of a value is read. The lists accept repeats and commas.
enum class FlagKind : uint8_t {
  boolean,    // no value on the command line; true/false in the environment and in files
  text,       // any
  choice,     // one of Flag::choices or of Flag::table
  integer,    // -5
  count,      // 10k
  bytes,      // 64KiB
  size,       // 64KiB or 80%
  duration,   // 250ms
  rate,       // 10/s
  number,     // 0.5
  host_port,  // 127.0.0.1:8000
  list,       // a,b,c
  sweep_counts,
  sweep_bytes,
  sweep_numbers,
};

struct Flag {
  std::string_view name;  // "block-tokens"
  char letter = 0;        // 'm' for -m
  FlagKind kind = FlagKind::text;
  std::string_view value = "";     // "N", "DIR": what --help calls the value
  std::string_view fallback = "";  // the default; "" = none
  std::string_view help = "";      // one line, no full stop
  std::string_view choices = "";   // "a|b|c": all values of a choice, or words allowed besides the kind
  std::vector<std::string_view> (*table)() = nullptr;  // names of a table's rows: more choices, also of a list's items
  Result<void> (*check)(std::string_view value) = nullptr;  // beyond the kind, e.g. a power of two
  bool common = false;                                      // the same in every tool: --help lists only its name
  bool one_shot = false;  // command line only: neither environment nor file (--print-config)
};

/// The names of a table's rows, as a Flag::table: names_of<sched::policies>.
template <auto kTable>
std::vector<std::string_view> names_of() {
  std::vector<std::string_view> names;
  for (const auto* row : kTable()) names.emplace_back(row->name);
  return names;
}

/// The same flag with another default (and help): --http differs by role.
constexpr Flag with_default(Flag flag, std::string_view fallback, std::string_view help = "") {
  flag.fallback = fallback;
  if (!help.empty()) flag.help = help;
  return flag;
}

/// The same flag, of which --help lists only the name, because another tool's --help explains it.
constexpr Flag by_name(Flag flag) {
  flag.common = true;
  return flag;
}

/// "block-tokens" -> "MCT_BLOCK_TOKENS". The only place that spells it (upstream owns MC_*).
std::string env_name(std::string_view flag_name);

namespace cli {

struct Positional {
  std::string_view name;  // "FILE"
  std::string_view help;
  int min = 1;
  int max = 1;  // -1: any number
};

using FlagList = std::span<const Flag* const>;

class Args;
/// The function of a program or verb: the exit code, or an error that `run` prints.
using Body = Result<int> (*)(const Args& args);

struct Verb {
  std::string_view name;
  std::string_view summary;
  std::span<const Positional> args = {};
  FlagList flags = {};
  std::string_view example = "";
  Body run = nullptr;
};

struct Program {
  std::string_view name;     // "mc-cache"
  std::string_view summary;  // one line
  FlagList flags = {};       // of `run`
  std::span<const Verb> verbs = {};
  std::string_view example = "";  // last line of --help; must work when pasted
  std::string_view version = "";  // from the generated mc_version.h
  std::string_view commit = "";
  std::string (*topic)(std::string_view name) = nullptr;  // text of a help topic of its own, or ""
  std::string_view topics = "";                           // names of these topics, for messages
  Body run = nullptr;                                     // the daemon; null: the program needs one of its verbs
  Result<void> (*check)(const Args& args) = nullptr;      // looks at the settings before any body runs
};

enum class Origin : uint8_t { fallback, file, environment, flag };

/// The settings of one invocation. Copyable; holds no reference to argv.
class Args {
 public:
  std::string_view verb() const { return verb_; }
  /// Values of a positional argument by its name; empty when not given.
  const std::vector<std::string>& positional(std::string_view name) const;
  std::string positional_one(std::string_view name) const;

  bool has(const Flag& flag) const;    // listed by this program or verb
  bool given(const Flag& flag) const;  // not the default
  bool said(const Flag& flag) const;   // on the command line, or in a file with another value than the default
  Origin origin(const Flag& flag) const;
  /// False for "", "off", "none" and "auto": these words mean no value.
  bool present(const Flag& flag) const;

  bool on(const Flag& flag) const;
  const std::string& text(const Flag& flag) const;
  int64_t integer(const Flag& flag) const;
  uint64_t count(const Flag& flag) const;
  uint64_t bytes(const Flag& flag) const;
  ByteSize size(const Flag& flag) const;
  Duration duration(const Flag& flag) const;
  double number(const Flag& flag) const;  // number and rate (per second)
  HostPort host_port(const Flag& flag) const;
  std::vector<std::string> list(const Flag& flag) const;
  std::vector<uint64_t> sweep(const Flag& flag) const;
  std::vector<double> sweep_numbers(const Flag& flag) const;

  /// Every setting as lines `key = value  # origin` (TOML that --config reads back).
  std::string print_config() const;
  /// The same as JSON lines: {"type":"setting","key":..,"value":..,"origin":..}.
  std::string print_config_json() const;
  /// argv as given, for result files.
  const std::vector<std::string>& argv() const { return argv_; }

 private:
  friend class Builder;
  struct Setting {
    Flag flag;
    std::string value;
    Origin origin = Origin::fallback;
    std::string source;  // "MCT_X", "file.toml:3"
  };
  const Setting& setting(const Flag& flag) const;
  const Setting& setting(const Flag& flag, FlagKind kind) const;

  std::string verb_;
  std::vector<Setting> settings_;  // in table order
  std::map<std::string, std::vector<std::string>, std::less<>> positionals_;
  std::vector<std::string> argv_;
};

/// The result of parsing: call `run` with `args`, or print `out` and exit.
struct Invocation {
  std::optional<int> exit_code;  // set: do not run
  std::string out;               // for stdout: help, version, completion, settings
  Args args;
  Body run = nullptr;
};

using Environment = std::function<const char*(const char* name)>;

/// Never exits and never prints. Errors carry an MC number (MC1001 to MC1003).
Result<Invocation> parse(const Program& program, int argc, const char* const* argv, const Environment& environment);

/// main(): parses, prints help or errors, sets up logs, calls the body of the verb or of the program, prints its
/// error in three lines to stderr and maps it to an exit code.
int run(const Program& program, int argc, const char* const* argv);

// The texts, for tests and documents.
std::string help_text(const Program& program);
std::string help_text(const Program& program, const Verb& verb);
/// `shell` is "bash" or "zsh".
std::string completion_text(const Program& program, std::string_view shell);
/// mdoc(7) list of the OPTIONS section, program flags first, then each verb's own.
std::string man_options(const Program& program);

/// Program and version of this process, set by run(): for result files, metrics and /version.
struct BuildInfo {
  std::string program, version, commit;
};
const BuildInfo& build_info();

bool use_progress(const Args& args);

}  // namespace cli
}  // namespace mc

// Where a value comes from: flag, environment, file, default, in that order; and what main() does
// around a program's body.
#include "base/cli.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "base/assert.h"
#include "base/cli_builder.h"
#include "base/cli_flags.h"
#include "base/config_file.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/last_words.h"
#include "base/log.h"
#include "base/thread_limit.h"

namespace mc::cli {
namespace {

constexpr size_t kConfigFileMax = 1 << 20;
constexpr Duration kFlushTime = 1s;  // for the last log lines, when their reader is slow

BuildInfo& mutable_build_info() {
  static BuildInfo info;
  return info;
}

std::string source_text(const Flag& flag, Origin origin, const std::string& source) {
  const std::string name = "--" + std::string(flag.name);
  if (origin == Origin::flag) return name;
  return name + ", from " + (origin == Origin::file ? "" : "environment variable ") + source;
}

/// A script with an unset variable passes an empty value. That is a mistake for every flag but a text.
Result<void> check_empty(const Flag& flag, const std::string& where) {
  if (flag.kind == FlagKind::text || flag.kind == FlagKind::boolean || flag.kind == FlagKind::choice) return {};
  if (flag.kind == FlagKind::list)
    return user_error(err::kBadValue, "the list is empty", where, "name what it lists, or leave the flag out");
  return user_error(err::kBadValue, "the value is empty", where,
                    "give " + std::string(flag.value) + ", or leave the flag out");
}

bool lists(FlagList flags, std::string_view name) {
  return std::any_of(flags.begin(), flags.end(), [&](const Flag* f) { return f->name == name && !f->one_shot; });
}

/// Is this key a flag of the program, with or without a verb?
bool known_key(const Program& program, std::string_view key) {
  if (key == flags::kConfig.name) return false;  // a file cannot name another
  return lists(program.flags, key) ||
         std::any_of(program.verbs.begin(), program.verbs.end(), [&](const Verb& v) { return lists(v.flags, key); });
}

}  // namespace

const Verb* find_verb(const Program& program, std::string_view name) {
  for (const Verb& verb : program.verbs)
    if (verb.name == name) return &verb;
  return nullptr;
}

FlagList flags_of(const Program& program, const Verb* verb) {
  return verb ? verb->flags : program.flags;
}

Result<void> Builder::load_file(const CommandLine& line) {
  std::string path;
  if (const auto at = line.values.find(flags::kConfig.name); at != line.values.end()) {
    path = at->second.back();
  } else if (const char* env = environment_(env_name(flags::kConfig.name).c_str())) {
    path = env;
  }
  if (path.empty()) return {};
  auto text = read_file(path, kConfigFileMax);
  if (!text) return user_error(err::kConfigFile, text.error().what, "--config");
  MC_TRY(entries, parse_config(*text, path, program_.name));
  for (ConfigEntry& entry : entries) {
    const std::string where = path + ":" + std::to_string(entry.line);
    if (!known_key(program_, entry.key))
      return user_error(err::kConfigFile, "'" + entry.key + "' is not a flag of " + std::string(program_.name), where);
    file_[entry.key] = {std::move(entry.value), where};
  }
  return {};
}

Result<Args::Setting> Builder::pick(const Flag& flag, const CommandLine& line) const {
  Args::Setting s{flag, default_text(flag), Origin::fallback, {}};
  const auto at = line.values.find(flag.name);
  const std::string variable = env_name(flag.name);
  const char* env = flag.one_shot ? nullptr : environment_(variable.c_str());
  if (at != line.values.end()) {
    s.origin = Origin::flag;
    s.value.clear();
    for (const std::string& value : at->second) s.value += (s.value.empty() ? "" : ",") + value;
  } else if (env != nullptr && *env != '\0') {
    s.origin = Origin::environment;
    s.value = env;
    s.source = variable;
  } else if (const auto in_file = file_.find(flag.name); in_file != file_.end() && !flag.one_shot) {
    s.origin = Origin::file;
    s.value = in_file->second.first;
    s.source = in_file->second.second;
  }
  const std::string where = source_text(flag, s.origin, s.source);
  if (s.origin != Origin::fallback && s.value.empty()) {
    // --print-config writes "" for a flag that has no value.
    if (s.origin == Origin::file && flag.fallback.empty())
      return Args::Setting{flag, default_text(flag), Origin::fallback, {}};
    MC_CHECK(check_empty(flag, where));
  }
  if (auto ok = check_value(flag, s.value); !ok)
    return user_error(err::kBadValue, ok.error().what, where, ok.error().next);
  return s;
}

Result<void> Builder::add(const Flag& flag, const CommandLine& line) {
  MC_TRY(setting, pick(flag, line));
  args_.settings_.push_back(std::move(setting));
  return {};
}

Result<Args> Builder::build(const CommandLine& line, std::vector<std::string> argv) {
  if (lists(flags_of(program_, line.verb), flags::kConfig.name)) MC_CHECK(load_file(line));
  for (const Flag* flag : flags_of(program_, line.verb)) MC_CHECK(add(*flag, line));
  args_.positionals_ = line.positionals;
  args_.argv_ = std::move(argv);
  if (line.verb) {
    args_.verb_ = line.verb->name;
    for (const Positional& arg : line.verb->args)
      if (static_cast<int>(args_.positional(arg.name).size()) < arg.min)
        return user_error(err::kUsage, std::string(program_.name) + " " + std::string(line.verb->name) + " needs " +
                                           std::string(arg.name) + ": " + std::string(arg.help));
  }
  return std::move(args_);
}

namespace {

Result<Invocation> finished(std::string text) {
  Invocation done;
  done.exit_code = kExitOk;
  done.out = std::move(text);
  return done;
}

Result<Invocation> parse_line(const Program& program, const CommandLine& line, std::vector<std::string> argv,
                              const Environment& environment) {
  auto given = [&](const Flag& flag) { return line.values.find(flag.name) != line.values.end(); };
  if (given(kHelp)) return finished(line.verb ? help_text(program, *line.verb) : help_text(program));
  if (given(kVersion))
    return finished(std::string(program.name) + " " + std::string(program.version) + " (" +
                    std::string(program.commit) + ")\n");
  if (given(kCompletion)) {
    const std::string& shell = line.values.at(std::string(kCompletion.name)).back();
    if (!is_choice(kCompletion, shell))
      return user_error(err::kUsage, "'" + shell + "' is not a shell with completion: bash or zsh", "--completion");
    return finished(completion_text(program, shell));
  }
  if (line.verb == nullptr && program.run == nullptr && !program.verbs.empty())
    return user_error(err::kUsage,
                      std::string(program.name) + " needs a verb; " + std::string(program.name) + " --help lists them");
  Builder builder(program, environment);
  MC_TRY(args, builder.build(line, std::move(argv)));
  if (args.has(flags::kPrintConfig) && args.on(flags::kPrintConfig)) {
    const bool json = args.has(flags::kJson) && args.on(flags::kJson);
    return finished(json ? args.print_config_json() : args.print_config());
  }
  Invocation go;
  go.args = std::move(args);
  go.run = line.verb ? line.verb->run : program.run;
  return go;
}

}  // namespace

Result<Invocation> parse(const Program& program, int argc, const char* const* argv, const Environment& environment) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  // `help` is every program's verb and takes any topic, so it is answered before the tables.
  if (!words.empty() && words[0] == "help" && find_verb(program, "help") == nullptr) {
    if (words.size() > 2) return user_error(err::kUsage, "help takes one topic");
    MC_TRY(text, help_topic(program, words.size() == 2 ? words[1] : std::string()));
    return finished(std::move(text));
  }
  MC_TRY(line, parse_command_line(program, words));
  return parse_line(program, line, std::move(words), environment);
}

const BuildInfo& build_info() {
  return mutable_build_info();
}

namespace {

/// The last place that catches what libraries throw when the machine refuses memory, threads or descriptors.
Result<int> run_body(const Program& program, const Invocation& invocation) try {
  MC_ASSERT(invocation.run != nullptr);
  if (program.check) MC_CHECK(program.check(invocation.args));
  return invocation.run(invocation.args);
} catch (const std::bad_alloc&) {
  return user_error(err::kNotEnoughMemory, "the operating system gives no more memory");
} catch (const std::system_error& error) {
  if (error.code() == std::errc::resource_unavailable_try_again) return thread_limit_error(error.code().value());
  return user_error(err::kSystemLimit, error.what());
} catch (const std::exception& error) {
  return user_error(err::kInternal, error.what());
}

}  // namespace

int run(const Program& program, int argc, const char* const* argv) {
  mutable_build_info() = {std::string(program.name), std::string(program.version), std::string(program.commit)};
  std::set_terminate(abort_on_exception);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit on file sizes fails, and says so
  auto fail = [&](const Error& error) {
    log_print(format_error(program.name, error));
    (void)log_drain(kFlushTime);
    return exit_code_of(error);
  };
  auto invocation = parse(program, argc, argv, [](const char* name) -> const char* { return std::getenv(name); });
  if (!invocation) return fail(invocation.error());
  if (invocation->exit_code) {
    if (auto written = write_all(1, invocation->out); !written && written.error().code != Code::peer_lost)
      return fail(user_error(err::kFileAccess, written.error().what, "stdout"));
    return *invocation->exit_code;
  }
  const Args& args = invocation->args;
  LogOptions log_options;
  log_options.program = program.name;
  if (args.has(flags::kLogLevel)) log_options.level = *parse_log_level(args.text(flags::kLogLevel));
  if (args.has(flags::kLogFormat)) log_options.format = *parse_log_format(args.text(flags::kLogFormat));
  log_configure(log_options);
  auto code = run_body(program, *invocation);
  if (!code) return fail(code.error());
  (void)log_drain(kFlushTime);
  return *code;
}

}  // namespace mc::cli

// The CLI11 fence: it splits argv into verbs, flags and positional arguments; every value stays text
// and is read by our own kinds, so the environment and files obey the same rules. CLI11's own config
// and environment support is not used: it lets the file win over the environment.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/cli_builder.h"
#include "base/errors.h"

namespace mc::cli {
namespace {

constexpr std::string_view kWords = "WORDS";

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = row[j];
      row[j] = cost;
    }
  }
  return row[b.size()];
}

bool takes_many(const Flag& flag) {
  return flag.kind == FlagKind::list || flag.kind == FlagKind::sweep_counts || flag.kind == FlagKind::sweep_bytes ||
         flag.kind == FlagKind::sweep_numbers;
}

std::string option_spelling(const Flag& flag) {
  std::string names = flag.letter ? std::string("-") + flag.letter + "," : std::string();
  return names + "--" + std::string(flag.name);
}

void add_flag(CLI::App& app, const Flag& flag) {
  if (flag.kind == FlagKind::boolean) {
    app.add_flag(option_spelling(flag))->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return;
  }
  CLI::Option* option = app.add_option(option_spelling(flag));
  option->type_size(1)->allow_extra_args(false);
  if (takes_many(flag))
    option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  else
    option->expected(1);
}

void add_flags(CLI::App& app, FlagList flags) {
  for (const Flag* flag : kBuiltins) add_flag(app, *flag);
  for (const Flag* flag : flags) add_flag(app, *flag);
}

void collect(const CLI::App& app, FlagList flags, CommandLine& line) {
  auto take = [&](const Flag& flag) {
    const CLI::Option* option = app.get_option("--" + std::string(flag.name));
    for (const std::string& value : option->results()) line.values[std::string(flag.name)].push_back(value);
  };
  for (const Flag* flag : kBuiltins) take(*flag);
  for (const Flag* flag : flags) take(*flag);
}

/// Maps a verb or flag of other programs to its counterpart here. The hint applies where `flag` is listed; "" =
/// everywhere.
struct Hint {
  std::string_view word, next, flag = {};
};
constexpr Hint kVerbHints[] = {
    {"status", "mc-conductor ps lists the nodes"},
    {"top", "mc-conductor top shows a cluster"},
    {"list", "mc-conductor ps lists the nodes"},
    {"ls", "mc-conductor ps lists the nodes, mc-cache ls NODE the blocks of one"},
    {"ask", "mc-conductor ask TEXT asks a cluster, mc-prefill ask NODE one prefill node"},
    {"chat", "mc-conductor ask TEXT asks a cluster"},
    {"logs", "every program logs to its stderr"},
    {"start", "the program without a verb is the daemon"},
    {"run", "the program without a verb is the daemon"},
    {"serve", "the program without a verb is the daemon; mc-bench serve measures one"},
    {"stop", "SIGTERM ends a daemon, ^C too; mc-conductor drain NODE empties one before"},
};
constexpr Hint kFlagHints[] = {
    {"--host", "--http ADDR:PORT is where a daemon listens", "http"},
    {"--port", "--http ADDR:PORT is where a daemon listens", "http"},
    {"--host", "--url http://HOST:PORT names the conductor", "url"},
    {"--port", "--url http://HOST:PORT names the conductor", "url"},
    {"--tensor-parallel-size", "--device cuda:0-3 splits each layer over GPUs", "device"},
    {"--max-model-len", "the context is the model's, or what --kv-mem holds", "kv-mem"},
    {"--gpu-memory-utilization", "--device-mem takes a size or a share, as in 8GiB or 90%", "device-mem"},
    {"--served-model-name", "a model is served by the name of its directory"},
};

std::string hint(std::span<const Hint> hints, std::string_view word, FlagList flags = {}) {
  for (const Hint& one : hints) {
    const auto is_meant = [&](const Flag* flag) { return flag->name == one.flag; };
    if (one.word == word && (one.flag.empty() || std::any_of(flags.begin(), flags.end(), is_meant)))
      return std::string(one.next);
  }
  return {};
}

/// "unknown flag --blok-tokens; did you mean --block-tokens?"
Error unknown_argument(const Program& program, const Verb* verb, const std::string& given) {
  const std::string where = std::string(program.name) + (verb ? " " + std::string(verb->name) : "");
  if (given.empty() || given[0] != '-') {
    if (verb == nullptr && !program.verbs.empty()) {
      std::string verbs;
      for (const Verb& v : program.verbs) verbs += (verbs.empty() ? "" : " ") + std::string(v.name);
      return user_error(err::kUsage, "'" + given + "' is not a verb of " + where + "; verbs: " + verbs + " help", {},
                        hint(kVerbHints, given));
    }
    return user_error(err::kUsage, where + " takes no argument '" + given + "'");
  }
  const std::string name = given.substr(0, given.find('='));
  std::string_view best;
  // A suggestion needs a small distance: one change in a short name, at most three in a long one.
  size_t best_distance = std::clamp<size_t>(name.size() / 4, 2, 4);
  auto consider = [&](const Flag& flag) {
    const size_t distance = edit_distance(name, "--" + std::string(flag.name));
    if (distance < best_distance) {
      best_distance = distance;
      best = flag.name;
    }
  };
  for (const Flag* flag : flags_of(program, verb)) consider(*flag);
  for (const Flag* flag : kBuiltins) consider(*flag);
  std::string what = where + " has no flag " + name;
  if (!best.empty()) what += "; did you mean --" + std::string(best) + "?";
  return user_error(err::kUsage, what, {}, best.empty() ? hint(kFlagHints, name, flags_of(program, verb)) : "");
}

/// "--insecure needs DOOR,DOOR: let doors listen ..." for CLI11's "--insecure: 1 required TEXT missing". Flags of two
/// verbs may have one name, so the verb on the line comes first.
Error missing_value(const Program& program, const std::vector<std::string>& argv, const std::string& said) {
  const std::string name = said.substr(0, said.find(':'));
  const auto named = [&](FlagList flags) -> const Flag* {
    for (const Flag* flag : flags)
      if (name == "--" + std::string(flag->name)) return flag;
    return nullptr;
  };
  const Flag* flag = nullptr;
  for (const std::string& word : argv)
    if (const Verb* verb = find_verb(program, word); verb && !flag) flag = named(verb->flags);
  if (!flag) flag = named(program.flags);
  for (const Verb& verb : program.verbs) flag = flag ? flag : named(verb.flags);
  if (flag == nullptr || !said.ends_with("missing")) return user_error(err::kUsage, said);
  return user_error(err::kUsage, name + " needs " + std::string(flag->value) + ": " + std::string(flag->help), name);
}

void add_verbs(CLI::App& app, const Program& program) {
  for (const Verb& verb : program.verbs) {
    CLI::App* sub = app.add_subcommand(std::string(verb.name));
    sub->set_help_flag();
    sub->allow_extras();
    add_flags(*sub, verb.flags);
    // All words go to one CLI11 argument and are dealt out below: CLI11 only fills minimum counts.
    CLI::Option* words = sub->add_option(std::string(kWords));
    words->type_size(1)->expected(0, CLI::detail::expected_max_vector_size)->allow_extra_args(true);
  }
}

/// Each argument takes its maximum in turn, but leaves the later ones their minimum.
Result<void> deal_words(const Program& program, const Verb& verb, const std::vector<std::string>& words,
                        CommandLine& line) {
  size_t at = 0;
  for (size_t i = 0; i < verb.args.size(); ++i) {
    size_t reserved = 0;
    for (const Positional& later : verb.args.subspan(i + 1)) reserved += static_cast<size_t>(later.min);
    const size_t left = words.size() - at;
    size_t take = left > reserved ? left - reserved : 0;
    if (verb.args[i].max >= 0) take = std::min(take, static_cast<size_t>(verb.args[i].max));
    take = std::min(left, std::max(take, static_cast<size_t>(verb.args[i].min)));
    if (take > 0)
      line.positionals[std::string(verb.args[i].name)].assign(words.begin() + at, words.begin() + at + take);
    at += take;
  }
  if (at < words.size()) return unknown_argument(program, &verb, words[at]);
  return {};
}

Result<CommandLine> collect_all(const CLI::App& app, const Program& program, const std::vector<std::string>& tail) {
  CommandLine line;
  collect(app, program.flags, line);
  for (const Verb& verb : program.verbs) {
    const CLI::App* sub = app.get_subcommand(std::string(verb.name));
    if (!sub->parsed()) continue;
    line.verb = &verb;
    // A flag before the verb counts when the verb has it too: `mc-bench --json sim` is what people type.
    for (const auto& value : line.values) {
      const std::string& name = value.first;  // clang 14 cannot capture a structured binding
      const bool known =
          std::any_of(verb.flags.begin(), verb.flags.end(), [&](const Flag* f) { return f->name == name; }) ||
          std::any_of(std::begin(kBuiltins), std::end(kBuiltins), [&](const Flag* f) { return f->name == name; });
      if (!known)
        return user_error(err::kUsage, "--" + name + " does not apply to " + std::string(program.name) + " " +
                                           std::string(verb.name));
    }
    collect(*sub, verb.flags, line);
    if (const auto extra = sub->remaining(); !extra.empty()) return unknown_argument(program, &verb, extra.front());
    std::vector<std::string> words = sub->get_option(std::string(kWords))->results();
    words.insert(words.end(), tail.begin(), tail.end());
    MC_CHECK(deal_words(program, verb, words, line));
  }
  if (line.verb == nullptr && !tail.empty()) return unknown_argument(program, nullptr, tail.front());
  if (const auto extra = app.remaining(); !extra.empty()) return unknown_argument(program, nullptr, extra.front());
  return line;
}

}  // namespace

Result<CommandLine> parse_command_line(const Program& program, const std::vector<std::string>& argv) try {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.require_subcommand(0, 1);
  add_flags(app, program.flags);
  add_verbs(app, program);
  // Arguments behind "--" are never flags. CLI11 would pass them to the parent of a verb, so they are cut off here.
  const auto cut = std::find(argv.begin(), argv.end(), "--");
  const std::vector<std::string> tail(cut == argv.end() ? cut : cut + 1, argv.end());
  std::vector<std::string> reversed(argv.begin(), cut);
  std::reverse(reversed.begin(), reversed.end());  // CLI11 takes its vector from the back
  try {
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch& error) {
    return missing_value(program, argv, error.what());
  } catch (const CLI::ParseError& error) {
    return user_error(err::kUsage, error.what());
  }
  return collect_all(app, program, tail);
} catch (const std::exception& error) {
  return user_error(err::kUsage, error.what());
}

}  // namespace mc::cli

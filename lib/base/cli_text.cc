// The texts made from the tables: --help, help TOPIC, completion scripts, mdoc OPTIONS.
#include <unistd.h>

#include <algorithm>

#include "base/cli_builder.h"
#include "base/errors.h"
#include "base/table.h"

namespace mc::cli {
namespace {

/// Lines of help are as long as the terminal is wide, within bounds.
size_t help_width() {
  constexpr size_t kLeast = 60, kMost = 100;
  return ::isatty(1) == 1 ? std::clamp(terminal_columns(1), kLeast, kMost) : kMost;
}

std::string flag_head(const Flag& flag) {
  std::string head = flag.letter ? std::string("-") + flag.letter + ", " : "    ";
  head += "--" + std::string(flag.name);
  if (!flag.value.empty()) head += " " + std::string(flag.value);
  return head;
}

/// Help names every value of a choice, and every name of a table.
bool lists_choices(const Flag& flag) {
  return flag.kind == FlagKind::choice || flag.table != nullptr;
}

std::string flag_tail(const Flag& flag) {
  std::string tail(flag.help);
  if (lists_choices(flag)) tail += ": " + choices_of(flag);
  if (!flag.fallback.empty()) tail += " [" + std::string(flag.fallback) + "]";
  return tail;
}

/// "  head            tail", the tail wrapped under itself.
void put_row(std::string& out, const std::string& head, const std::string& tail, size_t column) {
  const size_t width = help_width();
  std::string line = "  " + head;
  line.resize(std::max(line.size() + 2, column), ' ');
  std::string_view rest = tail;
  while (line.size() + rest.size() > width) {
    if (line.size() >= width) break;
    const size_t room = width - line.size();
    const size_t blank = rest.rfind(' ', room);
    const bool is_word = blank == std::string_view::npos || blank == 0;
    const size_t bar = is_word ? rest.rfind('|', room - 1) : std::string_view::npos;  // a long list of choices
    if (is_word && bar == std::string_view::npos) break;
    out += line + std::string(rest.substr(0, is_word ? bar + 1 : blank)) + "\n";
    rest.remove_prefix((is_word ? bar : blank) + 1);
    line.assign(column, ' ');
  }
  out += line + std::string(rest) + "\n";
}

size_t column_of(FlagList flags, bool common) {
  size_t width = 0;
  for (const Flag* flag : flags)
    if (flag->common == common) width = std::max(width, flag_head(*flag).size());
  return std::min<size_t>(width + 4, 34);
}

void put_flags(std::string& out, FlagList flags, bool common) {
  const size_t column = column_of(flags, common);
  for (const Flag* flag : flags)
    if (flag->common == common) put_row(out, flag_head(*flag), flag_tail(*flag), column);
}

/// One wrapped paragraph: the names of the common flags.
void put_common_names(std::string& out, const Program& program, FlagList flags) {
  std::string line = "Common (" + std::string(program.name) + " help common):";
  auto add = [&](const Flag& flag) {
    std::string name = (flag.letter ? std::string("-") + flag.letter + "/" : "") + "--" + std::string(flag.name);
    if (line.size() + 1 + name.size() > help_width()) {
      out += line + "\n";
      line = " ";
    }
    line += " " + name;
  };
  for (const Flag* flag : flags)
    if (flag->common) add(*flag);
  for (const Flag* flag : kBuiltins) add(*flag);
  out += line + "\n";
}

bool any_own(FlagList flags) {
  return std::any_of(flags.begin(), flags.end(), [](const Flag* f) { return !f->common; });
}

std::string arg_usage(const Verb& verb) {
  std::string out;
  for (const Positional& arg : verb.args) {
    std::string name(arg.name);
    if (arg.max < 0 || arg.max > 1) name += "...";
    out += arg.min == 0 ? " [" + name + "]" : " " + name;
  }
  return out;
}

std::vector<const Flag*> all_flags(const Program& program) {
  std::vector<const Flag*> all(program.flags.begin(), program.flags.end());
  auto add = [&](const Flag* flag) {
    if (std::none_of(all.begin(), all.end(), [&](const Flag* f) { return f->name == flag->name; })) all.push_back(flag);
  };
  for (const Verb& verb : program.verbs)
    for (const Flag* flag : verb.flags) add(flag);
  for (const Flag* flag : kBuiltins) add(flag);
  return all;
}

}  // namespace

std::string help_text(const Program& program) {
  std::string out = std::string(program.name) + ": " + std::string(program.summary) + "\n\nUsage: ";
  if (program.run) out += std::string(program.name) + " [FLAGS]\n";
  if (!program.verbs.empty()) out += (program.run ? "       " : "") + std::string(program.name) + " VERB [FLAGS]\n";
  out += "\n";
  if (!program.verbs.empty()) {
    size_t column = 0;
    for (const Verb& verb : program.verbs) column = std::max(column, verb.name.size() + arg_usage(verb).size() + 4);
    out += "Verbs (" + std::string(program.name) + " help VERB):\n";
    for (const Verb& verb : program.verbs)
      put_row(out, std::string(verb.name) + arg_usage(verb), std::string(verb.summary), std::min<size_t>(column, 34));
    out += "\n";
  }
  if (any_own(program.flags)) {
    out += "Flags:\n";
    put_flags(out, program.flags, false);
    out += "\n";
  }
  put_common_names(out, program, program.flags);
  out += "\nExample: " + std::string(program.example) + "\n";
  return out;
}

std::string help_text(const Program& program, const Verb& verb) {
  const std::string name = std::string(program.name) + " " + std::string(verb.name);
  std::string out =
      name + ": " + std::string(verb.summary) + "\n\nUsage: " + name + " [FLAGS]" + arg_usage(verb) + "\n\n";
  if (!verb.args.empty()) {
    for (const Positional& arg : verb.args) put_row(out, std::string(arg.name), std::string(arg.help), 16);
    out += "\n";
  }
  if (any_own(verb.flags)) {
    out += "Flags:\n";
    put_flags(out, verb.flags, false);
    out += "\n";
  }
  put_common_names(out, program, verb.flags);
  if (!verb.example.empty()) out += "\nExample: " + std::string(verb.example) + "\n";
  return out;
}

Result<std::string> help_topic(const Program& program, std::string_view topic) {
  if (topic.empty()) return help_text(program);
  if (const Verb* verb = find_verb(program, topic)) return help_text(program, *verb);
  if (topic == "errors") return list_errors();
  // For the manual pages: scripts paste these, tests compare them.
  if (topic == "mdoc-options") return man_options(program);
  if (topic == "mdoc-errors") return man_errors();
  if (topic == "common") {
    const std::vector<const Flag*> all = all_flags(program);
    std::string out = "Flags that mean the same in every tool; each is also an environment variable\n(--log-level is " +
                      env_name("log-level") + ") and a key of the --config file.\n\n";
    put_flags(out, all, true);
    return out;
  }
  std::string text;
  if (const ErrorInfo* info = find_error(topic)) text = explain_error(*info);
  if (program.topic) {  // a reason may have the name of an error
    const std::string own = program.topic(topic);
    text += (text.empty() || own.empty() ? "" : "\n") + own;
  }
  if (!text.empty()) return text;
  return user_error(err::kUsage, "there is no help on '" + std::string(topic) + "'", {},
                    "topics: a verb, common, errors, " +
                        (program.topics.empty() ? std::string() : std::string(program.topics) + ", ") +
                        "or an error number like MC2104");
}

namespace {

std::string flag_words(FlagList flags) {
  std::string out;
  auto add = [&](const Flag& flag) {
    out += (out.empty() ? "--" : " --") + std::string(flag.name);
    if (flag.letter) out += std::string(" -") + flag.letter;
  };
  for (const Flag* flag : flags) add(*flag);
  for (const Flag* flag : kBuiltins) add(*flag);
  return out;
}

std::string spaced(std::string out) {
  std::replace(out.begin(), out.end(), '|', ' ');
  return out;
}

/// The choices as a sentence lists them: "a, b, c".
std::string listed(std::string_view choices) {
  std::string out;
  for (const char c : choices) out += c == '|' ? std::string(", ") : std::string(1, c);
  return out;
}

/// True when a verb's arguments are files; arguments that name nodes or requests are not files.
bool takes_files(const Verb& verb) {
  constexpr std::string_view kFiles[] = {"FILE", "TRACE", "LEFT", "RIGHT", "CORPUS"};
  return std::ranges::any_of(verb.args,
                             [&](const Positional& arg) { return std::ranges::count(kFiles, arg.name) > 0; });
}

std::string bash_completion(const Program& program) {
  std::string name(program.name), function = "_" + name;
  std::replace(function.begin(), function.end(), '-', '_');
  std::string verbs;
  for (const Verb& verb : program.verbs) verbs += std::string(verb.name) + " ";
  std::string out = "# " + name + " completion for bash: source this file\n" + function + "() {\n";
  out += "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word\n";
  out +=
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do case $word in -*) ;; *) verb=$word; break;; esac; done\n";
  out += "  case $prev in\n";
  std::string values;  // flags with any value complete file names
  for (const Flag* flag : all_flags(program)) {
    if (flag->kind == FlagKind::boolean) continue;
    const std::string choices = choices_of(*flag);
    if (choices.empty()) {
      values += (values.empty() ? "--" : "|--") + std::string(flag->name);
    } else {
      out += "    --" + std::string(flag->name) + ") COMPREPLY=($(compgen -W '" + spaced(choices) +
             "' -- \"$cur\")); return;;\n";
    }
  }
  if (!values.empty()) out += "    " + values + ") COMPREPLY=($(compgen -f -- \"$cur\")); return;;\n";
  out += "  esac\n  local files= flags='" + flag_words(program.flags) + "'\n  case $verb in\n";
  for (const Verb& verb : program.verbs)
    out += "    " + std::string(verb.name) + ") " + (takes_files(verb) ? "files=1 " : "") + "flags='" +
           flag_words(verb.flags) + "';;\n";
  out += "  esac\n  case $cur in\n    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"));;\n";
  out += "    *) if [ -z \"$verb\" ]; then COMPREPLY=($(compgen -W '" + verbs +
         "help' -- \"$cur\")); elif [ -n \"$files\" ]; then COMPREPLY=($(compgen -f -- \"$cur\")); fi;;\n";
  out += "  esac\n}\ncomplete -o filenames -F " + function + " " + name + "\n";
  return out;
}

std::string zsh_spec(const Flag& flag) {
  std::string help(flag.help);
  for (const char c : {'[', ']', ':', '\''}) std::replace(help.begin(), help.end(), c, ' ');
  std::string out = "'--" + std::string(flag.name) + "[" + help + "]";
  const std::string choices = choices_of(flag);
  if (flag.kind != FlagKind::boolean)
    out += ":" + std::string(flag.value) + ":" + (choices.empty() ? "_files" : "(" + spaced(choices) + ")");
  return out + "'";
}

std::string zsh_arguments(FlagList flags, const std::string& indent) {
  std::string out = "_arguments";
  for (const Flag* flag : kBuiltins) out += " \\\n" + indent + zsh_spec(*flag);
  for (const Flag* flag : flags) out += " \\\n" + indent + zsh_spec(*flag);
  return out;
}

std::string zsh_completion(const Program& program) {
  std::string out = "#compdef " + std::string(program.name) + "\nlocal verb word\n";
  out += "for word in ${words[2,CURRENT-1]}; do [[ $word != -* ]] && { verb=$word; break }; done\ncase $verb in\n";
  for (const Verb& verb : program.verbs)
    out += "  " + std::string(verb.name) + ") " + zsh_arguments(verb.flags, "    ") +
           (takes_files(verb) ? " '*:file:_files';;\n" : " '*: :';;\n");
  out += "  *) " + zsh_arguments(program.flags, "    ");
  out += " \\\n    '1:verb:(";
  for (const Verb& verb : program.verbs) out += std::string(verb.name) + " ";
  return out + "help)';;\nesac\n";
}

std::string mdoc_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  if (!out.empty() && (out[0] == '.' || out[0] == '\'')) out.insert(0, "\\&");
  return out;
}

void put_mdoc_flag(std::string& out, const Flag& flag) {
  out += ".It ";
  if (flag.letter) out += std::string("Fl ") + flag.letter + " , ";
  out += "Fl \\-" + mdoc_escape(flag.name);
  if (!flag.value.empty()) out += " Ar " + mdoc_escape(flag.value);
  out += "\n" + mdoc_escape(flag.help) + ".\n";
  if (lists_choices(flag)) out += "One of " + mdoc_escape(listed(choices_of(flag))) + ".\n";
  if (!flag.fallback.empty()) out += "Default: " + mdoc_escape(flag.fallback) + ".\n";
}

}  // namespace

std::string completion_text(const Program& program, std::string_view shell) {
  return shell == "zsh" ? zsh_completion(program) : bash_completion(program);
}

std::string man_options(const Program& program) {
  std::string out = ".Bl -tag -width Ds\n";
  for (const Flag* flag : program.flags) put_mdoc_flag(out, *flag);
  for (const Flag* flag : kBuiltins) put_mdoc_flag(out, *flag);
  out += ".El\n";
  for (const Verb& verb : program.verbs) {
    out += ".Ss " + mdoc_escape(verb.name) + mdoc_escape(arg_usage(verb)) + "\n" + mdoc_escape(verb.summary) + ".\n";
    std::vector<const Flag*> own;
    for (const Flag* flag : verb.flags)
      if (std::none_of(program.flags.begin(), program.flags.end(),
                       [&](const Flag* f) { return f->name == flag->name && f->help == flag->help; }))
        own.push_back(flag);
    if (own.empty()) continue;
    out += ".Bl -tag -width Ds\n";
    for (const Flag* flag : own) put_mdoc_flag(out, *flag);
    out += ".El\n";
  }
  return out;
}

}  // namespace mc::cli

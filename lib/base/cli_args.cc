// Values: how each kind of flag is read, checked and handed out.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/assert.h"
#include "base/cli.h"
#include "base/cli_builder.h"
#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/json.h"

namespace mc {

std::string env_name(std::string_view flag_name) {
  std::string out = "MCT_";
  for (const char c : flag_name) out += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return out;
}

namespace cli {

std::string choices_of(const Flag& flag) {
  std::string out(flag.choices);
  if (flag.table == nullptr) return out;
  for (const std::string_view name : flag.table()) (out += out.empty() ? "" : "|") += name;
  return out;
}

bool is_choice(const Flag& flag, std::string_view value) {
  const std::string choices = choices_of(flag);
  std::string_view rest = choices;
  while (!rest.empty()) {
    const size_t bar = rest.find('|');
    if (rest.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) break;
    rest.remove_prefix(bar + 1);
  }
  return false;
}

namespace {

template <class T>
Result<void> drop(Result<T> result) {
  if (!result) return std::move(result).error();
  return {};
}

Error no_choice(const Flag& flag, const std::string& value) {
  return {Code::invalid, "'" + value + "' is not one of " + choices_of(flag)};
}

/// Items of a list are names of its table, where it has one.
Result<void> check_list(const Flag& flag, const std::string& value) {
  MC_TRY(items, split_list(value));
  if (flag.table == nullptr) return {};
  for (const std::string& item : items)
    if (!is_choice(flag, item)) return no_choice(flag, item);
  return {};
}

Result<void> check_kind(const Flag& flag, const std::string& value) {
  switch (flag.kind) {
    case FlagKind::boolean: return drop(parse_bool(value));
    case FlagKind::text: return {};
    case FlagKind::choice: return no_choice(flag, value);
    case FlagKind::integer: return drop(parse_i64(value));
    case FlagKind::count: return drop(parse_count(value));
    case FlagKind::bytes: return drop(parse_bytes(value));
    case FlagKind::size: return drop(parse_size(value));
    case FlagKind::duration: return drop(parse_duration(value));
    case FlagKind::rate: return drop(parse_rate(value));
    case FlagKind::number: return drop(parse_f64(value));
    case FlagKind::host_port: return drop(parse_host_port(value));
    case FlagKind::list: return check_list(flag, value);
    case FlagKind::sweep_counts: return drop(parse_sweep_counts(value));
    case FlagKind::sweep_bytes: return drop(parse_sweep_bytes(value));
    case FlagKind::sweep_numbers: return drop(parse_sweep_numbers(value));
  }
  return {};
}

template <class T>
T must(Result<T> result) {
  MC_ASSERT(result.has_value());  // parse() accepted it; a caller that skips present() on "auto" ends here
  return std::move(result).value();
}

std::string toml_quote(std::string_view text) {
  std::string out;
  append_json_string(out, text);  // TOML basic strings take JSON's escapes
  return out;
}

std::string origin_text(Origin origin, const std::string& source) {
  switch (origin) {
    case Origin::fallback: return "default";
    case Origin::file: return "file " + source;
    case Origin::environment: return "environment " + source;
    case Origin::flag: return "flag";
  }
  return "?";
}

}  // namespace

std::string default_text(const Flag& flag) {
  return flag.kind == FlagKind::boolean && flag.fallback.empty() ? "false" : std::string(flag.fallback);
}

Result<void> check_value(const Flag& flag, const std::string& value) {
  if (value.empty() && flag.kind != FlagKind::boolean && flag.kind != FlagKind::choice) return {};  // "" = not given
  if (is_choice(flag, value)) return {};
  MC_CHECK(check_kind(flag, value));
  if (flag.check != nullptr) return flag.check(value);
  return {};
}

const std::vector<std::string>& Args::positional(std::string_view name) const {
  static const std::vector<std::string> kNone;
  const auto at = positionals_.find(name);
  return at == positionals_.end() ? kNone : at->second;
}

std::string Args::positional_one(std::string_view name) const {
  const auto& values = positional(name);
  return values.empty() ? std::string() : values.front();
}

const Args::Setting& Args::setting(const Flag& flag) const {
  for (const Setting& s : settings_)
    if (s.flag.name == flag.name) return s;
  MC_ASSERT(!"a flag that the program's table does not list was asked for");
  std::abort();
}

const Args::Setting& Args::setting(const Flag& flag, FlagKind kind) const {
  const Setting& s = setting(flag);
  MC_ASSERT_EQ(static_cast<int>(s.flag.kind), static_cast<int>(kind));
  return s;
}

bool Args::has(const Flag& flag) const {
  return std::any_of(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.flag.name == flag.name; });
}
bool Args::given(const Flag& flag) const {
  return setting(flag).origin != Origin::fallback;
}
bool Args::said(const Flag& flag) const {
  const Setting& s = setting(flag);  // its flag may have a default of its own
  // --print-config writes the defaults too, and they must not count when its lines are read back.
  return s.origin == Origin::flag || (s.origin == Origin::file && s.value != default_text(s.flag));
}
Origin Args::origin(const Flag& flag) const {
  return setting(flag).origin;
}
bool Args::present(const Flag& flag) const {
  const std::string& value = setting(flag).value;
  return !value.empty() && value != "off" && value != "none" && value != "auto";
}
bool Args::on(const Flag& flag) const {
  return must(parse_bool(setting(flag, FlagKind::boolean).value));
}
const std::string& Args::text(const Flag& flag) const {
  return setting(flag).value;
}
int64_t Args::integer(const Flag& flag) const {
  return must(parse_i64(setting(flag, FlagKind::integer).value));
}
uint64_t Args::count(const Flag& flag) const {
  return must(parse_count(setting(flag, FlagKind::count).value));
}
uint64_t Args::bytes(const Flag& flag) const {
  return must(parse_bytes(setting(flag, FlagKind::bytes).value));
}
ByteSize Args::size(const Flag& flag) const {
  return must(parse_size(setting(flag, FlagKind::size).value));
}
Duration Args::duration(const Flag& flag) const {
  return must(parse_duration(setting(flag, FlagKind::duration).value));
}
double Args::number(const Flag& flag) const {
  const Setting& s = setting(flag);
  return s.flag.kind == FlagKind::rate ? must(parse_rate(s.value))
                                       : must(parse_f64(setting(flag, FlagKind::number).value));
}
HostPort Args::host_port(const Flag& flag) const {
  return must(parse_host_port(setting(flag, FlagKind::host_port).value));
}
std::vector<std::string> Args::list(const Flag& flag) const {
  return must(split_list(setting(flag, FlagKind::list).value));
}
std::vector<uint64_t> Args::sweep(const Flag& flag) const {
  const Setting& s = setting(flag);
  if (s.value.empty()) return {};
  return s.flag.kind == FlagKind::sweep_bytes ? must(parse_sweep_bytes(s.value))
                                              : must(parse_sweep_counts(setting(flag, FlagKind::sweep_counts).value));
}
std::vector<double> Args::sweep_numbers(const Flag& flag) const {
  const Setting& s = setting(flag, FlagKind::sweep_numbers);
  return s.value.empty() ? std::vector<double>() : must(parse_sweep_numbers(s.value));
}

std::string Args::print_config() const {
  std::string out;
  for (const Setting& s : settings_) {
    if (s.flag.one_shot || s.flag.name == flags::kConfig.name) continue;
    std::string line = std::string(s.flag.name) + " = " + toml_quote(s.value);
    line.resize(std::max<size_t>(line.size() + 2, 44), ' ');
    out += line + "# " + origin_text(s.origin, s.source) + "\n";
  }
  return out;
}

std::string Args::print_config_json() const {
  std::string out;
  for (const Setting& s : settings_) {
    if (s.flag.one_shot || s.flag.name == flags::kConfig.name) continue;
    out += Json::object({{"type", "setting"},
                         {"key", s.flag.name},
                         {"value", s.value},
                         {"origin", origin_text(s.origin, s.source)}})
               .dump();
    out += '\n';
  }
  return out;
}

namespace {

bool wanted(const Args& args, const Flag& flag) {
  const std::string when = args.has(flag) ? args.text(flag) : std::string(flag.fallback);
  if (when == "always") return true;
  return when == "auto" && ::isatty(STDERR_FILENO) == 1;
}

}  // namespace

bool use_progress(const Args& args) {
  if (args.has(flags::kQuiet) && args.on(flags::kQuiet)) return false;
  return wanted(args, flags::kProgress);
}

}  // namespace cli
}  // namespace mc

// One table feeds everything: the tests drive a small program through every source of a value.
#include "base/cli.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/cli_flags.h"
#include "base/config_file.h"
#include "base/errors.h"
#include "base/fd.h"
#include "test.h"

using namespace mc;

namespace {

/// A power of two from 16 to 512.
Result<void> check_power(std::string_view value) {
  MC_TRY(count, parse_count(value));
  if (count >= 16 && count <= 512 && (count & (count - 1)) == 0) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not a power of two from 16 to 512"};
}
Result<void> check_pairs(std::string_view value) {
  if (value.find('=') != std::string_view::npos) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not k=v"};
}

constexpr Flag kModel{.name = "model", .letter = 'm', .value = "DIR", .help = "directory of the model"};
constexpr Flag kBlockTokens{.name = "block-tokens",
                            .kind = FlagKind::count,
                            .value = "N",
                            .fallback = "64",
                            .help = "tokens of a block",
                            .check = check_power};
constexpr Flag kKvMem{
    .name = "kv-mem", .kind = FlagKind::size, .value = "SIZE", .fallback = "80%", .help = "memory for blocks"};
constexpr Flag kHttp{.name = "http",
                     .kind = FlagKind::host_port,
                     .value = "ADDR:PORT",
                     .fallback = "127.0.0.1:8000",
                     .help = "where requests arrive"};
constexpr Flag kLabel{
    .name = "label", .kind = FlagKind::list, .value = "K=V", .help = "labels of the node", .check = check_pairs};
constexpr Flag kTtft{.name = "ttft-slo",
                     .kind = FlagKind::duration,
                     .value = "TIME",
                     .fallback = "off",
                     .help = "reject what would miss it",
                     .choices = "off"};
constexpr Flag kSizes{
    .name = "size", .kind = FlagKind::sweep_bytes, .value = "SIZES", .fallback = "64KiB", .help = "transfer sizes"};
constexpr Flag kPrompt{.name = "prompt", .letter = 'p', .value = "TEXT", .help = "the prompt"};
constexpr const Flag* kDaemon[] = {
    &kModel,       &kBlockTokens,        &kKvMem,          &kHttp, &kTtft, &kLabel, &flags::kConfig,
    &flags::kJson, &flags::kPrintConfig, &flags::kLogLevel};
constexpr const Flag* kOnce[] = {&kModel, &kPrompt, &kSizes, &flags::kJson, &flags::kConfig};
constexpr cli::Positional kFiles[] = {{.name = "FILE", .help = "a .mckv file", .min = 1, .max = -1}};
constexpr Flag kUrl{.name = "url", .value = "URL", .help = "where the daemon is"};
constexpr Flag kAskModel{.name = "model", .letter = 'm', .value = "PATH", .help = "model that reads the prompt"};
constexpr const Flag* kAsk[] = {&kUrl, &kAskModel};
Result<int> serve(const cli::Args&) {
  return 0;
}

Result<int> run_once(const cli::Args&) {
  return 1;
}

constexpr cli::Verb kVerbs[] = {{.name = "once",
                                 .summary = "one prompt",
                                 .args = kFiles,
                                 .flags = kOnce,
                                 .example = "mc-try once a.mckv",
                                 .run = run_once},
                                {.name = "ask", .summary = "ask a daemon", .flags = kAsk, .example = "mc-try ask"}};
constexpr cli::Program kTry{.name = "mc-decode",
                            .summary = "a program to test with",
                            .flags = kDaemon,
                            .verbs = kVerbs,
                            .example = "mc-decode --http :8200",
                            .version = "0.1.0",
                            .commit = "abc123",
                            .run = serve};

using Env = std::map<std::string, std::string>;

Result<cli::Invocation> try_args(std::vector<const char*> words, const Env& env = {}) {
  words.insert(words.begin(), "mc-decode");
  return cli::parse(kTry, static_cast<int>(words.size()), words.data(), [&](const char* name) -> const char* {
    const auto at = env.find(name);
    return at == env.end() ? nullptr : at->second.c_str();
  });
}

struct TemporaryFile {
  std::string path;
  explicit TemporaryFile(std::string_view text) {
    char name[] = "/tmp/mct-cli-XXXXXX";
    const Fd fd(::mkstemp(name));
    path = name;
    REQUIRE_OK(write_all(fd.get(), text));
  }
  ~TemporaryFile() { ::unlink(path.c_str()); }
};

}  // namespace

TEST_CASE("base/cli: flag beats environment beats file beats default, and print-config says which") {
  const TemporaryFile file("block-tokens = 128\nkv-mem = \"1GiB\"\nhttp = '127.0.0.1:9000'\n");
  const Env env{{"MCT_BLOCK_TOKENS", "256"}, {"MCT_KV_MEM", "2GiB"}};
  auto all = try_args({"--config", file.path.c_str(), "--block-tokens", "512", "--print-config"}, env);
  REQUIRE_OK(all);
  CHECK(all->exit_code == kExitOk);
  CHECK(all->out.find("block-tokens = \"512\"") != std::string::npos);
  CHECK(all->out.find("# environment MCT_KV_MEM") != std::string::npos);
  CHECK(all->out.find("# file " + file.path + ":3") != std::string::npos);
  CHECK(all->out.find("ttft-slo = \"off\"") != std::string::npos);

  auto go = try_args({"--config", file.path.c_str()}, env);
  REQUIRE_OK(go);
  CHECK(go->args.count(kBlockTokens) == 256);
  CHECK(go->args.size(kKvMem).bytes == 2 * kGiB);
  CHECK(go->args.host_port(kHttp).port == 9000);
  CHECK(go->args.origin(kHttp) == cli::Origin::file);
  CHECK_FALSE(go->args.present(kTtft));
  CHECK_FALSE(go->args.given(kModel));
}

TEST_CASE("base/cli: what print-config prints is a config file that gives the same settings") {
  auto first = try_args({"--block-tokens=32", "--ttft-slo", "250ms", "--label", "a=1,b=2", "--print-config"});
  REQUIRE_OK(first);
  const TemporaryFile file(first->out);
  auto second = try_args({"--config", file.path.c_str()});
  REQUIRE_OK(second);
  CHECK(second->args.count(kBlockTokens) == 32);
  CHECK(second->args.duration(kTtft) == 250ms);
  CHECK(second->args.list(kLabel) == std::vector<std::string>{"a=1", "b=2"});
}

TEST_CASE("base/cli: what print-config prints of defaults counts as not said when it is read back") {
  auto first = try_args({"--kv-mem", "1GiB", "--print-config"});
  REQUIRE_OK(first);
  const TemporaryFile file(first->out);
  auto second = try_args({"--config", file.path.c_str()});
  REQUIRE_OK(second);
  CHECK(second->args.said(kKvMem));
  CHECK_FALSE(second->args.said(kTtft));
  CHECK_FALSE(second->args.said(flags::kJson));
  CHECK(second->args.given(kHttp));  // an address in a file is meant, and does not move when it is busy
  CHECK_FALSE(second->args.given(kModel));
  CHECK_FALSE(second->args.given(kLabel));
  auto said = try_args({"--ttft-slo", "off"});
  REQUIRE_OK(said);
  CHECK(said->args.said(kTtft));
}

TEST_CASE("base/cli: an empty value is refused where it is no text") {
  for (const char* name : {"--block-tokens", "--kv-mem", "--http", "--ttft-slo", "--label"}) {
    auto bad = try_args({name, ""});
    REQUIRE_FALSE(bad);
    CHECK(bad.error().mc == err::kBadValue);
    CHECK(bad.error().what.ends_with("is empty"));
    CHECK(bad.error().where == name);
  }
  CHECK(try_args({"once", "--size", "", "a.mckv"}).error().what == "the value is empty");
  const TemporaryFile file("block-tokens = \"\"\n");
  auto in_file = try_args({"--config", file.path.c_str()});
  REQUIRE_FALSE(in_file);
  CHECK(in_file.error().where == "--block-tokens, from " + file.path + ":1");
  auto text = try_args({"once", "--prompt", "", "a.mckv"});
  REQUIRE_OK(text);
  CHECK(text->args.given(kPrompt));
  auto unset = try_args({}, {{"MCT_BLOCK_TOKENS", ""}});
  REQUIRE_OK(unset);
  CHECK(unset->args.count(kBlockTokens) == 64);
}

TEST_CASE("base/cli: a wrong value names the value and where it came from, with exit code 2") {
  auto bad = try_args({}, {{"MCT_BLOCK_TOKENS", "65"}});
  REQUIRE_FALSE(bad);
  CHECK(bad.error().mc == err::kBadValue);
  CHECK(bad.error().what == "'65' is not a power of two from 16 to 512");
  CHECK(bad.error().where == "--block-tokens, from environment variable MCT_BLOCK_TOKENS");
  CHECK(exit_code_of(bad.error()) == kExitUsage);
  CHECK(try_args({"--http", "here"}).error().mc == err::kBadValue);
  CHECK(try_args({"--ttft-slo", "soon"}).error().mc == err::kBadValue);
  CHECK(try_args({"--label", "novalue"}).error().mc == err::kBadValue);
}

TEST_CASE("base/cli: a hint names a flag that the verb has, or none") {
  CHECK(try_args({"--port", "1"}).error().next == "--http ADDR:PORT is where a daemon listens");
  CHECK(try_args({"ask", "--port", "1"}).error().next == "--url http://HOST:PORT names the conductor");
  CHECK(try_args({"ask", "--max-model-len", "1"}).error().next.find("--kv-mem") == std::string::npos);
  CHECK(try_args({"once", "--host", "h", "a"}).error().next.find("--http") == std::string::npos);
}

TEST_CASE("base/cli: unknown flags, verbs and config keys are errors that name the nearest word") {
  auto typo = try_args({"--blok-tokens", "64"});
  REQUIRE_FALSE(typo);
  CHECK(typo.error().mc == err::kUsage);
  CHECK(typo.error().what == "mc-decode has no flag --blok-tokens; did you mean --block-tokens?");
  CHECK(try_args({"onse", "x"}).error().what.find("verbs: once ask help") != std::string::npos);
  CHECK(try_args({"once", "--http", ":1", "x"}).error().what.find("has no flag --http") != std::string::npos);
  CHECK(try_args({"once"}).error().what.find("needs FILE") != std::string::npos);
  const TemporaryFile file("block_tokens = 64\n");
  auto key = try_args({"--config", file.path.c_str()});
  REQUIRE_FALSE(key);
  CHECK(key.error().mc == err::kConfigFile);
  CHECK(key.error().where == file.path + ":1");
  CHECK(try_args({"--config", "/nonexistent/x.toml"}).error().mc == err::kConfigFile);
  CHECK(try_args({"--block-tokens", "64", "--block-tokens", "32"}).error().mc == err::kUsage);
  CHECK(try_args({"--block-tokens", "64", "--block-tokens", "32"}).error().what.find("needs") == std::string::npos);
  CHECK(try_args({"--block-tokens"}).error().what.starts_with("--block-tokens needs N: "));
  CHECK(try_args({"ask", "--model"}).error().what == "--model needs PATH: model that reads the prompt");
  CHECK(try_args({"--model"}).error().what == "--model needs DIR: directory of the model");
}

TEST_CASE("base/cli: a line is run by the body of its verb, or by that of the program") {
  CHECK((try_args({"once", "a.mckv"})->run == run_once));
  CHECK((try_args({"--http", ":1"})->run == serve));
  constexpr cli::Program kBench{.name = "mc-try", .summary = "a program that needs a verb", .verbs = kVerbs};
  const char* alone[] = {"mc-try"};
  const auto refused = cli::parse(kBench, 1, alone, [](const char*) -> const char* { return nullptr; });
  REQUIRE(!refused);
  CHECK(refused.error().what.find("mc-try needs a verb") != std::string::npos);
}

TEST_CASE("base/cli: a verb takes its files, its letters and flags written before it") {
  auto go =
      try_args({"--json", "once", "a.mckv", "-p", "Once upon", "--size", "64KiB-256KiB*2", "b.mckv", "--size", "1MiB"});
  REQUIRE_OK(go);
  const cli::Args& args = go->args;
  CHECK(args.verb() == "once");
  CHECK(args.positional("FILE") == std::vector<std::string>{"a.mckv", "b.mckv"});
  CHECK(args.text(kPrompt) == "Once upon");
  CHECK(args.on(flags::kJson));
  CHECK(args.sweep(kSizes) == std::vector<uint64_t>{64 * kKiB, 128 * kKiB, 256 * kKiB, kMiB});
  CHECK(try_args({"once", "-", "--", "-odd.mckv"})->args.positional("FILE") ==
        std::vector<std::string>{"-", "-odd.mckv"});
  CHECK(try_args({"--http", ":1", "once", "x"}).error().what.find("does not apply") != std::string::npos);
}

TEST_CASE("base/cli: help fits a screen, names every flag and ends with the example") {
  auto help = try_args({"--help"});
  REQUIRE_OK(help);
  CHECK(help->exit_code == kExitOk);
  CHECK(std::count(help->out.begin(), help->out.end(), '\n') <= 40);
  for (const Flag* flag : kDaemon) CHECK(help->out.find("--" + std::string(flag->name)) != std::string::npos);
  CHECK(help->out.ends_with("Example: mc-decode --http :8200\n"));
  size_t widest = 0;
  for (size_t at = 0, end; (end = help->out.find('\n', at)) != std::string::npos; at = end + 1)
    widest = std::max(widest, end - at);
  CHECK(widest <= 100);
  CHECK(try_args({"once", "--help"})->out.find("Usage: mc-decode once [FLAGS] FILE...") != std::string::npos);
  CHECK(try_args({"help", "once"})->out == try_args({"once", "--help"})->out);
  CHECK(try_args({"help", "MC2104"})->out.find("kv-layout-mismatch") != std::string::npos);
  CHECK(try_args({"help", "common"})->out.find("MCT_LOG_LEVEL") != std::string::npos);
  CHECK(try_args({"help", "nothing"}).error().mc == err::kUsage);
  CHECK(try_args({"--version"})->out == "mc-decode 0.1.0 (abc123)\n");
}

TEST_CASE("base/cli: completion and the manual page name every flag of every verb") {
  for (const char* shell : {"bash", "zsh"}) {
    auto script = try_args({"--completion", shell});
    REQUIRE_OK(script);
    for (const Flag* flag : kDaemon) CHECK(script->out.find("--" + std::string(flag->name)) != std::string::npos);
    CHECK(script->out.find("once") != std::string::npos);
  }
  CHECK(try_args({"--completion", "fish"}).error().mc == err::kUsage);
  const std::string man = cli::man_options(kTry);
  CHECK(man.find(".It Fl m , Fl \\-model Ar DIR") != std::string::npos);
  CHECK(man.find(".Ss once FILE...") != std::string::npos);
  CHECK(man.find("One of trace, debug, info, warn, error, off.") != std::string::npos);
  CHECK(try_args({"help", "mdoc-options"})->out == man);
  CHECK(try_args({"help", "mdoc-errors"})->out.find(".It MC2104 kv-layout-mismatch") != std::string::npos);
}

TEST_CASE("base/cli: a row that joins a table joins parsing, help, completion and the manual page") {
  struct Row {
    std::string_view name;
  };
  static const Row first{"first"}, second{"second"};
  static std::vector<const Row*> rows;
  static const auto table = +[] { return std::span(rows); };
  const auto names = +[] {
    std::vector<std::string_view> out;
    for (const Row* row : table()) out.push_back(row->name);
    return out;
  };
  const Flag one{.name = "one",
                 .kind = FlagKind::choice,
                 .value = "W",
                 .fallback = "auto",
                 .help = "one row",
                 .choices = "auto",
                 .table = names};
  const Flag some{
      .name = "some", .kind = FlagKind::list, .value = "W,W", .fallback = "first", .help = "rows", .table = names};
  const Flag* const flags[] = {&one, &some};
  const cli::Program program{.name = "mc-try", .summary = "a program with a table", .flags = flags};
  const auto fits = [&](const char* flag, const char* value) {
    const char* const words[] = {"mc-try", flag, value};
    return cli::parse(program, 3, words, [](const char*) -> const char* { return nullptr; }).has_value();
  };
  rows = {&first};
  CHECK(fits("--one", "first"));
  CHECK(fits("--one", "auto"));
  for (const char* flag : {"--one", "--some"}) CHECK_FALSE(fits(flag, "second"));
  CHECK_FALSE(fits("--some", "first,second"));
  rows.push_back(&second);
  for (const char* flag : {"--one", "--some"}) CHECK(fits(flag, "second"));
  CHECK(fits("--some", "first,second"));
  CHECK_FALSE(fits("--some", "first,third"));
  CHECK(cli::help_text(program).find("one row: auto|first|second [auto]") != std::string::npos);
  CHECK(cli::help_text(program).find("rows: first|second [first]") != std::string::npos);
  CHECK(cli::man_options(program).find("One of first, second.") != std::string::npos);
  for (const char* shell : {"bash", "zsh"})
    CHECK(cli::completion_text(program, shell).find("auto first second") != std::string::npos);
}

TEST_CASE("base/config_file: a table of this program wins over the top level, other programs' are skipped") {
  auto entries =
      parse_config("seed = 1\nname = 'x'\n[mc-cache]\ndram = '1GiB'\n[mc-decode]\nseed = 2\n", "c.toml", "mc-decode");
  REQUIRE_OK(entries);
  CHECK(*entries == std::vector<ConfigEntry>{{"name", "x", 2}, {"seed", "2", 6}});
}

TEST_CASE("base/config_file: errors carry the line") {
  CHECK(parse_config("a = 1\nb = = 2\n", "c.toml", "mc-decode").error().where.starts_with("c.toml:2"));
  CHECK(parse_config("a = 1\n[server]\nx = 1\n", "c.toml", "mc-decode").error().where == "c.toml:2");
  CHECK(parse_config("a = 2026-01-01\n", "c.toml", "mc-decode").error().mc == err::kConfigFile);
  CHECK(parse_config("a = [1, [2]]\n", "c.toml", "mc-decode").error().mc == err::kConfigFile);
  CHECK(parse_config("a = 1\na = 2\n", "c.toml", "mc-decode").error().mc == err::kConfigFile);
  auto list = parse_config("a = [1, 'two', 3.5, true]\n", "c.toml", "mc-decode");
  REQUIRE_OK(list);
  CHECK(list->front().value == "1,two,3.5,true");
}

TEST_CASE("base/config_file: characters beyond ASCII belong in quotes, where they are kept") {
  auto quoted =
      parse_config("model = \"/home/j\xc3\xbcrgen \xf0\x9f\x98\x80\" # gr\xc3\xbc\xc3\x9f\n", "c.toml", "mc-decode");
  REQUIRE_OK(quoted);
  CHECK(quoted->front().value == "/home/j\xc3\xbcrgen \xf0\x9f\x98\x80");
  CHECK(parse_config("a = \"\\\"#\xc3\xbc\\\\\"", "c.toml", "mc-decode")->front().value == "\"#\xc3\xbc\\");
  CHECK(parse_config("a = 1\nm\xc3\xb6"
                     "del = 'x'\n",
                     "c.toml", "mc-decode")
            .error()
            .where == "c.toml:2");
  CHECK(parse_config("a = 1\nb = \"\"\"\\\n\xc3\xb6\"\"\"\n", "c.toml", "mc-decode").error().mc == err::kConfigFile);
  CHECK_FALSE(parse_config("a = 'x\xff'\n", "c.toml", "mc-decode"));
  CHECK_FALSE(parse_config(std::string_view("[\0", 2), "c.toml", "mc-decode"));
  for (const char* broken : {"[", "[/", "[[", "a", "a =", "= 1", "a = '", "a.b.c = 1", "a = {b = 1}", "[a]\n[a]"})
    CHECK_FALSE(parse_config(broken, "c.toml", "mc-decode"));
}

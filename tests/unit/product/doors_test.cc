#include "product/doors.h"

#include <map>
#include <string>
#include <vector>

#include "base/cli_flags.h"
#include "base/errors.h"
#include "test.h"

namespace doors_test {

using namespace mc;

namespace {

constexpr const Flag* kFlags[] = {&flags::kInsecure, &flags::kJson};
constexpr cli::Program kProgram{.name = "mc-try", .summary = "a program with doors", .flags = kFlags};

Result<cli::Invocation> try_args(std::vector<const char*> words, const std::map<std::string, std::string>& env = {}) {
  words.insert(words.begin(), "mc-try");
  return cli::parse(kProgram, static_cast<int>(words.size()), words.data(), [&](const char* name) -> const char* {
    const auto at = env.find(name);
    return at == env.end() ? nullptr : at->second.c_str();
  });
}

}  // namespace

TEST_CASE("product/doors: names of sites that no request could carry are refused") {
  for (const char* good : {"chat.example", "10.0.0.1,chat.example", "fd00::1"})
    CHECK(flags::check_hosts(good).has_value());
  for (const char* bad : {"chat.example:8000", "[fd00::1]", "https://chat.example", "chat.example/x"})
    CHECK_FALSE(flags::check_hosts(bad).has_value());
  for (const char* good : {"https://chat.example", "http://10.0.0.1:3000,https://b.example", "http://[fd00::1]:80"})
    CHECK(flags::check_origins(good).has_value());
  for (const char* bad : {"chat.example", "https://", "https://chat.example/", "file:///x", "https://chat.example/x"})
    CHECK_FALSE(flags::check_origins(bad).has_value());
}

TEST_CASE("product/doors: --insecure opens the doors that it names, and a word that is no door is refused") {
  const auto some = try_args({"--insecure", "data,pages"});
  REQUIRE_OK(some);
  CHECK(insecure(some->args, Door::data));
  CHECK(insecure(some->args, Door::pages));
  CHECK_FALSE(insecure(some->args, Door::http));
  CHECK_FALSE(insecure(try_args({})->args, Door::data));
  for (const Door door : {Door::control, Door::data, Door::http, Door::pages}) {
    CHECK(insecure(try_args({"--insecure", "all"})->args, door));
    // The old flag took no value: every way to give it so is refused, and the error lists the doors.
    for (const auto& refused : {try_args({"--insecure"}), try_args({"--insecure", "--json"}),
                                try_args({}, {{"MCT_INSECURE", "true"}}), try_args({"--insecure", "datas"})}) {
      REQUIRE_FALSE(refused);
      CHECK(exit_code_of(refused.error()) == kExitUsage);
      CHECK(format_error("mc", refused.error()).find(to_string(door)) != std::string::npos);
    }
  }
}

}  // namespace doors_test

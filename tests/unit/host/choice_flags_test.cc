#include "host/choice_flags.h"

#include <string>

#include "base/errors.h"
#include "host/conductor_flags.h"
#include "sched/policy.h"
#include "test.h"

namespace choice_flags_test {

using namespace mc;

namespace {

const sched::Policy kAdded{.name = "added", .summary = "a row that this test adds", .choose = nullptr};
const std::vector<const sched::Policy*>& more_policies() {
  static const std::vector<const sched::Policy*> rows = [] {
    std::vector<const sched::Policy*> out(sched::policies().begin(), sched::policies().end());
    out.push_back(&kAdded);
    return out;
  }();
  return rows;
}

/// mc-conductor --policy over another table.
constexpr Flag over(std::vector<std::string_view> (*table)()) {
  Flag flag = flags::kPolicy;
  flag.table = table;
  return flag;
}
constexpr Flag kMorePolicies = over(names_of<more_policies>);
constexpr const Flag* kShipped[] = {&flags::kPolicy, &flags::kAdmission, &flags::kTransport, &flags::kKernels};
constexpr const Flag* kMore[] = {&kMorePolicies};
constexpr cli::Program kProgram{.name = "mc-try", .summary = "a program with tables", .flags = kShipped};
constexpr cli::Program kMoreProgram{.name = "mc-try", .summary = "a program with one more row", .flags = kMore};

bool takes(const cli::Program& program, const Flag& flag, std::string_view value) {
  const std::string word = "--" + std::string(flag.name) + "=" + std::string(value);
  const char* const words[] = {"mc-try", word.c_str()};
  return cli::parse(program, 2, words, [](const char*) -> const char* { return nullptr; }).has_value();
}

}  // namespace

TEST_CASE("host/choice_flags: every row of a table is a value of its flag, and a word of no table is refused") {
  for (const Flag* flag : kShipped) {
    CAPTURE(flag->name);
    REQUIRE(bool{flag->table != nullptr});
    CHECK(flag->table().size() >= 3);
    for (const std::string_view name : flag->table()) {
      CHECK(takes(kProgram, *flag, name));
      CHECK(cli::help_text(kProgram).find(name) != std::string::npos);
    }
    CHECK_FALSE(takes(kProgram, *flag, "added"));
  }
}

TEST_CASE("host/choice_flags: a policy that joins the table joins parsing, help, completion and the manual page") {
  CHECK(takes(kMoreProgram, kMorePolicies, "added"));
  CHECK(takes(kMoreProgram, kMorePolicies, "kv-centric"));
  for (const auto& text : {cli::help_text(kMoreProgram), cli::man_options(kMoreProgram),
                           cli::completion_text(kMoreProgram, "bash"), cli::completion_text(kMoreProgram, "zsh")})
    CHECK(text.find("added") != std::string::npos);
  CHECK(cli::help_text(kProgram).find("added") == std::string::npos);
}

TEST_CASE("host/choice_flags: the defaults of flags are rows, or words beside them") {
  for (const Flag* flag : kShipped) CHECK(takes(kProgram, *flag, flag->fallback));
}

}  // namespace choice_flags_test

#include "base/choice.h"

#include <string>
#include <vector>

#include "base/assert.h"
#include "test.h"

namespace choice_test {

using namespace mc;

namespace {

enum class Order : uint8_t { rising, falling };

constexpr FlagWord<Order> kOrders[] = {{"up", Order::rising}, {"down", Order::falling}};
constexpr ChoiceFlag kOrder = with_choices<kOrders>(
    {.name = "order", .kind = FlagKind::choice, .value = "O", .fallback = "up", .help = "order of the rows"});
constexpr FlagWord<bool> kLimitWords[] = {{"all", true}, {"none", false}};
constexpr ChoiceFlag kLimit = with_choices<kLimitWords>(
    {.name = "limit", .kind = FlagKind::count, .value = "N", .fallback = "all", .help = "most rows"});
constexpr const Flag* kFlags[] = {&kOrder, &kLimit};
constexpr cli::Program kProgram{.name = "mc-try", .summary = "a program", .flags = kFlags};

Result<cli::Invocation> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "mc-try");
  return cli::parse(kProgram, static_cast<int>(words.size()), words.data(),
                    [](const char*) -> const char* { return nullptr; });
}
cli::Args args_of(std::vector<const char*> words) {
  auto parsed = parse(std::move(words));
  REQUIRE(parsed.has_value());
  return parsed->args;
}

}  // namespace

TEST_CASE("base/choice: a word becomes the value of its row, and a word of no row is refused with all words") {
  CHECK(kOrder.choices == "up|down");
  CHECK(choice_of(args_of({}), kOrder) == Order::rising);
  CHECK(choice_of(args_of({"--order", "down"}), kOrder) == Order::falling);
  CHECK(word_for(kOrder, Order::falling) == "down");
  const auto refused = parse({"--order", "Down"});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what.find("'Down' is not one of up|down") != std::string::npos);
  CHECK(cli::help_text(kProgram).find("up|down") != std::string::npos);
}

TEST_CASE("base/choice: a flag of another kind has values beside its words") {
  for (const auto& [word, value] : kLimitWords) {
    const cli::Args args = args_of({"--limit", word.data()});
    CHECK(is_word(args, kLimit));
    CHECK(word_of(args, kLimit) == value);
  }
  const cli::Args args = args_of({"--limit", "7"});
  CHECK_FALSE(is_word(args, kLimit));
  CHECK_FALSE(word_of(args, kLimit).has_value());
  CHECK(args.count(kLimit) == 7);
}

TEST_CASE("base/choice: every word of a table is found, and no part of a word") {
  for (const auto& [word, value] : kOrders) CHECK(find_choice(kOrder.values, word) == value);
  for (const char* other : {"", "u", "up|down", "upp"}) CHECK_FALSE(find_choice(kOrder.values, other).has_value());
}

}  // namespace choice_test

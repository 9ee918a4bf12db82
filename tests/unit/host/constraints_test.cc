#include "host/constraints.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/rng.h"
#include "model/find.h"
#include "test.h"

namespace mc::host {
namespace {

constexpr size_t kVocab = 2048;  // of mc-tiny
constexpr uint32_t kEnd = 2;

wire::Sampling forced() {
  wire::Sampling sampling;
  sampling.grammar = R"({"schema":{"type":"array","items":{"type":"string","maxLength":9},"minItems":2}})";
  sampling.end_ids = {kEnd};
  return sampling;
}

uint32_t random_allowed(std::span<const uint64_t> mask, Rng& rng) {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < kVocab; ++id)
    if (grammar::is_allowed(mask, id)) ids.push_back(id);
  REQUIRE_FALSE(ids.empty());
  return ids[rng.below(ids.size())];
}

TEST_CASE("host: a worker without a tokenizer refuses a grammar with the reason") {
  Constraints constraints = Constraints::open("/nonexistent", 10);
  const auto begun = constraints.begin(forced(), {});
  REQUIRE_FALSE(begun.has_value());
  CHECK(begun.error().code == Code::unsupported);
  CHECK(begun.error().what.find("no tokenizer") != std::string::npos);
}

TEST_CASE("host: the state of an answer is the same drawn token by token and computed from its tokens") {
  Constraints constraints = Constraints::open(model::find_model("mc-tiny").value(), kVocab);
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  const auto grown = constraints.begin(forced(), {});
  REQUIRE_OK(grown);
  std::vector<uint32_t> answer;
  bool ended = false;
  while (answer.size() < 300 && !ended) {
    const auto mask = (*grown)->allowed();
    REQUIRE_OK(mask);
    const auto computed = constraints.begin(forced(), answer);
    REQUIRE_OK(computed);
    const auto again = (*computed)->allowed();
    REQUIRE_OK(again);
    CHECK(std::vector(mask->begin(), mask->end()) == std::vector(again->begin(), again->end()));
    ended = grammar::is_allowed(*mask, kEnd);
    answer.push_back(random_allowed(*mask, rng));
    ended = ended && answer.back() == kEnd;
    if (!ended) REQUIRE_OK((*grown)->accept(answer.back()));
  }
  CHECK(answer.size() > 2);
}

TEST_CASE("host: a token that breaks the grammar and an answer that cannot end are errors") {
  Constraints constraints = Constraints::open(model::find_model("mc-tiny").value(), kVocab);
  const std::vector<uint32_t> foreign = {kEnd};
  CHECK_FALSE(constraints.begin(forced(), foreign).has_value());
  wire::Sampling endless = forced();
  endless.grammar = R"({"text":"a"})";
  endless.end_ids = {};
  const auto begun = constraints.begin(endless, {});
  REQUIRE_OK(begun);
  const auto mask = (*begun)->allowed();
  REQUIRE_OK(mask);
  Rng rng(test::seed());
  REQUIRE_OK((*begun)->accept(random_allowed(*mask, rng)));
  const auto over = (*begun)->allowed();
  REQUIRE_FALSE(over.has_value());
  CHECK(over.error().what.find("none of 0 tokens may end it") != std::string::npos);
}

TEST_CASE("host: the last used grammars are kept, at most 32 and within the bound in bytes") {
  const std::string directory = model::find_model("mc-tiny").value();
  Constraints wide = Constraints::open(directory, kVocab);
  REQUIRE_OK(wide.begin(forced(), {}));
  const size_t one = wide.bytes();
  Constraints narrow = Constraints::open(directory, kVocab, 3 * one);
  for (int i = 0; i < 5; ++i) {
    wire::Sampling sampling = forced();
    sampling.grammar = R"({"schema":{"const":)" + std::to_string(i) + "}}";
    for (Constraints* constraints : {&narrow, &wide}) {
      const auto begun = constraints->begin(sampling, {});
      REQUIRE_OK(begun);
      CHECK((*begun)->allowed().has_value());
    }
  }
  CHECK(narrow.kept() == 1);
  CHECK(wide.kept() == 6);
  for (int i = 0; i < 40; ++i) {
    wire::Sampling sampling = forced();
    sampling.grammar = R"({"text":")" + std::string(static_cast<size_t>(i) + 1, 'a') + "\"}";
    REQUIRE_OK(wide.begin(sampling, {}));
  }
  CHECK(wide.kept() == 32);
}

/// A grammar whose masks take more than itself, when the answer has come to its end.
wire::Sampling forced_text(int number) {
  wire::Sampling sampling = forced();
  Rng rng(static_cast<uint64_t>(number));
  std::string text;
  while (text.size() < 1000) text += static_cast<char>('a' + rng.below(26));
  sampling.grammar = "{\"text\":\"" + text + "\"}";
  return sampling;
}

TEST_CASE("host: grammars and masks stay below the bound after every token of several answers") {
  const std::string directory = model::find_model("mc-tiny").value();
  constexpr int kAnswers = 4;
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  Constraints wide = Constraints::open(directory, kVocab);
  std::vector<std::unique_ptr<Constraint>> free, bound;
  for (int i = 0; i < kAnswers; ++i) free.push_back(wide.begin(forced_text(i), {}).value());
  const size_t grammars = wide.bytes();
  const size_t most = 2 * grammars + 4096;
  Constraints narrow = Constraints::open(directory, kVocab, most);
  for (int i = 0; i < kAnswers; ++i) bound.push_back(narrow.begin(forced_text(i), {}).value());
  for (bool any = true; std::exchange(any, false);) {
    for (size_t i = 0; i < kAnswers; ++i) {
      const auto expected = free[i]->allowed(), got = bound[i]->allowed();
      REQUIRE_OK(expected);
      REQUIRE_OK(got);
      REQUIRE(std::ranges::equal(*expected, *got));
      CHECK_LE(narrow.bytes(), most);
      if (grammar::is_allowed(*expected, kEnd)) continue;
      const uint32_t next = random_allowed(*expected, rng);
      REQUIRE_OK(free[i]->accept(next));
      REQUIRE_OK(bound[i]->accept(next));
      any = true;
    }
  }
  CHECK_GT(wide.bytes(), most);  // else the bound was not tested
}

/// Goes on by a random one of the tokens that may follow.
void draw(Constraint& constraint, Rng& rng) {
  const auto mask = constraint.allowed();
  REQUIRE_OK(mask);
  REQUIRE_OK(constraint.accept(random_allowed(*mask, rng)));
}

/// A long list of eight long words: its answer comes to the same places again and again.
wire::Sampling long_list(int number) {
  wire::Sampling sampling = forced();
  Rng rng(static_cast<uint64_t>(number));
  std::string words;
  for (int i = 0; i < 8; ++i) {
    words += i == 0 ? "\"" : ",\"";
    for (int letter = 0; letter < 30; ++letter) words += static_cast<char>('a' + rng.below(26));
    words += '"';
  }
  sampling.grammar = "{\"schema\":{\"type\":\"array\",\"minItems\":10000,\"items\":{\"enum\":[" + words + "]}}}";
  return sampling;
}

/// Bytes of a list's grammar, and of the masks that its answer comes to use.
struct ListBytes {
  size_t grammar = 0, masks = 0;
};

ListBytes measure_list(const std::string& directory, Rng& rng) {
  Constraints measured = Constraints::open(directory, kVocab);
  const auto one = measured.begin(long_list(0), {}).value();
  const size_t grammar = measured.bytes();
  for (int token = 0; token < 2000; ++token) draw(*one, rng);
  CHECK_GT(measured.bytes(), 2 * grammar);
  return {grammar, measured.bytes() - grammar};
}

TEST_CASE("host: an answer keeps its masks while answers that began later and draw no tokens hold the rest") {
  const std::string directory = model::find_model("mc-tiny").value();
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  const ListBytes one = measure_list(directory, rng);
  Constraints narrow = Constraints::open(directory, kVocab, 4 * one.grammar + 3 * one.masks);
  std::vector<std::unique_ptr<Constraint>> answers;
  for (int i = 0; i < 4; ++i) {
    answers.push_back(narrow.begin(long_list(i), {}).value());
    for (int token = 0; token < 2000; ++token) draw(*answers.back(), rng);
  }
  for (int token = 0; token < 2000; ++token) draw(*answers.front(), rng);
  const uint64_t before = narrow.computed_masks();
  for (int token = 0; token < 2000; ++token) draw(*answers.front(), rng);
  CHECK_LE(narrow.computed_masks() - before, 40);
}

TEST_CASE("host: answers that take turns compute few masks again though the masks of all exceed the bound") {
  constexpr int kAnswers = 8, kTurns = 2000;
  const std::string directory = model::find_model("mc-tiny").value();
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  const ListBytes one = measure_list(directory, rng);
  constexpr std::pair<size_t, double> kBounds[] = {{8, 0.1}, {6, 0.5}, {5, 0.7}};
  for (const auto& [eighths, most_a_token] : kBounds) {
    CAPTURE(eighths);
    const size_t most = kAnswers * (one.grammar + one.masks * eighths / 8);
    Constraints narrow = Constraints::open(directory, kVocab, most);
    std::vector<std::unique_ptr<Constraint>> answers;
    for (int i = 0; i < kAnswers; ++i) answers.push_back(narrow.begin(long_list(i), {}).value());
    for (int turn = 0; turn < kTurns / 2; ++turn)
      for (const auto& answer : answers) draw(*answer, rng);
    const uint64_t before = narrow.computed_masks();
    for (int turn = 0; turn < kTurns / 2; ++turn)
      for (const auto& answer : answers) draw(*answer, rng);
    CHECK_LE(narrow.bytes(), most);
    const double again = static_cast<double>(narrow.computed_masks() - before) * 2 / kTurns / kAnswers;
    CHECK_LE(again, most_a_token);
  }
}

TEST_CASE("host: a grammar for which the running answers leave no room is busy until one of them ends") {
  const std::string directory = model::find_model("mc-tiny").value();
  Constraints measured = Constraints::open(directory, kVocab);
  REQUIRE_OK(measured.begin(forced_text(0), {}));
  Constraints narrow = Constraints::open(directory, kVocab, 5 * measured.bytes());
  auto first = narrow.begin(forced_text(0), {});
  const auto second = narrow.begin(forced_text(1), {}), again = narrow.begin(forced_text(1), {});
  REQUIRE_OK(first);
  REQUIRE_OK(second);
  REQUIRE_OK(again);  // of a grammar that is there already
  const auto third = narrow.begin(forced_text(2), {});
  REQUIRE_FALSE(third.has_value());
  CHECK(third.error().code == Code::busy);
  CHECK(third.error().what.find("retry when one of them has ended") != std::string::npos);
  first->reset();
  REQUIRE_OK(narrow.begin(forced_text(2), {}));
  Constraints tiny = Constraints::open(directory, kVocab, measured.bytes());
  const auto alone = tiny.begin(forced_text(0), {});
  REQUIRE_FALSE(alone.has_value());
  CHECK(alone.error().mc == err::kSchemaUnsupported);
}

}  // namespace
}  // namespace mc::host

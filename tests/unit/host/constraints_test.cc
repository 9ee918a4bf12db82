#include "host/constraints.h"

#include <algorithm>

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

TEST_CASE("host: grammars with their masks are kept up to a bound in bytes, the last used ones") {
  const std::string directory = model::find_model("mc-tiny").value();
  Constraints narrow = Constraints::open(directory, kVocab, 1), wide = Constraints::open(directory, kVocab);
  size_t most = 0;
  for (int i = 0; i < 5; ++i) {
    wire::Sampling sampling = forced();
    sampling.grammar = R"({"schema":{"const":)" + std::to_string(i) + "}}";
    for (Constraints* constraints : {&narrow, &wide}) {
      const auto begun = constraints->begin(sampling, {});
      REQUIRE_OK(begun);
      CHECK((*begun)->allowed().has_value());
    }
    most = std::max(most, narrow.kept());
  }
  CHECK(most == 1);
  CHECK(wide.kept() == 5);
  for (int i = 0; i < 40; ++i) {
    wire::Sampling sampling = forced();
    sampling.grammar = R"({"text":")" + std::string(static_cast<size_t>(i) + 1, 'a') + "\"}";
    REQUIRE_OK(wide.begin(sampling, {}));
  }
  CHECK(wide.kept() == 32);
}

}  // namespace
}  // namespace mc::host

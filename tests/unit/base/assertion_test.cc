// The assertions of tests/check.h: each test case fails as often as it says, and passes for that.
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "test.h"

namespace assertion_test {
namespace {

enum class Colour : uint8_t { red, green };

bool throwing() {
  throw std::runtime_error("on purpose");
}

}  // namespace

TEST_CASE("base/assertion: true expressions of all forms pass") {
  const std::string text = "abc";
  const std::optional<std::string> some = "abc", none;
  const std::vector<int> numbers = {1, 2};
  CHECK(text == "abc");
  CHECK(some == "abc");
  CHECK("abc" == text);
  CHECK(numbers.size() == 2);
  CHECK(numbers != std::vector<int>{});
  CHECK(numbers.size() + 1 > 2);
  CHECK(Colour::red < Colour::green);
  CHECK(0.1 + 0.2 == doctest::Approx(0.3));
  CHECK(some);
  CHECK_FALSE(none);
  CHECK_FALSE(text == "ab");
  CHECK_MESSAGE(text <= "abd", "in front of " << text);
  const std::string* const at = &text;
  REQUIRE(at != nullptr);
}

TEST_CASE("base/assertion: a false CHECK is counted, and the test case goes on" * doctest::expected_failures(5)) {
  const std::string text = "abc";
  CHECK(1 == 2);
  CHECK(text == "abd");
  CHECK(false);
  CHECK_FALSE(text == "abc");
  CHECK_MESSAGE(text > "b", "shown with it");
}

TEST_CASE("base/assertion: a false REQUIRE ends the test case" * doctest::expected_failures(1)) {
  REQUIRE(1 > 2);
  CHECK(false);
}

TEST_CASE("base/assertion: an error ends the test case in REQUIRE_OK" * doctest::expected_failures(1)) {
  const mc::Result<int> result = mc::Error(mc::Code::invalid, "an error on purpose");
  REQUIRE_OK(result);
  CHECK(false);
}

TEST_CASE("base/assertion: what an expression throws fails the test case" * doctest::should_fail()) {
  CHECK(throwing());
}

}  // namespace assertion_test

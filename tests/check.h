// CHECK, REQUIRE and their kin as doctest has them, for less of the compiler's time. An assertion is two calls: one
// compares, and writes down both values if they are to be shown; the other one reports. doctest's own is a block with
// handlers. What an expression throws ends the test case.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace mc::assertion {

/// The result of an assertion's expression.
struct Outcome {
  bool passed;
};

/// True if the values of an assertion are shown: if it failed, or the caller of the program wants to see all of them.
bool shown(bool passed);
/// Keeps the values of this thread's assertion for `report`.
void keep(const doctest::String& values);
/// Counts an assertion. A failed one is printed, and ends the test case if it is a REQUIRE.
bool report(doctest::assertType::Enum kind, const char* file, int line, const char* expression, Outcome outcome);

template <class T>
doctest::String text_of(const T& value) {
  return doctest::toString(value);
}
doctest::String text_of(const char* value);
doctest::String text_of(const std::string& value);
doctest::String text_of(const std::string_view& value);

// Tests compare sizes with integer literals.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"

/// An operator, in two forms: string literals of all lengths share one.
#define MC_ASSERTION_OPERATOR(op)                                  \
  template <class R>                                               \
  [[gnu::noinline]] Outcome operator op(const R& right) const {    \
    return judge(value op right, " " #op " ", right);              \
  }                                                                \
  [[gnu::noinline]] Outcome operator op(const char* right) const { \
    return judge(value op right, " " #op " ", right);              \
  }

/// The left side of an assertion's expression, or all of it.
template <class L>
struct Left {
  const L& value;
  bool wanted;

  MC_ASSERTION_OPERATOR(==)
  MC_ASSERTION_OPERATOR(!=)
  MC_ASSERTION_OPERATOR(<)
  MC_ASSERTION_OPERATOR(<=)
  MC_ASSERTION_OPERATOR(>)
  MC_ASSERTION_OPERATOR(>=)

  [[gnu::noinline]] operator Outcome() const {
    const bool passed = static_cast<bool>(value) == wanted;
    if (shown(passed)) keep(assertion::text_of(value));
    return {passed};
  }

 private:
  template <class R>
  [[gnu::noinline]] Outcome judge(bool result, const char* op, const R& right) const {
    const bool passed = result == wanted;
    if (shown(passed)) keep(assertion::text_of(value) + op + assertion::text_of(right));
    return {passed};
  }
};

#undef MC_ASSERTION_OPERATOR
#pragma GCC diagnostic pop

/// Stands in front of an assertion's expression and takes its left side: << binds closer than a comparison.
struct Taker {
  bool wanted;  // the value of the expression

  template <class L>
  [[gnu::always_inline]] Left<L> operator<<(const L& value) const {
    return {value, wanted};
  }
  [[gnu::always_inline]] Left<const char*> operator<<(const char* const& value) const { return {value, wanted}; }
};

}  // namespace mc::assertion

#define MC_ASSERTION(kind, wanted, text, ...)                                \
  mc::assertion::report(doctest::assertType::kind, __FILE__, __LINE__, text, \
                        mc::assertion::Taker{wanted} << __VA_ARGS__)

#undef CHECK
#undef CHECK_FALSE
#undef CHECK_MESSAGE
#undef REQUIRE
#undef REQUIRE_FALSE
#undef REQUIRE_MESSAGE
#define CHECK(...) MC_ASSERTION(DT_CHECK, true, #__VA_ARGS__, __VA_ARGS__)
#define CHECK_FALSE(...) MC_ASSERTION(DT_CHECK_FALSE, false, #__VA_ARGS__, __VA_ARGS__)
#define REQUIRE(...) MC_ASSERTION(DT_REQUIRE, true, #__VA_ARGS__, __VA_ARGS__)
#define REQUIRE_FALSE(...) MC_ASSERTION(DT_REQUIRE_FALSE, false, #__VA_ARGS__, __VA_ARGS__)
#define CHECK_MESSAGE(condition, ...) \
  do {                                \
    INFO(__VA_ARGS__);                \
    CHECK(condition);                 \
  } while (0)
#define REQUIRE_MESSAGE(condition, ...) \
  do {                                  \
    INFO(__VA_ARGS__);                  \
    REQUIRE(condition);                 \
  } while (0)

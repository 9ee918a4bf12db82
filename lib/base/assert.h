// Bugs are not errors: MC_ASSERT stays on in release builds and aborts with file, line and the
// values of both sides.
//
//   MC_ASSERT(page < page_count_);          // prints the expression
//   MC_ASSERT_EQ(free + used, total);       // prints both values
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

namespace mc {

[[noreturn, gnu::cold]] void assert_failed(const char* file, int line, const char* expr);
[[noreturn, gnu::cold]] void assert_failed(const char* file, int line, const char* expr, const std::string& values);

/// A value as text. Every file includes this header, so it does without the standard's streams (0.2 s to compile).
template <class T>
std::string assert_text(const T& value) {
  if constexpr (std::convertible_to<const T&, std::string_view>)
    return std::string(std::string_view(value));
  else if constexpr (std::is_enum_v<T>)
    return std::to_string(+static_cast<std::underlying_type_t<T>>(value));
  else if constexpr (std::is_arithmetic_v<T>)
    return std::to_string(value);
  else if constexpr (std::is_pointer_v<T> || std::is_null_pointer_v<T>)
    return value == nullptr ? "nullptr" : "a pointer";
  else
    return "a value";
}

template <class A, class B>
[[noreturn, gnu::cold, gnu::noinline]] void assert_cmp_failed(const char* file, int line, const char* expr, const A& a,
                                                              const B& b) {
  assert_failed(file, line, expr, assert_text(a) + " vs " + assert_text(b));
}

}  // namespace mc

#define MC_ASSERT(cond)                               \
  do {                                                \
    if (!(cond)) [[unlikely]]                         \
      ::mc::assert_failed(__FILE__, __LINE__, #cond); \
  } while (0)
#define MC_ASSERT_CMP_(a, op, b)                                                  \
  do {                                                                            \
    const auto& mc_a = (a);                                                       \
    const auto& mc_b = (b);                                                       \
    if (!(mc_a op mc_b)) [[unlikely]]                                             \
      ::mc::assert_cmp_failed(__FILE__, __LINE__, #a " " #op " " #b, mc_a, mc_b); \
  } while (0)
#define MC_ASSERT_EQ(a, b) MC_ASSERT_CMP_(a, ==, b)
#define MC_ASSERT_LE(a, b) MC_ASSERT_CMP_(a, <=, b)
#define MC_ASSERT_LT(a, b) MC_ASSERT_CMP_(a, <, b)
